"""Garbage: whole sessions that ended long ago, and deleted ones whose grace is over. Rows and all.

An ended session is deleted by a tombstone behind the entry that was seen, so one that somebody took up again meanwhile
stays; then it is purged. Each batch is a few short transactions, and stands for itself: stopped anywhere, the next run
goes on where this one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from saveslot.errors import InvalidInput
from saveslot.lifecycle import COMPLETED, FAILED, SessionState
from saveslot.log import MICROSECOND, Head, Outcome, Place, Query, Row, order
from saveslot.model import Data, Kind, as_state
from saveslot.slot import Draft, Point
from saveslot.thinning import SessionThinner

# Sessions that are removed together: a writer waits for no more than a few milliseconds.
BATCH = 250
# Behind each batch others have the store for themselves, for this part of the time that the batch took.
REST = 0.5
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
        found, loop = Garbage(dry_run=dry_run), asyncio.get_running_loop()
        looked = 0
        for query in queries:
            column = order(query)[0]
            after: Place | None = None
            while rows := await self._store.find(query, after, BATCH):
                start = loop.time()
                after = (getattr(rows[-1], column), rows[-1].key)
                gone = rows if dry_run else await self._collected(rows, ended=query.deleted_for is None)
                ids = found.tombstones if query.deleted_for is not None else found.sessions
                ids += [row.session_id for row in gone]
                found.bytes += sum(row.weight for row in gone)
                looked += len(rows)
                if progress is not None:
                    progress(looked, max(total, looked))
                await asyncio.sleep(0 if dry_run else REST * (loop.time() - start))
        return found

    async def _collect(self, older_than: timedelta | None) -> tuple[int, int]:
        found = await self.gc(older_than)
        return found.count, found.bytes

    def _wanted(
        self, older_than: timedelta | None, states: Collection[SessionState | str], grace: timedelta
    ) -> list[Query]:
        _check("older_than", older_than)
        _check("grace", grace)
        chosen = {as_state(state) for state in ([states] if isinstance(states, str) else states)}
        if chosen - {COMPLETED, FAILED}:
            hint = "end the others first (cleanup_stale_sessions fails those without a sign of life)"
            raise InvalidInput("states", f"only completed and failed sessions are garbage; {hint}")
        queries = [Query(namespace=self.namespace, deleted_for=grace // MICROSECOND)]
        if older_than is not None:
            age = older_than // MICROSECOND
            queries += [Query(namespace=self.namespace, state=s.value, ended_for=age) for s in sorted(chosen)]
        return queries

    async def _collected(self, rows: list[Row], *, ended: bool) -> list[Row]:
        """Those that are gone now; of ended ones not those that somebody wrote to since they were found."""
        if ended:
            heads = await self._store.heads([row.key for row in rows])
            rows = await self._deleted(rows, heads)
        counts = await self._store.purge([row.key for row in rows])
        return [row for row, count in zip(rows, counts, strict=True) if count]

    async def _deleted(self, rows: list[Row], heads: list[Head | None]) -> list[Row]:
        drafts: list[Draft] = []
        chosen: list[Row] = []
        for row, head in zip(rows, heads, strict=True):
            if head is not None and (head.row.state, head.row.heartbeat) == (row.state, row.heartbeat):
                draft = Draft(row.key, Point.of(head), self._limit)
                draft.lifecycle(Kind.TOMBSTONE, "session_deleted", {})
                draft.group.delete = True
                drafts.append(draft)
                chosen.append(row)
                self._slots.forget(self._slots.get(row.session_id))
        verdicts = await self._store.append([draft.group for draft in drafts])
        landed = {Outcome.APPENDED, Outcome.ALREADY}
        return [row for row, verdict in zip(chosen, verdicts, strict=True) if verdict.outcome in landed]


def _check(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
        raise InvalidInput(name, f"must be a timedelta of 0 or more, not {value!r}")
