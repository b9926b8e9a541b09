"""A parcel: one session to be written to a store, its row and its log in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol, Self

import msgspec

from saveslot.errors import Corrupt, KeyMissing
from saveslot.session.draft import entry_labels
from saveslot.session.timeline import note_of
from saveslot.session.verify import Verifier
from saveslot.stores import Store
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import MAX_SEQ, Entry, Group, Head, Row, Wanted

# A part is in memory once or twice. At most this many entries and bytes, or one entry.
MANY, LARGE = 500, 1 << 20


class _Problem(NamedTuple):
    what: str
    reason: str


class Problem(_Problem):
    """One thing that was left out, by name, and why.

    Names come from other programs: characters that would break a line or control a terminal are escaped.
    """

    def __new__(cls, what: str, reason: str) -> Self:
        return super().__new__(cls, _visible(what), _visible(reason))


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Parcel(Protocol):
    row: Row  # as it will be written, without an owner
    last: int  # seq of its newest entry

    def parts(self, after: int) -> AsyncIterator[list[Entry]]:
        """The entries after that seq, in parts that fit into memory."""
        ...

    async def met(self, store: Store, head: Head) -> Parcel | None:
        """The parcel that continues the session in this store; None if that one has another history."""
        ...

    async def damage(self, after: int) -> str | None:
        """The first damage in its headers, or in the frames after that seq; None if it is sound."""
        ...

    async def deletion(self, head: Head) -> list[Group]:
        """The rest of an unchanged copy that the source has deleted since, up to its tombstone; otherwise nothing."""
        ...


class MemoryParcel:
    """A session whose log, or the end of it after some seq, is in memory."""

    def __init__(self, row: Row, entries: list[Entry], after: int = 0) -> None:
        self.row = row
        self.entries = entries
        self.last = after + len(entries)
        self._after = after

    async def parts(self, after: int) -> AsyncIterator[list[Entry]]:
        for first, last in _cut(self.entries[after - self._after :]):
            part = self.entries[first - self._after - 1 : last - self._after]
            for entry in part:
                entry.labels = entry.labels or _labels(entry)
            yield part

    async def met(self, store: Store, head: Head) -> Parcel | None:
        del store
        seq = head.last.seq
        same = seq <= self.last and self.entries[seq - 1].append_id == head.last.append_id
        return self if same and _named_alike(head.row, self.row) else None

    async def damage(self, after: int) -> str | None:
        """It was just built, so it is sound."""
        del after

    async def deletion(self, head: Head) -> list[Group]:
        """Other programs keep no log of what they deleted."""
        del head
        return []


class StoredParcel:
    """A session in another store, read part by part. Its copy has no owner: a lease is valid in one store only."""

    def __init__(self, store: Store, head: Head) -> None:
        row, last = head.row, head.last
        alive = max(row.heartbeat, last.alive)
        self.row = msgspec.structs.replace(row, lease=None, owner=None, worker="", left=0, heartbeat=alive)
        self.last = last.seq
        self._store = store
        self._read: tuple[int, list[Entry]] | None = None  # the entries after a seq, if they are one part

    async def parts(self, after: int) -> AsyncIterator[list[Entry]]:
        if self._read is not None and self._read[0] == after:
            whole, self._read = self._read[1], None
            yield whole
            return
        for piece in _cut(await self._headers(after + 1)):
            yield await self._part(piece)

    async def damage(self, after: int) -> str | None:
        """A log of several parts is read twice, so that no part of a damaged session is written."""
        try:
            headers = await self._headers(1)
            if not headers or headers[-1].seq < self.last:
                return f"entry {self.last} is missing"
            verifier = Verifier(self.row, headers)
            if wrong := verifier.headers():
                return str(wrong[0])
            pieces = _cut(headers[after:])
            for piece in pieces:
                part = await self._part(piece)
                for entry in part:
                    if (damage := verifier.frame(entry)) is not None:
                        return str(damage)
                if len(pieces) == 1:
                    self._read = (after, part)
        except Corrupt as exc:
            return str(exc)
        return None

    async def met(self, store: Store, head: Head) -> Parcel | None:
        del store
        seq = head.last.seq
        entries = (
            await self._store.entries(self.row.key, Wanted([(seq, seq)], frames=False)) if seq <= self.last else []
        )
        same = entries and entries[0].append_id == head.last.append_id
        return self if same and _named_alike(head.row, self.row) else None

    async def deletion(self, head: Head) -> list[Group]:
        key, prev, groups = head.row.key, head.last.append_id, list[Group]()
        try:
            headers = await self._store.entries(key, Wanted([(head.last.seq, MAX_SEQ)], frames=False))
            if len(headers) < 2 or headers[0].append_id != prev or headers[-1].kind is not Kind.TOMBSTONE:  # noqa: PLR2004
                return []
            for piece in _cut(headers[1:]):
                groups.append(Group(key, prev, await self._part(piece, key)))
                prev = groups[-1].entries[-1].append_id
        except Corrupt:
            return []
        groups[-1].delete = True
        return groups

    async def _headers(self, first: int) -> list[Entry]:
        return await self._store.entries(self.row.key, Wanted([(first, self.last)], frames=False))

    async def _part(self, piece: tuple[int, int], key: bytes | None = None) -> list[Entry]:
        session = key or self.row.key
        entries = await self._store.entries(session, Wanted([piece]))
        labelled = await self._store.entries(session, Wanted([piece], frames=False, labelled=True))
        labels = {entry.seq: entry.labels for entry in labelled}
        return [
            msgspec.structs.replace(entry, lease=None, alive=0, labels=labels.get(entry.seq, {})) for entry in entries
        ]


def _labels(entry: Entry) -> dict[str, str]:
    """The labels that `find` finds its session by; of a sealed or damaged note, none."""
    if entry.kind not in DATA_KINDS or entry.note is None:
        return {}
    try:
        return entry_labels(note_of(entry, entry.name))
    except (Corrupt, KeyMissing):
        return {}


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
