"""A partition of the log for each month, made ahead by whoever may; nothing is wrong where nobody did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot import SessionManager
from saveslot.stack import Postgres
from saveslot.stores import postgres_partitions as partitions
from saveslot.stores.postgres import PostgresStore
from saveslot.testing import Pen


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(options={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return request.node.name.lower()[:60]


async def where(connection: Any, schema: str, key: bytes) -> set[str]:
    """The partitions that a session's entries lie in."""
    found = f"select distinct tableoid::regclass::text from {schema}.checkpoints where key = $1"  # noqa: S608
    return {name.rpartition(".")[2] for (name,) in await connection.fetch(found, key)}


async def dropped(connection: Any, schema: str) -> None:
    """As if nobody had made any."""
    for name in (await partitions.look(connection, schema)).months:
        await connection.execute(f"drop table {schema}.{name}")


async def test_a_session_lies_in_the_month_that_it_was_made_in(server: Postgres, schema: str) -> None:
    """With all of its entries; one from before lies in the default partition, and is like any other."""
    store = await PostgresStore.open(f"{server.url}&schema={schema}")
    connection = await asyncpg.connect(server.url)
    new, old = Pen("ns", "new"), Pen("ns", "old", key=bytes.fromhex("0180" + "00" * 14))
    for pen in (new, old):
        await store.append([first := pen.begin()])
        pen.saw(first)
        await store.append([pen.group(3)])
        assert [entry.seq for entry in await store.entries(pen.key)] == [1, 2, 3, 4]
    made = datetime.fromtimestamp(int.from_bytes(new.key[:6], "big") / 1000, UTC)
    assert await where(connection, schema, new.key) == {partitions.named(made)}
    assert await where(connection, schema, old.key) == {"checkpoints_default"}
    assert len((await partitions.look(connection, schema)).months) == partitions.AHEAD
    await connection.close()
    await store.close()


async def test_many_make_them_at_once_while_others_write(server: Postgres, schema: str) -> None:
    """Each is made once, no append fails, and the month that has begun in the default partition stays there."""
    url = f"{server.url}&schema={schema}"
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
    found = await partitions.look(connection, schema)
    assert len(found.due) == partitions.AHEAD
    while len(found.due) > 1:  # busy writers may be in the way at first
        await asyncio.gather(*(store.tend() for store in stores))
        found = await partitions.look(connection, schema)
    done.set()
    for pen, seq in zip(pens, await writing, strict=True):
        assert await where(connection, schema, pen.key) == {"checkpoints_default"}
        assert len(await stores[1].entries(pen.key)) == seq
    assert partitions.named(found.due[0]) == partitions.named(datetime.now(UTC))
    await connection.close()
    for store in stores:
        await store.close()


async def test_a_keeper_makes_them(server: Postgres, schema: str) -> None:
    """Also with a pool of the caller's, in the schema that they name."""
    async with asyncpg.create_pool(server.url, min_size=1, max_size=3) as pool:
        async with SessionManager(db_pool=pool, schema=schema, worker_beat=0.05, worker_ttl=2) as sessions:
            await sessions.count()
            async with pool.acquire() as connection:
                await dropped(connection, schema)
                await sessions.keeper.start(stale_after=timedelta(days=1))
                while (await partitions.look(connection, schema)).due:  # noqa: ASYNC110  (of another process)
                    await asyncio.sleep(0.05)
        assert await pool.fetchval(f"select count(*) from {schema}.sessions") == 0  # noqa: S608


async def test_who_does_not_own_the_tables_leaves_them(server: Postgres, schema: str) -> None:
    """And works all the same."""
    url = f"{server.url}&schema={schema}"
    await (await saveslot.open(url)).close()
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
