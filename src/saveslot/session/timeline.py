"""A session's entries as checkpoints, decoded on access."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from saveslot import codec
from saveslot.codec.outline import joined
from saveslot.errors import Corrupt
from saveslot.session.model import SessionCheckpoint, emptied, unloaded
from saveslot.stores import Store
from saveslot.values.checks import Data
from saveslot.values.kinds import DATA_KINDS, HIDING_KINDS, Kind
from saveslot.values.log import Entry, Wanted
from saveslot.values.recipe import chain

C = TypeVar("C", bound=SessionCheckpoint)
# Several threads may read checkpoints of one history, and each read moves its timeline.
_LOOKING = Lock()
Range = tuple[int, int]


class Timeline:
    """Frames of one session, as stored. Moving forward applies one frame per step; a jump starts at the last base."""

    weight = 0  # bytes of its frames
    _sorted: Sequence[int] = ()  # their seqs, when last sorted
    _state: codec.State | None = None  # after the applied frames
    _applied: Sequence[int] = ()
    _ground: codec.State | None = None  # after these bases, kept once states of a second base were asked for
    _grounded: Sequence[int] = ()

    def __init__(
        self, session_id: str, frames: Iterable[Entry] = (), since: int = 0, thinned: frozenset[int] = frozenset()
    ) -> None:
        self.session_id = session_id
        self._since = since  # frames of older entries were left out on purpose
        self._thinned = thinned  # hidden seqs, whose frames may be gone
        self._frames: dict[int, bytes] = {}
        self._bases: dict[int, int] = {}
        self._chained: set[int] = set()  # bases whose whole chain is here
        for entry in frames:
            if entry.frame is not None:
                self.add(entry.seq, entry.frame, entry.base)

    def add(self, seq: int, frame: bytes, base: int) -> None:
        self._frames[seq], self._bases[seq] = frame, base
        self.weight += len(frame)

    def after(self, base: int) -> Timeline:
        """Return a timeline with the frames of this chain of bases alone."""
        alone = Timeline(self.session_id)
        for seq in chain(base, self._bases):
            alone.add(seq, self._frames[seq], self._bases[seq])
        return alone

    def checkpoints(self, entries: Iterable[Entry], made_as: type[C]) -> list[C]:
        return made_as.all_stored(self, entries)

    def data(self, entry: Entry) -> Data:
        """Return the agent's data as of an entry, or that of a lifecycle entry."""
        if entry.kind not in DATA_KINDS:
            return note_of(entry, self._name(entry))
        with _LOOKING:
            return self.state(entry).value()

    def text(self, entry: Entry) -> bytes:
        """Return the same as JSON, without decoding it; `null` once thinned."""
        if entry.kind not in DATA_KINDS:
            return codec.encode(self.data(entry), "data", codec.ANY_SIZE)[0]
        if self.is_emptied(entry):
            return b"null"
        with _LOOKING:
            return joined(self.state(entry).texts)

    def metadata(self, entry: Entry) -> Data:
        return note_of(entry, self._name(entry)) if entry.kind in DATA_KINDS else {}

    def is_emptied(self, entry: Entry) -> bool:
        """True if the entry is hidden, and frames of its state are gone."""
        if entry.seq not in self._thinned or entry.kind not in DATA_KINDS:
            return False
        recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
        return not (recipe and self.whole(recipe))

    def _name(self, entry: Entry) -> str:
        return f"{self.session_id}:{entry.seq}"

    def state(self, entry: Entry) -> codec.State:
        """Return the state as of that entry, valid until the next call."""
        name = self._name(entry)
        if self.is_emptied(entry):
            raise emptied(name)
        recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
        if not self.whole(recipe):
            if entry.seq < self._since:
                raise unloaded(name)
            raise Corrupt(f"checkpoint {name}", "not all of its frames are there")
        bases, short = chain(recipe.base, self._bases), self._within(recipe)
        seqs = [*bases, *short]
        state, applied = self._state, self._applied
        self._state = None  # until the next one is whole
        if state is None and self._ground is None:
            self._state = codec.rebuild([self._frames[seq] for seq in seqs], entry.digest, f"checkpoint {name}")
            self._applied = seqs
            return self._state
        if state is not None and seqs and applied == seqs[: len(applied)]:
            digests = self._digests(state.digest, seqs[len(applied) :])
            self._check(digests, state.digest, entry, name)
            self._forward(state, seqs[len(applied) :], digests, name)
        else:
            state = self._from_ground(entry, bases, short, name)
        self._state, self._applied = state, seqs
        return state

    def _from_ground(self, entry: Entry, bases: Sequence[int], short: Sequence[int], name: str) -> codec.State:
        """Return the state after these bases and short patches; keep the one after the bases."""
        ground, self._ground = self._ground, None
        if ground is None or self._grounded != bases[: len(self._grounded)]:
            ground, self._grounded = codec.State(), ()
        todo = bases[len(self._grounded) :]
        digests = self._digests(ground.digest, [*todo, *short])
        self._check(digests, ground.digest, entry, name)
        self._forward(ground, todo, digests, name)
        self._ground, self._grounded = ground, bases
        state = ground.copy()
        self._forward(state, short, digests[len(todo) :], name)
        return state

    def _digests(self, digest: bytes, seqs: Sequence[int]) -> list[bytes]:
        """Return the digest after each of these frames."""
        digests: list[bytes] = []
        for seq in seqs:
            digest = codec.next_digest(digest, self._frames[seq])
            digests.append(digest)
        return digests

    def _check(self, digests: Sequence[bytes], start: bytes, entry: Entry, name: str) -> None:
        """Raise `Corrupt` before anything is decompressed."""
        if (digests[-1] if digests else start) != entry.digest:
            raise Corrupt(f"checkpoint {name}", "its frames do not match their digest")

    def _forward(self, state: codec.State, seqs: Sequence[int], digests: Sequence[bytes], name: str) -> None:
        for seq, digest in zip(seqs, digests, strict=False):
            try:
                state.apply(self._frames[seq], digest)
            except Corrupt as exc:
                raise Corrupt(f"checkpoint {name}", f"its frame {seq} {exc.reason}") from exc

    def whole(self, recipe: codec.Recipe) -> bool:
        """True if all frames of a recipe are here."""
        return self._reaches_a_keyframe(recipe.base) and recipe.short == len(self._within(recipe))

    def holds(self, entries: Iterable[Entry]) -> bool:
        """True if all frames are here that rebuild the states of these entries."""
        return all(self.whole(codec.Recipe.unpack(e.recipe, e.seq)) for e in entries if e.kind in DATA_KINDS)

    def _reaches_a_keyframe(self, base: int) -> bool:
        """True if a chain of bases is here down to its keyframe. Frames are only ever added, so this stays true."""
        chained: list[int] = []
        while base and base not in self._chained:
            chained.append(base)
            before = self._bases.get(base, base)
            if before >= base:  # missing, or it names one that is not older
                return False
            base = before
        self._chained.update(chained)
        return True

    def _within(self, recipe: codec.Recipe) -> list[int]:
        seqs = self._seqs()
        return [
            seq for first, last in recipe.ranges for seq in seqs[bisect_left(seqs, first) : bisect_right(seqs, last)]
        ]

    def _seqs(self) -> Sequence[int]:
        if len(self._sorted) != len(self._frames):  # frames are only ever added
            self._sorted = sorted(self._frames)
        return self._sorted


def note_of(entry: Entry, where: str) -> Data:
    note = _note(entry, where)
    return note[0] if entry.kind in HIDING_KINDS else note


def hidden_by(entry: Entry, where: str) -> list[Range]:
    """Return the seqs that an entry hides."""
    return [(first, last) for first, last in _note(entry, where)[1]] if entry.kind in HIDING_KINDS else []


def _note(entry: Entry, where: str) -> Any:
    if entry.note is None:
        return {}
    try:
        return codec.read_note(entry.note)
    except Corrupt as exc:
        raise Corrupt(f"checkpoint {where}", exc.reason) from exc


def visible(entries: Sequence[Entry], hiding: Iterable[Entry], session_id: str) -> list[Entry]:
    """Return the entries that are not hidden. Only checkpoints and rollbacks can be hidden; lifecycle entries stay."""
    gone = merged(piece for entry in hiding for piece in hidden_by(entry, f"{session_id}:{entry.seq}"))
    if not gone:
        return list(entries)
    starts = [first for first, _ in gone]
    ends = [0, *(last for _, last in gone)]
    return [e for e in entries if e.kind not in DATA_KINDS or e.seq > ends[bisect_right(starts, e.seq)]]


def needed(entries: Iterable[Entry], bases: Mapping[int, int]) -> list[Range]:
    """Return the ranges of seqs whose frames rebuild these entries, each frame once. `bases`: their log's, by seq."""
    return reach((codec.Recipe.unpack(entry.recipe, entry.seq) for entry in entries), bases)


def reach(recipes: Iterable[codec.Recipe], bases: Mapping[int, int]) -> list[Range]:
    pieces: set[Range] = set()
    chained: set[int] = set()
    for recipe in recipes:
        pieces.update(recipe.ranges)
        at = recipe.base
        while at and at not in chained:
            chained.add(at)
            at = before if (before := bases.get(at, 0)) < at else 0
    return merged([*pieces, *((seq, seq) for seq in chained)])


def bases_of(entries: Iterable[Entry]) -> dict[int, int]:
    """Return the column `base` of these entries by seq."""
    return {entry.seq: entry.base for entry in entries}


async def frames_of(
    store: Store, key: bytes, recipes: Iterable[codec.Recipe], kinds: frozenset[Kind] = DATA_KINDS
) -> list[Entry]:
    """Read the entries whose frames rebuild the states of these recipes. Those that are not there are left out."""
    wanted = list(recipes)
    bases = {recipe.base for recipe in wanted if recipe.base}
    ranges = merged([*(piece for recipe in wanted for piece in recipe.ranges), *((seq, seq) for seq in bases)])
    frames: dict[int, Entry] = {}
    at = max(bases, default=0)
    sought: set[int] = set()
    while ranges or at:
        sought.add(at)
        for entry in await store.entries(key, Wanted(ranges, kinds=kinds, chain=at)):
            frames[entry.seq] = entry
        ranges, at = [], 0
        for entry in frames.values():
            if (
                entry.base not in frames
                and entry.base not in sought
                and entry.base < entry.seq
                and not entry.base <= at
            ):
                at = entry.base
    return [frames[seq] for seq in sorted(frames)]


def merged(pieces: Iterable[Range]) -> list[Range]:
    """Return the same seqs in as few ranges as possible, sorted."""
    ranges: list[Range] = []
    for first, last in sorted(pieces):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    return ranges
