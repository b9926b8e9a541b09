"""One session of a SQLite file: its row, its newest entry, its log. Each reading is of one moment of the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

import apsw

from saveslot.log import Entry, Head, Ref, Row
from saveslot.stores.sqlite_file import Uptime, snapshot
from saveslot.stores.sqlite_reader import TooLong, Work
from saveslot.stores.sqlite_rows import COLUMNS, HEADER, ROW, ROW_COLUMNS, SIZE, to_entry, to_row

# Heads, and entries whose frames together have so many bytes, are read in the event loop: less than a millisecond.
FEW_HEADS, FEW_ENTRIES, FEW_BYTES = 8, 128, 1024 * 1024
# A larger frame is read from its place into ours, without a copy in between: the rows of a query are such copies.
WHOLE = 64 * 1024
# So many rows share a statement: between two statements the thread may have to wait for the interpreter.
TOGETHER = 64

# Many by their keys: {} of them.
_HEADS = f"""
select {", ".join(f"s.{column}" for column in COLUMNS.split(", "))}, coalesce(w.name, ''),
  case when boot = ?1 and not dead then max(0, expires - ?2) else 0 end, coalesce(deleted_at, 0),
  {", ".join(f"c.{column}" for column in HEADER.split(", "))}, null, {SIZE}
from (values {{}}) cross join sessions s indexed by sqlite_autoindex_sessions_1 on s.key = column1
left join workers w on w.worker = s.owner
cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key
where s.deleted_at is null
  and c.seq = (select m.seq from checkpoints m where m.key = s.key order by m.seq desc limit 1)"""  # noqa: S608


class Reading:
    def __init__(self, clock: Callable[[], int], uptime: Uptime) -> None:
        self._clock = clock
        self._uptime = uptime

    def heads(self, connection: apsw.Connection, refs: Sequence[Ref]) -> list[Head | None]:
        # A row must never be older than the entry beside it.
        with snapshot(connection):
            if len(refs) == 1:
                return [self.head(connection, refs[0])]
            keys = [ref for ref in refs if isinstance(ref, bytes)]
            found: dict[bytes, Head] = {}
            for start in range(0, len(keys), TOGETHER):
                found |= self._heads(connection, keys[start : start + TOGETHER])
            return [found.get(ref) if isinstance(ref, bytes) else self.head(connection, ref) for ref in refs]

    def _heads(self, connection: apsw.Connection, keys: list[bytes]) -> dict[bytes, Head]:
        now, marks = self._clock(), ", ".join(["(?)"] * len(keys))
        rows = connection.execute(_HEADS.format(marks), (*self._uptime(), *keys))
        return {row[0]: Head(to_row(row[:ROW_COLUMNS], now), to_entry(row[ROW_COLUMNS:])) for row in rows}

    def head(self, connection: apsw.Connection, ref: Ref) -> Head | None:
        row = self.row(connection, ref)
        last = None if row is None else last_entry(connection, row.key)
        return None if row is None or last is None else Head(row, last)

    def row(self, connection: apsw.Connection, ref: Ref, *, deleted: bool = False) -> Row | None:
        # INDEXED BY: statistics of a table that was tiny once would make this a scan for ever.
        by_key = isinstance(ref, bytes)
        index = "sqlite_autoindex_sessions_1" if by_key else "sessions_by_id"
        where = "key = ?3" if by_key else "namespace = ?3 and id = ?4"
        living = "" if deleted else " and deleted_at is null"
        values = (*self._uptime(), ref) if by_key else (*self._uptime(), *ref)
        sql = f"{ROW.format(f'sessions indexed by {index}')} where {where}{living}"
        found = connection.execute(sql, values).fetchone()
        return None if found is None else to_row(found, self._clock())


def last_entry(connection: apsw.Connection, key: bytes) -> Entry | None:
    sql = f"select {HEADER}, null, {SIZE} from checkpoints where key = ? order by seq desc limit 1"  # noqa: S608
    found = connection.execute(sql, (key,)).fetchone()
    return None if found is None else to_entry(found)


def append_id(connection: apsw.Connection, key: bytes, seq: int) -> bytes | None:
    return connection.execute("select append_id from checkpoints where key = ? and seq = ?", (key, seq)).get


def log(
    key: bytes,
    ranges: Sequence[tuple[int, int]],
    kinds: frozenset[int] | None,
    name: str | None,
    newest: int | None,
    largest: int | None,
    *,
    frames: bool,
) -> tuple[Work[list[Entry]], Work[list[Entry]] | None]:
    """What reads these entries, as `Store.entries` says; if they are few, also what does so in the event loop."""
    frame = f"case when length(frame) <= {WHOLE if largest is None else largest:d} then frame end"
    what = f"{HEADER}, {frame if frames else 'null'}, {SIZE}, feed, length(frame) > {WHOLE}"
    where, values = "key = ?", list[Any]([key])
    if kinds is not None:
        where += f" and kind in ({', '.join(str(int(kind)) for kind in sorted(kinds))})"
    if name is not None:
        where += " and name = ?"
        values.append(name)
    apart = frames and largest is None
    if newest is None:
        parts, tail = [ranges[start : start + TOGETHER] for start in range(0, len(ranges), TOGETHER)], ""
    else:
        parts, tail = [[span] for span in reversed(ranges)], " order by seq desc limit ?"

    def work(connection: apsw.Connection, most: float = inf) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        with snapshot(connection):
            for part in parts:
                sql = f"select {what} from {_spans(len(part))} and {where}{tail}"  # noqa: S608
                limit = [] if newest is None else [newest - len(found)]
                for *row, feed, large in connection.execute(sql, [*chain.from_iterable(part), *values, *limit]):
                    entry = to_entry(row)
                    size += entry.size
                    if size > most:
                        raise TooLong
                    if large and apart:
                        with connection.blob_open("main", "checkpoints", "frame", feed, False) as blob:  # noqa: FBT003
                            entry.frame = blob.read()
                    found.append(entry)
        found.sort(key=attrgetter("seq"))
        return found

    few = sum(last - first + 1 for first, last in ranges) <= FEW_ENTRIES
    return work, partial(work, most=FEW_BYTES if frames else inf) if few else None


def _spans(count: int) -> str:
    """Where entries within so many ranges are found. CROSS: the ranges lead."""
    if count == 1:
        return "checkpoints where seq between ? and ?"
    marks = ", ".join(["(?, ?)"] * count)
    return f"(values {marks}) cross join checkpoints where seq between column1 and column2"
