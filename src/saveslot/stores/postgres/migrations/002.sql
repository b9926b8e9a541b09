-- Of a call with an idempotency key: 16 bytes that identify the call, 16 of its content; null without one.
alter table checkpoints add column request bytea;
create unique index checkpoints_by_request on checkpoints (key, substring(request from 1 for 16))
  where request is not null;
-- The same of the call that created a session. It is free again once the session is deleted.
alter table sessions add column request bytea;
create unique index sessions_by_request on sessions (namespace, substring(request from 1 for 16))
  where request is not null and deleted_at is null;

-- Labels of entries, of sessions not deleted: what finds a session by one of its entries, newest last.
create table entry_labels (
  space   text collate "C" not null,
  label   text collate "C" not null,
  value   text collate "C" not null,
  made    bigint not null, -- the session's created_at
  session bytea  not null, -- its key
  seq     bigint not null,
  primary key (space, label, value, made, session, seq)
) with (autovacuum_analyze_threshold = 5000);
create index entry_labels_by_session on entry_labels (session);

-- Ids in the order of their bytes, whatever the collation of the database: a prefix is a range. Created last, as before.
drop index sessions_by_id;
create unique index sessions_by_id on sessions (namespace, id text_pattern_ops) where deleted_at is null;
