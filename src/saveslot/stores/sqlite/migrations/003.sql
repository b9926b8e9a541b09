-- One row about the file itself.
create table file (
  id       blob    not null, -- random: a cursor of another file's feed names another id
  reserved integer not null  -- bytes of each page that hold its checksum: 8, or 0 if the file has no checksums
);
insert into file values (randomblob(8), 0);
