"""LangGraph's checkpoint tables: a thread becomes a session, each of its checkpoints one of ours, with ids and parents.

Their values name Python classes. None is ever made: a value stays data, under the name of its class.

    HumanMessage(content="hi")   {"$class": "langchain_core.messages.human.HumanMessage", "content": "hi", …}
    Decimal("1.5")               {"$class": "decimal.Decimal", "args": "1.5"}
    {1: "a"}                     {"$pairs": [[1, "a"]]}
    an unknown extension         {"$ext": 42, "bytes": …};  a pickle: {"$pickle": bytes}, never opened, and told
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from saveslot.errors import InvalidInput
from saveslot.log import moment
from saveslot.model import MAX_NAME, AgentSession, Data, as_data, as_name
from saveslot.moving.drafting import Making, stamp
from saveslot.moving.parcel import Kept, Problem
from saveslot.moving.records import REFUSED
from saveslot.transfer import read_json

CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
WRITES = {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path", "idx", "channel", "type"}
# Extensions 0 to 5 hold a module, a name, and what the class is made from; 7 a snapshot of a channel.
CLASSES, SNAPSHOT = range(6), 7
FIELDS = frozenset({2, 4, 5})
MAX_DEPTH = 100


class Write(NamedTuple):
    task_id: str
    channel: str
    value: Any


class Found(NamedTuple):
    """One checkpoint as its table holds it, decoded by `value`."""

    checkpoint_id: str
    parent: str | None
    checkpoint: Any
    metadata: Any
    writes: list[Write]
    opaque: list[str]  # what of it was kept as bytes, by name


def value(kind: Any, data: Any, opaque: list[str], name: str) -> Any:
    """What a serialised value holds, as data; what cannot be opened stays bytes, and its name is noted."""
    data = b"" if data is None else data.encode() if isinstance(data, str) else bytes(data)
    match kind:
        case "msgpack":
            try:
                return _plain(_unpack(data), 0)
            except (msgspec.DecodeError, ValueError, RecursionError) as exc:
                raise InvalidInput(name, f"is no msgpack ({exc})") from None
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
    """An extension as data: the class is named, never looked for."""
    told = bytes(payload)
    try:
        parts = _unpack(told)
    except (msgspec.DecodeError, ValueError):
        return {"$ext": code, "bytes": told}
    if code == SNAPSHOT:
        return {"$class": "langgraph.DeltaSnapshot", "args": parts}
    if code not in CLASSES or not isinstance(parts, list) or len(cast("list[Any]", parts)) < 3:  # noqa: PLR2004
        return {"$ext": code, "bytes": told}
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


def _plain(found: Any, depth: int) -> Any:
    """Keys that are no text become pairs."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(found, dict):
        items = [(_plain(key, depth + 1), _plain(item, depth + 1)) for key, item in cast("Data", found).items()]
        if all(isinstance(key, str) for key, _ in items):
            return dict(items)
        return {"$pairs": [list(pair) for pair in items]}
    if isinstance(found, list | tuple):
        return [_plain(item, depth + 1) for item in cast("list[Any]", found)]
    return found


class Thread:
    """One thread, or one of its subgraphs, in the making."""

    def __init__(self, thread_id: Any, part: str, namespace: str) -> None:
        self.name = f"thread {thread_id}" + (f", subgraph {part}" if part else "")
        self._thread_id, self._part, self._namespace = thread_id, part, namespace
        self._session_id = f"{thread_id}/{part}" if part else thread_id
        if isinstance(self._session_id, str) and len(self._session_id) > MAX_NAME:
            digest = sha256(self._session_id.encode(errors="surrogatepass")).hexdigest()[:16]
            self._session_id = f"{self._session_id[: MAX_NAME - 17]}~{digest}"
        self._made: Making | None = None

    def unfit(self) -> Problem | None:
        """Why nothing of it can be taken: its id makes no session's."""
        try:
            as_name(self._session_id, "session_id")
        except InvalidInput as exc:
            return Problem(self.name, str(exc))
        return None

    def take(self, found: Found) -> Iterator[Problem]:
        where = f"{self.name}, checkpoint {found.checkpoint_id}"
        for name in found.opaque:
            yield Problem(where, f"{name} was kept as bytes: nobody but its author can open it safely")
        try:
            checkpoint = as_data(found.checkpoint, "checkpoint")
            about = as_data(found.metadata, "metadata")
            at = stamp(checkpoint.pop("ts", None))
            checkpoint.pop("id", None)
            if found.writes:
                checkpoint["writes"] = [list(write) for write in found.writes]
            ids = {"checkpoint_id": found.checkpoint_id, "parent_checkpoint_id": found.parent}
            name = about.get("source")
            self._begun(at).checkpoint(
                name if isinstance(name, str) and name else "checkpoint",
                checkpoint,
                {**ids, "checkpoint_ns": self._part, "langgraph": about},
                moment(at),
            )
        except REFUSED as exc:
            yield Problem(where, str(exc))

    def _begun(self, at: int) -> Making:
        if self._made is None:
            metadata = {"thread_id": self._thread_id, "checkpoint_ns": self._part}
            session = AgentSession(
                session_id=self._session_id, agent_type="langgraph", created_at=moment(at), metadata=metadata
            )
            made = Making(self._namespace, session)
            made.created()
            made.rest(moment(at))
            self._made = made
        return self._made

    def parcels(self) -> Iterator[Kept | Problem]:
        if self._made is not None:
            yield self._made.parcel()
