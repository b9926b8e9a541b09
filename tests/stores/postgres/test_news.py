"""Watchers on one machine see appends from another: soon by NOTIFY, in any case by polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from saveslot.stack import Postgres
from saveslot.stores import postgres
from saveslot.stores.postgres import PostgresStore, news as postgres_news
from saveslot.testing import Pen

# By what they asked last: to listen or, after some silence, whether they are still connected.
LISTENERS = "select pid from pg_stat_activity where (query ilike 'listen%' or query = 'select')"
NEVER = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(options={"fsync": "off", "autovacuum": "off"}) as server:
        yield server


@pytest_asyncio.fixture
async def two(server: Postgres) -> AsyncGenerator[tuple[PostgresStore, PostgresStore]]:
    """Stores of two processes, as far as PostgreSQL can tell."""
    one, two = await PostgresStore.open(server.url), await PostgresStore.open(server.url)
    yield one, two
    await one.close()
    await two.close()


@pytest_asyncio.fixture
async def connection(server: Postgres) -> AsyncGenerator[Any]:
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()


async def listening(connection: Any, but: frozenset[int] = frozenset()) -> int:
    """The listening backend, once there is one."""
    async with asyncio.timeout(60):
        while True:
            for (pid,) in await connection.fetch(LISTENERS):
                if pid not in but:
                    return pid
            await asyncio.sleep(0.02)


async def begun(store: PostgresStore, name: str) -> Pen:
    pen = Pen("ns", name)
    await store.append([first := pen.begin()])
    pen.saw(first)
    return pen


async def test_watcher_is_woken_and_its_listener_replaced(
    two: tuple[PostgresStore, PostgresStore], connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that never polls gets each entry; after its connection broke, over a new one."""
    writer, watcher = two
    pen = await begun(writer, "woken")
    _, cursor = await watcher.events("ns", None, pen.key)
    gone: set[int] = set()
    monkeypatch.setattr(postgres_news, "PAUSE", 0.01)
    monkeypatch.setattr(postgres, "QUICK", NEVER)
    for _ in range(3):
        watching = asyncio.ensure_future(watcher.events("ns", cursor, pen.key, wait=NEVER))
        gone.add(pid := await listening(connection, frozenset(gone)))
        await asyncio.sleep(0.2)  # it has looked, and waits; if not, this proves less, and holds all the same
        await writer.append([group := pen.group()])
        pen.saw(group)
        async with asyncio.timeout(60):
            [event], cursor = await watching
        assert event.seq == pen.seq
        await connection.execute("select pg_terminate_backend($1)", pid)


async def test_idle_listener_stays_connected(
    two: tuple[PostgresStore, PostgresStore], connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checks its connection periodically, and keeps it."""
    monkeypatch.setattr(postgres_news, "SILENCE", 0.02)
    monkeypatch.setattr(postgres, "QUICK", NEVER)
    writer, watcher = two
    pen = await begun(writer, "silent")
    _, cursor = await watcher.events("ns", None, pen.key)
    watching = asyncio.ensure_future(watcher.events("ns", cursor, pen.key, wait=NEVER))
    await listening(connection)
    await asyncio.sleep(0.3)
    await writer.append([pen.group()])
    async with asyncio.timeout(60):
        [event], _ = await watching
    assert event.seq == 2


async def test_watch_has_no_gap_while_listeners_die(
    two: tuple[PostgresStore, PostgresStore], connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four writers on two machines and a listener that is killed repeatedly, each entry arrives once, in order."""
    monkeypatch.setattr(postgres_news, "PAUSE", 0.01)
    pens = [await begun(two[n % 2], f"steady-{n}") for n in range(4)]
    _, cursor = await two[1].events("ns", None)
    each = 60

    async def write(store: PostgresStore, pen: Pen) -> None:
        for _ in range(each):
            await store.append([group := pen.group()])
            pen.saw(group)

    async def kill() -> None:
        gone: set[int] = set()
        while True:
            gone.add(pid := await listening(connection, frozenset(gone)))
            await connection.execute("select pg_terminate_backend($1)", pid)

    killing = asyncio.ensure_future(kill())
    writing = asyncio.gather(*(write(two[n % 2], pen) for n, pen in enumerate(pens)))
    seen: dict[str, list[int]] = {pen.session_id: [] for pen in pens}
    while sum(map(len, seen.values())) < each * len(pens):
        events, cursor = await two[1].events("ns", cursor, wait=5, limit=7)
        for event in events:
            seen[event.session_id].append(event.seq)
    await writing
    killing.cancel()
    await asyncio.wait([killing])
    assert seen == {pen.session_id: list(range(2, each + 2)) for pen in pens}
    assert not (await two[1].events("ns", cursor))[0]


async def test_notifications_are_batched(server: Postgres, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first append notifies at once, those of the next moment together, and the rest when the store is closed."""
    monkeypatch.setattr(postgres_news, "QUIET", NEVER)
    notifications: list[str] = []
    more = asyncio.Event()

    def hear(*arguments: Any) -> None:
        notifications.append(arguments[-1])
        more.set()

    await connection.add_listener(postgres_news.channel("saveslot"), hear)
    store = await PostgresStore.open(server.url)
    pen = await begun(store, "busy")
    await more.wait()
    for _ in range(100):
        await store.append([group := pen.group()])
        pen.saw(group)
    await connection.execute("select 1")
    assert len(notifications) == 1
    more.clear()
    await store.close()
    await more.wait()
    await connection.execute("select 1")
    assert len(notifications) == 2
