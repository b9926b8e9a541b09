"""Parts of a state: single keys, or the last items of a list, from the frames that hold them and no others.

A range of bytes of a text is followed downwards, from the newest patch to the bases, until every byte is a literal of
some frame. Each base says in its table which base last changed a key; bases in between are not read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from saveslot.codec.blocks import Blocks, Cut, Head, opened
from saveslot.codec.frame import chained, unpack
from saveslot.codec.items import tail
from saveslot.codec.marks import EVERY
from saveslot.codec.patch import Change, Copy, size_of_part
from saveslot.codec.state import State
from saveslot.codec.text import decode, place
from saveslot.errors import Corrupt, InvalidInput
from saveslot.values.recipe import Recipe

# Bytes at the end of a list that are parsed first, to see how long its items are.
WINDOW = 2 * EVERY
# Bases that are read together, at most.
TOGETHER = 64
# Pieces that a part may be put together of. Following each to its literal takes 5 us.
MAX_PIECES = 50_000


class Header(NamedTuple):
    """What is known of a base before it is read."""

    before: int  # seq of the base it stands on; 0 for a keyframe
    digest: bytes


class Scattered(Exception):
    """The part is in so many pieces that reading the whole state is quicker."""


class Wanting(Exception):
    """These bases must be read first: `add` them, then ask again. If there are none, `add_chain` the headers."""

    def __init__(self, seqs: Sequence[int]) -> None:
        super().__init__(seqs)
        self.seqs = seqs


class _Layer:
    """What one frame says, by key."""

    def __init__(self, frame: bytes | Cut) -> None:
        stored = frame.head if isinstance(frame, Cut) else frame
        parsed = unpack(stored)
        self.head: Head = opened(parsed)
        self.patch, self.tagged = parsed.patch, parsed.tagged
        self.raw = len(parsed.body) + (self.head.literal if parsed.long else 0)
        # Also where its literals start in the blocks, and the length of the new text.
        self.changes: dict[str, tuple[Change, int, int]] = {}
        at = 0
        for change in self.head.changes:
            self.changes[change.key] = (change, at, change.length)
            at += sum([part for part in change.parts if isinstance(part, int)])
        self.table = {spot.key: spot for spot in self.head.table}
        self._ends: dict[str, tuple[list[int], list[int]]] = {}
        self._blocks: Blocks | None = None
        if isinstance(frame, Cut):
            self._blocks = Blocks(self.head, frame.stored) if parsed.long else None
        elif parsed.long:
            self._blocks = Blocks.of(self.head, frame, parsed.end)

    def ends(self, key: str) -> tuple[list[int], list[int]]:
        """Return where the front and each part of a change end, and the bytes of its literals up to there."""
        ends = self._ends.get(key)
        if ends is None:
            change = self.changes[key][0]
            sizes = [part if isinstance(part, int) else 0 for part in change.parts]
            ends = self._ends[key] = (
                [*accumulate(map(size_of_part, change.parts), initial=change.front)],
                [*accumulate(sizes, initial=0)],
            )
        return ends

    def literal(self, at: int, length: int) -> bytearray:
        if self._blocks is None:
            raise Corrupt("a frame", "names bytes of blocks, and has none")
        return self._blocks.read(at, length)


# Where a text is looked up: after the short patch of this number, or if negative, after the base of that seq.
_Level = int


class Excerpt:
    def __init__(
        self, recipe: Recipe, digest: bytes, where: str, headers: Mapping[int, Header], shorts: Sequence[bytes]
    ) -> None:
        """`headers`: at least of the newest base and the one before it; `shorts`: the short patches, oldest first."""
        self._recipe, self._digest, self._where = recipe, digest, where
        self._headers: Mapping[int, Header] = {}
        self._chained = False  # True once the headers are those of the whole chain
        self._frames = shorts
        self._shorts: list[_Layer] = []
        self._bases: dict[int, _Layer] = {}
        self._asked = 1
        self._wanted: set[int] = set()
        if len(shorts) != recipe.short or recipe.base not in headers:
            raise Corrupt(where, "a frame is missing")
        self._take(headers)

    def add_chain(self, headers: Mapping[int, Header]) -> None:
        """Take the headers of all bases: what is asked for is not in the newest one alone."""
        self._take(headers)
        self._chained = True

    def _take(self, headers: Mapping[int, Header]) -> None:
        if any(header.before and not header.before < seq for seq, header in headers.items()):
            raise Corrupt(self._where, "its bases do not descend")
        self._headers = headers
        self._chained = all(not header.before or header.before in headers for header in headers.values())

    def add(self, seq: int, frame: bytes | Cut | None) -> None:
        """Take a base, verified by its digest and that of the base before it."""
        if frame is None:
            raise Corrupt(self._where, f"its frame {seq} is missing")
        header = self._headers[seq]
        if header.before and header.before not in self._headers:
            raise Corrupt(self._where, f"its frame {header.before} is missing")
        before = self._headers[header.before].digest if header.before else b""
        head = frame.head if isinstance(frame, Cut) else frame
        digest = chained(before, head)
        newest = seq == self._recipe.base
        if newest:
            for short in self._frames:
                digest = chained(digest, short)
        if digest != (self._digest if newest else header.digest):
            raise Corrupt(self._where, "its frames do not match their digest")
        try:
            layer = self._bases[seq] = _Layer(frame)
            if newest:
                self._shorts = [_Layer(short) for short in self._frames]
        except Corrupt as exc:
            raise Corrupt(self._where, f"a frame {exc.reason}") from exc
        if layer.patch != bool(header.before):
            raise Corrupt(self._where, "a frame is not what its entry says")
        if newest and sum([short.raw for short in self._shorts]) != self._recipe.short_raw:
            raise Corrupt(self._where, "its frames do not have the size that its recipe names")

    def value(self, keys: Collection[str] | None, last: Mapping[str, int]) -> dict[str, Any]:
        """Return these keys (None: all) that the state has, and those in `last`: so many items from the end of a list.

        Raises `Wanting` for bases that must be added first.
        """
        self._base(self._recipe.base)
        tagged = self._tagged
        try:
            names = self._keys() if keys is None else self._ordered([*dict.fromkeys([*keys, *last])])
            lengths = self._lengths(names)
            return {
                key: self._last(key, length, last[key])
                if key in last
                else decode(self._read(key, 0, length), tagged=tagged)
                for key, length in lengths.items()
            }
        except Corrupt as exc:
            raise Corrupt(self._where, exc.reason) from exc

    @property
    def _top(self) -> _Level:
        return len(self._shorts) or -self._recipe.base

    @property
    def _tagged(self) -> bool:
        return (self._shorts[-1] if self._shorts else self._bases[self._recipe.base]).tagged

    def _lengths(self, keys: Collection[str]) -> dict[str, int]:
        """Return the lengths of the texts of these keys, as far as they are there."""
        lengths = {key: length for key in keys if (length := self._length(self._top, key)) is not None}
        if sum(lengths.values()) > self._recipe.weight:
            raise Corrupt("a frame", "holds more than its recipe names")
        return lengths

    # Frames

    def _base(self, seq: int) -> _Layer:
        layer = self._bases.get(seq)
        if layer is None:
            if not self._chained:
                raise Wanting(())
            if seq in self._wanted:
                raise Corrupt(self._where, f"its frame {seq} is missing")
            wanted: list[int] = []
            at = seq
            while at and at in self._headers and at not in self._bases and len(wanted) < self._asked:
                wanted.append(at)
                at = self._headers[at].before if self._headers[at].before < at else 0
            if not wanted:
                raise Corrupt(self._where, "a frame is missing")
            self._asked = min(TOGETHER, 2 * self._asked)
            self._wanted.update(wanted)
            raise Wanting(wanted)
        return layer

    def _before(self, level: _Level, key: str) -> tuple[_Layer, _Level, int] | None:
        """Return the frame that last changed a key as of a level, the level under it, and where it found the change.

        None if there is no such key.
        """
        while level > 0:
            layer = self._shorts[level - 1]
            if key in layer.changes:
                return layer, level - 1 or -self._recipe.base, level
            if key in layer.head.removed:
                return None
            level -= 1
        seq = -level or self._recipe.base
        while seq:
            layer = self._base(seq)
            before = self._headers[seq].before
            if key in layer.changes:
                return layer, -before, -seq
            if key in layer.head.removed:
                return None
            if layer.table:
                if key not in layer.table:
                    return None
                older = seq - layer.table[key].back
                if older >= seq:
                    raise Corrupt("a frame", "has a table that does not fit it")
                seq = older
            else:
                seq = before
        return None

    def _length(self, level: _Level, key: str) -> int | None:
        older = self._before(level, key) if level else None
        return None if older is None else older[0].changes[key][2]

    def _ordered(self, keys: Collection[str]) -> Collection[str]:
        """Return these keys in the order of the state, if that is known without reading further bases."""
        newest = self._bases[self._recipe.base]
        if len(keys) < 2 or not (newest.table or not newest.patch):  # noqa: PLR2004
            return keys
        return [key for key in self._keys() if key in keys]

    def _keys(self) -> list[str]:
        """Return the keys of the state in their order."""
        later: list[_Layer] = self._shorts[::-1]
        seq = self._recipe.base
        while True:
            layer = self._base(seq)
            if layer.table or not layer.patch:
                keys = list(layer.table or layer.changes)
                break
            later.append(layer)
            seq = self._headers[seq].before
        for layer in reversed(later):
            keys += [key for key in layer.changes if key not in keys]
            keys = layer.head.order or [key for key in keys if key not in layer.head.removed]
        return keys

    # Texts

    def _read(self, key: str, start: int, stop: int) -> bytearray:
        """Return these bytes of the text of a key."""
        out = bytearray(stop - start)
        todo = [(self._top, key, start, stop, 0)]
        count = 0
        while todo:
            level, name, begin, end, to = todo.pop()
            count += 1
            if count + len(todo) > MAX_PIECES:
                raise Scattered
            for piece in self._pieces(level, name, begin, end):
                if isinstance(piece, _Below):
                    todo.append((piece.level, piece.key, piece.start, piece.stop, to + piece.at))
                else:
                    at, text = piece
                    out[to + at : to + at + len(text)] = text
        return out

    def _pieces(
        self, level: _Level, key: str, start: int, stop: int
    ) -> Iterator[_Below | tuple[int, bytes | bytearray]]:
        """Yield where these bytes come from: texts before, or literal bytes, each with its place in the range."""
        older = self._before(level, key) if level else None
        if older is None or stop > older[0].changes[key][2]:
            raise Corrupt("a frame", "names bytes that are not there")
        layer, below, _ = older
        change, literal, length = layer.changes[key]
        if start < change.front:
            yield _Below(below, key, start, min(stop, change.front), 0)
        ends, before = layer.ends(key)
        for n in range(max(0, bisect_right(ends, start) - 1), bisect_left(ends, stop, hi=len(ends) - 1)):
            part, at = change.parts[n], ends[n]
            low, high = max(start, at), min(stop, ends[n + 1])
            if low >= high:
                continue
            if isinstance(part, Copy):
                first = part.offset + low - at
                yield _Below(below, part.key, first, first + high - low, low - start)
            elif isinstance(part, int):
                yield low - start, layer.literal(literal + before[n] + low - at, high - low)
            else:
                yield low - start, part[low - at : high - at]
        if stop > ends[-1]:
            moved = (self._length(below, key) or 0) - length
            low = max(start, ends[-1])
            yield _Below(below, key, low + moved, stop + moved, low - start)

    def _marks(self, key: str, start: int, stop: int) -> list[int]:
        """Return marks in this part of the text of a key."""
        marks: list[int] = []
        todo = [(self._top, key, start, stop, 0)]
        count = 0
        while todo:
            level, name, begin, end, moved = todo.pop()
            count += 1
            if count > MAX_PIECES:
                raise Scattered
            older = self._before(level, name) if level else None
            if older is None:
                continue
            layer, below, _ = older
            change, _, length = layer.changes[name]
            own = [*accumulate(change.marks)]
            marks += [mark + moved for mark in own[bisect_left(own, begin) : bisect_left(own, end)]]
            if begin < change.front:
                todo.append((below, name, begin, min(end, change.front), moved))
            back = length - change.back
            if change.back > 1 and end > back:
                grown = length - (self._length(below, name) or 0)
                todo.append((below, name, max(begin, back) - grown, end - grown, moved + grown))
        return sorted(marks)

    def _last(self, key: str, length: int, count: int) -> list[Any]:
        """Return the last items of a list."""
        if not self._read(key, length - 1, length).startswith(b"]"):
            raise not_a_list(key)
        if not count:
            return []
        window = WINDOW
        while window < length:
            marks = self._marks(key, length - window, length - 1)
            if marks:
                items = decode(b"[%b" % self._read(key, marks[0] + 1, length), tagged=self._tagged)
                if len(items) >= count:
                    return items[-count:]
                window = window * count // len(items) + EVERY
            window *= 2
        return decode(self._read(key, 0, length), tagged=self._tagged)[-count:]


class _Below(NamedTuple):
    level: _Level
    key: str
    start: int
    stop: int
    at: int


def excerpt(state: State, keys: Collection[str] | None, last: Mapping[str, int]) -> dict[str, Any]:
    """Return the same from a whole state. Decodes nothing else."""
    chosen: dict[str, Any] = {}
    for key, text in state.texts.items():
        if key in last:
            if not text.startswith(b"["):
                raise not_a_list(key)
            chosen[key] = decode(b"[%b" % text[tail(text, last[key])[0] :], tagged=state.tagged)
        elif keys is None or key in keys:
            chosen[key] = decode(text, tagged=state.tagged)
    return chosen


def not_a_list(key: str) -> InvalidInput:
    return InvalidInput(place("last", [key]), "the state holds no list there")
