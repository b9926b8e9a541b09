"""The keeper finishes sessions of dead workers, even if a takeover fails at first or the keeper is closed."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from saveslot import InvalidInput, LeaseLost, SessionManager, SessionState
from saveslot.manager import clocks
from saveslot.stores.around.wrapper import PassingStore
from tests.session.test_held import gone

BEAT = {"worker_beat": 0.05, "worker_ttl": 0.5}


@pytest.fixture
async def orphans(fresh) -> list[str]:
    """Six sessions of a dead worker."""
    dead = fresh(**BEAT)
    names = [(await dead.create_session("tutor", session_id=f"s{n}")).session_id for n in range(6)]
    for name in names:
        await dead.take(name)
    await gone(dead)
    return names


async def until(true) -> None:
    async with asyncio.timeout(60):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


async def test_failed_takeover_is_retried(fresh, orphans):
    """A takeover is retried until it succeeds; others do not wait for it, and at most `limit` run at a time."""
    sessions, calls, running, most = fresh(**BEAT, backoff=0.01), dict.fromkeys(orphans, 0), 0, 0

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
    async with asyncio.timeout(60):
        while states != [SessionState.COMPLETED] * 6:
            states = [(await sessions.get_session(name)).state for name in orphans]
            await asyncio.sleep(0.02)
    assert list(calls.values()) == [4, 4, 4, 1, 1, 1]
    assert most == 2
    assert sessions.keeper.stats["errors"] == 9
    await until(lambda: sessions.keeper.stats["working_on"] == 0)
    await sessions.close()


async def test_closed_keeper_leaves_orphans(fresh, orphans):
    """A keeper closed while it works, or after errors, leaves orphans that other workers can claim."""
    sessions, begun = fresh(**BEAT), []

    async def begin(held):
        begun.append(held)
        if len(begun) % 2:
            raise OSError
        await asyncio.sleep(60)

    await sessions.keeper.start(takeover=begin, limit=6)
    await until(lambda: len({held.session.session_id for held in begun}) == 6)
    await sessions.keeper.stop()
    await gone(sessions)  # these two are what `close` does; the store is the fixture's
    other = fresh(**BEAT, backoff=0)
    claimed = await other.claim(limit=10, max_attempts=None)
    assert sorted(held.session.session_id for held in claimed) == orphans
    await gone(other)


async def test_stopped_keeper_leaves_orphans(fresh, orphans):
    """When the manager stays open, others may claim a stopped keeper's sessions, as after a hold that was cancelled."""
    sessions = fresh(**BEAT)
    await sessions.keeper.start(takeover=lambda _: asyncio.sleep(60), limit=6)
    await until(lambda: sessions.keeper.stats["working_on"] == 6)
    await sessions.keeper.stop()
    async with sessions.hold("s0"):
        assert len(await fresh(**BEAT, backoff=0).claim()) == 5


async def test_keeper_stopped_at_any_moment_leaves_nothing_held(fresh):
    """Whether it is finding orphans, taking them, or has not begun their takeovers: none of them stays held."""
    sessions = fresh(**BEAT)
    for turns in range(0, 60, 3):
        dead = fresh(**BEAT)
        names = [(await dead.create_session("tutor")).session_id for _ in range(3)]
        for name in names:
            await dead.take(name)
        await gone(dead)
        await sessions.keeper.start(takeover=lambda _: asyncio.sleep(60), limit=6, thin=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await sessions.keeper.stop()
        for name in names:
            owner = (await sessions.get_session(name)).owner
            assert owner is None or not owner.left


async def test_takeover_may_be_a_plain_function(fresh, orphans):
    """It need not be async; anything that is not callable is refused."""
    sessions, seen = fresh(**BEAT), []
    with pytest.raises(InvalidInput, match="takeover"):
        await sessions.keeper.start(takeover=5)
    await sessions.keeper.start(takeover=lambda held: seen.append(held.session.session_id), limit=6)
    await until(lambda: sorted(seen) == orphans)
    await until(lambda: sessions.keeper.stats["working_on"] == 0)
    assert sessions.keeper.stats["errors"] == 0
    await sessions.keeper.stop()


async def test_closing_the_manager_ends_its_holds(fresh):
    """`lost` is set, and every call raises because the session is no longer owned."""
    sessions = fresh(**BEAT)
    await sessions.create_session("tutor", session_id="s")
    held = await sessions.take("s")
    waiting = asyncio.create_task(held.lost.wait())
    await sessions.close()
    await asyncio.wait_for(waiting, 60)
    for verb in (held.checkpoint("a", {}), held.complete(), held.heartbeat()):
        with pytest.raises(LeaseLost, match="closed"):
            await verb


class Jumping(PassingStore):
    """Sets the wall clock 100 days ahead when the keeper looks for old sessions."""

    def __init__(self, store, monkeypatch):
        super().__init__(store)
        self._monkeypatch, self._real = monkeypatch, time.time_ns
        self.jumps = 0

    async def find(self, query, after=None, limit=100):
        if query.stale_for is not None or query.deleted_for is not None:
            self.jumps += 1
            self._monkeypatch.setattr(time, "time_ns", lambda: self._real() + self.jumps * 100 * 86_400 * 10**9)
        return await super().find(query, after, limit)


@pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)
async def test_clock_that_jumps_during_a_search_removes_and_fails_nothing(stores, monkeypatch):
    """What looks old because the clock jumped after the keeper had checked it stays."""
    monkeypatch.setattr(clocks, "CALM", 0.1)
    store = Jumping(stores[0], monkeypatch)
    sessions = SessionManager(store=store, **BEAT)
    await sessions.create_session("tutor", session_id="idle")
    await sessions.create_session("tutor", session_id="deleted")
    await sessions.delete_session("deleted")
    await sessions.keeper.start(stale_after=20, gc=True, tidy_every=0.05)
    await until(lambda: store.jumps > 4)
    await sessions.keeper.stop()
    assert sessions.keeper.stats["removed"] == sessions.keeper.stats["swept"] == 0
    assert (await sessions.get_session("idle")).state is SessionState.ACTIVE


@pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)
async def test_nothing_is_removed_or_failed_by_a_clock_that_jumped(fresh, monkeypatch):
    """After a jump of the wall clock, ages count again once it has run with the clock since boot for a while."""
    monkeypatch.setattr(clocks, "CALM", 2.0)
    sessions = fresh(**BEAT)
    for name in ("deleted", "ended", "idle"):
        await sessions.create_session("tutor", session_id=name)
    await sessions.delete_session("deleted")
    ended = await sessions.get_session("ended")
    ended.complete()
    await sessions.update_session(ended)
    await sessions.keeper.start(stale_after=20, gc_after=timedelta(days=30), tidy_every=0.05)
    await asyncio.sleep(0.2)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 100 * 86_400 * 10**9)
    await asyncio.sleep(1)
    assert (await sessions.get_session("idle")).state is SessionState.ACTIVE
    assert (await sessions.get_session("ended")) is not None
    assert sessions.keeper.stats["removed"] == sessions.keeper.stats["swept"] == 0
    await until(lambda: sessions.keeper.stats["removed"] == 2 and sessions.keeper.stats["swept"] == 1)
