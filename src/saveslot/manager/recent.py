"""The newest entries of a namespace, whatever their sessions: what a tail begins with. Reads headers only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import chain

from saveslot.errors import Corrupt, KeyMissing
from saveslot.manager.headers import as_kinds
from saveslot.session.engine import Space
from saveslot.session.headers import owners
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import as_count
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import Entry, Query, Row, Wanted, moment

# Entries in an answer. As many sessions are looked at, those changed last: no other one can have a newer entry, unless
# a filter hides entries of these.
MOST = 200
# Logs read concurrently.
TOGETHER = 50


class RecentEntry(Answer, frozen=True):
    """An entry, and the state that its session has now."""

    session_id: str
    seq: int
    kind: str
    name: str
    timestamp: Time
    agent_type: str
    state: str
    owner: str | None  # the worker that wrote the entry under its lease; null: none did, or it cannot be read
    bytes: int


class Recent(Answer, frozen=True):
    items: list[RecentEntry]  # newest first
    next: None


async def recent(
    sessions: Space,
    *,
    kinds: Collection[str] = (),
    names: Collection[str] = (),
    agent_types: Collection[str] = (),
    session_ids: Collection[str] = (),
    limit: int = 100,
) -> Recent:
    """Return the newest entries of the sessions that were changed last; an empty filter means all."""
    limit = min(as_count(limit, "limit", 1), MOST)
    rows = await _rows(sessions, agent_types, session_ids)
    only = as_kinds(kinds) or None
    wanted = [Wanted(kinds=only, name=name, newest=limit, frames=False) for name in names or (None,)]
    found: list[tuple[Entry, Row]] = []
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        if len(found) == limit and 0 < part[0].changed_at <= found[-1][0].at:
            break
        logs = await asyncio.gather(*(_log(sessions, row, each) for row in part for each in wanted))
        found += [
            (entry, row) for row, log in zip((row for row in part for _ in wanted), logs, strict=True) for entry in log
        ]
        found = sorted(found, key=lambda pair: (pair[0].at, pair[0].seq), reverse=True)[:limit]
    workers = await _workers(sessions, found)
    return Recent([_entry(entry, row, workers.get(entry.lease or b"")) for entry, row in found], None)


async def _rows(sessions: Space, agent_types: Collection[str], session_ids: Collection[str]) -> Sequence[Row]:
    """Return the sessions that were changed last."""
    vault, namespace = sessions.engine.vault, sessions.namespace
    if session_ids:
        heads = await vault.heads([(namespace, one) for one in dict.fromkeys(session_ids)])
        rows = [head.row for head in heads if head is not None]
        return [row for row in rows if not agent_types or row.agent_type in agent_types]
    queries = [Query(namespace=namespace, agent_type=one, changed=True) for one in agent_types or (None,)]
    pages = await asyncio.gather(*(vault.find(query, None, MOST) for query in queries))
    return sorted(chain.from_iterable(pages), key=lambda row: row.changed_at, reverse=True)[:MOST]


async def _log(sessions: Space, row: Row, wanted: Wanted) -> list[Entry]:
    try:
        return await sessions.engine.vault.stored.entries(row.key, wanted)
    except Corrupt:  # one damaged session must not hide the others
        return []


async def _workers(sessions: Space, found: Sequence[tuple[Entry, Row]]) -> dict[bytes, str]:
    """Return the workers of the leases that these entries were written under. Past ones cost a read per session."""
    workers = {row.lease: row.worker for _, row in found if row.lease is not None}
    past = {row.key: row for entry, row in found if entry.lease is not None and entry.lease not in workers}
    rows = list(past.values())
    for start in range(0, len(rows), TOGETHER):
        for named in await asyncio.gather(*(_past_workers(sessions, row) for row in rows[start : start + TOGETHER])):
            workers |= named
    return workers


async def _past_workers(sessions: Space, row: Row) -> dict[bytes, str]:
    wanted = Wanted(kinds=TAKING_KINDS, frames=False)
    try:
        takings = await sessions.engine.vault.entries(row.key, wanted)
        return {lease: owner.worker for lease, owner in owners(takings, row.session_id).items()}
    except (Corrupt, KeyMissing):  # a damaged or sealed session must not hide the others
        return {}


def _entry(entry: Entry, row: Row, owner: str | None) -> RecentEntry:
    kind, at = Kind(entry.kind).label, moment(entry.at)
    return RecentEntry(row.session_id, entry.seq, kind, entry.name, at, row.agent_type, row.state, owner, entry.size)
