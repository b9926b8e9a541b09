"""PostgreSQL as in production: a role that may not create tables, connected through a transaction pooler."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import asyncpg
import pytest

import saveslot
from saveslot import Forbidden, InvalidInput, SessionManager, Unavailable
from saveslot.stack import Postgres
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore
from saveslot.testing import Clock, StoreConformance
from tests.harness.servers import make_tables

from .pooler import Pooler

GRANTS = """
create role worker login;
grant usage on schema saveslot to worker;
grant select, insert, update, delete on all tables in schema saveslot to worker;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """The owner has created the tables; a worker may only read and write them."""

    async def grant(url: str) -> None:
        await make_tables(url)
        connection = await asyncpg.connect(url)
        await connection.execute(GRANTS)
        await connection.close()

    with Postgres() as server:
        asyncio.run(grant(server.url))
        yield server


@pytest.fixture(scope="module")
def pooler(server: Postgres) -> Iterator[Pooler]:
    with Pooler(str(server.folder / ".s.PGSQL.5432"), "worker") as pooler:
        yield pooler


@pytest.fixture(autouse=True)
def reached(pooler: Pooler) -> None:
    TestWorkerBehindAPooler.url = f"postgresql://worker@127.0.0.1:{pooler.port}/postgres?statement_cache_size=0"


class TestWorkerBehindAPooler(StoreConformance):
    """Neither the rights of an owner nor anything that a connection would have to remember is needed."""

    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await PostgresStore.open(self.url, clock, clock.uptime)


async def work(sessions: SessionManager, name: str) -> list[int]:
    session = await sessions.create_session("agent", session_id=name)
    async with sessions.hold(session) as held:
        for number in range(20):
            await held.checkpoint("turn", append={"turns": [number]})
        return held.data["turns"]


async def test_many_agents_share_a_pooler(pooler: Pooler) -> None:
    """Agents use more connections than the pooler has, all at once; the same holds for a caller's pool."""
    url, before = TestWorkerBehindAPooler.url, pooler.lent
    async with saveslot.open(url, worker_beat=0.1, worker_ttl=2) as one, saveslot.open(url) as two:
        done = await asyncio.gather(*(work((one, two)[n % 2], f"pooled-{n}") for n in range(16)))
    assert done == [list(range(20))] * 16
    dsn = url.partition("?")[0]
    async with (
        asyncpg.create_pool(dsn, statement_cache_size=0, min_size=1, max_size=4) as pool,
        SessionManager(db_pool=pool, worker_beat=0.1, worker_ttl=2) as sessions,
    ):
        done = await asyncio.gather(*(work(sessions, f"own-{n}") for n in range(8)))
    assert done == [list(range(20))] * 8
    assert pooler.lent - before > 24 * 20 / 16  # batches of several agents are one transaction


async def test_pooler_is_detected(pooler: Pooler) -> None:
    """The URL need not mention it. Watchers poll, because LISTEN would be lost."""
    url = TestWorkerBehindAPooler.url.replace("?statement_cache_size=0", "")
    before = pooler.lent
    async with saveslot.open(url, namespace="unsaid") as one, saveslot.open(url, namespace="unsaid") as two:
        session = await one.create_session("agent", session_id="watched")
        watching = asyncio.ensure_future(watched(two, 8))
        await asyncio.gather(*(work(one, f"unsaid-{n}") for n in range(4)))
        for number in range(8):
            await one.checkpoint(session, "turn", {"n": number})
        assert await watching == list(range(2, 10))
    assert pooler.lent > before


async def watched(sessions: SessionManager, many: int) -> list[int]:
    seqs: list[int] = []
    async for event in sessions.watch("watched", after="0"):
        if event.seq > 1:
            seqs.append(event.seq)
        if len(seqs) == many:
            break
    return seqs


async def test_prepared_statements_need_pooler_support(pooler: Pooler) -> None:
    """Requesting them, by URL or a caller's pool, on a pooler without support raises with what to do."""
    dsn = TestWorkerBehindAPooler.url.partition("?")[0]

    async def lose() -> None:
        async with saveslot.open(f"{dsn}?statement_cache_size=100") as sessions:
            await work(sessions, "lost")

    with pytest.raises(Unavailable, match="statement_cache_size=0"):
        await lose()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool, SessionManager(db_pool=pool) as sessions:
        with pytest.raises(Unavailable, match="statement_cache_size=0"):
            await work(sessions, "lost-too")


async def test_worker_role_creates_no_tables(server: Postgres) -> None:
    """If there are none, the error says which role has to create them."""
    url = server.url.replace("//postgres@", "//worker@")
    async with saveslot.open(f"{url}&schema=elsewhere") as sessions:
        assert await sessions.count() == 0
        with pytest.raises(Forbidden, match="permission denied"):
            await sessions.create_session("tutor")


async def test_existing_schema_needs_no_create_right(server: Postgres) -> None:
    """A role that may create tables in the schema does so without the right to create schemas."""
    connection = await asyncpg.connect(server.url)
    await connection.execute(
        "create role tenant login; create schema ours; grant usage, create on schema ours to tenant"
    )
    await connection.close()
    async with saveslot.open(f"{server.url.replace('//postgres@', '//tenant@')}&schema=ours") as sessions:
        assert await work(sessions, "ours") == list(range(20))


@pytest.mark.parametrize("attributes", ["", "&target_session_attrs=primary", "pool"])
async def test_read_only_role_is_not_a_replica(server: Postgres, attributes: str) -> None:
    """The error says at once where read-only was set, and how to undo it."""
    connection = await asyncpg.connect(server.url)
    await connection.execute("""
        drop role if exists reader; create role reader login in role worker;
        alter role reader in database postgres set default_transaction_read_only = on""")
    await connection.close()
    url = server.url.replace("//postgres@", "//reader@")
    cure = "default_transaction_read_only is on; alter role reader in database postgres reset"

    async def write() -> None:
        if attributes == "pool":
            async with asyncpg.create_pool(url, min_size=1) as pool, SessionManager(db_pool=pool) as sessions:
                await sessions.create_session("agent")
        else:
            async with saveslot.open(f"{url}{attributes}") as sessions:
                await sessions.create_session("agent")

    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match=cure):
            await write()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://anna:hush-7@127.0.0.1:1/db", Unavailable),
        ("postgresql://127.0.0.1:1/db?user=anna&password=hush-7", Unavailable),
        ("postgresql://anna:hush-7/more@127.0.0.1:1/db", InvalidInput),
        ("postgresql://anna:hush-7[@127.0.0.1:1/db", InvalidInput),
        ("postgresql://anna:p@hush-7@127.0.0.1:1/db", InvalidInput),
    ],
)
async def test_errors_contain_no_password(url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging an error leaks no secret; an unreadable URL is not an outage, and is not retried."""
    monkeypatch.setattr("saveslot.stores.postgres.connection.PATIENCE", 0.3)
    with pytest.raises(error) as caught:
        await saveslot.open(url)
    assert "hush" not in "".join(traceback.format_exception(caught.value)).replace(url, "")


async def test_unescaped_at_in_a_password_is_reported() -> None:
    """The driver would take the text after it for a host."""
    with pytest.raises(InvalidInput, match="write @ as %40"):
        await saveslot.open("postgresql://anna:p@ss@127.0.0.1:1/db")
