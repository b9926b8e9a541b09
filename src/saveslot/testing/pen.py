"""A writer of one session: it knows the entry it saw last and makes the groups that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from os import urandom
from typing import Any

from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind
from saveslot.values.log import NO_WORKER, Entry, Group, Row, Worker

SECOND = 1_000_000


class Clock:
    """Two clocks that a test moves: microseconds since 1970, which may jump either way, and `uptime`."""

    def __init__(self, at: int = 1_800_000_000 * SECOND) -> None:
        self.at = at
        self.up = 1_000_000 * SECOND

    def __call__(self) -> int:
        return self.at

    def uptime(self) -> int:
        """Microseconds by the clock that never jumps."""
        return self.up

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; `uptime` continues."""
        self.at += int(seconds * SECOND)

    def go(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.at += int(seconds * SECOND)
        self.up += int(seconds * SECOND)


_payloads = count(1)


def payload() -> bytes:
    """Bytes that no other entry holds, so that a frame in the wrong place is noticed."""
    return b"payload \x00\xf0\x9f\x8c\xb1 %d" % next(_payloads)


@dataclass
class Pen:
    """A writer that has seen its session up to `seq`, an entry that carries `prev`."""

    namespace: str
    session_id: str
    key: bytes = field(default_factory=fresh_key)
    seq: int = 0
    prev: bytes | None = None
    fence: int = 0
    lease: bytes | None = None
    new_id: Callable[[], bytes] = lambda: urandom(16)

    def begin(self, count: int = 1, **row: Any) -> Group:
        """The group that creates the session; further entries follow the first."""
        group = self.group(count, kind=Kind.CREATED, name="session_created")
        group.create = Row(self.key, self.namespace, self.session_id, **row)
        for entry in group.entries[1:]:
            entry.kind, entry.name = Kind.CHECKPOINT, "step"
        return group

    def group(
        self, count: int = 1, kind: Kind = Kind.CHECKPOINT, *, whole: dict[str, Any] | None = None, **of: Any
    ) -> Group:
        """The next entries, not yet sent. `of` sets fields of each entry, `whole` of the group."""
        entries: list[Entry] = []
        for seq in range(self.seq + 1, self.seq + 1 + count):
            said: dict[str, Any] = {"name": "step", "fence": self.fence, "lease": self.lease, "frame": payload(), **of}
            entries.append(Entry(seq, self.new_id(), kind, **said))
        return Group(self.key, self.prev, entries, **whole or {})

    def delete(self) -> Group:
        return self.group(kind=Kind.TOMBSTONE, name="session_deleted", frame=None, whole={"delete": True})

    def take_over(self, worker: Worker | None = None, *, orphan: int | None = None) -> Group:
        """The group that takes the session from its owner: an entry with a new lease and the next fence.

        `orphan`: only if the owner's lease expired at least that many microseconds ago.
        """
        kind, name = (Kind.TAKEN, "session_taken") if orphan is None else (Kind.CLAIMED, "session_claimed")
        whole = {"owner": worker and worker.id, "only_orphan": orphan}
        return self.group(kind=kind, name=name, frame=None, fence=self.fence + 1, lease=self.new_id(), whole=whole)

    def release(self, *, orphaned: bool = False) -> Group:
        """The group that gives up ownership; `orphaned`: as after an error, so that any worker may take it over."""
        if orphaned:
            return self.group(kind=Kind.RELEASED, name="session_released", frame=None, whole={"owner": NO_WORKER})
        return self.group(kind=Kind.RELEASED, name="session_released", frame=None, lease=None)

    def saw(self, group: Group) -> None:
        """Continue after this group. A pipelining writer does so before the store has answered."""
        last = group.entries[-1]
        self.seq, self.prev, self.fence, self.lease = last.seq, last.append_id, last.fence, last.lease

    def copy(self) -> Pen:
        """Another writer that has seen the same."""
        return replace(self)
