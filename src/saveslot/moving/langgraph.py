"""LangGraph's checkpoint tables: a thread becomes a session as the adapter writes it, so a graph goes on here.

Their values name Python classes. None is ever instantiated: a value stays data, under the name of its class
(`langgraph_state`). A pickle is never opened, and is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from saveslot.errors import InvalidInput
from saveslot.manager.export import read_json
from saveslot.moving.builder import Builder, stamp
from saveslot.moving.langgraph_state import (
    AGENT_TYPE,
    CHECKPOINT,
    SEEN,
    VERSIONS,
    WRITES as WRITES_KEY,
    WRITES_NAME,
    careful,
    key_of,
    name_of,
    namespace_of,
    note_of,
    own_key,
    plain,
    session_id_of,
    within,
)
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data, as_data, as_name, as_text
from saveslot.values.log import moment

CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
WRITES = {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path", "idx", "channel", "type"}


class Write(NamedTuple):
    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


class Found(NamedTuple):
    """One row of the checkpoints table, decoded by `value`."""

    ns: str
    checkpoint_id: str
    parent: str | None
    checkpoint: Any
    metadata: Any
    writes: list[Write]
    opaque: list[str]  # names of the values that stay bytes


def value(kind: Any, data: Any, opaque: list[str], name: str) -> Any:
    """A serialised value as data. One that cannot be decoded stays bytes, and its name goes into `opaque`."""
    if isinstance(data, int | float):  # bytes(10**12) would allocate a terabyte
        raise InvalidInput(name, f"must be bytes or text, not {type(data).__name__}")
    data = b"" if data is None else data.encode(errors="surrogateescape") if isinstance(data, str) else bytes(data)
    match kind:
        case "msgpack":
            try:
                return careful(data)
            except (msgspec.DecodeError, ValueError, RecursionError) as exc:
                raise InvalidInput(name, f"is not msgpack ({exc})") from None
        case "json":
            return plain(read_json(data.decode(errors="surrogateescape")))
        case "null" | "empty":
            return None
        case "bytes":
            return data
        case "bytearray":
            return {"$typed": [kind, data]}
        case _:
            opaque.append(f"{name} ({kind})")
            return {"$typed": [str(kind), data]}


class Thread:
    """Builds the session of one thread, with its subgraphs."""

    def __init__(self, thread_id: Any, namespace: str) -> None:
        self.name = f"thread {thread_id}"
        self._thread_id, self._namespace = thread_id, namespace
        self._session_id = session_id_of(thread_id) if isinstance(thread_id, str) else thread_id
        self._builder: Builder | None = None
        self._state: Data = {}

    def unfit(self) -> Problem | None:
        """The problem, if its id is not a valid session id."""
        try:
            as_name(self._session_id, "session_id")
        except InvalidInput as exc:
            return Problem(self.name, str(exc))
        return None

    def where(self, ns: Any, checkpoint_id: Any) -> str:
        return f"{self.name}, " + (f"subgraph {ns}, " if ns else "") + f"checkpoint {checkpoint_id}"

    def take(self, record: Found) -> Iterator[Problem]:
        where = self.where(record.ns, record.checkpoint_id)
        for name in record.opaque:
            yield Problem(where, f"{name} was kept as bytes: only its author can open it safely")
        try:
            self._add(record)
        except REFUSED as exc:
            yield Problem(where, str(exc))

    def _add(self, record: Found) -> None:
        ns, checkpoint_id = as_text(record.ns, "checkpoint_ns"), as_name(record.checkpoint_id, "checkpoint_id")
        parent = None if record.parent is None else as_name(record.parent, "parent_checkpoint_id")
        checkpoint, about = dict(as_data(record.checkpoint, "checkpoint")), as_data(record.metadata, "metadata")
        at = stamp(checkpoint.get("ts"))
        values = as_data(checkpoint.pop("channel_values", {}), "channel_values")
        versions = as_data(checkpoint.pop("channel_versions", {}), "channel_versions")
        seen = as_data(checkpoint.pop("versions_seen", {}), "versions_seen")
        checkpoint.pop("id", None)
        state = {key: item for key, item in self._state.items() if not within(namespace_of(key), ns)}
        state |= {key_of(name, ns): item for name, item in values.items() if name in versions}
        state[own_key(CHECKPOINT, ns)] = {
            "id": checkpoint_id,
            "parent": parent,
            "metadata": about,
            "checkpoint": checkpoint,
        }
        state |= {own_key(VERSIONS, ns): versions, own_key(SEEN, ns): seen}
        self._begun(at).checkpoint(name_of(about), state, note_of(ns, checkpoint_id, about), moment(at))
        self._state = state
        if record.writes:
            state = {**state, own_key(WRITES_KEY, ns): [_row(checkpoint_id, write) for write in record.writes]}
            note = {**note_of(ns, checkpoint_id), "writes": len(record.writes)}
            self._begun(at).checkpoint(WRITES_NAME, state, note, moment(at))
            self._state = state

    def _begun(self, at: int) -> Builder:
        if self._builder is None:
            metadata = {} if self._session_id == self._thread_id else {"thread_id": self._thread_id}
            session = AgentSession(
                session_id=self._session_id, agent_type=AGENT_TYPE, created_at=moment(at), metadata=metadata
            )
            builder = Builder(self._namespace, session)
            builder.created()
            builder.rest(moment(at))
            self._builder = builder
        return self._builder

    def parcels(self) -> Iterator[MemoryParcel | Problem]:
        if self._builder is not None:
            yield self._builder.parcel()


def _row(checkpoint_id: str, write: Write) -> list[Any]:
    place = [as_text(write.task_id, "task_id"), as_text(write.task_path, "task_path"), as_number(write.idx)]
    return [checkpoint_id, *place, as_text(write.channel, "channel"), write.value]


def as_number(value: Any) -> int:
    if not isinstance(value, int):
        raise InvalidInput("idx", f"must be a whole number, not {type(value).__name__}")
    return value
