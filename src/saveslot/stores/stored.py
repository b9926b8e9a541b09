"""Checks what a database returns before it becomes a value of the log: damage can put anything into a column.

A session's row with a value that cannot be there is still returned, with a neutral value in its place and `locked`
saying which column is damaged, so that lists go on with the other sessions. A damaged entry raises `Corrupt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from saveslot.errors import Corrupt
from saveslot.values.checks import MAX_NAME
from saveslot.values.kinds import Kind
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import EARLIEST, ID, LATEST, MAX_SEQ, REQUEST, Entry, Head, Labels, Row

# Characters of a damaged value that an error shows.
SHOWN = 40

Time = Annotated[int, Meta(ge=EARLIEST, le=LATEST)]
Count = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Number = Annotated[int, Meta(ge=1, le=MAX_SEQ)]
Id = Annotated[bytes, Meta(min_length=ID, max_length=ID)]
MaybeId: Any = Id | None  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
Request = Annotated[bytes, Meta(min_length=REQUEST, max_length=REQUEST)]
MaybeRequest: Any = Request | None  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
# As `as_name` and `as_label` accept them.
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
Label = Annotated[str, Meta(max_length=MAX_NAME, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]

ENTRY: dict[str, Any] = {
    "seq": Number,
    "append_id": Id,
    "kind": Kind,
    "name": Label,
    "at": Time,
    "alive": Time,
    "fence": Count,
    "lease": MaybeId,
    "data_seq": Count,
    "about_seq": Count,
    "recipe": bytes,
    "digest": bytes,
    "note": bytes | None,
    "request": MaybeRequest,
    "base": Count,
    "frame": bytes | None,
    "size": Count,
}
ROW: dict[str, Any] = {
    "key": Id,
    "namespace": Name,
    "id": Name,
    "agent_type": Label,
    "user_id": Label,
    "state": SessionState,
    "created_at": Time,
    "heartbeat": Time,
    "fence": Count,
    "lease": MaybeId,
    "body": bytes,
    "labels": dict[Name, Label],
    "owner": MaybeId,
    "request": MaybeRequest,
    "worker": str,
    "left": Count,
    "beaten": Time,
    "now": Time,
    "deleted_at": Time,
}
# Structs: msgspec reads their types once. It would read those of a tuple again for every row, which takes 15 us.
_ENTRY = msgspec.defstruct("_ENTRY", list(ENTRY.items()), array_like=True, gc=False)
_ROW = msgspec.defstruct("_ROW", list(ROW.items()), array_like=True, gc=False)
_json = msgspec.json.Decoder().decode
# A value that takes the place of a damaged one.
_NEUTRAL: dict[str, Any] = {
    "key": b"",
    "state": SessionState.FAILED,
    "lease": None,
    "body": b"",
    "labels": {},
    "owner": None,
    "append_id": b"",
    "kind": Kind.SKIPPED,
    "recipe": b"",
    "digest": b"",
    "note": None,
    "request": None,
    "frame": None,
}
_TEXTS = frozenset({"namespace", "id", "agent_type", "user_id", "worker", "name"})
# Columns that order pages, and where a damaged number goes, so that the next page begins after it: pages by
# `created_at` go down, the others up.
_PLACES = {"created_at": floor, "heartbeat": ceil, "deleted_at": ceil}
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def to_entry(columns: Sequence[Any], key: bytes | str) -> Entry:
    """The entry of these columns, in the order of `ENTRY`; text may be bytes. `key`: the session's, for the error."""
    try:
        values = astuple(_convert(columns, _ENTRY))
    except (ValueError, TypeError):
        entry, wrong = salvaged_entry(columns)
        if not wrong:
            return entry
        name = key if isinstance(key, str) else key.hex()
        raise Corrupt(f"entry {entry.seq} of session {name}", wrong) from None
    return _entry(values)


def to_entries(rows: Iterable[Sequence[Any]], key: bytes | str) -> list[Entry]:
    return [to_entry(columns, key) for columns in rows]


def to_row(columns: Sequence[Any]) -> Row:
    """The row of these columns, in the order of `ROW`; labels as JSON, text may be bytes."""
    *front, labels, owner, request, worker, left, beaten, now, deleted_at = columns
    try:
        labels: Any = {} if labels == "{}" else _json(labels)
        values = _convert((*front, labels, owner, request, worker, left, beaten, now, deleted_at), _ROW)
    except (ValueError, TypeError, RecursionError):
        return _salvaged_row(columns)
    return _row(astuple(values))


def to_marks(rows: Iterable[Sequence[Any]]) -> dict[int, dict[str, str]]:
    """Labels of entries by seq, from rows of seq, label and value; text may be bytes."""
    marks: dict[int, dict[str, str]] = {}
    for seq, label, value in rows:
        marks.setdefault(seq, {})[shown_text(label)] = shown_text(value)
    return marks


def with_labels(entries: list[Entry], marks: Labels) -> list[Entry]:
    for entry in entries:
        entry.labels = dict(marks[entry.seq])
    return entries


def to_head(row: Row, columns: Sequence[Any], before: Sequence[Any] = ()) -> Head:
    """The head of a session whose newest entry has these columns; if that is damaged, the row says so.

    `before`: digest and time of the entry before it.
    """
    try:
        return Head(row, to_entry(columns, row.key), before=to_before(before))
    except Corrupt as exc:
        row.locked = row.locked or Corrupt(f"session {row.session_id}", f"its newest entry: {exc.reason}")
        return Head(row, salvaged_entry(columns)[0])


def to_before(columns: Sequence[Any]) -> tuple[bytes, int] | None:
    """Digest and time of the entry before the newest; None if it is missing, or they are damaged."""
    match columns:
        case (bytes() as digest, int() as at):
            return digest, at
        case _:
            return None


def shown_kind(kind: Any) -> str:
    """An entry's kind for people; `damaged` if there is no such kind."""
    try:
        return Kind(kind).label
    except ValueError:
        return "damaged"


def shown_text(value: Any) -> str:
    """A stored name, id or type as it is; if it is damaged, what is left of it, without control characters."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return _CONTROL.sub("\ufffd", text[:MAX_NAME])


def salvaged_entry(columns: Sequence[Any]) -> tuple[Entry, str]:
    """What can be read of a damaged entry, and what is wrong with it."""
    values, wrong = _salvaged(ENTRY, columns)
    return _entry(tuple(values.values())), wrong


def _entry(values: Sequence[Any]) -> Entry:
    seq, append_id, kind, name, at, *rest, request, base, frame, size = values
    fields: list[Any] = [seq, append_id, kind, name, at, False, *rest, frame, size, request or b"", {}, base]
    return Entry(*fields)


def _salvaged_row(columns: Sequence[Any]) -> Row:
    values, wrong = _salvaged(ROW, columns)
    name = values["key"].hex() if not values["id"] else values["id"]
    values["id"] = name
    row = _row(tuple(values.values()))
    row.locked = Corrupt(f"session {name}", wrong) if wrong else None
    return row


def _row(values: Sequence[Any]) -> Row:
    *columns, labels, owner, request, worker, left, beaten, now, deleted_at = values
    row = Row(*columns, labels=labels, owner=owner, worker=worker, left=left, now=now, deleted_at=deleted_at)
    row.request, row.beaten = request or b"", beaten
    return row


def _salvaged(types: dict[str, Any], columns: Sequence[Any]) -> tuple[dict[str, Any], str]:
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for (column, kind), stored in zip(types.items(), columns, strict=True):
        value = stored
        try:
            if column == "labels":
                value = _json(stored)
            elif (column in _TEXTS or column == "state") and isinstance(stored, bytes):
                value = stored.decode()
            values[column] = _convert(value, kind)
        except (ValueError, TypeError, RecursionError):
            values[column] = _neutral(column, stored)
            wrong.append(f"its column {column} is damaged: {shown(stored)}")
    return values, "; ".join(wrong)


def _neutral(column: str, stored: Any) -> Any:
    if column in _NEUTRAL:
        return stored if column in {"key", "append_id"} and isinstance(stored, bytes) else _NEUTRAL[column]
    if column in _TEXTS:
        return shown_text(stored)
    if column in _PLACES:
        number = stored if isinstance(stored, int | float) else _LARGEST
        return _PLACES[column](min(max(number, _SMALLEST), _LARGEST))
    return 0


def shown(stored: Any) -> str:
    text = f"{stored[:SHOWN]!r}" if isinstance(stored, bytes | str) else f"{stored!r}"
    return f"{text[:SHOWN]}…" if len(text) > SHOWN else text


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, builtin_types=(bytes,))
