"""What would happen next to a session, and what needs a person."""

from __future__ import annotations

import pytest

from saveslot import KeyMissing
from saveslot.codec import new_key
from saveslot.manager.failures import failures
from saveslot.manager.outlook import outlook


async def test_outlook_of_a_held_session(sessions, others):
    """Where the next owner would begin, what is open, and why the owner's verbs are refused to others."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    async with others.hold("s") as held:
        await held.checkpoint("one", {"n": 1})
        await held.step("ask", lambda: 1)
        with pytest.raises(ZeroDivisionError):
            await held.step("divide", lambda: 1 / 0)
        run = await held.runs.begin(held.call("pay", print, mode="at_most_once"))
        seen = await outlook(sessions, "s")
        run.end()
    assert (seen.goes_on_from.seq, seen.goes_on_from.name) == (4, "one")
    steps = seen.steps
    assert (steps.finished, steps.failed, steps.running, steps.unknown) == (1, 1, 1, [])
    assert (seen.owner.worker, seen.owner.late) == (others.worker["name"], False)
    assert seen.owner.left_s > 0
    assert {"pause", "fail", "cancel", "fork", "release"} <= set(seen.allowed)
    assert {"rollback", "complete", "checkpoint", "hold", "recover", "resume"} & set(seen.refused) == {
        "rollback", "complete", "checkpoint", "hold", "recover",
    }  # fmt: skip
    assert others.worker["name"] in seen.refused["rollback"]


async def test_outlook_of_an_orphan_names_its_unknown_steps(sessions, others):
    """With what is needed to find out: key, start, owner, idempotency key."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    held = await others.take("s")
    run = await held.runs.begin(held.call("pay", print, key="7", mode="at_most_once"))
    run.end()
    await others.engine.worker.leave()
    seen = await outlook(sessions, "s")
    [step] = seen.steps.unknown
    assert (step.name, step.key, step.owner) == ("pay", "7", others.worker["name"])
    assert step.idempotency_key == run.step.idempotency_key
    assert seen.orphaned_since <= (await sessions.head("s")).timestamp or seen.owner.left_s == 0
    assert "hold" in seen.allowed


async def test_outlook_of_a_failed_session_counts_its_reason(sessions):
    """How many failed for the same reason today."""
    for n in range(3):
        await sessions.create_session("tutor", session_id=f"s{n}")
        await sessions.fail(f"s{n}", "rate limited" if n else "other")
    seen = await outlook(sessions, "s1")
    assert (seen.failure.reason, seen.reason_today_count) == ("rate limited", 2)
    assert {"recover", "rollback", "fork"} <= set(seen.allowed)
    assert "pause" in seen.refused


async def test_failures_are_newest_first_with_counts_by_reason(sessions, others, clock):
    """Failed ones within the time, orphans whatever their age, with the last owner and the reason."""
    await sessions.create_session("tutor", session_id="old")
    await sessions.fail("old", "long ago")
    clock.pass_hours(30)
    for n in range(3):
        await sessions.create_session("tutor", session_id=f"s{n}")
        await sessions.fail(f"s{n}", "rate limited" if n else "other")
    await sessions.record("s1", "note", 1)
    await sessions.create_session("tutor", session_id="left")
    with pytest.raises(ZeroDivisionError):
        async with others.hold("left"):
            raise ZeroDivisionError("x")
    await sessions.create_session("grader", session_id="dead")
    await others.take("dead")
    await others.engine.worker.leave()
    found = await failures(sessions)
    assert {(one.session_id, one.state, one.reason) for one in found.items} == {
        ("dead", "orphaned", ""), ("left", "orphaned", "ZeroDivisionError: x"), ("s2", "failed", "rate limited"),
        ("s1", "failed", "rate limited"), ("s0", "failed", "other"),
    }  # fmt: skip
    assert [one.since for one in found.items] == sorted([one.since for one in found.items], reverse=True)
    assert {one.last_owner for one in found.items[:2]} == {others.worker["name"]}
    assert [(reason.reason, reason.sessions) for reason in found.reasons] == [("rate limited", 2), ("other", 1)]
    assert (found.looked_at.sessions, found.looked_at.most) == (6, 1000)
    assert [one.session_id for one in (await failures(sessions, agent_type="grader")).items] == ["dead"]
    assert "old" in [one.session_id for one in (await failures(sessions, since=48 * 3600)).items]


async def test_sealed_sessions_without_a_key(opened):
    """An outlook says which key is missing; a failure is listed without its reason."""
    async with opened(encryption_key=new_key()) as sessions:
        await sessions.create_session("tutor", session_id="s")
        await sessions.fail("s", "secret reason")
        async with opened() as blind:
            with pytest.raises(KeyMissing):
                await outlook(blind, "s")
            assert [one.reason for one in (await failures(blind)).items] == ["(sealed)"]
