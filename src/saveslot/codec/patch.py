"""Patches: what changed between two states, by top-level key, and how to apply it to their JSON texts.

    {"messages": [A, B], "n": 2}  ->  {"messages": [A, B, C], "n": 3}
    ["messages", 4, 1, [",C"]]    keep the first 4 bytes and the last 1, ",C" between
    ["n", 0, 0, ["3"]]            keep nothing

Between front and back stand *parts*: literal bytes, or `[key, offset, length]`, a copy of these bytes of a text before
the patch. Where blocks follow (`blocks.py`), a literal is only its length. A keyframe is a patch on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from saveslot.codec.frame import LARGE, MAX_RAW
from saveslot.errors import Corrupt

Text = bytes | bytearray
Texts = dict[str, Text]
# What changed in a key: None if it was removed, True if it is new, items added to the end of a list, a negative number
# of items taken from there, or 0 for any other change.
Changes = Mapping[str, int | None]
UNCHANGED: Changes = {}
# Bytes. The highest limit for a state: with its keys and lengths it must still fit into a frame.
MAX_WHOLE = MAX_RAW // 2
# Parts in a patch. A long one composed of 33 changes has at most as many as `pieces.py` keeps.
MAX_PARTS = 32_768

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_RAW)]


class Copy(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    key: str
    offset: _Count
    length: _Count


Part = bytes | _Count | Copy


class Change(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The new text of a key: `front` bytes of the old one, the parts, `back` bytes of the old one."""

    key: str
    front: _Count
    back: _Count
    parts: list[Part]
    marks: list[_Count] = []  # where items of a long list start, each as its distance from the one before (`marks.py`)

    @property
    def length(self) -> int:
        """Bytes of the new text."""
        return self.front + self.back + sum(map(size_of_part, self.parts))


class Patch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A body without blocks. Kept keys stay in order and new ones follow, unless `order` lists all of them."""

    changes: list[Change]
    removed: list[str] = []
    order: list[str] = []


class Diff(msgspec.Struct, frozen=True):
    """What a change does to the texts of a state."""

    changes: list[Change]
    removed: list[str]
    order: list[str]
    seen: Changes
    copies: int = 0  # among the parts of the changes


def size_of_part(part: Part) -> int:
    return part if isinstance(part, int) else part.length if isinstance(part, Copy) else len(part)


def checked(patch: Patch, texts: Texts) -> None:
    """Raise `Corrupt` for a patch that these texts cannot take. Takes no memory, whatever the patch claims."""
    count = total = 0
    for change in patch.changes:
        count += len(change.parts)
        total += change.length
        if change.front + change.back > len(texts.get(change.key, b"")):
            raise Corrupt("a frame", "does not fit the state before it")
        for part in change.parts:
            if isinstance(part, Copy) and part.offset + part.length > len(texts.get(part.key, b"")):
                raise Corrupt("a frame", "copies what is not there")
    if count > MAX_PARTS:
        raise Corrupt("a frame", f"claims {count:,} parts")
    if total > LARGE:
        total += sum(map(len, texts.values()))
        total -= sum([len(texts.get(change.key, b"")) for change in patch.changes])
        if total > MAX_RAW:
            raise Corrupt("a frame", f"claims {total:,} bytes")


def apply(texts: Texts, patch: Patch, literal: Callable[[int], Text]) -> None:
    """Apply a checked patch to the texts, in place. `literal(n)` returns the next n bytes of the blocks."""
    middles = [(change, _middle(change, texts, literal)) for change in patch.changes]
    for change, middle in middles:
        if change.front == change.back == 0:
            texts[change.key] = middle
            continue
        old = texts[change.key]
        grown = old if isinstance(old, bytearray) else bytearray(old)
        grown[change.front : len(old) - change.back] = middle
        texts[change.key] = grown
    for key in patch.removed:
        del texts[key]
    if patch.order:
        items = {key: texts[key] for key in patch.order}
        if len(items) != len(texts):
            raise IndexError
        texts.clear()
        texts.update(items)


def _middle(change: Change, texts: Texts, literal: Callable[[int], Text]) -> Text:
    if len(change.parts) == 1 and not isinstance(change.parts[0], Copy):
        part = change.parts[0]
        return literal(part) if isinstance(part, int) else part
    middles: list[Text] = []
    for part in change.parts:
        if isinstance(part, Copy):
            with memoryview(texts[part.key]) as view:
                middles.append(bytes(view[part.offset : part.offset + part.length]))
        else:
            middles.append(literal(part) if isinstance(part, int) else part)
    return b"".join(middles)
