"""Notes: small standalone values, each a frame after its checksum. A checkpoint's also says what it changed.

01 …  JSON of the value
02 …  MessagePack [JSON of the value, or nothing for {}; {key: what changed}; counts of further keys]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from saveslot.codec.frame import VERSION, Frame, standalone, strip_checksum, unpack
from saveslot.codec.patch import UNCHANGED, Changes
from saveslot.codec.text import MAX_STATE, decode, encode
from saveslot.errors import Corrupt

# Keys that a checkpoint's note names; of others it counts.
MAX_NAMED = 64


def note(value: Any, path: str, limit: int = MAX_STATE, changes: Changes = UNCHANGED) -> bytes:
    """Encode a standalone value: a frame after its checksum. `changes`: what a checkpoint changed, kept with it."""
    return noted(*encode(value, path, limit), changes)


def noted(text: bytes, tagged: bool, changes: Changes = UNCHANGED) -> bytes:  # noqa: FBT001  (as `encode` returns them)
    if not changes:
        return standalone(text, tagged=tagged, version=VERSION)
    body: list[Any] = [text if text != b"{}" else b"", changes]
    if len(changes) > MAX_NAMED:
        body[1] = dict(islice(changes.items(), MAX_NAMED))
        kinds = Counter(_kind_of_change(what) for what in islice(changes.values(), MAX_NAMED, None))
        body.append([kinds["added"], kinds["removed"], kinds["changed"]])
    return standalone(_pack(body), tagged=tagged)


def read_note(stored: bytes) -> Any:
    """Return the value of a note, or raise `Corrupt`."""
    frame = _note_frame(stored)
    text = frame.body if frame.version == VERSION else _of_checkpoint(frame)[0] or b"{}"
    return decode(text, tagged=frame.tagged)


class Changed(msgspec.Struct, frozen=True):
    """What a checkpoint changed, by top-level key: the first 64 by name, and how many keys in all."""

    keys: Changes = UNCHANGED
    added: int = 0
    removed: int = 0
    changed: int = 0


def read_changes(stored: bytes | None) -> Changed | None:
    """Return what a checkpoint changed, or None if its note does not say, which is also so if it changed nothing."""
    frame = None if stored is None else _note_frame(stored)
    if frame is None or frame.version == VERSION:
        return None
    _, keys, more = _of_checkpoint(frame)
    kinds = Counter(map(_kind_of_change, keys.values()))
    counts = [kinds[name] + n for name, n in zip(("added", "removed", "changed"), more, strict=True)]
    return Changed(keys, *counts)


def _kind_of_change(what: int | None) -> str:
    return "removed" if what is None else "added" if what is True else "changed"


def _of_checkpoint(frame: Frame) -> tuple[bytes, dict[str, Any], Sequence[int]]:
    try:
        parsed = _unpack(frame.body)
    except (ValueError, RecursionError) as exc:
        raise Corrupt("a note", "is not what Saveslot writes") from exc
    return parsed.text, parsed.keys, parsed.more


class _Note(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    text: bytes
    keys: dict[str, int | bool | None]
    more: tuple[int, int, int] = (0, 0, 0)


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Note).decode


def read_parts(stored: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the dict in a note, and the text of each of its values: tags depend on nothing around them."""
    frame = _note_frame(stored)
    value = decode(frame.body, tagged=frame.tagged)
    return value, {part: bytes(text) for part, text in _split(frame.body).items()}


_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _note_frame(stored: bytes) -> Frame:
    frame = unpack(strip_checksum(stored))
    if frame.patch or frame.long:
        raise Corrupt("a note", "holds a patch")
    return frame
