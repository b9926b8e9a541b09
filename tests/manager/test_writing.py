"""Writes under failure: racing writers, cancelled callers, lost acknowledgements."""

from __future__ import annotations

import asyncio

import pytest

import saveslot
from saveslot import AlreadyExists, Conflict, Unavailable
from saveslot.session import cache, retries
from saveslot.stores import memory
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import writer


class Shaky(MemoryStore):
    """A store whose acknowledgements get lost: after the write (`late`) or instead of it (`never`)."""

    late = never = 0

    async def append(self, groups, **how):
        if self.never:
            self.never -= 1
            raise Unavailable("the write did not arrive")
        verdicts = await super().append(groups, **how)
        if self.late:
            self.late -= 1
            raise Unavailable("the acknowledgement got lost")
        return verdicts


async def test_racing_writers_get_conflict_and_the_log_has_no_gap(sessions, others, session):
    """Of two writers of one session at most one wins each entry; the other gets Conflict; none is lost or doubled."""
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


async def test_concurrent_checkpoints_all_land(sessions, session):
    """Callers of one manager take turns: each checkpoint lands once, none is refused."""
    sid = session.session_id
    answers = await asyncio.gather(*(sessions.checkpoint(sid, f"c{n}", {"n": n}) for n in range(50)))
    assert sorted(c.seq for c in answers) == list(range(2, 52))
    assert {c.seq: c.data["n"] for c in answers} == {c.seq: c.data["n"] for c in (await sessions.history(sid))[1:]}


@pytest.mark.parametrize("turns", range(6))
async def test_cancellation_abandons_the_answer_not_the_write(sessions, fresh, session, turns):
    """A checkpoint, create, update or rollback cancelled at any moment lands once, and the manager stays usable."""
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
async def test_unknown_outcome_is_settled_first(fault):
    """After a lost acknowledgement the same entry is sent again first: it is stored once, and retrying is safe."""
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
async def test_retried_update_stores_staged_entries_once(fault):
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


async def test_write_lost_to_a_rival_is_a_conflict(session):
    """If a write in doubt did not land and another caller wrote meanwhile, the next call raises Conflict."""
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
    await sessions.head(sid)
    await sessions.checkpoint(sid, "mine", {"n": 4})
    assert [c.name for c in await others.history(sid)] == ["session_created", "one", "theirs", "mine"]


class Gated(MemoryStore):
    """A store whose next appends block until released."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    async def append(self, groups, **how):
        if self.gates:
            await self.gates.pop(0).wait()
        return await super().append(groups, **how)


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_cancellation_in_the_queue_keeps_the_write():
    """A checkpoint submitted during a handover between callers lands, whenever it is cancelled."""
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
async def test_session_values_cause_no_conflicts_by_id(other):
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
    assert [answers.seq for answers in await asyncio.gather(*calls)] == [3, 4, 5]
    assert isinstance((await asyncio.gather(between, return_exceptions=True))[0], Conflict) is (other != "refresh")


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_write_in_doubt_belongs_to_its_value(fault):
    """Another value of the session does not adopt a write in doubt as its own: it gets Conflict; nothing is lost."""
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
async def test_refresh_unstages_entries_that_landed(same):
    """A staged entry whose acknowledgement was lost is stored once, even after other writes and a refresh."""
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
async def test_retried_rollback_happens_once(fault):
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
async def test_value_lists_its_settled_checkpoint(fault):
    """A session value lists its own checkpoint of unknown outcome once that is settled."""
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


async def test_refresh_succeeds_after_a_lost_race():
    """A refresh loads the news even when a write in doubt turns out to have lost; staged entries stay staged."""
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


async def test_cache_stays_within_its_byte_limit(monkeypatch):
    """A manager's cache of sessions is bounded, however small they are and whatever callers do with them."""
    monkeypatch.setattr(cache, "CACHE_BYTES", 200_000)
    sessions = saveslot.SessionManager()
    for n in range(300):
        session = await sessions.create_session("tutor")
        await sessions.checkpoint(session.session_id, "one", {"text": f"{n}" * 3000})
    assert sessions.engine.cache.weight <= 200_000
    for session in await sessions.get_active_sessions():
        await sessions.update_session(session)
    assert sessions.engine.cache.weight <= 200_000


async def test_tight_write_loop_yields_to_other_tasks(sessions, session, monkeypatch):
    """A caller that saves without pausing does not starve the other tasks of the event loop."""
    for store in (memory, writer):  # after each write, not only after some milliseconds of them
        monkeypatch.setattr(store, "TURN", 0.0)
    turned = 0

    async def turn():
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(turn())
    for n in range(300):
        await sessions.checkpoint(session.session_id, "c", {"n": n})
    task.cancel()
    assert turned >= 40


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("cold", [True, False])
async def test_repeated_call_after_cancellation_returns_the_first_answer(sessions, fresh, session, turns, cold):
    """A call cancelled, for example by a timeout, and made again happens once."""
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

    checkpoint = await twice(lambda: manager.checkpoint(sid, "one", append={"list": [1]}))
    assert checkpoint.data == {"list": [0, 1]}
    assert (await twice(lambda: manager.checkpoint(sid, "two", {"n": 2}))).seq == checkpoint.seq + 1
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
async def test_arguments_are_stored_as_of_the_call(sessions, fresh, session, given):
    """Changes a caller makes to its argument while the session is still being read are not stored."""
    await sessions.checkpoint(session.session_id, "a", {"list": [1]})
    item = {"n": 1}
    handed = {"data": {"list": [item]}, "append": {"list": [item]}, "metadata": {"list": [item]}}
    patch = [{"op": "add", "path": "/list/-", "value": item}]
    answer = {given: patch if given == "patch" else handed[given]}
    late = asyncio.create_task(fresh().checkpoint(session.session_id, "b", **answer))
    await asyncio.sleep(0)
    item["n"] = 2
    answer = await late
    assert (answer.metadata if given == "metadata" else answer.data)["list"][-1] == {"n": 1}


async def test_concurrent_equal_calls_stay_separate(sessions, session):
    """Of two callers that append the same data at once, cancelling one does not drop the other's write."""
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
async def test_retried_create_returns_the_session(fault, how):
    """Creating, forking or importing again under an id after a lost answer returns the session: it is stored once, and
    a third call is `AlreadyExists`.
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
    session = await BORN[how](sessions)
    assert session == await sessions.get_session("new")
    with pytest.raises(AlreadyExists):
        await BORN[how](sessions)
    session.context["more"] = 1
    await sessions.update_session(session)
    assert (await sessions.get_session("new")).context["more"] == 1
    assert len(await sessions.find()) == 2


async def test_rival_create_is_already_exists():
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
async def test_retried_delete_returns_true_once(fault):
    """Deleting again after a lost answer returns True, once; it is False if the session was already gone."""
    store = Shaky()
    sessions, others = (saveslot.SessionManager(store=store) for _ in range(2))
    for session_id in ("a", "b"):
        await sessions.create_session("tutor", session_id=session_id)
        setattr(store, fault, 2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await sessions.delete_session(session_id)
        if session_id == "b" and fault == "never":  # meanwhile another caller writes
            await others.checkpoint("b", "more", {"n": 1})
        assert await sessions.delete_session(session_id) is True
        assert await sessions.delete_session(session_id) is False
    assert await sessions.find() == []


@pytest.mark.parametrize("same", [True, False])
async def test_delete_in_doubt_does_not_affect_a_recreated_id(same):
    """An id whose deletion was in doubt can be recreated by any caller, and is then deleted again."""
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    await sessions.create_session("tutor", session_id="a")
    store.late = 1
    with pytest.raises(Unavailable):
        await sessions.delete_session("a")
    await (sessions if same else saveslot.SessionManager(store=store)).create_session("tutor", session_id="a")
    assert await sessions.delete_session("a") is True
    assert await sessions.find() == []


async def test_concurrent_creates_and_deletes_have_one_winner(sessions):
    """Of many concurrent creates of one session one succeeds, and of many deletes one; the others are refused."""
    calls = [sessions.create_session("tutor", session_id="new") for _ in range(5)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["AgentSession", *["AlreadyExists"] * 4]
    deleted = await asyncio.gather(*(sessions.delete_session("new") for _ in range(5)))
    assert sorted(deleted) == [False] * 4 + [True]


async def test_memory_of_failed_creates_is_bounded(monkeypatch):
    """However many creations fail and are never retried, a manager remembers only the newest of them."""
    monkeypatch.setattr(retries, "MAX_CALLS", 10)
    store = Shaky()
    sessions = saveslot.SessionManager(store=store)
    store.late = 30
    for n in range(30):
        with pytest.raises(Unavailable):
            await sessions.create_session("tutor", session_id=f"s{n}")
    with pytest.raises(AlreadyExists):
        await sessions.create_session("tutor", session_id="s0")
    assert (await sessions.create_session("tutor", session_id="s29")).session_id == "s29"
