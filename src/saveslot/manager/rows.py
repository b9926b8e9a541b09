"""Rows: what a list shows of each session beside the session itself, from two reads for the whole page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from saveslot.errors import Corrupt, InvalidInput
from saveslot.manager.failures import End, failure
from saveslot.manager.outlook import Outlook, OwnerNow, outlooks, owner_now
from saveslot.session.engine import Space
from saveslot.session.headers import head_of
from saveslot.session.lookup import about_of
from saveslot.session.model import AgentSession
from saveslot.stores.around.cached import MAX_AGE, Level
from saveslot.values import refs
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Span, as_count
from saveslot.values.kinds import Kind
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Entry, Head, Place, Query, Row as StoredRow, moment, order

# Rows of a list that come with their outlooks: each costs a read of the session's steps.
OUTLOOKS = 20
# Combinations of states and agent types in one list: each is a query of its own.
QUERIES = 16
# A page ends early after this many bytes of contexts, which are looked at after so many rows.
ROOM, FEW = 4 << 20, 8


class Newest(Answer, frozen=True):
    """The newest checkpoint or rollback; where the agent is."""

    seq: int
    name: str
    kind: str
    at: Time


class Row(Answer, frozen=True):
    """What a list shows of a session."""

    entries: int  # in its log, all kinds
    owner: OwnerNow | None
    forked_from: str | None
    newest: Newest | None
    failure: End | None
    outlook: Outlook | None = None


class Listed(NamedTuple):
    session: AgentSession  # with its head
    row: Row


class Page(NamedTuple):
    items: list[Listed]
    next: str | None


async def rows(
    sessions: Space,
    queries: Sequence[Query],
    *,
    limit: int = 100,
    after: str | None = None,
    outlook: bool = False,
    level: Level = "strong",
    max_age: Span = MAX_AGE,
) -> Page:
    """Return a page of the sessions that match one of the queries, which all have the same order.

    With `outlook`, at most 20 rows, each with its outlook.
    """
    limit = as_count(limit, "limit", 1)
    if outlook and limit > OUTLOOKS:
        raise InvalidInput("limit", f"must be at most {OUTLOOKS} with outlooks, not {limit}")
    column, newest_first = order(queries[0])
    store = sessions.engine.answers.at(level, max_age)
    start = refs.place(after, changed=column == "changed_at")
    parts = await asyncio.gather(*(store.find(query, start, limit + 1) for query in queries))
    unique = {row.key: row for part in parts for row in part}.values()
    ordered = sorted(unique, key=lambda row: _place(row, column), reverse=newest_first)
    kept = ordered[:limit]
    heads = await sessions.engine.vault.heads([row.key for row in kept], state=True) if kept else []
    pairs = zip(kept, heads, strict=True)
    # A damaged one has no head, and is listed as far as it can be read; one that is gone is left out.
    read = [head or (None if row.locked is None else Head(row, Entry(0, b"", Kind.SKIPPED, ""))) for row, head in pairs]
    there = [head for head in read if head is not None]
    ahead = outlooks(sessions, [head for head in there if head.row.locked is None]) if outlook else None
    known = {} if ahead is None else {one.session_id: one for one in await ahead}
    items: list[Listed] = []
    size = 0
    for start in range(0, len(there), FEW):
        part = there[start : start + FEW]
        items += await asyncio.gather(*(_listed(sessions, head, known.get(head.row.session_id)) for head in part))
        size += sum(_weight(item.session) for item in items[start:])
        if size > ROOM and start + FEW < len(there):
            last = next(row for row in kept if row.key == part[-1].row.key)
            return Page(items, refs.cursor(_place(last, column), changed=column == "changed_at"))
    more = len(ordered) > limit
    return Page(items, refs.cursor(_place(kept[-1], column), changed=column == "changed_at") if more else None)


def _weight(session: AgentSession) -> int:
    """Bytes of its context, metadata and labels."""
    return 0 if session.seen is None else sum(map(len, session.seen.about.values()))


def _place(row: StoredRow, column: str) -> Place:
    return getattr(row, column), row.key


def each(query: Query, states: Sequence[SessionState], agent_types: Sequence[str]) -> list[Query]:
    """Return a query for each combination of a state and an agent type; an empty list is any."""
    pairs = list(product([state.value for state in states] or [query.state], agent_types or [query.agent_type]))
    if len(pairs) > QUERIES:
        raise InvalidInput(
            "state", f"and agent_type make {len(pairs)} combinations, but at most {QUERIES} are searched"
        )
    return [replace(query, state=state, agent_type=agent_type) for state, agent_type in dict.fromkeys(pairs)]


async def _listed(sessions: Space, head: Head, outlook: Outlook | None) -> Listed:
    newest = await sessions.lookup.newest(head)
    session = sessions.lookup.session(head, newest, locked=True)
    if head.row.locked is None:
        session.head = head_of(head, newest, session.owner)
    failed = await failure(sessions, head) if head.row.state == SessionState.FAILED else None
    return Listed(session, row_of(head, failed, outlook))


def row_of(head: Head, failed: End | None = None, outlook: Outlook | None = None) -> Row:
    data = head.data
    return Row(
        head.last.seq,
        owner_now(head),
        forked_from(head),
        None if data is None else Newest(data.seq, data.name, Kind(data.kind).label, moment(data.at)),
        failed,
        outlook,
    )


def forked_from(head: Head) -> str | None:
    """Return the checkpoint, or the session, that this one was forked from."""
    try:
        origin = about_of(head.row, head.last)[0]["metadata"].get("forked_from")
    except Corrupt:
        return None
    return origin if isinstance(origin, str) else None
