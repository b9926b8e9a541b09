"""The network to PostgreSQL fails: every await ends, nothing is lost or doubled, dead connections are replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot import SessionManager, Unavailable
from saveslot.stack import Postgres, Valkey
from saveslot.stores.postgres import PostgresStore, connection as postgres_connection
from saveslot.stores.wire.batches import LANES, Batches
from saveslot.stores.wire.joining import Joining
from saveslot.stores.wire.metrics import Counters
from saveslot.testing import Pen
from saveslot.values.log import Group, Outcome, Verdict, Wanted
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.faults

# A hanging call hangs forever; any other ends long before this on the slowest machine.
HANGS = 120


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def way(server: Postgres) -> Iterator[Proxy]:
    with Proxy(server.url) as way:
        yield way


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers do not wait long for a silent connection; all other timeouts are the real ones."""
    monkeypatch.setattr(postgres_connection, "SILENCE", 0.3)
    monkeypatch.setattr(postgres_connection, "FAREWELL", 0.2)
    monkeypatch.setattr(postgres_connection, "BEAT", 0.5)


Patience = Callable[[float], None]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """To be short of, while nothing can succeed anyway."""
    return lambda seconds: monkeypatch.setattr(postgres_connection, "PATIENCE", seconds)


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(HANGS):
        while True:
            if value := await true():
                return value
            await asyncio.sleep(0.01)


async def first(events: Any) -> Any:
    return await anext(aiter(events))


async def test_cancellation_is_immediate(server: Postgres, way: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled caller does not wait, even for a silent server; its write still lands, once."""
    monkeypatch.setattr(postgres_connection, "SILENCE", 2 * HANGS)
    monkeypatch.setattr(postgres_connection, "FAREWELL", 2 * HANGS)
    store, eye = await PostgresStore.open(way.url), await PostgresStore.open(server.url)
    pen = Pen("cancelled", "alone")
    await store.append([group := pen.begin()])
    pen.saw(group)
    way.drop()
    appending = asyncio.ensure_future(store.append([late := pen.group()]))
    await asyncio.sleep(0.1)
    appending.cancel()
    async with asyncio.timeout(HANGS):
        with pytest.raises(asyncio.CancelledError):
            await appending
    way.heal()
    way.cut()  # the silent connections end
    await until(lambda: eye.entries(pen.key, Wanted([(late.entries[0].seq,) * 2])))
    assert [entry.append_id for entry in await eye.entries(pen.key)] == [pen.prev, late.entries[0].append_id]
    await store.close()
    await eye.close()


@pytest.mark.parametrize("fault", ["drop", "lose_answers", "refuse"])
async def test_every_await_ends(server: Postgres, way: Proxy, patience: Patience, fault: str) -> None:
    """Every call made while no answer arrives ends in Unavailable, close too, and nothing is doubled."""
    async with asyncio.timeout(HANGS):
        sessions = await saveslot.open(way.url, namespace=fault, worker_beat=0.2, worker_ttl=1)
        session = await sessions.create_session("agent", session_id="s")
        other = await sessions.create_session("agent", session_id="other")
        held = await sessions.take("other")
        getattr(way, fault)()
        patience(0.7)
        calls: dict[str, Awaitable[Any]] = {
            "checkpoint": sessions.checkpoint(session, "turn", {"number": 1}),
            "create": sessions.create_session("agent", session_id="new"),
            "get": sessions.get_session("s"),
            "history": sessions.history("s"),
            "find": sessions.find(),
            "count": sessions.count(),
            "stats": sessions.stats(),
            "watch": first(sessions.watch("s")),
            "hold": sessions.take("s"),
            "claim": sessions.claim(),
            "held": held.checkpoint("turn", {"number": 1}),
            "delete": sessions.delete_session(other.session_id),
        }
        answers = dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))
        assert {what: type(error) for what, error in answers.items()} == dict.fromkeys(calls, Unavailable)
        await sessions.close()
        way.heal()
        patience(30)
        async with saveslot.open(way.url, namespace=fault) as again:
            history = await again.history("s")
            assert [checkpoint.seq for checkpoint in history] == list(range(1, len(history) + 1))
            assert [checkpoint.data for checkpoint in history if checkpoint.name == "turn"] in ([], [{"number": 1}])


@pytest.mark.parametrize("noticed", ["cut", "silent"])
async def test_retry_after_a_lost_answer_is_already(server: Postgres, way: Proxy, noticed: str) -> None:
    """A write whose answer was lost returns `already`, whether the connection broke or stayed silent."""
    store = await PostgresStore.open(way.url)
    try:
        pen = Pen("lost", noticed)
        for write in (
            pen.begin,
            *[pen.group] * 12,
        ):  # by then the connection knows the statement, and only sends values
            group = write()
            assert [verdict.outcome for verdict in await store.append([group])] == [Outcome.APPENDED]
            pen.saw(group)
        group = pen.group()
        way.lose_answers()
        call = asyncio.ensure_future(store.append([group]))
        direct = await asyncpg.connect(server.url)
        there = "select count(*) from saveslot.checkpoints where append_id = $1"
        await until(lambda: direct.fetchval(there, group.entries[0].append_id))

        async def unheard() -> bool:
            return way.lost > 0

        await until(unheard)
        way.heal()
        if noticed == "cut":
            way.cut()
        async with asyncio.timeout(HANGS):
            assert [verdict.outcome for verdict in await call] == [Outcome.ALREADY]
        assert await direct.fetchval(there, group.entries[0].append_id) == 1
        await direct.close()
    finally:
        await store.close()


async def saved(sessions: SessionManager, session_id: str, number: int) -> int:
    return (await sessions.checkpoint(session_id, "turn", {"number": number})).seq


async def test_silently_dead_connections_are_replaced(way: Proxy) -> None:
    """After one silence no connection of that time is trusted; all calls succeed, on new ones."""
    async with saveslot.open(way.url, namespace="silent") as sessions:
        ids = [(await sessions.create_session("agent")).session_id for _ in range(20)]
        way.delay(0.02)  # so that they all come to use
        await asyncio.gather(*(sessions.history(session_id) for session_id in ids))
        way.heal()
        before = way.accepted
        way.forget()
        async with asyncio.timeout(HANGS):
            for number in range(2):
                assert await asyncio.gather(*(saved(sessions, name, number) for name in ids)) == [number + 2] * 20
                histories = await asyncio.gather(*(sessions.history(name, name="turn") for name in ids))
                assert [len(history) for history in histories] == [number + 1] * 20
        assert way.accepted > before


async def test_silently_dead_callers_pool_is_replaced(way: Proxy) -> None:
    """The same holds for a caller's connections: the silent one is dropped, and the next one is new."""
    async with asyncpg.create_pool(way.url, min_size=1, max_size=1) as pool, SessionManager(db_pool=pool) as sessions:
        session = await sessions.create_session("agent")
        way.forget()
        async with asyncio.timeout(HANGS):
            assert await saved(sessions, session.session_id, 1) == 2


async def test_heartbeat_moves_to_a_new_connection(way: Proxy) -> None:
    """When a worker's connection goes silent, the next heartbeat uses a new one, and the session stays held."""
    async with saveslot.open(way.url, namespace="beats", worker_beat=0.2, worker_ttl=3) as sessions:
        session = await sessions.create_session("agent")
        async with sessions.hold(session) as held:
            way.forget()
            beats = sessions.worker["beats"] + 2

            async def beaten() -> bool:
                return sessions.worker["beats"] >= beats

            await until(beaten)
            assert not held.lost.is_set()
            await held.checkpoint("turn", {"number": 1})


async def test_refused_connections_are_retried(way: Proxy) -> None:
    """While the server refuses connections the call retries, and succeeds as soon as it can."""
    async with saveslot.open(way.url, namespace="again") as sessions:
        session = await sessions.create_session("agent")
        way.refuse()
        before = way.accepted
        checkpoint = asyncio.ensure_future(sessions.checkpoint(session, "turn", {"number": 1}))

        async def knocked() -> bool:
            return way.accepted >= before + 5

        await until(knocked)
        way.heal()
        async with asyncio.timeout(HANGS):
            assert (await checkpoint).seq == 2


async def test_pool_keeps_its_limit(server: Postgres, way: Proxy) -> None:
    """Forty agents on a slow, repeatedly cut network never use more connections than the pool allows."""
    direct = await asyncpg.connect(server.url)
    counted = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    async with saveslot.open(way.url, namespace="limit") as sessions:
        ids = [(await sessions.create_session("agent")).session_id for _ in range(40)]
        way.delay(0.01)

        async def work(session_id: str) -> int:
            for number in range(2):
                await saved(sessions, session_id, number)
                await sessions.history(session_id)
            return len(await sessions.history(session_id, name="turn"))

        working = asyncio.gather(*map(work, ids))
        seen: list[int] = []
        while not working.done():
            seen.append(await direct.fetchval(counted))
            if len(seen) in {5, 10, 15}:
                way.cut()
            await asyncio.sleep(0.02)
        async with asyncio.timeout(HANGS):
            assert await working == [2] * 40
        # Proxy and server may need a moment to notice that a connection is gone, hence the cuts' own.
        assert 1 < way.most <= 2 * postgres_connection.POOL
        assert max(seen) <= 2 * postgres_connection.POOL
        assert seen[2] <= postgres_connection.POOL
    await until(lambda: gone(direct, counted))
    await direct.close()


async def gone(direct: Any, counted: str) -> bool:
    return await direct.fetchval(counted) == 0


async def test_waiters_fail_together_in_an_outage() -> None:
    """However many callers wait, none waits for several patiences in a row: two queries are sent, and all get the
    error.
    """
    collected: list[int] = []
    over = asyncio.Event()

    async def away(items: Sequence[Any]) -> list[Any]:
        collected.append(len(items))
        await over.wait()
        raise Unavailable("away")

    groups: list[Group] = [Pen("n", f"s{n}").begin() for n in range(2000)]
    batches, joining = Batches(away, Counters()), Joining(away, Counters())
    landing: list[Awaitable[list[Verdict]]] = [batches.append([group]) for group in groups]
    looking = [joining.answers([group.key]) for group in groups]
    clock = asyncio.get_running_loop().time
    began = clock()
    waiting = asyncio.gather(*landing, *looking, return_exceptions=True)

    async def full() -> bool:
        return len(collected) == 2 * LANES

    await until(full)
    await asyncio.sleep(2 * (clock() - began))  # all of them wait for most of the outage
    over.set()
    async with asyncio.timeout(HANGS):
        assert {type(error) for error in await waiting} == {Unavailable}
    assert len(collected) <= 2 * LANES + 2  # and one of each for who came when the answer was there already
    await batches.close()


async def test_valkey_on_a_failing_network(tmp_path) -> None:
    """With the same proxy in front of Valkey agents continue, and Valkey is used again afterwards."""
    with Valkey() as server, Proxy(server.url) as way:
        async with saveslot.open(f"sqlite:///{tmp_path / 's.db'}", hot=way.url) as sessions:
            session = await sessions.create_session("agent")
            number = 0
            for fault in (way.heal, way.drop, way.lose_answers, way.refuse, way.forget, way.heal):
                fault()
                for _ in range(3):
                    number += 1
                    state = {"number": number, "text": os.urandom(4000).hex()}  # too much to come with its row
                    await sessions.checkpoint(session, "turn", state)
                    [last] = await sessions.history(session.session_id, limit=1)
                    assert last.data == state

            async def used() -> bool:
                await sessions.history(session.session_id, limit=1)
                return bool(way.accepted)

            await until(used)
