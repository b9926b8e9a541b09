"""The keeper: what dead workers left is finished, also when that fails at first, or the keeper ends before."""

from __future__ import annotations

import asyncio

import pytest
from tests.manager.test_holding import gone

from saveslot import InvalidInput, LeaseLost, SessionState

BEAT = {"worker_beat": 0.05, "worker_ttl": 0.5}


@pytest.fixture
async def orphans(fresh) -> list[str]:
    """Six sessions of a worker that died."""
    dead = fresh(**BEAT)
    names = [(await dead.create_session("tutor", session_id=f"s{n}")).session_id for n in range(6)]
    for name in names:
        await dead.take(name)
    await gone(dead)
    return names


async def until(true) -> None:
    async with asyncio.timeout(20):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


async def test_a_takeover_that_fails_is_tried_again(fresh, orphans):
    """Until it succeeds; meanwhile the others are not kept waiting, and no more than `limit` run at a time."""
    sessions, calls, running, most = fresh(**BEAT), dict.fromkeys(orphans, 0), 0, 0

    async def finish(held):
        nonlocal running, most
        running += 1
        most = max(most, running)
        calls[held.session.session_id] += 1
        try:
            await asyncio.sleep(0.01)
            if held.session.session_id < "s3" and calls[held.session.session_id] < 4:
                raise OSError("not yet")
            await held.complete()
        finally:
            running -= 1

    await sessions.keeper.start(takeover=finish, limit=2)
    states = []
    async with asyncio.timeout(20):
        while states != [SessionState.COMPLETED] * 6:
            states = [(await sessions.get_session(name)).state for name in orphans]
            await asyncio.sleep(0.02)
    assert list(calls.values()) == [4, 4, 4, 1, 1, 1]
    assert most == 2
    assert sessions.keeper.stats["errors"] == 9
    await until(lambda: sessions.keeper.stats["working_on"] == 0)
    await sessions.close()


async def test_what_a_keeper_does_not_finish_is_another_workers(fresh, orphans):
    """One that is closed in the middle, at work or waiting for the next try, leaves orphans, not sessions of nobody."""
    sessions, begun = fresh(**BEAT), []

    async def begin(held):
        begun.append(held)
        if len(begun) % 2:
            raise OSError
        await asyncio.sleep(60)

    await sessions.keeper.start(takeover=begin, limit=6)
    await until(lambda: len({held.session.session_id for held in begun}) == 6)
    await sessions.keeper.stop(let_go=False)
    await gone(sessions)  # these two are what `close` does; the store is the fixture's
    other = fresh(**BEAT)
    claimed = await other.claim(limit=10)
    assert sorted(held.session.session_id for held in claimed) == orphans
    await gone(other)


async def test_a_keeper_that_is_stopped_lets_go(fresh, orphans):
    """The manager lives on: its sessions are nobody's then, as after a hold that ended."""
    sessions = fresh(**BEAT)
    await sessions.keeper.start(takeover=lambda _: asyncio.sleep(60), limit=6)
    await until(lambda: sessions.keeper.stats["working_on"] == 6)
    await sessions.keeper.stop()
    async with sessions.hold("s0"):
        assert len(await fresh(**BEAT).claim(released=True)) == 5


async def test_a_plain_function_takes_over_too(fresh, orphans):
    """It need not be async; what is no function at all is refused."""
    sessions, seen = fresh(**BEAT), []
    with pytest.raises(InvalidInput, match="takeover"):
        await sessions.keeper.start(takeover=5)
    await sessions.keeper.start(takeover=lambda held: seen.append(held.session.session_id), limit=6)
    await until(lambda: sorted(seen) == orphans)
    await until(lambda: sessions.keeper.stats["working_on"] == 0)
    assert sessions.keeper.stats["errors"] == 0
    await sessions.keeper.stop()


async def test_a_closed_manager_tells_its_holders(fresh):
    """`lost` is set, and every verb says that the session is no longer theirs."""
    sessions = fresh(**BEAT)
    await sessions.create_session("tutor", session_id="s")
    held = await sessions.take("s")
    waiting = asyncio.create_task(held.lost.wait())
    await sessions.close()
    await asyncio.wait_for(waiting, 5)
    for verb in (held.checkpoint("a", {}), held.complete(), held.heartbeat()):
        with pytest.raises(LeaseLost, match="closed"):
            await verb
