-- The log. (key, seq) is the lock: if two writers insert entry n+1, one of them wins.
-- Partitioned by the session's key, a UUIDv7: a lookup reads one partition, and old ones can be dropped as a whole.
-- `tx` orders events: watchers see an entry once no older transaction can still commit.
create table checkpoints (
  key       bytea    not null,
  seq       bigint   not null,
  append_id bytea    not null,
  kind      smallint not null,
  name      text     not null,
  at        bigint   not null,
  alive     bigint   not null,
  fence     bigint   not null,
  lease     bytea,
  data_seq  bigint   not null,
  about_seq bigint   not null,
  recipe    bytea    not null,
  digest    bytea    not null,
  note      bytea,
  frame     bytea,
  tx        xid8     not null default pg_current_xact_id(),
  primary key (key, seq)
) partition by range (key);
-- Statistics of a nearly empty table spoil the plans that connections cache, so analyze only after 5,000 changes.
create table checkpoints_default partition of checkpoints default with (autovacuum_analyze_threshold = 5000);
-- Frames and notes are compressed already.
alter table checkpoints_default alter column frame set storage external, alter column note set storage external;
create index checkpoints_by_tx on checkpoints (tx, key, seq);

-- Current state of each log, one row per session; written by the statement that appends the entry, and by heartbeats.
create table sessions (
  key        bytea   primary key,
  namespace  text    not null,
  id         text    not null,
  agent_type text    not null,
  user_id    text    not null,
  state      text    not null,
  created_at bigint  not null,
  heartbeat  bigint  not null,
  fence      bigint  not null,
  lease      bytea,
  owner      bytea,
  labels     jsonb   not null,
  deleted_at bigint,
  body       bytea   not null,
  -- Searched text. Only ASCII letters are lowered, in any locale of the database.
  search     text collate "C" not null generated always as (lower((id || chr(31) || agent_type || chr(31) || user_id
    || chr(31) || jsonb_path_query_array(labels, '$.*')::text) collate "C")) stored
) with (autovacuum_analyze_threshold = 5000);
-- Includes `search`, so that a text search reads only this index.
create index sessions_by_time       on sessions (namespace, created_at, key) include (search) where deleted_at is null;
create index sessions_by_state      on sessions (namespace, state, created_at, key) where deleted_at is null;
create index sessions_by_agent_type on sessions (namespace, agent_type, created_at, key) where deleted_at is null;
create index sessions_by_user       on sessions (namespace, user_id, created_at, key) where deleted_at is null;
create index sessions_by_heartbeat  on sessions (namespace, state, heartbeat, key) where deleted_at is null;
-- Deleted, not yet purged.
create index sessions_by_deletion   on sessions (namespace, deleted_at, key) where deleted_at is not null;
create index sessions_by_owner      on sessions (owner, namespace, created_at, key)
  where owner is not null and deleted_at is null;
-- A deleted id may be created again: ids are unique among sessions not deleted. Created last: without statistics all
-- indexes cost the same, and the planner picks the newest.
create unique index sessions_by_id  on sessions (namespace, id) where deleted_at is null;

-- Labels of sessions not deleted, for listing, newest last; written when a session is created, deleted or relabelled.
create table labels (
  space   text collate "C" not null,
  label   text collate "C" not null,
  value   text collate "C" not null,
  made    bigint not null, -- the session's created_at
  session bytea  not null, -- its key
  primary key (space, label, value, made, session)
) with (autovacuum_analyze_threshold = 5000);

-- One row per process that holds sessions. No index on `expires`, so that a renewal updates no index.
create table workers (
  worker  bytea   primary key,
  name    text    not null,
  expires bigint  not null,
  beaten  bigint  not null,
  dead    boolean not null
);
