"""A session's entries as checkpoints, decoded when they are looked at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

from saveslot import codec
from saveslot.errors import Corrupt, NotFound
from saveslot.log import Entry, moment
from saveslot.model import DATA_KINDS, HIDING_KINDS, Data, SessionCheckpoint, unloaded

C = TypeVar("C", bound=SessionCheckpoint)
# Checkpoints are values: several threads may look at those of one history, and looking moves its place.
_LOOKING = Lock()
Range = tuple[int, int]


class Timeline:
    """Frames of one session, kept as stored. Walking forward applies one a step; a jump starts at a keyframe."""

    weight = 0  # of its frames
    _sorted: Sequence[int] = ()  # their seqs, as of the last look
    _state: codec.State | None = None  # what the applied frames add up to
    _applied: Sequence[int] = ()

    def __init__(
        self, session_id: str, frames: Iterable[Entry] = (), since: int = 0, thinned: frozenset[int] = frozenset()
    ) -> None:
        self._session_id = session_id
        self._since = since  # what rebuilds older entries was left out on purpose
        self._thinned = thinned  # hidden ones, whose frames may be gone
        self._frames: dict[int, bytes] = {}
        for entry in frames:
            if entry.frame is not None:
                self.add(entry.seq, entry.frame)

    def add(self, seq: int, frame: bytes) -> None:
        self._frames[seq] = frame
        self.weight += len(frame)

    def checkpoint(self, entry: Entry, made_as: type[C]) -> C:
        name = f"{self._session_id}:{entry.seq}"
        if entry.kind in DATA_KINDS:
            note = {} if entry.note is None else note_of(entry, name)
            return made_as.stored(name, entry.name, moment(entry.at), partial(self.data, entry), note)
        return made_as.stored(name, entry.name, moment(entry.at), partial(note_of, entry, name), {})

    def data(self, entry: Entry) -> Data:
        with _LOOKING:
            return self.state(entry).value()

    def state(self, entry: Entry) -> codec.State:
        """The state as of that entry, valid until the next call."""
        name = f"{self._session_id}:{entry.seq}"
        recipe = codec.Recipe.unpack(entry.recipe)
        known = self._seqs()
        within = (known[bisect_left(known, first) : bisect_right(known, last)] for first, last in recipe.ranges)
        seqs = [*chain.from_iterable(within)]
        if entry.seq in self._thinned and (len(seqs) != recipe.frames or not seqs):
            raise NotFound(f"the data of checkpoint {name} was thinned or cleared; history() lists what is left")
        if len(seqs) != recipe.frames:
            if entry.seq < self._since:
                raise unloaded(name)
            raise Corrupt(f"checkpoint {name}", f"{len(seqs)} of its {recipe.frames} frames are there")
        state, self._state = self._state, None  # until it is known to be right
        if not seqs or state is None or self._applied != seqs[: len(self._applied)]:
            frames = [self._frames[seq] for seq in seqs]
            self._state = codec.rebuild(frames, entry.digest, f"checkpoint {name}")
            self._applied = seqs
            return self._state
        for seq in seqs[len(self._applied) :]:
            try:
                state.apply(self._frames[seq])
            except Corrupt as exc:
                raise Corrupt(f"checkpoint {name}", f"its frame {seq} {exc.reason}") from exc
        self._applied = seqs
        if state.digest != entry.digest:
            raise Corrupt(f"checkpoint {name}", "its frames do not match their digest")
        self._state = state
        return state

    def whole(self, recipe: codec.Recipe) -> bool:
        """True when all frames of a recipe are here."""
        seqs = self._seqs()
        found = (bisect_right(seqs, last) - bisect_left(seqs, first) for first, last in recipe.ranges)
        return recipe.frames == sum(found)

    def _seqs(self) -> Sequence[int]:
        if len(self._sorted) != len(self._frames):  # frames are only ever added
            self._sorted = sorted(self._frames)
        return self._sorted


def note_of(entry: Entry, where: str) -> Data:
    found = _note(entry, where)
    return found[0] if entry.kind in HIDING_KINDS else found


def hidden_by(entry: Entry, where: str) -> list[Range]:
    """The seqs that an entry hides."""
    return [(first, last) for first, last in _note(entry, where)[1]] if entry.kind in HIDING_KINDS else []


def _note(entry: Entry, where: str) -> Any:
    if entry.note is None:
        return {}
    try:
        return codec.read_note(entry.note)
    except Corrupt as exc:
        raise Corrupt(f"checkpoint {where}", exc.reason) from exc


def shown(entries: Sequence[Entry], hiding: Iterable[Entry], session_id: str) -> list[Entry]:
    """Those that nothing hides. Only checkpoints and rollbacks can be hidden; lifecycle entries stay."""
    gone = merged(piece for entry in hiding for piece in hidden_by(entry, f"{session_id}:{entry.seq}"))
    if not gone:
        return list(entries)
    starts = [first for first, _ in gone]
    ends = [0, *(last for _, last in gone)]
    return [e for e in entries if e.kind not in DATA_KINDS or e.seq > ends[bisect_right(starts, e.seq)]]


def needed(entries: Iterable[Entry]) -> list[Range]:
    """The ranges of seqs whose frames rebuild these entries, each frame once."""
    return reach(codec.Recipe.unpack(entry.recipe) for entry in entries)


def reach(recipes: Iterable[codec.Recipe]) -> list[Range]:
    return merged({piece for recipe in recipes for piece in recipe.ranges})


def merged(pieces: Iterable[Range]) -> list[Range]:
    """The same seqs in as few ranges as hold nothing else, in order."""
    found: list[Range] = []
    for first, last in sorted(pieces):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
