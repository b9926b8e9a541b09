"""Following digests: each frame's covers the frames that it stands on, so one step an entry checks them all."""

from __future__ import annotations

from bisect import bisect_right

from saveslot import codec
from saveslot.codec.frame import PATCH, chained, unseal
from saveslot.errors import Corrupt
from saveslot.log import Entry
from saveslot.model import DATA_KINDS
from saveslot.stores.chained import split


class _Track:
    """The frames of one kind of state, the agent's or the session's own, and the digest that each leads to."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._digests: dict[int, bytes] = {}

    def add(self, seq: int, digest: bytes) -> None:
        self._seqs.append(seq)
        self._digests[seq] = digest

    def newest(self, ranges: tuple[tuple[int, int], ...], before: int) -> bytes | None:
        """What the last frame in these ranges, older than `before`, leads to; None when that one is not known."""
        for first, last in reversed(ranges):
            place = bisect_right(self._seqs, min(last, before - 1))
            if place and self._seqs[place - 1] >= first:
                return self._digests[self._seqs[place - 1]]
        return None


class Chain:
    """The entries of one log, in their order."""

    def __init__(self, *, sealed: bool = False) -> None:
        """`sealed`: what the digests are of is encrypted, so only notes are looked at; `audit` follows the links."""
        self._sealed = sealed
        self._tracks = {True: _Track(), False: _Track()}

    def damage(self, entry: Entry) -> str | None:
        """What is wrong with an entry, as far as those before it tell; None for nothing."""
        wrong = None if not entry.recipe or self._sealed else self._frame(entry)
        try:
            if entry.note is not None:
                unseal(entry.note)
        except Corrupt as exc:
            return exc.reason
        return wrong

    def _frame(self, entry: Entry) -> str | None:
        try:
            ranges = codec.Recipe.unpack(entry.recipe).ranges
        except Corrupt as exc:
            return exc.reason
        digest = split(entry.digest)[0]
        track = self._tracks[entry.kind in DATA_KINDS]
        if entry.frame is None:  # a rollback, nothing changed, or thinned
            before = track.newest(ranges, entry.seq)
            return None if before in {None, digest} or ranges[-1][1] >= entry.seq else "has another digest"
        before = track.newest(ranges, entry.seq) if entry.frame[1:2] and entry.frame[1] & PATCH else b""
        track.add(entry.seq, digest)
        return None if before is None or chained(before, entry.frame) == digest else "does not match its digest"
