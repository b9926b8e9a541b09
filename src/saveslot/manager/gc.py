"""Garbage collection: purges sessions that ended long ago, and deleted sessions after their grace, rows included.

An ended session is purged only if its newest entry is still the one that was found, so a session that was reopened
meanwhile stays. Each batch is one short, independent write: after a stop, the next run continues where this one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from saveslot.errors import InvalidInput
from saveslot.session.engine import Space
from saveslot.values.checks import Data, Span, as_state
from saveslot.values.lifecycle import COMPLETED, FAILED, SessionState
from saveslot.values.log import Place, Query, Row, as_age, order

# Sessions per search; maximum entries and bytes per purge, so that writers wait a few milliseconds at most (longer only
# if a single session is larger).
BATCH, ENTRIES, LARGE = 250, 1500, 2_000_000
# After a purge that took t seconds, pause so that writers get their turn: 4.5 t on a single-writer store; elsewhere
# 6 t, but at most 0.048 s (a purge that took longer was mostly waiting for others), and at least 2 t.
SERIAL_REST, REST, ENOUGH, LEAST = 4.5, 6.0, 0.048, 2.0
# How long ago a session has ended before it is garbage.
AGE = timedelta(days=30)
# How long a deleted session stays readable in the database.
TOMBSTONES = timedelta(days=7)

Progress = Callable[[int, int], None]  # done, total


@dataclass
class Garbage:
    """What `gc` removed, or would remove."""

    sessions: list[str] = field(default_factory=list[str])  # ids of ended sessions
    tombstones: list[str] = field(default_factory=list[str])  # ids of sessions deleted before
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


async def gc(
    sessions: Space,
    older_than: Span | None = AGE,
    states: Collection[SessionState | str] = (COMPLETED, FAILED),
    *,
    grace: Span = TOMBSTONES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Garbage:
    """Purge sessions that ended at least `older_than` ago (None: none), and those deleted at least `grace` ago.

    This cannot be undone. `dry_run` only reports. `progress` is called with the numbers done and to do.
    """
    queries = wanted(sessions, older_than, states, grace)
    return await collect(sessions, queries, dry_run=dry_run, progress=progress)


async def collect(
    sessions: Space,
    queries: Sequence[Query],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    trusted: Callable[[], bool] = lambda: True,
) -> Garbage:
    """Purge what these queries find. End early if the clock that the ages were measured by is not `trusted` then."""
    total = (
        sum([sum((await sessions.engine.vault.count(query)).states.values()) for query in queries]) if progress else 0
    )
    garbage = Garbage(dry_run=dry_run)
    looked = 0
    for query in queries:
        column = order(query)[0]
        after: Place | None = None
        while rows := await sessions.engine.vault.find(query, after, BATCH):
            if not trusted():
                return garbage
            after = (getattr(rows[-1], column), rows[-1].key)
            sound = [row for row in rows if row.locked is None]  # damaged ones stay for `saveslot doctor`
            gone = sound if dry_run else await _collected(sessions, sound, ended=query.deleted_for is None)
            ids = garbage.tombstones if query.deleted_for is not None else garbage.sessions
            ids += [row.session_id for row in gone]
            garbage.bytes += sum(row.weight for row in gone)
            looked += len(rows)
            if progress is not None:
                progress(looked, max(total, looked))
            await asyncio.sleep(0)
    return garbage


def wanted(
    sessions: Space,
    older_than: Span | None = AGE,
    states: Collection[SessionState | str] = (COMPLETED, FAILED),
    grace: Span = TOMBSTONES,
) -> list[Query]:
    """Return the queries for the sessions that `gc` purges."""
    deleted_for = as_age(grace, "grace")
    ended_for = None if older_than is None else as_age(older_than, "older_than")
    chosen = {as_state(state) for state in ([states] if isinstance(states, str) else states)}
    if chosen - {COMPLETED, FAILED}:
        hint = "end the others first (cleanup_stale_sessions fails those without a heartbeat)"
        raise InvalidInput("states", f"only completed and failed sessions are garbage; {hint}")
    queries = [Query(namespace=sessions.namespace, deleted_for=deleted_for)]
    if ended_for is not None:
        queries += [Query(namespace=sessions.namespace, state=s.value, ended_for=ended_for) for s in sorted(chosen)]
    return queries


async def _collected(sessions: Space, rows: list[Row], *, ended: bool) -> list[Row]:
    """Purge these and return those purged; an ended session that was written to since it was found stays."""
    gone: list[Row] = []
    clock = asyncio.get_running_loop().time
    for part in _parts(rows):
        start = clock()
        keys = [row.key for row in part]
        counts = await sessions.engine.vault.purge(keys, [row.last for row in part] if ended else None)
        gone += (done := [row for row, count in zip(part, counts, strict=True) if count])
        for row in done if ended else ():
            sessions.engine.cache.drop((sessions.namespace, row.session_id))
        await asyncio.sleep(_rest(clock() - start, serial=sessions.engine.vault.traits.serial))
    return gone


def _rest(took: float, *, serial: bool) -> float:
    return SERIAL_REST * took if serial else max(LEAST * took, min(REST * took, ENOUGH))


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Split rows, in order, into parts within the limits per purge; a larger session is a part of its own."""
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
