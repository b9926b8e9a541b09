"""The newest entries of a namespace, whatever their sessions: what a tail begins with. Reads headers only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import chain

from saveslot.errors import Corrupt
from saveslot.manager.headers import as_kinds
from saveslot.session.engine import Space
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import as_count
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Query, Row, Wanted, moment

# Entries in an answer. As many sessions are looked at, those changed last: no other one can have a newer entry, unless
# a filter hides entries of these.
MOST = 200
# Logs read concurrently.
TOGETHER = 50


class RecentEntry(Answer, frozen=True):
    """An entry, and what its session is like now."""

    session_id: str
    seq: int
    kind: str
    name: str
    timestamp: Time
    agent_type: str
    state: str
    owner: str | None  # the worker that holds the session
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
    return Recent([_entry(entry, row) for entry, row in found], None)


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


def _entry(entry: Entry, row: Row) -> RecentEntry:
    owner = None if row.lease is None else row.worker
    kind, at = Kind(entry.kind).label, moment(entry.at)
    return RecentEntry(row.session_id, entry.seq, kind, entry.name, at, row.agent_type, row.state, owner, entry.size)
