"""A state as the JSON text of each of its keys, and the frames that store it.

The next state is encoded the same way. A key whose text is equal costs nothing; a changed one is stored as a *patch*
(`patch.py`). The *recipe* of an entry names the frames that rebuild its state (`values/recipe.py`), so a rollback is a
new entry with an old recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from saveslot.codec import format_1, weight
from saveslot.codec.blocks import APART, BLOCK, MAX_TABLE, SMALL, Blocks, Head, Spot, opened, packed, patch_body
from saveslot.codec.chunks import Chunks
from saveslot.codec.common import key_changes
from saveslot.codec.frame import PATCH, VERSION, chained, pack, unpack
from saveslot.codec.marks import EVERY, after as marks_after, mark
from saveslot.codec.patch import UNCHANGED, Change, Changes, Diff, Text, Texts, apply, checked
from saveslot.codec.pieces import MAX_PIECES, Tables, change_of, composed
from saveslot.codec.text import decode, size_of
from saveslot.errors import Corrupt
from saveslot.values.recipe import NOTHING, Recipe


class Stand(msgspec.Struct, frozen=True):
    """The base that the next long patch stands on, and what is known of its texts."""

    seq: int = 0
    digest: bytes = b""
    raw: int = 0  # uncompressed bytes of the chain up to it
    lengths: dict[str, int] = {}  # of its texts, in their order
    marks: dict[str, list[int]] = {}
    changed: dict[str, int] = {}  # seq of the base that last changed the key
    listed: int = 0  # uncompressed bytes of the chain up to the last base that has a table, or is a keyframe


class State(msgspec.Struct, eq=False):
    """A state as texts, and how to rebuild it. It owns its texts: `change` changes them in place."""

    texts: Texts = {}
    tagged: bool = False
    weight: int = 0  # bytes of the texts as one JSON object
    tip: int = 0  # the newest entry that may hold a frame; a range may only be extended from there
    recipe: Recipe = NOTHING
    digest: bytes = b""
    stand: Stand = Stand()
    tables: Tables = {}  # what changed since then
    chunks: Mapping[str, Chunks] = {}  # of the long lists that were encoded whole

    @property
    def memory(self) -> int:
        return self.weight + sum([known.weight for known in self.chunks.values()]) if self.chunks else self.weight

    def value(self) -> dict[str, Any]:
        weight.check_all(self.texts.values(), "the agent's data")
        return {key: decode(text, tagged=self.tagged) for key, text in self.texts.items()}

    def copy(self) -> State:
        """Return a state that can be changed without changing this one; for reading only."""
        return State({key: bytes(text) for key, text in self.texts.items()}, self.tagged, digest=self.digest)

    def apply(self, frame: bytes, digest: bytes | None = None) -> None:
        """Apply the next frame: a keyframe starts over, a patch continues. After `Corrupt` the state is empty.

        `digest`: the one after it, if it is known.
        """
        before, self.digest = self.digest, b""
        self.take(frame, first=not before)
        self.digest = next_digest(before, frame) if digest is None else digest

    def take(self, frame: bytes, *, first: bool) -> tuple[Head, int]:
        """Apply a frame to the texts; return what it says, and its uncompressed bytes. The caller checks the digest."""
        texts, self.texts = self.texts, {}
        parsed = unpack(frame)
        if parsed.patch and first:
            raise Corrupt("a frame", "is a patch without a frame before it")
        if parsed.version == VERSION:
            format_1.apply(texts, parsed)
            head, raw = Head([]), 0
            self.tagged = parsed.tagged or (parsed.patch and self.tagged)
        else:
            if not parsed.patch:
                texts = {}
            head = opened(parsed)
            checked(head, texts)
            blocks = Blocks.of(head, frame, parsed.end) if parsed.long else None
            raw = len(parsed.body) + (head.literal if parsed.long else 0)
            try:
                apply(texts, head, _no_block if blocks is None else blocks.next)
            except (KeyError, IndexError) as exc:
                raise Corrupt("a frame", "does not fit the state before it") from exc
            self.tagged = parsed.tagged
        self.texts = texts
        return head, raw


def next_digest(before: bytes, frame: bytes) -> bytes:
    """Return the digest after a frame; a keyframe's does not depend on those before."""
    return chained(before if frame[1:2] and frame[1] & PATCH else b"", frame)


def _no_block(length: int) -> Text:
    raise Corrupt("a frame", f"names {length:,} bytes of blocks, and has none")


class Written(msgspec.Struct, frozen=True):
    """One encoded change: the frame that its entry stores, and the state that the next change builds on."""

    frame: bytes | None  # None: nothing changed
    state: State
    base: int = 0  # seq of the base that the frame stands on; 0 for a keyframe
    changes: Changes = UNCHANGED


def rebuild(
    frames: Sequence[bytes], digest: bytes, where: str, recipe: Recipe | None = None, seqs: Sequence[int] = ()
) -> State:
    """Return the state that these frames add up to, or raise `Corrupt` if they do not have that digest.

    With their recipe and seqs, the next change can be a patch on it; without, the state is read-only.
    """
    digests: list[bytes] = []
    for frame in frames:
        digests.append(chained(digests[-1] if digests else b"", frame))
    if (digests[-1] if digests else b"") != digest:  # before anything is decompressed
        raise Corrupt(where, "its frames do not match their digest")
    state = State()
    try:
        if recipe is None or not recipe.base:
            for n, frame in enumerate(frames):
                state.take(frame, first=n == 0)
        else:
            _replay(state, frames, digests, recipe, seqs)
    except Corrupt as exc:
        raise Corrupt(where, f"a frame {exc.reason}") from exc
    state.digest = digest
    state.recipe = recipe or NOTHING
    state.weight = size_of(state.texts)
    if recipe is not None and recipe.base and state.weight != recipe.weight:
        raise Corrupt(where, f"holds {state.weight:,} bytes where its recipe names {recipe.weight:,}")
    return state


def _replay(
    state: State, frames: Sequence[bytes], digests: Sequence[bytes], recipe: Recipe, seqs: Sequence[int]
) -> None:
    """Apply the frames, and learn where the next patch stands."""
    bases, total, short = len(frames) - recipe.short, 0, 0
    for n, (seq, frame) in enumerate(zip(seqs, frames, strict=True)):
        lengths = {key: len(text) for key, text in state.texts.items()} if n < bases else {}
        head, raw = state.take(frame, first=n == 0)
        if n >= bases:
            short += raw
        else:
            total += raw
        if n < bases and (n == 0 or raw > SMALL):
            state.stand, state.tables = _stood(state, seq, digests[n], total, lengths, head), {}
        else:
            state.tables = composed(state.tables, state.stand.lengths, head.changes, state.texts)
    if (total, short) != (recipe.base_raw, recipe.short_raw):
        raise Corrupt("a recipe", "stands in a recipe that does not name its size")


def _stood(state: State, seq: int, digest: bytes, raw: int, lengths: Mapping[str, int], head: Head) -> Stand:
    """Return the stand after a base was read. `lengths`: of the texts before."""
    marks, changed = dict(state.stand.marks), dict(state.stand.changed)
    for change in head.changes:
        changed[change.key] = seq
        marks[change.key] = marks_after(marks.get(change.key, ()), lengths.get(change.key, 0), change)
    listed = raw if head.table or not state.stand.seq else state.stand.listed
    return _standing(state, seq, digest, raw, marks, changed, listed)


def _standing(
    state: State,
    seq: int,
    digest: bytes,
    raw: int,
    marks: Mapping[str, list[int]],
    changed: Mapping[str, int],
    listed: int,
) -> Stand:
    texts = state.texts
    return Stand(
        seq,
        digest,
        raw,
        {key: len(text) for key, text in texts.items()},
        {key: starts for key, starts in marks.items() if starts and key in texts},
        {key: changed[key] for key in texts},
        listed,
    )


def finished(after: State, before: State | None, diff: Diff) -> Written:
    """Encode a state whose texts are known, as the change since `before`: a short patch, a long one, or a keyframe."""
    if before is None:
        return _keyframe(after, diff.seen)
    if not (diff.changes or diff.removed or diff.order):
        after.recipe, after.digest, after.tip = before.recipe, before.digest, before.tip
        after.stand, after.tables = before.stand, before.tables
        return Written(None, after)
    if not before.recipe.base:  # of format 1
        return _keyframe(after, diff.seen)
    body = patch_body(diff.changes, diff.removed, diff.order)
    recipe = before.recipe.with_short(before.tip, after.tip, len(body), after.weight) if len(body) <= BLOCK else None
    if recipe is NOTHING:
        return _keyframe(after, diff.seen)
    after.stand = before.stand
    after.tables = composed(before.tables, before.stand.lengths, diff.changes, after.texts)
    if recipe is None or (len(after.tables) > 1 and sum(map(len, after.tables.values())) > MAX_PIECES):
        return _long(after, diff.seen) or _keyframe(after, diff.seen)
    after.recipe = recipe
    frame = pack(body, patch=True, tagged=after.tagged)
    after.digest = chained(before.digest, frame)
    return Written(frame, after, recipe.base, diff.seen)


def _long(after: State, seen: Changes) -> Written | None:
    """Return a patch with everything that changed since the stand, or None when it is time for a keyframe."""
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
    frame, raw = packed(changes, keys, after.texts, table, patch=True, tagged=after.tagged)
    after.recipe = Recipe(seq, (), 0, stand.raw + raw, 0, after.weight)
    if after.recipe.wasteful:
        return None
    after.digest = chained(stand.digest, frame)
    if raw > SMALL:
        reached = stand.raw + raw if listed else stand.listed
        after.stand = _standing(after, seq, after.digest, stand.raw + raw, marks, changed, reached)
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
    frame, raw = packed(changes, ([], []), after.texts, list, patch=False, tagged=after.tagged)
    after.recipe, after.digest = Recipe(seq, (), 0, raw, 0, after.weight), chained(b"", frame)
    after.stand = _standing(after, seq, after.digest, raw, marks, dict.fromkeys(after.texts, seq), raw)
    after.tables = {}
    return Written(frame, after, 0, seen)
