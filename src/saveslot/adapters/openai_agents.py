"""OpenAI Agents: conversations and interrupted runs, each a session.

A conversation's state is `{"items": […]}`, as `saveslot import` brings it from the SDK's own tables. Each call that
changes it is a checkpoint: `turn`, `popped` or `replaced`. A write that follows a read is refused if another writer
changed the items in between; new labels, owners and lifecycle entries do not count.
"""

# ruff: noqa: E402  (the version of openai-agents is checked before it is imported)

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from saveslot import blocking
from saveslot.adapters.access import Access, require
from saveslot.adapters.follow import New, Sight, look, overtaken, own_hold, settled, write
from saveslot.errors import Conflict, Unavailable
from saveslot.manager import SessionManager
from saveslot.stores.wire.loops import running
from saveslot.values.checks import Data, as_name

require("openai", "openai-agents", "0.24", "0.25")

from agents import Agent, RunContextWrapper, RunState
from agents.memory.session import _CompactionSnapshot  # pyright: ignore[reportPrivateUsage]  (what its compaction takes)
from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit

R = TypeVar("R")
Items = list[Any]

# Agent types of the sessions. The first is also that of imported conversations.
CONVERSATION, RUN = "openai-agents", "openai-agents-run"


class SaveslotSession:
    """A conversation of the OpenAI Agents SDK: `Runner.run(agent, text, session=SaveslotSession("chat-1", url))`.

    What a run adds follows what it has read: if another run changed the conversation meanwhile, it gets `Conflict`,
    and nothing of it is stored. Writes that follow no read append to whatever is there. Inside a `sessions.hold` of
    the same id by this process, writes carry its lease, and other processes get `LeaseHeld`.

    `sessions` is an open manager; otherwise `url` and `options` are those of `saveslot.open`. Sessions with the same
    URL share one manager per event loop.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.session_id: str = as_name(session_id, "session_id")
        settings = SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        self.session_settings = settings
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._seen: WeakKeyDictionary[Any, Sight] = WeakKeyDictionary()  # by run; by this object for other callers
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<SaveslotSession {self.session_id} on {self._access!r}>"

    async def get_items(self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None) -> Items:
        """Return the newest `limit` items in order; by default as many as the settings say, or all."""
        limit = resolve_session_limit(limit, self.session_settings)
        by = self if wrapper is None else wrapper

        async def read(sessions: SessionManager) -> Items:
            items, self._seen[by] = await self._look(sessions, limit)
            return items

        return await self._call(read)

    async def add_items(self, items: Items, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Append items, all or none. `Conflict` if another writer changed the conversation after this run read it."""
        self._check_open()
        if not items:
            return
        by = self if wrapper is None else wrapper

        async def add(sessions: SessionManager) -> None:
            await self._write(sessions, "turn", by, self._seen.get(by), append={"items": items})

        await self._settled(add)

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> Any:
        """Take the newest item off and return it; None if there is none. Two callers never get the same one."""
        by = self if wrapper is None else wrapper

        async def pop(sessions: SessionManager) -> Any:
            while True:
                items, sight = await self._look(sessions, 1)
                if (seen := self._seen.get(by)) is not None and not sight.shows_state_of(seen):
                    raise overtaken(self.session_id, seen, sight)
                if not items:
                    return None
                try:
                    await self._write(sessions, "popped", by, sight, cut={"items": 1})
                except Conflict:
                    if seen is not None:
                        raise
                else:
                    return items[0]

        return await self._settled(pop)

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:  # noqa: ARG002  (the SDK's)
        """Delete the conversation, whatever it holds; the next item starts a new one. One that this process holds
        stays, without items.
        """

        async def clear(sessions: SessionManager) -> None:
            held = own_hold(sessions, self.session_id)
            if held is None:
                await sessions.delete_session(self.session_id)
            else:
                await held.checkpoint("cleared", put={"items": []})
            self._seen.clear()

        await self._settled(clear)

    async def close(self) -> None:
        """Close what this object opened. Later calls raise `Unavailable`."""
        self._closed = True
        await self._access.close()

    # Compaction: the SDK finds these two by their names.

    async def _atomic_replace_items(self, items: Items) -> bool:
        """Replace all items in one write; False in a subclass, which may transform items."""
        if type(self) is not SaveslotSession:
            return False

        async def replace(sessions: SessionManager) -> None:
            await self._write(sessions, "replaced", self, self._seen.get(self), put={"items": items})

        await self._settled(replace)
        return True

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Return the newest items with a function that replaces the end of them, unless another writer was first."""
        if type(self) is not SaveslotSession:
            return None

        async def read(sessions: SessionManager) -> tuple[Items, Sight]:
            return await self._look(sessions, None if prune_prefix is not None else limit + 1)

        items, sight = await self._call(read)
        newest = items[max(0, len(items) - limit) :]

        async def replace_suffix(start: int, output: Items) -> bool:
            dropped = len(newest) - start
            if dropped <= 0:
                return False
            change: Data = {"cut": {"items": dropped}, "append": {"items": output}}
            if prune_prefix is not None:
                before = items[: len(items) - dropped]
                expired = next((n for n, item in enumerate(before) if not prune_prefix(item)), len(before))
                change = {"put": {"items": [*before[expired:], *output]}}

            async def replace(sessions: SessionManager) -> bool:
                try:
                    await self._write(sessions, "replaced", self, sight, **change)
                except Conflict:
                    return False
                return True

            return await self._settled(replace)

        return _CompactionSnapshot(newest, len(newest) == len(items), replace_suffix)

    # Calls

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("SaveslotSession is closed; create another one with the same session_id")

    async def _call(self, verb: Callable[[SessionManager], Awaitable[R]]) -> R:
        """Run `verb` alone: what this object has seen belongs to one call at a time."""
        self._check_open()

        async def alone(sessions: SessionManager) -> R:
            loop = running()
            if self._turns is None or self._turns[0] is not loop:
                self._turns = loop, asyncio.Lock()
            async with self._turns[1]:
                return await verb(sessions)

        return await self._access.call(alone)

    async def _look(self, sessions: SessionManager, limit: int | None) -> tuple[Items, Sight]:
        last = None if limit is None or limit < 0 else {"items": limit}
        data, sight = await look(sessions, self.session_id, last)
        return data.get("items", []), sight

    async def _settled(self, verb: Callable[[SessionManager], Awaitable[R]]) -> R:
        return await settled(self._call(verb))

    async def _write(self, sessions: SessionManager, name: str, by: object, seen: Sight | None, **change: Any) -> None:
        """Save a change of the items after what `seen` shows; None: after whatever is newest."""
        saved = await write(sessions, New(CONVERSATION, self.session_id), name, seen, change)
        if by in self._seen:
            self._seen[by] = saved


class SaveslotRunStateStore:
    """Interrupted runs (`RunState`) under ids of the caller's choice, so that any process can resume them.

    Each save is a checkpoint of a session, readable in `saveslot log` and `diff`. A save follows what this store loaded
    or saved under that id: `Conflict` if another process saved or deleted it since. To let one process alone resume a
    run, load it inside `sessions.hold(run_id)`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._seen: dict[str, Sight] = {}

    def __repr__(self) -> str:
        return f"<SaveslotRunStateStore on {self._access!r}>"

    async def save(self, run_id: str, state: RunState[Any, Any], **options: Any) -> None:
        """Store the state of a run; `options` are those of `RunState.to_json`, such as `context_serializer`."""
        data = state.to_json(**options)
        name = "interrupted" if state.get_interruptions() else "saved"

        async def save(sessions: SessionManager) -> None:
            seen = self._seen.get(run_id)
            self._seen[run_id] = await write(sessions, New(RUN, as_name(run_id, "run_id")), name, seen, {"data": data})

        await settled(self._access.call(save))

    async def load(self, run_id: str, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Return the newest state of a run, or None; `options` are those of `RunState.from_json`, such as
        `context_override`.
        """

        async def load(sessions: SessionManager) -> Data:
            data, self._seen[run_id] = await look(sessions, as_name(run_id, "run_id"), None)
            return data

        data = await self._access.call(load)
        return await RunState.from_json(agent, data, **options) if data else None

    async def delete(self, run_id: str) -> bool:
        """Delete a run that has ended; False if there is none."""

        async def delete(sessions: SessionManager) -> bool:
            self._seen.pop(run_id, None)
            return await sessions.delete_session(run_id)

        return await settled(self._access.call(delete))

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()
