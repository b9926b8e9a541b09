"""Outlines: a state down to a depth. What is below stands as its kind, size and bytes, so a large one can be looked at.

{"messages": {"…": "list", "size": 812, "bytes": 1490231}, "turn": 812}        depth 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from saveslot.codec.patch import Text
from saveslot.codec.text import TAG, decode, items_of, members_of
from saveslot.errors import InvalidInput, NotFound

Kind = Literal["object", "list", "text", "value"]

# Key of what stands for a container, or for a text of more than this many characters, of which it has the beginning.
STANDS, LONG = "…", 2_000
# Children of an inner container that is shown whole, if it is not too deep. More stand as their number.
MOST = 200

_TAGGED = f'{{"{TAG}":'.encode()


class Outline(NamedTuple):
    value: Any
    kind: Kind
    size: int  # members, items or characters
    bytes: int  # as JSON
    start: int  # the first child that is shown
    next: int | None  # the first one after those; None if they are the last


def outline(texts: Mapping[str, Text], path: str, *, tagged: bool, depth: int, limit: int, start: int = 0) -> Outline:
    """Return what a JSON pointer names in a state, down to `depth` containers, and at most `limit` of its children.

    `NotFound` if it names nothing. Texts are cut only inside a container: one that is named comes whole.
    """
    at = joined(texts)
    for step in _steps(path):
        child = _child(at, step, tagged=tagged)
        if child is None:
            raise NotFound(f"the state has nothing at {path!r}: no {step!r}")
        at = child
    kind = _kind(at, tagged=tagged)
    if kind == "object":
        members = list(members_of(at).items())
        cut = {key: _shown(bytes(raw), depth - 1, tagged=tagged) for key, raw in members[start : start + limit]}
        return Outline(cut, kind, len(members), len(at), start, _next(start + limit, len(members)))
    if kind == "list":
        items = items_of(at)
        values = [_shown(bytes(raw), depth - 1, tagged=tagged) for raw in items[start : start + limit]]
        return Outline(values, kind, len(items), len(at), start, _next(start + limit, len(items)))
    value = decode(at, tagged=tagged)
    return Outline(value, kind, len(value) if isinstance(value, str) else 1, len(at), 0, None)


def _next(end: int, size: int) -> int | None:
    return end if end < size else None


def joined(texts: Mapping[str, Text]) -> bytes:
    """Return a state as one JSON text."""
    return b"{%b}" % b",".join(msgspec.json.encode(key) + b":" + text for key, text in texts.items())


def _steps(path: str) -> list[str]:
    """Split a JSON pointer (RFC 6901)."""
    if path and not path.startswith("/"):
        raise InvalidInput("path", f"must be empty or start with a slash, like /messages/0, not {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _kind(text: bytes, *, tagged: bool) -> Kind:
    match text[:1]:
        case b"[":
            return "list"
        case b"{" if not (tagged and text.startswith(_TAGGED)):
            return "object"
        case b'"':
            return "text"
        case _:
            return "value"


def _child(text: bytes, step: str, *, tagged: bool) -> bytes | None:
    match _kind(text, tagged=tagged):
        case "object":
            raw = members_of(text).get(step)
            return None if raw is None else bytes(raw)
        case "list" if step.isascii() and step.isdigit():
            items = items_of(text)
            return bytes(items[int(step)]) if len(step) <= len(str(len(items))) and int(step) < len(items) else None
        case _:
            return None


def _shown(text: bytes, depth: int, *, tagged: bool) -> Any:
    match _kind(text, tagged=tagged):
        case "object":
            members = members_of(text)
            if depth < 1 or len(members) > MOST:
                return {STANDS: "object", "size": len(members), "bytes": len(text)}
            return {key: _shown(bytes(raw), depth - 1, tagged=tagged) for key, raw in members.items()}
        case "list":
            items = items_of(text)
            if depth < 1 or len(items) > MOST:
                return {STANDS: "list", "size": len(items), "bytes": len(text)}
            return [_shown(bytes(raw), depth - 1, tagged=tagged) for raw in items]
        case kind:
            value = decode(text, tagged=tagged)
            if kind == "text" and len(value) > LONG:
                return {STANDS: "text", "size": len(value), "bytes": len(text), "start": value[:LONG]}
            return value
