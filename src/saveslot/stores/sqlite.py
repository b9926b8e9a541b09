"""One SQLite file, several processes: readers beside one writer at a time, many appends in one commit.

SQLite comes with apsw: the versions that most Pythons link can damage a WAL file which two processes write. An
acknowledgement means that the WAL was synced (synchronous=FULL). Known limit: a process stopped inside a commit stops
every writer of the file until it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import apsw
import msgspec

from saveslot.errors import Corrupt, Unavailable
from saveslot.log import (
    FAILURES,
    TRACED,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Sample,
    Sign,
    Verdict,
    Worker,
    feed_number,
    judged,
    moment,
    order,
)
from saveslot.metrics import Counters
from saveslot.model import PLAIN_KINDS, Kind
from saveslot.stores.memory import LEFTOVER, clock
from saveslot.stores.sqlite_file import Uptime, connect, scrub, since_boot, snapshot, translated
from saveslot.stores.sqlite_reader import Reader, Work
from saveslot.stores.writer import Writer

T = TypeVar("T")

# Other processes' appends are seen within this time; our own wake a watcher at once.
POLL = 0.05

# More entries or bytes of frames than this are never written in the event loop: 12 MB took 30 ms there.
MANY, LARGE = 32, 256 * 1024
# Pages that a file gives back at a time, after something was emptied or purged: 1 MB, in under 2 ms.
SHRINK = 256
# Heads, and entries whose frames together have so many bytes, are read in the event loop: less than a millisecond.
FEW_HEADS, FEW_ENTRIES, FEW_BYTES = 8, 128, 1024 * 1024
# A larger frame is read from its place into ours, without a copy in between: the rows of a query are such copies.
WHOLE = 64 * 1024
# So many rows share a statement: between two statements the thread may have to wait for the interpreter.
TOGETHER = 64

_HEADER = "seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note"
_SIZE = "coalesce(length(frame), 0) + coalesce(length(note), 0)"
_COLUMNS = "key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels, owner"
# ?1 and ?2: the machine's boot and its clock. A dead owner has nothing left.
_ROW = f"""
select {_COLUMNS}, coalesce(name, ''), case when boot = ?1 and not dead then max(0, expires - ?2) else 0 end
  , coalesce(deleted_at, 0)
from {{}} left join workers on worker = owner"""  # noqa: S608
# Many by their keys: {} of them.
_HEADS = f"""
select {", ".join(f"s.{column}" for column in _COLUMNS.split(", "))}, coalesce(w.name, ''),
  case when boot = ?1 and not dead then max(0, expires - ?2) else 0 end, coalesce(deleted_at, 0),
  {", ".join(f"c.{column}" for column in _HEADER.split(", "))}, null, {_SIZE}
from (values {{}}) cross join sessions s indexed by sqlite_autoindex_sessions_1 on s.key = column1
left join workers w on w.worker = s.owner
cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key
where s.deleted_at is null
  and c.seq = (select m.seq from checkpoints m where m.key = s.key order by m.seq desc limit 1)"""  # noqa: S608
ROW = 16  # columns of a session's row; those of an entry follow
# With max() the columns beside it are those of that row.
_WEIGHT = f"select cast(total({_SIZE}) as integer), max(seq), append_id from checkpoints where key = ?"  # noqa: S608
_FRAMES = "select cast(total(length(frame)) as integer) from checkpoints where key = ? and seq between ? and ?"

# The guard is the join: the entry before must be there, carry `prev`, and be no tombstone.
_FOLLOW = """
insert into checkpoints (key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq,
                         recipe, digest, note, frame)
select ?1, ?2, ?3, ?4, ?5, ?6, coalesce(?7, p.alive), ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15
from checkpoints p where p.key = ?1 and p.seq = ?2 - 1 and p.append_id = ?16 and p.kind <> 9
on conflict do nothing"""
# The same for many. CROSS: the values lead, whatever the statistics say.
_FOLLOW_MANY = """
insert into checkpoints (key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq,
                         recipe, digest, note, frame)
select column1, column2, column3, column4, column5, column6, coalesce(column7, p.alive), column8, column9, column10,
       column11, column12, column13, column14, column15
from (values {}) cross join checkpoints p
where p.key = column1 and p.seq = column2 - 1 and p.append_id = column16 and p.kind <> 9
on conflict do nothing"""
# Of the groups in {} how many can land, their labels being what they were: key, seq, prev, and what no sign of life may
# have reached since.
_ABLE = """
select count(*) from (values {}) cross join checkpoints p
cross join sessions indexed by sqlite_autoindex_sessions_1 on sessions.key = column1 left join workers on worker = owner
where p.key = column1 and p.seq = column2 - 1 and p.append_id = column3 and p.kind <> 9
  and not exists (select 1 from checkpoints c where c.key = column1 and c.seq = column2)
  and max(heartbeat, p.alive, coalesce(beaten, 0)) < coalesce(column4, 9e18)
  and labels = coalesce(column5, labels)"""
_SIXTEEN = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BEGIN = """
insert into checkpoints (key, seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq,
                         recipe, digest, note, frame)
values (?1, ?2, ?3, ?4, ?5, ?6, coalesce(?7, 0), ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"""
# What a text search looks at; no name can hold the separator.
APART = "\x1f"
_SEARCH = "lower(?)"
_CREATE = f"""
insert into sessions ({_COLUMNS}, search) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, null, {_SEARCH})
on conflict do nothing"""  # noqa: S608
# {}: columns that change. Each index on a column that is named is written anew, and all of them know `deleted_at`.
_PROJECT = """
update sessions set fence = ?2, lease = ?3, owner = case when ?3 is null then null else coalesce(?4, owner) end{}
where key = ?1"""
# The same for many. INDEXED BY: see _row.
_PROJECT_MANY = """
with given as (values {1})
update sessions indexed by sqlite_autoindex_sessions_1
set fence = column2, lease = column3, owner = case when column3 is null then null else coalesce(column4, owner) end{0}
from given where key = column1"""
_EMPTY = """
update checkpoints set frame = null, note = case when ?3 then substr(note, 1, 16) else note end
where key = ?1 and seq = ?2 and (frame is not null or (?3 and length(note) > 16))"""
_SWAP = """
update sessions set body = ?3, user_id = case when ?3 = x'' then '' else user_id end,
  labels = case when ?3 = x'' then '{}' else labels end,
  search = case when ?3 = x'' then lower(id || char(31) || agent_type || char(31)) else search end
where key = ?1 and body = ?2 and (?3 <> x'' or deleted_at is not null)"""
_PURGE = "delete from sessions where {} returning key, namespace, created_at, labels"
_UNLABEL = "delete from labels where (space, label, value, made, session) = (?, ?, ?, ?, ?)"
# An owner that never said that it lives, or so long ago that its row is gone, does not.
_UNHEARD = "insert into workers values (?, '', '', 0, 0, 1) on conflict do nothing"
# Workers that may be declared dead: the boot, how long ago their time must have run out, the clock.
_GONE = "(dead or boot <> ? or expires + ? <= ?)"


class SqliteStore:
    serial = True  # one writer of the file at a time

    def __init__(
        self, path: str, clock: Callable[[], int] = clock, vfs: str | None = None, uptime: Uptime | None = None
    ) -> None:
        self._path = path
        self._clock = clock
        self._vfs = vfs
        self._uptime = uptime or since_boot
        self._reader = Reader(path, vfs)
        self.counters = Counters()
        self._writer = Writer(lambda: connect(path, vfs), self._told, self._carried_out, self.counters)
        self._news: asyncio.Event | None = None  # if somebody waits for any
        self._closed = False

    @classmethod
    async def open(
        cls, path: str, clock: Callable[[], int] = clock, vfs: str | None = None, uptime: Uptime | None = None
    ) -> SqliteStore:
        store = cls(path, clock, vfs, uptime)
        await store._reader.open()
        return store

    def _told(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _read(self, work: Work[T], short: Work[bool] | None = None) -> T:
        self._check_open()
        return await self._reader.read(work, short)

    async def _write(self, work: Callable[[apsw.Connection], T], *, heavy: bool = False) -> T:
        self._check_open()
        with translated(self._path):
            return await self._writer.submit(work, heavy=heavy)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    # Writing

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        if len(groups) == 1 and _light(groups[0]):
            self._check_open()
            with translated(self._path):
                return [await self._writer.submit(groups[0], single=True)]
        entries = [entry for group in groups for entry in group.entries]
        heavy = len(entries) > MANY or sum(len(entry.frame or b"") for entry in entries) > LARGE
        return await self._write(lambda connection: self._land_all(connection, groups), heavy=heavy)

    def _carried_out(self, connection: apsw.Connection, works: Sequence[Any]) -> list[Any]:
        """What a batch asks for: light groups together, then one after another those and all else that is left."""
        light = [work for work in works if isinstance(work, Group)]
        landed: dict[bytes, int] = {}
        if len(light) > 1:
            for start in range(0, len(light), TOGETHER):
                landed |= self._together(connection, light[start : start + TOGETHER])
        done: list[Any] = []
        for work in works:
            if not isinstance(work, Group):
                done.append(work(connection))
            elif (at := landed.pop(work.entries[0].append_id, None)) is not None:
                done.append(Verdict(Outcome.APPENDED, [at]))
            else:
                done.append(self._alone(connection, work))
        return done

    def _alone(self, connection: apsw.Connection, group: Group) -> Verdict:
        """A light group by itself."""
        [entry], now = group.entries, self._clock()
        values = _values(group.key, entry, now, now if entry.sign else None)
        connection.execute(_FOLLOW, (*values, group.prev))
        if connection.changes():
            return Verdict(Outcome.APPENDED, [entry.time(now)])
        return self._verdict(connection, group)

    def _together(self, connection: apsw.Connection, groups: list[Group]) -> dict[bytes, int]:
        """Land what one statement can: the ids of those entries, and their times."""
        now = self._clock()
        entries = [group.entries[0] for group in groups]
        values: list[Any] = []
        for group, entry in zip(groups, entries, strict=True):
            values += _values(group.key, entry, now, now if entry.sign else None)
            values.append(group.prev)
        connection.execute(_FOLLOW_MANY.format(", ".join([_SIXTEEN] * len(groups))), values)
        count = connection.changes()
        if count == len(entries):
            return {entry.append_id: entry.time(now) for entry in entries}
        # What was inserted just now is the newest: nobody else writes before this transaction ends.
        newest = "select append_id, at from checkpoints order by feed desc limit ?"
        return dict(connection.execute(newest, (count,)))

    def _land_all(self, connection: apsw.Connection, groups: Sequence[Group]) -> list[Verdict]:
        """Those that change alike together, if all of them can land; the others one after another."""
        alike: dict[tuple[str | int, ...], list[Group]] = {}
        distinct = len({group.key for group in groups}) == len(groups)
        for group in groups if distinct else ():
            alike.setdefault((len(group.entries), _plain(group), *_changes(group, 0)), []).append(group)
        landed: dict[bytes, Verdict] = {}
        for same in alike.values():
            for start in range(0, len(same), TOGETHER):
                part = same[start : start + TOGETHER]
                if _able(connection, part, now := self._clock()):
                    landed |= self._many(connection, part, now)
        return [landed.pop(group.entries[0].append_id, None) or self._land(connection, group) for group in groups]

    def _many(self, connection: apsw.Connection, groups: list[Group], now: int) -> dict[bytes, Verdict]:
        """Land groups that can; by the id of their first entries."""
        for place in range(len(groups[0].entries)):
            values: list[Any] = []
            for group in groups:
                entry = group.entries[place]
                prev = group.entries[place - 1].append_id if place else group.prev
                values += (*_values(group.key, entry, now, now if entry.sign else None), prev)
            connection.execute(_FOLLOW_MANY.format(", ".join([_SIXTEEN] * len(groups))), values)
            if connection.changes() != len(groups):  # nobody else writes before this transaction ends
                raise Corrupt(self._path, "entries that could land did not")
        if not _plain(groups[0]):
            _project(connection, groups, now)
        heartbeat = now if groups[0].heartbeat else 0
        return {
            group.entries[0].append_id: Verdict(
                Outcome.APPENDED, [entry.time(now) for entry in group.entries], heartbeat=heartbeat
            )
            for group in groups
        }

    def _land(self, connection: apsw.Connection, group: Group) -> Verdict:
        now = self._clock()
        if group.create is not None:
            landed = self._begin(connection, group, group.create, now)
        else:
            allowed = self._allowed(connection, group, now)
            landed = allowed and self._follow(connection, group, group.entries, group.prev, now)
        if not landed:
            return self._verdict(connection, group)
        heartbeat = now if group.heartbeat else 0
        if not _plain(group):
            if group.delete or group.labels is not None:
                self._relabel(connection, group.key, None if group.delete else group.labels)
            _project(connection, [group], now)
        if group.create is not None:
            heartbeat = heartbeat or group.create.heartbeat or now
        return Verdict(Outcome.APPENDED, [entry.time(now) for entry in group.entries], heartbeat=heartbeat)

    def _begin(self, connection: apsw.Connection, group: Group, row: Row, now: int) -> bool:
        heartbeat = row.heartbeat or now
        values = (
            *(row.key, row.namespace, row.session_id, row.agent_type, row.user_id, row.state),
            *(row.created_at or now, heartbeat, row.fence, row.lease, row.body, _labels_text(row.labels)),
        )
        connection.execute(_CREATE, (*values, _search(row, row.labels)))
        if not connection.changes():
            return False
        _label(connection, row, row.created_at or now, row.labels)
        first, *rest = group.entries
        connection.execute(_BEGIN, _values(group.key, first, now, now if first.sign else heartbeat))
        return not rest or self._follow(connection, group, rest, first.append_id, now)

    def _relabel(self, connection: apsw.Connection, key: bytes, labels: dict[str, str] | None) -> None:
        """Before the row is written: let it be found by these labels, or by none any more."""
        known = "select 1 from sessions indexed by sqlite_autoindex_sessions_1 where key = ? and labels = ?"
        if labels is not None and connection.execute(known, (key, _labels_text(labels))).get:
            return  # nearly always: context and metadata changed
        row = self._row(connection, key, deleted=True)
        if row is None:
            return
        connection.executemany(_UNLABEL, _label_rows(row, row.created_at, row.labels))
        if labels is not None:
            _label(connection, row, row.created_at, labels)
            connection.execute("update sessions set search = lower(?) where key = ?", (_search(row, labels), key))

    def _follow(
        self, connection: apsw.Connection, group: Group, entries: list[Entry], prev: bytes | None, now: int
    ) -> bool:
        for entry in entries:
            connection.execute(_FOLLOW, (*_values(group.key, entry, now, now if entry.sign else None), prev))
            if not connection.changes():
                if entry is not group.entries[0]:  # behind an entry of ours nobody can have written
                    raise Corrupt(self._path, f"entry {entry.seq} of {group.key.hex()} stands behind a gap")
                return False
            prev = entry.append_id
        return True

    def _allowed(self, connection: apsw.Connection, group: Group, now: int) -> bool:
        """The guards that look at more than the entry before."""
        if group.only_stale:
            sql = """
                select max(heartbeat, (select alive from checkpoints where key = ?1 and seq = ?2), coalesce(beaten, 0))
                from sessions indexed by sqlite_autoindex_sessions_1 left join workers on worker = owner
                where key = ?1"""
            alive = connection.execute(sql, (group.key, group.entries[0].seq - 1)).get
            if alive is None or alive >= now - group.only_stale:
                return False
        if group.only_orphan is not None:
            # The worker is dead from here on: a dead one is never renewed, so nobody takes a session from the living.
            # Unless the entry will not land: then nobody was taken from.
            boot, up = self._uptime()
            sql = f"""
                update workers set dead = 1 where worker = (select owner from sessions where key = ?1) and {_GONE}
                and (select append_id from checkpoints where key = ?1 order by seq desc limit 1) = ?"""  # noqa: S608
            connection.execute(sql, (group.key, boot, group.only_orphan, up, group.prev))
            return bool(connection.changes())
        return True

    def _verdict(self, connection: apsw.Connection, group: Group) -> Verdict:
        first = group.entries[0]
        if group.create is not None:
            head = self._head(connection, (group.create.namespace, group.create.session_id))
            here = _append_id(connection, group.key, first.seq)
            if here == first.append_id:
                return self._already(connection, group)
            return Verdict(Outcome.CONFLICT, head=None if head is None else head.last)
        row = self._row(connection, group.key, deleted=True)
        gone = row is not None and self._row(connection, group.key) is None
        here = _append_id(connection, group.key, first.seq)
        before = _append_id(connection, group.key, first.seq - 1)
        outcome = judged(group, here, before, row, deleted=gone)
        if outcome is Outcome.ALREADY:
            return self._already(connection, group)
        return Verdict(outcome, head=_last(connection, group.key))

    def _already(self, connection: apsw.Connection, group: Group) -> Verdict:
        first, last = group.entries[0].seq, group.entries[-1].seq
        sql = "select at from checkpoints where key = ? and seq between ? and ? order by seq"
        times = [at for (at,) in connection.execute(sql, (group.key, first, last))]
        row = self._row(connection, group.key, deleted=True)
        return Verdict(Outcome.ALREADY, times, heartbeat=0 if row is None else row.heartbeat)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        def work(connection: apsw.Connection) -> list[int]:
            now = self._clock()
            beaten: list[int] = []
            sql = """
                update sessions set heartbeat = ?
                where key = ? and lease is ? and deleted_at is null and state in ('active', 'paused')"""
            for key, lease in signs:
                connection.execute(sql, (now, key, lease))
                beaten.append(now if connection.changes() else 0)
            return beaten if worker is None else [*beaten, self._beat_worker(connection, worker, now)]

        if worker is None:
            return await self._write(work)
        self._check_open()
        with translated(self._path):
            return await self._writer.post(work)

    def _beat_worker(self, connection: apsw.Connection, worker: Worker, now: int) -> int:
        boot, up = self._uptime()
        if worker.first:
            idle = "not exists (select 1 from sessions where owner = worker and deleted_at is null)"
            connection.execute(f"delete from workers where {_GONE} and {idle}", (boot, LEFTOVER, up))  # noqa: S608
            row = (worker.id, worker.name, boot, 0, now, 0)
            connection.execute("insert into workers values (?, ?, ?, ?, ?, ?) on conflict do nothing", row)
        sql = "update workers set boot = ?, expires = ?, beaten = ?, dead = ? where worker = ? and not dead"
        connection.execute(sql, (boot, up + worker.ttl, now, not worker.ttl, worker.id))
        return now if connection.changes() else 0

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        def work(connection: apsw.Connection) -> int:
            emptied = 0
            for seq in seqs:
                connection.execute(_EMPTY, (key, seq, notes))
                emptied += connection.changes()
            if body is not None:
                connection.execute(_SWAP, (key, *body))
                emptied += connection.changes()
            _shrink(connection)
            return emptied

        emptied = await self._write(work, heavy=len(seqs) > MANY)
        if body is not None and not body[1]:
            await self._read(lambda _: scrub(self._path, self._vfs))
        return emptied

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        def work(connection: apsw.Connection) -> list[int]:
            purged: dict[bytes, int] = {}
            for start in range(0, len(keys), TOGETHER):
                part = keys[start : start + TOGETHER]
                if seen is not None:
                    part = _ending(connection, part, seen[start : start + TOGETHER])
                which = f"key in ({', '.join('?' * len(part))}){' and deleted_at is not null' if seen is None else ''}"
                for key, space, made, labels in list(connection.execute(_PURGE.format(which), part)):
                    connection.execute("delete from checkpoints where key = ?", (key,))
                    purged[key] = connection.changes()
                    if labels != "{}":  # a deleted one has lost its rows before
                        told = msgspec.json.decode(labels, type=dict[str, str])
                        connection.executemany(_UNLABEL, [(space, *label, made, key) for label in told.items()])
            _shrink(connection)
            return [purged.pop(key, 0) for key in keys]

        return await self._write(work, heavy=True)

    # Reading

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        def work(connection: apsw.Connection) -> list[Head | None]:
            # A row must never be older than the entry beside it.
            with snapshot(connection):
                if len(refs) == 1:
                    return [self._head(connection, refs[0])]
                keys = [ref for ref in refs if isinstance(ref, bytes)]
                found: dict[bytes, Head] = {}
                for start in range(0, len(keys), TOGETHER):
                    found |= self._heads(connection, keys[start : start + TOGETHER])
                return [found.get(ref) if isinstance(ref, bytes) else self._head(connection, ref) for ref in refs]

        return await self._read(work, _yes if len(refs) <= FEW_HEADS else None)

    def _heads(self, connection: apsw.Connection, keys: list[bytes]) -> dict[bytes, Head]:
        now, marks = self._clock(), ", ".join(["(?)"] * len(keys))
        rows = connection.execute(_HEADS.format(marks), (*self._uptime(), *keys))
        return {row[0]: Head(_to_row(row[:ROW], now), _entry(row[ROW:])) for row in rows}

    def _head(self, connection: apsw.Connection, ref: Ref) -> Head | None:
        row = self._row(connection, ref)
        last = None if row is None else _last(connection, row.key)
        return None if row is None or last is None else Head(row, last)

    def _row(self, connection: apsw.Connection, ref: Ref, *, deleted: bool = False) -> Row | None:
        # INDEXED BY: statistics of a table that was tiny once would make this a scan for ever.
        by_key = isinstance(ref, bytes)
        index = "sqlite_autoindex_sessions_1" if by_key else "sessions_by_id"
        where = "key = ?3" if by_key else "namespace = ?3 and id = ?4"
        living = "" if deleted else " and deleted_at is null"
        values = (*self._uptime(), ref) if by_key else (*self._uptime(), *ref)
        sql = f"{_ROW.format(f'sessions indexed by {index}')} where {where}{living}"
        found = connection.execute(sql, values).fetchone()
        return None if found is None else _to_row(found, self._clock())

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        where, values = "key = ? and seq between ? and ?", list[Any]()
        if kinds is not None:
            where += f" and kind in ({', '.join(str(int(kind)) for kind in sorted(kinds))})"
        if name is not None:
            where += " and name = ?"
            values.append(name)
        frame = f"case when length(frame) <= {WHOLE if largest is None else largest:d} then frame end"
        sql = f"""
            select {_HEADER}, {frame if frames else "null"}, {_SIZE}, feed, length(frame) > {WHOLE}
            from checkpoints where {where} order by seq desc limit ?"""  # noqa: S608
        apart = frames and largest is None

        def work(connection: apsw.Connection) -> list[Entry]:
            found: list[Entry] = []
            with snapshot(connection):
                for first, last in reversed(ranges):
                    limit = -1 if newest is None else newest - len(found)
                    for *row, feed, large in connection.execute(sql, (key, first, last, *values, limit)):
                        entry = _entry(row)
                        if large and apart:
                            with connection.blob_open("main", "checkpoints", "frame", feed, False) as blob:  # noqa: FBT003
                                entry.frame = blob.read()
                        found.append(entry)
            found.reverse()
            return found

        def light(connection: apsw.Connection) -> bool:
            return sum(connection.execute(_FRAMES, (key, *span)).get for span in ranges) <= FEW_BYTES

        few = sum(last - first + 1 for first, last in ranges) <= FEW_ENTRIES
        return await self._read(work, (light if frames else _yes) if few else None)

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        uptime = self._uptime()
        now, source = self._clock(), _source(query)
        where, values = _where(query, now, uptime)
        column, newest_first = order(query)
        way, compare = ("desc", "<") if newest_first else ("asc", ">")
        column, key = _place(source, column)
        if after is not None:
            where += f" and ({column}, {key}) {compare} (?, ?)"
            values += after
        weighed = query.ended_for is not None or query.deleted_for is not None
        sql = f"{_ROW.format(source)} where {where} order by {column} {way}, {key} {way} limit ?"

        def work(connection: apsw.Connection) -> list[Row]:
            with snapshot(connection):
                found = [_to_row(row, now) for row in connection.execute(sql, (*uptime, *values, limit))]
                for row in found if weighed else ():
                    weight, length, last = connection.execute(_WEIGHT, (row.key,)).get
                    row.weight, row.length, row.last = weight, length or 0, last or b""
                return found

        return await self._read(work)

    async def count(self, query: Query, sample: int = 0) -> Counts:
        boot, up = self._uptime()
        source = _source(query)
        where, values = _where(query, self._clock(), (boot, up))

        def work(connection: apsw.Connection) -> Counts:
            by_state = f"select state, count(*) from {source} where {where} group by state"  # noqa: S608
            by_type = f"select agent_type, count(*) from {source} where {where} group by agent_type"  # noqa: S608
            owners = source if source == _BY_LABEL else _BY_OWNER
            owned = f"""
                select count(*), total({_GONE}) from {owners} join workers on worker = owner
                where {where} and owner is not null and deleted_at is null"""  # noqa: S608
            with snapshot(connection):
                held, orphaned = cast("list[Any]", connection.execute(owned, (boot, 0, up, *values)).get)
                return Counts(
                    states=dict(connection.execute(by_state, values)),
                    agent_types=dict(connection.execute(by_type, values)),
                    held=held,
                    orphaned=int(orphaned),
                    entries=connection.execute("select count(*) from checkpoints").get,
                    stored_bytes=connection.pragma("page_count") * connection.pragma("page_size"),
                    sample=_sample(connection, source, where, values, sample) if sample else None,
                )

        return await self._read(work)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        newest = "select coalesce(max(seq), 0) from sqlite_sequence where name = 'checkpoints'"
        start = await self._read(lambda c: c.execute(newest).get) if after is None else feed_number(after)
        mine = "" if key is None else " and c.key = ?4"
        # CROSS: the feed leads. (INDEXED BY: see _row.)
        sql = f"""
            select c.feed, s.id, c.seq, c.kind, c.name, c.at, s.namespace = ?2{mine}
            from checkpoints c cross join sessions s indexed by sqlite_autoindex_sessions_1 on s.key = c.key
            where c.feed > ?1 order by c.feed limit ?3"""  # noqa: S608
        values = (namespace, limit) if key is None else (namespace, limit, key)
        while True:
            news = self._news = self._news or asyncio.Event()
            rows = await self._read(lambda c, after=start: list[Any](c.execute(sql, (after, *values))))
            start = rows[-1][0] if rows else start
            found = [
                Event(str(feed), session_id, seq, Kind(kind).label, name, moment(at))
                for feed, session_id, seq, kind, name, at, wanted in rows
                if wanted
            ]
            left = end - time.monotonic()
            full = rows and len(rows) == limit  # and none for us: ours may lie right behind it
            if found or (left <= 0 and not full):
                return found, str(start)
            if not full:
                await _either(news, min(POLL, left))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._reader.close)
        await self._writer.close()


def _shrink(connection: apsw.Connection) -> None:
    """Free pages are used again; when there are more of them than others, the file becomes smaller, a bit at a time."""
    if connection.pragma("freelist_count") * 2 > connection.pragma("page_count"):
        connection.execute(f"pragma incremental_vacuum({SHRINK})").fetchall()


def _yes(_: apsw.Connection) -> bool:
    return True


async def _either(news: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except TimeoutError:
        return


def _values(key: bytes, entry: Entry, now: int, alive: int | None) -> tuple[Any, ...]:
    return (
        *(key, entry.seq, entry.append_id, entry.kind, entry.name, entry.time(now), alive, entry.fence, entry.lease),
        *(entry.data_seq, entry.about_seq, entry.recipe, entry.digest, entry.note, entry.frame),
    )


def _entry(row: Any) -> Entry:
    seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, frame, size = row
    return Entry(
        seq, append_id, Kind(kind), name, at, False, alive, fence, lease, data_seq, about_seq,  # noqa: FBT003
        recipe, digest, note, frame, size,
    )  # fmt: skip


def _to_row(row: Any, now: int) -> Row:
    *columns, labels, owner, worker, left, deleted_at = row
    told = msgspec.json.decode(labels, type=dict[str, str])
    return Row(*columns, labels=told, owner=owner, worker=worker, left=left, now=now, deleted_at=deleted_at)


def _ending(connection: apsw.Connection, keys: Sequence[bytes], seen: Sequence[bytes]) -> list[bytes]:
    """Those whose newest entry is the one that was seen."""
    newest = "select append_id from checkpoints where key = column1 order by seq desc limit 1"
    pairs = ", ".join(["(?, ?)"] * len(keys))
    found = connection.execute(
        f"select column1 from (values {pairs}) where ({newest}) = column2",  # noqa: S608
        [value for pair in zip(keys, seen, strict=True) for value in pair],
    )
    return [key for (key,) in found]


def _last(connection: apsw.Connection, key: bytes) -> Entry | None:
    sql = f"select {_HEADER}, null, {_SIZE} from checkpoints where key = ? order by seq desc limit 1"  # noqa: S608
    found = connection.execute(sql, (key,)).fetchone()
    return None if found is None else _entry(found)


def _sample(connection: apsw.Connection, source: str, where: str, values: list[Any], count: int) -> Sample:
    sample = Sample(count * TRACED)
    column, key = _place(source, "created_at")
    newest = f"""
        select sessions.key, state, created_at from {source} where {where}
        order by {column} desc, {key} desc limit ?"""  # noqa: S608
    for key, state, created_at in connection.execute(newest, (*values, count)):
        sample.sessions[key] = (state, created_at)
    # CROSS and INDEXED BY: the sessions lead, and each one's entries come together.
    traced = f"""
        select c.key, c.seq, c.kind, c.name, c.at, {_SIZE}
        from ({newest}) s cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key limit ?"""  # noqa: S608
    sample.entries = list(connection.execute(traced, (*values, count, sample.limit)))
    last = f"""
        select {_HEADER}, null, {_SIZE} from checkpoints
        where key = ? and kind = {int(Kind.FAILED)} order by seq desc limit 1"""  # noqa: S608
    failed = [key for key, (state, _) in sample.sessions.items() if state == "failed"]
    for key in failed[:FAILURES]:
        sample.failures += [(key, _entry(row)) for row in connection.execute(last, (key,))]
    return sample


def _changes(group: Group, now: int) -> dict[str, Any]:
    """The columns of the session's row that a group writes, beside those that tell who holds it."""
    told = {
        "state": group.state,
        "body": group.body,
        "labels": None if group.labels is None else _labels_text(group.labels),
        "heartbeat": now if group.heartbeat else None,
        "deleted_at": now if group.delete else None,
    }
    return {column: value for column, value in told.items() if value is not None}


def _project(connection: apsw.Connection, groups: list[Group], now: int) -> None:
    """Write the rows of sessions whose groups change alike."""
    values: list[Any] = []
    for group in groups:
        last = group.entries[-1]
        values += (group.key, last.fence, last.lease, group.owner, *_changes(group, now).values())
    columns = list(enumerate(_changes(groups[0], now), 5))
    if len(groups) == 1:
        sql = _PROJECT.format("".join(f", {column} = ?{n}" for n, column in columns))
    else:
        row = f"({', '.join('?' * (4 + len(columns)))})"
        sets = "".join(f", {column} = column{n}" for n, column in columns)
        sql = _PROJECT_MANY.format(sets, ", ".join([row] * len(groups)))
    connection.execute(sql, values)
    for owner in {group.owner for group in groups} - {None}:
        connection.execute(_UNHEARD, (owner,))


def _able(connection: apsw.Connection, groups: list[Group], now: int) -> bool:
    """True if these can land together: each behind the entry that it names, all guards met, no labels to be written."""
    if len(groups) == 1:
        return False
    values: list[Any] = []
    for group in groups:
        if group.create is not None or group.only_orphan is not None or group.delete:
            return False
        labels = None if group.labels is None else _labels_text(group.labels)
        cutoff = now - group.only_stale if group.only_stale else None
        values += (group.key, group.entries[0].seq, group.prev, cutoff, labels)
    return connection.execute(_ABLE.format(", ".join(["(?, ?, ?, ?, ?)"] * len(groups))), values).get == len(groups)


def _plain(group: Group) -> bool:
    """True for checkpoints alone, which leave the session's row as it is: one row written, not two."""
    told = group.heartbeat or group.state or group.body is not None or group.labels is not None
    return not told and PLAIN_KINDS.issuperset([entry.kind for entry in group.entries])


def _guarded(group: Group) -> bool:
    return bool(group.only_stale) or group.only_orphan is not None


def _light(group: Group) -> bool:
    """True for one plain checkpoint of a usual size, which follows another entry: nearly all that is ever written."""
    return (
        len(group.entries) == 1
        and group.create is None
        and not _guarded(group)
        and _plain(group)
        and len(group.entries[0].frame or b"") <= LARGE
    )


def _append_id(connection: apsw.Connection, key: bytes, seq: int) -> bytes | None:
    return connection.execute("select append_id from checkpoints where key = ? and seq = ?", (key, seq)).get


def _labels_text(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels).decode()


def _search(row: Row, labels: dict[str, str]) -> str:
    return APART.join((row.session_id, row.agent_type, row.user_id, *labels.values()))


def _label_rows(row: Row, made: int, labels: dict[str, str]) -> list[tuple[Any, ...]]:
    return [(row.namespace, name, value, made, row.key) for name, value in labels.items()]


def _label(connection: apsw.Connection, row: Row, made: int, labels: dict[str, str]) -> None:
    connection.executemany("insert into labels values (?, ?, ?, ?, ?)", _label_rows(row, made, labels))


# Few are held by any one worker, and few workers are dead.
_BY_OWNER = "sessions indexed by sessions_by_owner"
# CROSS: the label leads, in the order of the page.
_BY_LABEL = "labels cross join sessions indexed by sqlite_autoindex_sessions_1 on sessions.key = session"
_LABELLED = """exists (select 1 from labels l where l.space = namespace and l.label = ? and l.value = ?
    and l.made = created_at and l.session = sessions.key)"""
_ONCE_LABELLED = "exists (select 1 from json_each(sessions.labels) l where l.key = ? and l.value = ?)"


def _source(query: Query) -> str:
    """Where the rows of a query come from. Of deleted sessions these indexes know nothing."""
    if query.deleted_for is None and (query.owner is not None or query.orphan_for is not None):
        return _BY_OWNER
    by_label = query.labels and query.user_id is None  # who names a user chooses fewer than most labels do
    return _BY_LABEL if by_label and order(query)[0] == "created_at" else "sessions"


def _place(source: str, column: str) -> tuple[str, str]:
    """What orders the rows of a source, in the words of the index that leads."""
    return ("made", "session") if source == _BY_LABEL else (column, "key")


def _where(query: Query, now: int, uptime: tuple[str, int]) -> tuple[str, list[Any]]:
    parts, values = ["namespace = ?"], list[Any]([query.namespace])

    def add(part: str, *more: Any) -> None:
        parts.append(part)
        values.extend(more)

    if query.deleted_for is None:
        add("deleted_at is null")
    else:
        add("deleted_at is not null and deleted_at <= ?", now - query.deleted_for)
    if query.agent_type is not None:
        add("agent_type = ?", query.agent_type)
    if query.user_id is not None:
        add("user_id = ?", query.user_id)
    if query.state is not None:
        add("state = ?", query.state)
    for n, (name, value) in enumerate(query.labels.items()):
        if not n and _source(query) == _BY_LABEL:
            add("space = ? and label = ? and value = ?", query.namespace, name, value)
        else:
            add(_LABELLED if query.deleted_for is None else _ONCE_LABELLED, name, value)
    if query.created_after is not None:
        add("created_at > ?", query.created_after)
    if query.created_before is not None:
        add("created_at < ?", query.created_before)
    if query.prefix is not None:
        add("substr(id, 1, length(?)) = ?", query.prefix, query.prefix)
    if query.text is not None:
        add("instr(search, lower(?))" if APART not in query.text else "instr('', ?)", query.text)
    if query.stale_for is not None:
        cutoff = now - query.stale_for
        last = "(select c.alive from checkpoints c where c.key = sessions.key order by c.seq desc limit 1)"
        owner = "coalesce((select beaten from workers where worker = owner), 0)"
        add(f"heartbeat < ? and {last} < ? and {owner} < ?", cutoff, cutoff, cutoff)
    if query.ended_for is not None:
        cutoff = now - query.ended_for
        ends = "from checkpoints c where c.key = sessions.key and c.kind in (5, 6) order by c.seq desc limit 1"
        ended = f"coalesce((select c.at {ends}), 0)"
        add(f"state in ('completed', 'failed') and heartbeat <= ? and {ended} <= ?", cutoff, cutoff)
    if query.orphan_for is not None:
        add(f"owner in (select worker from workers where {_GONE})", uptime[0], query.orphan_for, uptime[1])  # noqa: S608
    if query.owner is not None:
        add("owner = ?", query.owner)
    if query.unowned:
        add("owner is null")
    return " and ".join(parts), values
