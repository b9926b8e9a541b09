"""Many owners of the same sessions on PostgreSQL: each session is claimed once, zombies write nothing, no deadlock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import saveslot
from saveslot import Conflict, InvalidTransition, LeaseHeld, LeaseLost, SessionManager
from saveslot.stack import Postgres
from saveslot.stores.postgres import PostgresStore
from saveslot.testing import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Group, Head, Outcome, Wanted

CLAIMERS, ORPHANS = 8, 400
# Entries of one zombie that are under way at a time, each from a connection of its own.
FLIGHT = 3
# Long enough for the slowest machine: only workers whose time is set back count as dead here.
TIMING = {"worker_beat": 5, "worker_ttl": 60}
# A claimer judges no silent worker in its own first TTL.
CLAIMING = {"worker_beat": 5, "worker_ttl": 20}
SET_BACK_ALL = "update saveslot.workers set expires = expires - 3600000000"
SET_BACK = f"{SET_BACK_ALL} where worker = $1"

pytestmark = pytest.mark.faults


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


class Zombie:
    """Keeps writing under its lease, several entries at a time, until it gets `LeaseLost`."""

    def __init__(self, head: Head, stores: list[PostgresStore]) -> None:
        row, last = head.row, head.last
        self._pen = Pen(row.namespace, row.session_id, row.key, last.seq, last.append_id, row.fence, row.lease)
        self._stores = stores
        self.lease = row.lease
        self.key = row.key
        self.landed: dict[bytes, int] = {}  # what it was acknowledged

    async def write(self) -> None:
        while True:
            flight: list[Group] = []
            for _ in range(FLIGHT):
                flight.append(self._pen.group())
                self._pen.saw(flight[-1])
            while flight:
                sent = zip(flight, self._stores, strict=False)
                verdicts = [verdict for [verdict] in await asyncio.gather(*(s.append([g]) for g, s in sent))]
                if any(verdict.outcome is Outcome.FENCED for verdict in verdicts):
                    return
                left: list[Group] = []
                for group, verdict in zip(flight, verdicts, strict=True):
                    if verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}:
                        self.landed[group.entries[0].append_id] = group.entries[0].seq
                    else:
                        left.append(group)  # it came before the one that it follows
                flight = left
            await asyncio.sleep(random.uniform(0.2, 1))


async def test_each_orphan_is_claimed_once_and_its_zombie_is_fenced(server: Postgres) -> None:
    """Eight claimers, 400 orphans whose owners still write: 400 claims, and no zombie's entry after its claim."""
    async with AsyncExitStack() as stack:
        dead = await stack.enter_async_context(saveslot.open(server.url, **TIMING))
        names = [f"s{n}" for n in range(ORPHANS)]
        await asyncio.gather(*(dead.create_session("agent", session_id=name) for name in names))
        await asyncio.gather(*(dead.take(name) for name in names))
        stores = [await PostgresStore.open(server.url) for _ in range(FLIGHT)]
        for store in stores:
            stack.push_async_callback(store.close)
        heads = [head for head in await stores[0].heads([("default", name) for name in names]) if head is not None]
        zombies = [Zombie(head, stores) for head in heads]
        claimers = [await stack.enter_async_context(saveslot.open(server.url, **CLAIMING)) for _ in range(CLAIMERS)]
        assert await asyncio.gather(*(sessions.claim() for sessions in claimers)) == [[]] * CLAIMERS
        await asyncio.sleep(CLAIMING["worker_ttl"])
        writing = asyncio.gather(*(zombie.write() for zombie in zombies))
        direct = await asyncpg.connect(server.url)
        stack.push_async_callback(direct.close)
        await direct.execute(SET_BACK, heads[0].row.owner)
        claimed: Counter[str] = Counter()

        async def claim(sessions: SessionManager) -> None:
            while claimed.total() < ORPHANS:
                for held in await sessions.claim(limit=random.randrange(1, 30)):
                    claimed[held.session.session_id] += 1
                    async with held:
                        await held.checkpoint("mine", {"number": 1})
                        await held.complete()

        async with asyncio.timeout(200):
            await asyncio.gather(*map(claim, claimers))
            await writing
        assert claimed == dict.fromkeys(names, 1)
        for zombie in zombies:
            log = await stores[0].entries(zombie.key, Wanted(frames=False))
            assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
            [claim_at] = [entry.seq for entry in log if entry.kind is Kind.CLAIMED]
            assert max(entry.seq for entry in log if entry.lease == zombie.lease) == claim_at - 1
            assert zombie.landed.items() <= {entry.append_id: entry.seq for entry in log[: claim_at - 1]}.items()
            kinds = [entry.kind for entry in log[claim_at - 1 :]]
            assert kinds == [Kind.CLAIMED, Kind.CHECKPOINT, Kind.COMPLETED]
        assert sum(len(zombie.landed) for zombie in zombies) > ORPHANS


# Errors of a caller that another one was faster than.
OVERTAKEN = (Conflict, InvalidTransition, LeaseHeld, LeaseLost)


class Crowd:
    """Everything that changes a session, on a few sessions, from several managers at once."""

    def __init__(self, managers: list[SessionManager], names: list[str], seconds: float) -> None:
        self._managers, self._names = managers, names
        self._end = asyncio.get_running_loop().time() + seconds
        self.done: Counter[str] = Counter()
        self.acknowledged: list[tuple[str, int, int]] = []  # session, seq and number of what was acknowledged
        self._number = 0

    async def run(self) -> None:
        verbs = (self.own, self.claim, self.change, self.beat, self.save, self.sweep)
        async with asyncio.TaskGroup() as group:
            for sessions in self._managers:
                for verb in verbs:
                    group.create_task(self._again(verb, sessions))

    async def _again(self, verb: Any, sessions: SessionManager) -> None:
        while asyncio.get_running_loop().time() < self._end:
            try:
                await verb(sessions, random.choice(self._names))
            except OVERTAKEN as exc:
                self.done[exc.code] += 1
            else:
                self.done[verb.__name__] += 1
            await asyncio.sleep(0)

    def data(self) -> dict[str, int]:
        self._number += 1
        return {"number": self._number}

    async def own(self, sessions: SessionManager, name: str) -> None:
        async with sessions.hold(name) as held:
            await self.saved(held, name)
            await held.heartbeat()

    async def claim(self, sessions: SessionManager, _: str) -> None:
        for held in await sessions.claim(limit=3):
            async with held:
                await self.saved(held, held.session.session_id)

    async def saved(self, held: saveslot.Held, name: str) -> None:
        data = self.data()
        checkpoint = await held.checkpoint("held", data)
        self.acknowledged.append((name, checkpoint.seq, data["number"]))

    async def save(self, sessions: SessionManager, name: str) -> None:
        data = self.data()
        checkpoint = await sessions.checkpoint(name, "free", data)
        self.acknowledged.append((name, checkpoint.seq, data["number"]))

    async def change(self, sessions: SessionManager, name: str) -> None:
        session = await sessions.get_session(name, history=1)
        assert session is not None
        if session.state == "active":
            session.pause()
        elif session.state == "paused":
            session.resume()
        await sessions.update_session(session)

    async def beat(self, sessions: SessionManager, name: str) -> None:
        session = await sessions.get_session(name, history=1)
        assert session is not None
        session.heartbeat()
        session.context["beats"] = self.data()
        await sessions.update_session(session)

    async def sweep(self, sessions: SessionManager, _: str) -> None:
        await sessions.cleanup_stale_sessions(timedelta(hours=1))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.long)])
async def test_no_deadlock_when_everything_changes_the_same_sessions(server: Postgres, seconds: float) -> None:
    """Claims, lifecycle changes, heartbeats and sweeps on twelve sessions: no deadlock, nothing acknowledged lost."""
    names = [f"s{n}" for n in range(12)]
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(saveslot.open(server.url, **TIMING)) for _ in range(4)]
        for name in names:
            await managers[0].create_session("agent", session_id=name)
        direct = await asyncpg.connect(server.url)
        stack.push_async_callback(direct.close)
        crowd = Crowd(managers, names, seconds)
        running = asyncio.create_task(crowd.run())
        while not running.done():
            await direct.execute(f"{SET_BACK_ALL} where random() < 0.3")
            await asyncio.sleep(0.2)
        async with asyncio.timeout(120):
            await running
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert await direct.fetchval(deadlocks) == 0
        assert "deadlock" not in (server.folder / "log").read_text()
        assert {"own", "claim", "change", "beat", "sweep"} <= crowd.done.keys()
        by_key: dict[tuple[str, int], int] = {}
        for name in names:
            for checkpoint in await managers[0].history(name):
                if "number" in checkpoint.data:
                    by_key[name, checkpoint.seq] = checkpoint.data["number"]
        assert crowd.acknowledged
        assert {(name, seq): number for name, seq, number in crowd.acknowledged}.items() <= by_key.items()
