"""Versions: what a caller has seen, on writes by id and with `seen=`."""

from __future__ import annotations

import asyncio

import pytest

from saveslot import Conflict, InvalidInput, LeaseHeld, NotFound, SessionState

READS = {
    "get_session": lambda m: m.get_session("s", history=0),
    "cached": lambda m: m.get_session("s", level="cached", max_age=0),
    "head": lambda m: m.head("s"),
    "get_data": lambda m: m.get_data("s"),
    "get_checkpoint": lambda m: m.get_checkpoint("s"),
    "history": lambda m: m.history("s"),
    "entries": lambda m: m.entries("s"),
    "log": lambda m: m.log("s"),
    "diff": lambda m: m.diff("s", 1, "latest"),
    "summary": lambda m: m.summary("s"),
    "export": lambda m: m.export("s"),
    "audit": lambda m: m.audit("s"),
}


@pytest.fixture
async def s(sessions) -> str:
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    return "s"


async def test_turns_by_id_meet_no_false_conflict(s, sessions, others):
    """Two processes take turns, each reading before it writes: every write lands."""
    for n in range(1, 13):
        manager = (sessions, others)[n % 2]
        data = await manager.get_data(s)
        await manager.checkpoint(s, f"turn {n}", {"n": data["n"] + 1})
    assert (await sessions.get_data(s)) == {"n": 12}


async def test_stale_write_by_id_is_refused_until_a_read(s, sessions, others):
    """A writer by id that has not read another process's entry gets a Conflict each time, and nothing is stored."""
    await sessions.checkpoint(s, "mine", {"n": 1})
    await others.checkpoint(s, "theirs", {"n": 2})
    for _ in range(3):
        for write in (
            lambda: sessions.checkpoint(s, "stale", {"n": 3}),
            lambda: sessions.checkpoint(s, "stale", append={"list": [1]}),
            lambda: sessions.rollback(s, "mine"),
            lambda: sessions.pause(s),
            lambda: sessions.complete(s),
            lambda: sessions.fail(s, "stale"),
        ):
            with pytest.raises(Conflict) as refused:
                await write()
            assert (refused.value.seen, refused.value.head) == (3, 4)
    assert await others.get_data(s) == {"n": 2}
    await sessions.get_data(s)
    assert (await sessions.checkpoint(s, "now", {"n": 3})).seq == 5


@pytest.mark.parametrize("read", READS)
async def test_every_read_of_the_session_counts(s, sessions, others, read):
    """After a Conflict, any read of that session lets the next write follow what it has read."""
    await others.checkpoint(s, "theirs", {"n": 1})
    with pytest.raises(Conflict):
        await sessions.checkpoint(s, "stale", {"n": 2})
    await READS[read](sessions)
    await sessions.checkpoint(s, "now", {"n": 2})


async def test_lists_and_other_sessions_do_not_count(s, sessions, others):
    """`find`, `count`, a fork and reads of another session leave a stale writer stale."""
    await sessions.create_session("tutor", session_id="other")
    await others.checkpoint(s, "theirs", {"n": 1})
    await sessions.find()
    await sessions.count()
    await sessions.stats()
    await sessions.head("other")
    await sessions.fork(s)
    with pytest.raises(Conflict):
        await sessions.checkpoint(s, "stale", {"n": 2})


async def test_first_write_by_id_follows_the_newest(s, sessions, others):
    """A manager that has neither read nor written the session follows whatever is newest, and then its own write."""
    await sessions.checkpoint(s, "one", {"n": 1})
    await others.checkpoint(s, "two", {"n": 2})
    await others.checkpoint(s, "three", {"n": 3})
    assert [entry.name for entry in await sessions.entries(s)][-2:] == ["two", "three"]


async def test_a_read_overtaken_by_a_write_does_not_rewind(s, sessions):
    """A read that began before this manager's own write does not make the next one stale."""
    for n in range(20):
        await asyncio.gather(sessions.get_data(s), sessions.checkpoint(s, f"c{n}", {"n": n}), sessions.head(s))
    assert (await sessions.get_data(s)) == {"n": 19}


async def test_evicted_log_stays_stale(s, sessions, others):
    """A stale writer is refused, too, when its log is no longer cached."""
    await others.checkpoint(s, "theirs", {"n": 1})
    sessions.engine.cache.drop(("default", s))
    with pytest.raises(Conflict):
        await sessions.checkpoint(s, "stale", {"n": 2})


async def test_recreated_session_is_not_the_one_that_was_read(s, sessions, others):
    """A write by id to a session that was deleted and recreated is NotFound until it is read."""
    await others.delete_session(s)
    await others.create_session("tutor", session_id=s)
    for _ in range(3):
        with pytest.raises(NotFound):
            await sessions.checkpoint(s, "stale", {"n": 2})
    await sessions.head(s)
    await sessions.checkpoint(s, "now", {"n": 2})


async def test_blind_writes_do_not_count_as_reading(s, sessions, others):
    """A pin or a cancellation goes after whatever is newest, and the next checkpoint is still refused."""
    await others.checkpoint(s, "theirs", {"n": 1})
    await sessions.pin(s, "created")
    with pytest.raises(Conflict):
        await sessions.checkpoint(s, "stale", {"n": 2})


async def test_version_is_that_of_session_checkpoint_and_head(s, sessions, others):
    """They name the same entry; a pin or a mark does not move them; a checkpoint does."""
    checkpoint = await sessions.checkpoint(s, "one", {"n": 1})
    await sessions.pin(s, "one")
    await sessions.thin(s)
    session, head = await others.get_session(s), await others.head(s)
    [found] = await others.find(heads=True)
    versions = {checkpoint.version, session.version, head.version, found.version, found.head.version}
    assert versions == {(await others.history(s))[-1].version}
    assert (head.seq, head.name, head.kind) == (3, "one", "checkpoint")
    assert session.to_dict()["version"] == head.version
    newer = await sessions.checkpoint(s, "two", {"n": 2})
    assert newer.version not in versions
    assert await others.head("nobody") is None


@pytest.mark.parametrize(
    "verb", ["checkpoint", "patch", "update", "rollback", "fork", "pause", "complete", "fail", "delete"]
)
async def test_seen_is_refused_unless_newest(s, sessions, others, verb):
    """With `seen`, a verb lands after that entry only: Conflict for an older one, whatever the manager has read."""
    old = (await sessions.head(s)).version
    new = (await others.checkpoint(s, "theirs", {"n": 1})).version
    await others.pin(s, "theirs")
    value = await sessions.get_session(s)
    value.context["k"] = 1

    async def write(seen):
        match verb:
            case "checkpoint":
                return await sessions.checkpoint(s, "mine", {"n": 2}, seen=seen)
            case "patch":
                return await sessions.checkpoint(s, "mine", patch=[{"op": "remove", "path": "/n"}], seen=seen)
            case "update":
                return await sessions.update_session(value, seen=seen)
            case "rollback":
                return await sessions.rollback(s, "created", seen=seen)
            case "fork":
                return await sessions.fork(s, session_id="copy", seen=seen)
            case "delete":
                return await sessions.delete_session(s, seen=seen)
            case "fail":
                return await sessions.fail(s, "why", seen=seen)
            case _:
                return await getattr(sessions, verb)(s, seen=seen)

    for _ in range(2):
        with pytest.raises(Conflict):
            await write(old)
    for wrong in ("", "5", 5, "4-xyz", new.upper() + "0"):
        with pytest.raises(InvalidInput, match="seen"):
            await write(wrong)
    assert await write(new)


async def test_seen_needs_no_earlier_read(s, sessions, others):
    """Given the newest version, a stale manager's write lands, and its next one by id follows it."""
    version = (await others.checkpoint(s, "theirs", {"n": 1})).version
    await sessions.checkpoint(s, "mine", {"n": 2}, seen=version)
    await sessions.checkpoint(s, "mine", {"n": 3})


async def test_holder_may_say_what_it_has_seen(s, sessions, others):
    """`held` takes `seen`, too: the newest entry's version lands, an older one is a Conflict, and the hold goes on."""
    async with sessions.hold(s) as held:
        first = await held.checkpoint("one", {"n": 1})
        assert first.version == held.session.version == (await others.head(s)).version
        await held.checkpoint("two", {"n": 2}, seen=first.version)
        for write in (held.checkpoint("late", {"n": 3}, seen=first.version), held.rollback("one", seen=first.version)):
            with pytest.raises(Conflict):
                await write
        await held.checkpoint("three", {"n": 3}, seen=held.session.version)
        with pytest.raises(LeaseHeld):
            await others.complete(s)
        await held.complete(seen=held.session.version)


async def test_lifecycle_by_id(s, sessions):
    """Pause, resume, complete and fail by id return the session; resuming an active one writes nothing."""
    assert (await sessions.pause(s)).state is SessionState.PAUSED
    resumed = await sessions.resume(s)
    assert (await sessions.resume(s)).version == resumed.version
    assert (await sessions.fail(s, "no answer", {"code": 7})).state is SessionState.FAILED
    await sessions.rollback(s, "latest")
    assert (await sessions.complete(s, {"grade": "A"})).state is SessionState.COMPLETED
    data = {entry.name: entry.metadata for entry in await sessions.entries(s, kinds=["paused", "failed", "completed"])}
    assert data == {
        "session_paused": {"previous_state": "active"},
        "session_failed": {"error": "no answer", "details": {"code": 7}},
        "session_completed": {"result": {"grade": "A"}},
    }
    with pytest.raises(NotFound):
        await sessions.pause("nobody")
