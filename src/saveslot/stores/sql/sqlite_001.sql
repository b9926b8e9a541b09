-- The log. (key, seq) is the lock: two writers of entry n+1 meet here and one of them wins.
-- `feed` numbers every entry of the file in commit order and is never reused, so a watcher misses and repeats nothing:
-- a purge that takes the newest entry leaves its number in a row of no session (its key is empty).
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

-- What the log adds up to, one row a session; written in the transaction of the entry that changes it, and by heartbeats.
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
-- A deleted id may be created again: only the living ones are unique.
create unique index sessions_by_id    on sessions (namespace, id) where deleted_at is null;
-- With `search`, so that looking for a text reads this index and nothing else.
create index sessions_by_time         on sessions (namespace, created_at, key, search) where deleted_at is null;
create index sessions_by_state        on sessions (namespace, state, created_at, key) where deleted_at is null;
create index sessions_by_agent_type   on sessions (namespace, agent_type, created_at, key) where deleted_at is null;
create index sessions_by_user         on sessions (namespace, user_id, created_at, key) where deleted_at is null;
create index sessions_by_heartbeat    on sessions (namespace, state, heartbeat, key) where deleted_at is null;
create index sessions_by_owner        on sessions (owner) where owner is not null and deleted_at is null;
-- What waits to be purged.
create index sessions_by_deletion   on sessions (namespace, deleted_at, key) where deleted_at is not null;

-- The labels of the living, to list by, newest last; written where a session is created, deleted or gets other labels.
create table labels (
  space   text    not null,
  label   text    not null,
  value   text    not null,
  made    integer not null, -- the session's created_at
  session blob    not null, -- its key
  primary key (space, label, value, made, session)
) without rowid;

-- One row a process that holds sessions. It says every few seconds that it lives; when `expires` has passed, by the clock
-- of the machine's boot (one that nobody sets), others may take over what it owns. A dead one is never renewed.
create table workers (
  worker  blob    primary key,
  name    text    not null,
  boot    text    not null,
  expires integer not null,
  beaten  integer not null,
  dead    integer not null
) without rowid;
