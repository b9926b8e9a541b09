"""The same shapes on PostgreSQL 18, started from its wheel, with and without Valkey as the hot tier.

Each contender gets a database of its own in one server with its default settings (fsync and synchronous_commit on).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import asyncpg
import msgspec

import saveslot
from bench import fresh
from bench.contenders import CONTENDERS, AppendingBook, BareBook, Book, LangGraphBook, Open, SaveslotBook
from saveslot.cli.benchmark import QUICK, Message, Series, Sizes, State, long_session, message
from saveslot.stack import Postgres, Valkey

SLOT, ADDING, HOT = "Saveslot on PostgreSQL", "Saveslot on PostgreSQL, append=", "Saveslot on PostgreSQL + Valkey"
LOOP, BLOB = "raw asyncpg loop", "bare JSON blob in PostgreSQL, msgspec"
GRAPH = "LangGraph AsyncPostgresSaver"

LONG = (SLOT, ADDING, HOT, LOOP, GRAPH)
SMALL = (SLOT, HOT, LOOP, GRAPH)
CROWD = (SLOT, HOT, GRAPH)
RESUMED = (SLOT, HOT, BLOB, GRAPH)
ROUNDS = 3
# A call of less than a millisecond varies more from second to second than between the two contenders. So they take
# turns in blocks of 20 calls, and the median of the blocks' ratios counts.
PAIRS, BLOCK = 60, 20
FRESH_RESUMES, PEER_RESUMES = 5, 1
READERS = 64
READS = 200  # each


@dataclass
class Results:
    long: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # bytes per checkpoint
    logged: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # bytes of WAL per checkpoint
    small: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    crowd: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    resumed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms, fresh process
    reopened: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms, same process
    heads: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # reads per second
    added: list[float] = field(
        default_factory=list[float]
    )  # time of `append=` divided by the raw insert's, per pair of blocks


def run(sizes: Sizes, repeats: int, say: Callable[[str], None]) -> Results:
    results = Results()
    with Postgres() as postgres, Valkey() as valkey:
        bench = _Bench(postgres, valkey, results, sizes)
        for name in dict.fromkeys(LONG + RESUMED):
            with bench.databases([name]) as urls:
                asyncio.run(_long(name, urls[name], QUICK))
        for repeat in range(repeats):
            say(f"repeat {repeat + 1} of {repeats}: PostgreSQL, small checkpoints")
            for turn in range(ROUNDS):
                bench.small(repeat + turn)
            say(f"repeat {repeat + 1} of {repeats}: PostgreSQL, long sessions and resume")
            bench.long(repeat)
    return results


class _Bench:
    def __init__(self, postgres: Postgres, valkey: Valkey, results: Results, sizes: Sizes) -> None:
        self._postgres, self._valkey = postgres, valkey
        self._results, self._sizes = results, sizes
        self._numbers = count()

    @contextmanager
    def databases(self, names: list[str]) -> Iterator[dict[str, str]]:
        """Yield a new database per name, dropped afterwards; with a hot tier, its address follows after a space."""
        by_key = {name: f"bench_{next(self._numbers)}" for name in names}
        self._tell(f"create database {database}" for database in by_key.values())
        base, _, _ = self._postgres.url.partition("?")
        whole = self._postgres.url
        urls = {name: whole.replace(base, base.rpartition("/")[0] + "/" + by_key[name]) for name in names}
        try:
            yield {name: f"{url} {self._valkey.url}" if name == HOT else url for name, url in urls.items()}
        finally:
            self._tell(f"drop database {database} with (force)" for database in by_key.values())

    def _tell(self, statements: Iterator[str]) -> None:
        async def tell() -> None:
            connection = await asyncpg.connect(self._postgres.url)
            for statement in statements:
                await connection.execute(statement)
            await connection.close()

        asyncio.run(tell())

    def small(self, first: int) -> None:
        for name in rotated(SMALL, first):
            with self.databases([name]) as urls:
                self._results.small[name].append(fresh.series("small", name, urls[name], self._sizes))
        for name in rotated(CROWD, first):
            # A peer takes as long for fewer checkpoints.
            each = max(10, self._sizes.each // 8) if name == GRAPH else 2 * self._sizes.each
            sizes = msgspec.structs.replace(self._sizes, each=each)
            with self.databases([name]) as urls:
                self._results.crowd[name].append(fresh.series("crowd", name, urls[name], sizes))

    def long(self, first: int) -> None:
        result, sizes = self._results, self._sizes
        with self.databases([*LONG, BLOB]) as urls:
            for name in rotated(LONG, first):
                series, stored, logged = asyncio.run(_weighed(name, urls[name], sizes))
                result.long[name].append(series)
                result.stored[name].append(stored / sizes.turns)
                result.logged[name].append(logged / sizes.turns)
            result.added += asyncio.run(_paired(urls[ADDING], urls[LOOP], sizes))
            asyncio.run(_long(BLOB, urls[BLOB], sizes))
            for turn in range(sizes.resumes):
                for name in rotated(RESUMED, turn):
                    if turn < (PEER_RESUMES if name == GRAPH else FRESH_RESUMES):
                        result.resumed[name].append(fresh.ask("resume", name, urls[name]))
                    result.reopened[name].append(asyncio.run(fresh.timed_resume(CONTENDERS[name], urls[name])))
            for name in (SLOT, HOT):
                result.heads[name].append(asyncio.run(_heads(urls[name])))


async def _long(name: str, url: str, sizes: Sizes) -> Series:
    async with CONTENDERS[name](url, 1) as book:
        return await long_session(book.save, sizes, fresh.quiet)


async def _weighed(name: str, url: str, sizes: Sizes) -> tuple[Series, int, int]:
    """Run a long session; return it, the growth of its database, and the WAL it wrote."""
    size = "select pg_database_size(current_database()), (pg_current_wal_insert_lsn() - '0/0')::int8"
    eye = await asyncpg.connect(url.partition(" ")[0])
    try:
        async with CONTENDERS[name](url, 1) as book:
            stored, logged = await eye.fetchrow(size)
            series = await long_session(book.save, sizes, fresh.quiet)
            grown, written = await eye.fetchrow(size)
        return series, grown - stored, written - logged
    finally:
        await eye.close()


async def _paired(adding: str, inserting: str, sizes: Sizes) -> list[float]:
    """Continue the long session with `append=`, in turn with raw inserts; return the ratio of each pair of blocks."""

    async def block(book: Book, turn: int) -> float:
        ms: list[float] = []
        for n in range(turn, turn + BLOCK):
            new = message(n, sizes.turn_bytes)
            start = perf_counter()
            await book.save(0, new, {})
            ms.append(perf_counter() - start)
        return median(ms)

    ratios: list[float] = []
    async with CONTENDERS[ADDING](adding, 0) as ours, CONTENDERS[LOOP](inserting, 0) as raw:
        await block(ours, sizes.turns)  # the first call resumes the session
        for pair in range(1, PAIRS + 1):
            turn = sizes.turns + pair * BLOCK
            if pair % 2:
                took, floor = await block(ours, turn), await block(raw, turn)
            else:
                floor, took = await block(raw, turn), await block(ours, turn)
            ratios.append(took / floor)
    return ratios


async def _heads(url: str) -> float:
    """Read heads strongly: several readers, each of its own session, one read after another."""
    async with _opened(url) as sessions:
        for n in range(READERS):
            await sessions.create_session("benchmark", session_id=f"reader {n}")
        heads = sessions.engine.metered.heads  # no decoding, no session value: the read itself

        async def read(n: int) -> None:
            for _ in range(READS):
                assert await heads([("default", f"reader {n}")]) != [None]

        await read(0)
        start = perf_counter()
        await asyncio.gather(*map(read, range(READERS)))
        return READERS * READS / (perf_counter() - start)


# Contenders


def _opened(url: str) -> Any:
    url, _, hot = url.partition(" ")
    return saveslot.open(url, hot=hot or None)


def _saveslot_as(book: type[SaveslotBook]) -> Open:
    @asynccontextmanager
    async def opened(url: str, sessions: int) -> AsyncGenerator[Book]:
        async with _opened(url) as manager:
            for n in range(sessions):
                await manager.create_session("benchmark", session_id=str(n))
            yield book(manager)

    return opened


class LoopBook:
    """The new message only, one row and one commit: no versions, no sessions, no checks."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def save(self, session: int, new: Message, _state: State) -> object:
        insert = "insert into rows (session, body) values ($1, $2)"
        return await self.connection.execute(insert, session, msgspec.json.encode(new))

    async def load(self, session: int) -> Any:
        rows = await self.connection.fetch("select body from rows where session = $1 order by id", session)
        return [msgspec.json.decode(body) for (body,) in rows]


class BlobBook(LoopBook):
    """The whole state as JSON bytes in one row. Only the newest is kept, or it would fill the disk."""

    async def save(self, _session: int, _new: Message, state: State) -> object:
        self.body = msgspec.json.encode(state)
        return None

    async def load(self, session: int) -> Any:
        find = "select body from rows where session = $1 order by id desc limit 1"
        return BareBook.decode(await self.connection.fetchval(find, session))


@asynccontextmanager
async def _raw(book: type[LoopBook], url: str, _sessions: int) -> AsyncGenerator[Book]:
    connection = await asyncpg.connect(url)
    if _sessions:
        await connection.execute(
            "create table rows (id bigserial primary key, session int, body bytea); create index on rows (session, id)"
        )
        await connection.execute("alter table rows alter column body set storage external")
    result = book(connection)
    yield result
    if isinstance(result, BlobBook) and _sessions:
        await connection.execute("insert into rows (session, body) values (0, $1)", result.body)
    await connection.close()


@asynccontextmanager
async def _langgraph(url: str, sessions: int) -> AsyncGenerator[Book]:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=1, max_size=16, kwargs=settings, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        if sessions:
            await saver.setup()
        yield LangGraphBook(saver, empty_checkpoint)


CONTENDERS.update(
    {
        SLOT: _saveslot_as(SaveslotBook),
        ADDING: _saveslot_as(AppendingBook),
        HOT: _saveslot_as(SaveslotBook),
        LOOP: partial(_raw, LoopBook),
        BLOB: partial(_raw, BlobBook),
        GRAPH: _langgraph,
    }
)


def rotated(names: tuple[str, ...], by: int) -> tuple[str, ...]:
    by %= len(names)
    return names[by:] + names[:by]
