"""PostgreSQL store: many machines share one log. Group commit in two lanes, one statement a batch, a verdict per group.

Connections keep no session state, so transaction pooling works. Times are the database's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from asyncpg import DeadlockDetectedError, DivisionByZeroError, LockNotAvailableError

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.stores import Store
from saveslot.stores.postgres import feed, partitions, rewriting, statements as sql
from saveslot.stores.postgres.connection import Connection, Server
from saveslot.stores.postgres.dropping import drop_empty
from saveslot.stores.postgres.finding import by_change, counting, page, probe, weighed
from saveslot.stores.postgres.landing import Landing
from saveslot.stores.postgres.news import News
from saveslot.stores.postgres.rows import (
    array,
    as_text,
    fetched,
    to_changed_row,
    to_head,
    to_place,
    to_weighed_row,
)
from saveslot.stores.postgres.url import SCHEMA
from saveslot.stores.stored import shown_text, to_entry, to_marks, to_row, with_labels
from saveslot.stores.wire.batches import Batches
from saveslot.stores.wire.bells import REST
from saveslot.stores.wire.joining import Joining
from saveslot.stores.wire.loops import set_within
from saveslot.values.log import (
    ALL,
    NO_WORKER,
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
    among,
    checked_together,
    led,
)

T = TypeVar("T")
Look = Callable[[], Awaitable[tuple[list[Event], str, bool]]]

# Seconds between a watcher's polls: without NOTIFY, with it, and right after a notification, when an announced entry
# may become visible a moment later.
POLL, LAZY, QUICK = 0.05, 0.25, 0.005
# Longest range, in entries, that shares a query with other callers' ranges.
SHORT = 128
# Microseconds until the row of a crashed worker that owns nothing is removed: one hour.
LEFTOVER = 3600 * 1_000_000
# A purge waits 2 s for appends under way, then leaves its sessions to the next purge. If its client stops halfway,
# appends wait for it for at most 5 s.
PURGING = "set local lock_timeout = '2s'; set local idle_in_transaction_session_timeout = '5s'"


class PostgresStore(Store):
    kind = "postgresql"

    def __init__(
        self, server: Server, clock: Callable[[], int] | None = None, uptime: Callable[[], int] | None = None
    ) -> None:
        self._server = server
        self._clock, self._uptime = clock, uptime
        self.counters = server.counters
        self._landing = Landing(self._write, clock, self._times, self.heads, self._write_whole)
        self._batches = Batches(self._land, self.counters)
        self._joining = Joining(self._heads, self.counters)
        self._joining_states = Joining(partial(self._heads, state=True), self.counters)
        self._headers = Joining(self._short_logs, self.counters)
        self._news = News(server)
        self._texts: dict[str, str] = {}
        self._landed_groups = self._grown = 0
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Callable[[], int] | None = None,
        uptime: Callable[[], int] | None = None,
        *,
        patient: bool = True,
    ) -> PostgresStore:
        store = cls(Server(url, patient=patient), clock, uptime)
        try:
            await store._server.open()
        except BaseException:
            await store._server.close()
            raise
        return store

    @classmethod
    def on(cls, pool: Any, schema: str = SCHEMA) -> PostgresStore:
        """Open a store on the caller's pool; the first write creates the tables in that schema."""
        if not (hasattr(pool, "acquire") and hasattr(pool, "release")):
            raise InvalidInput("db_pool", "must be a pool: await asyncpg.create_pool(url); for a URL use saveslot.open")
        return cls(Server(pool=pool, schema=schema))

    def __repr__(self) -> str:
        return f"<PostgresStore {self._server}>"

    async def tend(self) -> None:
        """Create the coming months' partitions and drop empty ones of past months, if this role may."""
        self._check_open()
        await self._server.run(lambda connection: partitions.make(connection, self._server.schema))
        await self._server.run(lambda connection: drop_empty(connection, self._server.schema))

    async def scrub(self, *, rewrite: bool = False) -> None:
        """Old versions of rows stay in the data files, also after a plain VACUUM; `rewrite` rewrites the tables."""
        if rewrite:
            self._check_open()
            await self._server.alone(lambda connection: rewriting.rewrite(connection, self._server.schema))

    def _sql(self, statement: str) -> str:
        """The statement for this schema. Its text, and so its plan, is new whenever this process doubles its writes.

        A cached plan for a one-page table scans the whole table: with 100,000 entries, reading a head took 22 ms.
        """
        if (grown := self._landed_groups.bit_length()) != self._grown:
            self._grown = grown
            self._texts.clear()
        if statement not in self._texts:
            quoted = f'"{self._server.schema}"'  # it may be an SQL keyword: order, user
            self._texts[statement] = f"{statement.replace('{s}', quoted)} -- {grown}"
        return self._texts[statement]

    def _times(self) -> str:
        """Times of a test's clocks as an array; nulls where the database's clock counts."""
        if self._clock is self._uptime is None:
            return "{null,null}"
        return array([clock and clock() for clock in (self._clock, self._uptime)])

    async def _write(self, statement: str, *values: Any) -> list[Any]:
        self._check_open()
        text = self._sql(statement)
        return await self._server.run(lambda connection: connection.fetch(text, *values))

    async def _write_whole(self, statement: str, *values: Any) -> list[Any]:
        """The rows; none if the statement undid itself by dividing by zero."""
        self._check_open()
        text = self._sql(statement)

        async def work(connection: Connection) -> list[Any]:
            try:
                return await connection.fetch(text, *values)
            except DivisionByZeroError:
                return []

        return await self._server.run(work)

    async def _read(self, statement: str, *values: Any, blank: Sequence[Any] = ()) -> list[Any]:
        """The rows; `blank` while there are no tables."""
        self._check_open()
        text = self._sql(statement)
        return await self._server.look(lambda connection: fetched(connection, text, *values), list(blank))

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    # Writing

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        self._check_open()
        if together:
            return await self._batches.together(checked_together(groups), self._land_together)
        return await self._batches.append(groups)

    async def _land(self, groups: list[Group]) -> list[Verdict]:
        return self._noted(groups, await self._landing.land(groups))

    async def _land_together(self, groups: list[Group]) -> list[Verdict]:
        return self._noted(groups, await self._landing.land_together(groups))

    def _noted(self, groups: list[Group], verdicts: list[Verdict]) -> list[Verdict]:
        self._landed_groups += len(groups)
        self._news.tell([group.key for group in groups])
        return verdicts

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        self._check_open()
        beat, beat_one = self._sql(sql.BEAT), self._sql(sql.BEAT_ONE)

        async def work(connection: Connection) -> list[int]:
            beaten: dict[Sign, int] = {}
            if signs:
                keys, leases = [key.hex() for key, _ in signs], [as_text(lease) for _, lease in signs]
                rows = await connection.fetch(beat, self._times(), keys, leases)
                for key, lease, at in rows:
                    renewed_at = at or await connection.fetchval(beat_one, self._times(), key, lease)
                    beaten[key, lease] = renewed_at or 0
            times = [beaten.get(sign, 0) for sign in signs]
            return times if worker is None else [*times, await self._beat_worker(connection, worker)]

        return await self._server.run_beside(work, None if worker is None else worker.ttl / 3e6)

    async def _beat_worker(self, connection: Connection, worker: Worker) -> int:
        times = self._times()
        if worker.first:
            await connection.execute(self._sql(sql.LEFTOVERS), times, LEFTOVER, NO_WORKER)
            first = self._sql(sql.WORKER_FIRST)
            return await connection.fetchval(first, times, worker.id, worker.name, worker.ttl) or 0
        return await connection.fetchval(self._sql(sql.WORKER), times, worker.id, worker.ttl) or 0

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        return len(await self._write(sql.EMPTY, key, array(seqs), notes))

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        if not labels:
            return bool(await self._write(sql.SWAP, key, before, after))
        marks = msgspec.json.encode([{"seq": seq, "labels": named} for seq, named in labels.items()]).decode()
        return bool(await self._write(sql.RELABEL, key, before, after, marks))

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        self._check_open()
        lock, remove = self._sql(sql.LOCK), self._sql(sql.REMOVE)
        chosen = [key.hex() for key in keys]
        ends = [None] * len(keys) if seen is None else [last.hex() for last in seen]

        async def work(connection: Connection) -> list[Any]:
            try:
                async with connection.transaction():
                    await connection.execute(PURGING)
                    await connection.fetch(lock, chosen)
                    return await connection.fetch(remove, chosen, ends)
            except (LockNotAvailableError, DeadlockDetectedError):
                return []  # the next purge takes them

        purged: dict[bytes, int] = dict(await self._server.run(work)) if keys else {}
        return [purged.pop(key, 0) for key in keys]

    # Reading

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        return await (self._joining_states if state else self._joining).answers(refs)

    async def _heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        by_key, by_id = (sql.STATES_BY_KEY, sql.STATES_BY_ID) if state else (sql.HEADS_BY_KEY, sql.HEADS_BY_ID)
        heads: dict[Ref, Head] = {}
        keys = [ref for ref in refs if isinstance(ref, bytes)]
        names = [ref for ref in refs if not isinstance(ref, bytes)]
        if keys:
            for row in await self._read(by_key, self._times(), [key.hex() for key in keys]):
                head = to_head(row)
                heads[head.row.key] = head
        if names:
            spaces, ids = [namespace for namespace, _ in names], [name for _, name in names]
            for row in await self._read(by_id, self._times(), spaces, ids):
                head = to_head(row)
                heads[head.row.namespace, head.row.session_id] = head
        return [heads.get(ref) for ref in refs]

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        if wanted.labelled:
            marks = to_marks(await self._read(sql.MARKS, key))
            return with_labels(await self.entries(key, among(wanted, marks)), marks)
        frame = room = "frame" if wanted.frames else "null::bytea"
        if wanted.frames and wanted.room is not None:
            # PostgreSQL knows the length of a frame stored outside its row without fetching it.
            room = f"case when sum(length(frame)) over (order by seq desc) <= {wanted.room:d} then frame end"
        ranges, chosen = wanted.ranges, None if wanted.kinds is None else array(list(wanted.kinds))
        every = chosen is wanted.name is wanted.newest is wanted.request is None and not wanted.chain
        if every and not wanted.frames and len(ranges) == 1 and ranges[0][1] - ranges[0][0] < SHORT:
            [log] = await self._headers.answers([(key, *ranges[0])])
            if isinstance(log, Corrupt):
                raise log
            return log
        values: tuple[Any, ...] = (chosen, wanted.name, wanted.newest)
        if len(ranges) == 1 and wanted.request is None and not wanted.chain:
            statement, [(first, last)] = sql.RANGE.replace("{frame}", room), ranges
        else:
            first, last = array([first for first, _ in ranges]), array([last for _, last in ranges])
            statement = sql.RANGES.replace("{frame}", room)
            if wanted.request is not None:
                statement, values = sql.REQUESTED.replace("{frame}", room), (*values, wanted.request)
            elif wanted.chain:
                statement = sql.CHAIN.replace("{frame}", frame).replace("{room}", room)
                values += (wanted.chain,)
        rows = await self._read(statement, key, first, last, *values)
        # A tuple: msgspec reads no Record, and salvaging one column at a time takes 100 us.
        return [to_entry(tuple(row), key) for row in reversed(rows)]

    async def _short_logs(self, spans: Sequence[tuple[bytes, int, int]]) -> list[list[Entry] | Corrupt]:
        """Headers of short ranges of any logs: one statement serves many readers. A damaged log fails only its own."""
        firsts, lasts = array([first for _, first, _ in spans]), array([last for _, _, last in spans])
        headers: list[list[Any]] = [[] for _ in spans]
        for place, *header in await self._read(sql.SHORT_LOGS, [key.hex() for key, *_ in spans], firsts, lasts):
            headers[place - 1].append(header)
        return [_log(key, log) for (key, *_), log in zip(spans, headers, strict=True)]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        query, by_prefix = await self._led(query)
        statement, values = page(query, after, limit, by_prefix=by_prefix)
        shape = to_weighed_row if weighed(query) else to_changed_row if by_change(query) else to_row
        return [shape(row) for row in await self._read(statement, self._times(), *values)]

    async def _led(self, query: Query) -> tuple[Query, bool]:
        """The query with its rarest label first, and whether its prefix is rarer than that."""
        probing = probe(query)
        if probing is None:
            return query, False
        statement, values = probing
        blank = [0] * (len(query.labels) + 1)
        [counts] = await self._read(statement, *values, blank=[blank])
        many = len(query.labels)
        return led(query, counts[:many], counts[many] if len(counts) > many else None)

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        query, by_prefix = await self._led(query)
        every = bool(query.prefix) and not query.labels and query.deleted_for is None  # all of them have to be counted
        by_state, held, matching, values = counting(query, by_prefix=by_prefix or every)
        sums: list[Any] = [(0, 0)]
        cells, owners = await asyncio.gather(
            self._read(by_state, self._times(), *values),
            self._read(held, self._times(), *values, blank=[(0, 0)]),
        )
        if totals == "store":
            sums = await self._read(sql.TOTALS, self._server.schema, blank=sums)
        elif totals == "matching":
            sums = await self._read(matching, self._times(), *values, blank=sums)
        counts = Counts()
        for *words, sessions in cells:
            state, agent_type = map(shown_text, words)
            counts.states[state] = counts.states.get(state, 0) + sessions
            counts.agent_types[agent_type] = counts.agent_types.get(agent_type, 0) + sessions
        [(counts.held, counts.orphaned)], [(counts.entries, counts.stored_bytes)] = owners, sums
        return counts

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        return [name for (name,) in await self._read(sql.NAMESPACES, after, limit)]

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        nap, woken = QUICK, False
        if wait > 0:
            self._news.listen()
        look = await self._anchored(lambda: self._watched(namespace, after, key, limit))
        while True:
            message = self._news.message(key)
            events, cursor, more = await self._anchored(look)
            left = end - time.monotonic()
            if events or (left <= 0 and not more):  # if none match, matching ones may follow
                return events, cursor
            if not more:
                if woken:
                    await asyncio.sleep(REST)
                if woken := await set_within(message, min(nap, left)):
                    nap = QUICK
                else:
                    nap = min(nap * 2, LAZY if self._news.listening else POLL)

    async def _watched(self, namespace: str, after: str | None, key: bytes | None, limit: int) -> Look:
        """Return a function that reads the next page each time."""
        if key is None:
            at = await feed.end(self._read) if after is None else to_place(after)
            page = partial(feed.page, self._read, namespace)
        else:
            at = await feed.own_place(self._read, key, after)
            page = partial(feed.page_of, self._read, namespace, key)

        async def look() -> tuple[list[Event], str, bool]:
            nonlocal at
            events, at, more = await page(at, limit)
            return events, at.cursor(), more

        return look

    async def _anchored(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read events; first anchor the feed here if its numbers are another server's, or of another timeline."""
        try:
            return await read()
        except feed.Foreign:
            self._server.recheck()
            await self._server.run(lambda _: asyncio.sleep(0))
            return await read()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._batches.close()
            await self._news.close()
            await self._server.close()


def _log(key: bytes, headers: Sequence[Any]) -> list[Entry] | Corrupt:
    try:
        return [to_entry(header, key) for header in headers]
    except Corrupt as exc:
        return exc
