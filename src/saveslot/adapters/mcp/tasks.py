"""What the tools do, on a store: tasks are sessions, which rest paused so that no sweep fails one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NotRequired, Protocol, TypeVar

import msgspec
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from saveslot.adapters.mcp.briefing import briefing
from saveslot.errors import AlreadyExists, Conflict, InvalidTransition, NotFound
from saveslot.manager import SessionManager
from saveslot.manager.create import create_paused
from saveslot.session.model import Checkpoint
from saveslot.values.checks import Data
from saveslot.values.lifecycle import COMPLETED, FAILED

R = TypeVar("R")

AGENT = "mcp"
PARENT = "parent_session_id"
NOTE = "note"
# Parents that `resume` follows at most.
HOPS = 5
# What to do where there is nothing to go on with.
BEGIN = "call save to begin one, or list to see the sessions"
# Characters of a patch that `diff` returns.
LONGEST_PATCH = 8000


class Saved(TypedDict):
    session_id: str
    version: str
    seq: NotRequired[int]
    name: NotRequired[str]
    at: str


class Resumed(TypedDict):
    session_id: str
    version: str
    state: str
    name: NotRequired[str]
    at: str
    text: str


class Page(TypedDict):
    sessions: list[dict[str, Any]]
    next: str | None


class Patch(TypedDict):
    patch: list[dict[str, Any]]
    left_out: int


class Ended(TypedDict):
    session_id: str
    state: str
    version: str


class Noted(TypedDict):
    session_id: str
    seq: NotRequired[int]


class Change(msgspec.Struct):
    """A change of a task, as its tool was called: the whole state, or parts of it."""

    name: str
    expect: str | None
    key: str | None
    data: Data | None = None
    put: Data | None = None
    append: dict[str, list[Any]] | None = None
    drop: list[str] | None = None
    patch: list[Data] | None = None

    @property
    def arguments(self) -> Data:
        parts = {part: getattr(self, part) for part in ("data", "put", "append", "drop", "patch")}
        return {part: value for part, value in parts.items() if value is not None}


class Tasks(Protocol):
    """A store or a folder, as the tools see it. Without a session id it is the project's task."""

    async def save(self, session_id: str | None, parent: str | None, change: Change) -> Saved: ...

    async def update(self, session_id: str | None, change: Change) -> Saved: ...

    async def resume(self, session_id: str | None, ref: str) -> Resumed: ...

    async def list(self, agent_type: str | None, text: str | None, limit: int, after: str | None) -> Page: ...

    async def diff(self, session_id: str | None, a: str, b: str) -> Patch: ...

    async def rollback(self, session_id: str | None, to: str, expect: str | None, key: str | None) -> Saved: ...

    async def complete(self, session_id: str | None, result: Any, expect: str | None, key: str | None) -> Ended: ...

    async def note(self, session_id: str | None, text: str, key: str | None) -> Noted: ...

    async def read(self, session_id: str, ref: str | None) -> Data: ...


class StoredTasks:
    def __init__(self, sessions: SessionManager, project: str) -> None:
        self._sessions = sessions
        self._project = project
        self._number = 1  # of the project's newest task, as far as known

    async def save(self, session_id: str | None, parent: str | None, change: Change) -> Saved:
        task = session_id or await self._current(next_one=change.expect is None)
        if await self._sessions.head(task) is None and change.expect is None:
            try:
                await create_paused(self._sessions, AGENT, task, context=None if parent is None else {PARENT: parent})
            except AlreadyExists:
                await self._sessions.head(task)  # another agent was first: follow what it wrote
        return await self._checkpoint(task, change)

    async def update(self, session_id: str | None, change: Change) -> Saved:
        return await self._checkpoint(session_id or await self._current(), change)

    async def _checkpoint(self, task: str, change: Change) -> Saved:
        async def write() -> Checkpoint:
            return await self._sessions.checkpoint(
                task, change.name, seen=change.expect, idempotency_key=change.key, **change.arguments
            )

        return _saved(task, await self._newest(task, change.expect, write))

    async def _newest(self, task: str, expect: str | None, write: Callable[[], Awaitable[R]]) -> R:
        """Write after whatever is newest, unless the caller expects a version."""
        while True:
            try:
                return await write()
            except Conflict:
                if expect is not None or await self._sessions.head(task) is None:
                    raise

    async def resume(self, session_id: str | None, ref: str) -> Resumed:
        task: Any = session_id or await self._current()
        for _ in range(HOPS + 1):
            session = await self._sessions.get_session(task, history=0)
            if session is None:
                raise NotFound(f"there is no session {task} yet; {BEGIN}")
            if session.state is not COMPLETED or ref != "latest":
                break
            task = session.context.get(PARENT)
            if not isinstance(task, str):
                raise NotFound(f"session {session.session_id} is completed, and so is all that it continued; {BEGIN}")
        else:
            raise NotFound(f"the {HOPS} sessions that it continued are completed; {BEGIN}")
        data = await self._sessions.get_data(task, ref)
        head = await self._sessions.head(task)
        if head is None:
            raise NotFound(f"session {task} was deleted meanwhile; {BEGIN}")
        notes = [str(record.value) for record in await self._sessions.records(task, name=NOTE)]
        at = head.timestamp.isoformat(timespec="seconds")
        title = f"Session {task} ({session.state}), last changed {at} by {head.name!r}, version {head.version}"
        about = {"task": session.context["task"]} if "task" in session.context else {}
        text = briefing(title, about | data, notes)
        return Resumed(
            session_id=task, version=head.version, state=session.state.value, name=head.name, at=at, text=text
        )

    async def list(self, agent_type: str | None, text: str | None, limit: int, after: str | None) -> Page:
        page = await self._sessions.find(
            agent_type=agent_type, text=text, limit=limit, after=after, order="changed", heads=True
        )
        listed = [
            {
                "session_id": session.session_id,
                "agent_type": session.agent_type,
                "state": session.state.value,
                "name": None if session.head is None else session.head.name,
                "version": session.version,
                "at": None if session.head is None else session.head.timestamp.isoformat(timespec="seconds"),
            }
            for session in page
        ]
        return Page(sessions=listed, next=page.next)

    async def diff(self, session_id: str | None, a: str, b: str) -> Patch:
        task = session_id or await self._current()
        patch = await self._sessions.diff(task, _ref(a), _ref(b))
        kept: list[Data] = []
        room = LONGEST_PATCH
        for operation in patch:
            room -= len(msgspec.json.encode(operation))
            if room < 0:
                break
            kept.append(operation)
        return Patch(patch=kept, left_out=len(patch) - len(kept))

    async def rollback(self, session_id: str | None, to: str, expect: str | None, key: str | None) -> Saved:
        task = session_id or await self._current()

        async def write() -> Checkpoint:
            return await self._sessions.rollback(task, _ref(to), seen=expect, idempotency_key=key)

        return _saved(task, await self._newest(task, expect, write))

    async def complete(self, session_id: str | None, result: Any, expect: str | None, key: str | None) -> Ended:
        task = session_id or await self._current()
        head = await self._sessions.head(task)
        ended = None
        if head is not None and head.state is COMPLETED:  # by this call before, or another one
            ended = Ended(session_id=task, state=head.state.value, version=head.version)
            if key is None:
                return ended

        async def write() -> Ended:
            session = await self._sessions.complete(task, result, seen=expect, idempotency_key=key)
            return Ended(session_id=task, state=session.state.value, version=session.version)

        try:
            return await self._newest(task, expect, write)
        except (Conflict, InvalidTransition):
            if ended is None:
                raise
            return ended

    async def note(self, session_id: str | None, text: str, key: str | None) -> Noted:
        task = session_id or await self._current()
        return Noted(session_id=task, seq=await self._sessions.record(task, NOTE, text, key=key))

    async def read(self, session_id: str, ref: str | None) -> Data:
        if ref is not None:
            return await self._sessions.get_data(session_id, _ref(ref))
        session = await self._sessions.get_session(session_id, history=0)
        if session is None:
            raise NotFound(f"there is no session {session_id}; list shows the sessions")
        history = [
            {"seq": entry.seq, "name": entry.name, "kind": entry.kind, "at": entry.timestamp.isoformat()}
            for entry in await self._sessions.entries(session_id, newest=100)
        ]
        data, records = await asyncio.gather(
            self._sessions.get_data(session_id), self._sessions.records(session_id, name=NOTE)
        )
        notes = [record.value for record in records]
        return {**session.to_dict(), "data": data, "notes": notes, "history": history}

    async def _current(self, *, next_one: bool = False) -> str:
        """Return the project's newest task: `app`, and later `app-2`; with `next_one`, one that has not ended."""
        while True:
            task, following = self._named(self._number), self._named(self._number + 1)
            head = await self._sessions.head(task)
            if head is None or head.state not in {COMPLETED, FAILED}:
                return task
            if not next_one and await self._sessions.head(following) is None:
                return task
            self._number += 1

    def _named(self, number: int) -> str:
        return self._project if number == 1 else f"{self._project}-{number}"


def _saved(task: str, checkpoint: Checkpoint) -> Saved:
    at = checkpoint.timestamp.isoformat(timespec="seconds")
    return Saved(session_id=task, version=checkpoint.version, seq=checkpoint.seq, name=checkpoint.name, at=at)


def _ref(text: str) -> str | int:
    """A ref as the model writes it: a number may be text."""
    return int(text) if text.isascii() and text.isdigit() else text
