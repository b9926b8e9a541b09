"""The log's values as the script returns them. FORMAT.md shows what is stored.

Keys and ids are in hexadecimal, so that people can read them; frames and bodies are plain bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from saveslot.errors import Corrupt
from saveslot.stores import stored
from saveslot.stores.stored import shown_text
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Event, Head, Row, moment

FOREIGN = "contains something that Saveslot did not write"
_NUMBER = re.compile(rb"-?\d{1,19}")


def hexed(value: bytes | None) -> str:
    return "" if value is None else value.hex()


def _unhex(value: bytes | None) -> bytes | None:
    """Bytes that are not hexadecimal stay: no id has their length."""
    try:
        return bytes.fromhex(value.decode()) if value else None
    except ValueError:
        return value


def _text(value: Any) -> Any:
    """Bytes that are not UTF-8 stay."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _number(value: Any) -> Any:
    """What is not a number stays."""
    return int(value) if isinstance(value, bytes) and _NUMBER.fullmatch(value) else value


# Characters after label and value in a mark of an entry: when the session was created, its key, a colon, the seq.
_MARKED = 21 + 32 + 1 + 21


def split_marks(members: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Seq, label and value of marks."""
    for member in members:
        label, value, _ = member[:-_MARKED].split(b"\0")
        yield int(member[-20:]), label, value


class _Rest(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    seq: int
    kind: int
    name: str
    fence: int
    lease: bytes | None
    data_seq: int
    about_seq: int
    recipe: bytes
    digest: bytes
    note: bytes | None
    request: bytes = b""  # entries of formats 1 and 2 end before one of these
    base: int = 0


_rest = msgspec.msgpack.Decoder(_Rest)
_PLACE = re.compile(r"\$\[(\d+)\]")


def to_entry(header: bytes | None, size: int, place: Any, key: str) -> Entry:
    """`place`: the seq that its field names; None if unknown. `key`: the session's, in hexadecimal, for the error."""
    where = f"entry {'?' if place is None else place} of session {key}"
    if header is None:
        raise Corrupt(where, "is missing")
    try:
        append_id, at, alive, rest = header.split(b" ", 3)
        seq, kind, name, *others, request, base = astuple(_rest.decode(rest))
    except (ValueError, RecursionError) as exc:
        column = _PLACE.search(str(exc))
        raise Corrupt(
            where, FOREIGN if column is None else f"its column {_Rest.__struct_fields__[int(column[1])]} is damaged"
        ) from exc
    if place not in {None, seq}:
        raise Corrupt(where, f"is entry {seq}, in another's place")
    columns = (
        *(seq, _unhex(append_id), kind, name, _number(at), _number(alive), *others, request or None, base, None),
        size + len(others[-1] or b""),
    )
    return stored.to_entry(columns, key)


def to_row(answer: Sequence[Any]) -> Row:
    if len(answer) == 1:
        [key] = answer
        row = Row(_unhex(key) or b"", "", shown_text(key))
        row.locked = Corrupt(f"session {row.session_id}", FOREIGN)
        return row
    *front, deleted, _, request, worker, left, beaten, now, damaged = answer
    key, *names, created_at, beat, fence, lease, body, labels, owner = front
    row = stored.to_row((
        *(_unhex(key), *map(_text, names), *map(_number, (created_at, beat, fence)), _unhex(lease), body),
        *(_text(labels), _unhex(owner), _unhex(request), _text(worker), left, beaten, now, _number(deleted)),
    ))  # fmt: skip
    if damaged is not None:
        row.locked = row.locked or Corrupt(f"session {row.session_id}", f"its field {damaged.decode()} is damaged")
    return row


def to_found_row(answer: Sequence[Any], column: str, *, weighed: bool) -> Row:
    """A row of a page, ordered by that column."""
    columns, score, header, last, changed = answer
    row = to_row(columns)
    row.changed_at = _weight(changed)
    place = _number(score)
    if getattr(row, column) != place:  # the next page has to begin after this place
        row.locked = row.locked or Corrupt(f"session {row.session_id}", f"its column {column} does not match its index")
        setattr(row, column, place if isinstance(place, int) else 0)
    if weighed and row.locked is None:
        try:
            newest = to_entry(header, 0, _number(last), row.key.hex())
        except Corrupt as exc:
            row.locked = Corrupt(f"session {row.session_id}", f"its newest entry: {exc.reason}")
        else:
            row.weight, row.length, row.last = _weight(columns[14]), newest.seq, newest.append_id
    return row


def _weight(value: Any) -> int:
    number = _number(value)
    return max(0, number) if isinstance(number, int) else 0


def to_head(answer: Sequence[Any]) -> Head:
    if len(answer) == 1:
        return Head(to_row(answer), NO_ENTRY)
    columns, header, size, last, before, *data = answer
    row, place = to_row(columns), _number(last)
    key = row.key.hex()
    try:
        head = Head(row, to_entry(header, size, "?" if place is None else place, key))
        head.before = _before(before, head.last.seq - 1, key)
        if data and data[0] is not None:
            head.data = to_entry(data[0], data[1], head.last.data_seq, key)
    except Corrupt as exc:
        row.locked = row.locked or Corrupt(f"session {row.session_id}", f"{exc.where}: {exc.reason}")
        return Head(row, NO_ENTRY)
    return head


def _before(header: bytes | None, seq: int, key: str) -> tuple[bytes, int] | None:
    """Digest and time of the entry before the newest; None if it is missing or damaged."""
    if header is None:
        return None
    try:
        entry = to_entry(header, 0, seq, key)
    except Corrupt:
        return None
    return entry.digest, entry.at


# In the place of one that cannot be read.
NO_ENTRY = Entry(0, b"", Kind.SKIPPED, "")


def to_event(place: bytes, session_id: bytes, seq: int, header: bytes | None, key: str = "") -> Event:
    try:
        entry = to_entry(header, 0, seq, key)
    except Corrupt:
        return Event(place.decode(), shown_text(session_id), seq, "damaged", "", moment(0))
    return Event(place.decode(), shown_text(session_id), seq, entry.kind.label, entry.name, moment(entry.at))
