"""Several callers of one session at once: each gets its turn, and one caller's refusal does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import saveslot
from saveslot import Conflict, InvalidTransition, LeaseLost, Unavailable
from saveslot.stores.memory import MemoryStore


class Slow(MemoryStore):
    """A store whose answers are delayed, or lost, for the writes that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, asyncio.Event] = {}  # by the name of the entry: when it may land
        self.behind: dict[str, asyncio.Event] = {}  # when its answer arrives
        self.lost: dict[str, str] = {}  # its answer gets lost: after it landed (`late`), or with it (`never`)

    async def append(self, groups, **how):
        names = [entry.name for group in groups for entry in group.entries]
        name = names[-1] if names else ""
        fault = self.lost.pop(name, "")
        if name in self.before:
            await self.before.pop(name).wait()
        if fault == "never":
            raise Unavailable("the write did not arrive")
        verdicts = await super().append(groups, **how)
        if name in self.behind:
            await self.behind.pop(name).wait()
        if fault == "late":
            raise Unavailable("the answer got lost")
        return verdicts


@pytest.fixture
def store() -> Slow:
    return Slow()


@pytest.fixture
def sessions(store) -> saveslot.SessionManager:
    return saveslot.SessionManager(store=store)


@pytest.fixture
def others(store) -> saveslot.SessionManager:
    return saveslot.SessionManager(store=store)


async def started(call) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(call)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


async def names(store, sid) -> list[str]:
    return [checkpoint.name for checkpoint in await saveslot.SessionManager(store=store).history(sid, all=True)]


async def test_writer_recovers_after_its_base_was_thinned(sessions, others, store):
    """A manager whose newest known state was thinned gets a Conflict, and its next write lands after a read."""
    sid = (await sessions.create_session("tutor")).session_id
    await others.checkpoint(sid, "state", {"text": "x" * 5000})
    value = await sessions.get_session(sid)
    value.context["k"] = 1
    await sessions.update_session(value)  # from here on it knows the head, and not the state
    await saveslot.SessionManager(store=store).checkpoint(sid, "news", {"other": "y" * 500})  # a keyframe
    [head] = await store.heads([("default", sid)])
    await store.empty(head.row.key, [2])
    with pytest.raises(Conflict):
        await sessions.checkpoint(sid, "mine", {"n": 9})
    await sessions.head(sid)
    await sessions.checkpoint(sid, "mine", {"n": 9})
    assert (await names(store, sid))[-1] == "mine"


async def test_late_create_answer_does_not_rewind_the_head(sessions, store):
    """A late answer to a creation does not hide entries written before it arrived."""
    store.behind["session_created"] = answer = asyncio.Event()
    creating = await started(sessions.create_session("tutor", session_id="s"))
    await sessions.checkpoint("s", "one", {"n": 1})
    answer.set()
    await creating
    await sessions.checkpoint("s", "two", {"n": 2})
    assert await names(store, "s") == ["session_created", "one", "two"]


async def test_failed_delete_keeps_a_write_in_doubt(sessions, store):
    """A write whose answer was lost stays in doubt after a deletion that did not arrive."""
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {"n": 0})
    store.lost = {"one": "late", "session_deleted": "never"}
    with pytest.raises(Unavailable):
        await sessions.checkpoint(sid, "one", append={"list": [1]})
    with pytest.raises(Unavailable):
        await sessions.delete_session(sid)
    again = await sessions.checkpoint(sid, "one", append={"list": [1]})
    assert again.data == {"n": 0, "list": [1]}
    assert await names(store, sid) == ["session_created", "base", "one"]


async def test_waiters_proceed_after_a_refused_write(sessions, others, store):
    """Callers of one manager take turns, even when one of them conflicts with another manager's write."""
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {"n": 0})
    store.before = {"refused": (refused := asyncio.Event()), "session_rolled_back": (back := asyncio.Event())}
    first = await started(sessions.checkpoint(sid, "refused", {"n": 1}))
    second = await started(sessions.rollback(sid, "base"))
    await others.checkpoint(sid, "others", {"n": 2})
    refused.set()
    with pytest.raises(Conflict):
        await first
    with pytest.raises(Conflict):
        await second
    await sessions.head(sid)
    second = await started(sessions.rollback(sid, "base"))
    third = await started(sessions.checkpoint(sid, "third", {"n": 3}))
    back.set()
    await second
    await third
    assert await names(store, sid) == ["session_created", "base", "others", "session_rolled_back", "third"]


async def test_calls_queued_after_a_release_are_refused(sessions, store):
    """A call made after the release writes nothing, because the session has no owner by then."""
    sid = (await sessions.create_session("tutor")).session_id
    held = await sessions.take(sid)
    store.before["one"] = gate = asyncio.Event()
    first = await started(held.checkpoint("one", {"n": 1}))
    letting_go = await started(held.release())
    late = [
        await started(call)
        for call in (held.checkpoint("late", {"n": 2}), held.pause(), held.update_context(k=1), held.step("s", dict))
    ]
    gate.set()
    await first
    await letting_go
    for answers in await asyncio.gather(*late, return_exceptions=True):
        assert isinstance(answers, LeaseLost)
    assert await names(store, sid) == ["session_created", "session_taken", "one", "session_released"]
    await sessions.close()


SAVES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "checkpoint": lambda held, data: held.checkpoint("mine", data),
    "append": lambda held, data: held.checkpoint("mine", append={"list": data["list"]}),
    "patch": lambda held, data: held.checkpoint("mine", patch=[{"op": "add", "path": "/list", "value": data["list"]}]),
    "complete": lambda held, data: held.complete(data),
    "fail": lambda held, data: held.fail("mine", data),
    "context": lambda held, data: held.update_context(data),
}


@pytest.mark.parametrize("verb", SAVES)
async def test_cancelled_holder_may_change_its_data(sessions, store, verb):
    """A write that continues after its caller was cancelled stores the data as of the cancellation."""
    sid = (await sessions.create_session("tutor")).session_id
    held = await sessions.take(sid)
    await held.checkpoint("base", {})
    store.before["first"] = gate = asyncio.Event()
    first = await started(held.checkpoint("first", {}))
    data = {"list": [1, {"deep": 2}]}
    leaving = await started(SAVES[verb](held, data))
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    data["list"][1]["deep"] = "changed"
    data["list"].append("changed")
    gate.set()
    await first
    await asyncio.gather(*sessions.running)
    session = await sessions.get_session(sid)
    answer = str(session.context) + str(session.checkpoints[-1].data)
    assert "[1, {'deep': 2}]" in answer
    assert "changed" not in answer
    await sessions.close()


async def test_cancelled_caller_by_id_may_change_its_data(sessions, store):
    """The same holds for a caller that saves by id."""
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {})
    store.before["first"] = gate = asyncio.Event()
    first = await started(sessions.checkpoint(sid, "first", {}))
    data = {"list": [1]}
    leaving = await started(sessions.checkpoint(sid, "mine", data))
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    data["list"].append("changed")
    gate.set()
    await first
    await asyncio.gather(*sessions.running)
    assert (await sessions.get_checkpoint(sid, "mine")).data == {"list": [1]}


async def test_session_revived_elsewhere_accepts_writes(store, sessions):
    """A manager that cached it as failed gets a Conflict, and once it has read the session, its write lands."""
    await sessions.create_session("tutor", session_id="s")
    await sessions.checkpoint("s", "one", {"n": 1})
    value = await sessions.get_session("s")
    value.fail("x")
    await sessions.update_session(value)
    with pytest.raises(InvalidTransition):
        await sessions.checkpoint("s", "two", {"n": 2})
    await saveslot.SessionManager(store=store).rollback("s", "one")
    with pytest.raises(Conflict, match="another writer appended after entry 3"):
        await sessions.checkpoint("s", "two", {"n": 2})
    await sessions.head("s")
    assert (await sessions.checkpoint("s", "two", {"n": 2})).seq == 5
