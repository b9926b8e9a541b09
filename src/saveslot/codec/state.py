"""A state and what changed in it.

A state is kept as the JSON text of each of its keys. The next state is encoded the same way; a key whose text is equal
costs nothing, a changed one is a *splice*: how many bytes stay in front, how many behind, and the new middle. Where
distant places of one large text changed, each gets a splice of its own.

    {"messages": [A, B], "n": 2}  ->  {"messages": [A, B, C], "n": 3}
    splice "messages": keep 4 in front, 1 behind, ",C" between        splice "n": keep nothing, "3"

Frames follow one another: a keyframe (all the texts, by key), then patches. After every 32 short patches, of
one change each, comes a long one of all that changed since the keyframe or the long patch before: it takes the place of
the short ones, so that few frames rebuild any state.

    K s s s … s L s s … s L s s s        the last state is rebuilt from  K  L  L  s s s

The *recipe* of an entry names the frames that rebuild it, so that going back is a new entry with an old recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from saveslot.codec.frame import MAX_RAW, PATCH, chained, pack, unpack
from saveslot.codec.text import MAX_STATE, checked_key, decode, encode, encode_keys, place, size_of
from saveslot.errors import Corrupt, InvalidInput, TooLarge

Text = bytes | bytearray
Texts = dict[str, Text]

# Short patches behind the last long one: what a resume reads one by one, 32 of them in 0.15 ms.
MAX_SHORT = 32
# Keyframe and long patches; more of them would only help states that hardly change (a recipe names each by two bytes).
MAX_BASE = 24
# A keyframe comes when the patches weigh so many times the last one. With 1, states that grow to 100 … 2,000 turns
# stored 14% more and were rebuilt no faster; with 3 they would store 6% less. What is rewritten instead of growing is
# rebuilt from up to three times its weight.
MAX_PATCHES = 2
# Each rollback starts a new range of short patches.
MAX_RANGES = 32
# No limit for states goes beyond: with its keys and lengths the whole must still fit into a frame.
MAX_WHOLE = MAX_RAW // 2
# A patch that is longer than this part of its state saves little, and a keyframe reads faster.
WORTH_PATCHING = 0.7
# A short text that keeps less than this in front and behind is replaced as a whole.
WORTH_KEEPING = 16
# Where more than this differs on both sides, a look for equal parts between (0.2 ms a megabyte and try) pays.
WORTH_SPLITTING = 1024
# So long a part is taken for the same when it is equal: shorter ones recur by chance in JSON.
ANCHOR = 128
# More splices in one text would make reading slow: each moves all that stands behind it.
MAX_SPLICES = 16

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Splice(msgspec.Struct, array_like=True, tag=0):
    """Keep so many bytes of a text in front and behind, and put the middle between. A new text keeps none."""

    key: str
    front: _Count
    back: _Count
    middle: bytes


class Remove(msgspec.Struct, array_like=True, tag=1):
    key: str


class Order(msgspec.Struct, array_like=True, tag=2):
    """All keys in their new order, where it is not: kept ones as before, new ones behind."""

    keys: list[str]


Op = Splice | Remove | Order

_pack = msgspec.msgpack.Encoder().encode
_unpack_numbers = msgspec.msgpack.Decoder(list[_Count]).decode
_unpack_ops = msgspec.msgpack.Decoder(list[Op]).decode
# Not one JSON text of the whole state: finding the keys in that takes half as long again as decompressing it.
_unpack_texts = msgspec.msgpack.Decoder(dict[str, memoryview]).decode


class Recipe(msgspec.Struct, frozen=True, gc=False):
    """Which frames rebuild a state: those of its track within these ranges of seqs, keyframe first."""

    ranges: tuple[tuple[int, int], ...] = ()
    base: int = 0  # so many ranges, of one entry each, are the keyframe and the long patches
    short: int = 0  # so many short patches are in the others
    keyframe_bytes: int = 0
    long_bytes: int = 0
    short_bytes: int = 0

    @property
    def frames(self) -> int:
        return self.base + self.short

    def pack(self) -> bytes:
        if not self.ranges:
            return b""
        numbers = [self.base, self.short, self.keyframe_bytes, self.long_bytes, self.short_bytes]
        at = 0
        for first, last in self.ranges:
            numbers += (first - at, last - first)
            at = last
        return _pack(numbers)

    @classmethod
    def unpack(cls, data: bytes) -> Recipe:
        if not data:
            return cls()
        try:
            numbers = _unpack_numbers(data)
        except (ValueError, RecursionError) as exc:
            raise Corrupt("a recipe", "is not what Saveslot writes") from exc
        if len(numbers) < 7 or len(numbers) % 2 == 0:  # noqa: PLR2004
            raise Corrupt("a recipe", "is cut short")
        ranges: list[tuple[int, int]] = []
        at = 0
        for gap, length in zip(numbers[5::2], numbers[6::2], strict=True):
            ranges.append((at + gap, at + gap + length))
            at += gap + length
        if 0 in numbers[5::2] or at >= 1 << 63 or len(ranges) > MAX_RANGES:
            raise Corrupt("a recipe", "names entries that cannot be")
        base, short = numbers[:2]
        room = sum(last - first + 1 for first, last in ranges[base:])
        single = all(first == last for first, last in ranges[:base])
        if not (
            0 < base <= min(len(ranges), MAX_BASE) and single and len(ranges) - base <= short <= min(room, MAX_SHORT)
        ):
            raise Corrupt("a recipe", "names more frames than there can be, or none")
        return cls(tuple(ranges), *numbers[:5])

    def holds(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self.ranges)


NOTHING = Recipe()


class State(msgspec.Struct, eq=False):
    """A state as texts, with what rebuilds it. Its texts belong to it alone: `append` changes them in place."""

    texts: Texts = {}
    tagged: bool = False
    weight: int = 0  # of the texts, as one JSON object
    tip: int = 0  # the newest entry that may hold a frame; a range may only be prolonged from there
    recipe: Recipe = NOTHING
    digest: bytes = b""
    # What the next long patch stands on: the keyframe or long patch before. Of its texts only this is remembered, how
    # many bytes in front and behind are still the same, for each one that changed.
    _base_digest: bytes = b""
    _base_keys: list[str] = []
    _kept: dict[str, tuple[int, int]] = {}

    def value(self) -> dict[str, Any]:
        return {key: decode(text, tagged=self.tagged) for key, text in self.texts.items()}

    def apply(self, frame: bytes) -> None:
        """Take the next frame: a keyframe starts anew, a patch goes on. After `Corrupt` the state is empty."""
        before, self.digest = self.digest, b""
        self.take(frame, first=not before)
        self.digest = chained(before if frame[1] & PATCH else b"", frame)

    def take(self, frame: bytes, *, first: bool) -> list[Op]:
        """The texts that this frame makes of them, and how; the digest is the caller's business."""
        texts, self.texts = self.texts, {}
        patch, tagged, body = unpack(frame)
        if patch and first:
            raise Corrupt("a frame", "is a patch with nothing to stand on")
        ops: list[Op] = []
        try:
            if patch:
                ops = _patch(texts, body)
                tagged = tagged or self.tagged
            else:
                texts = _texts(body)
        except (ValueError, KeyError, IndexError, RecursionError) as exc:
            raise Corrupt("a frame", "does not fit the state before it") from exc
        self.texts, self.tagged = texts, tagged
        return ops

    def stand(self, digest: bytes) -> None:
        """Be what the next long patch stands on."""
        self._base_digest, self._base_keys, self._kept = digest, list(self.texts), {}

    def follow(self, before: State, ops: Sequence[Op]) -> None:
        """Stand on what `before` stands on, after these changes."""
        self._base_digest, self._base_keys, self._kept = before._base_digest, before._base_keys, before._kept.copy()
        self.note(ops)

    def note(self, ops: Sequence[Op]) -> None:
        """Remember what these changes left of the texts that the next long patch stands on."""
        for op in ops:
            if isinstance(op, Order):
                continue
            front, back = (0, 0) if isinstance(op, Remove) else (op.front, op.back)
            kept = self._kept.get(op.key)
            self._kept[op.key] = (front, back) if kept is None else (min(kept[0], front), min(kept[1], back))

    def long(self) -> tuple[bytes, list[Op]]:
        """All that changed since what this stands on, and the digest of that."""
        ops: list[Op] = []
        known = set(self._base_keys)
        for key, text in self.texts.items():
            if key not in known:
                ops.append(Splice(key, 0, 0, bytes(text)))
            elif key in self._kept:
                front, back = self._kept[key]
                ops.append(Splice(key, front, back, bytes(text[front : len(text) - back])))
        _arranged(self._base_keys, list(self.texts), ops)
        return self._base_digest, ops


class Written(NamedTuple):
    """One encoded change: what its entry stores, and the state that the next one builds on."""

    frame: bytes | None  # None: nothing changed
    state: State


def rebuild(frames: Sequence[bytes], digest: bytes, where: str, recipe: Recipe | None = None) -> State:
    """The state that these frames add up to, or `Corrupt` when it is not the one with that digest.

    With their recipe the next change can be a patch on it; without, it is for looking at.
    """
    digests = list(accumulate(frames, chained, initial=b""))
    if digests[-1] != digest:  # before anything is decompressed
        raise Corrupt(where, "its frames do not match their digest")
    state = State()
    base = 0 if recipe is None else recipe.base
    try:
        for n, frame in enumerate(frames):
            ops = state.take(frame, first=n == 0)
            if n == base - 1:
                state.stand(digests[base])
            elif n >= base > 0:
                state.note(ops)
    except Corrupt as exc:
        raise Corrupt(where, f"a frame {exc.reason}") from exc
    state.digest = digest
    state.recipe = recipe or NOTHING
    state.weight = size_of(state.texts)
    return state


def write(before: State | None, value: dict[str, Any], seq: int, path: str, limit: int = MAX_STATE) -> Written:
    """Encode a whole state as what changed since `before`, which stays as it is."""
    texts, weight, tagged = encode_keys(value, path, min(limit, MAX_WHOLE))
    after = State(texts, tagged, weight, seq)
    if before is None or not before.recipe.ranges:
        return _finished(after, None, [])
    return _finished(after, before, _compared(before.texts, texts))


def append(before: State | None, items: dict[str, Any], seq: int, limit: int = MAX_STATE) -> Written:
    """Add to lists of the state, at the cost of the addition.

    `before` becomes the new state: drop it when the entry does not land. It is as it was when this raises.
    """
    state = before or State()
    additions: list[tuple[str, bytes]] = []
    tagged = state.tagged
    limit = min(limit, MAX_WHOLE)
    weight = size_of(state.texts)
    for name, more in items.items():
        key = checked_key(name, "append")
        path = place("append", [key])
        if not isinstance(more, (list, tuple)):
            raise InvalidInput(path, f"must be a list of items to add, not {type(more).__name__}")
        if not state.texts.get(key, b"[]").startswith(b"["):
            raise InvalidInput(path, "the checkpoint holds no list there")
        text, special = encode(cast("Any", more), path, limit, depth=1)
        weight += len(text) + (0 if key in state.texts else len(key.encode()) + 4)
        if weight > limit:
            raise TooLarge("append", limit=limit, size=weight)
        tagged = tagged or special
        if len(text) > len("[]") or key not in state.texts:
            additions.append((key, text))
    # From here on nothing fails.
    ops: list[Op] = []
    for key, text in additions:
        old = state.texts.get(key, b"[]")
        if len(old) == len("[]"):
            ops.append(Splice(key, 0, 0, text))
            state.texts[key] = text
            continue
        middle = b"," + text[1:-1]
        ops.append(Splice(key, len(old) - 1, 1, middle))
        grown = old if isinstance(old, bytearray) else bytearray(old)
        grown[-1:-1] = middle
        state.texts[key] = grown
    after = State(state.texts, tagged, weight, seq)
    return _finished(after, state if state.recipe.ranges else None, ops)


def _finished(after: State, before: State | None, ops: list[Op]) -> Written:
    """The frame for a state whose texts are known: a patch where that pays, or a keyframe."""
    seq = after.tip
    if before is not None:
        if not ops:
            after.follow(before, ops)
            after.recipe, after.digest, after.tip = before.recipe, before.digest, before.tip
            return Written(None, after)
        digest, long = before.digest, before.recipe.short == MAX_SHORT
        if long:
            after.follow(before, ops)
            digest, ops = after.long()
        body = _pack(ops)
        if len(body) < WORTH_PATCHING * after.weight:
            frame = pack(body, patch=True, tagged=after.tagged)
            recipe = (_lengthened if long else _extended)(before.recipe, before.tip, seq, len(frame))
            if recipe is not None:
                after.recipe, after.digest = recipe, chained(digest, frame)
                if long:
                    after.stand(after.digest)
                else:
                    after.follow(before, ops)
                return Written(frame, after)
    frame = pack(_pack(after.texts), patch=False, tagged=after.tagged)
    after.recipe, after.digest = Recipe(((seq, seq),), 1, 0, len(frame), 0, 0), chained(b"", frame)
    after.stand(after.digest)
    return Written(frame, after)


def _extended(recipe: Recipe, tip: int, seq: int, weight: int) -> Recipe | None:
    """The recipe with one more short patch, or None when it is time for a keyframe.

    A range reaches over entries of other kinds, but never over a frame that does not belong to it: going on from the
    newest frame prolongs the range, going on from a rollback opens a new one.
    """
    if recipe.long_bytes + recipe.short_bytes + weight >= MAX_PATCHES * recipe.keyframe_bytes:
        return None
    ranges = recipe.ranges
    if recipe.short and ranges[-1][1] == tip:
        ranges = (*ranges[:-1], (ranges[-1][0], seq))
    elif len(ranges) < MAX_RANGES:
        ranges = (*ranges, (seq, seq))
    else:
        return None
    return replace(recipe, ranges=ranges, short=recipe.short + 1, short_bytes=recipe.short_bytes + weight)


def _lengthened(recipe: Recipe, _tip: int, seq: int, weight: int) -> Recipe | None:
    """The recipe with a long patch in place of the short ones, or None when it is time for a keyframe."""
    weight += recipe.long_bytes
    if recipe.base == MAX_BASE or weight >= MAX_PATCHES * recipe.keyframe_bytes:
        return None
    ranges = (*recipe.ranges[: recipe.base], (seq, seq))
    return Recipe(ranges, recipe.base + 1, 0, recipe.keyframe_bytes, weight)


def _compared(old: Texts, new: Texts) -> list[Op]:
    ops: list[Op] = []
    for key, text in new.items():
        before = old.get(key)
        if before is None:
            ops.append(Splice(key, 0, 0, bytes(text)))
        elif before != text:
            _compare_texts(key, before, text, ops)
    if list(old) != list(new):
        _arranged(list(old), list(new), ops)
    return ops


def _arranged(old: list[str], new: list[str], ops: list[Op]) -> None:
    """Which keys went, and the order of the others where it is not as expected."""
    left, known = set(new), set(old)
    ops.extend(Remove(key) for key in old if key not in left)
    if [key for key in old if key in left] + [key for key in new if key not in known] != new:
        ops.append(Order(new))


def _compare_texts(key: str, old: Text, new: Text, ops: list[Op]) -> None:
    if (
        len(new) < WORTH_SPLITTING
        and old[:WORTH_KEEPING] != new[:WORTH_KEEPING]
        and old[-WORTH_KEEPING:] != new[-WORTH_KEEPING:]
    ):
        ops.append(Splice(key, 0, 0, bytes(new)))
        return
    front, back = common_ends(old, new)
    if min(len(old), len(new)) - front - back > WORTH_SPLITTING:
        parts = _parts(old, front, len(old) - back, new, front, len(new) - back)
        # Last one first: what stands in front of it is still as it was.
        ops.extend(Splice(key, at, len(new) - end, bytes(new[start:end])) for at, start, end in reversed(parts))
    else:
        ops.append(Splice(key, front, back, bytes(new[front : len(new) - back])))


def _parts(old: Text, at: int, old_end: int, new: Text, start: int, new_end: int) -> list[tuple[int, int, int]]:
    """What differs within these bounds, without the equal parts between: (place in old, start in new, end in new)."""
    parts: list[tuple[int, int, int]] = []
    while len(parts) < MAX_SPLICES - 1 and min(old_end - at, new_end - start) > WORTH_SPLITTING:
        found = _anchored(old, at, old_end, new, start, new_end)
        if found is None:
            break
        here, there = found
        same = common_back(old, here, new, there, min(here - at, there - start))
        parts.append((at, start, there - same))
        same = common_front(old, here, new, there, min(old_end - here, new_end - there))
        at, start = here + same, there + same
    parts.append((at, start, new_end))
    return parts


def _anchored(old: Text, at: int, old_end: int, new: Text, start: int, new_end: int) -> tuple[int, int] | None:
    """Where the two texts agree again: a place in old and one in new. Looks further and further away, then gives up."""
    step = 0
    while start + step + ANCHOR <= new_end:
        there = start + step
        here = old.find(new[there : there + ANCHOR], at, old_end)
        if here >= 0:
            return here, there
        step = max(ANCHOR, 2 * step)
    return None


def common_ends(old: Text, new: Text) -> tuple[int, int]:
    """How many bytes two texts share in front and, of the rest, behind."""
    limit = min(len(old), len(new))
    front = common_front(old, 0, new, 0, limit)
    return front, common_back(old, len(old), new, len(new), limit - front)


# So many bytes are compared as one integer each; longer texts are bisected down to it, at memcmp speed.
_AT_ONCE = 256


def common_front(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """How many bytes from these places on are the same, up to a limit."""
    low, high = 0, limit
    if limit > _AT_ONCE:
        with memoryview(old) as view:
            if new.startswith(view[at : at + limit], there):
                return limit
            while high - low > _AT_ONCE:
                middle = (low + high) // 2
                if new.startswith(view[at + low : at + middle], there + low):
                    low = middle
                else:
                    high = middle
    a, b = old[at + low : at + high], new[there + low : there + high]
    return high - ((int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length() + 7) // 8


def common_back(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """How many bytes before these places are the same, up to a limit."""
    low, high = 0, limit
    if limit > _AT_ONCE:
        with memoryview(old) as view:
            while high - low > _AT_ONCE:
                middle = (low + high) // 2
                if new.endswith(view[at - middle : at - low], 0, there - low):
                    low = middle
                else:
                    high = middle
    a, b = old[at - high : at - low], new[there - high : there - low]
    return high - ((int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).bit_length() + 7) // 8


def _texts(body: Text) -> Texts:
    """The texts of a keyframe. The longest takes the body over, moved to its start: a copy would need new memory."""
    views = _unpack_texts(body)
    longest, size, end = "", 0, 0
    at = _head(len(views), 15, 0)
    for key, view in views.items():
        name, text = len(key.encode()), len(view)
        at += _head(name, 31, 255) + name + _head(text, -1, 255) + text
        if text > size:
            longest, size, end = key, text, at
    # Whoever writes a length in more bytes than it needs gets copies: then these are not the places.
    if not isinstance(body, bytearray) or at != len(body):
        return {key: bytearray(view) for key, view in views.items()}
    texts: Texts = {key: body if key == longest else bytearray(view) for key, view in views.items()}
    views.clear()
    view = None
    with memoryview(body) as whole:
        whole[:size] = whole[end - size : end]
    del body[size:]
    return texts


def _head(size: int, fixed: int, short: int) -> int:
    """Bytes that MessagePack puts in front of something of that size."""
    return 1 if size <= fixed else 2 if size <= short else 3 if size <= 0xFFFF else 5  # noqa: PLR2004


def _patch(texts: Texts, body: Text) -> list[Op]:
    ops = _unpack_ops(body)
    for op in ops:
        if isinstance(op, Splice):
            if op.front == op.back == 0:
                texts[op.key] = op.middle
                continue
            old = texts[op.key]
            end = len(old) - op.back
            if op.front > end:
                raise IndexError
            grown = old if isinstance(old, bytearray) else bytearray(old)
            grown[op.front : end] = op.middle
            texts[op.key] = grown
        elif isinstance(op, Remove):
            del texts[op.key]
        else:
            items = {key: texts[key] for key in op.keys}
            if len(items) != len(texts):
                raise IndexError
            texts.clear()
            texts.update(items)
    return ops
