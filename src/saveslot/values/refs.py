"""References to a checkpoint (`answered`, 17, `~2`, `latest`, `<session_id>:17`), and cursors of pages."""

from __future__ import annotations

import re
from typing import NamedTuple

from saveslot.errors import InvalidInput
from saveslot.values.checks import as_text
from saveslot.values.log import MAX_SEQ, Place


class Latest(NamedTuple):
    """The n-th entry with the agent's data, counting back from the latest."""

    back: int = 0


class Number(NamedTuple):
    seq: int


class Named(NamedTuple):
    """The newest checkpoint of that name."""

    name: str


Parsed = Latest | Number | Named


def parse(ref: str | int, session_id: str) -> Parsed:
    if isinstance(ref, bool) or not isinstance(ref, str | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("ref", f"must be a name or a number, not {type(ref).__name__}")
    if isinstance(ref, int):
        return Number(min(max(ref, 0), MAX_SEQ))
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
    """Return session id and seq if the ref has the form of a checkpoint id, of any session."""
    session_id, _, number = ref.rpartition(":") if isinstance(ref, str) else ("", "", "")
    return (session_id, _number(number)) if session_id and number.isascii() and number.isdigit() else None


def _number(digits: str) -> int:
    return int(digits) if len(digits) < len(str(MAX_SEQ)) else MAX_SEQ


# Microseconds and a session's key, in hex: 5e2b1f0a3c4d5.0198…; before them ~ if the pages are ordered by change.
_CURSOR = re.compile(r"(~?)(-?[0-9a-f]{1,16})\.((?:[0-9a-f]{2})+)")
# No stored number is as large.
_BEYOND = 1 << 63


def cursor(place: Place, *, changed: bool = False) -> str:
    at, key = place
    return f"{'~' * changed}{at:x}.{key.hex()}"


def place(text: str | None, *, changed: bool = False) -> Place | None:
    if text is None:
        return None
    match = _CURSOR.fullmatch(as_text(text, "after"))
    if match is None or abs(int(match[2], 16)) >= _BEYOND:
        raise InvalidInput("after", f"{text!r} is not a cursor; pass `next` of the previous page")
    if bool(match[1]) != changed:
        raise InvalidInput("after", f"{text!r} is a cursor of the other order; pass the same `order` for every page")
    return int(match[2], 16), bytes.fromhex(match[3])
