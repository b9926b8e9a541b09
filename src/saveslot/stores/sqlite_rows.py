"""Sessions and entries as rows of a SQLite file: what is written can be read back as the same values."""

from __future__ import annotations

from typing import Any

import msgspec

from saveslot.log import Entry, Row
from saveslot.model import Kind

HEADER = "seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note"
SIZE = "coalesce(length(frame), 0) + coalesce(length(note), 0)"
COLUMNS = "key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels, owner"
# ?1 and ?2: the machine's boot and its clock. A dead owner has nothing left.
ROW = f"""
select {COLUMNS}, coalesce(name, ''), case when boot = ?1 and not dead then max(0, expires - ?2) else 0 end
  , coalesce(deleted_at, 0)
from {{}} left join workers on worker = owner"""  # noqa: S608
ROW_COLUMNS = 16  # those of an entry may follow
# The row that keeps the feed's newest number is no entry.
ENTRIES = "select count(*) - (select count(*) from checkpoints where key = x'') from checkpoints"
# Workers that may be declared dead: the boot, how long ago their time must have run out, the clock.
GONE = "(dead or boot <> ? or expires + ? <= ?)"
# What a text search looks at; no name can hold the separator.
APART = "\x1f"

LABELS = msgspec.json.Decoder(dict[str, str])


def to_row(row: Any, now: int) -> Row:
    *columns, labels, owner, worker, left, deleted_at = row
    told = LABELS.decode(labels)
    return Row(*columns, labels=told, owner=owner, worker=worker, left=left, now=now, deleted_at=deleted_at)


def to_entry(row: Any) -> Entry:
    seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, frame, size = row
    return Entry(
        seq, append_id, Kind(kind), name, at, False, alive, fence, lease, data_seq, about_seq,  # noqa: FBT003
        recipe, digest, note, frame, size,
    )  # fmt: skip


def entry_values(key: bytes, prev: Any, now: int, entry: Entry) -> tuple[Any, ...]:
    """What an entry behind `prev` is written from; the statements that do so name these by their numbers, 1 to 17."""
    return (
        key, prev, now, entry.seq, entry.append_id, entry.kind, entry.name, entry.at, entry.sign, entry.fence,
        entry.lease, entry.data_seq, entry.about_seq, entry.recipe, entry.digest, entry.note, entry.frame,
    )  # fmt: skip


def labels_text(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels).decode()


def label_rows(row: Row, made: int, labels: dict[str, str]) -> list[tuple[Any, ...]]:
    return [(row.namespace, name, value, made, row.key) for name, value in labels.items()]


def search_text(row: Row, labels: dict[str, str]) -> str:
    return APART.join((row.session_id, row.agent_type, row.user_id, *labels.values()))
