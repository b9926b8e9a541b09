"""A call repeated after its caller was cancelled is stored once and returns its first answer, however often."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import Any

import pytest

from saveslot import Retention, SessionManager, Thinned
from saveslot.stores.around.wrapper import PassingStore

# Seconds that a caller waits while the store is slow, and how many times it gives up.
PATIENCE, CANCELLED = 0.007, 4


class Slow(PassingStore):
    """A store whose writes wait while it is slow, whether or not the caller still does."""

    def __init__(self, inner):
        super().__init__(inner)
        self._ready = asyncio.Event()
        self._ready.set()

    @contextmanager
    def slow(self):
        self._ready.clear()
        try:
            yield
        finally:
            self._ready.set()

    async def append(self, groups, **how):
        return await asyncio.shield(asyncio.ensure_future(self._late(groups, how)))

    async def _late(self, groups, how):
        await self._ready.wait()
        return await self._inner.append(groups, **how)


@pytest.fixture
async def store(stores):
    return Slow(stores[0])


@pytest.fixture
async def sessions(store):
    manager = SessionManager(store=store)
    await manager.create_session("tutor", session_id="s")
    await manager.checkpoint("s", "one", {"list": [1]})
    await manager.checkpoint("s", "two", {"list": [1, 2]})
    yield manager
    while manager.running:
        await asyncio.wait(manager.running)
    if manager.engine.worker is not None:
        await manager.engine.worker.leave()


async def insisted(store: Slow, call: Any) -> Any:
    """Cancel a call several times before its write can finish, then repeat it once more."""
    with store.slow():
        for _ in range(CANCELLED):
            try:
                return await asyncio.wait_for(call(), PATIENCE)  # a release that was cancelled counts as done
            except TimeoutError:
                continue
    return await call()


async def names(sessions: SessionManager) -> list[str]:
    return [entry.name for entry in await sessions.history("s", all=True)]


BY_ID = {
    "checkpoint": (lambda s: s.checkpoint("s", "x", {"n": 1}), "x"),
    "append": (lambda s: s.checkpoint("s", "x", append={"list": [3]}), "x"),
    "rollback": (lambda s: s.rollback("s", "one"), "session_rolled_back"),
    "relative rollback": (lambda s: s.rollback("s", "~1"), "session_rolled_back"),
    "pin": (lambda s: s.pin("s", "one"), "checkpoint_pinned"),
    "thin": (lambda s: s.thin("s", Retention(max_checkpoints=1)), "history_thinned"),
}


@pytest.mark.parametrize("verb", BY_ID)
async def test_call_by_id_cancelled_repeatedly_is_stored_once(store, sessions, verb):
    """Cancelled again and again, it is one entry, and the answer names it."""
    call, name = BY_ID[verb]
    before = await names(sessions)
    answer = await insisted(store, lambda: call(sessions))
    assert await names(sessions) == [*before, name]
    assert answer == Thinned(1) if verb == "thin" else answer.name in {name, "one"}


async def test_call_by_value_cancelled_repeatedly_is_stored_once(store, sessions):
    """Staged entries and direct saves land once; the value continues from there."""
    session = await sessions.get_session("s")
    before = await names(sessions)
    await insisted(store, lambda: sessions.checkpoint(session, "x", append={"list": [3]}))
    session.checkpoint("y", {"list": []})
    session.context["k"] = 1
    await insisted(store, lambda: sessions.update_session(session))
    assert await names(sessions) == [*before, "x", "session_updated", "y"]
    session.pause()
    await sessions.update_session(session)


async def test_create_and_delete_cancelled_repeatedly_happen_once(store, sessions):
    """The first answer is returned: the session created, with or without an id, and True for a deletion."""
    created = await insisted(store, lambda: sessions.create_session("grader", session_id="g"))
    assert created.session_id == "g"
    unnamed = await insisted(store, lambda: sessions.create_session("judge"))
    assert [s.session_id for s in await sessions.find(agent_type="judge")] == [unnamed.session_id]
    fork = await insisted(store, lambda: sessions.fork("s", "one"))
    assert [s.session_id for s in await sessions.find(agent_type="tutor")] == [fork.session_id, "s"]
    deleted = await insisted(store, lambda: sessions.delete_session("g"))
    assert deleted is True
    assert await sessions.delete_session("g") is False


HELD = {
    "checkpoint": (lambda h: h.checkpoint("x", {"n": 1}), ["x"]),
    "append": (lambda h: h.checkpoint("x", append={"list": [3]}), ["x"]),
    "patch": (lambda h: h.checkpoint("x", patch=[{"op": "remove", "path": "/list/0"}]), ["x"]),
    "pause": (lambda h: h.pause(), ["session_paused"]),
    "complete": (lambda h: h.complete({"grade": "A"}), ["session_completed"]),
    "fail": (lambda h: h.fail("broken"), ["session_failed"]),
    "update_context": (lambda h: h.update_context(k=1), ["session_updated"]),
    "rollback": (lambda h: h.rollback("one"), ["session_rolled_back"]),
    "release": (lambda h: h.release(), ["session_released"]),
}


@pytest.mark.parametrize("verb", HELD)
async def test_holder_call_cancelled_repeatedly_is_stored_once(store, sessions, verb):
    """So is one that ends the hold: it does not raise LeaseLost for its own lease."""
    call, expected = HELD[verb]
    held = await sessions.take("s")
    before = await names(sessions)
    await insisted(store, lambda: call(held))
    while sessions.running:  # a release does not make its caller wait twice
        await asyncio.wait(sessions.running)
    assert await names(sessions) == [*before, *expected]
    await held.release()


async def test_take_and_claim_cancelled_repeatedly_get_the_session(store, sessions):
    """They are not refused because of their own first attempt: they wait until it is given back."""
    held = await insisted(store, lambda: sessions.take("s"))
    assert (await names(sessions))[-3:] == ["session_taken", "session_released", "session_taken"]
    await held.release()
    [held] = await insisted(store, lambda: sessions.claim(released=True))
    await held.checkpoint("x", {"n": 1})
    await held.release()


async def test_release_of_anothers_hold_cancelled_repeatedly_returns_true(store, sessions):
    """The first answer: the session had an owner."""
    held = await sessions.take("s")
    assert await insisted(store, lambda: sessions.release("s")) is True
    assert await sessions.release("s") is False
    await held.release()


async def test_sweep_cancelled_repeatedly_counts_what_it_failed(store, sessions):
    """The pages that it finished after its callers left are in the answer of the last one, once."""
    await sessions.create_session("tutor", session_id="t")
    await asyncio.sleep(0.02)
    assert await insisted(store, lambda: sessions.cleanup_stale_sessions(0.01)) == 2
    assert await sessions.cleanup_stale_sessions(0.01) == 0


async def test_same_call_after_another_write_is_a_new_call(store, sessions):
    """After another write to the session, an equal call is a new one."""
    await insisted(store, lambda: sessions.checkpoint("s", "x", append={"list": [3]}))
    await sessions.checkpoint("s", "y", append={"list": [4]})
    await sessions.checkpoint("s", "x", append={"list": [3]})
    assert await sessions.get_data("s") == {"list": [1, 2, 3, 4, 3]}


async def test_cancelled_write_does_not_block_retention(store, sessions):
    """A checkpoint that was cancelled and never repeated leaves pin and thin working."""
    with store.slow(), pytest.raises(TimeoutError):
        await asyncio.wait_for(sessions.checkpoint("s", "x", {"n": 1}), PATIENCE)
    await sessions.pin("s", "one")
    await sessions.thin("s")
    assert "x" in await names(sessions)


async def test_failure_of_an_abandoned_call_is_not_logged(store, sessions, caplog):
    """The error of a call whose caller left is not logged; a repeated call would get it."""
    with store.slow():
        call = asyncio.ensure_future(sessions.rollback("s", "one"))
        await asyncio.wait([call], timeout=PATIENCE)
        call.cancel()
        await asyncio.wait([call])
        other = SessionManager(store=store._inner)  # noqa: SLF001  (the store below)
        await other.checkpoint("s", "theirs", {"list": [4]})
    await sessions.engine.settled()
    del call
    gc.collect()
    assert caplog.records == []
    assert (await other.get_checkpoint("s")).name == "theirs"
