"""Damage in a log: what its headers tell, and then, frame by frame, whether each is the one that was written.

Links vouch for headers, a digest for a frame and all those that it stands on; so one step an entry checks them all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from saveslot import codec
from saveslot.codec.cipher import Body, is_sealed
from saveslot.codec.frame import chained, unseal
from saveslot.errors import Corrupt
from saveslot.log import Entry, Row
from saveslot.model import DATA_KINDS, HIDING_KINDS, Kind
from saveslot.slot import ABOUT_KINDS
from saveslot.stores.chained import misfit, split
from saveslot.timeline import shown

STATE_KINDS = DATA_KINDS | ABOUT_KINDS


class _Track:
    """The entries of one kind of state, the agent's or the session's own, that were written with a frame."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}  # what each leads to; it stays when the frame is thinned
        self._seqs: list[int] = []
        self._there: list[int] = []  # those that have their frame

    def add(self, seq: int, digest: bytes, *, there: bool) -> None:
        self._digests[seq] = digest
        self._seqs.append(seq)
        if there:
            self._there.append(seq)

    def newest(self, ranges: Sequence[tuple[int, int]], before: int) -> bytes:
        """What the last of these ranges, older than `before`, leads to."""
        for first, last in reversed(ranges):
            place = bisect_right(self._seqs, min(last, before - 1))
            if place and self._seqs[place - 1] >= first:
                return self._digests[self._seqs[place - 1]]
        return b""

    def frames(self, ranges: Sequence[tuple[int, int]]) -> int:
        return sum(bisect_right(self._there, last) - bisect_left(self._there, first) for first, last in ranges)


class Chain:
    """One whole log. Digests of a sealed one are of what is encrypted: links are followed, frames not looked into."""

    def __init__(self, row: Row, headers: Sequence[Entry]) -> None:
        self._row = row
        self._headers = headers
        self._sealed = is_sealed(row.body)
        self._tracks = {True: _Track(), False: _Track()}

    def broken(self) -> str | None:
        """What is wrong with the headers, the first of it; None for nothing. Comes before `damage`."""
        if (wrong := misfit(self._row.key, self._headers)) is not None:
            return "entry {} {}".format(*wrong)
        try:
            Body.unpack(self._row.body) if self._sealed else unseal(self._row.body)
        except Corrupt as exc:
            return f"what it is about {exc.reason}"
        for entry in self._headers:
            try:
                self._header(entry)
            except Corrupt as exc:
                return f"entry {entry.seq} {exc.reason}"
        try:
            left = self._left()
        except Corrupt as exc:
            return f"{exc.where} {exc.reason}"
        for entry in left:
            recipe = codec.Recipe.unpack(entry.recipe)
            if (there := self._track(entry).frames(recipe.ranges)) != recipe.frames:
                return f"entry {entry.seq} has {there} of its {recipe.frames} frames"
        return None

    def damage(self, entry: Entry) -> str | None:
        """What is wrong with an entry's frame; None for nothing."""
        try:
            self._frame(entry)
        except Corrupt as exc:
            return f"entry {entry.seq} {exc.reason}"
        return None

    def _track(self, entry: Entry) -> _Track:
        return self._tracks[entry.kind in DATA_KINDS]

    def _header(self, entry: Entry) -> None:
        if entry.note is not None:
            unseal(entry.note)
        if entry.kind not in STATE_KINDS:
            return
        ranges, digest = codec.Recipe.unpack(entry.recipe).ranges, split(entry.digest)[0]
        there = entry.size > len(entry.note or b"")
        # Who writes a frame ends the recipe with it; a rollback, or where nothing changed, has an older one's.
        newest = ranges[-1][1] if ranges else 0
        if newest == entry.seq:
            self._track(entry).add(entry.seq, digest, there=there)
        elif there or newest > entry.seq:
            raise Corrupt("an entry", "has the recipe of another")
        elif not self._sealed and digest != self._track(entry).newest(ranges, entry.seq):
            raise Corrupt("an entry", "has the recipe or the digest of another")

    def _left(self) -> list[Entry]:
        """Those that can be rebuilt; what is hidden may have been thinned. Sealed marks do not tell what they hide."""
        hiding = [entry for entry in self._headers if entry.kind in HIDING_KINDS]
        states = [entry for entry in self._headers if entry.kind in STATE_KINDS]
        if hiding and self._sealed:
            return [entry for entry in states if entry.kind in ABOUT_KINDS]
        return shown(states, hiding, self._row.session_id)

    def _frame(self, entry: Entry) -> None:
        if entry.frame is None or self._sealed:
            return
        if entry.kind is Kind.STEP_FINISHED:
            unseal(entry.frame)
        elif entry.kind in STATE_KINDS:
            recipe = codec.Recipe.unpack(entry.recipe)
            before = self._track(entry).newest(recipe.ranges, entry.seq)
            if chained(before, entry.frame) != split(entry.digest)[0]:
                raise Corrupt("a frame", "does not match its digest")
