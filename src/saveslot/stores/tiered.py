"""Valkey in front of any store. The database is the only truth; Valkey lends copies of frames, and hints.

What lies in Valkey is used only for an entry that the database, asked in the same call, says is there with a frame,
and only if it carries the mark of exactly that entry (`hot.py`). Small frames come with that answer: PostgreSQL keeps
them in the row which it reads anyway, and nothing is quicker. Valkey lends the others. From this follows, whatever
Valkey does (down, full, slow, flushed, an old replica promoted, garbage):

- Heads, headers, lists and events are the database's: every read is as new as without the tier.
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
    Entry,
    Event,
    Group,
    Outcome,
    Verdict,
)
from saveslot.stores import Store
from saveslot.stores.hot import LARGE, HotMetrics, HotTier
from saveslot.stores.metered import metered
from saveslot.stores.passing import PassingStore

# Bytes of a frame that the database sends along. PostgreSQL moves what makes a row longer than 2 KB to another place.
SMALL = 2048
# A call that names more frames is a walk through a history, not a resume: the database alone answers it.
SPAN = 4096
# A watcher asks the database this often while Valkey tells it when to, and never in quicker succession. Without
# Valkey's word the database itself is waited for; so long at a time, since Valkey may come back.
LAZY, QUICK, LONG = 0.25, 0.01, 1.0


class TieredStore(PassingStore):
    def __init__(self, durable: Store, client: Any, ttl: float = 24 * 3600, *, own: bool = False) -> None:
        """`client`: an asyncio one of the `valkey` or `redis` package; it stays open unless it is the store's `own`.
        `ttl`: seconds that a copy lives.
        """
        self._durable = metered(durable)
        super().__init__(self._durable)
        self._hot = HotTier(client, ttl, own=own)

    @classmethod
    def at(cls, durable: Store, url: str, ttl: float = 24 * 3600) -> TieredStore:
        """Valkey by its URL. It need not be there: it is used when it answers."""
        return cls(durable, url, ttl)

    @property
    def forks(self) -> bool:
        return False  # Valkey's connections do not

    def metrics(self) -> dict[str, Any]:
        return {"hot": self._hot.metrics(), **self._durable.metrics()}

    @property
    def counts(self) -> HotMetrics:
        return self._hot.counts

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        verdicts = await self._durable.append(groups)
        for group, verdict in zip(groups, verdicts, strict=True):
            if verdict.outcome is Outcome.APPENDED:  # not `already`: it may have been emptied since it landed
                self._hot.fill(group.key, [entry for entry in group.entries if len(entry.frame or b"") > SMALL])
                self._hot.tell()
        return verdicts

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        ask = self._durable.entries
        if not frames or largest is not None or not self._hot.readable:
            found = await ask(key, ranges, kinds=kinds, name=name, newest=newest, frames=frames, largest=largest)
            if any(len(entry.frame or b"") > SMALL for entry in found):
                self._hot.warm()
            return found
        found = await ask(key, ranges, kinds=kinds, name=name, newest=newest, largest=SMALL)
        # The database has said which frames there are, whatever Valkey says.
        lent = {entry.seq: entry for entry in found if entry.frame is None and _frame_size(entry) > SMALL}
        near = [seq for seq, entry in lent.items() if _frame_size(entry) <= LARGE]
        copies = await self._hot.read(key, near) if len(near) <= SPAN else {}
        for seq in near:
            lent[seq].frame = self._hot.frame_of(lent[seq], copies.get(seq))
        missing = [seq for seq, entry in lent.items() if entry.frame is None]
        if not missing:
            return found
        rest = {entry.seq: entry for entry in await ask(key, _runs(missing))}
        if len(rest) < len(missing):  # the session was purged meanwhile
            return await ask(key, ranges, kinds=kinds, name=name, newest=newest)
        self._hot.fill(key, rest.values(), over=copies.keys() & rest.keys())
        return [rest.get(entry.seq, entry) for entry in found]

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        nap = QUICK
        if wait > 0:
            self._hot.listen()
        while True:
            news, asked, told = self._hot.news, time.monotonic(), self.counts.listening
            patience = 0 if told else max(0.0, min(LONG, end - asked))
            found, after = await self._durable.events(namespace, after, key, limit=limit, wait=patience)
            left = end - time.monotonic()
            if found or left <= 0:
                return found, after
            if not told:
                continue
            try:
                await asyncio.wait_for(news.wait(), min(nap, left))
            except TimeoutError:
                nap = LAZY
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

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        counts = await self._durable.purge(keys, seen)
        for key, count in zip(keys, counts, strict=True):
            await self._hot.bury(key, range(1, count + 1))  # rows stay until the purge: it removed exactly these
        return counts

    async def close(self) -> None:
        await self._hot.close()
        await self._durable.close()


def _frame_size(entry: Entry) -> int:
    return entry.size - len(entry.note or b"")


def _runs(seqs: list[int]) -> list[tuple[int, int]]:
    """The same seqs as ranges."""
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs
