"""Keyframes and long patches: a head that says what changed, and its literals in blocks after it.

Head and blocks are compressed and verified by themselves, and sealed by themselves if the session has a key. So a
reader of one key, or of the end of a list, decompresses the head and the blocks that hold it, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Annotated, NamedTuple

import msgspec

from saveslot.codec.frame import CHECKSUM, MAX_RAW, VERSION_2, Frame, decompressed, unpack
from saveslot.codec.patch import Patch
from saveslot.errors import Corrupt

# Bytes. A keyframe or long patch up to this size has no blocks, and the next long patch replaces it.
SMALL = 4 * 1024
# Uncompressed bytes of a block; the last one may have fewer. Blocks of 256 KB take as many bytes stored and twice the
# time to read, blocks of 64 KB take 3% more.
BLOCK = 128 * 1024
# Keys in the table of every base. A longer table is written only now and then, after bases of APART times its bytes:
# a reader looks for a key in one base after the other until it meets a table.
MAX_TABLE, APART = 64, 16

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_RAW)]


class Spot(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Where to look for the text of a key."""

    key: str
    back: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]  # how many seqs ago the base was written that last changed it
    length: _Count  # of its text


class Cut(NamedTuple):
    """A frame without its blocks, and how to get each as its head vouches for it."""

    head: bytes
    stored: Callable[[int], bytes | memoryview]


class Head(Patch, array_like=True, forbid_unknown_fields=True):
    """What changed, with lengths in place of literals, and the blocks that hold them."""

    sizes: list[_Count] = msgspec.field(default_factory=list)  # stored bytes of each block
    digests: bytes = b""  # 16 bytes of the sha256 of each block as stored
    table: list[Spot] = msgspec.field(default_factory=list)  # all keys in their order; if many, not in every base

    @property
    def literal(self) -> int:
        """Bytes of all literals."""
        return sum(part for change in self.changes for part in change.parts if isinstance(part, int))


_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_patch = msgspec.msgpack.Decoder(Patch).decode


def opened(frame: Frame) -> Head:
    """Return what a frame says, literals inline if no blocks follow it."""
    if frame.version != VERSION_2:
        raise Corrupt("a frame", "is of format 1, among frames of format 2")
    try:
        if frame.long:
            return _decode_head(frame.body)
        patch = _decode_patch(frame.body)
    except (ValueError, RecursionError) as exc:
        raise Corrupt("a frame", "is not what Saveslot writes") from exc
    return Head(patch.changes, patch.removed, patch.order)


def sizes_of(frame: bytes) -> Sequence[int]:
    """Return the stored bytes of each block that the head of a frame names."""
    parsed = unpack(frame)
    return opened(parsed).sizes if parsed.long else ()


def check_blocks(frame: bytes) -> None:
    """Raise `Corrupt` unless the blocks are those that the head vouches for."""
    parsed = unpack(frame)
    if parsed.long:
        Blocks.of(opened(parsed), frame, parsed.end).check()


class Blocks:
    """The literals of one frame, decompressed on access."""

    def __init__(self, head: Head, stored: Callable[[int], bytes | memoryview]) -> None:
        """`stored(n)` returns a block as the head vouches for it."""
        self._stored, self._digests = stored, head.digests
        self._length = head.literal
        self._at = 0
        self._open: dict[int, bytes] = {}
        count = -(-self._length // BLOCK)
        if len(head.sizes) != count or len(head.digests) != CHECKSUM * count:
            raise Corrupt("a frame", "does not have the blocks that it names")
        if any(size > BLOCK for size in head.sizes):
            raise Corrupt("a frame", "names a block that is too large")

    @classmethod
    def of(cls, head: Head, frame: bytes, start: int) -> Blocks:
        """Take the blocks that follow the head of a frame."""
        ends = [*accumulate(head.sizes, initial=start)]
        if ends[-1] != len(frame):
            raise Corrupt("a frame", "is cut short, or longer than it says")
        view = memoryview(frame)
        return cls(head, lambda n: view[ends[n] : ends[n + 1]])

    def next(self, length: int) -> bytearray:
        """Return the next literal, as memory that may grow. Blocks before it are closed."""
        at, self._at = self._at, self._at + length
        for number in [number for number in self._open if number < at // BLOCK]:
            del self._open[number]
        return self.read(at, length)

    def read(self, at: int, length: int) -> bytearray:
        out = bytearray()
        end = at + length
        while at < end:
            number, start = divmod(at, BLOCK)
            block = self._block(number)
            out += block if start == 0 and end - at >= len(block) else memoryview(block)[start : start + end - at]
            at = (number + 1) * BLOCK
        return out

    def check(self) -> None:
        for number in range(len(self._digests) // CHECKSUM):
            self._verified(number)

    def _block(self, number: int) -> bytes:
        block = self._open.get(number)
        if block is None:
            block = self._open[number] = self._opened(number)
        return block

    def _opened(self, number: int) -> bytes:
        stored = self._verified(number)
        raw = min(BLOCK, self._length - number * BLOCK)
        return bytes(stored) if len(stored) == raw else decompressed(stored, raw)

    def _verified(self, number: int) -> memoryview:
        stored = memoryview(self._stored(number))
        if sha256(stored).digest()[:CHECKSUM] != self._digests[CHECKSUM * number : CHECKSUM * (number + 1)]:
            raise Corrupt("a frame", f"has a block ({number}) that does not match its digest")
        return stored
