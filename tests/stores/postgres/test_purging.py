"""In PostgreSQL a purge locks the newest entries of its sessions: appends and purges wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from saveslot.stack import Postgres
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore, statements
from saveslot.testing import Pen
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind
from saveslot.values.log import Group, Verdict, Worker


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(options={"fsync": "off"}) as server:
        yield server


@pytest.fixture
async def store(server: Postgres) -> AsyncGenerator[PostgresStore]:
    store = await PostgresStore.open(server.url)
    yield store
    await store.close()


@pytest.fixture
async def gc(server: Postgres) -> AsyncGenerator[PostgresStore]:
    """A second store, which purges."""
    store = await PostgresStore.open(server.url)
    yield store
    await store.close()


async def begun(store: Store, count: int = 2) -> list[Pen]:
    """Sessions of three entries, in the order of their keys."""
    keys = [fresh_key() for _ in range(count)]
    pens = [Pen("purged", key.hex(), key) for key in keys]
    await store.append(groups := [pen.begin(3) for pen in pens])
    for pen, group in zip(pens, groups, strict=True):
        pen.saw(group)
    return sorted(pens, key=lambda pen: pen.key)


def purge(gc: Store, *pens: Pen) -> asyncio.Future[list[int]]:
    return asyncio.ensure_future(gc.purge([pen.key for pen in pens], [pen.prev or b"" for pen in pens]))


async def lock_is_awaited(url: str) -> None:
    """Return once a statement waits for a lock."""
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        while not await connection.fetchval("select count(*) from pg_locks where not granted"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await connection.close()


async def entries(store: Store, *pens: Pen) -> list[int]:
    return [len(await store.entries(pen.key)) for pen in pens]


@asynccontextmanager
async def append_under_way(url: str, store: Store, *pens: Pen) -> AsyncGenerator[asyncio.Future[list[Verdict]]]:
    """A statement that appends to these sessions waits for a rival of the first, which is rolled back at the end."""
    rival = await asyncpg.connect(url)
    taken = """
        insert into saveslot.checkpoints
          (key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe, digest)
        values ($1, $2, $1, 1, '', 1, 1, 0, 0, 0, '', '')"""
    trying = rival.transaction()
    await trying.start()
    try:
        await rival.execute(taken, pens[0].key, pens[0].seq + 1)
        appending = asyncio.ensure_future(store.append([pen.group() for pen in pens]))
        await lock_is_awaited(url)
        yield appending
    finally:
        await trying.rollback()
        await rival.close()


@asynccontextmanager
async def purge_under_way(url: str, *pens: Pen) -> AsyncGenerator[asyncpg.Connection]:
    """A purge that has locked these sessions, in the middle of its transaction."""
    connection = await asyncpg.connect(url)
    await connection.execute("begin")
    await connection.fetch(statements.LOCK.replace("{s}", "saveslot"), [pen.key.hex() for pen in pens])
    try:
        yield connection
    finally:
        connection.terminate()


async def end(connection: asyncpg.Connection, *pens: Pen) -> None:
    """Let a purge that is under way remove its sessions."""
    remove = statements.REMOVE.replace("{s}", "saveslot")
    await connection.fetch(remove, [pen.key.hex() for pen in pens], [(pen.prev or b"").hex() for pen in pens])
    await connection.execute("commit")


DEAD = Worker(b"d" * 16, "dead", 0, first=True)
WRITES: dict[str, Callable[[Pen], Group]] = {
    "entry": Pen.group,
    "group": lambda pen: pen.group(2),
    "change": lambda pen: pen.group(kind=Kind.RESUMED, whole={"state": "active", "heartbeat": True}),
    "taking": lambda pen: pen.take_over(DEAD),
    "sweep": lambda pen: pen.group(kind=Kind.FAILED, whole={"state": "failed", "only_stale": 1}),
    "deletion": Pen.delete,
}


async def test_append_after_purge_is_missing(store: PostgresStore, gc: PostgresStore) -> None:
    """After a purge there is nothing to append to, and nothing of the session is left."""
    first, second = await begun(store)
    assert await purge(gc, second) == [3]
    verdicts = await store.append([first.group(), second.group()])
    assert [verdict.outcome for verdict in verdicts] == ["appended", "missing"]
    assert await entries(store, first, second) == [4, 0]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("others", [0, 1])
async def test_append_waits_for_a_purge_and_is_missing(
    server: Postgres, store: PostgresStore, write: str, others: int
) -> None:
    """Alone or in a batch, whatever its kind, a write lands nothing in a session that is being purged."""
    [pen], rest = await begun(store, 1), await begun(store, others)
    async with purge_under_way(server.url, pen) as purging:
        appending = asyncio.ensure_future(store.append([WRITES[write](pen), *(other.group() for other in rest)]))
        await lock_is_awaited(server.url)
        await end(purging, pen)
        assert [verdict.outcome for verdict in await appending] == ["missing", *["appended"] * others]
    assert await entries(store, pen, *rest) == [0, *[4] * others]


@pytest.mark.parametrize("write", WRITES)
async def test_append_lands_after_a_killed_purge(server: Postgres, store: PostgresStore, write: str) -> None:
    """A purge whose process dies half-way removes nothing, and its locks are released."""
    [pen] = await begun(store, 1)
    group = WRITES[write](pen)
    async with purge_under_way(server.url, pen):
        appending = asyncio.ensure_future(store.append([group]))
        await lock_is_awaited(server.url)
    assert [verdict.outcome for verdict in await appending] == ["appended"]
    assert await entries(store, pen) == [3 + len(group.entries)]


@pytest.mark.parametrize("others", [0, 1])
async def test_purge_waits_for_an_append_and_spares_that_session(
    server: Postgres, store: PostgresStore, gc: PostgresStore, others: int
) -> None:
    """A session with a newer entry is not removed; the purge's other session is."""
    pen, other = await begun(store)
    async with append_under_way(server.url, store, pen, *[other] * others) as appending:
        purging = purge(gc, pen, other)
        await asyncio.sleep(0.1)
        assert not purging.done()
    assert {verdict.outcome for verdict in await appending} == {"appended"}
    assert await purging == [0, 0 if others else 3]
    assert await entries(store, pen, other) == [4, 4 if others else 0]


async def test_purge_of_a_deleted_session_waits_for_appends(
    server: Postgres, store: PostgresStore, gc: PostgresStore
) -> None:
    """An append that has not seen the tombstone lands nothing, before the purge or after it."""
    first, second = await begun(store)
    async with append_under_way(server.url, store, first, second) as appending:
        await gc.append([second.delete()])
        assert await gc.purge([second.key]) == [4]
    assert [verdict.outcome for verdict in await appending] == ["appended", "missing"]
    assert await entries(store, first, second) == [4, 0]


async def test_purge_gives_up_on_a_long_append(
    server: Postgres, store: PostgresStore, gc: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes nothing; the next purge does."""
    monkeypatch.setattr("saveslot.stores.postgres.PURGING", "set local lock_timeout = '100ms'")
    pen, other = await begun(store)
    async with append_under_way(server.url, store, pen):
        assert await purge(gc, pen, other) == [0, 0]
        assert await entries(gc, pen, other) == [3, 3]
    assert await purge(gc, pen, other) == [0, 3]


async def test_two_purges_at_once(server: Postgres, store: PostgresStore, gc: PostgresStore) -> None:
    """The second waits for the first, and counts only what it removed itself."""
    first, second = await begun(store)
    async with purge_under_way(server.url, first) as purging:
        again = purge(gc, first, second)
        await lock_is_awaited(server.url)
        await end(purging, first)
        assert await again == [0, 3]
    assert await entries(store, first, second) == [0, 0]


async def test_purge_and_late_appends_leave_nothing(store: PostgresStore, gc: PostgresStore) -> None:
    """Writers that append to sessions being purged at the same time all finish, and none of those sessions is left."""
    for _ in range(5):
        pens = await begun(store, 20)
        late = [Pen("purged", pen.session_id, pen.key, 1, (await store.entries(pen.key))[0].append_id) for pen in pens]
        appends = [store.append([pen.group() for pen in late]) for _ in range(10)]
        results = await asyncio.gather(purge(gc, *pens), *appends)
        verdicts = [verdict.outcome for result in results[1:] for verdict in result if isinstance(verdict, Verdict)]
        assert set(verdicts) <= {"conflict", "missing"}
        again = await purge(gc, *pens)
        assert [one + other for one, other in zip(results[0], again, strict=True)] == [3] * 20
        assert await entries(store, *pens) == [0] * 20
