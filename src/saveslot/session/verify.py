"""Verification of a log, used by audit, copy and doctor. Pure: a row and its entries in, damage out.

A link vouches for an entry's header and the checksum of its note, a digest for a frame and all the frames it builds on.
So `broken_links` and `Verifier.headers` read no frame, `frame` compares one frame with its digest, and `states`
rebuilds each state, which also proves that this version can decode it.

An entry may be empty without being damaged: hidden by retention and thinned, or part of an erased log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from saveslot import codec
from saveslot.codec.blocks import check_blocks
from saveslot.codec.cipher import Body, is_sealed
from saveslot.codec.frame import CHECKSUM, chained, strip_checksum
from saveslot.errors import Corrupt, NotFound
from saveslot.session.links import fits, split
from saveslot.session.lookup import about_of
from saveslot.session.timeline import Range, Timeline, merged, needed, visible
from saveslot.values.kinds import ABOUT_KINDS, DATA_KINDS, HIDING_KINDS, Kind
from saveslot.values.lifecycle import led_to
from saveslot.values.log import Entry, Row
from saveslot.values.recipe import Recipe, chain

STATE_KINDS = DATA_KINDS | ABOUT_KINDS
FRAME_KINDS = STATE_KINDS | {Kind.STEP_FINISHED}


class Damage(NamedTuple):
    seq: int  # 0: the session's row, with its context, metadata and labels
    reason: str

    def __str__(self) -> str:
        return f"entry {self.seq} {self.reason}" if self.seq else f"its context {self.reason}"


def broken_links(key: bytes, entries: Sequence[Entry]) -> Iterator[Damage]:
    """Yield each changed, inserted or removed entry of a whole log. Takes entries as stored, with their links."""
    link: bytes | None = b""  # of the entry before; None if that is unknown
    linking = False
    expected = 1
    for place, entry in enumerate(entries):
        if entry.seq != expected:
            yield Damage(expected, f"is missing; entry {entry.seq} follows")
            link = None
        expected = entry.seq + 1
        own = split(entry.digest)[1]
        if not own:
            if linking:
                yield Damage(entry.seq, "carries no link, though entries before it do: it was changed or inserted")
                link = None
            continue
        linking = True
        before, link = link, own
        reach = own[0] >> 1
        if reach >= entry.seq:
            yield Damage(entry.seq, "was changed")
            continue
        covered = entries[max(0, place - reach) : place]
        whole = before is not None and [one.seq for one in covered] == [*range(entry.seq - reach, entry.seq)]
        if whole and not fits(key, entry, before or b"", [one.at for one in covered]):
            times = f", or the time of {'an entry' if reach > 1 else 'the entry'} right before it" if reach else ""
            yield Damage(entry.seq, f"does not match its link: it was changed{times}")
            continue
        note = entry.note or b""
        if len(note) > CHECKSUM and sha256(note[CHECKSUM:]).digest()[:CHECKSUM] != note[:CHECKSUM]:
            yield Damage(entry.seq, "has a note that was changed")


def is_erased(row: Row, entries: Sequence[Entry]) -> bool:
    """True if `erase` was called, even if killed before its end: frames and notes may be gone for good."""
    if not entries or entries[-1].kind is not Kind.TOMBSTONE:
        return False
    if entries[-1].name == "session_erased" or not row.body:
        return True
    try:  # deleted before; erasing empties the body first
        return not is_sealed(row.body) and not any(codec.read_note(row.body).values())
    except Corrupt:
        return False


class _Track:
    """The entries of one kind of state, the agent's or the session's own, that were written with a frame."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}  # by seq; a digest stays when its frame is thinned
        self.bases: dict[int, int] = {}
        self._seqs: list[int] = []
        self._there: list[int] = []  # seqs whose frame is stored

    def add(self, entry: Entry, digest: bytes, *, there: bool) -> None:
        self._digests[entry.seq], self.bases[entry.seq] = digest, entry.base
        self._seqs.append(entry.seq)
        if there:
            self._there.append(entry.seq)

    def digest(self, recipe: Recipe, before: int) -> bytes:
        """Return the digest of the newest frame of a recipe that is older than `before`."""
        for first, last in reversed(recipe.ranges):
            place = bisect_right(self._seqs, min(last, before - 1))
            if place and self._seqs[place - 1] >= first:
                return self._digests[self._seqs[place - 1]]
        base = self.bases.get(before, 0) if recipe.base == before else recipe.base
        return self._digests.get(base, b"")

    def missing(self, recipe: Recipe) -> int:
        """Return how many of the frames of a recipe are not there, at least."""
        there = sum(bisect_right(self._there, last) - bisect_left(self._there, first) for first, last in recipe.ranges)
        bases = chain(recipe.base, self.bases)
        ended = bool(recipe.base) and (not bases or self.bases[bases[0]] != 0)
        return abs(recipe.short - there) + len(set(bases).difference(self._there)) + ended


class Verifier:
    """Checks one whole log. Call `headers` first: `frame` and `states` build on what it learned."""

    def __init__(self, row: Row, stored: Sequence[Entry], opened: Sequence[Entry] | None = None) -> None:
        """Take all entries without frames: `stored` as in the store, `row` and `opened` decrypted.

        Without `opened`, only the parts of a sealed log that need no key are checked: links, notes and recipes.
        """
        self._row = row
        self._stored = stored
        self._entries = stored if opened is None else opened
        self._sealed = opened is None and is_sealed(row.body)
        self._erased = is_erased(row, stored)
        self._blind = self._sealed or self._erased  # digests may be masked by a key that is missing or gone
        self._tracks = {True: _Track(), False: _Track()}
        self.promised: frozenset[int] = frozenset()  # the seqs whose state the log promises to rebuild

    def headers(self) -> list[Damage]:
        """Return the damage to row, links, notes and recipes, in log order, at most one per entry."""
        damaged = {damage.seq: damage.reason for damage in broken_links(self._row.key, self._stored)}
        self._check(damaged, 0, self._body)
        for entry in self._entries:
            self._check(damaged, entry.seq, lambda entry=entry: self._header(entry))
        promised = self._promised()
        self.promised = frozenset(entry.seq for entry in promised)
        for entry in promised:
            self._check(damaged, entry.seq, lambda entry=entry: self._complete(entry))
        return [Damage(*item) for item in sorted(damaged.items())]

    def frame(self, entry: Entry) -> Damage | None:
        """Return the damage to a stored entry's frame; frames of a sealed log are not checked."""
        if entry.frame is None or self._blind:
            return None
        try:
            if entry.kind is Kind.STEP_FINISHED:
                strip_checksum(entry.frame)
            elif entry.kind in STATE_KINDS:
                recipe = Recipe.unpack(entry.recipe, entry.seq)
                before = self._track(entry).digest(recipe, entry.seq)
                if chained(before, entry.frame) != split(entry.digest)[0]:
                    return Damage(entry.seq, "has a frame that does not match its digest")
                check_blocks(entry.frame)
        except Corrupt as exc:
            return Damage(entry.seq, exc.reason)
        return None

    def needs(self, entries: Sequence[Entry]) -> list[Range]:
        """Return the seqs of the frames that `states` needs to rebuild these entries."""
        steps = [(entry.seq, entry.seq) for entry in entries if entry.kind is Kind.STEP_FINISHED]
        bases = self._tracks[True].bases | self._tracks[False].bases
        return merged([*needed((entry for entry in entries if self._has_recipe(entry)), bases), *steps])

    def states(self, entries: Sequence[Entry], frames: Sequence[Entry]) -> Iterator[Damage]:
        """Yield the entries whose state or step result cannot be rebuilt from these frames. Takes both decrypted."""
        by_seq = {entry.seq: entry.frame for entry in frames}
        timelines = {
            kinds: Timeline(self._row.session_id, [entry for entry in frames if entry.kind in kinds])
            for kinds in (DATA_KINDS, ABOUT_KINDS)
        }
        for entry in entries:
            try:
                if entry.kind is Kind.STEP_FINISHED and (result := by_seq.get(entry.seq)) is not None:
                    codec.read_note(result)
                elif entry.seq in self.promised:
                    timelines[DATA_KINDS if entry.kind in DATA_KINDS else ABOUT_KINDS].state(entry).value()
            except Corrupt as exc:
                yield Damage(entry.seq, exc.reason)
            except NotFound:
                yield Damage(entry.seq, "has lost frames")

    def _check(self, damaged: dict[int, str], seq: int, check: Callable[[], None]) -> None:
        try:
            check()
        except Corrupt as exc:
            damaged.setdefault(seq, exc.reason)

    def _body(self) -> None:
        if self._row.locked is not None:
            raise self._row.locked
        if self._sealed:
            Body.unpack(self._row.body)
        elif self._stored and not (self._erased and not self._row.body):
            about_of(self._row, self._stored[-1])
        self._named()

    def _named(self) -> None:
        """Check what the log says about the row."""
        row = self._row
        if self._entries and self._entries[-1].kind is not Kind.TOMBSTONE:
            state = led_to(entry.kind for entry in self._entries)
            if row.state != state:
                raise Corrupt("a row", f"is in a row that says {row.state}, but its entries lead to {state.value}")
        created = self._entries[0] if self._entries and not self._blind else None
        if created is not None and created.kind is Kind.CREATED and created.note is not None:
            note = codec.read_note(created.note)
            for column in ("agent_type", "user_id"):
                if note.get(column, named := getattr(row, column)) != named:
                    why = f"is in a row whose {column} is {named!r}, but its first entry says {note[column]!r}"
                    raise Corrupt("a row", why)

    def _header(self, entry: Entry) -> None:
        if entry.note is not None and not (self._erased and len(entry.note) == CHECKSUM):
            _ = strip_checksum(entry.note) if self._sealed else codec.read_note(entry.note)
        if entry.kind not in STATE_KINDS:
            if entry.base:
                raise Corrupt("an entry", "names a base, but has no state")
            return
        recipe, digest = Recipe.unpack(entry.recipe, entry.seq), split(entry.digest)[0]
        there = entry.size > len(entry.note or b"")
        # An entry with a frame ends its own recipe; a rollback, or one that changed nothing, has an older recipe.
        newest = recipe.ranges[-1][1] if recipe.ranges else recipe.base
        if newest == entry.seq:
            self._track(entry).add(entry, digest, there=there)
            if entry.base >= entry.seq or recipe.base not in {entry.seq, entry.base}:
                raise Corrupt("an entry", "does not stand on the base of its recipe")
        elif there or entry.base or newest > entry.seq:
            raise Corrupt("an entry", "has the recipe of another entry")
        elif not self._blind and digest != self._track(entry).digest(recipe, entry.seq):
            raise Corrupt("an entry", "has the recipe or the digest of another entry")

    def _promised(self) -> list[Entry]:
        """Return the entries whose state must exist: hidden ones may be thinned, and sealed marks cannot be read."""
        if self._erased:
            return []
        hiding = [entry for entry in self._entries if entry.kind in HIDING_KINDS]
        states = [entry for entry in self._entries if entry.kind in STATE_KINDS]
        if hiding and self._sealed:
            return [entry for entry in states if entry.kind in ABOUT_KINDS]
        return visible(states, [entry for entry in hiding if _readable(entry)], self._row.session_id)

    def _complete(self, entry: Entry) -> None:
        missing = self._track(entry).missing(Recipe.unpack(entry.recipe, entry.seq))
        if missing:
            raise Corrupt("an entry", f"has lost {missing} of its frames")

    def _has_recipe(self, entry: Entry) -> bool:
        try:
            Recipe.unpack(entry.recipe, entry.seq)
        except Corrupt:
            return False
        return entry.seq in self.promised

    def _track(self, entry: Entry) -> _Track:
        return self._tracks[entry.kind in DATA_KINDS]


def _readable(entry: Entry) -> bool:
    try:
        codec.read_note(entry.note or b"")
    except Corrupt:
        return False
    return True
