"""One session on its way: its row, and its log in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import msgspec

from saveslot.log import Entry, Head, Row
from saveslot.stores import Store

# A part stands in memory, once or twice. So many entries and so many bytes, or one entry.
MANY, LARGE = 500, 1 << 20


class Problem(NamedTuple):
    """Something that could not be taken, by name, and why. Nothing else is lost with it."""

    what: str
    reason: str


class Parcel(Protocol):
    row: Row  # as it will be: nobody holds it
    last: int  # its newest entry
    last_id: bytes

    def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        """The entries behind that one, in parts that fit into memory."""
        ...

    async def append_id(self, seq: int) -> bytes: ...


class Kept:
    """A session whose log is at hand."""

    def __init__(self, row: Row, entries: list[Entry]) -> None:
        self.row = row
        self.last, self.last_id = entries[-1].seq, entries[-1].append_id
        self._entries = entries

    async def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        for first, last in _cut(self._entries[behind:]):
            yield self._entries[first - 1 : last]

    async def append_id(self, seq: int) -> bytes:
        return self._entries[seq - 1].append_id


class Stored:
    """A session in a store, read part by part. In the copy nobody holds it: a lease is a promise of one store."""

    def __init__(self, store: Store, head: Head) -> None:
        row, last = head.row, head.last
        alive = max(row.heartbeat, last.alive)
        self.row = msgspec.structs.replace(row, lease=None, owner=None, worker="", left=0, heartbeat=alive)
        self.last, self.last_id = last.seq, last.append_id
        self._store = store

    async def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        headers = await self._store.entries(self.row.key, [(behind + 1, self.last)], frames=False)
        for piece in _cut(headers):
            entries = await self._store.entries(self.row.key, [piece])
            yield [msgspec.structs.replace(entry, lease=None, alive=0) for entry in entries]

    async def append_id(self, seq: int) -> bytes:
        found = await self._store.entries(self.row.key, [(seq, seq)], frames=False)
        return found[0].append_id if found else b""


def _cut(entries: list[Entry]) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    first, count, size = 0, 0, 0
    for entry in entries:
        weight = entry.size or len(entry.frame or b"") + len(entry.note or b"")
        if count and (count == MANY or size + weight > LARGE):
            pieces.append((first, entry.seq - 1))
            count = size = 0
        first = first if count else entry.seq
        count, size = count + 1, size + weight
    if entries:
        pieces.append((first, entries[-1].seq))
    return pieces
