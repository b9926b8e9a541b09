"""PostgreSQL dies and comes back under load: latency, never an acknowledged entry."""

import asyncio
from collections.abc import Iterator

import pytest

import saveslot
from saveslot.stack import Postgres

KILLS = 5
AGENTS = 16

pytestmark = pytest.mark.faults


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


async def test_killed_servers_lose_nothing_acknowledged(server: Postgres) -> None:
    """Agents save through kills and restarts of the server; every acknowledged checkpoint is there once, in order."""
    async with saveslot.open(server.url) as sessions:
        ids = [(await sessions.create_session("agent")).session_id for _ in range(AGENTS)]
        over = asyncio.Event()

        async def work(session_id: str) -> list[int]:
            acknowledged: list[int] = []
            number = 0
            while not over.is_set():
                try:
                    await sessions.checkpoint(session_id, "turn", {"number": number})
                except saveslot.Unavailable:
                    continue  # the same again: it is stored once
                acknowledged.append(number)
                number += 1
            return acknowledged

        agents = [asyncio.create_task(work(session_id)) for session_id in ids]
        for _ in range(KILLS):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.5)
        over.set()
        for session_id, acknowledged in zip(ids, await asyncio.gather(*agents), strict=True):
            history = await sessions.history(session_id, name="turn")
            assert [checkpoint.data["number"] for checkpoint in history] == acknowledged
            assert len(acknowledged) > KILLS


async def test_a_server_that_stays_away_is_unavailable(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """No await hangs: after its patience every call says that the store is away, and works once it is back."""
    monkeypatch.setattr("saveslot.stores.postgres_server.PATIENCE", 1.0)
    async with saveslot.open(server.url) as sessions:
        session = await sessions.create_session("agent")
        server.kill()
        with pytest.raises(saveslot.Unavailable):
            await sessions.checkpoint(session, "turn", {"number": 1})
        with pytest.raises(saveslot.Unavailable):
            await sessions.get_session(session.session_id)
        server.start()
        await sessions.checkpoint(session, "turn", {"number": 1})
        [made] = await sessions.history(session.session_id, name="turn")
        assert made.data == {"number": 1}


async def test_two_managers_hold_and_take_over(server: Postgres) -> None:
    """A session that one manager held and left behind is claimed by the other, from its last checkpoint."""
    one = await saveslot.open(server.url, worker_beat=0.2, worker_ttl=1)
    async with saveslot.open(server.url, worker_beat=0.2, worker_ttl=1) as two:
        session = await one.create_session("agent")
        held = await one.take(session)
        await held.checkpoint("turn", {"number": 1})
        with pytest.raises(saveslot.LeaseHeld):
            await two.take(session)
        await one.close()
        [claimed] = await two.claim()
        async with claimed:
            assert claimed.data == {"number": 1}
            await claimed.complete()
