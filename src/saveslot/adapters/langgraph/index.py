"""Which entries of a thread's log hold which checkpoint, and which hold the writes to it."""

from __future__ import annotations

from collections.abc import Iterable

from saveslot.moving.langgraph_state import within
from saveslot.session.timeline import note_of
from saveslot.values.checks import Data
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry


class Index:
    """By namespace and checkpoint id: the number of its entry. Later entries are added as they are written."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = 0
        self.puts: dict[str, dict[str, int]] = {}
        self.runs: dict[tuple[str, str], str] = {}
        # Of the writes to a checkpoint: the last entry of each unbroken row of them, whose state has all of the row,
        # and the checkpoint's entry whose values are in that state, too (0: there are none).
        self.writes: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.all_writes: dict[int, tuple[str, str]] = {}
        self._live: dict[str, int] = {}
        self._open: set[tuple[str, str]] = set()
        for entry in entries:
            self.add(entry.seq, note_of(entry, str(entry.seq)), rolled_back=entry.kind == Kind.ROLLBACK)

    def add(self, seq: int, note: Data, *, rolled_back: bool = False) -> None:
        self.entries += 1
        if rolled_back:
            self._live.clear()
            self._open.clear()
        checkpoint_id, ns = note.get("id"), note.get("ns", "")
        if not isinstance(checkpoint_id, str) or not isinstance(ns, str):
            return  # not an entry of this adapter
        where = (ns, checkpoint_id)
        if "writes" in note:
            row, last = self.writes.setdefault(where, []), (seq, self._live.get(ns, 0))
            self.all_writes[seq] = where
            if where in self._open:
                row[-1] = last
            else:
                row.append(last)
                self._open.add(where)
            return
        self._live = {other: at for other, at in self._live.items() if not within(other, ns)} | {ns: seq}
        self._open = {other for other in self._open if not within(other[0], ns)}
        self.puts.setdefault(ns, {})[checkpoint_id] = seq
        if run := note.get("labels", {}).get("run"):
            self.runs[where] = run

    def seq(self, ns: str, checkpoint_id: str) -> int | None:
        return self.puts.get(ns, {}).get(checkpoint_id)

    def newest(self, ns: str) -> str | None:
        return next(reversed(self.puts.get(ns, {})), None)

    @property
    def seqs(self) -> set[int]:
        """The entries of all checkpoints and writes."""
        return {seq for puts in self.puts.values() for seq in puts.values()} | set(self.all_writes)

    def seqs_of(self, kept: set[tuple[str, str]]) -> set[int]:
        """The entries of these checkpoints and of the writes to them."""
        puts = {seq for ns, checkpoint_id in kept if (seq := self.seq(ns, checkpoint_id)) is not None}
        return puts | {seq for seq, where in self.all_writes.items() if where in kept}
