"""What a rollback or retention would do, before it is done."""

from __future__ import annotations

import pytest

from saveslot import Conflict, NotFound, Retention
from saveslot.manager.drops import apply, drops, thin_preview
from saveslot.manager.preview import rollback_preview


async def test_a_rollback_is_previewed(sessions, others):
    """The difference, steps after the target, who holds the session; and nothing is written."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    async with others.hold("s") as held:
        await held.step("before", lambda: 1)
        await held.checkpoint("one", {"n": 1})
        await held.step("mail", lambda: 1, key="a", mode="at_most_once")
        with pytest.raises(ZeroDivisionError):
            await held.step("pay", lambda: 1 / 0)
        await held.checkpoint("two", {"n": 2})
        during = await rollback_preview(sessions, "s", "one")
        assert (during.allowed, during.holder) == (False, others.worker["name"])
        assert others.worker["name"] in during.refused
    found = await rollback_preview(sessions, "s", "one")
    assert (found.to.name, found.state_after, found.allowed, found.holder) == ("one", "active", True, None)
    assert [(effect.name, effect.key, effect.status) for effect in found.effects] == [
        ("mail", "a", "finished"),
        ("pay", None, "failed"),
    ]
    assert found.diff.items == [{"op": "replace", "path": "/n", "value": 1, "old": 2}]
    assert found.left_behind == 1
    assert found.version == (await sessions.head("s")).version
    await sessions.checkpoint("s", "three", {"n": 3})
    with pytest.raises(Conflict):
        await sessions.rollback("s", "one", seen=found.version)
    await sessions.rollback("s", "one", seen=(await rollback_preview(sessions, "s", "one")).version)
    await sessions.fail("s", "x")
    assert (await rollback_preview(sessions, "s", "two")).state_after == "active"
    await sessions.create_session("tutor", session_id="done", data={})
    await sessions.complete("done")
    refused = await rollback_preview(sessions, "done", 2)
    assert (refused.allowed, refused.state_after) == (False, "completed")
    with pytest.raises(NotFound):
        await rollback_preview(sessions, "s", "none")


async def test_retention_is_previewed(fresh):
    """Per session what would go, pinned ones kept; then exactly that goes."""
    sessions = fresh(retention=Retention(keep_last=2, keep_latest_per_name=False))
    await sessions.create_session("tutor", session_id="long", data={"n": 0})
    for n in range(6):
        await sessions.checkpoint("long", "turn", {"n": n, "text": "word " * n})
    await sessions.pin("long", 4)
    await sessions.create_session("tutor", session_id="short", data={"n": 0})
    found = await thin_preview(sessions)
    [drop] = found.sample
    assert (found.sessions, found.checkpoints, found.pinned, found.looked_at) == (1, len(drop.drop), 1, 2)
    assert drop.id == "long"
    assert 4 not in drop.drop
    assert (await sessions.thin_all(grace=0)).marked == found.checkpoints
    gone = [entry.seq for entry in await sessions.entries("long")]
    assert not set(drop.drop) & set(gone)
    assert (await thin_preview(sessions)).sample == []


async def test_drops_are_applied_and_freed_later(fresh, clock):
    """What was dropped is hidden at once, and a run ten minutes later frees its bytes although nothing more is due."""
    sessions = fresh(retention=Retention(keep_last=1, keep_latest_per_name=False))
    for name in ("a", "b", "c"):
        await sessions.create_session("tutor", session_id=name, data={"n": 0})
        for n in range(5):
            await sessions.checkpoint(name, "turn", {"n": n, "text": "word " * n})
    pages = [await drops(sessions, looked=2)]
    pages.append(await drops(sessions, looked=2, after=pages[0].next))
    assert [[drop.id for drop in page.drops] for page in pages] == [["c", "b"], ["a"]]
    assert pages[1].next is None
    for page in pages:
        done = await apply(sessions, page)
        assert (done.drops, done.thinned.emptied, done.refused) == (page.drops, 0, [])
    clock.pass_hours(0.2)
    again = await drops(sessions)
    assert (again.drops, len(again.hidden)) == ([], 3)
    freed = (await apply(sessions, again)).thinned
    assert freed.freed_bytes == sum(drop.bytes for page in pages for drop in page.drops)
