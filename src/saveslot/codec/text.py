"""JSON, exactly: what goes in comes out equal, or is refused with the path to the value that cannot.

The encoder below would write NaN as null and the key 1 as "1" without a word, so values are looked at first, level by
level with C-speed primitives. Only a state that holds something special (a datetime, a subclass, a mistake) is walked
node by node.

A datetime, bytes or UUID becomes an object with one reserved key, and so does a caller's dict that uses that key:

    {"$saveslot": ["datetime", "2026-01-02T03:04:05+00:00"]}    {"$saveslot": ["bytes", "AAEC"]}
    {"$saveslot": ["uuid", "0198..."]}                          {"$saveslot": ["dict", [["$saveslot", 1]]]}
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime
from itertools import chain
from math import isfinite
from typing import Any, cast
from uuid import UUID

import msgspec

from saveslot.errors import Corrupt, InvalidInput, TooLarge

TAG = "$saveslot"
MAX_DEPTH = 100
# Python itself refuses to print longer integers (sys.int_info.default_max_str_digits), and so does every JSON reader.
MAX_DIGITS = 4300
MAX_STATE = 16 * 1024 * 1024

_BIGGEST = 10**MAX_DIGITS
_LEAVES = {str, int, float, bool, type(None)}
_PLAIN = _LEAVES | {dict, list, tuple}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(value: Any, path: str, limit: int = MAX_STATE) -> tuple[bytes, bool]:
    """The value as JSON text, and whether the text holds tagged values."""
    tagged = not _plain(value, path, limit)
    if tagged:
        value = _tagged(value, path, 0)
    try:
        text = _encode(value)
    except (UnicodeEncodeError, ValueError):
        text = _encode(_tagged(value, path, 0))  # finds the culprit and names it
    if len(text) > limit:
        raise TooLarge(path, limit=limit, size=len(text))
    return text, tagged


def decode(text: bytes | bytearray, *, tagged: bool) -> Any:
    value = _decode(text)
    return _revived(value) if tagged else value


def _plain(value: Any, path: str, limit: int) -> bool:
    """True when the encoder will be exact; False asks for the careful way, which either manages or says why not."""
    level: list[Any] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if kinds <= _LEAVES:
            return float not in kinds or all(map(isfinite, (v for v in level if type(v) is float)))
        if not kinds <= _PLAIN:
            return False
        if float in kinds and not all(map(isfinite, (v for v in level if type(v) is float))):
            return False
        dicts: list[dict[Any, Any]] = []
        lists: list[list[Any]] = []
        if dict in kinds:
            dicts = level if len(kinds) == 1 else [v for v in level if type(v) is dict]
            keys: set[Any] = set(chain.from_iterable(dicts))
            if TAG in keys or not set(map(type, keys)) <= {str}:
                return False
        if list in kinds or tuple in kinds:
            lists = [v for v in level if type(v) is list or type(v) is tuple]
        level = list(chain.from_iterable(map(dict[Any, Any].values, dicts)))
        level.extend(chain.from_iterable(lists))
        nodes += len(level)
        if nodes > limit:  # every node takes a byte or more; shared references can multiply without end
            raise TooLarge(path, limit=limit, size=nodes)
    return False


def _tagged(value: Any, path: str, depth: int) -> Any:
    """A copy in plain JSON types, or `InvalidInput` with the path of what has no exact form."""
    if depth > MAX_DEPTH:
        raise InvalidInput(path, f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            if abs(value) >= _BIGGEST:
                raise InvalidInput(path, f"is an integer of more than {MAX_DIGITS:,} digits")
            return int.__int__(value)
        case float():
            if not isfinite(value):
                raise InvalidInput(path, f"is {value}, which JSON cannot hold; store None or text instead")
            return float.__float__(value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            plain = {_key(key, path): _tagged(item, f"{path}.{key}", depth + 1) for key, item in items}
            return {TAG: ["dict", [[key, item] for key, item in plain.items()]]} if TAG in plain else plain
        case list() | tuple():
            return [_tagged(v, f"{path}[{n}]", depth + 1) for n, v in enumerate(cast("list[Any]", value))]
        case datetime():
            text = value.isoformat()
            if datetime.fromisoformat(text) != value:
                raise InvalidInput(path, f"is a {type(value).__name__} with more than microseconds")
            return {TAG: ["datetime", text]}
        case bytes() | bytearray():
            return {TAG: ["bytes", b64encode(value).decode()]}
        case UUID():
            return {TAG: ["uuid", str(value)]}
        case _:
            name = type(value).__name__
            raise InvalidInput(
                path,
                f"is a {name}; only str, int, float, bool, None, list, dict, datetime, bytes and UUID can be stored",
            )


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(path, f"has the key {key!r} of type {type(key).__name__}; keys must be text")
    return _text(key, path)


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(path, f"holds half of a surrogate pair ({value[exc.start]!a}), which is no character") from None
    return str.__str__(value)


def _revived(value: Any) -> Any:
    if isinstance(value, list):
        return [_revived(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if TAG not in found:
        return {key: _revived(item) for key, item in found.items()}
    match found[TAG]:
        case ["datetime", str(text)]:
            return datetime.fromisoformat(text)
        case ["bytes", str(text)]:
            return b64decode(text)
        case ["uuid", str(text)]:
            return UUID(text)
        case ["dict", list(items)]:
            return {key: _revived(item) for key, item in cast("list[tuple[str, Any]]", items)}
        case other:
            raise Corrupt("a stored value", f"has the unknown type {other!r} (a newer Saveslot may have written it)")
