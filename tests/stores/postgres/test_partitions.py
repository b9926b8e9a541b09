"""One partition of the log per month, created ahead by any role that may; missing ones are not an error."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot import SessionManager
from saveslot.stores.postgres import PostgresStore, partitions
from saveslot.testing import Pen
from tests.harness.servers import Database, make_tables


@pytest.fixture(scope="module")
def server(database: Database) -> Database:
    return database


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return request.node.name.lower()[:60]


async def where(connection: Any, schema: str, key: bytes) -> set[str]:
    """The partitions that hold a session's entries."""
    result = f"select distinct tableoid::regclass::text from {schema}.checkpoints where key = $1"  # noqa: S608
    return {name.rpartition(".")[2] for (name,) in await connection.fetch(result, key)}


async def dropped(connection: Any, schema: str) -> None:
    """Drop the partitions, as if none had been created."""
    for name in (await partitions.look(connection, schema)).months:
        await connection.execute(f"drop table {schema}.{name}")


async def test_session_is_in_its_creation_month(server: Database, schema: str) -> None:
    """All its entries are there; an earlier session is in the default partition, and works like any other."""
    store = await PostgresStore.open(f"{server.url}&schema={schema}")
    connection = await asyncpg.connect(server.url)
    new, old = Pen("ns", "new"), Pen("ns", "old", key=bytes.fromhex("0180" + "00" * 14))
    for pen in (new, old):
        await store.append([first := pen.begin()])
        pen.saw(first)
        await store.append([pen.group(3)])
        assert [entry.seq for entry in await store.entries(pen.key)] == [1, 2, 3, 4]
    result = datetime.fromtimestamp(int.from_bytes(new.key[:6], "big") / 1000, UTC)
    assert await where(connection, schema, new.key) == {partitions.named(result)}
    assert await where(connection, schema, old.key) == {"checkpoints_default"}
    assert len((await partitions.look(connection, schema)).months) == partitions.AHEAD
    await connection.close()
    await store.close()


async def test_concurrent_partition_creation_during_writes(server: Database, schema: str) -> None:
    """Each is created once, no append fails, and a month that began in the default partition stays there."""
    url = f"{server.url}&schema={schema}"
    await make_tables(url)
    stores = [await PostgresStore.open(url) for _ in range(6)]
    connection = await asyncpg.connect(server.url)
    await dropped(connection, schema)
    pens = [Pen("ns", f"s{n}") for n in range(4)]
    await stores[0].append([pen.begin() for pen in pens])
    for pen in pens:
        [head] = await stores[0].heads([pen.key])
        pen.seq, pen.prev = head.last.seq, head.last.append_id
    done = asyncio.Event()

    async def write(pen: Pen) -> int:
        while not done.is_set():
            [verdict] = await stores[0].append([group := pen.group()])
            assert verdict.outcome == "appended"
            pen.saw(group)
        return pen.seq

    writing = asyncio.gather(*(write(pen) for pen in pens))
    result = await partitions.look(connection, schema)
    assert len(result.due) == partitions.AHEAD
    while len(result.due) > 1:  # busy writers may be in the way at first
        await asyncio.gather(*(store.tend() for store in stores))
        result = await partitions.look(connection, schema)
    done.set()
    for pen, seq in zip(pens, await writing, strict=True):
        assert await where(connection, schema, pen.key) == {"checkpoints_default"}
        assert len(await stores[1].entries(pen.key)) == seq
    assert partitions.named(result.due[0]) == partitions.named(datetime.now(UTC))
    await connection.close()
    for store in stores:
        await store.close()


async def test_keeper_creates_partitions(server: Database, schema: str) -> None:
    """It also does so with a caller's pool, in the schema they name."""
    async with asyncpg.create_pool(server.url, min_size=1, max_size=3) as pool:
        async with SessionManager(db_pool=pool, schema=schema, worker_beat=0.05, worker_ttl=2) as sessions:
            await sessions.keeper.tend()
            async with pool.acquire() as connection:
                await dropped(connection, schema)
                await sessions.keeper.start(stale_after=timedelta(days=1))
                while (await partitions.look(connection, schema)).due:  # noqa: ASYNC110  (of another process)
                    await asyncio.sleep(0.05)
        assert await pool.fetchval(f"select count(*) from {schema}.sessions") == 0  # noqa: S608


async def test_role_without_ownership_skips_partitions(server: Database, schema: str) -> None:
    """A role that does not own the tables creates none, and works all the same."""
    url = f"{server.url}&schema={schema}"
    await make_tables(url)
    connection = await asyncpg.connect(server.url)
    await dropped(connection, schema)
    await connection.execute(f"""
        create role guest login;
        grant usage on schema {schema} to guest;
        grant select, insert, update, delete on all tables in schema {schema} to guest;""")
    async with saveslot.open(url.replace("//postgres@", "//guest@")) as sessions:
        session = await sessions.create_session("tutor")
        assert (await sessions.checkpoint(session, "asked", {"n": 1})).data == {"n": 1}
    assert len((await partitions.look(connection, schema)).due) == partitions.AHEAD
    await connection.close()
