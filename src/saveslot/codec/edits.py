"""Changes of single keys of a state, at the cost of these: the others are neither decoded nor encoded again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any, NamedTuple, cast

import msgspec

from saveslot.codec.chunks import NOTHING, Chunks
from saveslot.codec.common import NEW, Search, grown, kept_ends
from saveslot.codec.items import tail
from saveslot.codec.patch import MAX_WHOLE, Change, Diff, Text, Texts
from saveslot.codec.state import State
from saveslot.codec.text import MAX_STATE, check_keys, checked_key, encode, place, size_of
from saveslot.codec.writing import Written, encoded, finished
from saveslot.errors import InvalidInput, TooLarge

EMPTY = b"[]"


class Edits(msgspec.Struct):
    """Changes of single keys: new values, keys to drop, items to add to lists, and how many to take off their ends."""

    put: Mapping[str, Any] = {}
    drop: Collection[str] = ()
    append: Mapping[str, Any] = {}
    cut: Mapping[str, int] = {}


def append(before: State | None, items: dict[str, Any], seq: int, limit: int = MAX_STATE) -> Written:
    """Add items to lists of the state, at the cost of the addition."""
    return change(before, Edits(append=items), seq, limit)


class _Splice(NamedTuple):
    """One change of a text: `front` and `back` bytes stay, `middle` comes between them."""

    key: str
    front: int
    back: int
    middle: Text
    seen: int | None
    whole: Text | None = None  # the new text, if it is known

    def grows(self, texts: Texts) -> int:
        """Return by how many bytes the state grows."""
        old = texts.get(self.key)
        size = self.front + self.back + len(self.middle)
        return size + len(self.key.encode()) + 4 if old is None else size - len(old)

    def change(self, search: Search) -> Change:
        parts = search.parts(self.key, self.middle, 0, len(self.middle), self.front)
        return Change(self.key, self.front, self.back, parts)

    def apply(self, texts: Texts) -> None:
        if self.whole is not None:
            texts[self.key] = self.whole
            return
        old = texts[self.key]
        grown = old if isinstance(old, bytearray) else bytearray(old)
        grown[self.front : len(old) - self.back] = self.middle
        texts[self.key] = grown


def change(before: State | None, edits: Edits, seq: int, limit: int = MAX_STATE) -> Written:
    """Change some keys of the state, at the cost of these. One key may be cut and appended to, no other two.

    `before` becomes the new state: drop it if the entry does not land. If this raises, `before` is unchanged.
    """
    state = before or State()
    limit = min(limit, MAX_WHOLE)
    _check_apart(edits)
    dropped = [_dropped(state, key) for key in edits.drop]
    put, tagged, long = _put(state, edits.put, limit)
    ends, special = _ends_of_lists(state, edits, limit)
    splices = [*put, *ends]
    count = len(state.texts) - len(dropped) + sum([splice.key not in state.texts for splice in splices])
    check_keys("checkpoint", count, len(state.texts))
    weight = (state.weight or size_of(state.texts)) + sum([splice.grows(state.texts) for splice in splices])
    weight -= sum([len(state.texts[key]) + len(key.encode()) + 4 for key in dropped])
    if weight > limit:
        used = [name for name in ("put", "append") if getattr(edits, name)]
        raise TooLarge(used[0] if len(used) == 1 else "checkpoint", limit=limit, size=weight)
    # Nothing below can raise.
    search = Search(state.texts)
    changes = [splice.change(search) for splice in splices]
    seen: dict[str, int | None] = {**dict.fromkeys(dropped), **{splice.key: splice.seen for splice in splices}}
    for splice in splices:
        splice.apply(state.texts)
    for key in dropped:
        del state.texts[key]
    chunks: Mapping[str, Chunks] = NOTHING
    if state.chunks or long:  # of a list that was only appended to, a chunk still ends where it did
        stay = {key: known for key, known in state.chunks.items() if key not in seen or (seen[key] or 0) > 0}
        chunks = {**stay, **long}
    after = State(state.texts, state.tagged or tagged or special, weight, seq, chunks=chunks)
    return finished(after, state if state.digest else None, Diff(changes, dropped, [], seen, search.copies))


def _check_apart(edits: Edits) -> None:
    named = {"put": edits.put, "drop": edits.drop, "append": edits.append, "cut": edits.cut}
    used = {verb: frozenset(keys) for verb, keys in named.items() if keys}
    if len(used) < 2:  # noqa: PLR2004
        return
    for (one, keys), (other, others) in combinations(used.items(), 2):
        if keys & others and (one, other) != ("append", "cut"):
            key = min(keys & others)
            raise InvalidInput(place(other, [key]), f"is also in {one}; change a key once")


def _dropped(state: State, key: Any) -> str:
    name = checked_key(key, "drop")
    if name not in state.texts:
        raise InvalidInput(place("drop", [name]), "is not a key of the state")
    return name


def _put(state: State, values: Mapping[str, Any], limit: int) -> tuple[list[_Splice], bool, Mapping[str, Chunks]]:
    if not values:
        return [], False, NOTHING
    texts, _, tagged, long = encoded(dict(values), "put", limit, state)
    splices: list[_Splice] = []
    for key, text in texts.items():
        old = state.texts.get(key)
        if old is None:
            splices.append(_Splice(key, 0, 0, text, NEW, text))
        elif old != text:
            front, back = kept_ends(old, text)
            middle = text[front : len(text) - back]
            splices.append(_Splice(key, front, back, middle, grown(old, text, front), text))
    return splices, tagged, long


def _ends_of_lists(state: State, edits: Edits, limit: int) -> tuple[list[_Splice], bool]:
    """Return what `cut` and `append` do to the ends of lists, and whether the new items may hold tagged values."""
    splices: list[_Splice] = []
    tagged = False
    items: dict[str, tuple[bytes, int]] = {}
    for name, more in edits.append.items():
        key = checked_key(name, "append")
        path = place("append", [key])
        if not isinstance(more, (list, tuple)):
            raise InvalidInput(path, f"must be a list of items to add, not {type(more).__name__}")
        if not state.texts.get(key, EMPTY).startswith(b"["):
            raise InvalidInput(path, "the checkpoint holds no list there")
        text, special = encode(cast("Any", more), path, limit, depth=1)
        tagged = tagged or special
        items[key] = (text, len(cast("list[Any]", more)))
    for key in {**edits.cut, **items}:
        text, count = items.get(key, (EMPTY, 0))
        off = edits.cut.get(key, 0)
        old = state.texts.get(key)
        if old is None and key not in edits.cut:
            splices.append(_Splice(key, 0, 0, text, NEW, text))
            continue
        front = _kept(state, key, off)
        old = state.texts[key]
        if count or front < len(old) - 1:
            middle = b"," + text[1:-1] if count and front > 1 else text[1:-1]
            splices.append(_Splice(key, front, 1, middle, 0 if off and count else count - off))
    return splices, tagged


def _kept(state: State, key: str, off: Any) -> int:
    """Return how many bytes of a list's text stay when it loses its last items; the bracket at its end is not one."""
    path, text = place("cut", [checked_key(key, "cut")]), state.texts.get(key, b"")
    if type(off) is not int or off < 0:
        raise InvalidInput(path, f"must be a number of items, 0 or more, not {off!r}")
    if not text.startswith(b"["):
        raise InvalidInput(path, "the checkpoint holds no list there")
    start, passed = tail(text, off)
    if passed < off:
        raise InvalidInput(path, f"is {off}, but the list has fewer items ({passed})")
    return start if start == 1 or not off else start - 1  # the comma before the first one goes, too
