-- What the feed's numbers mean. The row names the transaction that wrote it: after a dump or logical replication, another
-- transaction did, and the numbers in `checkpoints.tx` are those of another server.
alter table format
  add primary key (version),
  add column feed     uuid   not null default gen_random_uuid(), -- new on each server and timeline; cursors repeat 4 bytes
  add column tx       xid8   not null default '0',
  add column timeline bigint not null default 0, -- of the server
  add column shift    bigint not null default 0; -- `checkpoints.tx` minus the number of its transaction, for new entries
