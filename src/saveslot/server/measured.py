"""Counts what a request reads from the store as bytes that it has in memory, and reads in pieces.

A piece counts once it has been read, so up to `TOGETHER` pieces are in memory that no request has counted yet, and what
a request leaves to a thread is not counted. What a piece holds at most is known, since notes and bodies that come
through a server have at most `LONGEST` bytes as stored, and frames are read as far as there is room for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from saveslot.errors import TooLarge
from saveslot.server.load import LOAD, READ, Load
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.log import ALL, MAX_SEQ, Entry, Group, Head, Labels, Place, Query, Ref, Row, Verdict, Wanted, order

# Bytes, as stored, of a note (metadata, a record, a result) and of a body (context, metadata and labels of a session).
LONGEST = 8 << 20
# Entries or heads of a piece, rows of one, and pieces that are read at a time. More rows: where there is no index in
# their order, each piece looks at all that match.
PIECE, ROWS, TOGETHER = 32, 64, 2
# Bytes of an entry or a row in memory, besides its note, frame or body.
EACH = 600
ASK = "ask for fewer at a time"


class Measured(PassingStore):
    """A store whose reads count for the requests that make them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._turns = asyncio.Semaphore(TOGETHER)

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        if LOAD.get() is not None:
            for group in groups:
                check_short(group)
        return await self._inner.append(groups, together=together)

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        if LOAD.get() is not None and len(after) > len(before):
            _check_short((after,))
        return await self._inner.swap(key, before, after, labels)

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        load = LOAD.get()
        if load is None or len(refs) <= 1:
            heads = await self._inner.heads(refs, state=state)
            return heads if load is None else _taken(load, heads)
        heads: list[Head | None] = []
        for start in range(0, len(refs), PIECE):
            async with self._turns:
                heads += _taken(load, await self._inner.heads(refs[start : start + PIECE], state=state))
        return heads

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        load = LOAD.get()
        if load is None:
            return await self._inner.find(query, after, limit)
        rows: list[Row] = []
        column, _ = order(query)
        while True:
            wanted = min(limit - len(rows), ROWS)
            async with self._turns:
                piece = await self._inner.find(query, after, wanted)
                load.take(sum(EACH + len(row.body) for row in piece), ASK)
            rows += piece
            if len(piece) < wanted or len(rows) == limit:
                return rows
            after = (getattr(piece[-1], column), piece[-1].key)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        load = LOAD.get()
        if load is None:
            return await self._inner.entries(key, wanted)
        asked = wanted
        if wanted.frames:
            wanted = replace(wanted, room=READ if wanted.room is None else min(wanted.room, READ))
        if wanted.chain or wanted.request is not None or _many(wanted) <= PIECE:
            entries = self._weighed(load, await self._inner.entries(key, wanted))
        else:
            entries = await self._pieces(load, key, wanted)
        if asked.frames and (asked.room is None or asked.room > READ) and any(map(_left_out, entries)):
            raise TooLarge("what a request reads", limit=READ, size=sum(entry.size for entry in entries), hint=ASK)
        return entries

    async def _pieces(self, load: Load, key: bytes, wanted: Wanted) -> list[Entry]:
        """Read entries piece by piece, the newest first."""
        entries: list[Entry] = []  # newest first
        left, room, below = wanted.newest, wanted.room, MAX_SEQ + 1
        while left is None or left > 0:
            most = PIECE if left is None else min(left, PIECE)
            ranges = [(first, min(last, below - 1)) for first, last in wanted.ranges if first < below]
            if not ranges:
                break
            async with self._turns:
                piece = await self._inner.entries(key, replace(wanted, ranges=ranges, newest=most, room=room))
                self._weighed(load, piece)
            entries += reversed(piece)
            if len(piece) < most:
                break
            below, left = piece[0].seq, None if left is None else left - len(piece)
            room = None if room is None else max(0, room - sum(len(entry.frame or b"") for entry in piece))
        return entries[::-1]

    def _weighed(self, load: Load, entries: list[Entry]) -> list[Entry]:
        load.take(sum(map(_weight, entries)), ASK)
        return entries


def _many(wanted: Wanted) -> int:
    """How many entries there can be."""
    count = sum(max(0, last - first + 1) for first, last in wanted.ranges)
    return count if wanted.newest is None else min(count, wanted.newest)


def _weight(entry: Entry) -> int:
    return EACH + len(entry.note or b"") + len(entry.frame or b"") + len(entry.recipe)


def _taken(load: Load, heads: list[Head | None]) -> list[Head | None]:
    there = [head for head in heads if head is not None]
    parts = chain.from_iterable((head.last, head.data, *(head.frames or ())) for head in there)
    size = sum(_weight(entry) for entry in parts if entry is not None)
    load.take(size + sum(EACH + len(head.row.body) for head in there), ASK)
    return heads


def _left_out(entry: Entry) -> bool:
    return entry.frame is None and entry.size > len(entry.note or b"")


def check_short(group: Group) -> None:
    """Raise `TooLarge` for a note or body with which a piece would take more memory than is set aside for it."""
    _check_short(entry.note for entry in group.entries)
    _check_short((group.body, None if group.create is None else group.create.body))


def _check_short(values: Iterable[bytes | None]) -> None:
    for value in values:
        if value is not None and len(value) > LONGEST:
            hint = "keep what is larger in the agent's data"
            what = "metadata, a record or a result, or a session's context, as stored,"
            raise TooLarge(what, limit=LONGEST, size=len(value), hint=hint)
