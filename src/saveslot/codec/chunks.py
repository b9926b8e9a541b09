"""Long lists in chunks of 32 items: a chunk that did not change is neither checked nor encoded again.

Most states are lists that grow, handed over whole at each checkpoint. What `marshal` writes of a chunk is its *print*:
equal prints mean equal values of exactly the same types (True is not 1, 1 is not 1.0, an instance of a subclass has no
print), and taking a print is faster than checking and encoding. So a chunk whose print is the one from last time has
the text from last time. Only chunks whose text is plain JSON, without tags, keep a print.

Prints also depend on which values of a chunk have other references. If that changes, an unchanged chunk is encoded
once more, to the same text.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from saveslot.codec.text import checked_key, encode, encode_keys, place, size_of
from saveslot.errors import InvalidInput, TooLarge

# Items per chunk. A change costs encoding one chunk; with fewer, the prints of many chunks cost more to compare.
CHUNK = 32
# Items: shorter lists are encoded whole.
LONG = 2 * CHUNK
# marshal's format in which shared values are written once: a print is never longer than the value in memory.
_VERSION = 4

Texts = Mapping[str, bytes | bytearray]


class Chunks(msgspec.Struct):
    """Where the chunks of a list end in its text, and their prints. An empty print equals no other."""

    prints: list[bytes] = []
    ends: list[int] = []

    @property
    def weight(self) -> int:
        return sum(map(len, self.prints))


NOTHING: Mapping[str, Chunks] = {}


def encode_long(
    value: dict[str, Any], lists: Collection[str], path: str, limit: int, texts: Texts, known: Mapping[str, Chunks]
) -> tuple[dict[str, bytes | bytearray], int, bool, Mapping[str, Chunks]]:
    """Return the text of each key, their size as one object, whether they may hold tagged values, and the chunks.

    `lists` names the long ones; `texts` and `known` are those of the state before.
    """
    rest, _, tagged = encode_keys({key: item for key, item in value.items() if key not in lists}, path, limit)
    chunks: dict[str, Chunks] = {}
    done: dict[str, bytes | bytearray] = {}
    for key, item in value.items():
        if key not in lists:
            done[key] = rest[key]
            continue
        name = checked_key(key, path)
        done[name], chunks[name], special = _encode(
            item, place(path, [name]), limit, texts.get(name, b""), known.get(name, Chunks())
        )
        tagged = tagged or special
    size = size_of(done)
    if size > limit:
        raise TooLarge(path, limit=limit, size=size)
    return done, size, tagged, chunks


def _encode(
    items: list[Any], path: str, limit: int, before: bytes | bytearray, known: Chunks
) -> tuple[bytes, Chunks, bool]:
    """Return a list's text, its chunks, and whether it may hold tagged values."""
    prints: list[bytes] = []
    ends: list[int] = []
    parts: list[bytes | memoryview] = []
    end, tagged, size = 1, False, 0
    old = memoryview(before)
    for n in range(0, len(items), CHUNK):
        chunk, place_ = items[n : n + CHUNK], n // CHUNK
        mark = _print(chunk)
        if mark and place_ < len(known.prints) and mark == known.prints[place_]:
            start = known.ends[place_ - 1] + 1 if place_ else 1
            part: bytes | memoryview = old[start : known.ends[place_]]
        else:
            try:
                text, special = encode(chunk, path, limit, depth=1)
            except InvalidInput:
                encode(items, path, limit, depth=1)  # raises with the item's index in the whole list
                raise
            part, tagged = text[1:-1], tagged or special
            mark = b"" if special else mark
        size += len(part) + 1
        if size > limit:
            raise TooLarge(path, limit=limit, size=size)
        end += len(part)
        prints.append(mark)
        ends.append(end)
        parts.append(part)
        end += 1
    return b"[%b]" % b",".join(parts), Chunks(prints, ends), tagged


def _print(chunk: list[Any]) -> bytes:
    """Return a chunk's print; b"" if `marshal` cannot write it."""
    try:
        return marshal.dumps(chunk, _VERSION)
    except ValueError:
        return b""
