"""JSON, exactly: what goes in comes out equal, or is refused with the path to the value that cannot.

The encoder below would write NaN as null and the key 1 as "1" without a word, so values are looked at first, level by
level with C-speed primitives. Only a state that holds something special (a datetime, a subclass, a mistake) is walked
node by node. Tuples come back as lists, an instance of a subclass (an OrderedDict, a StrEnum) as what it is made of.

A datetime, bytes or UUID becomes an object with one reserved key, and so does a caller's dict that uses that key:

    {"$saveslot": ["datetime", "2026-01-02T03:04:05+00:00"]}    {"$saveslot": ["bytes", "AAEC"]}
    {"$saveslot": ["uuid", "0198..."]}                          {"$saveslot": ["dict", {"$saveslot": 1}]}

An aware datetime keeps its instant and offset, not the name of its zone; a naive one keeps its `fold`.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import chain
from math import isfinite
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from saveslot.errors import Corrupt, InvalidInput, TooLarge

T = TypeVar("T")

TAG = "$saveslot"
# So many containers may stand inside each other, the state itself counted.
MAX_DEPTH = 100
# JSON readers refuse longer integers, and so does Python (sys.int_info.default_max_str_digits).
MAX_DIGITS = 4300
MAX_STATE = 16 * 1024 * 1024

_SIMPLE = frozenset({str, int, bool, type(None)})
_TEXT = frozenset({str})
_LONG = frozenset({str, bytes, bytearray})
_PLAIN = frozenset({int, float, dict, list, tuple})
_NOTHING: frozenset[type] = frozenset()
_BIGGEST = 10**MAX_DIGITS
_MANY = 64
_TAG_TEXT = f'"{TAG}"'.encode()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(value: Any, path: str, limit: int = MAX_STATE, depth: int = 0) -> tuple[bytes, bool]:
    """The value as JSON text, and whether that may hold tagged values. `depth`: how many containers it stands in."""
    simple = _looked_at(value, path, limit, depth)
    plain = value if simple is None else _tagged(value, path, [], depth, simple)
    try:
        text = _encode(plain)
    except ValueError:
        _tagged(value, path, [], depth, _NOTHING)  # finds the culprit and names it
        raise
    if len(text) > limit:
        raise TooLarge(path, limit=limit, size=len(text))
    return text, simple is not None and _TAG_TEXT in text


def encode_keys(value: dict[str, Any], path: str, limit: int) -> tuple[dict[str, bytes | bytearray], int, bool]:
    """The text of each key of a state, how long they are as one object, and whether they may hold tagged values.

    The keys of the state itself are the caller's own: none of them is a tag.
    """
    if not isinstance(value, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(path, f"must be a dict, not {type(value).__name__}")
    simple = _looked_at(value, path, limit, 0)
    plain = value if simple is None else _tagged(value, path, [], 0, simple, top=True)
    try:
        texts: dict[str, bytes | bytearray] = dict(zip(plain, map(_encode, plain.values()), strict=True))
        size = size_of(texts)
    except ValueError:
        _tagged(value, path, [], 0, _NOTHING, top=True)
        raise
    if size > limit:
        raise TooLarge(path, limit=limit, size=size)
    return texts, size, simple is not None and any(_TAG_TEXT in text for text in texts.values())


def size_of(texts: Mapping[str, bytes | bytearray]) -> int:
    """How long they are as one JSON object, but for characters escaped in keys."""
    return len("".join(texts).encode()) + sum(map(len, texts.values())) + 4 * len(texts) + 2


def decode(text: bytes | bytearray, *, tagged: bool) -> Any:
    """The value of a text, or `Corrupt`."""
    try:
        value = _decode(text)
        return _revived(value) if tagged and _TAG_TEXT in text else value
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt("a stored value", "is not what Saveslot writes") from exc


def _looked_at(value: Any, path: str, limit: int, depth: int) -> frozenset[type] | None:
    """None when the encoder will be exact; otherwise the types that the careful way may take over without a look.

    Shared references can multiply without end, so nothing goes on that has more items than can fit. Where there are
    many, some texts are weighed, enough to stop before the memory is full; what is encoded is measured anyway.
    """
    simple, size, exact = _SIMPLE, 0, True
    if not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS:
        simple -= {int}  # the encoder would write integers that nobody can read back
    if _small(value, simple):
        return None
    dicts: list[dict[Any, Any]] = []
    lists: list[Sequence[Any]] = [(value,)]
    for left in range(MAX_DEPTH - depth, -1, -1):
        rest = [v for found in dicts for v in found.values() if type(v) not in simple]
        rest += [v for found in lists for v in found if type(v) not in simple]
        if not rest:
            return None if exact else simple
        kinds = set(map(type, rest))
        if float in kinds:
            exact = exact and all(map(isfinite, [v for v in rest if type(v) is float]))
        if int in kinds:
            exact = exact and all(abs(v) < _BIGGEST for v in rest if type(v) is int)
        if kinds <= _PLAIN:
            dicts = [v for v in rest if type(v) is dict] if dict in kinds else []
            lists = [v for v in rest if type(v) is list or type(v) is tuple] if list in kinds or tuple in kinds else []
        else:
            exact = False
            dicts = [v for v in rest if isinstance(v, dict)]
            lists = [v for v in rest if isinstance(v, (list, tuple))]
        if not dicts and not lists:
            return None if exact else simple
        if not left:
            break
        items = sum(map(len, dicts)) + sum(map(len, lists))
        size += 2 * items  # an item and its comma
        if items > _MANY and size <= limit:
            size += _weighed(dicts, lists)
        if size > limit:
            raise TooLarge(path, limit=limit, size=size)
        if dicts and exact:
            keys = cast("set[Any]", set().union(*dicts))
            exact = set(map(type, keys)) <= _TEXT and TAG not in keys
    return simple  # too deep


def _small(value: Any, simple: frozenset[type]) -> bool:
    """True for a few dicts and lists of simple values, fewer than may stand inside each other; False says nothing.

    A fifth of the time for a state of one message (1 us instead of 4.5).
    """
    found: list[Any] = [value]
    for inner in found:
        kind = type(inner)  # pyright: ignore[reportUnknownVariableType]
        if kind in simple:
            continue
        if kind is dict:
            if TAG in inner or not _TEXT.issuperset(map(type, inner)):
                return False
            items: Collection[Any] = inner.values()
        elif kind is list:
            items = inner
        elif kind is float and isfinite(inner):
            continue
        else:
            return False
        if len(found) + len(items) > _MANY:
            return False
        found += items
    return True


def _weighed(dicts: list[dict[Any, Any]], lists: list[Sequence[Any]]) -> int:
    """How many bytes the texts and bytes in some of these take at least: in all of a few, in every 17th of many."""
    some = _some(dicts)
    texts = chain(*some, *[found.values() for found in some], *map(_some, _some(lists)))
    return sum([len(v) for v in texts if type(v) in _LONG])


def _some(found: Sequence[T]) -> Sequence[T]:
    return found if len(found) < _MANY else found[::17]


def _tagged(
    value: Any, path: str, trail: list[str | int], depth: int, simple: frozenset[type], *, top: bool = False
) -> Any:
    """A copy in plain JSON types, or `InvalidInput` with the path of what has no exact form.

    `trail` leads from `path` to this value, which stands in `depth` containers; `simple` are types to take over without
    a look; the keys of `top` are not tags.
    """
    if isinstance(value, (dict, list, tuple)):
        if depth >= MAX_DEPTH:
            raise InvalidInput(place(path, trail), f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        if not isinstance(value, dict):
            items = list(cast("list[Any]", value))
            for n, item in enumerate(items):
                if type(item) not in simple:
                    trail.append(n)
                    items[n] = _tagged(item, path, trail, depth + 1, simple)
                    trail.pop()
            return items
        plain: dict[str, Any] = {}
        for name, item in cast("dict[Any, Any]", value).items():
            key = name if type(name) is str and simple else checked_key(name, path, trail)
            if type(item) in simple:
                plain[key] = item
            else:
                trail.append(key)
                plain[key] = _tagged(item, path, trail, depth + 1, simple)
                trail.pop()
        if len(plain) != len(cast("dict[Any, Any]", value)):
            raise InvalidInput(place(path, trail), "has two keys of the same text")
        return {TAG: ["dict", plain]} if TAG in plain and not top else plain
    if isinstance(value, float):
        if not isfinite(value):
            reason = f"is {float.__float__(value)}, which JSON cannot hold; store None or text instead"
            raise InvalidInput(place(path, trail), reason)
        return float.__float__(value)
    if isinstance(value, datetime):
        return {TAG: ["datetime", *_moment(value, path, trail)]}
    if isinstance(value, str):
        if (at := _surrogate(value)) is not None:
            reason = f"holds half of a surrogate pair ({value[at]!a}), which is no character"
            raise InvalidInput(place(path, trail), reason)
        return str.__str__(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        digits = min(MAX_DIGITS, sys.get_int_max_str_digits() or MAX_DIGITS)
        if value.bit_length() > 3 * digits and abs(value) >= 10**digits:
            raise InvalidInput(place(path, trail), f"is an integer of more than {digits:,} digits")
        return int.__int__(value)
    if isinstance(value, (bytes, bytearray)):
        return {TAG: ["bytes", b64encode(value).decode()]}
    if isinstance(value, UUID):
        return {TAG: ["uuid", str(value)]}
    raise InvalidInput(
        place(path, trail),
        f"is a {type(value).__name__}; "
        "only str, int, float, bool, None, list, dict, datetime, bytes and UUID can be stored",
    )


def checked_key(key: Any, path: str, trail: Sequence[str | int] = ()) -> str:
    if not isinstance(key, str):
        raise InvalidInput(place(path, trail), f"has a key of type {type(key).__name__}; keys must be text")
    if _surrogate(key) is not None:
        reason = f"has the key {_short(key)!a}, which holds half of a surrogate pair"
        raise InvalidInput(place(path, trail), reason)
    return str.__str__(key)


def _surrogate(value: str) -> int | None:
    try:
        str.encode(value)
    except UnicodeEncodeError as exc:
        return exc.start
    return None


def _moment(value: datetime, path: str, trail: list[str | int]) -> tuple[str, *tuple[int, ...]]:
    """Its ISO text, and a 1 behind it for the second of two equal hours where no offset tells them apart."""
    text = value.isoformat()
    try:
        exact = datetime.fromisoformat(text).isoformat() == text
    except ValueError:
        exact = False
    if not exact:
        # Another library's, perhaps with nanoseconds, or no time at all; or what Python itself reads back as UTC.
        reason = f"is a {type(value).__name__} that a datetime with microseconds cannot hold"
        if type(value) is datetime:
            reason = "is a datetime whose offset, of less than a second, cannot be read back"
        raise InvalidInput(place(path, trail), reason)
    return (text, 1) if value.fold and value.utcoffset() is None else (text,)


def place(path: str, trail: Sequence[str | int]) -> str:
    """data.messages[0]["two words"]"""
    for step in trail:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.replace("-", "_").isidentifier():
            path += f".{_short(step)}"
        else:
            path += f'["{_short(step)}"]' if step.isprintable() else f"[{_short(step)!a}]"
    return path


def _short(key: str) -> str:
    return key if len(key) <= 80 else key[:79] + "…"  # noqa: PLR2004


def _revived(value: Any) -> Any:
    """The value that was tagged, made from a freshly decoded one, which it takes over."""
    if type(value) is list:
        items = cast("list[Any]", value)
        for n, item in enumerate(items):
            if type(item) is dict or type(item) is list:
                items[n] = _revived(item)
        return items
    if type(value) is not dict:
        return value
    found = cast("dict[str, Any]", value)
    if TAG not in found:
        return _revived_items(found)
    if len(found) == 1:
        match found[TAG]:
            case ["datetime", str(text)]:
                return datetime.fromisoformat(text)
            case ["datetime", str(text), 1]:
                return datetime.fromisoformat(text).replace(fold=1)
            case ["bytes", str(text)]:
                return b64decode(text, validate=True)
            case ["uuid", str(text)]:
                return UUID(text)
            case ["dict", dict()]:
                return _revived_items(cast("dict[str, Any]", found[TAG][1]))
            case _:
                pass
    raise Corrupt("a stored value", "has an unknown type (a newer Saveslot may have written it)")


def _revived_items(found: dict[str, Any]) -> dict[str, Any]:
    for key, item in found.items():
        if type(item) is dict or type(item) is list:
            found[key] = _revived(item)
    return found
