"""A program with nearly every verb, async and blocking: every type checker must accept it, and it must run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import saveslot
from saveslot import (
    AgentSession,
    Audit,
    Checkpoint,
    EntryHeader,
    Event,
    Garbage,
    Head,
    Held,
    LogLine,
    Page,
    Record,
    Retention,
    SessionState,
    Step,
    Thinned,
    blocking,
)
from saveslot.types import Change, Data, Keeper, Keys, Level, Mode, OnUnknown, Rules, Span, StepCall, Store, Takeover


async def ask(question: str) -> str:
    return question.upper()


def add(a: int, b: int) -> int:
    return a + b


@saveslot.step("count", retries=2)
def count(text: str, *, by: int = 1) -> int:
    return len(text) // by


async def charge(amount: int, idempotency_key: str) -> int:
    return amount + len(idempotency_key)


async def resume(held: Held) -> None:
    await held.complete({"resumed": True})


def resume_blocking(held: blocking.Held) -> None:
    held.complete({"resumed": True})


TAKEOVER: Takeover = resume
RULES: Rules = Retention(keep_last=100)
LEVEL: Level = "strong"
MODE: Mode = "at_most_once"
UNKNOWN: OnUnknown = "retry"
KEYS: Keys = bytes(32)


def on_own_store(store: Store) -> saveslot.SessionManager:
    return saveslot.SessionManager(store=store, encryption_key=KEYS)


async def steps(held: Held) -> None:
    assert_type(await held.step("ask", ask, "why?"), str)
    assert_type(await held.step("add", add, 1, 2, mode=MODE), int)
    assert_type(await held.step("try", ask, "when?", mode="at_most_once", on_unknown="skip"), str | None)
    assert_type(await held.step("sum", add, 1, 2, key="a", on_unknown="skip"), int | None)
    assert_type(await held.step("again", add, 1, 2, on_unknown=UNKNOWN, retry=True), int)
    assert_type(await held.steps(), list[Step])
    assert_type(await held.step("call", ask, "who?", key="k", retries=3, backoff=0.5, retry_on=OSError, timeout=9), str)
    assert_type(await held.step("charge", charge, 5, key="k", retries=1), int)
    assert_type(await held.step(count, "abc", by=3), int)
    assert_type(await held.step(count, "abc", key="b", run_in_thread=False), int)
    calls = held.call("side", ask, "a", key="a"), held.call(count, "abc", key="c", timeout=5)
    assert_type(calls[0], StepCall[str])
    assert_type(await held.gather(*calls), tuple[str, int])
    more = [held.call("side", ask, text, key=text) for text in "bcd"]
    assert_type(await held.gather(*more), tuple[str, ...])


async def owned(sessions: saveslot.SessionManager) -> None:
    async with sessions.hold("s", wait=1) as held:
        assert_type(held, Held)
        assert_type(held.data, dict[str, Any])
        assert_type(held.session, AgentSession)
        assert_type(held.fence, int)
        assert_type(held.id, str)
        assert_type(held.lost.is_set(), bool)
        assert_type(await held.checkpoint("asked", {"messages": []}, metadata={"m": 1}), Checkpoint)
        assert_type(await held.checkpoint("more", append={"messages": ["hello"]}), Checkpoint)
        await held.checkpoint("some", put={"n": 1}, append={"messages": ["bye"]}, cut={"messages": 1})
        await held.checkpoint("less", drop=["n"], seen=held.session.version, idempotency_key="less")
        assert_type(await held.record("thought", {"a": [1]}, key="k"), int)
        await steps(held)
        await held.update_context({"a": 1}, b=2)
        await held.heartbeat()
        await held.pause()
        await held.resume()
        assert_type(await held.rollback("asked"), Checkpoint)
        assert_type(await held.refresh(), AgentSession)
    assert_type(await sessions.claim("tutor", limit=1, wait=timedelta(0), max_attempts=None), list[Held])
    taken = await sessions.take("s")
    await taken.release(error=ValueError("no answer"))
    about: Data = {"topic": "fractions"}
    async with sessions.hold(
        "new", create="tutor", user_id="anna", context=about, labels={"a": "b"}, data={}, wait=timedelta(seconds=1)
    ) as held:
        held.data.setdefault("messages", []).append("hello")
        await held.checkpoint("asked")
        charged = partial(charge, 5)
        assert_type(await held.step("part", charged, key="k", timeout=HOUR, backoff=timedelta(0)), int)
        assert_type(held.cancelled.is_set(), bool)
    await sessions.create_session("idle")
    async for orphan in sessions.claims(agent_type="idle", released=True, max_attempts=3):
        async with orphan:
            await orphan.fail("stop", {"why": "done"})
        break
    judge = await sessions.create_session(
        "tutor", session_id="made", exist_ok=True, data={"n": 1}, name="first", max_attempts=None
    )
    assert_type(await sessions.cancel(judge, reason="no need"), SessionState)
    assert_type(await sessions.release("made"), bool)
    assert_type(await sessions.find(order="changed", heads=True), Page)
    await sessions.create_session("tutor", session_id="life", data={"n": 1}, name="first", idempotency_key="life")
    await sessions.checkpoint("life", "labelled", metadata={"labels": {"run": "r1"}}, idempotency_key="once")
    assert_type(await sessions.find(entry={"run": "r1"}), Page)
    head = await sessions.head("life")
    assert_type(head, Head | None)
    assert head is not None
    assert_type(head.version, str)
    assert_type(await sessions.pause("life", seen=head.version), AgentSession)
    assert_type(await sessions.resume("life"), AgentSession)
    assert_type(await sessions.record("life", "thought", [1, None]), int)
    assert_type(await sessions.records("life", name="thought", after=1), list[Record])
    assert_type(await sessions.drop("life", []), int)
    found_entries = await sessions.entries("life", after=1, newest=5, names=["first"], kinds={"checkpoint"})
    assert_type(found_entries, list[EntryHeader])
    assert_type(await sessions.fail("life", "stop", {"why": "done"}), AgentSession)
    assert_type(judge.version, str)


HOUR: Span = timedelta(hours=1)


def files(folder: Path) -> None:
    with saveslot.CheckpointManager("s", url=folder / "agents.db") as checkpoints:
        assert_type(checkpoints.create("asked", {"n": 1}), Checkpoint)
    store = saveslot.CheckpointStore(folder)
    assert_type(store.path("s"), Path)
    assert_type(store.garbage_collect(HOUR), list[str])


async def durations(sessions: saveslot.SessionManager) -> None:
    assert_type(await sessions.find(level="cached", max_age=timedelta(seconds=5)), Page)
    assert_type(await sessions.cleanup_stale_sessions(3600), int)
    assert_type(await sessions.gc(HOUR, grace=60.0, dry_run=True), Garbage)
    assert_type(await sessions.thin_all(grace=HOUR), Thinned)
    Retention(max_age=3600, after_end=HOUR)


async def main() -> None:
    async with saveslot.open("memory:", retention=RULES, worker_ttl=HOUR, backoff=HOUR, max_attempts=None) as sessions:
        await durations(sessions)
        assert_type(sessions, saveslot.SessionManager)
        context: Data = {"a": 1}
        session = assert_type(await sessions.create_session("tutor", session_id="s", context=context), AgentSession)
        assert_type(session.state, SessionState)
        await owned(sessions)
        assert_type(await sessions.get_session("s", level=LEVEL), AgentSession | None)
        assert_type(await sessions.find(limit=3), Page)
        assert_type(await sessions.count(), int)
        assert_type(await sessions.log("s"), list[LogLine])
        assert_type(await sessions.get_checkpoint("s"), Checkpoint)
        assert_type(await sessions.get_data("s"), dict[str, Any])
        assert_type(await sessions.get_data("s", keys=["n"], last={"messages": 2}), dict[str, Any])
        assert_type(await sessions.fork("s", "asked"), AgentSession)
        assert_type(await sessions.copy_session("s", "copy", upto="asked"), AgentSession)
        async with sessions.together() as t:
            saved = assert_type(t.checkpoint("copy", "more", append={"messages": []}), Change[Checkpoint])
            new = t.create_session("critic", data={"n": 1}, idempotency_key="critic")
            assert_type(t.delete_session("nobody"), Change[bool])
        assert_type(saved.result, Checkpoint)
        assert_type((await sessions.delete_session(new.session_id), new.result), tuple[bool, AgentSession])
        assert_type(await sessions.audit("s"), Audit)
        assert_type(await sessions.thin("s"), Thinned)
        assert_type(await sessions.gc(dry_run=True), Garbage)
        assert_type(await sessions.export("s"), str)
        await sessions.pin("s", "asked")
        await sessions.unpin("s", "asked")
        async for event in sessions.watch("s", after=0):
            assert_type(event, Event)
            break
        keeper: Keeper = sessions.keeper
        await keeper.start(takeover=TAKEOVER, stale_after=timedelta(hours=1))
        await keeper.stop()
        assert_type(await sessions.of("other").delete_session("s"), bool)


def main_blocking() -> None:
    with blocking.open("memory:", namespace="n") as sessions:
        assert_type(sessions, blocking.SessionManager)
        session = assert_type(sessions.create_session("tutor", session_id="s", context={"a": 1}), AgentSession)
        with sessions.hold(session, wait=1) as held:
            assert_type(held, blocking.Held)
            assert_type(held.id, str)
            assert_type(held.data, dict[str, Any])
            assert_type(held.checkpoint("asked", {"messages": []}), Checkpoint)
            assert_type(held.step("add", add, 1, 2), int)
            assert_type(held.step("sum", add, 1, 2, on_unknown="skip"), int | None)
            assert_type(held.step(count, "abc", by=3), int)
            assert_type(held.step("call", add, 1, 2, key="k", retries=3, timeout=9), int)
            both = held.call("x", add, 1, 2, key="x"), held.call(count, "abc", key="y")
            assert_type(held.gather(*both), tuple[int, int])
            assert_type(held.steps(), list[Step])
            held.data["n"] = 1
            assert_type(held.checkpoint("saved", None, {"m": 1}), Checkpoint)
            held.update_context({"a": 1}, b=2)
            held.pause()
            held.resume()
            assert_type(held.rollback("asked"), Checkpoint)
            assert_type(held.refresh(), AgentSession)
        assert_type(sessions.claim("tutor", limit=1, wait=timedelta(0), max_attempts=None), list[blocking.Held])
        with sessions.hold("new", create="tutor", user_id="anna", data={}, wait=HOUR) as held:
            held.data["n"] = 2
            held.checkpoint("asked")
            assert_type(held.cancelled.wait(timeout=timedelta(0)), bool)
        sessions.create_session("idle")
        for orphan in sessions.claims(agent_type="idle", released=True, max_attempts=3):
            with orphan:
                orphan.fail("stop", {"why": "done"})
            break
        judge = sessions.create_session("tutor", session_id="made", exist_ok=True, data={"n": 1}, max_attempts=None)
        assert_type(sessions.cancel(judge, reason="no need"), SessionState)
        assert_type(sessions.release("made"), bool)
        assert_type(sessions.find(order="changed", heads=True), Page)
        assert_type(sessions.head("made"), Head | None)
        assert_type(sessions.record("made", "thought", "x", key="k"), int)
        assert_type(sessions.records("made"), list[Record])
        assert_type(sessions.drop("made", []), int)
        assert_type(sessions.entries("made", newest=5), list[EntryHeader])
        assert_type(sessions.get_session("s", level=LEVEL), AgentSession | None)
        assert_type(sessions.find(limit=3), Page)
        assert_type(sessions.count(), int)
        assert_type(sessions.log("s"), list[LogLine])
        assert_type(sessions.get_checkpoint("s"), Checkpoint)
        assert_type(sessions.get_data("s", keys={"n"}, last={"messages": 2}), dict[str, Any])
        assert_type(sessions.fork("s", "asked"), AgentSession)
        assert_type(sessions.copy_session("s", "copy"), AgentSession)
        with sessions.together() as t:
            saved = assert_type(t.checkpoint("copy", "more", {"messages": []}), Change[Checkpoint])
            assert_type(t.delete_session("nobody"), Change[bool])
        assert_type(saved.result, Checkpoint)
        assert_type(sessions.audit("s"), Audit)
        assert_type(sessions.thin("s"), Thinned)
        assert_type(sessions.gc(dry_run=True), Garbage)
        assert_type(sessions.export("s"), str)
        assert_type(sessions.export_parts("s"), Iterator[str])
        assert_type(sessions.checkpoint("s", "more", put={"n": 3}, append={"messages": ["hello"]}), Checkpoint)
        sessions.pin("s", "asked")
        for event in sessions.watch("s", after=0):
            assert_type(event, Event)
            break
        sessions.keeper.start(takeover=resume_blocking)
        sessions.keeper.stop()
        assert_type(sessions.of("other").delete_session("s"), bool)


if __name__ == "__main__":
    asyncio.run(main())
    main_blocking()
