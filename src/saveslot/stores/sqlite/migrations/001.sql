-- The log. (key, seq) is the lock: if two writers insert entry n+1, one of them wins.
-- `feed` numbers the file's entries in commit order and is never reused, so a watcher misses and repeats nothing:
-- a purge that removes the newest entry keeps its number in a row without a session (its key is empty).
create table checkpoints (
  feed      integer primary key,
  key       blob    not null,
  seq       integer not null,
  append_id blob    not null,
  kind      integer not null,
  name      text    not null,
  at        integer not null,
  alive     integer not null,
  fence     integer not null,
  lease     blob,
  data_seq  integer not null,
  about_seq integer not null,
  recipe    blob    not null,
  digest    blob    not null,
  note      blob,
  frame     blob
);
create unique index checkpoints_by_seq on checkpoints (key, seq);

-- Current state of each log, one row per session; written in the transaction that appends the entry, and by heartbeats.
create table sessions (
  key        blob    primary key,
  namespace  text    not null,
  id         text    not null,
  agent_type text    not null,
  user_id    text    not null,
  state      text    not null,
  created_at integer not null,
  heartbeat  integer not null,
  fence      integer not null,
  lease      blob,
  owner      blob, -- the worker that holds it
  labels     text    not null,
  deleted_at integer,
  body       blob    not null,
  search     text    not null -- id, agent type, user id and label values, in lower case, a unit separator between them
);
-- A deleted id may be created again: ids are unique among sessions not deleted.
create unique index sessions_by_id    on sessions (namespace, id) where deleted_at is null;
-- Includes `search`, so that a text search reads only this index.
create index sessions_by_time         on sessions (namespace, created_at, key, search) where deleted_at is null;
create index sessions_by_state        on sessions (namespace, state, created_at, key) where deleted_at is null;
create index sessions_by_agent_type   on sessions (namespace, agent_type, created_at, key) where deleted_at is null;
create index sessions_by_user         on sessions (namespace, user_id, created_at, key) where deleted_at is null;
create index sessions_by_heartbeat    on sessions (namespace, state, heartbeat, key) where deleted_at is null;
create index sessions_by_owner        on sessions (owner) where owner is not null and deleted_at is null;
-- Deleted, not yet purged.
create index sessions_by_deletion   on sessions (namespace, deleted_at, key) where deleted_at is not null;

-- Labels of sessions not deleted, for listing, newest last; written when a session is created, deleted or relabelled.
create table labels (
  space   text    not null,
  label   text    not null,
  value   text    not null,
  made    integer not null, -- the session's created_at
  session blob    not null, -- its key
  primary key (space, label, value, made, session)
) without rowid;

-- One row per process that holds sessions. It renews its row every few seconds; once `expires` has passed, by the time
-- since the machine's boot, which cannot be set, other workers may take over its sessions. A dead row is never renewed.
create table workers (
  worker  blob    primary key,
  name    text    not null,
  boot    text    not null,
  expires integer not null,
  beaten  integer not null,
  dead    integer not null
) without rowid;
