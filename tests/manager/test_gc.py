"""gc removes sessions that ended long ago or were deleted, and never one in use."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from saveslot import Conflict, InvalidInput, NotFound, Thinned
from saveslot.manager.thin import GRACE
from saveslot.values.log import Query

DAY = timedelta(days=1)
NOW = timedelta(0)


async def create(sessions, *ids, end="complete"):
    for one in ids:
        await sessions.create_session("tutor", session_id=one)
        await sessions.checkpoint(one, "c", {"text": "x" * 100})
        if end:
            async with sessions.hold(one) as held:
                await (held.complete() if end == "complete" else held.fail("no luck"))


async def stored(store):
    return (await store.count(Query(namespace="default"))).entries


async def test_gc_removes_only_long_ended_sessions(sessions, others, stores, clock):
    """Their rows are removed; active and recently ended sessions stay. A dry run only reports the same."""
    await create(sessions, "old", "older")
    await create(sessions, "failed", end="fail")
    await create(sessions, "working", end="")
    clock.pass_hours(24 * 30)
    await create(sessions, "new")
    before = await stored(stores[1])
    dry = await others.gc(dry_run=True)
    assert (sorted(dry.sessions), dry.tombstones, dry.dry_run) == (["failed", "old", "older"], [], True)
    assert await stored(stores[1]) == before
    assert (await others.gc(states=["failed"], dry_run=True)).sessions == ["failed"]
    items = []
    done = await others.gc(progress=lambda *at: items.append(at))
    assert (sorted(done.sessions), done.bytes, done.count) == (sorted(dry.sessions), dry.bytes, 3)
    assert items[-1] == (3, 3)
    assert dry.bytes > 300
    assert await stored(stores[1]) == before - 4 * 3
    assert sorted(session.session_id for session in await sessions.find()) == ["new", "working"]
    assert await sessions.get_session("old") is None
    with pytest.raises(NotFound):
        await sessions.checkpoint("old", "late", {})
    assert (await others.gc(NOW)).sessions == ["new"]
    assert (await others.gc(NOW)).count == 0


async def test_tombstones_are_removed_after_their_grace(sessions, others, stores, clock):
    """A tombstone stays for a week; a session recreated under its id meanwhile is not touched."""
    await create(sessions, "s", end="")
    await sessions.delete_session("s")
    assert (await others.gc()).count == 0
    await create(sessions, "s", end="")
    clock.pass_hours(24 * 7)
    dry = await others.gc(None, dry_run=True)
    assert (dry.sessions, dry.tombstones) == ([], ["s"])
    done = await others.gc(None)
    assert (done.tombstones, done.bytes, done.to_dict()["count"]) == (["s"], dry.bytes, 1)
    assert await stored(stores[0]) == 2
    assert (await sessions.get_checkpoint("s")).name == "c"
    assert (await others.gc(None, grace=NOW)).count == 0


async def test_recovered_session_survives_gc(sessions, others, stores, monkeypatch):
    """A failed session that is recovered between being listed and being removed is not removed."""
    await create(sessions, "s", end="fail")
    real = type(stores[1]).find

    async def slow(self, query, *rest):
        rows = await real(self, query, *rest)
        if rows and query.ended_for is not None:
            monkeypatch.undo()
            await sessions.rollback("s", "c")
        return rows

    monkeypatch.setattr(type(stores[1]), "find", slow)
    assert (await others.gc(NOW)).sessions == []
    assert (await others.get_checkpoint("s")).data == {"text": "x" * 100}


async def test_interrupted_gc_is_finished_by_the_next(sessions, others, monkeypatch):
    """The next run does what an interrupted one left; two concurrent runs remove each session once."""
    monkeypatch.setattr("saveslot.manager.gc.BATCH", 3)
    await create(sessions, *(f"s{n}" for n in range(10)))
    seen = []

    def stop(done, total):
        seen.append((done, total))
        if len(seen) == 2:
            raise KeyError

    with pytest.raises(KeyError):
        await sessions.gc(NOW, progress=stop)
    assert seen == [(3, 10), (6, 10)]
    runs = await asyncio.gather(sessions.gc(NOW), others.gc(NOW))
    gone = [one for run in runs for one in run.sessions]
    assert len(gone) == len(set(gone)) == 4
    assert await sessions.count() == 0


async def test_gc_bounds_each_write(sessions, others, stores, monkeypatch):
    """No write removes more entries or bytes than the limit, unless a single session exceeds it."""
    await create(sessions, "s0", "s1", "s2", "s4", "s5")
    await create(sessions, "s3", end="")
    for n in range(20):
        await sessions.checkpoint("s3", "c", {"n": n})
    async with sessions.hold("s3") as held:
        await held.complete()
    real, parts = type(stores[1]).purge, []

    async def purge(self, keys, seen=None):
        parts.append(len(keys))
        return await real(self, keys, seen)

    monkeypatch.setattr(type(stores[1]), "purge", purge)
    monkeypatch.setattr("saveslot.manager.gc.ENTRIES", 10)
    assert sorted((await others.gc(NOW)).sessions) == [f"s{n}" for n in range(6)]
    assert parts == [2, 2, 1, 1]
    await create(sessions, "a", "b", "c")
    parts.clear()
    monkeypatch.setattr("saveslot.manager.gc.LARGE", 1)
    assert (await others.gc(NOW)).count == 3
    assert parts == [1, 1, 1]


async def test_thinning_does_not_delay_gc(sessions, others, clock):
    """A mark after the end does not delay the removal."""
    await create(sessions, "s", end="")
    for n in range(60):
        await sessions.checkpoint("s", "c", {"n": n})
    async with sessions.hold("s") as held:
        await held.complete()
    clock.pass_hours(24 * 40)
    assert (await others.thin("s")).marked > 0
    assert (await others.gc(30 * DAY)).sessions == ["s"]


async def test_bad_gc_arguments_are_refused(sessions):
    """Ages are 0 or more, and only ended sessions are garbage."""
    for wrong in (
        {"older_than": -DAY},
        {"older_than": "5"},
        {"grace": -DAY},
        {"states": ["active"]},
        {"states": ["x"]},
    ):
        with pytest.raises(InvalidInput):
            await sessions.gc(**wrong)


async def test_keeper_thins_and_collects(fresh, clock):
    """When configured, the keeper does both in the background and counts what it did; by default it thins and removes
    nothing.
    """
    sessions, keeping = fresh(), fresh(worker_beat=0.05, worker_ttl=1)
    await create(sessions, "gone", end="")
    await sessions.delete_session("gone")
    await create(sessions, "s", end="")
    for n in range(60):
        await sessions.checkpoint("s", "c", {"n": n})
    async with sessions.hold("s") as held:
        await held.complete()
    with pytest.raises(InvalidInput, match="nothing to do"):
        await keeping.keeper.start(thin=False)
    with pytest.raises(InvalidInput, match="tidy_every"):
        await keeping.keeper.start(tidy_every=0)
    clock.pass_hours(24 * 31)
    await keeping.keeper.start(tidy_every=0.05)

    async def until(**counts):
        while any(keeping.keeper.stats[name] < count for name, count in counts.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await until(thinned=39)
    clock.pass_hours(GRACE.total_seconds() / 3600)
    await until(emptied=1)
    stats = (await keeping.stats())["keeper"]
    assert (stats["thinned"], stats["removed"], stats["errors"]) == (39, 0, 0)
    assert stats["freed_bytes"] > 0
    await keeping.keeper.start(gc_after=90 * DAY, tidy_every=0.05)
    await until(removed=1)
    assert await sessions.count() == 1
    clock.pass_hours(24 * 90)
    await until(removed=2)
    assert await sessions.count() == 0
    await keeping.keeper.stop()


async def test_pin_does_not_prevent_gc(sessions, clock):
    """A pin protects a checkpoint from retention, not from the removal of its whole session."""
    await create(sessions, "s")
    await sessions.pin("s", "c")
    clock.pass_hours(24 * 31)
    assert await sessions.thin_all() == Thinned()
    assert (await sessions.gc()).sessions == ["s"]
    with pytest.raises((NotFound, Conflict)):
        await sessions.pin("s", "c")
