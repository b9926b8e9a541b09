"""Converts PostgreSQL rows to the log's values and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from saveslot.errors import Corrupt
from saveslot.stores.stored import ENTRY, ROW, to_entry, to_head as stored_head, to_row
from saveslot.values.log import Head, Row, foreign_cursor

# Columns of a row and of an entry, in the order of `statements.ROW` and `statements.HEADER`; an entry's may follow.
WIDE, LONG = len(ROW), len(ENTRY)

_json = msgspec.json.Encoder().encode


async def fetched(connection: Any, statement: str, *values: Any) -> list[Any]:
    """The rows of a select; with texts as bytes if one of them is not UTF-8: the driver returns no such row."""
    try:
        return await connection.fetch(statement, *values)
    except UnicodeDecodeError:
        types = [attribute.type.name for attribute in (await connection.prepare(statement)).get_attributes()]
        columns = [f"textsend(c{n})" if name == "text" else f"c{n}" for n, name in enumerate(types)]
        names = ", ".join(f"c{n}" for n in range(len(types)))
        raw = f"select {', '.join(columns)} from ({statement}\n) rows({names})"  # noqa: S608
        return await connection.fetch(raw, *values)


def array(numbers: Sequence[int | None]) -> str:
    """The numbers as a PostgreSQL array literal: {1,2,null}."""
    return f"{{{_json(numbers)[1:-1].decode()}}}"


def as_text(value: Any) -> str | None:
    return value.hex() if isinstance(value, bytes) else value if value is None else str(value)


def to_weighed_row(row: Sequence[Any]) -> Row:
    *columns, _, weight, length, last = row
    weighed = to_row(columns)
    weighed.weight, weighed.length, weighed.last = weight or 0, length or 0, last or b""
    return weighed


def to_changed_row(row: Sequence[Any]) -> Row:
    *columns, changed_at = row
    changed = to_row(columns)
    changed.changed_at = changed_at
    return changed


def to_head(row: Any) -> Head:
    columns, end = tuple(row), WIDE + LONG + 2
    head = stored_head(to_row(columns[:WIDE]), columns[WIDE : WIDE + LONG], columns[WIDE + LONG : end])
    if len(columns) > end and head.row.locked is None:  # with the newest data
        own = msgspec.structs.replace(head.last) if head.last.data_seq == head.last.seq else None
        data = columns[end:]
        try:
            head.data = own if data[0] is None else to_entry(data, head.row.key)
        except Corrupt as exc:
            head.row.locked = Corrupt(f"checkpoint {head.row.session_id}:{head.last.data_seq}", exc.reason)
    return head


class Place(NamedTuple):
    """A place in the feed: an entry, and how to tell whether it is still there."""

    tx: int = 0  # the number of its transaction; 0: before the first entry
    key: bytes = b""
    seq: int = 0
    proof: bytes = b""  # the first bytes of its append_id
    feed: bytes = b""  # the first bytes of the feed's id

    def cursor(self) -> str:
        if not self.tx:
            return "0"
        # Only damage makes a seq negative.
        return f"{self.tx}:{self.key.hex()}:{max(0, self.seq)}:{self.proof.hex()}:{self.feed.hex()}"


_CURSOR = re.compile(r"(\d{1,18}):((?:[0-9a-f]{2})*):(\d{1,19}):((?:[0-9a-f]{2})*):([0-9a-f]{8})", re.ASCII)


def to_place(cursor: str) -> Place:
    if cursor == "0":
        return Place()
    match = _CURSOR.fullmatch(cursor)
    if match is None or (seq := int(match[3])) >= 1 << 63:
        raise foreign_cursor(cursor)
    return Place(int(match[1]), bytes.fromhex(match[2]), seq, bytes.fromhex(match[4]), bytes.fromhex(match[5]))
