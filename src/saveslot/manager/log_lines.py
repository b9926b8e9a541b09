"""One-line summaries of a session's entries: number, kind, size, and a short description of what changed.

    messages +2      the list grew by two          step 3→4       a short value changed
    +plan  -draft    a key was added, one removed  ~notes         changed inside, too much to list

Comparing texts, not values, keeps it fast, and an append costs only what was appended: reading a log of 1,000 states of
1 MB takes as long as reading their frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from saveslot.codec.common import common_ends
from saveslot.codec.patch import Text
from saveslot.codec.text import items_of, members_of
from saveslot.errors import Corrupt, NotFound, TooLarge
from saveslot.session.timeline import Timeline, note_of
from saveslot.values.checks import Data, copied
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import Entry, moment

Texts = Mapping[str, Text]

# Longest value, in bytes of JSON, that is printed; longer ones are only marked as changed.
SHORT = 24
# Maximum changes inside an object that are listed one by one; beyond that, the object is marked as changed.
FEW = 3


class LogLine(msgspec.Struct, frozen=True):
    """One entry of a log, without the state that it leads to."""

    id: str
    seq: int
    kind: str
    name: str
    timestamp: datetime
    bytes: int  # as stored
    metadata: Data  # of a checkpoint or rollback; any other entry's data
    changed: list[str]

    def to_dict(self) -> Data:
        timestamp, metadata = self.timestamp.isoformat(), copied(self.metadata)
        return {**msgspec.structs.asdict(self), "timestamp": timestamp, "metadata": metadata}


def lines(
    session_id: str,
    entries: Iterable[Entry],
    timeline: Timeline,
    before: Entry | None,
    thinned: frozenset[int] = frozenset(),
) -> Iterator[LogLine]:
    """Yield a line per entry. `before` is the last entry with data before them; `timeline` has the unthinned frames."""
    texts, readable = _texts(timeline, before)
    for entry in entries:
        name = f"{session_id}:{entry.seq}"
        changed: list[str] = []
        if entry.seq in thinned:
            changed = ["thinned"]
        elif entry.kind in DATA_KINDS:
            now, sound = _texts(timeline, entry)
            if not sound:
                changed = ["damaged: run saveslot doctor"]
            elif readable:
                changed = glance(texts, now)
            texts, readable = now, sound
        yield LogLine(
            name,
            entry.seq,
            Kind(entry.kind).label,
            entry.name,
            moment(entry.at),
            entry.size,
            note_of(entry, name),
            changed,
        )


def _texts(timeline: Timeline, entry: Entry | None) -> tuple[Texts, bool]:
    """Return a copy of the state as of that entry, and False if it is damaged: that must not hide the rest."""
    if entry is None:
        return {}, True
    try:
        return {key: bytes(text) for key, text in timeline.state(entry).texts.items()}, True
    except (Corrupt, NotFound):
        return {}, False


def glance(before: Texts, after: Texts, path: str = "") -> list[str]:
    """Return what changed between two objects, each passed as the JSON texts of its keys."""
    changes = [f"-{path}{key}" for key in before if key not in after]
    for key, text in after.items():
        old = before.get(key)
        if old is None:
            changes.append(f"+{path}{key}")
        elif old != text:
            changes += _changed(f"{path}{key}", bytes(old), bytes(text))
    return changes


def _changed(name: str, old: bytes, new: bytes) -> list[str]:
    try:
        return _inside(name, old, new)
    except TooLarge:  # to be looked into by a server's request
        return [f"~{name}"]


def _inside(name: str, old: bytes, new: bytes) -> list[str]:
    kinds = old[:1] + new[:1]
    if kinds == b"[[":
        grown = _grown(old, new)
        return [f"{name} {grown:+}"] if grown else [f"~{name}"]
    if kinds == b"{{":
        inside = glance(cast("Texts", members_of(old)), cast("Texts", members_of(new)), f"{name}.")
        return inside if 0 < len(inside) <= FEW else [f"~{name}"]
    if max(len(old), len(new)) <= SHORT and not {b"[", b"{"} & {old[:1], new[:1]}:
        return [f"{name} {_printed(old)}→{_printed(new)}"]
    return [f"~{name}"]


def _grown(old: bytes, new: bytes) -> int:
    front, _ = common_ends(old, new)
    if front == len(old) - 1 and new[front : front + 1] == b",":
        return len(items_of(b"[" + new[front + 1 :]))
    return len(items_of(new)) - len(items_of(old))


def _printed(text: bytes) -> str:
    value: Any = msgspec.json.decode(text)
    return (value or '""') if isinstance(value, str) else text.decode()
