"""What operators do to a session they do not hold: settle steps, and see who holds what."""

from __future__ import annotations

import pytest

from saveslot import InvalidInput, InvalidTransition, LeaseHeld, NotFound, StepUnknown
from saveslot.manager.owners import holders, owned
from saveslot.manager.steps import list_steps, resolve_step, retry_step


async def crashed(sessions, others) -> None:
    """A session whose worker died inside the step `charge`."""
    await sessions.create_session("tutor", session_id="lesson-1")
    held = await others.take("lesson-1")
    run = await held.runs.begin(held.call("charge", print, key="7", mode="at_most_once"))
    run.end()
    await others.engine.worker.leave()


async def test_a_resolved_step_of_an_orphan_returns_its_result(sessions, others):
    """The next owner gets what the operator found out, and the session stays an orphan until then."""
    await crashed(sessions, others)
    assert [(line.state, line.attempts) for line in await list_steps(sessions, "lesson-1")] == [("unknown", 1)]
    await resolve_step(sessions, "lesson-1", "charge", {"paid": True}, key="7")
    assert await sessions.count(orphaned=True) == 1
    [held] = await sessions.claim()
    async with held:
        assert await held.step("charge", pytest.fail, key="7", mode="at_most_once") == {"paid": True}
    [line] = await list_steps(sessions, "lesson-1")
    assert (line.state, line.attempts, line.result) == ("finished", 1, {"paid": True})


async def test_a_retried_step_of_an_orphan_runs_once_more(sessions, others):
    """Without it the next owner gets StepUnknown; with it the step runs by the same key."""
    await crashed(sessions, others)
    [before] = await list_steps(sessions, "lesson-1")
    async with sessions.hold("lesson-1") as held:
        with pytest.raises(StepUnknown):
            await held.step("charge", lambda: "paid", key="7", mode="at_most_once")
    await retry_step(sessions, "lesson-1", "charge", key="7")
    keys: list[str] = []

    def record(idempotency_key: str) -> None:
        keys.append(idempotency_key)

    async with sessions.hold("lesson-1") as held:
        await held.step("charge", record, key="7", mode="at_most_once")
    assert keys == [before.step.idempotency_key]
    [line] = await list_steps(sessions, "lesson-1")
    assert (line.state, line.attempts) == ("finished", 2)


async def test_settling_is_refused_while_a_worker_lives(sessions, others):
    """Its owner alone knows; a finished step, an unknown one and an ended session are refused too."""
    await sessions.create_session("tutor", session_id="lesson-1")
    async with others.hold("lesson-1") as held:
        await held.step("ask", lambda: 1)
        with pytest.raises(LeaseHeld):
            await retry_step(sessions, "lesson-1", "ask")
        [worker] = await holders(sessions)
        assert (worker.alive, [one.session_id for one in worker.sessions]) == (True, ["lesson-1"])
        assert await owned(sessions, alive=False) == []
    with pytest.raises(InvalidInput, match="finished"):
        await retry_step(sessions, "lesson-1", "ask")
    with pytest.raises(NotFound, match="no step 'nothing'"):
        await resolve_step(sessions, "lesson-1", "nothing", 1)
    with pytest.raises(InvalidInput, match="result"):
        await resolve_step(sessions, "lesson-1", "ask", object())
    session = await sessions.get_session("lesson-1")
    session.complete()
    await sessions.update_session(session)
    with pytest.raises(InvalidTransition):
        await retry_step(sessions, "lesson-1", "ask")
    assert await holders(sessions) == []
