-- The log anew, with `base` and `request` before note and frame: a column after them is read by way of all the pages of a
-- large frame.
create table entries (
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
  request   blob, -- of a call with an idempotency key: 16 bytes that identify the call, 16 of its content
  base      integer not null default 0, -- the long patch or keyframe that a frame stands on; 0: a keyframe, or no frame
  note      blob,
  frame     blob
);
insert into entries (feed, key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest,
  request, note, frame)
select feed, key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, request, note,
  frame
from checkpoints order by feed;
drop table checkpoints;
alter table entries rename to checkpoints;
create unique index checkpoints_by_seq on checkpoints (key, seq);
create unique index checkpoints_by_request on checkpoints (key, substr(request, 1, 16)) where request is not null;
