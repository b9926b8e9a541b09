"""Valkey in front of any store. The database is the only truth; Valkey lends copies of frames, and hints.

What lies in Valkey is used only for an entry that the database, asked in the same call, says is there with a frame,
and only if it carries the mark of exactly that entry (`hot.py`). From this follows, whatever Valkey does (down, full,
slow, flushed, an old replica promoted, garbage):

- Heads, headers, lists and events are the database's: every read is as new as without the tier. (So this is the level
  `strong`, which is also `session`.)
- An emptied or purged frame never comes back to a reader: the database no longer says that it is there. Its copy is
  taken away as well, and its place kept (a grave) so that a copy still under way finds it taken; should Valkey not
  answer just then, the copy ends unread with its time to live.
- A write is acknowledged when the database has it. Copies are made afterwards, in the background, or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from saveslot.errors import Unavailable
from saveslot.log import (
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Verdict,
    Worker,
)
from saveslot.stores import Store, Tended
from saveslot.stores.hot import HotMetrics, HotTier, connect
from saveslot.stores.joining import Joining

# A call that spans more entries is a walk through a history, not a resume: the database alone answers it.
SPAN = 4096
# A watcher asks the database this often; less often while Valkey tells it when to; and never in quicker succession.
POLL, LAZY, QUICK = 0.05, 0.25, 0.01


class TieredStore:
    def __init__(self, durable: Store, client: Any, ttl: float = 24 * 3600, *, own: bool = False) -> None:
        """`client`: an asyncio one of the `valkey` or `redis` package; it stays open unless it is the store's `own`.
        `ttl`: seconds that a copy lives.
        """
        self._durable = durable
        self._hot = HotTier(client, ttl, own=own)
        self._joining = Joining(durable.heads)

    @classmethod
    def at(cls, durable: Store, url: str, ttl: float = 24 * 3600) -> TieredStore:
        """Valkey by its URL. It need not be there: it is used when it answers."""
        return cls(durable, connect(url), ttl, own=True)

    @property
    def metrics(self) -> HotMetrics:
        metrics = self._hot.metrics
        metrics.queries = self._joining.queries
        return metrics

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        verdicts = await self._durable.append(groups)
        for group, verdict in zip(groups, verdicts, strict=True):
            if verdict.outcome is Outcome.APPENDED:  # not `already`: it may have been emptied since it landed
                self._hot.fill(group.key, group.entries)
                self._hot.tell()
        return verdicts

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        self._hot.counts.heads += len(refs)
        return await self._joining.heads(refs)

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
    ) -> list[Entry]:
        chosen = name is None and newest is None and sum(last - first + 1 for first, last in ranges) <= SPAN
        if not (frames and chosen and self._hot.readable):
            return await self._durable.entries(key, ranges, kinds=kinds, name=name, newest=newest, frames=frames)
        seqs = [seq for first, last in ranges for seq in range(first, last + 1)]
        reading = asyncio.ensure_future(self._hot.read(key, seqs))
        try:
            found = await self._durable.entries(key, ranges, kinds=kinds, frames=False)
            copies = await reading
        finally:
            reading.cancel()
        missing: list[int] = []
        for entry in found:
            # Else there is no frame, or no longer, or an empty one: whatever Valkey has, the database says which.
            if entry.size > len(entry.note or b""):
                entry.frame = self._hot.frame_of(entry, copies.get(entry.seq))
            if entry.frame is None:
                missing.append(entry.seq)
        if not missing:
            return found
        rest = {entry.seq: entry for entry in await self._durable.entries(key, _runs(missing))}
        if len(rest) < len(missing):  # the session was purged meanwhile
            return await self._durable.entries(key, ranges, kinds=kinds)
        self._hot.fill(key, rest.values(), over=copies.keys() & rest.keys())
        return [rest.get(entry.seq, entry) for entry in found]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._durable.find(query, after, limit)

    async def count(self, query: Query) -> Counts:
        return await self._durable.count(query)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        return await self._durable.beat(signs, worker)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        nap = QUICK
        if wait > 0:
            self._hot.listen()
        while True:
            news, asked = self._hot.news, time.monotonic()
            found, after = await self._durable.events(namespace, after, key, limit=limit)
            left = end - time.monotonic()
            if found or left <= 0:
                return found, after
            try:
                await asyncio.wait_for(news.wait(), min(nap, left))
            except TimeoutError:
                nap = LAZY if self._hot.listening else POLL
            else:  # what was announced may be shown a moment later: look soon, and once more
                nap = QUICK
                await asyncio.sleep(asked + QUICK - time.monotonic())

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        count = await self._durable.empty(key, seqs, notes=notes, body=body)
        left = self._hot.counts.left
        await self._hot.bury(key, sorted(set(seqs)))
        if notes and self._hot.counts.left > left:  # whoever drops notes erases: that is done when no copy is left
            raise Unavailable("Valkey did not answer, so copies of what was erased may be in it; erase again")
        return count

    async def purge(self, key: bytes) -> int:
        count = await self._durable.purge(key)
        await self._hot.bury(key, range(1, count + 1))  # rows stay until the purge: it removed exactly these
        return count

    async def tend(self) -> None:
        if isinstance(self._durable, Tended):
            await self._durable.tend()

    async def close(self) -> None:
        await self._hot.close()
        await self._durable.close()


def _runs(seqs: list[int]) -> list[tuple[int, int]]:
    """The same seqs as ranges."""
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs
