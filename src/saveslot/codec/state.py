"""A state as the JSON text of each of its keys, and how it is rebuilt from frames (`writing.py` makes them).

The *recipe* of an entry names the frames that rebuild its state (`values/recipe.py`), so a rollback is a new entry with
an old recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from saveslot.codec import format_1, weight
from saveslot.codec.blocks import SMALL, Blocks, Head, opened
from saveslot.codec.chunks import Chunks
from saveslot.codec.frame import PATCH, VERSION, chained, unpack
from saveslot.codec.marks import after as marks_after
from saveslot.codec.patch import Change, Copy, Text, Texts, apply, checked
from saveslot.codec.pieces import FEW_COPIES, Tables, composed
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
    tables: Tables = {}  # what changed since then,
    pending: list[list[Change]] = []  # and the patches after that; often a keyframe comes before they are needed
    chunks: Mapping[str, Chunks] = {}  # of the long lists that were encoded whole

    @property
    def memory(self) -> int:
        """Bytes that it takes, about."""
        changes = min(self.recipe.short_raw, SMALL * len(self.pending))
        return self.weight + changes + sum([known.weight for known in self.chunks.values()])

    def patched(self, changes: list[Change], *, large: bool) -> None:
        """Note what a patch changed. A large one is composed at once, so that no texts are kept."""
        self.pending = [*self.pending, changes]
        if large:
            self.compose()

    def compose(self) -> None:
        """Bring the tables up to date."""
        for changes in self.pending:
            self.tables = composed(self.tables, self.stand.lengths, changes)
        self.pending = []

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
            state.stand, state.tables, state.pending = _stood(state, seq, digests[n], total, lengths, head), {}, []
        else:
            copies = sum(isinstance(part, Copy) for change in head.changes for part in change.parts)
            state.patched(head.changes, large=raw > SMALL or copies > FEW_COPIES)
    if (total, short) != (recipe.base_raw, recipe.short_raw):
        raise Corrupt("a recipe", "stands in a recipe that does not name its size")


def _stood(state: State, seq: int, digest: bytes, raw: int, lengths: Mapping[str, int], head: Head) -> Stand:
    """Return the stand after a base was read. `lengths`: of the texts before."""
    marks, changed = dict(state.stand.marks), dict(state.stand.changed)
    for change in head.changes:
        changed[change.key] = seq
        marks[change.key] = marks_after(marks.get(change.key, ()), lengths.get(change.key, 0), change)
    listed = raw if head.table or not state.stand.seq else state.stand.listed
    return standing(state, seq, digest, raw, marks, changed, listed)


def standing(
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
