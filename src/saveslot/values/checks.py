"""Argument checks: each returns the value in the form we keep, or raises `InvalidInput` with its path."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from saveslot.errors import InvalidInput
from saveslot.values.lifecycle import SessionState

Data = dict[str, Any]
Span = float | timedelta  # a duration: seconds, or a timedelta


def now() -> datetime:
    return datetime.now(UTC)


def copied(value: Any, path: str = "data") -> Any:
    """Copy the containers of a value (a tuple becomes a list, a bytearray bytes, as when read back)."""
    try:
        return _copied(value)
    except RecursionError:
        raise InvalidInput(path, "is nested too deep, or contains itself") from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in cast("list[Any]", value)]
    return bytes(value) if isinstance(value, bytearray) else value


def as_data(value: Any, path: str) -> Data:
    """Copy the caller's dict; None becomes an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(path, f"must be a dict, not {type(value).__name__}")
    return copied(value, path)


def as_time(value: Any, path: str) -> datetime:
    """Return an aware UTC time from a datetime or ISO text; without a zone it counts as UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(path, f"is not an ISO time: {value!r}") from None
    if not isinstance(value, datetime):
        raise InvalidInput(path, f"must be a time, not {type(value).__name__}")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(path, f"is beyond the years 1 to 9999 in UTC: {value}") from None


# Characters. Names, ids and namespaces are keys: they travel through logs, shells, URLs and other databases.
MAX_NAME = 200
# The server's own namespace: its tokens are sessions there. No request may name it.
RESERVED = "$saveslot"
# The agent type of the tokens there.
TOKENS = "token"

_ODD = r"\x00-\x1f\x7f\ud800-\udfff"
_UNFIT = re.compile(f"[{_ODD}]")
_FIT = re.compile(f"[^{_ODD}]{{1,{MAX_NAME}}}").fullmatch
_UNASKABLE = re.compile(r"[\x00\ud800-\udfff]")

# More than any store holds of anything; every database accepts ten times this.
MOST = 1 << 48
# Seconds: a hundred years, longer than any wait and within the range of every clock.
EVER = 100 * 365 * 24 * 3600


def as_name(value: Any, path: str) -> str:
    """Accept any text of 1 to 200 characters that every database, log line and terminal can hold."""
    if not isinstance(value, str):
        hint = "; pass its session_id" if hasattr(value, "session_id") else ""
        raise InvalidInput(path, f"must be text, not {type(value).__name__}{hint}")
    if _FIT(value):
        return value
    if not value:
        raise InvalidInput(path, "must not be empty")
    if len(value) > MAX_NAME:
        raise InvalidInput(path, f"has {len(value):,} characters; at most {MAX_NAME} are allowed")
    match = cast("re.Match[str]", _UNFIT.search(value))
    raise InvalidInput(path, f"must not contain the character {match[0]!a}")


def as_label(value: Any, path: str) -> str:
    """Accept a name or empty text: an agent type or a user id need not be set."""
    return "" if value == "" else as_name(value, path)


def as_text(value: Any, path: str) -> str:
    """Accept any text that every database takes in a query."""
    if not isinstance(value, str):
        raise InvalidInput(path, f"must be text, not {type(value).__name__}")
    if (match := _UNASKABLE.search(value)) is not None:
        raise InvalidInput(path, f"must not contain the character {match[0]!a}")
    return value


def as_texts(values: Any, path: str) -> list[str]:
    """Accept a collection of such texts; one text is not one."""
    if not isinstance(values, list | tuple | set | frozenset):
        raise InvalidInput(path, f"must be a list of texts, not {type(values).__name__}")
    return [as_text(value, path) for value in cast("list[Any]", values)]


def as_count(value: Any, path: str, least: int = 0) -> int:
    """Accept a whole number of `least` or more; numbers above `MOST` become `MOST`, which means all."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(path, f"must be a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidInput(path, f"must be {least} or more")
    return min(value, MOST)


def as_span(value: Any, path: str, unit: float = 1.0) -> float:
    """Return a duration in seconds (or in `unit`s of that many): a timedelta, or a number that is not negative.

    Above `EVER`, infinity too, it becomes `EVER`.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds() / unit
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(path, f"must be a number or a timedelta, not {type(value).__name__}")
    if not value >= 0:  # true for NaN too
        raise InvalidInput(path, f"must be 0 or more, not {value}")
    return min(value, EVER)


def as_state(value: Any) -> SessionState:
    try:
        return SessionState(value)
    except ValueError:
        states = ", ".join(SessionState)
        raise InvalidInput("state", f"{value!r} is not one of {states}") from None


def as_labels(value: Any, path: str = "labels") -> dict[str, str]:
    """Accept labels, which `find` filters by: short text to short text."""
    labels = as_data(value, path)
    return {as_name(key, path): as_label(item, f"{path}.{key}") for key, item in labels.items()}


def fields(data: Any, what: str, *needed: str) -> Data:
    if not isinstance(data, dict):
        raise InvalidInput(what, f"must be a dict, not {type(data).__name__}")
    for name in needed:
        if name not in data:
            raise InvalidInput(f"{what}.{name}", "is missing")
    return cast("Data", data)
