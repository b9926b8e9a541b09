"""Shapes: sessions as small drawings. Who held each one when, and its checkpoints, rollbacks and failures as marks.

No frames are read: a shape is made from the newest 128 headers of a log, and one call gives up to 100 shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from saveslot.errors import Corrupt, InvalidInput
from saveslot.manager.failures import is_orphan
from saveslot.manager.log_pages import Notes, Owners
from saveslot.session.engine import Space
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Data, as_texts
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Head, Wanted, micros, moment
from saveslot.values.refs import elsewhere

# Shapes in one call, newest entries of a log that one is made from, and marks that it has.
MOST, NEWEST, MARKS = 100, 128, 64
# Entries without a mark.
UNMARKED = {
    Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.UPDATED, Kind.RECORD, Kind.MARKED, Kind.PINNED, Kind.UNPINNED,
    Kind.SKIPPED,
}  # fmt: skip
CHECKPOINT = Kind.CHECKPOINT.label


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A mark, in JSON `[offset_s, kind, owner, bytes, to]`.

    `to`: of a rollback, the offset of the entry it went back to; of a claim, that of the dead worker's last heartbeat.
    """

    offset_s: float  # since the session was created
    kind: str
    owner: int | None  # the place in `owners` of the worker that held the session
    bytes: int  # as stored, of all entries that the mark stands for
    to: float | None = None


class Shape(Answer, frozen=True):
    id: str
    state: str
    orphaned: bool
    created_at: Time
    owners: list[str]  # in order of appearance
    marks: list[Mark]  # oldest first
    from_seq: int  # the first entry that is drawn; more than 1 in a longer log
    stored_bytes: int  # of the entries from `from_seq` on, also those without a mark
    ends_s: float  # offset of the newest entry
    now_s: float  # offset of the store's clock
    silent_s: float | None  # offset of the owner's last heartbeat, if it has an owner


async def shapes(sessions: Space, ids: Sequence[str]) -> list[Shape]:
    """Return the shapes of these sessions, in this order; unknown ones are left out."""
    ids = list(dict.fromkeys(as_texts(ids, "ids")))
    if len(ids) > MOST:
        raise InvalidInput("ids", f"names {len(ids)} sessions, but one call gives at most {MOST} shapes")
    heads = await sessions.engine.vault.heads([(sessions.namespace, one) for one in ids])
    there = [head for head in heads if head is not None]
    logs = await asyncio.gather(*(_newest(sessions, head) for head in there))
    return [shape(head, log) for head, log in zip(there, logs, strict=True)]


async def _newest(sessions: Space, head: Head) -> list[Entry]:
    vault, last = sessions.engine.vault, head.last.seq
    wanted = Wanted([(max(1, last - NEWEST + 1), last)], frames=False)
    try:
        return await (vault if head.row.locked is None else vault.stored).entries(head.row.key, wanted)
    except Corrupt:  # one damaged session must not hide the others
        return [head.last]


def shape(head: Head, log: Sequence[Entry]) -> Shape:
    """Draw a session from the newest entries of its log."""
    row = head.row
    notes = Notes(row.session_id, sealed=row.locked is not None)
    owners, places = Owners([], notes), dict[str, int]()
    offsets = {entry.seq: _offset(head, entry.at) for entry in log}
    marks: list[Mark] = []
    for entry in log:
        note = notes.of(entry)
        owners.read(entry, note)
        worker = owners.of(entry)
        if entry.kind in UNMARKED:
            continue
        place = None if worker is None else places.setdefault(worker, len(places))
        to = _to(head, entry, note, offsets)
        marks.append(Mark(offsets[entry.seq], Kind(entry.kind).label, place, entry.size, to))
    silent = _offset(head, row.beaten) if row.lease is not None and row.beaten else None
    return Shape(
        row.session_id,
        row.state,
        is_orphan(head),
        moment(row.created_at),
        [*places],
        merged(marks),
        log[0].seq,
        sum(entry.size for entry in log),
        _offset(head, log[-1].at),
        _offset(head, row.now),
        silent,
    )


def _offset(head: Head, at: int) -> float:
    return round((at - head.row.created_at) / 1_000_000, 3)


def _to(head: Head, entry: Entry, note: Data, offsets: Mapping[int, float]) -> float | None:
    if entry.kind is Kind.ROLLBACK:
        place = elsewhere(str(note.get("to", "")))
        return None if place is None else offsets.get(place[1], 0.0)
    if entry.kind is Kind.CLAIMED and (silent := note.get("silent_since")) is not None:
        return _offset(head, micros(datetime.fromisoformat(silent)))
    return None


def merged(marks: list[Mark], most: int = MARKS) -> list[Mark]:
    """Draw checkpoints of one owner that are closest together as one, until there are few enough marks.

    If there is nothing more to merge, the oldest marks go.
    """
    excess = len(marks) - most
    if excess <= 0:
        return marks
    gaps = sorted(
        (after.offset_s - before.offset_s, n)
        for n, (before, after) in enumerate(pairwise(marks), 1)
        if before.kind == after.kind == CHECKPOINT and before.owner == after.owner
    )
    joined = {n for _, n in gaps[:excess]}
    fewer: list[Mark] = []
    for n, mark in enumerate(marks):
        if n in joined:
            last = fewer.pop()
            mark = Mark(last.offset_s, last.kind, last.owner, last.bytes + mark.bytes)  # noqa: PLW2901
        fewer.append(mark)
    return fewer[-most:]
