"""Writing when things go wrong: racing writers, cancelled callers, lost acknowledgements."""

from __future__ import annotations

import asyncio

import pytest

import saveslot
from saveslot import AlreadyExists, Conflict, Unavailable, slots
from saveslot.stores import writer
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


class Gated(MemoryStore):
    """A store whose next appends wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    async def append(self, groups):
        if self.gates:
            await self.gates.pop(0).wait()
        return await super().append(groups)


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_caller_cancelled_in_the_queue_abandons_the_answer_never_the_write():
    """A checkpoint that comes while one caller hands over to the next lands too, whenever it is cancelled."""
    store = Gated()
    sessions = saveslot.SessionManager(store=store)
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {"n": 0})
    store.gates = [gate := asyncio.Event()]
    first = asyncio.ensure_future(sessions.checkpoint(sid, "first", {"n": 1}))
    await turns()
    second = asyncio.ensure_future(sessions.checkpoint(sid, "second", {"n": 2}))
    await turns()
    gate.set()
    third = asyncio.ensure_future(sessions.checkpoint(sid, "third", {"n": 3}))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    await asyncio.gather(*sessions.running)
    await sessions.checkpoint(sid, "last", {"n": 4})
    names = [c.name for c in await sessions.history(sid)]
    assert names == ["session_created", "base", "first", "second", "third", "last"]


@pytest.mark.parametrize("other", ["refresh", "stale update"])
async def test_what_a_value_does_costs_the_writers_of_its_manager_nothing(other):
    """Writers by id never get Conflict because a session value was refreshed or refused between them."""
    store = Gated()
    sessions = saveslot.SessionManager(store=store)
    value = await sessions.create_session("tutor")
    sid = value.session_id
    await sessions.checkpoint(sid, "base", {"n": 0})
    store.gates = gates = [asyncio.Event() for _ in range(3)]
    gates = list(gates)
    calls = [asyncio.ensure_future(sessions.checkpoint(sid, "a", {"n": 1}))]
    await turns()
    value.context["k"] = 1
    between = asyncio.ensure_future(sessions.refresh(value) if other == "refresh" else sessions.update_session(value))
    await turns()
    calls.append(asyncio.ensure_future(sessions.checkpoint(sid, "b", {"n": 2})))
    await turns()
    gates[0].set()
    await turns()
    calls.append(asyncio.ensure_future(sessions.checkpoint(sid, "c", {"n": 3})))
    for gate in gates:
        await turns()
        gate.set()
    assert [made.seq for made in await asyncio.gather(*calls)] == [3, 4, 5]
    assert isinstance((await asyncio.gather(between, return_exceptions=True))[0], Conflict) is (other != "refresh")


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_write_in_doubt_is_only_its_own_callers(fault):
    """Another value of the session does not take someone's doubtful write for its own: it is told, nothing is lost."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    mine = await sessions.create_session("tutor", context={"a": 0})
    theirs = await sessions.get_session(mine.session_id)
    mine.context["mine"] = 1
    setattr(store, fault, 1)
    with pytest.raises(Unavailable):
        await sessions.update_session(mine)
    theirs.context["theirs"] = 2
    with pytest.raises(Conflict):
        await sessions.update_session(theirs)
    await sessions.refresh(theirs)
    await sessions.update_session(theirs)
    assert (await sessions.get_session(mine.session_id)).context == {"a": 0, "mine": 1, "theirs": 2}


@pytest.mark.parametrize("same", [True, False])
async def test_what_landed_unnoticed_is_no_longer_staged_after_a_refresh(same):
    """A staged entry whose acknowledgement got lost is there once, also if others wrote on and the value refreshed."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    session = await sessions.create_session("tutor")
    session.checkpoint("one", {"n": 1})
    session.pause()
    store.late = 1
    with pytest.raises(Unavailable):
        await sessions.update_session(session)
    another = sessions if same else saveslot.SessionManager(store=store)
    await another.checkpoint(session.session_id, "two", {"n": 2})
    session.checkpoint("three", {"n": 3})
    with pytest.raises(Conflict):
        await another.update_session(session)
    await another.refresh(session)
    await another.update_session(session)
    names = ["session_created", "one", "session_paused", "two", "three"]
    assert [c.name for c in await another.history(session.session_id)] == names
    assert [c.name for c in session.checkpoints] == names


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_rollback_retried_goes_back_once(fault):
    """A rollback retried after a lost acknowledgement is the same rollback: `~1` does not count from itself."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    await sessions.checkpoint(sid, "two", {"n": 2})
    setattr(store, fault, 1)
    with pytest.raises(Unavailable):
        await sessions.rollback(sid, "~1")
    assert (await sessions.rollback(sid, "~1")).data == {"n": 1}
    assert [c.name for c in await sessions.history(sid)] == ["session_created", "one", "two", "session_rolled_back"]


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_value_shows_what_landed_after_all(fault):
    """A session value lists a checkpoint of its own whose outcome was unknown, once that is settled."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    session = await sessions.create_session("tutor")
    await sessions.checkpoint(session, "one", {"n": 1})
    for name in ("two", "three"):
        setattr(store, fault, 1)
        with pytest.raises(Unavailable):
            await sessions.checkpoint(session, name, {"name": name})
    await sessions.checkpoint(session, "three", {"name": "three"})
    assert session.checkpoints == (await sessions.get_session(session.session_id)).checkpoints


async def test_a_refresh_is_not_refused_for_a_lost_race():
    """A refresh takes the news in, also when a write in doubt turns out to have lost; what was staged stays so."""
    store = Shaky()
    sessions, others = (saveslot.SessionManager(store=store) for _ in range(2))
    session = await sessions.create_session("tutor")
    session.checkpoint("mine", {"n": 1})
    store.never = 1
    with pytest.raises(Unavailable):
        await sessions.update_session(session)
    await others.checkpoint(session.session_id, "theirs", {"n": 2})
    await sessions.refresh(session)
    await sessions.update_session(session)
    assert [c.name for c in await others.history(session.session_id)] == ["session_created", "theirs", "mine"]


async def test_the_cache_stays_within_its_bytes(monkeypatch):
    """What a manager remembers of sessions is bounded, however short they are and whatever is done with them."""
    monkeypatch.setattr(slots, "CACHE_BYTES", 200_000)
    sessions = saveslot.SessionManager()
    for n in range(300):
        session = await sessions.create_session("tutor")
        await sessions.checkpoint(session.session_id, "one", {"text": f"{n}" * 3000})
    assert sessions._slots.weight <= 200_000  # noqa: SLF001
    for session in await sessions.get_active_sessions():
        await sessions.update_session(session)
    assert sessions._slots.weight <= 200_000  # noqa: SLF001


async def test_a_tight_loop_of_writes_lets_others_run(sessions, session, monkeypatch):
    """Whoever saves without a pause does not keep the other tasks of the loop from running."""
    monkeypatch.setattr(writer, "TURN", 0.0)  # after each write, not only after some milliseconds of them
    turned = 0

    async def turn():
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(turn())
    for n in range(100):
        await sessions.checkpoint(session.session_id, "c", {"n": n})
    task.cancel()
    assert turned >= 40


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("cold", [True, False])
async def test_a_call_repeated_after_its_cancellation_is_told_the_first_answer(sessions, fresh, session, turns, cold):
    """Whoever cancels a call, by a timeout say, and makes the same call again has done it once."""
    sid = session.session_id
    await sessions.checkpoint(sid, "base", {"list": [0]})
    manager = fresh() if cold else sessions
    value = await manager.get_session(sid)

    async def twice(make):
        task = asyncio.ensure_future(make())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await make() if task.cancelled() else task.result()

    made = await twice(lambda: manager.checkpoint(sid, "one", append={"list": [1]}))
    assert made.data == {"list": [0, 1]}
    assert (await twice(lambda: manager.checkpoint(sid, "two", {"n": 2}))).seq == made.seq + 1
    assert (await twice(lambda: manager.rollback(sid, "~2"))).data == {"list": [0]}
    await manager.refresh(value)
    assert (await twice(lambda: manager.rollback(value, "two"))).data == {"n": 2}
    value.checkpoint("staged", {"n": 3})
    await twice(lambda: manager.update_session(value))
    names = ["session_created", "base", "one", "two", "session_rolled_back", "session_rolled_back", "staged"]
    assert [c.name for c in await sessions.history(sid)] == names
    assert [c.name for c in value.checkpoints] == names
    assert (await twice(lambda: manager.create_session("tutor", session_id="new"))).session_id == "new"
    with pytest.raises(AlreadyExists):
        await manager.create_session("tutor", session_id="new")
    assert await twice(lambda: manager.delete_session("new")) is True
    assert await manager.delete_session("new") is False


@pytest.mark.parametrize("given", ["data", "append", "patch", "metadata"])
async def test_what_is_handed_over_is_stored_as_it_was_then(sessions, fresh, session, given):
    """Also where the session has to be read first, and what was handed over is changed meanwhile."""
    await sessions.checkpoint(session.session_id, "a", {"list": [1]})
    item = {"n": 1}
    handed = {"data": {"list": [item]}, "append": {"list": [item]}, "metadata": {"list": [item]}}
    patch = [{"op": "add", "path": "/list/-", "value": item}]
    told = {given: patch if given == "patch" else handed[given]}
    late = asyncio.create_task(fresh().checkpoint(session.session_id, "b", **told))
    await asyncio.sleep(0)
    item["n"] = 2
    made = await late
    assert (made.metadata if given == "metadata" else made.data)["list"][-1] == {"n": 1}


async def test_callers_at_the_same_time_are_not_taken_for_one(sessions, session):
    """Of two that append the same at once, one of them cancelled, the other's is stored all the same."""
    sid = session.session_id
    await sessions.rollback(sid, 1)
    calls = [asyncio.ensure_future(sessions.checkpoint(sid, "one", append={"list": [1]})) for _ in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.gather(*sessions.running)
    assert (await sessions.get_data(sid))["list"] in ([1, 1], [1, 1, 1])


# Creating and deleting


BORN = {
    "create": lambda sessions: sessions.create_session("tutor", "anna", {"a": 1}, session_id="new"),
    "fork": lambda sessions: sessions.fork("old", session_id="new"),
    "import": lambda sessions: sessions.import_session(sessions.exported, session_id="new"),
}


@pytest.mark.parametrize("how", BORN)
@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_creation_retried_after_a_lost_answer_is_ones_own(fault, how):
    """Creating, forking or importing under an id again, after the answer got lost, gives the session: it is there
    once, and a third call is `AlreadyExists`.
    """
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    await sessions.create_session("tutor", session_id="old")
    await sessions.checkpoint("old", "one", {"n": 1})
    sessions.exported = await sessions.export("old")
    setattr(store, fault, 2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await BORN[how](sessions)
    made = await BORN[how](sessions)
    assert made == await sessions.get_session("new")
    with pytest.raises(AlreadyExists):
        await BORN[how](sessions)
    made.context["more"] = 1
    await sessions.update_session(made)
    assert (await sessions.get_session("new")).context["more"] == 1
    assert len(await sessions.find()) == 2


async def test_anothers_creation_is_not_taken_for_ones_own():
    """After a lost answer another creation of that id, by its content or its creator, is `AlreadyExists`."""
    store = Shaky()
    sessions, others = (saveslot.SessionManager(store=store) for _ in range(2))
    store.late = 1
    with pytest.raises(Unavailable):
        await sessions.create_session("tutor", session_id="new")
    for manager, context in ((sessions, {"other": 1}), (others, None)):
        with pytest.raises(AlreadyExists):
            await manager.create_session("tutor", context=context, session_id="new")
    store.never = 1
    with pytest.raises(Unavailable):
        await sessions.create_session("tutor", session_id="newer")
    await others.create_session("tutor", session_id="newer")
    with pytest.raises(AlreadyExists):
        await sessions.create_session("tutor", session_id="newer")


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_deletion_retried_after_a_lost_answer_is_ones_own(fault):
    """Deleting again after the answer got lost is True, once; one that was there no more is False."""
    store = Shaky()
    sessions, others = (saveslot.SessionManager(store=store) for _ in range(2))
    for session_id in ("a", "b"):
        await sessions.create_session("tutor", session_id=session_id)
        setattr(store, fault, 2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await sessions.delete_session(session_id)
        if session_id == "b" and fault == "never":  # meanwhile somebody writes on
            await others.checkpoint("b", "more", {"n": 1})
        assert await sessions.delete_session(session_id) is True
        assert await sessions.delete_session(session_id) is False
    assert await sessions.find() == []


@pytest.mark.parametrize("same", [True, False])
async def test_a_deletion_in_doubt_says_nothing_about_a_new_one(same):
    """An id that was deleted in doubt and created anew, by anyone, is deleted anew."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    await sessions.create_session("tutor", session_id="a")
    store.late = 1
    with pytest.raises(Unavailable):
        await sessions.delete_session("a")
    await (sessions if same else saveslot.SessionManager(store=store)).create_session("tutor", session_id="a")
    assert await sessions.delete_session("a") is True
    assert await sessions.find() == []


async def test_who_creates_or_deletes_at_once_is_not_taken_for_one(sessions):
    """Of many that create the same session at once one does, of many that delete it one does; the others are told."""
    calls = [sessions.create_session("tutor", session_id="new") for _ in range(5)]
    made = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in made) == ["AgentSession", *["AlreadyExists"] * 4]
    deleted = await asyncio.gather(*(sessions.delete_session("new") for _ in range(5)))
    assert sorted(deleted) == [False] * 4 + [True]


async def test_what_is_remembered_of_an_outage_is_bounded(monkeypatch):
    """However many creations fail and are never retried, a manager remembers the newest of them only."""
    monkeypatch.setattr(slots, "MOST_DOUBTS", 10)
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    store.late = 30
    for n in range(30):
        with pytest.raises(Unavailable):
            await sessions.create_session("tutor", session_id=f"s{n}")
    with pytest.raises(AlreadyExists):
        await sessions.create_session("tutor", session_id="s0")
    assert (await sessions.create_session("tutor", session_id="s29")).session_id == "s29"
