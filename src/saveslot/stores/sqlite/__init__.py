"""SQLite store: several processes share one file, with readers beside one writer at a time and many appends per commit.

It uses apsw's SQLite: the versions that most Pythons link can corrupt a WAL file that two processes write. A write is
acknowledged after the WAL was synced (synchronous=FULL). Known limit: a process stopped inside a commit blocks every
writer of the file until it continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import apsw

from saveslot.errors import Unavailable
from saveslot.stores import Store, Traits
from saveslot.stores.memory import LEFTOVER, clock
from saveslot.stores.sqlite import feed
from saveslot.stores.sqlite.file import Uptime, scrub, since_boot, translated
from saveslot.stores.sqlite.finding import counted, listed, namespaces
from saveslot.stores.sqlite.landing import LARGE, MANY, UNLABEL, UNMARK, Landing, remark
from saveslot.stores.sqlite.reader import Reader, Work
from saveslot.stores.sqlite.reading import FEW_HEADS, TOGETHER, Reading, log
from saveslot.stores.sqlite.rows import GONE, HEADER, LABELS, NEWEST, gone
from saveslot.stores.sqlite.writer import Writer
from saveslot.stores.wire.bells import REST, Bells
from saveslot.stores.wire.loops import set_within
from saveslot.stores.wire.metrics import Counters
from saveslot.values.kinds import PLAIN_KINDS
from saveslot.values.log import (
    ALL,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Labels,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Totals,
    Verdict,
    Wanted,
    Worker,
    checked_together,
)

T = TypeVar("T")

# Seconds between a watcher's polls for other processes' appends; this process's own wake it at once.
POLL = 0.05

# Pages by which the file shrinks after each emptying or purge: 1 MB, in under 2 ms.
SHRINK = 256

_EMPTY = """
update checkpoints set frame = null, note = case when ?3 then substr(note, 1, 16) else note end
where key = ?1 and seq = ?2 and (frame is not null or (?3 and length(note) > 16))"""
_SWAP = """
update sessions set body = ?3, user_id = case when ?3 = x'' then '' else user_id end,
  labels = case when ?3 = x'' then '{}' else labels end,
  search = case when ?3 = x'' then lower(id || char(31) || agent_type || char(31)) else search end
where key = ?1 and body = ?2 and (?3 <> x'' or deleted_at is not null)"""
_KEPT = f"""
insert into checkpoints (feed, key, {HEADER})
values (?, x'', 0, x'', 0, '', 0, 0, 0, null, 0, 0, x'', x'', null, null, 0)"""  # noqa: S608
_PURGE = "delete from sessions where {} returning key, created_at, cast(namespace as blob), cast(labels as blob)"


def _events(connection: apsw.Connection, namespace: str, key: bytes | None, after: str | None, limit: int) -> feed.Page:
    if key is None:
        return feed.page(connection, namespace, after, limit)
    return feed.page_of(connection, namespace, key, after, limit)


class SqliteStore(Store):
    kind = "sqlite"
    traits = Traits(serial=True, local=True)
    Landing = Landing  # tests replace it with a faulty one

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
        self._bells = Bells()
        self._writer = Writer(
            self._reader.writing,
            partial(self._bells.ring, ()),
            self._landing.carried_out,
            self.counters,
            self._reader.check,
        )
        self._closed = False

    @classmethod
    async def open(
        cls, path: str, clock: Callable[[], int] = clock, vfs: str | None = None, uptime: Uptime | None = None
    ) -> SqliteStore:
        store = cls(path, clock, vfs, uptime)
        await store._reader.open()
        return store

    def __repr__(self) -> str:
        return f"<SqliteStore {self._reader}>"

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

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        land = self._landing.land_together if together else self._landing.land_all
        if together:
            checked_together(groups)
        if len(groups) == 1 and _light(groups[0]):
            self._check_open()
            verdict = self._writer.at_once(groups[0])
            if verdict is None:
                with self._translated:
                    verdict = await self._writer.submit(groups[0], single=True)
            self._bells.ring((groups[0].key,))
            return [verdict]
        entries = [entry for group in groups for entry in group.entries]
        heavy = len(entries) > MANY or sum(len(entry.frame or b"") for entry in entries) > LARGE
        verdicts = await self._write(lambda connection: land(connection, groups), heavy=heavy)
        for group in groups:
            self._bells.ring_for(group.key)
        return verdicts

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
        boot, up = uptime = self._uptime()
        boot = boot or str(worker.ttl)
        if worker.first:
            idle = "not exists (select 1 from sessions where owner = worker and deleted_at is null)"
            connection.execute(f"delete from workers where {GONE} and {idle}", gone(uptime, LEFTOVER))  # noqa: S608
            row = (worker.id, worker.name, boot, 0, now, 0)
            connection.execute("insert into workers values (?, ?, ?, ?, ?, ?) on conflict do nothing", row)
        sql = "update workers set boot = ?, expires = ?, beaten = ?, dead = ? where worker = ? and not dead"
        connection.execute(sql, (boot, up + worker.ttl, now, not worker.ttl, worker.id))
        return now if connection.changes() else 0

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        def work(connection: apsw.Connection) -> int:
            emptied = 0
            for seq in seqs:
                connection.execute(_EMPTY, (key, seq, notes))
                emptied += connection.changes()
            _shrink(connection)
            return emptied

        return await self._write(work, heavy=len(seqs) > MANY)

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute(_SWAP, (key, before, after))
            swapped = connection.changes() > 0
            if swapped and labels:
                remark(connection, key, labels)
            return swapped

        return await self._write(work, heavy=bool(labels))

    async def tend(self) -> None:
        """Create the file and its tables, if there are none."""
        await self._write(lambda _: None)

    async def scrub(self, *, rewrite: bool = False) -> None:  # noqa: ARG002  (it overwrites in place)
        await self._read(lambda _: None if self._reader.files is None else scrub(str(self._reader), self._vfs))

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        def work(connection: apsw.Connection) -> list[int]:
            purged: dict[bytes, int] = {}
            newest = connection.execute(NEWEST).get
            for start in range(0, len(keys), TOGETHER):
                part = keys[start : start + TOGETHER]
                if seen is not None:
                    part = _ending(connection, part, seen[start : start + TOGETHER])
                which = f"key in ({', '.join('?' * len(part))}){' and deleted_at is not null' if seen is None else ''}"
                for key, created_at, space, labels in list(connection.execute(_PURGE.format(which), part)):
                    connection.execute("delete from checkpoints where key = ?", (key,))
                    purged[key] = connection.changes()
                    connection.execute(UNMARK, (key,))
                    if labels != b"{}":  # a deleted session's label rows are gone already
                        pairs = LABELS.decode(labels).items()
                        rows = [(space.decode(), *label, created_at, key) for label in pairs]
                        connection.executemany(UNLABEL, rows)
            if connection.execute(NEWEST).get < newest:  # SQLite would reuse the number
                connection.execute("delete from checkpoints where key = x''")
                connection.execute(_KEPT, (newest,))
            _shrink(connection)
            return [purged.pop(key, 0) for key in keys]

        return await self._write(work, heavy=True)

    # Reading

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        work = partial(self._reading.heads, refs=refs, state=state)
        return await self._read(work, work if len(refs) <= FEW_HEADS else None)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        return await self._read(*log(key, wanted))

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._read(listed(query, after, limit, self._clock(), self._uptime()))

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        return await self._read(counted(query, totals, self._clock(), self._uptime()))

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        return await self._read(namespaces(after, limit))

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        woken = False
        while True:
            message = self._bells.message(key)
            page = await self._read(lambda c, after=after: _events(c, namespace, key, after, limit))
            left = end - time.monotonic()
            if page.events or (left <= 0 and not page.more):  # if none match, matching ones may follow
                return page.events, page.cursor
            after = page.cursor
            if not page.more:
                if woken:
                    await asyncio.sleep(REST)
                woken = await set_within(message, min(POLL, left))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._writer.close()  # first: the last connection removes the WAL, and the writer may still open the file
        await asyncio.get_running_loop().run_in_executor(None, self._reader.close)


def _light(group: Group) -> bool:
    """True for one plain checkpoint of usual size that follows another entry: nearly every write."""
    if group.create is not None or group.only_stale or group.only_orphan is not None:
        return False
    if group.heartbeat or group.state or group.body is not None or group.labels is not None:
        return False
    entry = group.entries[0]
    if entry.labels:
        return False
    usual = entry.frame is None or len(entry.frame) <= LARGE
    return usual and entry.kind in PLAIN_KINDS and len(group.entries) == 1


def _shrink(connection: apsw.Connection) -> None:
    """Shrink the file by up to 1 MB if more than half of its pages are free. SQLite reuses the other free pages."""
    if connection.pragma("freelist_count") * 2 > connection.pragma("page_count"):
        connection.execute(f"pragma incremental_vacuum({SHRINK})").fetchall()


def _ending(connection: apsw.Connection, keys: Sequence[bytes], seen: Sequence[bytes]) -> list[bytes]:
    """The keys of sessions whose newest entry is still the one in `seen`."""
    newest = "select append_id from checkpoints where key = column1 order by seq desc limit 1"
    pairs = ", ".join(["(?, ?)"] * len(keys))
    rows = connection.execute(
        f"select column1 from (values {pairs}) where ({newest}) = column2",  # noqa: S608
        [value for pair in zip(keys, seen, strict=True) for value in pair],
    )
    return [key for (key,) in rows]
