"""The feed on another server: after a failover, a dump, a copy. Entries are never left out without an error."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot import HistoryLost, SessionManager
from saveslot.stack import Postgres
from saveslot.stores.postgres import PostgresStore
from saveslot.testing.pen import Pen
from saveslot.values.log import Event
from tests.harness.proxy import Proxy


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres(options={"fsync": "off"}) as running:  # processes die here, machines do not
        yield running


async def run(server: Postgres, *statements: str) -> Any:
    connection = await asyncpg.connect(server.url)
    try:
        for statement in statements:
            value = await connection.fetchval(statement)
        return value
    finally:
        await connection.close()


async def spend(server: Postgres, count: int) -> None:
    """Use so many numbers of transactions."""
    await run(
        server, "create or replace procedure spend(n int) language plpgsql as $$ begin for i in 1..n loop "
        "perform pg_current_xact_id(); commit; end loop; end $$", f"call spend({count})",
    )  # fmt: skip


def dumped(server: Postgres, folder: Path) -> Path:
    file = folder / "dump.sql"
    with file.open("wb") as target:
        subprocess.run([server._bin / "pg_dump", "-n", "saveslot", "-d", server.url], stdout=target, check=True)  # noqa: SLF001
    return file


def restored(server: Postgres, file: Path) -> None:
    command = [server._bin / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.url, "-f", file]  # noqa: SLF001
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


async def numbered(store: PostgresStore, pen: Pen, count: int) -> None:
    for _ in range(count):
        await store.append([group := pen.group()])
        pen.saw(group)


async def created(store: PostgresStore, name: str) -> Pen:
    pen = Pen("ns", name)
    await store.append([group := pen.begin()])
    pen.saw(group)
    return pen


async def all_after(store: PostgresStore, cursor: str | None, key: bytes | None = None) -> list[Event]:
    events: list[Event] = []
    while True:
        page, cursor = await store.events("ns", cursor, key, limit=3)
        if not page:
            return events
        events += page


def seen(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.session_id, event.seq) for event in events]


@pytest.mark.parametrize("unnoticed", [0, 4])
async def test_dump_restored_into_a_server_with_lower_numbers(server, tmp_path, unnoticed):
    """New entries come after the restored ones, in order, also those written before any process noticed the move."""
    await spend(server, 3000)
    old = await PostgresStore.open(server.url)
    pen, other = await created(old, "a"), await created(old, "b")
    await numbered(old, pen, 5)
    before = await all_after(old, "0")
    _, end = await old.events("ns", None)
    file = dumped(server, tmp_path)
    await numbered(old, other, 2)  # not in the dump
    _, later = await old.events("ns", None)
    await old.close()
    with Postgres(options={"fsync": "off"}) as target:
        store = await PostgresStore.open(target.url)
        await created(store, "warm")
        await run(target, "drop schema saveslot cascade")
        restored(target, file)
        expected = seen(before)
        if unnoticed:  # by connections that have been open since before: a pooler's clients see no other server
            await numbered(store, pen, unnoticed)
            expected += [("a", pen.seq - n) for n in reversed(range(unnoticed))]
        else:
            await store.close()
            store = await PostgresStore.open(target.url)
        assert seen(await all_after(store, "0")) == expected
        await numbered(store, pen, 3)
        expected += [("a", pen.seq - n) for n in (2, 1, 0)]
        for _ in range(2):
            assert seen(await all_after(store, "0")) == expected
            for n, event in enumerate(before):
                assert seen(await all_after(store, event.cursor)) == expected[n + 1 :]
                assert seen(await all_after(store, event.cursor, pen.key)) == [
                    x for x in expected[n + 1 :] if x[0] == "a"
                ]
            assert seen(await all_after(store, end)) == expected[len(before) :]
            for key in (None, pen.key):
                with pytest.raises(HistoryLost, match="is gone"):
                    await store.events("ns", later, key)
            await store.close()
            store = await PostgresStore.open(target.url)
        await spend(target, 4000)  # its numbers reach and pass those of the dump
        await numbered(store, pen, 2)
        expected += [("a", pen.seq - n) for n in (1, 0)]
        assert seen(await all_after(store, "0")) == expected
        await store.close()


async def test_purged_entry_of_a_cursor_is_not_lost(server):
    """On the same server a cursor whose entry was purged goes on."""
    store = await PostgresStore.open(server.url)
    pen, gone = await created(store, "a"), await created(store, "b")
    [*_, event] = await all_after(store, "0")
    assert event.session_id == "b"
    await store.append([gone.delete()])
    assert await store.purge([gone.key]) == [2]
    await numbered(store, pen, 2)
    assert seen(await all_after(store, event.cursor)) == [("a", 2), ("a", 3)]
    assert seen(await all_after(store, event.cursor, gone.key)) == []
    await store.close()


async def following(sessions: SessionManager, id: str | None, events: list[Event]) -> None:
    async for event in sessions.watch(id, after="0"):
        events.append(event)  # noqa: PERF401  (while it goes on)


async def until(true: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(120):
        while not await true():  # noqa: ASYNC110  (it asks a server)
            await asyncio.sleep(0.02)


@pytest.mark.faults
async def test_failover_that_loses_entries_is_told_to_their_watchers(server):
    """An asynchronous replica lacks the last entries: a watcher that saw them gets HistoryLost, another one all."""
    with Proxy(server.url) as link, server.replica(link.url, options={"fsync": "off"}) as replica:
        url = f"postgresql://postgres@/postgres?host={server.folder},{replica.folder}"
        async with saveslot.open(url) as sessions, saveslot.open(url) as behind:
            for name in ("a", "b"):
                await sessions.create_session("agent", session_id=name)
                await sessions.checkpoint(name, "kept", {"n": 1})
            caught = "select count(*) = 1 from pg_stat_replication where replay_lsn = pg_current_wal_lsn()"
            await until(lambda: run(server, caught))
            watched: dict[str | None, list[Event]] = {None: [], "a": [], "b": []}
            watching = {name: asyncio.create_task(following(sessions, name, watched[name])) for name in watched}
            old = [event async for event in _taken(behind, 4)]
            link.drop()  # and the primary does not learn of it
            await spend(server, 30)
            for n in range(5):
                await sessions.checkpoint("a", "lost", {"n": n})

            async def all_seen() -> bool:
                return [len(events) for events in watched.values()] == [9, 7, 2]

            await until(all_seen)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(replica.promote)
            async with saveslot.open(url) as writer:
                for n in range(3):
                    await writer.checkpoint("b", "new", {"n": n})
                for name in (None, "a"):
                    with pytest.raises(HistoryLost):
                        await asyncio.wait_for(watching[name], 60)
                for n in range(9):
                    await writer.checkpoint("a", "new", {"n": n})
                told = [event async for event in _taken(behind, 12, old[-1].cursor)]
                assert seen(told) == [*[("b", 3 + n) for n in range(3)], *[("a", 3 + n) for n in range(9)]]

                async def b_seen() -> bool:
                    return len(watched["b"]) == 5

                await until(b_seen)
                with pytest.raises(HistoryLost):
                    await anext(behind.watch("a", after=watched["a"][-1].cursor))
                everything = [event async for event in _taken(writer, 16)]
                assert seen(everything)[4:] == seen(told)
            watching["b"].cancel()


async def _taken(sessions: SessionManager, count: int, after: str = "0") -> Any:
    events = sessions.watch(after=after)
    for _ in range(count):
        yield await anext(events)


@pytest.mark.faults
async def test_failover_that_loses_nothing_is_not_noticed_by_watchers(server):
    """With a synchronous replica a living watcher gets each entry once, before and after."""
    replica = server.replica(options={"fsync": "off"})
    with replica:
        await run(server, "alter system set synchronous_standby_names = '*'")
        await run(server, "select pg_reload_conf()")
        sync = "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'"
        await until(lambda: run(server, sync))
        url = f"postgresql://postgres@/postgres?host={server.folder},{replica.folder}"
        async with saveslot.open(url) as sessions:
            for name in ("a", "b"):
                await sessions.create_session("agent", session_id=name)
            events: list[Event] = []
            own: list[Event] = []
            tasks = [asyncio.create_task(following(sessions, *what)) for what in ((None, events), ("a", own))]
            for n in range(10):
                await sessions.checkpoint("a", "turn", {"n": n})
                if n == 4:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(replica.promote)
                await sessions.checkpoint("b", "turn", {"n": n})

            async def all_seen() -> bool:
                for task in tasks:
                    if task.done():
                        task.result()
                return len(events) >= 22 and len(own) >= 11

            await until(all_seen)
            assert sorted(seen(events)) == [(name, n) for name in "ab" for n in range(1, 12)]
            assert seen(own) == [("a", n) for n in range(1, 12)]
            for task in tasks:
                task.cancel()


async def test_tables_can_be_published(server):
    """Under a publication FOR ALL TABLES, Saveslot writes, migrates and continues the feed."""
    await run(server, "alter system set wal_level = logical")
    server.stop()
    server.start()
    await run(server, "create publication everything for all tables")
    for _ in range(2):
        async with saveslot.open(server.url) as sessions:
            await sessions.create_session("agent", session_id="s", exist_ok=True)
            await sessions.checkpoint("s", "x", {})
        await run(server, "update saveslot.format set tx = '0'")  # as if it was copied
    async with saveslot.open(server.url) as sessions:
        await sessions.delete_session("s")
        await sessions.gc(grace=0)
