"""A session's log at a glance: for each entry its number, kind and size, and in a few words what it changed.

    messages +2      that list grew by two         step 3→4       a short value became another
    +plan  -draft    a key came, a key went        ~notes         changed inside, too much for a few words

Texts are compared, not values, and an item that was only appended costs what was appended: a log of 1,000 states of
a megabyte is read in the time that their frames take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from saveslot.codec.state import Text, common_ends
from saveslot.errors import Corrupt, NotFound
from saveslot.log import Entry, moment
from saveslot.model import DATA_KINDS, Data, Kind
from saveslot.timeline import Timeline, note_of

Texts = Mapping[str, Text]

# What is shown of a value; longer ones only "changed".
SHORT = 24
# Changes inside an object that are told one by one; beyond that the object as a whole changed.
FEW = 3

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class LogLine(msgspec.Struct, frozen=True):
    """One entry of a log, without the state that it leads to."""

    id: str
    seq: int
    kind: str
    name: str
    timestamp: datetime
    bytes: int  # as stored: what this entry cost
    metadata: Data  # of a checkpoint or rollback; of any other entry what it says
    changed: list[str]


def lines(
    session_id: str,
    entries: Iterable[Entry],
    timeline: Timeline,
    before: Entry | None,
    thinned: frozenset[int] = frozenset(),
) -> Iterator[LogLine]:
    """`before` is the newest entry with data in front of them; `timeline` has the frames of all but the thinned."""
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
    """A copy of the state as of that entry; a damaged one must not hide the rest of the log."""
    if entry is None:
        return {}, True
    try:
        return {key: bytes(text) for key, text in timeline.state(entry).texts.items()}, True
    except (Corrupt, NotFound):
        return {}, False


def glance(before: Texts, after: Texts, path: str = "") -> list[str]:
    """What changed between two objects, each given as the JSON text of its keys."""
    told = [f"-{path}{key}" for key in before if key not in after]
    for key, text in after.items():
        old = before.get(key)
        if old is None:
            told.append(f"+{path}{key}")
        elif old != text:
            told += _changed(f"{path}{key}", bytes(old), bytes(text))
    return told


def _changed(name: str, old: bytes, new: bytes) -> list[str]:
    kinds = old[:1] + new[:1]
    if kinds == b"[[":
        grown = _grown(old, new)
        return [f"{name} {grown:+}"] if grown else [f"~{name}"]
    if kinds == b"{{":
        inside = glance(cast("Texts", _members(old)), cast("Texts", _members(new)), f"{name}.")
        return inside if 0 < len(inside) <= FEW else [f"~{name}"]
    if max(len(old), len(new)) <= SHORT and not {b"[", b"{"} & {old[:1], new[:1]}:
        return [f"{name} {_shown(old)}→{_shown(new)}"]
    return [f"~{name}"]


def _grown(old: bytes, new: bytes) -> int:
    front, _ = common_ends(old, new)
    if front == len(old) - 1 and new[front : front + 1] == b",":
        return len(_items(b"[" + new[front + 1 :]))
    return len(_items(new)) - len(_items(old))


def _shown(text: bytes) -> str:
    value: Any = msgspec.json.decode(text)
    return (value or '""') if isinstance(value, str) else text.decode()
