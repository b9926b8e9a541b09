"""Reads one session of a SQLite file: its row, its newest entry, its log. Each read uses one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

import apsw

from saveslot.errors import Corrupt
from saveslot.stores.sqlite.file import Uptime, snapshot
from saveslot.stores.sqlite.reader import TooLong, Work
from saveslot.stores.sqlite.rows import COLUMNS, HEADER, LEFT, ROW, ROW_COLUMNS, SIZE, fetched, to_row
from saveslot.stores.stored import to_entries, to_entry, to_head, to_marks, with_labels
from saveslot.values.log import MAX_SEQ, Entry, Head, Ref, Row, Wanted, among

# Reads of at most 8 heads, or of 128 entries with 1 MiB of frames, run in the event loop: under 1 ms.
FEW_HEADS, FEW_ENTRIES, FEW_BYTES = 8, 128, 1024 * 1024
# Bytes. A larger frame is read as a blob, which saves the copy that a query's row would make.
WHOLE = 64 * 1024
# Rows per statement: between two statements a thread may have to wait for the interpreter.
TOGETHER = 64

# The seqs of a chain, newest first. CROSS JOIN: one lookup by (key, seq) a step.
_CHAIN = """
with recursive chain(at, base) as (
  select seq, base from checkpoints where key = ?1 and seq = ?2
  union all
  select c.seq, c.base from chain cross join checkpoints c
  where c.key = ?1 and c.seq = chain.base and chain.base < chain.at)
select cast(at as integer) from chain"""

# Of checkpoints as c.
_SIZE = "coalesce(length(c.frame), 0) + coalesce(length(c.note), 0)"
# Heads by key; {}: one placeholder per key.
_HEADS = f"""
select {", ".join(f"s.{column}" for column in COLUMNS.split(", "))}, coalesce(w.name, ''),
  {LEFT}, coalesce(beaten, 0), coalesce(deleted_at, 0),
  {", ".join(f"c.{column}" for column in HEADER.split(", "))}, null, {_SIZE}, cast(b.digest as blob), b.at
from (values {{}}) cross join sessions s indexed by sqlite_autoindex_sessions_1 on s.key = column1
left join workers w on w.worker = s.owner
cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key
left join checkpoints b indexed by checkpoints_by_seq on b.key = s.key and b.seq = c.seq - 1
where s.deleted_at is null
  and c.seq = (select m.seq from checkpoints m where m.key = s.key order by m.seq desc limit 1)"""  # noqa: S608

# Labels of a session's entries. As blobs: apsw returns no row with a text that is not UTF-8.
_MARKS = """
select cast(seq as integer), cast(label as blob), cast(value as blob)
from entry_labels indexed by entry_labels_by_session where session = ?"""


class Reading:
    def __init__(self, clock: Callable[[], int], uptime: Uptime) -> None:
        self._clock = clock
        self._uptime = uptime

    def heads(self, connection: apsw.Connection, refs: Sequence[Ref], *, state: bool) -> list[Head | None]:
        # A row must never be older than the entry beside it.
        with snapshot(connection):
            heads = self._newest(connection, refs)
            for head in heads if state else ():
                if head is not None and head.last.data_seq and head.row.locked is None:
                    try:
                        head.data = _header(connection, head.row.key, head.last.data_seq)
                    except Corrupt as exc:
                        head.row.locked = Corrupt(f"checkpoint {head.row.session_id}:{head.last.data_seq}", exc.reason)
            return heads

    def _newest(self, connection: apsw.Connection, refs: Sequence[Ref]) -> list[Head | None]:
        if len(refs) == 1:
            return [self.head(connection, refs[0])]
        keys = [ref for ref in refs if isinstance(ref, bytes)]
        heads: dict[bytes, Head] = {}
        for start in range(0, len(keys), TOGETHER):
            heads |= self._heads(connection, keys[start : start + TOGETHER])
        return [heads.get(ref) if isinstance(ref, bytes) else self.head(connection, ref) for ref in refs]

    def _heads(self, connection: apsw.Connection, keys: list[bytes]) -> dict[bytes, Head]:
        now, marks = self._clock(), ", ".join(["(?)"] * len(keys))
        rows = fetched(connection, _HEADS.format(marks), (*self._uptime(), *keys))
        return {row[0]: to_head(to_row(row[:ROW_COLUMNS], now), row[ROW_COLUMNS:-2], row[-2:]) for row in rows}

    def head(self, connection: apsw.Connection, ref: Ref) -> Head | None:
        row = self.row(connection, ref)
        last = None if row is None else _last(connection, row.key)
        return None if row is None or last is None else to_head(row, last, _before(connection, row.key, last[0]))

    def created(self, connection: apsw.Connection, namespace: str, request: bytes) -> Head | None:
        """The head of the session that the call with this request created."""
        sql = """
            select cast(key as blob) from sessions indexed by sessions_by_request
            where namespace = ? and substr(request, 1, 16) = ? and request is not null and deleted_at is null"""
        key = connection.execute(sql, (namespace, request)).get
        return None if key is None else self.head(connection, key)

    def row(self, connection: apsw.Connection, ref: Ref, *, deleted: bool = False) -> Row | None:
        # INDEXED BY: with statistics from when the table was tiny, SQLite would always scan it.
        by_key = isinstance(ref, bytes)
        index = "sqlite_autoindex_sessions_1" if by_key else "sessions_by_id"
        where = "key = ?3" if by_key else "namespace = ?3 and id = ?4"
        living = "" if deleted else " and deleted_at is null"
        values = (*self._uptime(), ref) if by_key else (*self._uptime(), *ref)
        sql = f"{ROW.format(f'sessions indexed by {index}')} where {where}{living}"
        columns = next(iter(fetched(connection, sql, values)), None)
        return None if columns is None else to_row(columns, self._clock())


def last_entry(connection: apsw.Connection, key: bytes) -> Entry | None:
    columns = _last(connection, key)
    return None if columns is None else to_entry(columns, key)


def _last(connection: apsw.Connection, key: bytes) -> tuple[Any, ...] | None:
    sql = f"select {HEADER}, null, {SIZE} from checkpoints where key = ? order by seq desc limit 1"  # noqa: S608
    return next(iter(fetched(connection, sql, (key,))), None)


def _before(connection: apsw.Connection, key: bytes, seq: Any) -> tuple[Any, ...]:
    """Digest and time of the entry before."""
    if not isinstance(seq, int) or seq < 2:  # noqa: PLR2004
        return ()
    sql = "select cast(digest as blob), at from checkpoints where key = ? and seq = ?"
    return next(connection.execute(sql, (key, seq - 1)), ())


def _header(connection: apsw.Connection, key: bytes, seq: int) -> Entry | None:
    sql = f"select {HEADER}, null, {SIZE} from checkpoints where key = ? and seq = ?"  # noqa: S608
    columns = next(iter(fetched(connection, sql, (key, seq))), None)
    return None if columns is None else to_entry(columns, key)


def append_id(connection: apsw.Connection, key: bytes, seq: int) -> bytes | None:
    return connection.execute(
        "select cast(append_id as blob) from checkpoints where key = ? and seq = ?", (key, seq)
    ).get


def log(key: bytes, wanted: Wanted) -> tuple[Work[list[Entry]], Work[list[Entry]] | None]:
    """Return a function that reads these entries, as `Store.entries` describes, and one for the event loop if few."""
    newest, frames = wanted.newest, wanted.frames
    frame = f"case when length(frame) <= {WHOLE:d} and seq >= {{kept}} then cast(frame as blob) end"
    what = f"{HEADER}, {frame if frames else 'null'}, {SIZE}, feed, length(frame) > {WHOLE}"
    where, values = "key = ?", list[Any]([key])
    if wanted.kinds is not None:
        where += f" and kind in ({', '.join(str(int(kind)) for kind in sorted(wanted.kinds))})"
    if wanted.name is not None:
        where += " and name = ?"
        values.append(wanted.name)
    index, tail = "", "" if newest is None else " order by seq desc limit ?"
    if wanted.request is not None:
        index = " indexed by checkpoints_by_request"
        where += " and substr(request, 1, 16) = ? and request is not null"
        values.append(wanted.request)

    def labelled(connection: apsw.Connection) -> list[Entry]:
        with snapshot(connection):
            marks = to_marks(connection.execute(_MARKS, (key,)))
            return with_labels(log(key, among(wanted, marks))[0](connection), marks)

    def work(connection: apsw.Connection, most: float = inf) -> list[Entry]:
        rows: list[Any] = []
        size = 0
        with snapshot(connection):
            ranges = wanted.ranges
            if wanted.chain:
                ranges = wanted.with_chain(at for (at,) in connection.execute(_CHAIN, (key, wanted.chain)))
                if most < inf and len(ranges) > FEW_ENTRIES:
                    raise TooLong
            kept = 0 if wanted.room is None else _newest(connection, key, ranges, wanted.room)
            for part in _parts(ranges, newest):
                sql = f"select {what.replace('{kept}', str(kept))} from {_spans(len(part), index)} and {where}{tail}"  # noqa: S608
                limit = [] if newest is None else [newest - len(rows)]
                more = _upto(connection, sql, [*chain.from_iterable(part), *values, *limit], most - size)
                size += sum([row[-3] for row in more])
                rows += more
            entries = to_entries([row[:-2] for row in rows], key)
            for entry, (*_, feed, large) in zip(entries, rows, strict=True):
                if large and frames and entry.seq >= kept:
                    with connection.blob_open("main", "checkpoints", "frame", feed, False) as blob:  # noqa: FBT003
                        entry.frame = blob.read()
        entries.sort(key=attrgetter("seq"))
        return entries

    if wanted.labelled:
        return labelled, None
    few = sum(last - first + 1 for first, last in wanted.ranges) <= FEW_ENTRIES or wanted.request is not None
    return work, partial(work, most=FEW_BYTES if frames else inf) if few else None


def _upto(connection: apsw.Connection, sql: str, values: Sequence[Any], most: float) -> list[Any]:
    """The rows of a select in `log`; `TooLong` if they have more bytes than `most`."""
    if most == inf:
        return fetched(connection, sql, values)
    try:
        rows: list[Any] = []
        size = 0
        for row in connection.execute(sql, values):
            size += row[-3]
            if size > most:
                raise TooLong
            rows.append(row)
    except UnicodeDecodeError:
        return fetched(connection, sql, values)
    return rows


def _parts(ranges: Sequence[tuple[int, int]], newest: int | None) -> Sequence[Sequence[tuple[int, int]]]:
    """The ranges of each statement."""
    if newest is not None:
        return [[span] for span in reversed(ranges)]
    return [ranges[start : start + TOGETHER] for start in range(0, len(ranges), TOGETHER)]


def _newest(connection: apsw.Connection, key: bytes, ranges: Sequence[tuple[int, int]], room: int) -> int:
    """The first seq of the newest frames that fit into `room` bytes."""
    sql = "select seq, length(frame) from checkpoints where key = ? and seq between ? and ? order by seq desc"
    first = MAX_SEQ
    for span in reversed(ranges):
        for seq, size in connection.execute(sql, (key, *span)):
            room -= size or 0
            if room < 0:
                return first
            first = seq
    return first


def _spans(count: int, index: str) -> str:
    """The FROM and WHERE for entries within `count` ranges. CROSS JOIN: the ranges lead."""
    if count == 1:
        return f"checkpoints{index} where seq between ? and ?"
    marks = ", ".join(["(?, ?)"] * count)
    return f"(values {marks}) cross join checkpoints{index} where seq between column1 and column2"
