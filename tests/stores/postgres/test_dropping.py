"""Only empty partitions are dropped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from saveslot.stores.postgres import PostgresStore
from saveslot.stores.postgres.dropping import drop_empty
from saveslot.testing import Clock
from saveslot.testing.conformance.desk import Desk
from saveslot.testing.pen import Pen
from tests.harness.servers import Database, make_tables


@pytest.fixture(scope="module")
def server(database: Database) -> Database:
    return database


def key(month: int) -> bytes:
    return (int(datetime(2020, month, 15, tzinfo=UTC).timestamp()) * 1000).to_bytes(6, "big") + bytes(10)


async def test_only_empty_past_partitions_are_dropped(server: Database) -> None:
    """A partition with a session stays until that is purged; this month's and last month's stay, empty or not."""
    await make_tables(server.url)
    store = await PostgresStore.open(server.url)
    connection = await asyncpg.connect(server.url)
    for month in range(1, 7):
        first, end = (key(month)[:6].hex()[:6] for month in (month, month + 1))
        await connection.execute(
            f"create table saveslot.checkpoints_2020_{month:02} partition of saveslot.checkpoints "
            rf"for values from ('\x{first}') to ('\x{end}')"
        )
    desk = Desk(store, store, Clock())
    pen = Pen(desk.namespace, "old", key(3))
    await desk.land(pen, pen.begin(3))
    june = datetime(2020, 6, 20, tzinfo=UTC)
    assert await drop_empty(connection, "saveslot", june) == [f"checkpoints_2020_{month:02}" for month in (1, 2, 4)]
    assert len(await desk.log(pen)) == 3
    assert await drop_empty(connection, "saveslot", june) == []
    await desk.delete(pen)
    await store.purge([pen.key])

    other = await asyncpg.connect(server.url)
    async with other.transaction():  # another transaction is writing: not now
        await other.execute("lock table saveslot.checkpoints in row exclusive mode")
        assert await drop_empty(connection, "saveslot", june) == []
    both = await asyncio.gather(*(drop_empty(one, "saveslot", june) for one in (connection, other)))
    assert sorted(both) == [[], ["checkpoints_2020_03"]]
    await desk.create("new")
    for one in (connection, other):
        await one.close()
    await store.close()
