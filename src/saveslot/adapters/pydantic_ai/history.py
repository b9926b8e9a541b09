"""A store of Pydantic AI's conversations, each a session.

A conversation's state is `{"record": {…}, "entries": […]}`: the framework's record, and each message once with the id
of the entry before it. A fork's session has copies of the entries before it, so it outlives what it was forked from.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from saveslot import blocking
from saveslot.adapters.access import Access
from saveslot.adapters.follow import NOTHING, New, Sight, look, settled, write
from saveslot.errors import Conflict
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data, as_name

AGENT = "pydantic-ai"
# The label by which the conversations of a scope are found.
SCOPE = "pydantic-ai.scope"
# Entries whose conversation is remembered: the framework reads a record, then its history by the newest entry's id.
MOST_KNOWN = 10_000
# Sessions per page of a list.
PAGE = 1000

_records: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class SaveslotMessageHistory(ConversationStore):
    """A `ConversationStore`: `await history.load(id)` before a run, `await history.save(result)` after it.

    A save stores the new messages and the record in one write. If another process saved or deleted the conversation
    since it was loaded, it is a `ConversationConflict`, and nothing is stored. Inside a `sessions.hold` of the same id
    by this process, writes carry its lease, and other processes get `LeaseHeld`.

    `sessions` is an open manager; otherwise `url` and `options` are those of `saveslot.open`.
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
        self._places: OrderedDict[str, str] = OrderedDict()  # by entry: its conversation

    def __repr__(self) -> str:
        return f"<SaveslotMessageHistory on {self._access!r}>"

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, without reading its messages."""

        async def read(sessions: SessionManager) -> ConversationRecord | None:
            record, _ = await _record(sessions, as_name(conversation_id, "conversation_id"))
            return record

        record = await self._access.call(read)
        for entry_id in () if record is None else (record.head_id, *record.branches):
            if entry_id is not None:
                self._places[entry_id] = conversation_id
                self._places.move_to_end(entry_id)
        while len(self._places) > MOST_KNOWN:
            self._places.popitem(last=False)
        return record

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of the conversations that changed last, the newest `updated_at` first."""

        async def read(sessions: SessionManager) -> list[ConversationRecord]:
            records: list[ConversationRecord] = []
            if limit != 0:
                async for session in _found(sessions, scope):
                    record, _ = await _record(sessions, session.session_id)
                    if record is not None:  # it may have been deleted meanwhile
                        records.append(record)
                    if len(records) == limit:
                        break
            return sorted(records, key=lambda record: record.updated_at, reverse=True)

        return await self._access.call(read)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries in one write, or raise `ConversationConflict`."""
        name = as_name(record.conversation_id, "conversation_id")
        labels = None if record.scope is None else {SCOPE: record.scope}
        new, entries = New(AGENT, name, labels=labels), _stored(new_entries)

        async def save(sessions: SessionManager) -> None:
            before, sight = await _record(sessions, name)
            if (None if before is None else before.revision) != expected_revision:
                raise ConversationConflict(name)
            added = entries
            if not new_entries and record.head_id not in {None, None if before is None else before.head_id}:
                line = await _line(sessions, name if before is not None else record.forked_from, record.head_id)
                if line is None:
                    raise ConversationConflict(name)
                added = line if before is None else []  # else it is a branch of this conversation
            data: Data = {"record": _records.dump_python(record, mode="json")}
            change: Data = {"put": data, "append": {"entries": added}}
            if sight == NOTHING:
                change = {"data": {**data, "entries": added}}
            try:
                await write(sessions, new, "saved", sight, change)
            except Conflict as exc:
                raise ConversationConflict(name) from exc

        await settled(self._access.call(save))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its entries; forks keep theirs."""

        async def delete(sessions: SessionManager) -> None:
            while True:
                record, sight = await _record(sessions, conversation_id)
                if record is None or record.revision != expected_revision:
                    raise ConversationConflict(conversation_id)
                try:
                    await sessions.delete_session(conversation_id, seen=sight.version)
                except Conflict:  # perhaps by an entry without messages: it was held, or labelled
                    continue
                return

        await settled(self._access.call(delete))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. One of a conversation that this object has not read is searched for in all of them."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to this one, oldest first, or the last `limit` of them; all in one read."""
        if head_id is None or limit == 0:
            return []

        async def read(sessions: SessionManager) -> Data | None:
            place = self._places.get(head_id)
            line = None if place is None else await _line(sessions, place, head_id, limit)
            if line is None:
                async for session in _found(sessions, None):
                    line = await _line(sessions, session.session_id, head_id, limit)
                    if line is not None:
                        break
            return None if line is None else {"entries": line}

        data = await self._access.call(read)
        if data is None:
            raise LookupError(f"there is no entry {head_id} in any conversation; it may have been deleted")
        entries: list[Data] = data["entries"]
        messages = _messages([entry["message"] for entry in entries])
        return [
            ConversationEntry(id=entry["id"], parent_id=entry["parent_id"], message=message)
            for entry, message in zip(entries, messages, strict=True)
        ]

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()


async def _record(sessions: SessionManager, conversation_id: str) -> tuple[ConversationRecord | None, Sight]:
    data, sight = await look(sessions, conversation_id, {}, ["record"])
    record = data.get("record")
    return None if record is None else _records.validate_json(msgspec.json.encode(record)), sight


async def _line(
    sessions: SessionManager, conversation_id: str | None, head_id: str | None, limit: int | None = None
) -> list[Data] | None:
    """Return the last `limit` stored entries that lead to this one; None if the conversation does not have it."""
    if conversation_id is None:
        return None
    if limit is not None:  # mostly the last entries of the list
        data, _ = await look(sessions, conversation_id, {"entries": limit})
        line = _chain(data, head_id, limit)
        if len(line) == limit or (line and line[0]["parent_id"] is None):
            return line
    data, sight = await look(sessions, conversation_id, None)
    line = [] if sight == NOTHING else _chain(data, head_id, limit)
    return line or None


def _chain(data: Data, head_id: str | None, limit: int | None) -> list[Data]:
    entries = {entry["id"]: entry for entry in data.get("entries", [])}
    line: list[Data] = []
    while head_id in entries and (limit is None or len(line) < limit):
        line.append(entries[head_id])
        head_id = line[-1]["parent_id"]
    return line[::-1]


async def _found(sessions: SessionManager, scope: str | None) -> AsyncGenerator[AgentSession]:
    """Yield the conversations of a scope, or all, the one that changed last first."""
    after: str | None = None
    while True:
        labels = None if scope is None else {SCOPE: scope}
        page = await sessions.find(agent_type=AGENT, labels=labels, order="changed", limit=PAGE, after=after)
        for session in page:
            yield session
        if (after := page.next) is None:
            return


def _stored(entries: Sequence[ConversationEntry]) -> list[Data]:
    messages = ModelMessagesTypeAdapter.dump_python([entry.message for entry in entries], mode="json")
    return [
        {"id": entry.id, "parent_id": entry.parent_id, "message": message}
        for entry, message in zip(entries, messages, strict=True)
    ]


def _messages(stored: list[Data]) -> list[ModelMessage]:
    # As JSON text: only there does base64 become bytes again.
    return ModelMessagesTypeAdapter.validate_json(msgspec.json.encode(stored))
