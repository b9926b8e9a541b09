"""Claude Agent SDK: transcripts of its sessions and subagents, each a session of its own. Extra: `claude`.

A transcript's state is `{"entries": […]}`, and each batch that the SDK mirrors is a checkpoint, whose metadata holds
the SDK's summary of the transcript: lists need no states.
"""

# ruff: noqa: E402  (the version of the SDK is checked before it is imported)

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any, TypeVar, cast

from saveslot import blocking
from saveslot.adapters.access import Access, require
from saveslot.adapters.follow import NOTHING, New, Sight, look, settled, write
from saveslot.errors import Conflict
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data
from saveslot.values.ids import fit, joined

require("claude", "claude-agent-sdk", "0.2.182", "0.3")

from claude_agent_sdk import SessionKey, SessionStoreEntry, SessionStoreListEntry, fold_session_summary
from claude_agent_sdk.types import SessionListSubkeysKey, SessionSummaryEntry

R = TypeVar("R")

AGENT = "claude-agent"
# Labels by which transcripts are found: all main ones of a project, and all subagents' of a session.
PROJECT, SESSION = "claude.project", "claude.session"
SUMMARY = "summary"
# Transcripts whose uuids are kept in memory, so that a batch costs no read.
MOST_KNOWN = 256
# Transcripts per page of a list.
PAGE = 1000


class Known:
    """What this process knows of a transcript."""

    def __init__(self, sight: Sight, entries: list[Any], summary: Data | None) -> None:
        self.sight = sight
        self.uuids = {entry["uuid"] for entry in entries if "uuid" in entry}
        self.summary = summary


class SaveslotSessionStore:
    """A `SessionStore` of the Claude Agent SDK: `ClaudeAgentOptions(session_store=SaveslotSessionStore(url))`.

    A batch is stored whole or not at all, and an entry with a `uuid` once, however often and from whatever process it
    is sent. `sessions` is an open manager; otherwise `url` and `options` are those of `saveslot.open`.
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
        self._known: OrderedDict[str, Known] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SaveslotSessionStore on {self._access!r}>"

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add the entries that are not there yet, in their order."""
        if not entries:
            return
        new = _new(key)

        async def add(sessions: SessionManager) -> None:
            while not await self._added(sessions, key, new, entries):
                self._known.pop(new.session_id, None)  # another caller was first: look again

        await settled(self._access.call(add))

    async def _added(
        self, sessions: SessionManager, key: SessionKey, new: New, entries: list[SessionStoreEntry]
    ) -> bool:
        known = self._known.pop(new.session_id, None) or await _read(sessions, new.session_id)
        fresh: list[SessionStoreEntry] = []
        uuids: set[str] = set()
        for entry in entries:
            uuid = entry.get("uuid")
            if uuid is None or not (uuid in known.uuids or uuid in uuids):
                fresh.append(entry)
                uuids |= set() if uuid is None else {uuid}
        if fresh:
            metadata: Data | None = None
            if "subpath" not in key:
                before = None if known.summary is None else _summary(key["session_id"], 0, known.summary)
                known.summary = fold_session_summary(before, key, fresh)["data"]
                metadata = {SUMMARY: known.summary}
            try:
                known.sight = await write(sessions, new, "batch", known.sight, {"append": {"entries": fresh}}, metadata)
            except Conflict:
                return False
            known.uuids |= uuids
        self._known[new.session_id] = known
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return True

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the transcript; None if it was never written."""

        async def load(sessions: SessionManager) -> list[SessionStoreEntry] | None:
            data, _ = await look(sessions, _id(key), None)
            return data.get("entries")

        return await self._access.call(load)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the main transcripts of a project, with the time of their newest entry in milliseconds."""

        async def listed(sessions: SessionManager) -> list[SessionStoreListEntry]:
            matches = _found(sessions, {PROJECT: fit(project_key)})
            return [
                {"session_id": session.context["session_id"], "mtime": _changed(session)} async for session in matches
            ]

        return await self._access.call(listed)

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the SDK's summaries of them, one read per 1,000."""

        async def summaries(sessions: SessionManager) -> list[SessionSummaryEntry]:
            listed: list[SessionSummaryEntry] = []
            async for session in _found(sessions, {PROJECT: fit(project_key)}):
                data: Data | None = {} if session.head is None else session.head.metadata.get(SUMMARY)
                if data is None:  # its newest entry is not a batch: it was held, or labelled
                    data = await _newest_summary(sessions, session.session_id)
                if data is not None:
                    listed.append(_summary(session.context["session_id"], _changed(session), data))
            return listed

        return await self._access.call(summaries)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the subpaths of a session's other transcripts."""

        async def subkeys(sessions: SessionManager) -> list[str]:
            return [session.context["subpath"] async for session in _found(sessions, {SESSION: _id(key)})]

        return await self._access.call(subkeys)

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; a main one with those of its subagents, in one write."""

        async def delete(sessions: SessionManager) -> None:
            ids = [_id(key)]
            if "subpath" not in key:
                ids += [session.session_id async for session in _found(sessions, {SESSION: _id(key)})]
            async with sessions.together() as changes:
                for session_id in ids:
                    self._known.pop(session_id, None)
                    changes.delete_session(session_id)

        await settled(self._access.call(delete))

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()


async def _read(sessions: SessionManager, session_id: str) -> Known:
    data, sight = await look(sessions, session_id, None)
    summary = None if sight == NOTHING else await _newest_summary(sessions, session_id)
    return Known(sight, data.get("entries", []), summary)


async def _newest_summary(sessions: SessionManager, session_id: str) -> Data | None:
    [*batches] = await sessions.entries(session_id, kinds=["checkpoint"], names=["batch"], newest=1)
    return batches[0].metadata.get(SUMMARY) if batches else None


async def _found(sessions: SessionManager, labels: dict[str, str]) -> AsyncGenerator[AgentSession]:
    after: str | None = None
    while True:
        page = await sessions.find(agent_type=AGENT, labels=labels, heads=True, limit=PAGE, after=after)
        for session in page:
            yield session
        if (after := page.next) is None:
            return


def _new(key: SessionKey) -> New:
    labels = {SESSION: _id({**key, "subpath": ""})} if "subpath" in key else {PROJECT: fit(key["project_key"])}
    return New(AGENT, _id(key), cast("Data", {**key}), labels)


def _id(key: SessionKey | SessionListSubkeysKey) -> str:
    name = joined(key["project_key"], key["session_id"])
    subpath = cast("str | None", key.get("subpath"))
    return fit(f"{name}/{subpath}" if subpath else name)


def _summary(session_id: str, mtime: int, data: Data) -> SessionSummaryEntry:
    return {"session_id": session_id, "mtime": mtime, "data": data}


def _changed(session: AgentSession) -> int:
    """When its newest entry was written, by the store's clock, in milliseconds."""
    at = session.created_at if session.head is None else session.head.timestamp
    return int(at.timestamp() * 1000)
