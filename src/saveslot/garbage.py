"""Garbage: whole sessions that ended long ago, and deleted ones whose grace is over. Rows and all.

An ended session is purged only if it still ends with the entry that was seen, so one that somebody took up again
meanwhile stays. Each batch is one short write, and stands for itself: stopped anywhere, the next run goes on where this
one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from saveslot.errors import InvalidInput
from saveslot.lifecycle import COMPLETED, FAILED, SessionState
from saveslot.log import Place, Query, Row, as_age, order
from saveslot.model import Data, as_state
from saveslot.thinning import SessionThinner

# Sessions that are looked for together; entries and bytes that are removed together: a writer waits for no more than a
# few milliseconds (for longer only where a single session is larger).
BATCH, ENTRIES, LARGE = 250, 1500, 2_000_000
# Behind each removal others have the store for themselves: for so many times as long as that took, where nobody else
# could write meanwhile. Elsewhere for up to so many times, but so many seconds are enough (what took longer was mostly
# waiting for others), unless so many times are more.
SERIAL_REST, REST, ENOUGH, LEAST = 4.5, 6.0, 0.048, 2.0
# How long a deleted session can still be looked into, by whoever has the database.
TOMBSTONES = timedelta(days=7)

Progress = Callable[[int, int], None]  # so many of so many


@dataclass
class Garbage:
    """What `gc` removed, or would remove."""

    sessions: list[str] = field(default_factory=list[str])  # ended ones
    tombstones: list[str] = field(default_factory=list[str])  # deleted before
    bytes: int = 0  # of their frames and notes
    dry_run: bool = False

    @property
    def count(self) -> int:
        return len(self.sessions) + len(self.tombstones)

    def to_dict(self) -> Data:
        return {
            "dry_run": self.dry_run,
            "sessions": list(self.sessions),
            "tombstones": list(self.tombstones),
            "count": self.count,
            "bytes": self.bytes,
        }


class SessionCollector(SessionThinner):
    """A thinner that can remove whole sessions."""

    async def gc(
        self,
        older_than: timedelta | None = timedelta(days=30),
        states: Collection[SessionState | str] = (COMPLETED, FAILED),
        *,
        grace: timedelta = TOMBSTONES,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Garbage:
        """Remove the sessions that ended so long ago (None: none), and those deleted longer ago than `grace`.

        Nothing comes back. `dry_run` only tells. `progress` is called with what is done and what there is to do.
        """
        queries = self._wanted(older_than, states, grace)
        total = sum([sum((await self._store.count(query)).states.values()) for query in queries]) if progress else 0
        found = Garbage(dry_run=dry_run)
        looked = 0
        for query in queries:
            column = order(query)[0]
            after: Place | None = None
            while rows := await self._store.find(query, after, BATCH):
                after = (getattr(rows[-1], column), rows[-1].key)
                gone = rows if dry_run else await self._collected(rows, ended=query.deleted_for is None)
                ids = found.tombstones if query.deleted_for is not None else found.sessions
                ids += [row.session_id for row in gone]
                found.bytes += sum(row.weight for row in gone)
                looked += len(rows)
                if progress is not None:
                    progress(looked, max(total, looked))
                await asyncio.sleep(0)
        return found

    async def _collect(self, older_than: timedelta | None) -> tuple[int, int]:
        found = await self.gc(older_than)
        return found.count, found.bytes

    def _wanted(
        self, older_than: timedelta | None, states: Collection[SessionState | str], grace: timedelta
    ) -> list[Query]:
        deleted_for = as_age(grace, "grace")
        ended_for = None if older_than is None else as_age(older_than, "older_than")
        chosen = {as_state(state) for state in ([states] if isinstance(states, str) else states)}
        if chosen - {COMPLETED, FAILED}:
            hint = "end the others first (cleanup_stale_sessions fails those without a sign of life)"
            raise InvalidInput("states", f"only completed and failed sessions are garbage; {hint}")
        queries = [Query(namespace=self.namespace, deleted_for=deleted_for)]
        if ended_for is not None:
            queries += [Query(namespace=self.namespace, state=s.value, ended_for=ended_for) for s in sorted(chosen)]
        return queries

    async def _collected(self, rows: list[Row], *, ended: bool) -> list[Row]:
        """Those that are gone now; of ended ones not those that somebody wrote to since they were found."""
        gone: list[Row] = []
        clock = asyncio.get_running_loop().time
        for part in _parts(rows):
            start = clock()
            keys = [row.key for row in part]
            counts = await self._store.purge(keys, [row.last for row in part] if ended else None)
            gone += (done := [row for row, count in zip(part, counts, strict=True) if count])
            for row in done if ended else ():
                self._slots.forget(self._slots.get(row.session_id))
            await asyncio.sleep(_rest(clock() - start, serial=self._store.serial))
        return gone


def _rest(took: float, *, serial: bool) -> float:
    return SERIAL_REST * took if serial else max(LEAST * took, min(REST * took, ENOUGH))


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    """In their order, none with more than may be removed together unless it is a single one."""
    part: list[Row] = []
    entries = weight = 0
    for row in rows:
        entries, weight = entries + row.length, weight + row.weight
        if part and (entries > ENTRIES or weight > LARGE):
            yield part
            part, entries, weight = [], row.length, row.weight
        part.append(row)
    if part:
        yield part
