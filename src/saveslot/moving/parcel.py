"""One session on its way: its row, and its log in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol, Self

import msgspec

from saveslot.errors import Corrupt
from saveslot.log import Entry, Head, Row
from saveslot.moving.chain import Chain
from saveslot.stores import Store

# A part stands in memory, once or twice. So many entries and so many bytes, or one entry.
MANY, LARGE = 500, 1 << 20


class _Problem(NamedTuple):
    what: str
    reason: str


class Problem(_Problem):
    """Something that could not be taken, by name, and why. Nothing else is lost with it.

    Names are other people's: what would break a line or steer a terminal is shown by its escape.
    """

    def __new__(cls, what: str, reason: str) -> Self:
        return super().__new__(cls, _visible(what), _visible(reason))


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Parcel(Protocol):
    row: Row  # as it will be: nobody holds it
    last: int  # its newest entry

    def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        """The entries behind that one, in parts that fit into memory."""
        ...

    async def met(self, store: Store, head: Head) -> Parcel | None:
        """What continues a session that is here, and how it stands now; None where that has another history."""
        ...

    async def damage(self, behind: int) -> str | None:
        """What is wrong with it, the first of it: its headers, and the frames behind that entry. None for nothing."""
        ...


class Kept:
    """A session whose log is at hand, or the end of it, behind an entry."""

    def __init__(self, row: Row, entries: list[Entry], behind: int = 0) -> None:
        self.row = row
        self.entries = entries
        self.last = behind + len(entries)
        self._behind = behind

    async def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        for first, last in _cut(self.entries[behind - self._behind :]):
            yield self.entries[first - self._behind - 1 : last - self._behind]

    async def met(self, store: Store, head: Head) -> Parcel | None:
        del store
        seq = head.last.seq
        same = seq <= self.last and self.entries[seq - 1].append_id == head.last.append_id
        return self if same and _named_alike(head.row, self.row) else None

    async def damage(self, behind: int) -> str | None:
        """It was made just now."""
        del behind


class Stored:
    """A session in a store, read part by part. In the copy nobody holds it: a lease is a promise of one store."""

    def __init__(self, store: Store, head: Head) -> None:
        row, last = head.row, head.last
        alive = max(row.heartbeat, last.alive)
        self.row = msgspec.structs.replace(row, lease=None, owner=None, worker="", left=0, heartbeat=alive)
        self.last = last.seq
        self._store = store
        self._read: tuple[int, list[Entry]] | None = None  # all that is behind an entry, if that is one part

    async def parts(self, behind: int) -> AsyncIterator[list[Entry]]:
        if self._read is not None and self._read[0] == behind:
            whole, self._read = self._read[1], None
            yield whole
            return
        for piece in _cut(await self._headers(behind + 1)):
            yield await self._part(piece)

    async def damage(self, behind: int) -> str | None:
        """One that is longer than a part is read once more for this: nothing of a damaged session is to land."""
        try:
            headers = await self._headers(1)
            if not headers or headers[-1].seq < self.last:
                return f"entry {self.last} is missing"
            chain = Chain(self.row, headers)
            if (wrong := chain.broken()) is not None:
                return wrong
            pieces = _cut(headers[behind:])
            for piece in pieces:
                part = await self._part(piece)
                for entry in part:
                    if (wrong := chain.damage(entry)) is not None:
                        return wrong
                if len(pieces) == 1:
                    self._read = (behind, part)
        except Corrupt as exc:
            return str(exc)
        return None

    async def met(self, store: Store, head: Head) -> Parcel | None:
        del store
        seq = head.last.seq
        found = await self._store.entries(self.row.key, [(seq, seq)], frames=False) if seq <= self.last else []
        same = found and found[0].append_id == head.last.append_id
        return self if same and _named_alike(head.row, self.row) else None

    async def _headers(self, first: int) -> list[Entry]:
        return await self._store.entries(self.row.key, [(first, self.last)], frames=False)

    async def _part(self, piece: tuple[int, int]) -> list[Entry]:
        entries = await self._store.entries(self.row.key, [piece])
        return [msgspec.structs.replace(entry, lease=None, alive=0) for entry in entries]


def _named_alike(one: Row, other: Row) -> bool:
    return (one.namespace, one.session_id) == (other.namespace, other.session_id)


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
