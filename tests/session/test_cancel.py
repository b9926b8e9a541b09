"""Stopping the work on a session from outside: `cancel` asks its holder to stop, `release` takes the lease away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

import saveslot
from saveslot import (
    Cancelled,
    Conflict,
    InvalidInput,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    NotFound,
    SessionManager,
    SessionState,
)
from saveslot.stores import Store
from tests.session.test_attempts import Overload, crash, left, notes, stores  # noqa: F401  (a fixture)

# A heartbeat that never comes: what is noticed is noticed by a verb.
RARELY = {"worker_beat": 1000.0, "worker_ttl": 3000.0}
OFTEN = {"worker_beat": 0.05, "worker_ttl": 5.0}


@pytest.fixture
async def ann(stores: list[Store]) -> AsyncIterator[SessionManager]:  # noqa: F811
    manager = SessionManager(store=stores[0], **RARELY)
    await manager.create_session("tutor", session_id="s", context={"topic": "fractions"}, data={"n": 1})
    yield manager
    await left(manager)


@pytest.fixture
async def bob(stores: list[Store]) -> AsyncIterator[SessionManager]:  # noqa: F811
    """A separate worker, as in another process."""
    manager = SessionManager(store=stores[1], **RARELY)
    yield manager
    await left(manager)


async def is_cancelled(manager: SessionManager, reason: str) -> None:
    """The session failed with the reason `cancelled`, and no worker takes it."""
    session = await manager.get_session("s")
    assert (session.state, session.owner) == (SessionState.FAILED, None)
    assert session.context == {"topic": "fractions", "failure_reason": "cancelled"}
    details = {"reason": reason} if reason else {}
    assert session.checkpoints[-1].data == {"error": "cancelled", "details": details}
    assert await manager.claim(released=True) == []


# A session that no worker holds


async def test_cancel_of_a_free_session_fails_it(ann, bob):
    """Without an owner the session fails at once; so does one that an error released, or whose worker has left."""
    assert await bob.cancel("s", "not needed") is SessionState.FAILED
    await is_cancelled(ann, "not needed")


async def test_cancel_adds_its_reason_to_the_context_alone(ann, bob):
    """The stored context, metadata and labels of a session that `cancel` failed have no other parts."""
    session = await bob.create_session("tutor", context={"n": 1}, session_id="c")
    await ann.cancel("c")
    entries = json.loads(await bob.export("c"))["entries"]
    context = {"n": 1, "failure_reason": "cancelled"}
    assert [entry["about"] for entry in entries if "about" in entry][1:] == [
        {"context": context, "metadata": {}, "labels": {}}
    ]
    assert (await bob.refresh(session)).context == context


async def test_cancel_after_an_error_fails_it(ann, bob):
    """An orphan that an error released has no holder that could be asked."""
    await crash(await ann.take("s"))
    assert await bob.cancel("s") is SessionState.FAILED
    await is_cancelled(ann, "")


async def test_cancel_of_a_dead_workers_session_fails_it(ann, bob):
    """A worker that left, or was declared dead, is not asked."""
    await ann.take("s")
    await left(ann)
    assert await bob.cancel("s") is SessionState.FAILED
    await is_cancelled(bob, "")


async def test_cancel_of_an_ended_session_is_refused(ann):
    """What ended cannot be cancelled; neither can what does not exist."""
    assert await ann.cancel("s") is SessionState.FAILED
    with pytest.raises(InvalidTransition, match="cancel"):
        await ann.cancel("s")
    with pytest.raises(NotFound):
        await ann.cancel("unknown")
    with pytest.raises(InvalidInput, match="reason"):
        await ann.cancel("s", "x" * 201)


# A session that is held


@pytest.mark.parametrize("noticed", ["beat", "verb", "refresh"])
async def test_holder_notices(stores, bob, noticed):  # noqa: F811
    """The holder learns of it by its heartbeat, by its next verb, or by a refresh: then `cancelled` is set."""
    manager = SessionManager(store=stores[0], **(OFTEN if noticed == "beat" else RARELY))
    async with manager.hold("s", create="tutor") as held:
        assert await bob.cancel("s", "enough") is SessionState.ACTIVE
        assert (await bob.get_session("s")).state is SessionState.ACTIVE
        if noticed == "beat":
            await asyncio.wait_for(held.cancelled.wait(), 60)
        elif noticed == "refresh":
            with pytest.raises(Cancelled, match="enough"):
                await held.refresh()
        with pytest.raises(Cancelled, match="enough") as caught:
            await held.update_context(n=1)
        assert (caught.value.code, caught.value.reason) == ("cancelled", "enough")
        assert held.cancelled.is_set()
        assert not held.lost.is_set()
    await left(manager)


VERBS = {
    "step": lambda held: held.step("ask", lambda: 1),
    "heartbeat": lambda held: held.heartbeat(),
    "pause": lambda held: held.pause(),
    "resume": lambda held: held.resume(),
    "update_context": lambda held: held.update_context(n=1),
    "rollback": lambda held: held.rollback("created"),
    "refresh": lambda held: held.refresh(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_other_verbs_raise_cancelled(ann, bob, verb):
    """Once the holder knows, everything but saving and ending raises, and stores nothing."""
    async with ann.hold("s") as held:
        await bob.cancel("s", "enough")
        await held.checkpoint("noticed", {"n": 2})
        before = len(await bob.log("s", all=True))
        with pytest.raises(Cancelled, match="enough"):
            await VERBS[verb](held)
        assert len(await bob.log("s", all=True)) == before
        assert held.data == {"n": 2}


@pytest.mark.parametrize("end", ["checkpoint", "append", "complete", "fail"])
async def test_saving_and_ending_work_without_a_conflict(ann, bob, end):
    """A cancelled holder may save and end: it needs no refresh for that."""
    async with ann.hold("s") as held:
        await bob.cancel("s")
        match end:
            case "checkpoint":
                assert (await held.checkpoint("last", {"n": 2})).data == {"n": 2}
            case "append":
                assert (await held.checkpoint("last", append={"list": [1]})).data == {"n": 1, "list": [1]}
            case "complete":
                await held.complete({"grade": "B"})
            case _:
                await held.fail("stopped")
        if end in {"checkpoint", "append"}:
            assert held.cancelled.is_set()
            await held.checkpoint("the very last", {"n": 3})
    if end == "complete":
        assert (await bob.get_session("s")).state is SessionState.COMPLETED
    elif end == "fail":
        assert (await bob.get_checkpoint("s", "session_failed")).data["error"] == "stopped"
    else:
        await is_cancelled(bob, "")
        assert await bob.get_data("s") == {"n": 3}


async def test_running_step_keeps_its_result(ann, bob):
    """A step that was running when the session was cancelled is journaled; the next verb raises."""
    async with ann.hold("s") as held:

        async def ask():
            await bob.cancel("s")
            return "5/6"

        assert await held.step("ask", ask) == "5/6"
        assert [step.state for step in await held.steps()] == ["finished"]
        with pytest.raises(Cancelled):
            await held.step("more", lambda: 1)


@pytest.mark.parametrize("how", ["normally", "by an error", "released", "cancelled"])
@pytest.mark.parametrize("knows", [False, True], ids=["unaware", "aware"])
async def test_leaving_fails_a_cancelled_session(ann, bob, how, knows):
    """However its holder leaves it, and whether it knew or not: a cancelled session fails and is not claimed."""
    held = await ann.take("s")
    await bob.cancel("s", "enough")
    if knows:
        await held.checkpoint("noticed", {})
    if how == "released":
        await held.release()
    elif how == "normally":
        async with held:
            pass
    else:
        await crash(held, asyncio.CancelledError() if how == "cancelled" else Overload())
    await is_cancelled(bob, "enough")
    await is_cancelled(ann, "enough")


@pytest.mark.parametrize("by", ["claim", "hold"])
async def test_cancelled_session_of_a_dead_worker_fails(stores, ann, bob, by):  # noqa: F811
    """If the holder dies without having left, the next worker fails the session instead of taking it."""
    held = await ann.take("s")
    await bob.cancel("s", "enough")
    await held.checkpoint("noticed", {})
    await left(ann)
    if by == "claim":
        assert await bob.claim() == []
    else:
        with pytest.raises(InvalidTransition):
            await bob.take("s")
    await is_cancelled(bob, "enough")


async def test_conflict_remains_one(ann, bob):
    """What others wrote beside the cancellation is still a conflict, and a refresh takes it in."""
    async with ann.hold("s") as held:
        await bob.cancel("s")
        value = await bob.get_session("s")
        value.context["more"] = 1
        await bob.update_session(value)
        with pytest.raises(Conflict):
            await held.checkpoint("two", {"n": 2})
        with pytest.raises(Cancelled):
            await held.refresh()
        assert held.session.context == {"topic": "fractions", "more": 1}
        await held.checkpoint("two", {"n": 2})
        await held.complete()


async def test_recovered_session_is_not_cancelled_any_more(ann, bob):
    """A cancellation ends with the session; a later hold works."""
    held = await ann.take("s")
    await bob.cancel("s")
    await held.release()
    await bob.rollback("s", "created")
    async with bob.hold("s") as again:
        await again.update_context(n=1)
        assert not again.cancelled.is_set()


async def test_log_shows_the_cancellation(ann, bob):
    """`log(all=True)` shows the mark with its reason; a history does not."""
    async with ann.hold("s"):
        await bob.cancel("s", "enough")
        assert [line.metadata for line in await bob.log("s", all=True) if line.kind == "cancelled"] == [
            {"reason": "enough"}
        ]
        assert "session_cancelled" not in [entry.name for entry in await bob.history("s")]


async def test_local_holder_knows_at_once(ann):
    """If the holder is in the same process, no heartbeat has to pass."""
    async with ann.hold("s") as held:
        await ann.cancel("s")
        assert held.cancelled.is_set()


# Release by hand


@pytest.mark.parametrize("noticed", ["beat", "verb", "here"])
async def test_release_takes_the_lease_away(stores, bob, noticed):  # noqa: F811
    """The former holder's verbs raise LeaseLost; the session is active and free, and not an orphan."""
    manager = SessionManager(store=stores[0], **(OFTEN if noticed == "beat" else RARELY))
    held = await manager.take("s", create="tutor")
    assert await (manager if noticed == "here" else bob).release("s", "stuck") is True
    if noticed == "beat":
        await asyncio.wait_for(held.lost.wait(), 60)
    elif noticed == "here":
        assert held.lost.is_set()
    with pytest.raises(LeaseLost):
        await held.checkpoint("late", {})
    assert held.lost.is_set()
    await held.release()
    session = await bob.get_session("s")
    assert (session.state, session.owner) == (SessionState.ACTIVE, None)
    assert await notes(bob) == [{"reason": "stuck"}]
    assert await bob.release("s") is False
    async with bob.hold("s") as again:
        assert again.fence > held.fence
        with pytest.raises(LeaseHeld):
            await manager.checkpoint("s", "late", {})
    await left(manager)


async def test_release_of_what_an_error_left(ann, bob):
    """A session released by an error is not an orphan any more; an ended or unknown one is refused."""
    await crash(await ann.take("s"))
    assert await bob.release("s") is True
    assert await bob.count(orphaned=True) == 0
    assert await bob.claim() == []
    with pytest.raises(NotFound):
        await bob.release("unknown")


async def test_release_of_a_cancelled_session_fails_it(ann, bob):
    """A holder that does not react to a cancellation can be released by hand: the session fails."""
    held = await ann.take("s")
    await bob.cancel("s", "enough")
    assert await bob.release("s") is True
    await is_cancelled(bob, "enough")
    with pytest.raises(LeaseLost):
        await held.heartbeat()


def test_blocking_cancel_and_release():
    """The same for synchronous callers: `cancelled` can be waited for, and verbs raise."""
    with saveslot.blocking.open("memory:", worker_beat=0.05, worker_ttl=5) as sessions:
        with sessions.hold("s", create="tutor") as held:
            assert not held.cancelled.wait(0.01)
            assert sessions.cancel("s", "enough") is SessionState.ACTIVE
            assert held.cancelled.wait(60)
            with pytest.raises(Cancelled):
                held.pause()
            held.checkpoint("last", {})
        assert sessions.get_session("s").state is SessionState.FAILED
        held = sessions.take("t", create="tutor")
        assert sessions.release("t") is True
        with pytest.raises(LeaseLost):
            held.pause()
