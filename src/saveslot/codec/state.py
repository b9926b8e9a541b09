"""A state and what changed in it.

A state is kept as the JSON text of each top-level key. The next state is encoded the same way; a key whose text is equal
costs nothing, a changed one is a *splice*: how many bytes stay in front, how many behind, and the new middle. Where two
places of one large object changed, the splice would hold everything between them, so it is split along the object's keys.

    {"messages": [A, B], "n": 2}  ->  {"messages": [A, B, C], "n": 3}
    ops:  splice ["messages"] keep 6 front, 1 back, ",C"     splice ["n"] keep 0, 0, "3"

Frames follow one another: a keyframe (the whole state), then patches. The *recipe* of an entry names the frames that
rebuild it, so that going back is a new entry with an old recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from saveslot.codec.frame import chained, pack, read_varint, unpack, varint
from saveslot.codec.text import MAX_STATE, decode, encode
from saveslot.errors import Corrupt, InvalidInput, TooLarge

Text = bytes | bytearray
Texts = dict[str, Text]

# A resume reads at most this many frames. 16 would cost 18 KB a checkpoint at 1,000 turns, 256 about 2 KB (make bench).
MAX_FRAMES = 256
# Each rollback starts a new range.
MAX_RANGES = 16
# A longer middle is worth a look into the object: splitting costs a path for each part.
WORTH_SPLITTING = 256

_children = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key_text = msgspec.json.Encoder().encode


class Splice(msgspec.Struct, array_like=True, tag=0):
    path: list[str]
    front: int
    back: int
    middle: bytes


class Remove(msgspec.Struct, array_like=True, tag=1):
    path: list[str]


class Order(msgspec.Struct, array_like=True, tag=2):
    """The keys of an object in their new order, where it is not: kept ones as before, new ones behind."""

    path: list[str]
    keys: list[str]


Op = Splice | Remove | Order

_pack_ops = msgspec.msgpack.Encoder().encode
_unpack_ops = msgspec.msgpack.Decoder(list[Op]).decode


class Recipe(NamedTuple):
    """Which frames rebuild a state: those of its track within these ranges of seqs, keyframe first."""

    ranges: tuple[tuple[int, int], ...] = ()
    frames: int = 0
    keyframe_bytes: int = 0
    patch_bytes: int = 0

    def pack(self) -> bytes:
        if not self.ranges:
            return b""
        parts = [varint(self.frames), varint(self.keyframe_bytes), varint(self.patch_bytes)]
        at = 0
        for first, last in self.ranges:
            parts += (varint(first - at), varint(last - first))
            at = last
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Recipe:
        if not data:
            return cls()
        numbers = list(_varints(data))
        if len(numbers) < 5 or len(numbers) % 2 == 0:  # noqa: PLR2004
            raise Corrupt("a recipe", "is cut short")
        ranges: list[tuple[int, int]] = []
        at = 0
        for gap, length in zip(numbers[3::2], numbers[4::2], strict=True):
            ranges.append((at + gap, at + gap + length))
            at += gap + length
        return cls(tuple(ranges), *numbers[:3])

    def holds(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self.ranges)


class State:
    """A state as texts, with what rebuilds it. Its texts belong to it alone: `append` changes them in place."""

    __slots__ = ("digest", "recipe", "tagged", "texts", "tip")

    def __init__(self) -> None:
        self.texts: Texts = {}
        self.tagged = False
        self.recipe = Recipe()
        self.digest = b""
        self.tip = 0  # the newest entry that may hold a frame; a range may only be prolonged from there

    @property
    def weight(self) -> int:
        return sum(map(len, self.texts.values())) + 200

    def value(self) -> dict[str, Any]:
        return {key: decode(text, tagged=self.tagged) for key, text in self.texts.items()}

    def document(self) -> bytes:
        """The whole state as one JSON text."""
        return _joined(self.texts)

    def apply(self, frame: bytes) -> None:
        """Take the next frame of the recipe."""
        found = unpack(frame)
        try:
            if found.patch:
                for op in _unpack_ops(found.body):
                    _apply(self.texts, op, op.path)
                self.tagged = self.tagged or found.tagged
            else:
                self.texts = {key: bytes(raw) for key, raw in _children(found.body).items()}
                self.tagged = found.tagged
        except (msgspec.DecodeError, KeyError, IndexError) as exc:
            raise Corrupt("a frame", "does not fit the state before it") from exc
        self.digest = chained(self.digest if found.patch else b"", frame)


class Written(NamedTuple):
    """One encoded change: what its entry stores, and the state that the next one builds on."""

    frame: bytes | None  # None: nothing changed
    state: State


def rebuild(frames: Sequence[bytes], digest: bytes, where: str) -> State:
    """The state that these frames add up to, or `Corrupt` when it is not the one with that digest."""
    state = State()
    for frame in frames:
        state.apply(frame)
    if state.digest != digest:
        raise Corrupt(where, "its frames do not match their digest")
    return state


def write(before: State | None, value: dict[str, Any], seq: int, path: str, limit: int = MAX_STATE) -> Written:
    """Encode a whole state as what changed since `before`."""
    texts: Texts = {}
    tagged = False
    size = 2
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidInput(path, f"has the key {key!r} of type {type(key).__name__}; keys must be text")
        text, special = encode(item, f"{path}.{key}", limit)
        texts[key] = text
        tagged = tagged or special
        size += len(key) + len(text) + 4
    if size > limit:
        raise TooLarge(path, limit=limit, size=size)
    _check_keys(texts, path)
    if before is None or not before.recipe.ranges:
        return _finished(None, texts, tagged, None, seq)
    ops = _compared(before.texts, texts)
    return _finished(before, texts, tagged or before.tagged, ops, seq)


def append(before: State | None, items: dict[str, Any], seq: int, limit: int = MAX_STATE) -> Written:
    """Add to lists at the top level, at the cost of the addition; `before` becomes the new state."""
    state = before or State()
    # Everything is encoded and checked before anything is changed.
    additions: list[tuple[str, bytes, bool]] = []
    for key, more in items.items():
        path = f"append.{key}"
        if not isinstance(more, list | tuple):
            raise InvalidInput(path, f"must be a list of items to add, not {type(more).__name__}")
        old = state.texts.get(key, b"[]")
        if old[:1] != b"[":
            raise InvalidInput(path, "the checkpoint holds no list there")
        text, special = encode(more, path, limit)
        if len(old) + len(text) > limit:
            raise TooLarge(path, limit=limit, size=len(old) + len(text))
        if text != b"[]":
            additions.append((key, text, special))
        elif key not in state.texts:
            additions.append((key, b"[]", False))
    _check_keys(dict.fromkeys(items, b""), "append")
    ops: list[Op] = []
    tagged = state.tagged
    for key, text, special in additions:
        tagged = tagged or special
        old = state.texts.get(key)
        if old is None or old == b"[]":
            ops.append(Splice([key], 0, 0, text))
            state.texts[key] = text
            continue
        middle = b"," + text[1:-1]
        ops.append(Splice([key], len(old) - 1, 1, middle))
        grown = old if isinstance(old, bytearray) else bytearray(old)
        grown[-1:-1] = middle
        state.texts[key] = grown
    return _finished(state if state.recipe.ranges else None, state.texts, tagged, ops, seq)


def _finished(before: State | None, texts: Texts, tagged: bool, ops: list[Op] | None, seq: int) -> Written:  # noqa: FBT001
    after = State()
    after.texts, after.tagged, after.tip = texts, tagged, seq
    if before is not None and ops is not None:
        if not ops:
            after.recipe, after.digest, after.tip = before.recipe, before.digest, before.tip
            return Written(None, after)
        changed = sum(len(op.middle) for op in ops if isinstance(op, Splice))
        if changed < 0.7 * sum(map(len, texts.values())):  # above, a patch saves nothing and a keyframe reads faster
            frame = pack(_pack_ops(ops), patch=True, tagged=tagged)
            recipe = _extended(before.recipe, before.tip, seq, len(frame))
            if recipe is not None:
                after.recipe, after.digest = recipe, chained(before.digest, frame)
                return Written(frame, after)
    frame = pack(_joined(texts), patch=False, tagged=tagged)
    after.recipe, after.digest = Recipe(((seq, seq),), 1, len(frame), 0), chained(b"", frame)
    return Written(frame, after)


def _extended(recipe: Recipe, tip: int, seq: int, weight: int) -> Recipe | None:
    """The recipe with one more frame, or None when it is time for a keyframe.

    A range reaches over entries of other kinds, but never over a frame that does not belong to it: going on from the
    newest frame prolongs the range, going on from a rollback opens a new one.
    """
    patches = recipe.patch_bytes + weight
    if recipe.frames >= MAX_FRAMES or patches >= recipe.keyframe_bytes:
        return None
    first, last = recipe.ranges[-1]
    ranges = (*recipe.ranges[:-1], (first, seq)) if last == tip else (*recipe.ranges, (seq, seq))
    if len(ranges) > MAX_RANGES:
        return None
    return Recipe(ranges, recipe.frames + 1, recipe.keyframe_bytes, patches)


def _compared(old: Texts, new: Texts) -> list[Op]:
    ops: list[Op] = []
    _compare_objects([], old, new, ops)
    return ops


def _compare_objects(path: list[str], old: Texts, new: Texts, ops: list[Op]) -> None:
    ops.extend(Remove([*path, key]) for key in old if key not in new)
    for key, text in new.items():
        before = old.get(key)
        if before is None:
            ops.append(Splice([*path, key], 0, 0, bytes(text)))
        elif before != text:
            _compare_texts([*path, key], before, text, ops)
    kept = [key for key in old if key in new]
    kept += [key for key in new if key not in old]
    if kept != list(new):
        ops.append(Order(path, list(new)))


def _compare_texts(path: list[str], old: Text, new: Text, ops: list[Op]) -> None:
    front, back = common_ends(old, new)
    middle = bytes(new[front : len(new) - back])
    if len(middle) > WORTH_SPLITTING and old[:1] == b"{" == new[:1]:
        parts: list[Op] = []
        _compare_objects(path, _split(old), _split(new), parts)
        if sum(len(op.middle) + 32 for op in parts if isinstance(op, Splice)) < len(middle):
            ops += parts
            return
    ops.append(Splice(path, front, back, middle))


def common_ends(old: Text, new: Text) -> tuple[int, int]:
    """How many bytes two texts share in front and, of the rest, behind: bisected over slices, at memcmp speed."""
    limit = min(len(old), len(new))
    a, b = memoryview(old), memoryview(new)
    front = _bisected(limit, lambda low, high: new.startswith(a[low:high], low))
    ends, rest = len(old), limit - front
    back = _bisected(rest, lambda low, high: old.endswith(b[len(new) - high : len(new) - low], 0, ends - low))
    a.release()
    b.release()
    return front, back


def _bisected(limit: int, same: Any) -> int:
    if same(0, limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle
    return low


def _apply(texts: Texts, op: Op, path: list[str]) -> None:
    if isinstance(op, Order) and not path:
        items = [(key, texts[key]) for key in op.keys]
        texts.clear()
        texts.update(items)
        return
    key = path[0]
    if len(path) > 1 or isinstance(op, Order):
        inner = _split(texts[key])
        _apply(inner, op, path[1:])
        texts[key] = _joined(inner)
    elif isinstance(op, Remove):
        del texts[key]
    elif op.front == op.back == 0:
        texts[key] = op.middle
    else:
        old = texts[key]
        if op.front + op.back > len(old):
            raise IndexError
        grown = old if isinstance(old, bytearray) else bytearray(old)
        grown[op.front : len(grown) - op.back] = op.middle
        texts[key] = grown


def _split(text: Text) -> Texts:
    return cast("Texts", {key: bytes(raw) for key, raw in _children(text).items()})


def _joined(texts: Texts) -> bytes:
    return b"{" + b",".join([_key_text(key) + b":" + text for key, text in texts.items()]) + b"}"


def _check_keys(texts: Texts, path: str) -> None:
    try:
        for key in texts:
            key.encode()
    except UnicodeEncodeError:
        raise InvalidInput(path, f"has the key {key!a}, which holds half of a surrogate pair") from None  # pyright: ignore[reportPossiblyUnboundVariable]


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = read_varint(data, at)
        yield number
