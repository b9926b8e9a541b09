"""Valkey in front of any store. The database is the only source of truth; Valkey lends copies of states, and hints.

A reader of a state asks both at the same time: the database for the head and the header of its newest data, Valkey for
its copy (`copies.py`). If the copy's head is the database's head, the frames come from Valkey and the database sends
none; otherwise they are read from the database, and copied. From this follows, whatever Valkey does (down, full, slow,
flushed, a stale replica promoted, garbage):

- Heads, headers, lists, histories and events are the database's: every read is as new as without the tier.
- A deleted, cleared or erased state never comes back to a reader: the database no longer has its head. Its copy is
  removed as well; after an erasure a grave takes its place, so that a copy under way does not bring the bytes back.
- A write is acknowledged when the database has it. The copy follows in the background, or not at all: then it keeps an
  older head, and is not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from saveslot.errors import Corrupt, Unavailable
from saveslot.stores import Store
from saveslot.stores.around.metered import metered
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.hot.connection import Connection, HotMetrics, Operation
from saveslot.stores.hot.copies import GONE, Copies, Copy, Name, state_of, whole
from saveslot.stores.hot.news import News
from saveslot.stores.wire.loops import set_within
from saveslot.stores.wire.metrics import Calls
from saveslot.values.kinds import DATA_KINDS
from saveslot.values.log import Entry, Event, Group, Head, Outcome, Place, Query, Ref, Row, Verdict, Wanted
from saveslot.values.recipe import Recipe

# Seconds between a watcher's queries while hints arrive, and the least between two. Without hints the database itself
# waits for entries, at most 1 s at a time, since Valkey may come back.
LAZY, QUICK, LONG = 0.25, 0.01, 1.0
# Sessions whose namespace and id are remembered; a forgotten one is not read from Valkey until it is listed or loaded.
REMEMBERED = 100_000


class TieredStore(PassingStore):
    def __init__(self, durable: Store, client: Any, ttl: float = 24 * 3600, *, own: bool = False) -> None:
        """`client`: an asyncio one of the `valkey` or `redis` package; it stays open unless it is the store's `own`.
        `ttl`: seconds that a copy lives after the last entry.
        """
        self._durable = metered(durable)
        super().__init__(self._durable)
        self._connection = Connection(client, own=own)
        self._copies = Copies(self._connection, ttl)
        self._news = News(self._connection)
        self._names: dict[bytes, Name] = {}

    @classmethod
    def at(cls, durable: Store, url: str, ttl: float = 24 * 3600) -> TieredStore:
        """Valkey by its URL. It need not be there: it is used when it answers."""
        return cls(durable, url, ttl)

    def __repr__(self) -> str:
        return f"<TieredStore on {self._durable!r}>"

    def metrics(self) -> dict[str, Any]:
        return {"hot": self._connection.metrics(), **self._durable.metrics()}

    def calls(self) -> dict[tuple[str, str], Calls]:
        return {**self._connection.calls(), **self._durable.calls()}

    @property
    def counts(self) -> HotMetrics:
        return self._connection.counts

    def _remember(self, rows: Iterable[Row]) -> None:
        """The store's other primitives name a session by its key alone."""
        for row in rows:
            self._names[row.key] = (row.namespace, row.session_id)
        while len(self._names) > REMEMBERED:
            del self._names[next(iter(self._names))]

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        self._remember(group.create for group in groups if group.create is not None)
        verdicts = await self._durable.append(groups, together=together)
        for group, verdict in zip(groups, verdicts, strict=True):
            if verdict.outcome is Outcome.APPENDED and (name := self._names.get(group.key)) is not None:
                last = group.entries[-1]
                empty = group.delete or not last.data_seq  # nothing is left to copy
                entries = () if empty else group.entries
                self._copies.change(name, group.key, group.prev or b"", last, entries, anew=empty or not group.prev)
                self._news.wake()
        return verdicts

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        if not state:
            heads = await self._durable.heads(refs)
            self._remember(head.row for head in heads if head is not None)
            return heads
        names = [self._names.get(ref) if isinstance(ref, bytes) else ref for ref in refs]
        readings = [None if name is None else self._copies.read(name) for name in names]
        try:
            heads = await self._durable.heads(refs, state=True)
            self._remember(head.row for head in heads if head is not None)
            await asyncio.gather(*map(self._add_frames, heads, readings))
        finally:
            for reading in readings:
                if reading is not None:
                    reading.abandon()
        return heads

    async def _add_frames(self, head: Head | None, reading: Operation | None) -> None:
        recipe = None if head is None or head.data is None else _recipe(head.data)
        if head is None or not recipe:
            return
        key, counts = head.row.key, self.counts
        copy: Copy | None = None if reading is None else await reading.result(recipe.base_raw + recipe.short_raw)
        if copy is not None and copy.head == head.last.append_id:
            try:
                head.frames = state_of(copy, key, recipe)
            except ValueError:
                counts.garbage += 1
        if head.frames is not None:
            counts.hits += 1
            return
        counts.misses += 1
        if copy is not None:
            wanted = Wanted(recipe.ranges, kinds=DATA_KINDS, chain=recipe.base)
            head.frames = await self._durable.entries(key, wanted)
            seen = copy.seen(key)
            if seen != GONE and whole(recipe, head.frames):
                name = (head.row.namespace, head.row.session_id)
                self._copies.change(name, key, seen, head.last, head.frames, anew=True)

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        rows = await self._durable.find(query, after, limit)
        self._remember(rows)
        return rows

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        if key is not None:  # Valkey's messages name no session, and would wake its watchers for all others
            return await self._durable.events(namespace, after, key, limit=limit, wait=wait)
        end = time.monotonic() + wait
        nap = QUICK
        if wait > 0:
            self._news.listen(namespace)
        while True:
            message, started, listening = self._news.message, time.monotonic(), self.counts.listening
            patience = 0 if listening else max(0.0, min(LONG, end - started))
            events, after = await self._durable.events(namespace, after, limit=limit, wait=patience)
            left = end - time.monotonic()
            if events or left <= 0:
                return events, after
            if not listening:
                continue
            if await set_within(message, min(nap, left)):
                nap = QUICK  # an announced entry may become visible a moment later: look soon, and once more
                await asyncio.sleep(started + QUICK - time.monotonic())
            else:
                nap = LAZY

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        count = await self._durable.empty(key, seqs, notes=notes)
        dropped = not seqs or await self._drop([key], graves=notes)
        if notes and not dropped and (count or key in self._names):
            raise Unavailable("Valkey did not confirm that the erased session's copy is gone; erase it again")
        return count

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        counts = await self._durable.purge(keys, seen)
        await self._drop([key for key, count in zip(keys, counts, strict=True) if count], graves=True)
        return counts

    async def _drop(self, keys: Sequence[bytes], *, graves: bool) -> bool:
        unknown = [key for key in keys if key not in self._names]
        if unknown:
            await self.heads(unknown)
        named = [(self._names[key], key) for key in keys if key in self._names]
        self.counts.left += len(keys) - len(named)  # deleted before this process could learn its name
        return await self._copies.drop(named, graves=graves) and len(named) == len(keys)

    async def close(self) -> None:
        await self._copies.close()
        await self._news.close()
        await self._connection.close()
        await self._durable.close()


def _recipe(entry: Entry) -> Recipe | None:
    try:
        return Recipe.unpack(entry.recipe, entry.seq)
    except Corrupt:  # reading the state raises it
        return None
