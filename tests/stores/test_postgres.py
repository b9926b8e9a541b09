"""PostgreSQL behaves like every other store, on a real server."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest

import saveslot
from saveslot import InvalidInput, SessionManager, Unavailable
from saveslot.stack import Postgres
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.postgres_server import Connection
from saveslot.testing import Clock, Pen, StoreConformance, behaves_like_memory


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(autouse=True)
def reached(server: Postgres) -> None:
    TestPostgres.url = server.url


class TestPostgres(StoreConformance):
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await PostgresStore.open(self.url, clock, clock.uptime)


def test_postgres_behaves_like_memory(server: Postgres) -> None:
    """Two handles on one database answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        return (
            await PostgresStore.open(server.url, clock, clock.uptime),
            await PostgresStore.open(server.url, clock, clock.uptime),
        )

    behaves_like_memory(open_two, examples=40, steps=40)


async def test_a_manager_on_the_callers_own_pool(server: Postgres) -> None:
    """The caller's pool is used and never closed; tables are made on first use; held sessions beat through it."""
    async with asyncpg.create_pool(server.url, min_size=1, max_size=4) as pool:
        async with SessionManager(db_pool=pool, namespace="own-pool", worker_beat=0.1, worker_ttl=0.5) as sessions:
            session = await sessions.create_session("tutor")
            async with sessions.hold(session) as held:
                await asyncio.sleep(1)
                await held.checkpoint("asked", {"messages": [1]})
                assert not held.lost.is_set()
        assert await pool.fetchval("select count(*) from saveslot.sessions where namespace = 'own-pool'") == 1
        async with SessionManager(db_pool=pool, schema="own_schema") as sessions:
            assert await sessions.count() == 0
            await sessions.create_session("tutor")
        assert await pool.fetchval("select count(*) from own_schema.sessions") == 1
        with pytest.raises(InvalidInput, match="schema"):
            SessionManager(db_pool=pool, schema="Own; Schema")


async def test_a_heartbeat_waits_for_nobody_with_a_lock_in_its_hand(server: Postgres) -> None:
    """Of two sessions one is being changed: the other's sign of life is there at once, that one's afterwards."""
    store = await PostgresStore.open(server.url)
    free, busy = Pen("beaten", "free"), Pen("beaten", "busy")
    await store.append([free.begin(), busy.begin()])
    [before] = await store.heads([free.key])
    connection = await asyncpg.connect(server.url)
    async with connection.transaction():
        await connection.execute("select from saveslot.sessions where key = $1 for update", busy.key)
        beating = asyncio.ensure_future(store.beat([(busy.key, None), (free.key, None)]))
        async with asyncio.timeout(60):
            while (await store.heads([free.key]))[0].row.heartbeat == before.row.heartbeat:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not beating.done()
    assert all(await beating)
    await connection.close()
    await store.close()


async def test_labels_go_with_what_ended(server: Postgres) -> None:
    """They are a table of their own, in which others look for theirs."""
    async with saveslot.open(f"{server.url}&schema=labelled") as sessions:
        for name in ("old", "new"):
            await sessions.create_session("tutor", session_id=name, labels={"team": "red", "name": name})
        async with sessions.hold("old") as held:
            await held.complete()
        assert (await sessions.gc(timedelta(0))).sessions == ["old"]
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("select count(*) from labelled.labels") == 2
        await connection.close()
        assert [one.session_id for one in await sessions.find(labels={"team": "red"})] == ["new"]


async def opened(url: str) -> SessionManager:
    return await saveslot.open(url)


async def test_eight_managers_open_an_empty_database_at_once(server: Postgres) -> None:
    """One of them makes the tables, the others wait and find them."""
    url = f"{server.url}&schema=fresh"
    managers = await asyncio.gather(*(opened(url) for _ in range(8)))
    ids = [(await manager.create_session("tutor")).session_id for manager in managers]
    assert all([await managers[0].get_session(name) for name in ids])
    for manager in managers:
        await manager.close()


async def test_a_database_of_a_newer_saveslot_is_refused(server: Postgres) -> None:
    """Nothing is touched, and the message says what to do."""
    url = f"{server.url}&schema=newer"
    await (await saveslot.open(url)).close()
    connection = await asyncpg.connect(server.url)
    await connection.execute("update newer.format set version = 99")
    await connection.close()
    with pytest.raises(InvalidInput, match="upgrade saveslot"):
        await saveslot.open(url)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql:///postgres?host=/nowhere", Unavailable),
        ("postgresql://h/d?schema=Bad-Name", InvalidInput),
        ("postgresql://h/d?schema=pg_mine", InvalidInput),
        ("postgresql://h/d?schema=", InvalidInput),
        ("postgresql://127.0.0.1:99999/d", InvalidInput),
        ("postgresql://127.0.0.1:1,127.0.0.1:65536/d", InvalidInput),
        ("postgresql://127.0.0.1:0/d", InvalidInput),
        ("postgresql:///d?host=/nowhere&port=99999", InvalidInput),
    ],
)
async def test_what_cannot_be_reached_says_so(
    url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address ends in a typed error, after its patience at the latest."""
    monkeypatch.setattr("saveslot.stores.postgres_server.PATIENCE", 0.5)
    with pytest.raises(error):
        await saveslot.open(url)


async def test_every_connection_keeps_its_plans(server: Postgres) -> None:
    """Not only the first one, on which the tables are looked at in the same round trip."""
    await (await PostgresStore.open(server.url)).close()  # the tables are there
    store = await PostgresStore.open(server.url)
    both = asyncio.Barrier(2)

    async def mode(connection: Connection) -> str:
        await both.wait()
        return await connection.fetchval("show plan_cache_mode")

    reached = store._server  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    assert await asyncio.gather(reached.run(mode), reached.run(mode)) == ["force_generic_plan"] * 2
    await store.close()


@pytest.mark.parametrize("schema", ["order", "user", "default", "table", "select", "analyze"])
async def test_a_schema_may_be_a_word_of_sql(server: Postgres, schema: str) -> None:
    """Everything works in it: writing, lists, counts, upkeep; by URL and with a pool."""
    async with saveslot.open(f"{server.url}&schema={schema}") as sessions:
        session = await sessions.create_session("tutor", labels={"a": "b"}, session_id="word")
        async with sessions.hold(session) as held:
            await held.checkpoint("asked", {"messages": [1]})
        assert [found.session_id for found in await sessions.find(labels={"a": "b"})] == ["word"]
        await sessions.keeper.start(thin=True)
        await sessions.keeper.stop()
        await sessions.delete_session("word")
        assert (await sessions.gc(grace=timedelta(0))).tombstones == ["word"]
    store = await PostgresStore.open(f"{server.url}&schema={schema}")
    await store.tend()
    await store.close()
    async with asyncpg.create_pool(server.url, min_size=1) as pool, SessionManager(db_pool=pool, schema=schema) as own:
        await own.create_session("tutor")
        assert await own.count() == 1


@pytest.mark.parametrize("schema", [5, "", "pg_mine", "x" * 64])
async def test_a_schema_that_cannot_be_is_refused(server: Postgres, schema: Any) -> None:
    """As input, before anything is asked; an empty one is not taken for the usual one."""
    async with asyncpg.create_pool(server.url, min_size=0) as pool:
        with pytest.raises(InvalidInput, match="schema"):
            SessionManager(db_pool=pool, schema=schema)


async def test_what_is_no_pool_is_refused(server: Postgres) -> None:
    """A URL and a connection at once; a pool that nobody opened, or somebody closed, at the first use."""
    connection = await asyncpg.connect(server.url)
    for wrong in (server.url, connection, 5):
        with pytest.raises(InvalidInput, match="db_pool"):
            SessionManager(db_pool=wrong)
    await connection.close()
    closed = await asyncpg.create_pool(server.url, min_size=1)
    await closed.close()
    for pool, told in (
        (closed, "the pool is closed"),
        (asyncpg.create_pool(server.url), "the pool is not initialized"),
    ):
        async with asyncio.timeout(5), SessionManager(db_pool=pool) as sessions:
            with pytest.raises(Unavailable, match=told):
                await sessions.create_session("tutor")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("sslmode=banana", "sslmode 'banana' must be one of disable, allow"),
        ("target_session_attrs=foo", "target_session_attrs 'foo' must be one of any, primary"),
        ("sslnegotiation=x", "sslnegotiation"),
        ("foo=bar", 'unrecognized configuration parameter "foo"'),
        ("work_mem=lots", 'invalid value for parameter "work_mem"'),
        ("max_connections=5", "max_connections"),
    ],
)
async def test_an_option_that_is_wrong_is_named(server: Postgres, option: str, said: str) -> None:
    """At once, and not as a password that wants escaping."""
    async with asyncio.timeout(5):
        with pytest.raises(InvalidInput) as caught:
            await saveslot.open(f"{server.url}&{option}")
    assert said in str(caught.value)
    assert "%40" not in str(caught.value)


async def test_a_session_without_its_log_is_named(server: Postgres) -> None:
    """Its partition was dropped: who wants to create that id anew hears why that does not work."""
    url = f"{server.url}&schema=hollow"
    async with saveslot.open(url) as sessions:
        await sessions.create_session("tutor", session_id="lesson")
        connection = await asyncpg.connect(server.url)
        await connection.execute("delete from hollow.checkpoints")
        await connection.close()
        with pytest.raises(Unavailable, match="session lesson of namespace default has a row, but its log is gone"):
            await sessions.create_session("tutor", session_id="lesson")
