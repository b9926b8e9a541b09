"""How callers name a place: a checkpoint (`answered`, 17, `~2`, `latest`, `<session_id>:17`), or where a page ended."""

from __future__ import annotations

import re
from typing import NamedTuple

from saveslot.errors import InvalidInput
from saveslot.log import Place
from saveslot.model import as_text


class Latest(NamedTuple):
    """The n-th before the latest entry that carries the agent's data."""

    back: int = 0


class Number(NamedTuple):
    seq: int


class Named(NamedTuple):
    """The newest of that name."""

    name: str


# No log is as long, and every database still takes it.
BEYOND = 1 << 62

Parsed = Latest | Number | Named


def parse(ref: str | int, session_id: str) -> Parsed:
    if isinstance(ref, bool) or not isinstance(ref, str | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("ref", f"must be a name or a number, not {type(ref).__name__}")
    if isinstance(ref, int):
        return Number(min(max(ref, 0), BEYOND))
    own = ref.removeprefix(f"{session_id}:")
    if own.isascii() and own.isdigit():
        return Number(_number(own))
    if ref == "latest":
        return Latest()
    back = ref.removeprefix("~")
    if back != ref and back.isascii() and back.isdigit():
        return Latest(_number(back))
    if not ref:
        raise InvalidInput("ref", "must not be empty; use a name, a number, latest or ~2")
    return Named(as_text(ref, "ref"))


def elsewhere(ref: str | int) -> tuple[str, int] | None:
    """Session and number, if the ref reads as the id of a checkpoint of any session."""
    session_id, _, number = ref.rpartition(":") if isinstance(ref, str) else ("", "", "")
    return (session_id, _number(number)) if session_id and number.isascii() and number.isdigit() else None


def _number(digits: str) -> int:
    return int(digits) if len(digits) < len(str(BEYOND)) else BEYOND


# Microseconds, and a session's key: 5e2b1f0a3c4d5.0198…
_CURSOR = re.compile(r"([0-9a-f]{1,15})\.([0-9a-f]{32})")


def cursor(place: Place) -> str:
    at, key = place
    return f"{at:x}.{key.hex()}"


def place(text: str | None) -> Place | None:
    if text is None:
        return None
    found = _CURSOR.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise InvalidInput("after", f"{text!r} is not a cursor; take `next` of the page before")
    return int(found[1], 16), bytes.fromhex(found[2])
