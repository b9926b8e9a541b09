-- Of a call with an idempotency key: 16 bytes that identify the call, 16 of its content; null without one.
alter table checkpoints add column request blob;
create unique index checkpoints_by_request on checkpoints (key, substr(request, 1, 16)) where request is not null;
-- The same of the call that created a session. It is free again once the session is deleted.
alter table sessions add column request blob;
create unique index sessions_by_request on sessions (namespace, substr(request, 1, 16))
  where request is not null and deleted_at is null;

-- Labels of entries, of sessions not deleted: what finds a session by one of its entries, newest last.
create table entry_labels (
  space   text    not null,
  label   text    not null,
  value   text    not null,
  made    integer not null, -- the session's created_at
  session blob    not null, -- its key
  seq     integer not null,
  primary key (space, label, value, made, session, seq)
) without rowid;
create index entry_labels_by_session on entry_labels (session);
