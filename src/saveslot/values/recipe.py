"""Recipes: which frames rebuild a state, and when the next frame must be a long patch or a keyframe.

A *keyframe* holds a whole state, a *short* patch one change. After every 32 short patches of a chain comes a *long*
one: everything that changed since the keyframe or the long patch before it. It replaces the short ones.

K s s s … s L s s … s L s s s        the last state is rebuilt from  K  L  L  s s s

A keyframe or long patch is a *base*. An entry's recipe names its newest base; each base's entry names the base before
it in its column `base`, so no recipe lists them. FORMAT.md shows the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from saveslot.errors import Corrupt

# Short patches after the newest base. A resume reads them one by one, 32 in 0.15 ms.
MAX_SHORT = 32
# Bytes of a recipe: beyond this, a long patch follows. Reached only where chains interleave.
MAX_RECIPE = 80
# A recipe of fewer ranges than this is never longer.
FEW_RANGES = 8
# A keyframe comes when the frames of a recipe weigh this many times the state, and this many bytes more, uncompressed.
MAX_WASTE, ROOM = 2, 512
# Beyond every number in a recipe.
_LIMIT = 1 << 62

_V2 = 2
# Of recipes of format 1, which are MessagePack arrays.
_ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC})
_MAX_OLD_RANGES, _MAX_OLD_BASE = 32, 24
_numbers_of_1 = msgspec.msgpack.Decoder(list[int]).decode

Range = tuple[int, int]


class Recipe(msgspec.Struct, frozen=True, gc=False):
    """The frames that rebuild a state: those of its kind of entry, from the chain of `base` and within the ranges."""

    base: int = 0  # seq of the newest base; 0 in recipes of format 1, whose ranges hold all frames
    ranges: tuple[Range, ...] = ()  # of seqs, with the short patches
    short: int = 0  # frames within the ranges
    base_raw: int = 0  # uncompressed bytes of the bases
    short_raw: int = 0  # and of the short patches
    weight: int = 0  # bytes of the state, with a comma after its last key
    old: bytes = b""  # the stored bytes, of a recipe of format 1

    def __bool__(self) -> bool:
        return bool(self.base or self.ranges)

    @property
    def size(self) -> int:
        """Bytes of the state as JSON, escapes in keys not counted."""
        return self.weight - (self.weight > len("{}"))

    @property
    def wasteful(self) -> bool:
        """True if a keyframe should replace these frames."""
        return self.base_raw + self.short_raw > MAX_WASTE * self.weight + ROOM

    def pack(self, seq: int) -> bytes:
        """Return the bytes to store in entry `seq`."""
        if not self.base:
            return self.old
        numbers = [seq - self.base, self.base_raw, self.short_raw, self.weight]
        if self.short:
            numbers.append(self.short)
            at = self.base
            for first, last in self.ranges:
                numbers += (first - at, last - first)
                at = last
        return b"\x02" + b"".join(map(varint, numbers))

    @classmethod
    def unpack(cls, data: bytes, seq: int) -> Recipe:
        """Read the recipe of entry `seq`, or raise `Corrupt`."""
        if not data:
            return cls()
        if data[0] != _V2:
            return _of_format_1(data)
        numbers: list[int] = []
        at = 1
        while at < len(data):
            number, at = read_varint(data, at, "a recipe")
            numbers.append(number)
        if len(numbers) != 4 and (len(numbers) < 7 or len(numbers) % 2 == 0):  # noqa: PLR2004
            raise Corrupt("a recipe", "is cut short")
        back, base_raw, short_raw, weight, short, *steps = [*numbers, 0] if len(numbers) == 4 else numbers  # noqa: PLR2004
        base = at = seq - back
        ranges: list[Range] = []
        room = 0
        for gap, length in zip(steps[::2], steps[1::2], strict=True):
            if not gap:
                raise Corrupt("a recipe", "names impossible entries")
            ranges.append((at + gap, at + gap + length))
            at += gap + length
            room += length + 1
        if base < 1 or at > seq or max(numbers) > _LIMIT:
            raise Corrupt("a recipe", "names impossible entries")
        if not len(ranges) <= short <= min(room, MAX_SHORT):
            raise Corrupt("a recipe", "names too many frames, or none")
        return cls(base, tuple(ranges), short, base_raw, short_raw, weight)

    def with_short(self, tip: int, seq: int, raw: int, weight: int) -> Recipe | None:
        """Return this recipe with one more short patch; None when it is time for a long one, `NOTHING` for a keyframe.

        A range spans entries of other kinds, but never a frame outside the recipe: a patch on the newest frame extends
        the last range, a patch after a rollback starts a new one.
        """
        if self.short >= MAX_SHORT:
            return None
        ranges = self.ranges
        extends = bool(ranges) and ranges[-1][1] == tip
        ranges = (*ranges[:-1], (ranges[-1][0], seq)) if extends else (*ranges, (seq, seq))
        after = Recipe(self.base, ranges, self.short + 1, self.base_raw, self.short_raw + raw, weight)
        if len(ranges) >= FEW_RANGES and len(after.pack(seq)) > MAX_RECIPE:
            return None
        return NOTHING if after.wasteful else after


def _of_format_1(data: bytes) -> Recipe:
    """Read a recipe as Saveslot wrote it until 2026-11: all frames in ranges, the bases first, one entry each."""
    if data[0] not in _ARRAYS:
        raise Corrupt("a recipe", "has an unknown format (a newer Saveslot may have written it)")
    try:
        numbers = _numbers_of_1(data)
    except (ValueError, RecursionError) as exc:
        raise Corrupt("a recipe", "is not what Saveslot writes") from exc
    if len(numbers) < 7 or len(numbers) % 2 == 0:  # noqa: PLR2004
        raise Corrupt("a recipe", "is cut short")
    ranges: list[Range] = []
    at = 0
    for gap, length in zip(numbers[5::2], numbers[6::2], strict=True):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    if min(numbers) < 0 or 0 in numbers[5::2] or at > _LIMIT or len(ranges) > _MAX_OLD_RANGES:
        raise Corrupt("a recipe", "names impossible entries")
    base, short = numbers[:2]
    room = sum(last - first + 1 for first, last in ranges[base:])
    single = all(first == last for first, last in ranges[:base])
    if not (
        0 < base <= min(len(ranges), _MAX_OLD_BASE) and single and len(ranges) - base <= short <= min(room, MAX_SHORT)
    ):
        raise Corrupt("a recipe", "names too many frames, or none")
    return Recipe(0, tuple(ranges), base + short, old=data)


NOTHING = Recipe()
# How the stored recipe of an entry with a keyframe or long patch of format 2 starts: its distance to the newest base
# is 0.
OF_A_BASE = b"\x02\x00"


def chain(base: int, before: Mapping[int, int]) -> list[int]:
    """Return the seqs of a chain of bases, oldest first. `before`: the column `base` by seq.

    It ends early where an entry is missing, or names one that is not older: the frames then do not match their digest.
    """
    seqs: list[int] = []
    at = base
    while at and at in before and (not seqs or at < seqs[-1]):
        seqs.append(at)
        at = before[at]
    return seqs[::-1]


@lru_cache(maxsize=4096)  # counts recur, and so do the sizes that the recipes of a session repeat
def varint(number: int) -> bytes:
    """Encode a number: seven bits per byte, low bits first; the high bit means that more bytes follow: 300 is ac 02."""
    encoded = bytearray()
    while number >= 0x80:  # noqa: PLR2004
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, at: int, where: str = "a frame") -> tuple[int, int]:
    """Return the number at that offset, and the offset after it."""
    number = 0
    for n, byte in enumerate(data[at : at + 9]):
        number |= (byte & 0x7F) << 7 * n
        if byte < 0x80:  # noqa: PLR2004
            return number, at + n + 1
    raise Corrupt(where, "ends inside a number")
