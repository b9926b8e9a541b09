"""From the next state to what is stored of it: a short patch, a long one, or a keyframe.

A key whose text is equal costs nothing; a changed one is stored as a *patch* (`patch.py`). The *recipe* of an entry
names the frames that rebuild its state (`values/recipe.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, cast

import msgspec

from saveslot.codec.blocks import APART, BLOCK, MAX_TABLE, SMALL, Spot
from saveslot.codec.chunks import LONG, NOTHING as NO_CHUNKS, Chunks, encode_long
from saveslot.codec.common import NEW, compared, key_changes
from saveslot.codec.frame import CHECKSUM, compressed, packed_after
from saveslot.codec.marks import EVERY, mark
from saveslot.codec.patch import MAX_WHOLE, UNCHANGED, Change, Changes, Copy, Diff, Texts, size_of_part
from saveslot.codec.pieces import FEW_COPIES, MAX_PIECES, change_of
from saveslot.codec.state import State, standing
from saveslot.codec.text import MAX_STATE, check_keys, encode_keys
from saveslot.values.recipe import NOTHING, Recipe

_encode = msgspec.msgpack.Encoder().encode


class Written(msgspec.Struct, frozen=True):
    """One encoded change: the frame that its entry stores, and the state that the next change builds on."""

    frame: bytes | None  # None: nothing changed
    state: State
    base: int = 0  # seq of the base that the frame stands on; 0 for a keyframe
    changes: Changes = UNCHANGED


def write(before: State | None, value: dict[str, Any], seq: int, path: str, limit: int = MAX_STATE) -> Written:
    """Encode a whole state as the change since `before`, which is left as it is."""
    before = before or State()
    texts, weight, tagged, chunks = encoded(value, path, min(limit, MAX_WHOLE), before)
    after = State(texts, tagged, weight, seq, chunks=chunks)
    if not before.digest:  # nothing is stored yet
        return finished(after, None, Diff([], [], [], dict.fromkeys(texts, NEW)))
    return finished(after, before, compared(before.texts, texts))


def encoded(
    value: dict[str, Any], path: str, limit: int, before: State
) -> tuple[Texts, int, bool, Mapping[str, Chunks]]:
    """Return the text of each key, their size as one object, whether they may hold tagged values, and the chunks of
    long lists.
    """
    if type(value) is dict:
        check_keys(path, len(value), len(before.texts))
        lists = [
            key for key, item in value.items() if type(item) is list and LONG <= len(cast("list[Any]", item)) <= limit
        ]
        if lists:
            return encode_long(value, lists, path, limit, before.texts, before.chunks)
    return *encode_keys(value, path, limit), NO_CHUNKS


def finished(after: State, before: State | None, diff: Diff) -> Written:
    """Encode a state whose texts are known, as the change since `before`: a short patch, a long one, or a keyframe."""
    if before is None:
        return _keyframe(after, diff.seen)
    if not (diff.changes or diff.removed or diff.order):
        after.recipe, after.digest, after.tip = before.recipe, before.digest, before.tip
        after.stand, after.tables, after.pending = before.stand, before.tables, before.pending
        return Written(None, after)
    if not before.recipe.base:  # of format 1
        return _keyframe(after, diff.seen)
    body = _body(diff.changes, diff.removed, diff.order)
    recipe = before.recipe.with_short(before.tip, after.tip, len(body), after.weight) if len(body) <= BLOCK else None
    if recipe is NOTHING:
        return _keyframe(after, diff.seen)
    after.stand, after.tables, after.pending = before.stand, before.tables, before.pending
    after.patched(diff.changes, large=len(body) > SMALL or diff.copies > FEW_COPIES)
    if recipe is None or (len(after.tables) > 1 and sum(map(len, after.tables.values())) > MAX_PIECES):
        return _long(after, diff.seen) or _keyframe(after, diff.seen)
    after.recipe = recipe
    frame, after.digest = packed_after(before.digest, body, tagged=after.tagged)
    return Written(frame, after, recipe.base, diff.seen)


def _long(after: State, seen: Changes) -> Written | None:
    """Return a patch with everything that changed since the stand, or None when it is time for a keyframe."""
    after.compose()
    stand, seq = after.stand, after.tip
    changes = [
        change
        for key, table in after.tables.items()
        if key in after.texts and (change := change_of(key, table, stand.lengths.get(key, 0))) is not None
    ]
    at = {key: place for place, key in enumerate(after.texts)}
    changes.sort(key=lambda change: at[change.key])
    marks, changed = dict(stand.marks), dict(stand.changed)
    for change in changes:
        changed[change.key] = seq
        marks[change.key] = mark(
            marks.get(change.key, ()), stand.lengths.get(change.key, 0), change, after.texts[change.key]
        )

    listed = len(after.texts) <= MAX_TABLE or stand.raw - stand.listed >= APART * _table_bytes(after.texts)

    def table() -> list[Spot]:
        if not listed:
            return []
        return [Spot(key, seq - changed[key], len(text)) for key, text in after.texts.items()]

    keys = key_changes(list(stand.lengths), list(after.texts))
    frame, digest, raw = _packed(stand.digest, changes, keys, after.texts, table, tagged=after.tagged)
    after.recipe = Recipe(seq, (), 0, stand.raw + raw, 0, after.weight)
    if after.recipe.wasteful:
        return None
    after.digest = digest
    if raw > SMALL:
        reached = stand.raw + raw if listed else stand.listed
        after.stand = standing(after, seq, after.digest, stand.raw + raw, marks, changed, reached)
        after.tables = {}
    return Written(frame, after, stand.seq, seen)


def _table_bytes(texts: Texts) -> int:
    """Return about how many bytes a table takes, uncompressed."""
    return sum(map(len, texts)) + 8 * len(texts)


def _keyframe(after: State, seen: Changes) -> Written:
    seq = after.tip
    changes = [Change(key, 0, 0, [len(text)]) for key, text in after.texts.items()]
    long = [change for change in changes if len(after.texts[change.key]) > EVERY]
    marks = {change.key: mark((), 0, change, after.texts[change.key]) for change in long}
    frame, after.digest, raw = _packed(b"", changes, ([], []), after.texts, list, tagged=after.tagged)
    after.recipe = Recipe(seq, (), 0, raw, 0, after.weight)
    after.stand = standing(after, seq, after.digest, raw, marks, dict.fromkeys(after.texts, seq), raw)
    after.tables, after.pending = {}, []
    return Written(frame, after, 0, seen)


def _packed(
    before: bytes,
    changes: list[Change],
    keys: tuple[list[str], list[str]],
    texts: Texts,
    table: Callable[[], list[Spot]],
    *,
    tagged: bool,
) -> tuple[bytes, bytes, int]:
    """Return a frame after those with the digest `before`, its own digest, and its uncompressed bytes.

    The changes give the literals of the new texts by length.
    """
    removed, order = keys
    literal = sum([part for change in changes for part in change.parts if type(part) is int])
    if literal <= SMALL:
        body = _body([Change(c.key, c.front, c.back, _inline(c, texts[c.key])) for c in changes], removed, order)
        if len(body) <= SMALL or not literal:
            return *packed_after(before, body, tagged=tagged), len(body)
    views: list[Any] = [
        part for c in changes for part in _inline(c, memoryview(texts[c.key])) if not isinstance(part, Copy)
    ]
    whole = memoryview(b"".join(views))
    views.clear()  # or the texts could not grow
    blocks = [compressed(whole[at : at + BLOCK]) for at in range(0, len(whole), BLOCK)]
    digests = b"".join([sha256(block).digest()[:CHECKSUM] for block in blocks])
    said = [
        [c.key, c.front, c.back, c.parts, c.marks] if c.marks else [c.key, c.front, c.back, c.parts] for c in changes
    ]
    head = _encode([said, removed, order, list(map(len, blocks)), digests, table()])
    return *packed_after(before, head, tagged=tagged, blocks=blocks), len(head) + len(whole)


def _inline(change: Change, text: Any) -> list[Any]:
    """Return the parts of a change with its literals, as slices of the new text, in place of their lengths."""
    at = change.front
    parts: list[Any] = []
    for part in change.parts:
        if isinstance(part, int):
            parts.append(text[at : at + part])
            at += part
        else:
            parts.append(part)
            at += size_of_part(part)
    return parts


def _body(changes: list[Change], removed: list[str], order: list[str]) -> bytes:
    """Encode a body without blocks; empty parts at its end are left out."""
    short = [[c.key, c.front, c.back, c.parts] for c in changes]
    return _encode([short, removed, order] if order else [short, removed] if removed else [short])
