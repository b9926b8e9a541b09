"""Writing when things go wrong: racing writers, cancelled callers, lost acknowledgements."""

from __future__ import annotations

import asyncio

import pytest

import saveslot
from saveslot import Conflict, Unavailable
from saveslot.stores.memory import MemoryStore


class Shaky(MemoryStore):
    """A store whose acknowledgements get lost: after the write (`late`) or instead of it (`never`)."""

    late = never = 0

    async def append(self, groups):
        if self.never:
            self.never -= 1
            raise Unavailable("the write did not arrive")
        verdicts = await super().append(groups)
        if self.late:
            self.late -= 1
            raise Unavailable("the acknowledgement got lost")
        return verdicts


async def test_racing_writers_get_conflict_and_the_log_has_no_gap(sessions, others, session):
    """Of two writers of one session at most one wins each entry; the other is told; nothing is lost or doubled."""
    sid = session.session_id
    stored: list[tuple[str, int]] = []
    refused = 0

    async def write(manager, who):
        nonlocal refused
        for n in range(60):
            try:
                await manager.checkpoint(sid, who, {"n": n})
                stored.append((who, n))
            except Conflict:
                refused += 1
            await asyncio.sleep(0)

    await asyncio.gather(write(sessions, "a"), write(others, "b"))
    history = await sessions.history(sid)
    assert [c.seq for c in history] == list(range(1, len(history) + 1))
    assert sorted((c.name, c.data["n"]) for c in history[1:]) == sorted(stored)
    assert refused + len(stored) == 120
    assert refused


async def test_many_checkpoints_of_one_session_at_once_all_land(sessions, session):
    """Callers of one manager take turns: each checkpoint lands once, none is refused."""
    sid = session.session_id
    made = await asyncio.gather(*(sessions.checkpoint(sid, f"c{n}", {"n": n}) for n in range(50)))
    assert sorted(c.seq for c in made) == list(range(2, 52))
    assert {c.seq: c.data["n"] for c in made} == {c.seq: c.data["n"] for c in (await sessions.history(sid))[1:]}


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_caller_abandons_the_answer_never_the_write(sessions, fresh, session, turns):
    """Whenever a checkpoint, create, update or rollback is cancelled, it lands once, and the manager goes on."""
    sid = session.session_id

    async def cancelled(manager, call):
        task = asyncio.ensure_future(call)
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*manager.running)

    await sessions.checkpoint(sid, "base", {"n": 0})
    await cancelled(sessions, sessions.checkpoint(sid, "warm", {"n": 1}))
    await sessions.checkpoint(sid, "after", {"n": 2})
    cold = fresh()
    await cancelled(cold, cold.checkpoint(sid, "cold", {"n": 3}))
    await cancelled(cold, cold.rollback(sid, "base"))
    await cancelled(cold, cold.create_session("tutor", session_id="new"))
    value = await cold.create_session("tutor", session_id="value")
    value.checkpoint("staged", {"n": 4})
    await cancelled(cold, cold.update_session(value))
    names = [c.name for c in await sessions.history(sid)]
    assert names == ["session_created", "base", "warm", "after", "cold", "session_rolled_back"]
    assert await sessions.get_session("new") is not None
    assert [c.name for c in await sessions.history("value")] == ["session_created", "staged"]


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_an_unknown_outcome_is_settled_before_anything_else(fault):
    """After a lost acknowledgement the same entry is sent again first: it is there once, and retrying is safe."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "one", {"messages": [1]})
    for call in (
        lambda: sessions.checkpoint(sid, "two", {"messages": [1, 2]}, {"by": "me"}),
        lambda: sessions.checkpoint(sid, "three", append={"messages": [3]}),
        lambda: sessions.checkpoint(sid, "four", patch=[{"op": "replace", "path": "/messages/0", "value": "x"}]),
    ):
        setattr(store, fault, 2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await call()
        await call()
    await sessions.checkpoint(sid, "five", append={"messages": [5]})
    history = await sessions.history(sid)
    assert [c.name for c in history] == ["session_created", "one", "two", "three", "four", "five"]
    assert history[-1].data == {"messages": ["x", 2, 3, 5]}


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_staged_update_is_stored_once_whatever_got_lost(fault):
    """update_session retried after a lost acknowledgement stores each staged entry exactly once."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    session = await sessions.create_session("tutor")
    session.checkpoint("one", {"n": 1})
    session.context["k"] = 1
    setattr(store, fault, 1)
    with pytest.raises(Unavailable):
        await sessions.update_session(session)
    assert [item.checkpoint.name for item in session.staged] == ["one"]
    session.checkpoint("two", {"n": 2})
    session.complete()
    await sessions.update_session(session)
    read = await saveslot.SessionManager(store=store).get_session(session.session_id)
    assert [c.name for c in read.checkpoints] == ["session_created", "one", "two", "session_completed"]
    assert read == session
    assert read.context == {"k": 1}


async def test_an_unknown_outcome_that_lost_the_race_is_told(session):
    """If someone else wrote while our write was in doubt and it had not landed, the next call says Conflict."""
    store = Shaky()
    sessions, others = (saveslot.SessionManager(store=store) for _ in range(2))
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    store.never = 1
    with pytest.raises(Unavailable):
        await sessions.checkpoint(sid, "mine", {"n": 2})
    await others.checkpoint(sid, "theirs", {"n": 3})
    with pytest.raises(Conflict):
        await sessions.checkpoint(sid, "mine", {"n": 2})
    await sessions.checkpoint(sid, "mine", {"n": 4})
    assert [c.name for c in await others.history(sid)] == ["session_created", "one", "theirs", "mine"]
