"""Reads: the verbs of a manager that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeVar, cast, get_args

from saveslot import codec
from saveslot.codec import difference
from saveslot.codec.excerpt import excerpt
from saveslot.codec.text import place
from saveslot.errors import Corrupt, InvalidInput
from saveslot.manager import log_lines
from saveslot.session.engine import Space
from saveslot.session.headers import head_of
from saveslot.session.lookup import Overtaken, with_a_fresh_head
from saveslot.session.model import AgentSession, Checkpoint, DamagedSession, SessionCheckpoint
from saveslot.session.timeline import Timeline, visible
from saveslot.stores.around.cached import MAX_AGE, Level
from saveslot.values import refs
from saveslot.values.checks import (
    RESERVED,
    Data,
    Span,
    as_count,
    as_label,
    as_labels,
    as_name,
    as_state,
    as_text,
    as_texts,
    as_time,
)
from saveslot.values.kinds import DATA_KINDS, HIDING_KINDS, SHOWN_KINDS, Kind
from saveslot.values.lifecycle import SessionState, led_to
from saveslot.values.log import FOREVER, Counts, Entry, Event, Head, Query, Wanted, micros

Order = Literal["created", "changed"]
C = TypeVar("C", bound=SessionCheckpoint)

# Stored bytes of a history that `get_session` loads by default: thousands of checkpoints.
HISTORY_BYTES = 8 * 1024 * 1024
# Sessions per page of `find` by default; and per page when all are read.
PAGE, WIDE_PAGE = 100, 1000
# Seconds that one request to a store's feed waits before the next.
WATCH_WAIT = 5.0
# Entries whose frames a walk or an export keeps in memory at a time.
STRIDE = 200
# Labels in one search. SQLite takes about 1,000 conditions.
MAX_LABELS = 100


class Page(list[AgentSession]):
    """A page of sessions, newest first. Pass `next` to `find(after=…)`; None on the last page."""

    next: str | None = None

    def to_dict(self) -> Data:
        """Return `items`, each as its `to_dict`, and `next`; damaged sessions with their readable fields."""
        items = [item.readable() if isinstance(item, DamagedSession) else item.to_dict() for item in self]
        return {"items": items, "next": self.next}


async def namespaces(sessions: Space, *, after: str = "", limit: int = PAGE) -> list[str]:
    """Return the namespaces that have sessions, up to `limit` after `after`, in an order of the store's own."""
    names = await sessions.engine.vault.namespaces(as_text(after, "after"), as_count(limit, "limit", 1) + 1)
    return [name for name in names if name != RESERVED][:limit]


@with_a_fresh_head
async def get_session(
    sessions: Space,
    id: str,
    *,
    history: int | Literal["all"] | None = None,
    level: Level = "strong",
    max_age: Span = MAX_AGE,
) -> AgentSession | None:
    """Return the session, or None, with its newest checkpoints (8 MB as stored), decoded on access.

    `history` loads that many, or `"all"`; the others are there without their data. `history=0` reads none: its
    `checkpoints` are empty, and `get_last_checkpoint` raises. With `level="cached"` the answer may be up to `max_age`
    seconds old.
    """
    if history is not None and history != "all":
        history = as_count(history, "history")
    scope, known = (sessions.namespace, as_name(id, "id")), sessions.engine.known
    before = known.stamp(scope)
    [head] = await sessions.engine.answers.at(level, max_age).heads([scope])
    if head is None:
        return None
    known.read(head, before, newest=level == "strong")
    session = sessions.lookup.session(head, await sessions.lookup.newest(head))
    if history != 0:
        session.checkpoints, session.loaded = await checkpoints_of(sessions, head, history), True
    return session


async def get_active_sessions(
    sessions: Space,
    agent_type: str | None = None,
    user_id: str | None = None,
    *,
    level: Level = "strong",
    max_age: Span = MAX_AGE,
) -> list[AgentSession]:
    """Return all active sessions, newest first, without their histories."""
    active: list[AgentSession] = []
    after: str | None = None
    while True:
        page = await find(
            sessions,
            agent_type=agent_type,
            user_id=user_id,
            state=SessionState.ACTIVE,
            limit=WIDE_PAGE,
            after=after,
            level=level,
            max_age=max_age,
        )
        active += page
        after = page.next
        if after is None:
            return active


async def find(
    sessions: Space,
    *,
    agent_type: str | None = None,
    user_id: str | None = None,
    state: SessionState | str | None = None,
    labels: dict[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    text: str | None = None,
    prefix: str | None = None,
    orphaned: bool = False,
    entry: dict[str, str] | None = None,
    order: Order = "created",
    heads: bool = False,
    limit: int = PAGE,
    after: str | None = None,
    level: Level = "strong",
    max_age: Span = MAX_AGE,
) -> Page:
    """Return a page of sessions, newest first, without their histories; `orphaned`: those whose owners died or left
    them by an exception.

    `entry={"run": "r1"}`: those with a checkpoint whose metadata has all these `labels`. `order="changed"` starts with
    the session whose newest entry is the newest, pins and retention marks aside. No index has that order: each page
    looks at every session that matches (SQLite: 20 ms for 1,000). A session that changes between two pages moves to the
    front, and is not in the second. `heads` gives each session its `head`, the newest entry (None if it cannot be read:
    sealed without its key, or damaged). With `level="cached"` the answer may be up to `max_age` seconds old.
    """
    wanted = query(sessions, agent_type, user_id, state, labels, created_after, created_before, text, prefix, orphaned)
    wanted.entry = as_labels(entry, "entry")
    if order not in get_args(Order):
        raise InvalidInput("order", f"{order!r} is not one of {', '.join(get_args(Order))}")
    wanted.changed = order == "changed"
    limit = as_count(limit, "limit", 1)
    store = sessions.engine.answers.at(level, max_age)
    start = refs.place(after, changed=wanted.changed)
    rows = await store.find(wanted, start, limit + 1)  # one more, to know whether this page is the last
    more, rows = len(rows) > limit, rows[:limit]
    stored = await store.heads([row.key for row in rows])
    current = [
        head or Head(row, Entry(0, b"", Kind.SKIPPED, ""))
        for row, head in zip(rows, stored, strict=True)
        if row.locked is not None or (head is not None and _still(head, wanted))
    ]
    page = Page()
    for head in current:
        newest = await sessions.lookup.newest(head)
        session = sessions.lookup.session(head, newest, locked=True)
        if heads and head.row.locked is None:
            with suppress(Corrupt):  # one damaged session does not hide the others
                session.head = head_of(head, newest, session.owner)
        page.append(session)
    if more:
        last = rows[-1]
        at = last.changed_at if wanted.changed else last.created_at
        page.next = refs.cursor((at, last.key), changed=wanted.changed)
    return page


async def count(
    sessions: Space,
    *,
    agent_type: str | None = None,
    user_id: str | None = None,
    state: SessionState | str | None = None,
    labels: dict[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    text: str | None = None,
    prefix: str | None = None,
    orphaned: bool = False,
    entry: dict[str, str] | None = None,
    level: Level = "strong",
    max_age: Span = MAX_AGE,
) -> int:
    """Count the sessions that `find` would return."""
    wanted = query(sessions, agent_type, user_id, state, labels, created_after, created_before, text, prefix, orphaned)
    wanted.entry = as_labels(entry, "entry")
    counts = await sessions.engine.answers.at(level, max_age).count(wanted, totals="none")
    return sum(counts.states.values())


@with_a_fresh_head
async def history(
    sessions: Space,
    id: str,
    *,
    name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int | None = None,
    all: bool = False,
) -> list[Checkpoint]:
    """Return its checkpoints, rollbacks and lifecycle entries, oldest first, decoded on access.

    `since` is exclusive, `until` inclusive; `before` is a number, exclusive; `limit` returns only the newest of those;
    `all` returns every entry of the log.
    """
    limit = None if limit is None else as_count(limit, "limit")
    before = None if before is None else as_count(before, "before")
    name = None if name is None else as_text(name, "name")
    first = -1 if since is None else micros(as_time(since, "since"))
    last = FOREVER if until is None else micros(as_time(until, "until"))
    head = await sessions.reader.existing(id)
    newest = limit if since is None and until is None else None
    end = head.last.seq if before is None else min(before - 1, head.last.seq)
    reach = None if end == head.last.seq else (1, end)
    if all:
        wanted = Wanted([reach or (1, end)], name=name, newest=newest, frames=False)
        entries = await sessions.engine.vault.entries(head.row.key, wanted)
    elif end < 1:
        entries = []
    else:
        entries = await sessions.lookup.visible(head, SHOWN_KINDS, within=reach, name=name, newest=newest)
    chosen = [entry for entry in entries if first < entry.at <= last]
    chosen = chosen if limit is None else chosen[max(0, len(chosen) - limit) :]
    thinned = await sessions.lookup.hidden(head) if all else frozenset[int]()
    timeline = await sessions.lookup.timeline(head, chosen, thinned=thinned)
    return timeline.checkpoints(chosen, Checkpoint)


async def walk(sessions: Space, id: str) -> AsyncIterator[Checkpoint]:
    """Yield its history, oldest first, whatever its length: at most 200 entries' frames are in memory at a time."""
    head, entries = await _shown(sessions, id)
    for start in range(0, len(entries), STRIDE):
        part = entries[start : start + STRIDE]
        while True:
            try:
                timeline = await sessions.lookup.timeline(head, part)
                break
            except Overtaken:  # leave out entries thinned meanwhile
                head = await sessions.lookup.again(head)
                gone = await sessions.lookup.hidden(head)
                part = [entry for entry in part if entry.seq not in gone]
        for checkpoint in timeline.checkpoints(part, Checkpoint):
            yield checkpoint


@with_a_fresh_head
async def _shown(sessions: Space, id: str) -> tuple[Head, list[Entry]]:
    head = await sessions.reader.existing(id)
    return head, await sessions.lookup.visible(head, SHOWN_KINDS)


async def get_checkpoint(sessions: Space, id: str, ref: str | int = "latest") -> Checkpoint:
    """Return the entry that a ref names: a name (its newest), a number, an id, `latest` or `~n`; else `NotFound`."""
    return await sessions.reader.checkpoint(id, ref)


@with_a_fresh_head
async def get_data(
    sessions: Space,
    id: str,
    ref: str | int = "latest",
    *,
    keys: Collection[str] | None = None,
    last: Mapping[str, int] | None = None,
) -> Data:
    """Return the agent's data as of a ref, which may name any kind of entry; `{}` before the first checkpoint.

    With `keys`, only these are decoded; unknown ones are absent. `last={"messages": 20}` gives the last 20 items of
    that list, or all if there are fewer. Frames that hold neither are not read, and none if this process wrote last.
    """
    wanted = None if keys is None else as_texts(keys, "keys")
    items = _as_last(last)
    whole, reader = wanted is None and not items, sessions.reader
    head = await reader.existing(id, state=whole and ref == "latest")
    if ref == "latest" and not head.last.data_seq:
        return {}
    state = known(sessions, head) if ref == "latest" and not whole else None
    if state is not None:
        return excerpt(state, wanted, items)
    if whole:
        reading = reader.state_of(head, ref) if refs.elsewhere(ref) is None else reader.state_at(id, ref)
        return (await reading).value()
    data = await reader.data_entry(head, await reader.entry(head, ref))
    return {} if data is None else await reader.part(head, data, wanted, items)


def known(sessions: Space, head: Head) -> codec.State | None:
    """Return the newest state as of that head if this process knows it, as after a write of its own."""
    log = sessions.engine.cache.get((sessions.namespace, head.row.session_id))
    if log is None or log.at.append_id != head.last.append_id or head.row.locked is not None:
        return None
    return log.ready


def _as_last(last: Any) -> dict[str, int]:
    if last is not None and not isinstance(last, Mapping):
        raise InvalidInput("last", f"must be a dict of numbers, not {type(last).__name__}")
    counts = cast("Mapping[str, Any]", last or {})
    return {as_text(key, "last"): as_count(count, place("last", [key])) for key, count in counts.items()}


@with_a_fresh_head
async def log(sessions: Space, id: str, *, limit: int | None = None, all: bool = False) -> list[log_lines.LogLine]:
    """Return its history without the states, oldest first: kind, size and a short description of what changed.

    `limit` returns only the newest; `all` returns every entry of the log.
    """
    limit = None if limit is None else as_count(limit, "limit")
    head = await sessions.reader.existing(id)
    if all:
        entries = await sessions.engine.vault.entries(head.row.key, Wanted(newest=limit, frames=False))
    else:
        entries = await sessions.lookup.visible(head, SHOWN_KINDS, newest=limit)
    before: list[Entry] = []
    if entries and entries[0].seq > 1:
        before = await sessions.lookup.visible(head, DATA_KINDS, within=(1, entries[0].seq - 1), newest=1)
    thinned = await sessions.lookup.hidden(head) if all else frozenset[int]()
    timeline = await sessions.lookup.timeline(head, before + entries, thinned=thinned)
    return list(log_lines.lines(head.row.session_id, entries, timeline, before[0] if before else None, thinned))


async def diff(sessions: Space, id: str, a: str | int, b: str | int) -> list[Data]:
    """Return the RFC 6902 patch from the agent's data at `a` to that at `b`; either may be another session's id."""
    before, after = await sessions.reader.state_at(id, a), await sessions.reader.state_at(id, b)
    return difference.diff_texts(before.texts, after.texts, tagged=before.tagged or after.tagged)


@with_a_fresh_head
async def summary(sessions: Space, id: str) -> Data:
    """Return the number of checkpoints, in total and by name, the first and the last one, and the time between.

    `stored_bytes` are those of all entries, whatever their kind.
    """
    head = await sessions.reader.existing(id)
    entries, log = await asyncio.gather(
        sessions.lookup.visible(head, SHOWN_KINDS),
        sessions.engine.vault.stored.entries(head.row.key, Wanted(frames=False)),
    )
    ends = entries[:1] + entries[-1:]
    timeline = await sessions.lookup.timeline(head, ends)
    checkpoints = [checkpoint.to_dict() for checkpoint in timeline.checkpoints(ends, Checkpoint)] or [None, None]
    names: dict[str, int] = {}
    for entry in entries:
        names[entry.name] = names.get(entry.name, 0) + 1
    return {
        "session_id": head.row.session_id,
        "state": head.row.state,
        "total_count": len(entries),
        "unique_names": len(names),
        "names": names,
        "first_checkpoint": checkpoints[0],
        "last_checkpoint": checkpoints[1],
        "duration_seconds": (ends[1].at - ends[0].at) / 1_000_000 if ends else 0.0,
        "stored_bytes": sum(entry.size for entry in log),
    }


async def watch(sessions: Space, id: str | None = None, after: str | int | None = None) -> AsyncIterator[Event]:
    """Yield entries appended from now on (or after `after`) by any writer, in commit order, without gaps or repeats.

    `after` is an event's `cursor`; for one session it may be a seq (0: from the start).
    """
    key: bytes | None = None
    cursor = as_text(after, "after") if isinstance(after, str) else None
    after = after if after is None or isinstance(after, str) else as_count(after, "after")
    if id is not None:
        head = await sessions.lookup.existing(id)
        key = head.row.key
        if isinstance(after, int):
            cursor = f"@{after}"
    elif isinstance(after, int):
        cursor = str(after)
    while True:
        events, cursor = await sessions.engine.vault.events(sessions.namespace, cursor, key, wait=WATCH_WAIT)
        for event in events:
            yield event


async def checkpoints_of(sessions: Space, head: Head, history: int | Literal["all"] | None) -> list[SessionCheckpoint]:
    """Return the checkpoints of a session; accessing the data of one that `history` leaves out says how to load it."""
    session_id, last, frames = head.row.session_id, head.last.seq, not isinstance(history, int)
    # Headers and frames in one read; the frames of a history over 8 MB need a second one.
    wanted = Wanted(
        [(1, last)], SHOWN_KINDS | HIDING_KINDS, frames=frames, room=HISTORY_BYTES if history is None else None
    )
    log = await sessions.engine.vault.entries(head.row.key, wanted)
    state = led_to([entry.kind for entry in log])
    if log and head.row.state not in {state, SessionState.PAUSED}:  # a copy under way is paused
        raise Corrupt(f"session {session_id}", f"its row says {head.row.state}, but its entries lead to {state.value}")
    entries = visible([entry for entry in log if entry.kind in SHOWN_KINDS], log, session_id)
    if history is None:
        chosen, room = len(entries), HISTORY_BYTES
        while chosen and room > 0:
            chosen -= 1
            room -= entries[chosen].size
    else:
        chosen = 0 if history == "all" else max(0, len(entries) - history)
    since = entries[chosen].seq if chosen < len(entries) else last + 1
    data = [entry for entry in log if entry.kind in DATA_KINDS]
    timeline = Timeline(session_id, data, since)
    if any(entry.frame is None for entry in data) and not timeline.holds(entries[chosen:]):
        timeline = await sessions.lookup.timeline(head, entries[chosen:], since=since)
    return timeline.checkpoints(entries, SessionCheckpoint)


def query(
    sessions: Space,
    agent_type: str | None,
    user_id: str | None,
    state: SessionState | str | None,
    labels: dict[str, str] | None,
    created_after: datetime | None,
    created_before: datetime | None,
    text: str | None,
    prefix: str | None,
    orphaned: bool,  # noqa: FBT001  (in its order, from two callers)
) -> Query:
    if labels is not None and len(as_labels(labels)) > MAX_LABELS:
        raise InvalidInput("labels", f"at most {MAX_LABELS} can be searched for, not {len(labels)}")
    return Query(
        namespace=sessions.namespace,
        agent_type=None if agent_type is None else as_label(agent_type, "agent_type"),
        user_id=None if user_id is None else as_label(user_id, "user_id"),
        state=None if state is None else as_state(state).value,
        labels=as_labels(labels),
        created_after=None if created_after is None else micros(as_time(created_after, "created_after")),
        created_before=None if created_before is None else micros(as_time(created_before, "created_before")),
        text=None if text is None else as_text(text, "text"),
        prefix=None if prefix is None else as_text(prefix, "prefix"),
        orphan_for=0 if orphaned else None,
    )


async def counts(sessions: Space, level: Level = "strong", max_age: Span = MAX_AGE) -> Data:
    """Count this namespace's sessions by state, agent type and owner; entries and bytes of the whole store."""
    return counted(await sessions.engine.answers.at(level, max_age).count(Query(namespace=sessions.namespace)))


def counted(counts: Counts) -> Data:
    return {
        "sessions": sum(counts.states.values()),
        "by_state": {state.value: counts.states.get(state.value, 0) for state in SessionState},
        "by_agent_type": dict(sorted(counts.agent_types.items())),
        "held": counts.held,
        "orphaned": counts.orphaned,
        "entries": counts.entries,
        "stored_bytes": counts.stored_bytes,
    }


def _still(head: Head, query: Query) -> bool:
    """False if the session no longer matches: it changed after it was found."""
    return query.state in {None, head.row.state} and query.labels.items() <= head.row.labels.items()
