"""Exact JSON: a value comes back equal, or is refused with the path to the part that would not.

The encoder below would silently write NaN as null and the key 1 as "1", so values are checked first, level by level
with C-speed primitives. Only a state that holds something special (a datetime, a subclass, a mistake) is walked node by
node. Tuples come back as lists, an instance of a subclass (an OrderedDict, a StrEnum) as its base type.

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

from saveslot.codec import weight
from saveslot.errors import Corrupt, InvalidInput, TooLarge

T = TypeVar("T")

TAG = "$saveslot"
# Maximum nesting depth, including the state itself.
MAX_DEPTH = 100
# Digits of an integer; a negative one has one less, because the decoder counts its sign. JSON readers refuse longer
# ones, and so does Python (sys.int_info.default_max_str_digits).
MAX_DIGITS = 4300
# Keys of a state, each of which costs every checkpoint some microseconds. A state that has more gets no further ones.
MAX_KEYS = 50_000
# Bytes of a state as JSON, unless the manager sets another limit.
MAX_STATE = 16 * 1024 * 1024
# A limit in bytes that nothing reaches, for values whose size is checked elsewhere or not limited.
ANY_SIZE = 1 << 40

_SIMPLE = frozenset({str, int, bool, type(None)})
_TEXT = frozenset({str})
_LONG = frozenset({str, bytes, bytearray})
_PLAIN = frozenset({int, float, dict, list, tuple})
_NOTHING: frozenset[type] = frozenset()
_BIGGEST, _LEAST = 10**MAX_DIGITS, -(10 ** (MAX_DIGITS - 1))
# Python's encoder writes a negative integer of MAX_DIGITS digits, which the decoder refuses. In its text every 500th
# byte is a digit, eight times in a row; only a text with such a sample is searched byte by byte.
_EVERY = 500
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_SAMPLED_ZEROS, _ZEROS = b"0" * (MAX_DIGITS // _EVERY), b"0" * MAX_DIGITS
_MANY = 64
_TAG_TEXT = f'"{TAG}"'.encode()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def encode(value: Any, path: str, limit: int = MAX_STATE, depth: int = 0) -> tuple[bytes, bool]:
    """Return the value as JSON text, and whether it may hold tagged values. `depth`: how many containers enclose it."""
    simple = _looked_at(value, path, limit, depth)
    plain = value if simple is None else _tagged(value, path, [], depth, simple)
    try:
        text = _encode(plain)
    except ValueError:
        _tagged(value, path, [], depth, _NOTHING)  # raises with the path of the value at fault
        raise
    if _has_long_number(text):
        _tagged(value, path, [], depth, _NOTHING)
    if len(text) > limit:
        raise TooLarge(path, limit=limit, size=len(text))
    return text, simple is not None and _TAG_TEXT in text


def encode_keys(value: dict[str, Any], path: str, limit: int) -> tuple[dict[str, bytes | bytearray], int, bool]:
    """Return the text of each key, their size as one object, and whether they may hold tagged values.

    The keys of the state itself belong to the caller: none of them is a tag.
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
    if size > MAX_DIGITS and any(map(_has_long_number, texts.values())):
        _tagged(value, path, [], 0, _NOTHING, top=True)
    if size > limit:
        raise TooLarge(path, limit=limit, size=size)
    return texts, size, simple is not None and any(_TAG_TEXT in text for text in texts.values())


def check_keys(path: str, count: int, before: int) -> None:
    """Raise `TooLarge` if a state that had `before` keys would have so many."""
    if count > MAX_KEYS and count > before:
        hint = "keep them in an object under one key"
        raise TooLarge(path, limit=MAX_KEYS, size=count, unit="keys at its top", hint=hint)


def size_of(texts: Mapping[str, bytes | bytearray]) -> int:
    """Return the size of the texts as one JSON object, not counting escapes in keys."""
    return len("".join(texts).encode()) + sum(map(len, texts.values())) + 4 * len(texts) + 2


def decode(text: bytes | bytearray, *, tagged: bool, what: str = weight.STORED) -> Any:
    """Return the value of a text, or raise `Corrupt`. `what`: what an error calls it that is too heavy."""
    weight.check(text, what)
    try:
        value = _decode(text)
        return _revived(value) if tagged and _TAG_TEXT in text else value
    except (ValueError, TypeError, RecursionError) as exc:
        raise Corrupt("a stored value", "is not what Saveslot writes") from exc


def members_of(text: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """Return the members of an object, not decoded."""
    weight.check(text)
    return _members(text)


def items_of(text: bytes | bytearray) -> list[msgspec.Raw]:
    """Return the items of a list, not decoded."""
    weight.check(text)
    return _items(text)


def _has_long_number(text: bytes | bytearray) -> bool:
    """True if the text may hold an integer of MAX_DIGITS digits."""
    if len(text) <= MAX_DIGITS or _SAMPLED_ZEROS not in text[::_EVERY].translate(_AS_ZEROS):
        return False
    return _ZEROS in text.translate(_AS_ZEROS)


def _looked_at(value: Any, path: str, limit: int, depth: int) -> frozenset[type] | None:
    """Return None if the encoder will be exact; otherwise the types that the walk may copy without checking.

    Shared references can multiply without end, so a level with more items than fit the limit is refused. If there are
    many items, a sample of the texts is measured, enough to stop before memory is full. The result is measured too.
    """
    simple, size, exact = _SIMPLE, 0, True
    if not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS:
        simple -= {int}  # the encoder would write integers that cannot be read back
    if _small(value, simple):
        return None
    dicts: list[dict[Any, Any]] = []
    lists: list[Sequence[Any]] = [(value,)]
    for left in range(MAX_DEPTH - depth, -1, -1):
        rest = [v for part in dicts for v in part.values() if type(v) not in simple]
        rest += [v for part in lists for v in part if type(v) not in simple]
        if not rest:
            return None if exact else simple
        kinds = set(map(type, rest))
        if float in kinds:
            exact = exact and all(map(isfinite, [v for v in rest if type(v) is float]))
        if int in kinds:
            exact = exact and all(_LEAST < v < _BIGGEST for v in rest if type(v) is int)
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
        if items >= _MANY and size <= limit:
            size += _weighed(dicts, lists)
        if size > limit:
            raise TooLarge(path, limit=limit, size=size)
        if dicts and exact:
            keys = cast("set[Any]", set().union(*dicts))
            exact = set(map(type, keys)) <= _TEXT and TAG not in keys
    return simple  # too deep


def _small(value: Any, simple: frozenset[type]) -> bool:
    """Return True for a few dicts and lists of simple values, fewer than the maximum depth. False means: not known.

    Takes a fifth of the time for a state of one message (1 us instead of 4.5).
    """
    values, count = [value], 0
    for inner in values:
        kind = type(inner)  # pyright: ignore[reportUnknownVariableType]
        if kind is dict:
            if TAG in inner or not _TEXT.issuperset(map(type, inner)):
                return False
            items: Collection[Any] = inner.values()
        elif kind is list:
            items = inner
        elif kind in simple or (kind is float and isfinite(inner)):
            continue
        else:
            return False
        count += len(items)
        if count >= _MANY:
            return False
        if not simple.issuperset(map(type, items)):
            values += items
    return True


def _weighed(dicts: list[dict[Any, Any]], lists: list[Sequence[Any]]) -> int:
    """Return a lower bound for the bytes of the texts in these: of all if they are few, of every 17th if many."""
    some = _some(dicts)
    texts = chain(*some, *[part.values() for part in some], *map(_some, _some(lists)))
    return sum([len(v) for v in texts if type(v) in _LONG])


def _some(part: Sequence[T]) -> Sequence[T]:
    return part if len(part) < _MANY else part[::17]


def _tagged(
    value: Any, path: str, trail: list[str | int], depth: int, simple: frozenset[type], *, top: bool = False
) -> Any:
    """Return a copy in plain JSON types, or raise `InvalidInput` with the path of a value that has no exact form.

    `trail` leads from `path` to this value, enclosed by `depth` containers; values of `simple` types are copied
    unchecked; with `top`, the keys are not tags.
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
            raise InvalidInput(place(path, trail), "has two keys with the same text")
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
            reason = f"holds half of a surrogate pair ({value[at]!a}), which is not a character"
            raise InvalidInput(place(path, trail), reason)
        return str.__str__(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        digits = min(MAX_DIGITS - (value < 0), sys.get_int_max_str_digits() or MAX_DIGITS)
        if value.bit_length() > 3 * digits and abs(value) >= 10**digits:
            raise InvalidInput(
                place(path, trail), f"is {'a negative' if value < 0 else 'an'} integer of more than {digits:,} digits"
            )
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
    """Return its ISO text, followed by 1 for the second of two equal hours if no offset distinguishes them."""
    text = value.isoformat()
    offset = value.utcoffset()
    if offset is not None and offset.microseconds:  # before 3.14, Python reads an offset below a second as UTC
        raise InvalidInput(place(path, trail), "is a datetime whose offset has a fraction of a second")
    try:
        exact = datetime.fromisoformat(text).isoformat() == text
    except ValueError:
        exact = False
    if not exact:  # from another library, perhaps with nanoseconds, or not a time
        reason = f"is a {type(value).__name__} that a datetime with microseconds cannot hold"
        raise InvalidInput(place(path, trail), reason)
    return (text, 1) if value.fold and offset is None else (text,)


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
    """Replace tagged objects by their values, in place, in a freshly decoded value."""
    if type(value) is list:
        items = cast("list[Any]", value)
        for n, item in enumerate(items):
            if type(item) is dict or type(item) is list:
                items[n] = _revived(item)
        return items
    if type(value) is not dict:
        return value
    items = cast("dict[str, Any]", value)
    if TAG not in items:
        return _revived_items(items)
    if len(items) == 1:
        match items[TAG]:
            case ["datetime", str(text)]:
                return datetime.fromisoformat(text)
            case ["datetime", str(text), 1]:
                return datetime.fromisoformat(text).replace(fold=1)
            case ["bytes", str(text)]:
                return b64decode(text, validate=True)
            case ["uuid", str(text)]:
                return UUID(text)
            case ["dict", dict()]:
                return _revived_items(cast("dict[str, Any]", items[TAG][1]))
            case _:
                pass
    raise Corrupt("a stored value", "has an unknown type (a newer Saveslot may have written it)")


def _revived_items(items: dict[str, Any]) -> dict[str, Any]:
    for key, item in items.items():
        if type(item) is dict or type(item) is list:
            items[key] = _revived(item)
    return items
