"""A LangGraph thread as the state of a session, readable: what the adapter reads and writes, and an import writes.

    messages                 the value of a channel
    messages@agent:1c40…     the same channel in a subgraph, after its checkpoint_ns
    $checkpoint              id, parent, ts, metadata and the rest of the newest checkpoint
    $versions, $seen         its channel_versions and versions_seen
    $writes                  rows [checkpoint id, task id, task path, index, channel, value], until the next one

LangGraph serialises values as msgpack whose extensions name Python classes. Here none of them is imported: a value
becomes data with the class beside its fields, and the same msgpack again for LangGraph's own serialiser.

    HumanMessage(content="hi")   {"$class": "langchain_core.messages.human.HumanMessage", "content": "hi", …}
    Decimal("1.5")               {"$ext": [0, ["decimal", "Decimal", "1.5"]]}
    {1: "a"}                     {"$pairs": [[1, "a"]]}
    float("nan")                 {"$float": "nan"}
    another serialiser's bytes   {"$typed": ["msgpack+aes", bytes]}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any, cast
from uuid import UUID

import msgspec

from saveslot.values.checks import MAX_NAME, Data

AGENT_TYPE = "langgraph"
MAX_DEPTH = 100
WRITES_NAME = "writes"  # of entries that add rows to $writes
CHECKPOINT, VERSIONS, SEEN, WRITES = "$checkpoint", "$versions", "$seen", "$writes"

# Extensions of LangGraph's serialiser: a class and one argument, a class method and its argument, a pydantic model, a
# snapshot of a delta channel. The others stay numbers.
SINGLE, METHOD, MODEL, SNAPSHOT = 0, 3, 5, 7
VALIDATE = "model_validate_json"
_AS_IT_IS = frozenset({str, int, float, bool, bytes, type(None)})

RESERVED = frozenset({"$class", "$ext", "$raw", "$delta", "$pairs", "$float", "$typed"})
_RESERVED = re.compile(rb"\$(class|ext|raw|delta|pairs|float|typed)")
# The first two bytes of every msgpack float that is infinite or not a number, and of a few finite ones.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff]")


class Marked(dict[str, Any]):
    """A dict that stands for an extension, unlike a caller's dict with the same keys."""


def session_id_of(thread_id: Any) -> str:
    """The session of a thread: its id, shortened if it is longer than a session's may be."""
    name = str(thread_id)
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 17]}~{sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}"


def key_of(name: str, ns: str = "") -> str:
    """The key of a channel's value in a namespace."""
    if "%" in name or "@" in name or name[:1] == "$":
        name = name.replace("%", "%25").replace("@", "%40").replace("$", "%24")
    return f"{name}@{ns}" if ns else name


def own_key(name: str, ns: str) -> str:
    """The key of one of the four parts of a checkpoint beside its values."""
    return f"{name}@{ns}" if ns else name


def namespace_of(key: str) -> str:
    return key.partition("@")[2]


def within(ns: str, outer: str) -> bool:
    """True if `ns` is `outer` or a subgraph in it: what a checkpoint of `outer` takes out of the state."""
    return ns == outer or not outer or ns.startswith(f"{outer}|")


def note_of(ns: str, checkpoint_id: str, metadata: Mapping[str, Any] | None = None) -> Data:
    """What the entry of a checkpoint says beside the state: which one it is; of writes, without their metadata."""
    note: Data = {"id": checkpoint_id, "ns": ns} if ns else {"id": checkpoint_id}
    about = metadata or {}
    if isinstance(step := about.get("step"), int):
        note["step"] = step
    run = about.get("run_id")
    if run is not None and 0 < len(str(run)) <= MAX_NAME:
        note["labels"] = {"run": str(run)}
    return note


def name_of(metadata: Mapping[str, Any]) -> str:
    """The name of a checkpoint's entry."""
    source = metadata.get("source")
    return source if isinstance(source, str) and 0 < len(source) <= MAX_NAME else "checkpoint"


# msgpack -> data


def as_data(packed: bytes) -> Any:
    """Return msgpack as data. `msgspec.DecodeError` or ValueError if it is not what LangGraph writes.

    Keys that are not text are left as they are: `careful` changes them, and costs a walk over every part.
    """
    if _RESERVED.search(packed) or _NOT_FINITE.search(packed):
        return careful(packed)
    return _decode(packed)


def careful(packed: bytes) -> Any:
    """Return msgpack as data, whatever its keys and numbers are."""
    return plain(_decode_marked(packed))


def _revived(decode: Callable[[bytes], Any], make: Callable[[Data], Any]) -> Callable[[int, memoryview], Any]:
    def revive(code: int, payload: memoryview) -> Any:
        packed = bytes(payload)
        try:
            parts = decode(packed)
        except (msgspec.DecodeError, ValueError):
            return make({"$raw": [code, packed]})
        if code == SNAPSHOT:
            return make({"$delta": parts})
        match parts:
            case [str(module), str(name), dict() as fields, method] if (  # pyright: ignore[reportUnknownVariableType]
                code == MODEL and method == VALIDATE and RESERVED.isdisjoint(cast("Data", fields))
            ):
                return make({"$class": f"{module}.{name}", **cast("Data", fields)})
            case ["datetime", "datetime", str(text), "fromisoformat"] if code == METHOD and _is_exact(text):
                return datetime.fromisoformat(text)
            case ["uuid", "UUID", str(text)] if code == SINGLE and len(text) == 32:  # noqa: PLR2004
                return UUID(text)
            case _:
                return make({"$ext": [code, parts]})

    return revive


def _is_exact(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _same(state: Data) -> Data:
    return state


def _decode(packed: bytes) -> Any:
    return _decoder.decode(packed)


def _decode_marked(packed: bytes) -> Any:
    return _marking.decode(packed)


_decoder = msgspec.msgpack.Decoder(ext_hook=_revived(_decode, _same))
_marking = msgspec.msgpack.Decoder(ext_hook=_revived(_decode_marked, Marked))


def plain(value: Any, depth: int = 0) -> Any:
    """Data without keys that are not text, and without numbers that JSON lacks; ours are told from a caller's."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    match value:
        case Marked():
            return {key: plain(item, depth + 1) for key, item in value.items()}
        case dict():
            items = [
                (plain(key, depth + 1), plain(item, depth + 1)) for key, item in cast("dict[Any, Any]", value).items()
            ]
            if all(isinstance(key, str) and key not in RESERVED for key, _ in items):
                return dict(items)
            return {"$pairs": [list(pair) for pair in items]}
        case list() | tuple():
            return [plain(item, depth + 1) for item in cast("list[Any]", value)]
        case float() if not isfinite(value):
            return {"$float": str(value)}
        case _:
            return value


# data -> msgpack


def as_msgpack(value: Any) -> bytes:
    """The msgpack that `as_data` turned into this value."""
    return _encode(_packed(value))


_encode = msgspec.msgpack.Encoder().encode


def _packed(value: Any) -> Any:
    kind = cast("Any", type(value))
    if kind in _AS_IT_IS:
        return value
    if kind is dict:
        if RESERVED.isdisjoint(value):
            return _fields(value)
        if "$class" in value:
            fields = _fields(value)
            module, _, name = str(fields.pop("$class")).rpartition(".")
            return _ext(MODEL, [module, name, fields, VALIDATE])
        return _extension(value)
    if kind is list:
        return [_packed(item) for item in value]
    if kind is datetime:
        return _ext(METHOD, ["datetime", "datetime", value.isoformat(), "fromisoformat"])
    if kind is UUID:
        return _ext(SINGLE, ["uuid", "UUID", value.hex])
    return value


def _fields(value: Data) -> Data:
    return {key: item if not item or type(item) in _AS_IT_IS else _packed(item) for key, item in value.items()}


def _extension(value: Data) -> Any:
    match value:
        case {"$ext": [int(code), parts]}:
            return _ext(code, _packed(parts))
        case {"$raw": [int(code), bytes(packed)]}:
            return msgspec.msgpack.Ext(code, packed)
        case {"$delta": inner}:
            return _ext(SNAPSHOT, _packed(inner))
        case {"$pairs": [*pairs]}:
            return {_hashable(_packed(key)): _packed(item) for key, item in cast("list[tuple[Any, Any]]", pairs)}
        case {"$float": str(text)}:
            return float(text)
        case _:
            return value


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in cast("list[Any]", key)) if isinstance(key, list) else key


def _ext(code: int, parts: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encode(parts))
