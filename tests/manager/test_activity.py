"""What is written, by time: of one session all of it, of a namespace a sample that says what it is of."""

from __future__ import annotations

from itertools import pairwise

import pytest

from saveslot import InvalidInput
from saveslot.manager import activity
from saveslot.manager.activity import buckets, overview, pulse
from saveslot.manager.storage import storage


async def test_an_overview_has_pieces_and_turns(sessions, others):
    """Every entry is in one piece; takeovers, rollbacks and forks are named one by one."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    held = await others.take("s")
    for n in range(40):
        await held.checkpoint("turn", {"n": n})
    with pytest.raises(ZeroDivisionError):
        await held.step("divide", lambda: 1 / 0)
    await others.engine.worker.leave()
    [held] = await sessions.claim()
    await held.release()
    await sessions.rollback("s", 10)
    await sessions.fork("s", 20, "branch")
    found = await overview(sessions, "s", n=10)
    entries = await sessions.entries("s")
    assert len(found.items) <= 10
    assert [piece.from_seq for piece in found.items[1:]] == [piece.to_seq + 1 for piece in found.items[:-1]]
    assert (found.items[0].from_seq, found.items[-1].to_seq, found.entries) == (1, 47, 47)
    assert sum(piece.bytes for piece in found.items) == sum(entry.size for entry in entries)
    assert (sum(piece.checkpoints for piece in found.items), sum(piece.failed_steps for piece in found.items)) == (
        42,
        1,
    )
    assert found.items[3].owner == others.worker["name"]
    assert [turn.kind for turn in found.turns] == ["taken", "claimed", "released", "rollback"]
    assert (found.turns[1].former.worker, found.turns[3].to.seq) == (others.worker["name"], 10)
    assert [(branch.seq, branch.fork.id) for branch in found.forks] == [(20, "branch")]


async def test_buckets_count_by_time(sessions, clock):
    """Checkpoints, bytes, sessions created, ended and failed, in buckets without gaps."""
    await sessions.create_session("tutor", session_id="a", data={"n": 0})
    clock.pass_hours(1)
    await sessions.create_session("grader", session_id="b", data={"n": 0})
    await sessions.complete("a")
    await sessions.fail("b", "x")
    found = await buckets(sessions, bucket=600, since=7200)
    assert {(after.start - before.start).total_seconds() for before, after in pairwise(found.items)} == {600}
    totals = [
        sum(getattr(item, name) for item in found.items) for name in ("checkpoints", "created", "ended", "failed")
    ]
    assert totals == [2, 2, 1, 1]
    assert (found.looked_at.sessions, found.looked_at.whole) == (2, True)
    assert sum(item.created for item in (await buckets(sessions, since=7200, agent_type="grader")).items) == 1
    with pytest.raises(InvalidInput, match="bucket"):
        await buckets(sessions, bucket=1, since=86_400)
    empty = await buckets(sessions.of("empty"))
    assert (empty.items, empty.as_of) == ([], None)


async def test_long_sessions_count_as_created(sessions, monkeypatch):
    """Also when the entry that created one is older than those that are read."""
    monkeypatch.setattr(activity, "EACH", 2)
    await sessions.create_session("tutor", session_id="a", data={"n": 0})
    for n in range(1, 4):
        await sessions.checkpoint("a", "turn", {"n": n})
    found = await buckets(sessions, since=7200)
    assert sum(item.created for item in found.items) == 1
    assert sum(item.entries for item in found.items) == 2


async def test_samples_say_so(sessions, monkeypatch):
    """Beyond their bounds they are not the whole."""
    monkeypatch.setattr(activity, "NEWEST", 2)
    for name in "abc":
        await sessions.create_session("tutor", session_id=name)
    found = await buckets(sessions, since=7200)
    assert (found.looked_at.sessions, found.looked_at.whole) == (2, False)


async def test_pulse_names_workers(sessions, others):
    """Those that hold sessions: silent ones first, with how many; and how fast is saved."""
    for name in "abc":
        await sessions.create_session("tutor", session_id=name, data={"n": 0})
    await sessions.take("a")
    await sessions.take("b")
    await others.take("c")
    await others.engine.worker.leave()
    found = await pulse(sessions)
    assert [(line.alive, line.held) for line in found.workers] == [(False, 1), (True, 2)]
    assert (found.workers[0].name, found.late) == (others.worker["name"], 0)
    assert found.rates["1h"].checkpoints == pytest.approx(3 / 3600)


async def test_storage_names_what_the_bytes_are_for(sessions):
    """Sorts and agent types add up to the sample; tiers are those of the manager."""
    await sessions.create_session("tutor", session_id="a", data={"text": "word " * 200, "n": 0})
    for n in range(5):
        await sessions.checkpoint("a", "turn", put={"n": n})
    async with sessions.hold("a") as held:
        await held.step("ask", lambda: "answer")
    await sessions.create_session("grader", session_id="b")
    found = await storage(sessions, await sessions.metrics())
    sizes = [entry.size for name in "ab" for entry in await sessions.entries(name)]
    sort = found.by_sort
    assert sort.keyframes + sort.patches + sort.steps + sort.rows == sum(sizes)
    assert min(sort.keyframes, sort.patches, sort.steps, sort.rows) > 0
    assert {line.agent_type: line.sessions for line in found.by_agent_type} == {"tutor": 1, "grader": 1}
    assert sum(line.stored_bytes for line in found.by_agent_type) == sum(sizes)
    assert found.ratio == found.whole_bytes / found.checkpoint_bytes > 2
    assert sum(day.bytes for day in found.written_per_day) == sum(sizes)
    assert {"memory", "database"} <= {tier.name for tier in found.tiers}
    assert all(tier.status in {"healthy", "slow"} for tier in found.tiers)


async def test_analytics_have_a_funnel_and_histograms(sessions):
    """How many sessions reached each name and failed after it; counts by weekday, hour and size."""
    for n in range(4):
        await sessions.create_session("tutor", session_id=f"s{n}")
        for name in ("asked", "planned", "booked")[: n or 1]:
            await sessions.checkpoint(f"s{n}", name, {"n": n})
    await sessions.fail("s2", "sold out")
    await sessions.complete("s3")
    found = await sessions.analytics(between=("asked", "booked"))
    assert found["funnel"] == [
        {"name": "asked", "reached": 4, "failed_after": 0},
        {"name": "planned", "reached": 2, "failed_after": 1},
        {"name": "booked", "reached": 1, "failed_after": 0},
    ]
    assert sum(map(sum, found["heatmap"])) == found["checkpoints"] == 7
    saved = (await sessions.history("s3"))[-1].timestamp
    assert found["heatmap"][saved.weekday()][saved.hour] > 0
    histograms = found["histograms"]
    assert sum(bucket["count"] for bucket in histograms["bytes_per_session"]) == 4
    assert [bucket["count"] for bucket in histograms["between"]] == [1]
    assert all(bucket["from"] < bucket["to"] for bucket in histograms["bytes_per_session"])
