-- The log. (key, seq) is the lock: two writers of entry n+1 meet here and one of them wins.
-- Partitioned by the session's key, a UUIDv7: a lookup touches one partition, old ones can be dropped whole.
-- `tx` orders what is watched: an entry is shown once nothing older can be committed any more.
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
-- Statistics of a nearly empty table spoil the plans that connections keep: none before there is something to count.
create table checkpoints_default partition of checkpoints default with (autovacuum_analyze_threshold = 5000);
-- Frames and notes are compressed already.
alter table checkpoints_default alter column frame set storage external, alter column note set storage external;
create index checkpoints_by_tx on checkpoints (tx, key, seq);

-- What the log adds up to, one row a session; written in the statement of the entry that changes it, and by heartbeats.
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
  -- What a text search looks at. Only the case of ASCII letters is lost, whatever the database's language.
  search     text collate "C" not null generated always as (lower((id || chr(31) || agent_type || chr(31) || user_id
    || chr(31) || jsonb_path_query_array(labels, '$.*')::text) collate "C")) stored
) with (autovacuum_analyze_threshold = 5000);
-- With `search`, so that looking for a text reads this index and nothing else.
create index sessions_by_time       on sessions (namespace, created_at, key) include (search) where deleted_at is null;
create index sessions_by_state      on sessions (namespace, state, created_at, key) where deleted_at is null;
create index sessions_by_agent_type on sessions (namespace, agent_type, created_at, key) where deleted_at is null;
create index sessions_by_user       on sessions (namespace, user_id, created_at, key) where deleted_at is null;
create index sessions_by_heartbeat  on sessions (namespace, state, heartbeat, key) where deleted_at is null;
-- What waits to be purged.
create index sessions_by_deletion   on sessions (namespace, deleted_at, key) where deleted_at is not null;
create index sessions_by_owner      on sessions (owner, namespace, created_at, key)
  where owner is not null and deleted_at is null;
-- A deleted id may be created again: only the living ones are unique. The last of these indexes: while nothing is known of
-- the table yet they all look alike, and then the planner takes the newest.
create unique index sessions_by_id  on sessions (namespace, id) where deleted_at is null;

-- The labels of the living, to list by, newest last; written where a session is created, deleted or gets other labels.
create table labels (
  space   text collate "C" not null,
  label   text collate "C" not null,
  value   text collate "C" not null,
  made    bigint not null, -- the session's created_at
  session bytea  not null, -- its key
  primary key (space, label, value, made, session)
) with (autovacuum_analyze_threshold = 5000);

-- One row a process that holds sessions. No index on `expires`, so that renewing one rewrites nothing else.
create table workers (
  worker  bytea   primary key,
  name    text    not null,
  expires bigint  not null,
  beaten  bigint  not null,
  dead    boolean not null
);

-- Sessions that a purge is about to remove, one row a purge: until nobody can write to them who has not seen it here.
-- Every append looks at all of it, so it has no index, and rows stay short: the keys lie outside. Lost in a crash,
-- together with the purge.
create unlogged table purging (
  own      uuid        not null, -- of this purge alone
  marked   timestamptz not null,
  least    bytea       not null,
  greatest bytea       not null,
  keys     bytea[]     not null  -- without those that somebody wants to write to
);
alter table purging alter column keys set storage external;
