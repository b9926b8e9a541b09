"""The entries of a namespace within a minute, counted by all server processes of a store together.

The count is in the body of the quota's session, by the second and by the store's clock:

    {"context": {"namespace": "school-7", "checkpoints_per_minute": 600, "taken": [[1763589600, 19], [1763589601, 42]]}}

A process takes some entries in advance, by exchanging that body for a new one if it is still the same, and gives back
what it has not used when it takes the next ones. So a write waits for the store once a second, or when a share of the
limit is used up, and all processes together never take more than the limit. What a process took and died with counts
for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from saveslot import codec
from saveslot.errors import InvalidInput, QuotaExceeded, Unavailable
from saveslot.server.quotas import id_of
from saveslot.stores import Store
from saveslot.stores.wire.loops import running
from saveslot.values.checks import RESERVED, now
from saveslot.values.log import Head, micros

# Seconds of the window; and for how many a process may use what it took.
MINUTE, HELD = 60, 1.0
# The part of the limit that is taken at once: what a process that dies, or is idle, keeps from the others for a minute.
PART = 32
# Attempts at an exchange that other processes overtook.
TRIES = 50


class Minute:
    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._taking = asyncio.Lock()
        self._left = 0  # taken and not used
        self._second = 0  # when it was taken, by the store's clock
        self._own: dict[int, int] | None = None  # where the store cannot: what this process took, by the second
        self._until = float("-inf")  # when it has to be given back, by the loop's clock

    async def take(self, limit: int, most: int, entries: int) -> None:
        """Count these entries; `QuotaExceeded` if there would be more than `most`, which a few kinds may come to."""
        async with self._taking:
            if self._left < entries or running().time() > self._until:
                await self._take(limit, most, entries)
            self._left -= entries

    def give_back(self, entries: int) -> None:
        self._left += entries

    async def used(self) -> int:
        """How many entries were taken within the last minute, but for what this process has not used of them."""
        head = await self._head()
        return 0 if head is None else sum(self._parts(head).values())

    async def _take(self, limit: int, most: int, entries: int) -> None:
        for _ in range(TRIES):
            head = await self._head()
            if head is None:  # the quota was lifted just now
                self._left = entries
                return
            left, parts, second = self._left, self._parts(head), _second(head)
            used = sum(parts.values())
            if used + entries > most:
                raise self._exceeded(limit, used, entries, most, parts, second)
            share = max(entries, min(limit // PART, limit - used))
            parts[second] = parts.get(second, 0) + share
            if await self._exchanged(head, parts):
                self._left += share - left  # some may have been given back meanwhile
                self._second, self._until = second, running().time() + HELD
                return
        raise Unavailable(f"the entries of namespace {self._namespace} could not be counted for its quota; retry")

    async def _exchanged(self, head: Head, parts: dict[int, int]) -> bool:
        """Put these in the place of those that the head has; False if another process did."""
        if self._own is None:
            about = codec.read_note(head.row.body)
            about["context"]["taken"] = [[at, parts[at]] for at in sorted(parts)]
            try:
                return await self._store.swap(head.row.key, head.row.body, codec.note(about, "quota"))
            except InvalidInput:  # Valkey alone does not exchange bodies
                pass
        self._own = parts
        return True

    async def _head(self) -> Head | None:
        [head] = await self._store.heads([(RESERVED, id_of(self._namespace))])
        return head

    def _parts(self, head: Head) -> dict[int, int]:
        """Entries by second, of the last minute; what this process has left is not used."""
        parts: dict[int, int] = dict(
            codec.read_note(head.row.body)["context"].get("taken", ()) if self._own is None else self._own
        )
        left = self._left
        for second in sorted(parts, reverse=True):
            if second <= self._second:
                back = min(left, parts[second])
                parts[second] -= back
                left -= back
        since = _second(head) - MINUTE
        return {second: many for second, many in parts.items() if second > since and many > 0}

    def _exceeded(
        self, limit: int, used: int, entries: int, most: int, parts: Mapping[int, int], second: int
    ) -> QuotaExceeded:
        wait = 0
        if entries > most:
            hint = f"this brings {entries:,} at once; it needs a higher quota"
        else:
            over, wait = used + entries - most, MINUTE
            for at in sorted(parts):
                over -= parts[at]
                if over <= 0:
                    wait = max(1, at + MINUTE - second)
                    break
            hint = f"retry in {wait} s"
        what: dict[str, Any] = {"limit": limit, "used": used, "hint": hint, "retry_after": wait}
        return QuotaExceeded(self._namespace, "checkpoints_per_minute", **what)


def _second(head: Head) -> int:
    return (head.row.now or micros(now())) // 1_000_000
