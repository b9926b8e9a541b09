-- The long patch or keyframe that an entry's frame stands on; 0: it is a keyframe, or there is none.
alter table checkpoints add column base bigint not null default 0;
