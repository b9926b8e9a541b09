"""LangGraph's checkpoint tables: a thread becomes a session, each checkpoint one of ours, with its id and parent.

Their values name Python classes. None is ever instantiated: a value stays data, under the name of its class.

    HumanMessage(content="hi")   {"$class": "langchain_core.messages.human.HumanMessage", "content": "hi", …}
    Decimal("1.5")               {"$class": "decimal.Decimal", "args": "1.5"}
    {1: "a"}                     {"$pairs": [[1, "a"]]}
    an unknown extension         {"$ext": 42, "bytes": …};  a pickle: {"$pickle": bytes}, never opened, and reported
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from saveslot.errors import InvalidInput
from saveslot.manager.export import read_json
from saveslot.moving.builder import Builder, stamp
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED
from saveslot.session.model import AgentSession
from saveslot.values.checks import MAX_NAME, Data, as_data, as_name
from saveslot.values.log import moment

CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
WRITES = {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path", "idx", "channel", "type"}
# Extensions 0 to 5 contain a module, a name and the constructor's arguments; 7 is a snapshot of a channel.
CLASSES, SNAPSHOT = range(6), 7
FIELDS = frozenset({2, 4, 5})
MAX_DEPTH = 100


class Write(NamedTuple):
    task_id: str
    channel: str
    value: Any


class Found(NamedTuple):
    """One row of the checkpoints table, decoded by `value`."""

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
                return _plain(_unpack(data), 0)
            except (msgspec.DecodeError, ValueError, RecursionError) as exc:
                raise InvalidInput(name, f"is not msgpack ({exc})") from None
        case "json":
            return read_json(data.decode(errors="surrogateescape"))
        case "null" | "empty":
            return None
        case "bytes" | "bytearray":
            return data
        case _:
            opaque.append(f"{name} ({kind})")
            return {f"${kind}": data}


def _revived(code: int, payload: memoryview) -> Any:
    """An extension as data: its class is named, never imported."""
    data = bytes(payload)
    try:
        parts = _unpack(data)
    except (msgspec.DecodeError, ValueError):
        return {"$ext": code, "bytes": data}
    if code == SNAPSHOT:
        return {"$class": "langgraph.DeltaSnapshot", "args": parts}
    if code not in CLASSES or not isinstance(parts, list) or len(cast("list[Any]", parts)) < 3:  # noqa: PLR2004
        return {"$ext": code, "bytes": data}
    module, name, made_from = cast("list[Any]", parts)[:3]
    match (module, name, made_from):
        case ("datetime", "datetime", str()):
            return _time(made_from)
        case ("uuid", "UUID", str()) if len(made_from) == len(UUID(int=0).hex):
            return UUID(made_from)
        case _ if code in FIELDS and isinstance(made_from, dict) and "$class" not in made_from:
            return {"$class": f"{module}.{name}", **cast("dict[Any, Any]", made_from)}
        case _:
            return {"$class": f"{module}.{name}", "args": made_from}


_unpack = msgspec.msgpack.Decoder(ext_hook=_revived).decode


def _time(text: str) -> Any:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _plain(value: Any, depth: int) -> Any:
    """Dicts with keys that are not text become pairs."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        items = [(_plain(key, depth + 1), _plain(item, depth + 1)) for key, item in cast("Data", value).items()]
        if all(isinstance(key, str) for key, _ in items):
            return dict(items)
        return {"$pairs": [list(pair) for pair in items]}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in cast("list[Any]", value)]
    return value


class Thread:
    """Builds the session of one thread, or of one of its subgraphs."""

    def __init__(self, thread_id: Any, part: str, namespace: str) -> None:
        self.name = f"thread {thread_id}" + (f", subgraph {part}" if part else "")
        self._thread_id, self._part, self._namespace = thread_id, part, namespace
        self._session_id = f"{thread_id}/{part}" if part else thread_id
        if isinstance(self._session_id, str) and len(self._session_id) > MAX_NAME:
            digest = sha256(self._session_id.encode(errors="surrogatepass")).hexdigest()[:16]
            self._session_id = f"{self._session_id[: MAX_NAME - 17]}~{digest}"
        self._builder: Builder | None = None

    def unfit(self) -> Problem | None:
        """The problem, if its id is not a valid session id."""
        try:
            as_name(self._session_id, "session_id")
        except InvalidInput as exc:
            return Problem(self.name, str(exc))
        return None

    def take(self, record: Found) -> Iterator[Problem]:
        where = f"{self.name}, checkpoint {record.checkpoint_id}"
        for name in record.opaque:
            yield Problem(where, f"{name} was kept as bytes: only its author can open it safely")
        try:
            checkpoint = as_data(record.checkpoint, "checkpoint")
            about = as_data(record.metadata, "metadata")
            at = stamp(checkpoint.pop("ts", None))
            checkpoint.pop("id", None)
            if record.writes:
                checkpoint["writes"] = [list(write) for write in record.writes]
            ids = {"checkpoint_id": record.checkpoint_id, "parent_checkpoint_id": record.parent}
            name = about.get("source")
            self._begun(at).checkpoint(
                name if isinstance(name, str) and name else "checkpoint",
                checkpoint,
                {**ids, "checkpoint_ns": self._part, "langgraph": about},
                moment(at),
            )
        except REFUSED as exc:
            yield Problem(where, str(exc))

    def _begun(self, at: int) -> Builder:
        if self._builder is None:
            metadata = {"thread_id": self._thread_id, "checkpoint_ns": self._part}
            session = AgentSession(
                session_id=self._session_id, agent_type="langgraph", created_at=moment(at), metadata=metadata
            )
            builder = Builder(self._namespace, session)
            builder.created()
            builder.rest(moment(at))
            self._builder = builder
        return self._builder

    def parcels(self) -> Iterator[MemoryParcel | Problem]:
        if self._builder is not None:
            yield self._builder.parcel()
