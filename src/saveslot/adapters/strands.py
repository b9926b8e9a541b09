"""AWS Strands: agents' conversations as sessions, and a storage of snapshots and other blobs. Extra: `strands`.

A session's state is what Strands keeps of it, by agent, and each message is a checkpoint, named by its role:

    session              its record
    agent:ID             the record of an agent: its state, and that of its conversation manager
    messages:ID          its messages, each with its number
    multi_agent:ID       the state of a graph or a swarm

A blob of a storage is a session of its own, named by its key. One that is a JSON object, as snapshots are, is stored as
such: each version as its difference to the one before, and readable in `saveslot log` and `diff`.

Strands calls its stores synchronously while it blocks an event loop, so both live in the loop of `saveslot.blocking`.
"""

# ruff: noqa: E402  (the version of the framework is checked before it is imported)

from __future__ import annotations

import builtins
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from saveslot import blocking
from saveslot.adapters.access import Access, require
from saveslot.adapters.follow import NOTHING, New, Sight, Turns, glance, look, settled, write
from saveslot.errors import Conflict, InvalidInput, SaveslotError
from saveslot.manager import SessionManager
from saveslot.values.checks import MAX_NAME, Data, as_name
from saveslot.values.ids import fit

require("strands", "strands-agents", "1.62", "1.63")

from strands.multiagent import MultiAgentBase
from strands.session import SessionRepository
from strands.storage import Storage
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, encode_bytes_values

R = TypeVar("R")

# Agent types of the sessions.
CONVERSATION, BLOB = "strands", "strands-storage"
SESSION = "session"
# Records and keys of which an object remembers what it saw.
MOST_SEEN = 10_000
# Sessions per page of a list.
PAGE = 1000
# Keys of a blob's state: those of its JSON object in their order, or the bytes of another one.
KEYS, BYTES = "$keys", "$bytes"

# What a call changes: a checkpoint's name, and the arguments of `checkpoint`; None: it is stored already.
Change = tuple[str, Data] | None


class SaveslotSessionRepository(SessionRepository):
    """A repository: `Agent(session_manager=RepositorySessionManager("chat-1", SaveslotSessionRepository(url)))`.

    Two processes never mix on one conversation: of two that add the same number of message, one is stored, and the
    other gets `Conflict`; so it is for a record that another process changed after this object read it. Inside a
    `sessions.hold` of the same id by this process, writes carry its lease, and other processes get `LeaseHeld`.

    `sessions` is an open manager of `saveslot.blocking`; otherwise `url` and `options` are those of `saveslot.open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: blocking.SessionManager | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self._access = Access(url, sessions=sessions, namespace=namespace, apart=True, **options)
        self._seen: OrderedDict[tuple[str, str], Any] = OrderedDict()  # by session and key: the record
        self._turns = Turns()

    def __repr__(self) -> str:
        return f"<SaveslotSessionRepository on {self._access!r}>"

    def create_session(self, session: Session, **_: Any) -> Session:
        """Create a session, or raise `SessionException`."""

        def decide(data: Data) -> Change:
            if SESSION in data:
                raise SessionException(f"session {session.session_id} exists already; read it with read_session")
            return "created", {"put": {SESSION: session.to_dict()}}

        self._change(session.session_id, decide, new=True)
        return session

    def read_session(self, session_id: str, **_: Any) -> Session | None:
        record = self._read(session_id, SESSION).get(SESSION)
        return None if record is None else Session.from_dict(record)

    def delete_session(self, session_id: str, **_: Any) -> None:
        """Delete a session with all its agents, or raise `SessionException`."""
        if not self._access.run(lambda sessions: settled(sessions.delete_session(as_name(session_id, "session_id")))):
            raise _missing(session_id)
        for known in [known for known in self._seen if known[0] == session_id]:
            del self._seen[known]

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Add an agent to a session. `Conflict` if another process added it meanwhile."""
        self._add(session_id, _agent(session_agent.agent_id), "agent", session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> SessionAgent | None:
        record = self._read(session_id, _agent(agent_id)).get(_agent(agent_id))
        return None if record is None else SessionAgent.from_dict(record)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Replace the record of an agent; its `created_at` stays."""
        key = _agent(session_agent.agent_id)

        def decide(data: Data) -> Change:
            before = self._unchanged(session_id, key, data)
            session_agent.created_at = before["created_at"]
            record = session_agent.to_dict()
            return None if record == before else ("agent", {"put": {key: record}})

        self._change(session_id, decide, [key])
        self._see(session_id, key, session_agent.to_dict())

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Add a message. `Conflict` if another process added one of this number."""
        key, item = _messages(agent_id), session_message.to_dict()

        def decide(data: Data) -> Change:
            if _agent(agent_id) not in data:
                raise _missing(session_id, _agent(agent_id))
            newest = next(iter(data.get(key, [])), None)
            if newest == item:  # stored by a call whose answer was lost
                return None
            if newest is not None and newest["message_id"] >= item["message_id"]:
                raise Conflict(
                    f"session {session_id}: message {item['message_id']} of agent {agent_id} is there already: another "
                    "process continued the conversation; nothing was stored: restore the agent, and call it again",
                    seen=item["message_id"] - 1,
                    head=newest["message_id"],
                )
            return _name(item), {"append": {key: [item]}}

        self._change(session_id, decide, [_agent(agent_id)], {key: 1})

    def read_message(self, session_id: str, agent_id: str, message_id: int, **_: Any) -> SessionMessage | None:
        for item in reversed(self._read(session_id, _messages(agent_id)).get(_messages(agent_id), [])):
            if item["message_id"] == message_id:
                return SessionMessage.from_dict(item)
        return None

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Replace a message that a guardrail redacted; its `created_at` stays. Earlier checkpoints keep the old one."""
        key = _messages(agent_id)

        def decide(data: Data) -> Change:
            for place, item in enumerate(data.get(key, [])):
                if item["message_id"] == session_message.message_id:
                    session_message.created_at = item["created_at"]
                    path = f"/{key.replace('~', '~0').replace('/', '~1')}/{place}"
                    return "redacted", {"patch": [{"op": "replace", "path": path, "value": session_message.to_dict()}]}
            raise SessionException(f"message {session_message.message_id} of agent {agent_id} is not in {session_id}")

        self._change(session_id, decide, [key])

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[SessionMessage]:
        """Return the messages of an agent, `limit` of them from `offset` on, or raise `SessionException`."""
        key = _messages(agent_id)
        data = self._read(session_id, key, _agent(agent_id))
        if _agent(agent_id) not in data:
            raise _missing(session_id, _agent(agent_id))
        stored = data.get(key, [])[offset:]
        return [SessionMessage.from_dict(item) for item in (stored if limit is None else stored[:limit])]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Add a graph or a swarm to a session. `Conflict` if another process added it meanwhile."""
        record = encode_bytes_values(multi_agent.serialize_state())
        self._add(session_id, _multi(multi_agent.id), "multi-agent", record)

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **_: Any) -> dict[str, Any] | None:
        return self._read(session_id, _multi(multi_agent_id)).get(_multi(multi_agent_id))

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Replace the state of a graph or a swarm."""
        key, record = _multi(multi_agent.id), encode_bytes_values(multi_agent.serialize_state())

        def decide(data: Data) -> Change:
            before = self._unchanged(session_id, key, data)
            return None if record == before else ("multi-agent", {"put": {key: record}})

        self._change(session_id, decide, [key])
        self._see(session_id, key, record)

    def close(self) -> None:
        """Close what this object opened."""
        self._access.close_now()

    # Calls

    def _read(self, session_id: str, *keys: str) -> Data:
        name = as_name(session_id, "session_id")

        async def read(sessions: SessionManager) -> Data:
            data, _ = await look(sessions, name, {}, keys)
            return data

        data = self._access.run(read)
        for key in keys:
            self._see(session_id, key, data.get(key))
        return data

    def _change(
        self,
        session_id: str,
        decide: Callable[[Data], Change],
        keys: Sequence[str] = (),
        last: dict[str, int] | None = None,
        *,
        new: bool = False,
    ) -> None:
        """Write what `decide` makes of these keys, and of the ends of these lists: as this process knows them, or, if
        another process wrote meanwhile or `decide` raises, as the store has them.
        """
        name = as_name(session_id, "session_id")

        async def change(sessions: SessionManager) -> None:
            async with self._turns.of(name):
                see = glance
                while True:
                    data, sight = await see(sessions, name, last or {}, [SESSION, *keys])
                    try:
                        if SESSION not in data and not new:
                            raise _missing(session_id)
                        decided = decide(data)
                    except (Conflict, SessionException):
                        if see is look:
                            raise
                        see = look
                        continue
                    if decided is None:
                        return
                    see, (called, arguments) = look, decided
                    with suppress(Conflict):
                        await write(sessions, New(CONVERSATION, name), called, sight, arguments)
                        return

        self._access.run(lambda sessions: settled(change(sessions)))

    def _add(self, session_id: str, key: str, name: str, record: Data) -> None:
        def decide(data: Data) -> Change:
            if key not in data:
                return name, {"put": {key: record}}
            if data[key] != record:
                raise _changed(session_id, key)
            return None

        self._change(session_id, decide, [key])
        self._see(session_id, key, record)

    def _see(self, session_id: str, key: str, record: Any) -> None:
        if key.startswith("messages:"):
            return
        self._seen[session_id, key] = record
        self._seen.move_to_end((session_id, key))
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    def _unchanged(self, session_id: str, key: str, data: Data) -> Data:
        """Return a record, which must be as this object saw it last."""
        if key not in data:
            raise _missing(session_id, key)
        if self._seen.get((session_id, key), data[key]) != data[key]:
            raise _changed(session_id, key)
        return data[key]


class SaveslotStorage(Storage):
    """A storage: `SnapshotSessionManager("chat-1", storage=SaveslotStorage(url))`, or `Agent(storage=…)`.

    A write follows what this object has read or written under its key: if another process wrote since, it is a
    `StorageError`, and nothing is stored. Every version stays in the history of the key's session.

    `sessions` is an open manager of `saveslot.blocking`; otherwise `url` and `options` are those of `saveslot.open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: blocking.SessionManager | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self._access = Access(url, sessions=sessions, namespace=namespace, apart=True, **options)
        self._seen: OrderedDict[str, Sight] = OrderedDict()
        self._turns = Turns()

    def __repr__(self) -> str:
        return f"<SaveslotStorage on {self._access!r}>"

    async def write(self, key: str, data: bytes) -> None:
        """Store a blob, whole or not at all, and durably."""
        new, name = New(BLOB, fit(key), {"key": key}), fit(key.rpartition("/")[2] or key)

        async def save(sessions: SessionManager) -> None:
            async with self._turns.of(key):
                seen = self._seen.get(key)
                try:
                    saved = await write(sessions, new, name, seen, {"data": _state(data)})
                except InvalidInput:  # JSON that no database would take, as it is too deep or has too large a number
                    saved = await write(sessions, new, name, seen, {"data": {BYTES: bytes(data)}})
                self._see(key, saved)

        await self._call(save)

    async def read(self, key: str) -> bytes | None:
        """Return a blob as it was written; None if there is none."""

        async def load(sessions: SessionManager) -> bytes | None:
            async with self._turns.of(key):
                data, sight = await look(sessions, fit(key), None)
                self._see(key, sight)
            return None if sight == NOTHING or not data else _blob(data)

        return await self._call(load)

    async def delete(self, key: str) -> None:
        """Delete a blob, if there is one."""

        async def delete(sessions: SessionManager) -> None:
            async with self._turns.of(key):
                self._seen.pop(key, None)
                await sessions.delete_session(fit(key))

        await self._call(delete)

    async def list(self, query: str = "") -> builtins.list[str]:
        """Return the keys that begin with this text, in their order."""

        async def listed(sessions: SessionManager) -> builtins.list[str]:
            keys: builtins.list[str] = []
            after: str | None = None
            # The end of a long key is not in its session's id.
            start = query[: MAX_NAME - 33] or None
            while True:
                page = await sessions.find(agent_type=BLOB, prefix=start, limit=PAGE, after=after)
                keys += [key for session in page if (key := session.context.get("key", "")).startswith(query)]
                if (after := page.next) is None:
                    return sorted(keys)

        return await self._call(listed)

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()

    async def _call(self, verb: Callable[[SessionManager], Any]) -> Any:
        try:
            return await settled(self._access.call(verb))
        except SaveslotError as exc:
            raise StorageError(str(exc)) from exc

    def _see(self, key: str, sight: Sight) -> None:
        self._seen[key] = sight
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)


def _agent(agent_id: str) -> str:
    return f"agent:{agent_id}"


def _messages(agent_id: str) -> str:
    return f"messages:{agent_id}"


def _multi(multi_agent_id: str) -> str:
    return f"multi_agent:{multi_agent_id}"


def _missing(session_id: str, key: str = "") -> SessionException:
    what = f"{key.replace(':', ' ')} of session {session_id}" if key else f"session {session_id}"
    return SessionException(f"{what} does not exist; create it first")


def _changed(session_id: str, key: str) -> Conflict:
    return Conflict(
        f"session {session_id}: another process changed {key} after this one read it; nothing was stored: restore the "
        "agent, and call it again"
    )


def _name(item: Mapping[str, Any]) -> str:
    """The name of a message's checkpoint: its role, and the tools that it calls."""
    message = item["message"]
    tools = ", ".join(part["toolUse"]["name"] for part in message["content"] if "toolUse" in part)
    return fit(f"{message['role']}: {tools}" if tools else message["role"])


def _state(blob: bytes) -> Data:
    """Return a blob as a state, from which `_blob` makes the same bytes."""
    try:
        value: Any = json.loads(blob)
        if isinstance(value, dict) and json.dumps(value, ensure_ascii=False).encode() == blob:
            members = cast("Data", value)
            if not members.keys() & {KEYS, BYTES}:
                return {KEYS: [*members], **members}
    except (ValueError, RecursionError):
        pass
    return {BYTES: bytes(blob)}


def _blob(state: Data) -> bytes:
    if BYTES in state:
        return state[BYTES]
    return json.dumps({key: state[key] for key in state[KEYS]}, ensure_ascii=False).encode()
