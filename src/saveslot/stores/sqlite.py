"""One SQLite file, several processes: readers beside one writer at a time, many appends in one commit.

SQLite comes with apsw: the versions that most Pythons link can damage a WAL file which two processes write. An
acknowledgement means that the WAL was synced (synchronous=FULL). Known limit: a process stopped inside a commit stops
every writer of the file until it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from saveslot.errors import Unavailable
from saveslot.log import (
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Verdict,
    Worker,
    feed_number,
    moment,
)
from saveslot.metrics import Counters
from saveslot.model import Kind
from saveslot.stores.memory import LEFTOVER, clock
from saveslot.stores.sqlite_file import EXISTING, Uptime, connect, scrub, since_boot, translated
from saveslot.stores.sqlite_finding import counted, listed
from saveslot.stores.sqlite_landing import LARGE, MANY, UNLABEL, Landing, light
from saveslot.stores.sqlite_reader import Reader, Work
from saveslot.stores.sqlite_rows import GONE, HEADER, LABELS
from saveslot.stores.sqlite_session import FEW_HEADS, TOGETHER, Reading, log
from saveslot.stores.writer import Writer

T = TypeVar("T")

# Other processes' appends are seen within this time; our own wake a watcher at once.
POLL = 0.05

# Pages that a file gives back at a time, after something was emptied or purged: 1 MB, in under 2 ms.
SHRINK = 256

_EMPTY = """
update checkpoints set frame = null, note = case when ?3 then substr(note, 1, 16) else note end
where key = ?1 and seq = ?2 and (frame is not null or (?3 and length(note) > 16))"""
_SWAP = """
update sessions set body = ?3, user_id = case when ?3 = x'' then '' else user_id end,
  labels = case when ?3 = x'' then '{}' else labels end,
  search = case when ?3 = x'' then lower(id || char(31) || agent_type || char(31)) else search end
where key = ?1 and body = ?2 and (?3 <> x'' or deleted_at is not null)"""
_NEWEST = "select coalesce(max(feed), 0) from checkpoints"
_KEPT = f"""
insert into checkpoints (feed, key, {HEADER})
values (?, x'', 0, x'', 0, '', 0, 0, 0, null, 0, 0, x'', x'', null)"""  # noqa: S608
_PURGE = "delete from sessions where {} returning key, namespace, created_at, labels"


class SqliteStore:
    serial = True  # one writer of the file at a time
    Landing = Landing  # a planted fault has its own

    def __init__(
        self, path: str, clock: Callable[[], int] = clock, vfs: str | None = None, uptime: Uptime | None = None
    ) -> None:
        self._clock = clock
        self._vfs = vfs
        self._uptime = uptime or since_boot
        self._translated = translated(path)
        self._reader = Reader(path, vfs)
        self._reading = Reading(clock, self._uptime)
        self._landing = self.Landing(path, clock, self._uptime)
        self.counters = Counters()
        self._writer = Writer(
            lambda: connect(self._reader.files.path, vfs, flags=EXISTING),
            self._told,
            self._landing.carried_out,
            self.counters,
            self._reader.check,
        )
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

    async def _read(self, work: Work[T], short: Work[T] | None = None) -> T:
        self._check_open()
        return await self._reader.read(work, short)

    async def _write(self, work: Callable[[apsw.Connection], T], *, heavy: bool = False) -> T:
        self._check_open()
        with self._translated:
            return await self._writer.submit(work, heavy=heavy)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    # Writing

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        if len(groups) == 1 and light(groups[0]):
            self._check_open()
            with self._translated:
                return [self._writer.at_once(groups[0]) or await self._writer.submit(groups[0], single=True)]
        entries = [entry for group in groups for entry in group.entries]
        heavy = len(entries) > MANY or sum(len(entry.frame or b"") for entry in entries) > LARGE
        return await self._write(lambda connection: self._landing.land_all(connection, groups), heavy=heavy)

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
        with self._translated:
            return await self._writer.post(work)

    def _beat_worker(self, connection: apsw.Connection, worker: Worker, now: int) -> int:
        boot, up = self._uptime()
        if worker.first:
            idle = "not exists (select 1 from sessions where owner = worker and deleted_at is null)"
            connection.execute(f"delete from workers where {GONE} and {idle}", (boot, LEFTOVER, up))  # noqa: S608
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
            await self._read(lambda _: scrub(self._reader.files.path, self._vfs))
        return emptied

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        def work(connection: apsw.Connection) -> list[int]:
            purged: dict[bytes, int] = {}
            newest = connection.execute(_NEWEST).get
            for start in range(0, len(keys), TOGETHER):
                part = keys[start : start + TOGETHER]
                if seen is not None:
                    part = _ending(connection, part, seen[start : start + TOGETHER])
                which = f"key in ({', '.join('?' * len(part))}){' and deleted_at is not null' if seen is None else ''}"
                for key, space, made, labels in list(connection.execute(_PURGE.format(which), part)):
                    connection.execute("delete from checkpoints where key = ?", (key,))
                    purged[key] = connection.changes()
                    if labels != "{}":  # a deleted one has lost its rows before
                        told = LABELS.decode(labels)
                        connection.executemany(UNLABEL, [(space, *label, made, key) for label in told.items()])
            if connection.execute(_NEWEST).get < newest:  # the number would be given out again
                connection.execute("delete from checkpoints where key = x''")
                connection.execute(_KEPT, (newest,))
            _shrink(connection)
            return [purged.pop(key, 0) for key in keys]

        return await self._write(work, heavy=True)

    # Reading

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        def work(connection: apsw.Connection) -> list[Head | None]:
            return self._reading.heads(connection, refs)

        return await self._read(work, work if len(refs) <= FEW_HEADS else None)

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
        return await self._read(*log(key, ranges, kinds, name, newest, largest, frames=frames))

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._read(listed(query, after, limit, self._clock(), self._uptime()))

    async def count(self, query: Query, sample: int = 0) -> Counts:
        return await self._read(counted(query, sample, self._clock(), self._uptime()))

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        start = await self._read(lambda c: c.execute(_NEWEST).get) if after is None else feed_number(after)
        mine = "" if key is None else " and c.key = ?4"
        # CROSS: the feed leads. (INDEXED BY: see Reading.row.)
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


async def _either(news: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except TimeoutError:
        return


def _ending(connection: apsw.Connection, keys: Sequence[bytes], seen: Sequence[bytes]) -> list[bytes]:
    """Those whose newest entry is the one that was seen."""
    newest = "select append_id from checkpoints where key = column1 order by seq desc limit 1"
    pairs = ", ".join(["(?, ?)"] * len(keys))
    found = connection.execute(
        f"select column1 from (values {pairs}) where ({newest}) = column2",  # noqa: S608
        [value for pair in zip(keys, seen, strict=True) for value in pair],
    )
    return [key for (key,) in found]
