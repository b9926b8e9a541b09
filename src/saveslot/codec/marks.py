"""Marks: where items start in the text of a long list, so that its tail can be read without the rest.

A mark is the offset of a comma between two items. Texts share a front and a back with the text before: a comma between
items there is one in both, if both are JSON (the quotes and brackets around it are the same). So marks survive changes
around them, and only what lies between is parsed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from saveslot.codec.patch import Change, Text

# Bytes between marks, at least. Reading the last items parses up to this much more than it needs.
EVERY = 8 * 1024

items_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


def kept(marks: Sequence[int], before: int, change: Change) -> tuple[list[int], list[int]]:
    """Return the marks that a change leaves in the front and in the back. `before`: length of the old text."""
    back = bisect_left(marks, before - change.back)
    moved = change.length - before
    return list(marks[: bisect_left(marks, change.front)]), [mark + moved for mark in marks[back:]]


def after(marks: Sequence[int], before: int, change: Change) -> list[int]:
    """Return the marks of the new text, as a reader of the change learns them."""
    front, back = kept(marks, before, change)
    own: list[int] = []
    at = 0
    for step in change.marks:
        at += step
        own.append(at)
    return sorted({*front, *own, *back}) if own else front + back


def mark(marks: Sequence[int], before: int, change: Change, text: Text) -> list[int]:
    """Return the marks of the new text, and write those that are new into the change."""
    if text[:1] != b"[":
        return []
    front, back = kept(marks, before, change)
    start, stop = front[-1] if front else 0, back[0] if back else len(text) - 1
    own = starts(text, start, stop) if stop - start > EVERY else []
    change.marks = [own[n] - own[n - 1] if n else own[0] for n in range(len(own))]
    return front + own + back


def starts(text: Text, start: int, stop: int) -> list[int]:
    """Return commas between items, about every 8 KB. `start` and `stop` are commas too, or the list's brackets."""
    places: list[int] = []
    at = last = start
    for item in items_of(b"[%b]" % text[start + 1 : stop]):
        at += len(memoryview(item)) + 1
        if at - last >= EVERY and at < stop:
            places.append(at)
            last = at
    return places
