"""Lists of sessions with what they show of each, and the counts beside them."""

from __future__ import annotations

import pytest

from saveslot import InvalidInput, SessionState
from saveslot.manager import facets as facets_module
from saveslot.manager.facets import facets
from saveslot.manager.rows import each, rows
from saveslot.values.log import Query

ALL = Query(namespace="default")


async def some(sessions, others) -> None:
    """One of each: active, orphaned, paused, completed, failed, forked."""
    for n, state in enumerate(["active", "orphaned", "pause", "complete", "fail"]):
        await sessions.create_session(
            "tutor" if n % 2 else "booker", session_id=state, labels={"env": "prod" if n < 3 else "test"}, data={"n": n}
        )
        await sessions.checkpoint(state, f"c{n}", {"n": n + 1})
    await sessions.pause("pause")
    await sessions.complete("complete")
    await sessions.fail("fail", "rate limited")
    await sessions.fork("complete", session_id="fork")
    await others.take("orphaned")
    await others.engine.worker.leave()


async def test_rows_tell_where_each_session_is(sessions, others):
    """Entries, newest checkpoint, owner and its silence, origin of a fork, reason of a failure."""
    await some(sessions, others)
    page = await rows(sessions, [ALL])
    found = {item.session.session_id: item for item in page.items}
    assert [*found] == ["fork", "fail", "complete", "pause", "orphaned", "active"]
    row = found["pause"].row
    assert (row.entries, row.newest.seq, row.newest.name, row.failure) == (4, 3, "c2", None)
    assert (found["pause"].session.head.kind, found["pause"].session.head.seq) == ("paused", 4)
    assert (found["fail"].row.failure.reason, found["fork"].row.forked_from) == ("rate limited", "complete:3")
    owner = found["orphaned"].row.owner
    assert (owner.worker, owner.left_s, owner.late) == (others.worker["name"], 0, False)
    assert owner.silent_since is not None
    assert found["active"].row.owner is None


async def test_several_states_and_agents_are_one_list(sessions, others):
    """In the order of one, with cursors that neither leave out nor repeat a session."""
    await some(sessions, others)
    queries = each(ALL, [SessionState.ACTIVE, SessionState.FAILED], ["tutor", "booker"])
    assert len(queries) == 4
    seen, after = [], None
    while True:
        page = await rows(sessions, queries, limit=2, after=after)
        seen += [item.session.session_id for item in page.items]
        after = page.next
        if after is None:
            break
    assert seen == ["fork", "fail", "orphaned", "active"]
    with pytest.raises(InvalidInput, match="combinations"):
        each(ALL, list(SessionState), [str(n) for n in range(9)])


async def test_outlooks_come_with_few_rows(sessions, others):
    """At most 20."""
    await some(sessions, others)
    page = await rows(sessions, [Query(namespace="default", orphan_for=0)], limit=5, outlook=True)
    assert [item.row.outlook.goes_on_from.name for item in page.items] == ["c1"]
    with pytest.raises(InvalidInput, match="limit"):
        await rows(sessions, [ALL], limit=21, outlook=True)


async def test_the_longest_silent_come_first(sessions, clock):
    """Sessions without a sign of life since a time, ordered by it."""
    for name in "abc":
        await sessions.create_session("tutor", session_id=name)
        clock.pass_hours(1)
    page = await rows(sessions, [Query(namespace="default", stale_for=90 * 60 * 1_000_000)], limit=1)
    assert [item.session.session_id for item in page.items] == ["a"]
    page = await rows(sessions, [Query(namespace="default", stale_for=90 * 60 * 1_000_000)], limit=1, after=page.next)
    assert ([item.session.session_id for item in page.items], page.next) == (["b"], None)


async def test_facets_count_under_all_other_conditions(sessions, others):
    """A chosen state does not hide the other states; it does narrow agents, labels and the histogram."""
    await some(sessions, others)
    whole = await facets(sessions, ALL, level="strong")
    assert whole.by_state == {"active": 3, "paused": 1, "completed": 1, "failed": 1}
    assert (whole.sessions, whole.orphaned, whole.by_agent_type) == (6, 1, {"booker": 3, "tutor": 3})
    assert whole.by_label == {"env": {"prod": 3, "test": 3}}
    assert sum(whole.by_seen.values()) == sum(bucket.all for bucket in whole.created.buckets) == 6
    assert sum(bucket.failed for bucket in whole.created.buckets) == 1
    assert (whole.looked_at.sessions, whole.looked_at.of) == (6, 6)
    active = await facets(sessions, ALL, states=[SessionState.ACTIVE], level="strong")
    assert (active.sessions, active.by_state) == (3, whole.by_state)
    assert active.by_agent_type == {"booker": 1, "tutor": 2}
    prod = await facets(sessions, Query(namespace="default", labels={"env": "prod"}), level="strong")
    assert (prod.sessions, prod.by_label["env"], prod.by_state["failed"]) == (3, {"prod": 3, "test": 3}, 0)
    orphans = await facets(sessions, Query(namespace="default", orphan_for=0), level="strong")
    assert (orphans.sessions, orphans.orphaned) == (1, 1)


async def test_facets_say_what_they_looked_at(sessions, monkeypatch):
    """Beyond the sample, states and agent types are still exact."""
    monkeypatch.setattr(facets_module, "SAMPLE", 4)
    monkeypatch.setattr(facets_module, "TOGETHER", 2)
    for n in range(7):
        await sessions.create_session("tutor", session_id=f"s{n}", labels={"n": str(n)})
    found = await facets(sessions, ALL, level="strong")
    assert (found.sessions, found.by_agent_type) == (7, {"tutor": 7})
    assert (found.looked_at.sessions, found.looked_at.of) == (4, 7)
    assert sorted(found.by_label["n"]) == ["3", "4", "5", "6"]
    assert found.looked_at.since == (await sessions.get_session("s3")).created_at
    empty = await facets(sessions.of("empty"), Query(namespace="empty"), level="strong")
    assert (empty.sessions, empty.created.buckets, empty.as_of) == (0, [], None)
