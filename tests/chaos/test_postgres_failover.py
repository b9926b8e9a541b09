"""A replica takes over: synchronous replication loses nothing acknowledged; asynchronous losses are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import asyncpg
import pytest

import saveslot
from saveslot import HistoryLost, SessionManager, Unavailable
from saveslot.stack import Postgres
from saveslot.stores.postgres import connection as postgres_connection
from tests.harness.proxy import Proxy

HANGS = 120
AGENTS = 16


class Pair(NamedTuple):
    primary: Postgres
    replica: Postgres
    first: Proxy  # the way of agents to each
    second: Proxy
    link: Proxy  # the replica's way to the primary

    @property
    def url(self) -> str:
        """Both hosts. Which one takes writes is asked of them, without a word about it here."""
        return self.first.url.replace(f":{self.first.port}", f":{self.first.port},127.0.0.1:{self.second.port}")


@pytest.fixture
def pair() -> Iterator[Pair]:
    quick = {"fsync": "off"}  # processes die here, machines do not
    with ExitStack() as stack:
        primary = stack.enter_context(Postgres(options=quick))
        link = stack.enter_context(Proxy(primary.url))
        replica = stack.enter_context(primary.replica(link.url, options=quick))
        ways = [stack.enter_context(Proxy(server.url)) for server in (primary, replica)]
        yield Pair(primary, replica, *ways, link)


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(HANGS):
        while True:
            if value := await true():
                return value
            await asyncio.sleep(0.01)


async def result_of(server: Postgres, statement: str) -> Any:
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def synchronous(primary: Postgres) -> None:
    """From now on a commit is acknowledged when the replica has it."""
    await result_of(primary, "alter system set synchronous_standby_names = '*'")
    await result_of(primary, "select pg_reload_conf()")
    await until(lambda: result_of(primary, "select count(*) from pg_stat_replication where sync_state = 'sync'"))


async def caught_up(primary: Postgres) -> None:
    behind = "select count(*) = 1 from pg_stat_replication where replay_lsn = pg_current_wal_lsn()"
    await until(lambda: result_of(primary, behind))


class Agents:
    """Each saves its numbers as quickly as it can, and remembers which were acknowledged."""

    def __init__(self, sessions: SessionManager, ids: list[str]) -> None:
        self.acknowledged: dict[str, list[int]] = {session_id: [] for session_id in ids}
        self._sessions = sessions
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._work(session_id)) for session_id in ids]

    async def _work(self, session_id: str) -> None:
        while not self._over.is_set():
            number = len(self.acknowledged[session_id])
            try:
                await self._sessions.checkpoint(session_id, "turn", {"number": number})
            except Unavailable:
                continue  # the same again: it is stored once
            self.acknowledged[session_id].append(number)

    async def further(self, by: int) -> None:
        """Wait until each has that many more acknowledged writes."""
        goal = {session_id: len(answer) + by for session_id, answer in self.acknowledged.items()}

        async def reached() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(len(answer) >= goal[session_id] for session_id, answer in self.acknowledged.items())

        await until(reached)

    async def end(self) -> None:
        self._over.set()
        async with asyncio.timeout(HANGS):
            await asyncio.gather(*self._tasks)


@pytest.mark.faults
async def test_synchronous_replication_loses_nothing(pair: Pair) -> None:
    """The primary dies by kill -9 under load, the replica takes over; agents continue there with all acknowledged data.

    The former primary comes back as a replica, first among the hosts, and nothing is written to it.
    """
    async with saveslot.open(pair.url) as sessions:
        await synchronous(pair.primary)
        ids = [(await sessions.create_session("agent")).session_id for _ in range(AGENTS)]
        agents = Agents(sessions, ids)
        await agents.further(5)
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.replica.promote)
        await agents.further(5)
        pair.primary.demote()
        await asyncio.to_thread(pair.primary.start)
        pair.second.cut()  # everyone has to connect again
        await agents.further(5)
        await agents.end()
        async with saveslot.open(pair.url) as others:
            for session_id, answer in agents.acknowledged.items():
                for reader in (sessions, others):
                    history = await reader.history(session_id, name="turn")
                    assert [checkpoint.data["number"] for checkpoint in history] == answer
                    assert [checkpoint.seq for checkpoint in history] == list(range(2, len(answer) + 2))


@pytest.mark.faults
async def test_asynchronous_losses_are_reported(pair: Pair) -> None:
    """The replica lacks the last entries: callers that got them acknowledged get HistoryLost, others continue."""
    async with saveslot.open(pair.url, worker_beat=1, worker_ttl=60) as sessions:
        lost, kept, mixed = [
            await sessions.create_session("agent", session_id=name) for name in ("lost", "kept", "mixed")
        ]
        held = await sessions.take((await sessions.create_session("agent", session_id="held")).session_id)
        for session in (lost, kept, mixed):
            await sessions.checkpoint(session, "turn", {"number": 1})
        await held.checkpoint("turn", {"number": 1})
        late = await sessions.create_session("agent", session_id="late")
        await caught_up(pair.primary)
        pair.link.drop()  # and the primary does not learn of it
        taken = await sessions.take(late)
        for number in (2, 3):
            await sessions.checkpoint(lost, "turn", {"number": number})
            await sessions.checkpoint(mixed, "turn", {"number": number})
            await held.checkpoint("turn", {"number": number})
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.replica.promote)
        async with saveslot.open(pair.url) as others:  # a writer that never saw the lost entries writes over them
            for number in (20, 30, 40):
                await others.checkpoint("mixed", "turn", {"number": number})
            for name in ("lost", "mixed"):
                with pytest.raises(HistoryLost, match="was acknowledged, is no longer in the database"):
                    await sessions.checkpoint(name, "turn", {"number": 4})
            for holder in (held, taken):  # of the second one the new primary does not know that it holds anything
                with pytest.raises(HistoryLost):
                    await holder.checkpoint("turn", {"number": 4})
            await sessions.checkpoint(kept, "turn", {"number": 2})

            async def numbers(reader: SessionManager, name: str) -> list[int]:
                return [checkpoint.data["number"] for checkpoint in await reader.history(name, name="turn")]

            assert await numbers(others, "lost") == [1]
            assert await numbers(others, "mixed") == [1, 20, 30, 40]
            assert await numbers(others, "held") == [1]
            assert await numbers(others, "kept") == [1, 2]
            # A writer that got the error and has read again continues from what there is.
            session = await sessions.get_session("lost")
            assert session is not None
            await sessions.checkpoint(session, "turn", {"number": 2})
            assert await numbers(others, "lost") == [1, 2]


@pytest.mark.faults
async def test_entry_is_not_acknowledged_before_the_replica_has_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that only the primary has is not reported as written, even to a retry after a crash."""
    async with saveslot.open(pair.url) as sessions:
        session = await sessions.create_session("agent", session_id="s")
        await sessions.checkpoint(session, "turn", {"number": 1})
        await synchronous(pair.primary)
        await sessions.checkpoint(session, "turn", {"number": 2})
        pair.link.refuse()  # the replica is away: nothing can be acknowledged
        monkeypatch.setattr(postgres_connection, "PATIENCE", 1.0)
        monkeypatch.setattr(postgres_connection, "SILENCE", 0.3)
        items: list[int] = []

        async def try_three() -> None:
            try:
                await sessions.checkpoint(session, "turn", {"number": 3})
            except Unavailable:
                return
            items.append(3)

        await try_three()
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.primary.start)
        there = await result_of(pair.primary, "select count(*) from saveslot.checkpoints where name = 'turn'")
        assert there == 3  # written, and visible to every reader, but on one machine only
        await try_three()
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.replica.promote)
        monkeypatch.setattr(postgres_connection, "PATIENCE", 30.0)
        history = await sessions.history("s", name="turn")
        assert [checkpoint.data["number"] for checkpoint in history] == [1, 2, *items]
        if not items:  # the new primary waits for no replica
            await result_of(pair.replica, "alter system reset synchronous_standby_names")
            await result_of(pair.replica, "select pg_reload_conf()")
            await sessions.checkpoint(session, "turn", {"number": 3})
            history = await sessions.history("s", name="turn")
            assert [checkpoint.data["number"] for checkpoint in history] == [1, 2, 3]


@pytest.mark.parametrize("first", ["silent", "broken"])
async def test_unusable_host_is_skipped(pair: Pair, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first host that is silent or has no server costs a moment; the one that accepts writes is used."""
    monkeypatch.setattr(postgres_connection, "WELCOME", 1.0)
    pair.primary.kill()
    pair.replica.promote()
    if first == "silent":
        pair.first.drop()
    async with asyncio.timeout(HANGS), saveslot.open(pair.url) as sessions:
        session = await sessions.create_session("agent")
        assert (await sessions.checkpoint(session, "turn", {"number": 1})).seq == 2


@pytest.mark.faults
async def test_held_session_survives_a_silent_primary(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the primary's machine vanishes, worker and agent find the new one, and no lease is lost."""
    monkeypatch.setattr(postgres_connection, "SILENCE", 0.5)
    monkeypatch.setattr(postgres_connection, "WELCOME", 5.0)  # longer than a beat has, and shorter than a call
    async with saveslot.open(pair.url, worker_beat=0.5, worker_ttl=10) as sessions:
        session = await sessions.create_session("agent")
        async with sessions.hold(session) as held:
            await held.checkpoint("turn", {"number": 1})
            await caught_up(pair.primary)
            pair.first.drop()
            await asyncio.to_thread(pair.replica.promote)
            worker = sessions.worker
            assert worker is not None

            async def beaten() -> bool:
                assert sessions.worker is not None
                return sessions.worker["beats"] >= worker["beats"] + 3

            await until(beaten)
            async with asyncio.timeout(HANGS):
                await held.checkpoint("turn", {"number": 2})
            assert not held.lost.is_set()
        history = await sessions.history(session.session_id, name="turn")
        assert [checkpoint.data["number"] for checkpoint in history] == [1, 2]


async def test_replica_alone_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data may be old, so it is refused unless the caller asks for read-only access, which cannot write."""
    async with saveslot.open(pair.primary.url) as sessions:
        session = await sessions.create_session("agent")
        await caught_up(pair.primary)
    monkeypatch.setattr(postgres_connection, "PATIENCE", 1.0)
    with pytest.raises(Unavailable, match="refuses writes, as a replica does; name the primary or all hosts"):
        await saveslot.open(pair.second.url)
    async with saveslot.open(f"{pair.second.url}?target_session_attrs=any") as sessions:
        assert await sessions.get_session(session.session_id) is not None
        with pytest.raises(Unavailable, match="refuses writes"):
            await sessions.checkpoint(session, "turn", {"number": 1})
