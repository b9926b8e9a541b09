"""PostgreSQL behaves like every other store, on a real server."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest

import saveslot
from saveslot import InvalidInput, SessionManager, Unavailable
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.postgres.connection import Connection
from saveslot.testing import Clock, Pen, StoreConformance, behaves_like_memory
from tests.harness.servers import Database, make_tables


@pytest.fixture(scope="module")
def server(database: Database) -> Database:
    return database


@pytest.fixture(autouse=True)
def reached(server: Database) -> None:
    TestPostgres.url = server.url


class TestPostgres(StoreConformance):
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await PostgresStore.open(self.url, clock, clock.uptime)


def test_postgres_behaves_like_memory(server: Database) -> None:
    """Two handles on one database answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        return (
            await PostgresStore.open(server.url, clock, clock.uptime),
            await PostgresStore.open(server.url, clock, clock.uptime),
        )

    behaves_like_memory(open_two, examples=40, steps=40)


async def test_manager_uses_the_callers_pool(server: Database) -> None:
    """The caller's pool is used and never closed; tables are created on first use; held sessions renew through it."""
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


async def test_heartbeat_holds_no_lock_while_waiting(server: Database) -> None:
    """While one of two sessions is being changed, the other's heartbeat lands at once, and that one's afterwards."""
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


async def test_gc_removes_labels(server: Database) -> None:
    """Labels of a removed session leave their separate table; other sessions are still found by theirs."""
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


async def test_eight_managers_open_an_empty_database(server: Database) -> None:
    """One of them creates the tables; the others wait and use them."""
    url = f"{server.url}&schema=fresh"
    managers = await asyncio.gather(*(opened(url) for _ in range(8)))
    ids = [(await manager.create_session("tutor")).session_id for manager in managers]
    assert all([await managers[0].get_session(name) for name in ids])
    for manager in managers:
        await manager.close()


async def test_newer_database_is_refused(server: Database) -> None:
    """The database is unchanged, and the message says what to do."""
    url = f"{server.url}&schema=newer"
    await make_tables(url)
    connection = await asyncpg.connect(server.url)
    await connection.execute("update newer.format set version = 99")
    await connection.close()
    with pytest.raises(InvalidInput, match="upgrade it"):
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
async def test_unreachable_server_is_unavailable(
    url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address ends in a typed error, at the latest after the patience."""
    monkeypatch.setattr("saveslot.stores.postgres.connection.PATIENCE", 0.5)
    with pytest.raises(error):
        await saveslot.open(url)


async def test_every_connection_sets_plan_cache_mode(server: Database) -> None:
    """The first connection, which checks the tables in the same round trip, is not an exception."""
    await make_tables(server.url)
    store = await PostgresStore.open(server.url)
    both = asyncio.Barrier(2)

    async def mode(connection: Connection) -> str:
        await both.wait()
        return await connection.fetchval("show plan_cache_mode")

    reached = store._server  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    assert await asyncio.gather(reached.run(mode), reached.run(mode)) == ["force_generic_plan"] * 2
    await store.close()


@pytest.mark.parametrize("schema", ["order", "user", "default", "table", "select", "analyze"])
async def test_schema_may_be_a_reserved_word(server: Database, schema: str) -> None:
    """Writes, lists, counts and maintenance all work in it, by URL and with a pool."""
    async with saveslot.open(f"{server.url}&schema={schema}") as sessions:
        session = await sessions.create_session("tutor", labels={"a": "b"}, session_id="word")
        async with sessions.hold(session) as held:
            await held.checkpoint("asked", {"messages": [1]})
        assert [session.session_id for session in await sessions.find(labels={"a": "b"})] == ["word"]
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
async def test_invalid_schema_is_refused(server: Database, schema: Any) -> None:
    """It is InvalidInput before any query; an empty name does not mean the default schema."""
    async with asyncpg.create_pool(server.url, min_size=0) as pool:
        with pytest.raises(InvalidInput, match="schema"):
            SessionManager(db_pool=pool, schema=schema)


async def test_invalid_pool_is_refused(server: Database) -> None:
    """A URL together with a connection is refused; so is a pool not yet opened or already closed, at first use."""
    connection = await asyncpg.connect(server.url)
    for wrong in (server.url, connection, 5):
        with pytest.raises(InvalidInput, match="db_pool"):
            SessionManager(db_pool=wrong)
    await connection.close()
    closed = await asyncpg.create_pool(server.url, min_size=1)
    await closed.close()
    for pool, answer in (
        (closed, "the pool is closed"),
        (asyncpg.create_pool(server.url), "the pool is not initialized"),
    ):
        async with asyncio.timeout(60), SessionManager(db_pool=pool) as sessions:
            with pytest.raises(Unavailable, match=answer):
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
async def test_wrong_url_option_is_named(server: Database, option: str, said: str) -> None:
    """The error comes at once, and is not taken for a password that needs escaping."""
    async with asyncio.timeout(60):
        with pytest.raises(InvalidInput) as caught:
            await saveslot.open(f"{server.url}&{option}")
    assert said in str(caught.value)
    assert "%40" not in str(caught.value)


async def test_session_without_its_log_is_reported(server: Database) -> None:
    """If its partition was dropped, recreating that id fails with the reason."""
    url = f"{server.url}&schema=hollow"
    async with saveslot.open(url) as sessions:
        await sessions.create_session("tutor", session_id="lesson")
        connection = await asyncpg.connect(server.url)
        await connection.execute("delete from hollow.checkpoints")
        await connection.close()
        with pytest.raises(Unavailable, match="session lesson of namespace default has a row, but its log is gone"):
            await sessions.create_session("tutor", session_id="lesson")
