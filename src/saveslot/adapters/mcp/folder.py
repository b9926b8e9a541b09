"""The same tools on a folder of YAML files: one readable file per task, its newest version only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec

from saveslot.adapters.mcp.briefing import briefing
from saveslot.adapters.mcp.tasks import BEGIN, PARENT, Change, Ended, Noted, Page, Patch, Resumed, Saved
from saveslot.checkpoints.files import COMPLETED, CheckpointStore
from saveslot.codec import difference
from saveslot.errors import Conflict, InvalidInput, NotFound
from saveslot.values.checks import Data

# Keys of calls that a file remembers, so that a repeated one changes nothing.
MOST_CALLS = 50
CALLS, NOTES, UPDATED = "calls", "notes", "updated"
HISTORY = "a folder keeps only the newest version of each task; for a history, start saveslot mcp on a store"


class FolderTasks:
    def __init__(self, folder: Path, project: str) -> None:
        self._store = CheckpointStore(folder)
        self._project = project

    async def save(self, session_id: str | None, parent: str | None, change: Change) -> Saved:
        return await self._save(session_id, change, parent, begin=True)

    async def update(self, session_id: str | None, change: Change) -> Saved:
        return await self._save(session_id, change, None, begin=False)

    async def _save(self, session_id: str | None, change: Change, parent: str | None, *, begin: bool) -> Saved:
        task = session_id or self._project

        def decide(document: Data | None) -> Data | None:
            if document is None and (not begin or change.expect is not None):
                raise _missing(task)
            call = {"name": change.name, **change.arguments}
            if (done := _repeated(task, document, change.key, call, change.expect)) is None:
                return None
            kept = {key: value for key, value in (document or {}).items() if key in {PARENT, NOTES, CALLS}}
            if parent is not None:
                kept.setdefault(PARENT, parent)
            data = (
                {"status": "in_progress", **(change.data or {}), **kept} if begin else _changed(document or {}, change)
            )
            return {**data, **done}

        return _saved(task, await self._change(task, decide), change.name)

    async def resume(self, session_id: str | None, ref: str) -> Resumed:
        if ref != "latest":
            raise InvalidInput("ref", HISTORY)
        task = session_id or self._project
        checkpoint = await asyncio.to_thread(self._store.find_unfinished, task)
        if checkpoint is None:
            if await asyncio.to_thread(self._store.read, task) is None:
                raise _missing(task)
            raise NotFound(f"session {task} is completed, and so is all that it continued; {BEGIN}")
        task, document = checkpoint
        data = {key: value for key, value in document.items() if key not in {CALLS, NOTES}}
        notes = [str(note) for note in cast("list[Any]", document.get(NOTES) or [])]
        version, at = _version(document), str(document.get(UPDATED, ""))
        title = f"Session {task} ({document.get('status', 'status unknown')}), last changed {at}, version {version}"
        text = briefing(title, {key: data[key] for key in data if key not in {"status", UPDATED}}, notes)
        return Resumed(session_id=task, version=version, state=str(document.get("status", "")), at=at, text=text)

    async def list(self, agent_type: str | None, text: str | None, limit: int, after: str | None) -> Page:
        if agent_type is not None:
            raise InvalidInput("agent_type", "a folder does not know it; leave it out")
        ids = [task for task in await asyncio.to_thread(self._store.list_sessions) if after is None or task > after]
        ids = [task for task in ids if text is None or text in task]
        documents = [(task, await asyncio.to_thread(self._store.read, task)) for task in ids[:limit]]
        listed = [
            {"session_id": task, "state": doc.get("status"), "version": _version(doc), "at": doc.get(UPDATED)}
            for task, doc in documents
            if doc is not None
        ]
        return Page(sessions=listed, next=ids[limit - 1] if len(ids) > limit else None)

    async def diff(self, session_id: str | None, a: str, b: str) -> Patch:  # noqa: ARG002  (as on a store)
        raise InvalidInput("diff", HISTORY)

    async def rollback(self, session_id: str | None, to: str, expect: str | None, key: str | None) -> Saved:  # noqa: ARG002
        raise InvalidInput("rollback", HISTORY)

    async def complete(self, session_id: str | None, result: Any, expect: str | None, key: str | None) -> Ended:
        task = session_id or self._project

        def decide(document: Data | None) -> Data | None:
            if document is None:
                raise _missing(task)
            ended = document.get("status") == COMPLETED
            done = _repeated(task, document, key, {"complete": result}, None if ended else expect)
            if ended or done is None:
                return None
            return {**document, "status": COMPLETED, **({} if result is None else {"result": result}), **done}

        return Ended(session_id=task, state=COMPLETED, version=_version(await self._change(task, decide)))

    async def note(self, session_id: str | None, text: str, key: str | None) -> Noted:
        task = session_id or self._project

        def decide(document: Data | None) -> Data | None:
            if document is None:
                raise _missing(task)
            done = _repeated(task, document, key, {"note": text}, None)
            return None if done is None else {**document, NOTES: [*(document.get(NOTES) or []), text], **done}

        await self._change(task, decide)
        return Noted(session_id=task)

    async def read(self, session_id: str, ref: str | None) -> Data:
        if ref not in {None, "latest"}:
            raise InvalidInput("ref", HISTORY)
        document = await asyncio.to_thread(self._store.read, session_id)
        if document is None:
            raise _missing(session_id)
        return {key: value for key, value in document.items() if key != CALLS}

    async def _change(self, task: str, decide: Callable[[Data | None], Data | None]) -> Data:
        return await asyncio.to_thread(partial(self._store.change, task, decide))


def _changed(document: Data, change: Change) -> Data:
    if change.patch is not None:
        return cast("Data", difference.patched(document, change.patch))
    data = {key: value for key, value in document.items() if key not in (change.drop or [])} | (change.put or {})
    for key, items in (change.append or {}).items():
        before = data.get(key, [])
        if not isinstance(before, list):
            raise InvalidInput(f"append.{key}", "the saved state holds no list there")
        data[key] = [*cast("list[Any]", before), *items]
    return data


def _repeated(task: str, document: Data | None, key: str | None, call: Data, expect: str | None) -> Data | None:
    """Return what the file remembers of this call; None if it was made before."""
    if document is not None:
        calls = cast("dict[str, str]", document.get(CALLS) or {})
        content = sha256(msgspec.json.encode(call, order="sorted")).hexdigest()[:16]
        if key is not None and key in calls:
            if calls[key] != content:
                raise InvalidInput("key", f"{key!r} was used for another change of session {task}; choose a new one")
            return None
        _expected(task, document, expect)
        return {} if key is None else {CALLS: dict([*calls.items(), (key, content)][-MOST_CALLS:])}
    content = sha256(msgspec.json.encode(call, order="sorted")).hexdigest()[:16]
    return {} if key is None else {CALLS: {key: content}}


def _expected(task: str, document: Data, expect: str | None) -> None:
    if expect is not None and expect != (now := _version(document)):
        raise Conflict(f"session {task} is at version {now}, not {expect}: it was changed; nothing was stored")


def _version(document: Data) -> str:
    return sha256(msgspec.json.encode(document, order="sorted")).hexdigest()[:16]


def _saved(task: str, document: Data, name: str) -> Saved:
    return Saved(
        session_id=task, version=_version(document), name=name, at=str(document.get(UPDATED, datetime.now(UTC)))
    )


def _missing(task: str) -> NotFound:
    return NotFound(f"there is no session {task} yet; {BEGIN}")
