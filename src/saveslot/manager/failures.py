"""What needs a person: sessions that failed or lost their owner, newest first, each with its reason."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Literal, TypeVar

from msgspec.structs import replace

from saveslot.errors import Corrupt
from saveslot.session.engine import Space
from saveslot.session.timeline import note_of
from saveslot.session.vault import OPEN_KINDS
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Span, as_count, as_label, now
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import NO_WORKER, Entry, Head, Query, Wanted, as_age, micros, moment

T = TypeVar("T")

FAILING, RELEASING = frozenset({Kind.FAILED}), frozenset({Kind.RELEASED})
# Sessions that are looked at: of the failed ones and of the orphans those created last.
LOOKED = 1_000
DAY = timedelta(days=1)
# Logs read concurrently.
TOGETHER = 100
# The reason of a failure that cannot be read.
SEALED, DAMAGED = "(sealed)", "(damaged)"


class Trouble(Answer, frozen=True):
    """A session that failed, or is orphaned."""

    session_id: str
    agent_type: str
    state: Literal["failed", "orphaned"]
    reason: str  # the error; empty for an orphan whose owner just went silent
    last_owner: str  # the worker that held it last; empty if none did
    since: Time  # when it failed or was left, or its owner's last heartbeat


class Reason(Answer, frozen=True):
    """How many sessions failed for one reason."""

    reason: str
    sessions: int
    newest: Time


class LookedAt(Answer, frozen=True):
    """What an answer rests on: the sessions created last, `sessions` of them, of at most `most`."""

    sessions: int
    most: int


class Failures(Answer, frozen=True):
    """Failed sessions and orphans, newest first."""

    items: list[Trouble]
    next: str | None
    reasons: list[Reason]  # of the failed ones, the most frequent first
    looked_at: LookedAt
    as_of: Time


class End(Answer, frozen=True):
    """How a session failed, or how its owner left it."""

    reason: str
    at: Time


async def failures(sessions: Space, *, since: Span = DAY, agent_type: str | None = None, limit: int = 100) -> Failures:
    """Return sessions that failed within `since`, and all orphans: the newest `limit`, and counts by reason.

    Of the failed sessions those 1,000 are looked at that were created last, and of the orphans as many.
    """
    reach, limit = as_age(since, "since"), as_count(limit, "limit", 1)
    wanted = Query(namespace=sessions.namespace)
    wanted.agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
    failed, orphaned = await asyncio.gather(
        failed_heads(sessions, wanted), _heads(sessions, replace(wanted, orphan_for=0))
    )
    at = max([head.row.now for head in (*failed, *orphaned)], default=0) or micros(now())
    ends = await _in_parts(failed, lambda head: failure(sessions, head))
    losses = await _in_parts(orphaned, lambda head: loss(sessions, head))
    recent = [(head, end) for head, end in zip(failed, ends, strict=True) if at - micros(end.at) <= reach]
    cases = sorted([*recent, *zip(orphaned, losses, strict=True)], key=lambda case: case[1].at, reverse=True)[:limit]
    owners = await _in_parts([head for head, _ in cases], lambda head: last_owner(sessions, head))
    items = [_trouble(head, end, owner) for (head, end), owner in zip(cases, owners, strict=True)]
    looked = LookedAt(len(failed) + len(orphaned), LOOKED)
    return Failures(items, None, _reasons([end for _, end in recent]), looked, moment(at))


async def failed_heads(sessions: Space, wanted: Query) -> list[Head]:
    """Return the failed sessions that were created last."""
    heads = await _heads(sessions, replace(wanted, state=SessionState.FAILED.value))
    return [head for head in heads if head.row.state == SessionState.FAILED]


async def _heads(sessions: Space, query: Query) -> list[Head]:
    vault = sessions.engine.vault
    rows = await vault.find(query, None, LOOKED)
    heads = await vault.heads([row.key for row in rows]) if rows else []
    return [head for head in heads if head is not None and (query.orphan_for is None or is_orphan(head))]


async def _in_parts(heads: Sequence[Head], read: Callable[[Head], Awaitable[T]]) -> list[T]:
    values: list[T] = []
    for start in range(0, len(heads), TOGETHER):
        values += await asyncio.gather(*map(read, heads[start : start + TOGETHER]))
    return values


def _reasons(ends: Sequence[End]) -> list[Reason]:
    counts = Counter(end.reason for end in ends)
    newest = {end.reason: end.at for end in sorted(ends, key=lambda end: end.at)}
    return [Reason(reason, count, newest[reason]) for reason, count in counts.most_common()]


def _trouble(head: Head, end: End, owner: str) -> Trouble:
    state = "failed" if head.row.state == SessionState.FAILED else "orphaned"
    return Trouble(head.row.session_id, head.row.agent_type, state, end.reason, owner, end.at)


def is_orphan(head: Head) -> bool:
    """True if the owner of the session died, or left it by an exception."""
    return head.row.lease is not None and not head.row.left


async def failure(sessions: Space, head: Head) -> End:
    """Return how a failed session failed. Its newest entry tells, unless a pin or a record came after it."""
    last = head.last if head.last.kind is Kind.FAILED else await _newest(sessions, head, FAILING)
    return End(_text(head, last, "error"), moment((last or head.last).at))


async def loss(sessions: Space, head: Head) -> End:
    """Return how an orphan lost its owner: the exception by which that left, or its last heartbeat."""
    if head.row.owner != NO_WORKER:
        return End("", moment(head.row.beaten or head.last.alive))
    release = head.last if head.last.kind is Kind.RELEASED else await _newest(sessions, head, RELEASING)
    return End(_text(head, release, "error"), moment((release or head.last).at))


async def last_owner(sessions: Space, head: Head) -> str:
    """Return the worker that held the session last; empty if none did."""
    if head.row.worker:
        return head.row.worker
    return _text(head, await _newest(sessions, head, TAKING_KINDS), "worker")


async def _newest(sessions: Space, head: Head, kinds: frozenset[Kind]) -> Entry | None:
    store = sessions.engine.vault.stored if head.row.locked is not None else sessions.engine.vault
    try:
        newest = await store.entries(head.row.key, Wanted(kinds=kinds, newest=1, frames=False))
    except Corrupt:  # one damaged session must not hide the others
        return None
    return newest[0] if newest else None


def _text(head: Head, entry: Entry | None, field: str) -> str:
    if entry is None:
        return ""
    if head.row.locked is not None and entry.kind not in OPEN_KINDS:
        return SEALED
    try:
        return str(note_of(entry, f"{head.row.session_id}:{entry.seq}").get(field, ""))
    except Corrupt:
        return DAMAGED
