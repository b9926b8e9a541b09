"""Sweep: fails sessions without a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from saveslot.session.attempts import failure
from saveslot.session.draft import Draft
from saveslot.session.engine import Space
from saveslot.session.retries import Call, content
from saveslot.values.checks import Span
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Outcome, Place, Query, as_age

# Sessions failed per transaction.
BATCH = 200


# A session's id, and the draft that fails it.
Failure = tuple[str, Draft]


async def cleanup_stale_sessions(sessions: Space, max_age: Span = timedelta(hours=48)) -> int:
    """Fail active sessions without a heartbeat for `max_age`, by the store's clock; return how many."""
    return await sweep(sessions, max_age)


async def sweep(sessions: Space, max_age: Span, trusted: Callable[[], bool] = lambda: True) -> int:
    """Do that. End early if the clock that the ages were measured by is not `trusted` after a page was read."""
    silence = max(1, as_age(max_age, "max_age"))
    query = Query(namespace=sessions.namespace, state=SessionState.ACTIVE.value, stale_for=silence)
    # A cancelled sweep finishes its page; repeated, it counts on from there.
    scope, key = (sessions.namespace, ""), content("cleanup_stale_sessions", silence)
    call = sessions.calls.take(scope, key) or Call()
    try:
        failed = 0 if call.task is None else await asyncio.shield(call.task)
        drafts, after = await _stale(sessions, query, None)
        while after is not None and trusted():  # the next page is read while this one is written
            call.task = sessions.engine.start(_fail(sessions, drafts, failed))
            failed, (drafts, after) = await asyncio.gather(asyncio.shield(call.task), _stale(sessions, query, after))
    except asyncio.CancelledError:
        if call.task is not None:
            sessions.calls.keep(scope, key, call)
        raise
    return failed


async def _stale(sessions: Space, query: Query, after: Place | None) -> tuple[list[Failure], Place | None]:
    """Draft the failures of a page of stale sessions; also return the page's end, None after the last page."""
    vault = sessions.engine.vault
    rows = await vault.find(query, after, BATCH)
    drafts: list[Failure] = []
    for head in await vault.heads([row.key for row in rows]) if rows else ():
        if head is None or head.row.state != SessionState.ACTIVE or head.row.locked is not None:
            continue
        draft = failure(vault, head, "heartbeat_timeout", "heartbeat_timeout", {})
        draft.group.only_stale = query.stale_for or 0
        drafts.append((head.row.session_id, draft))
    return drafts, (rows[-1].heartbeat, rows[-1].key) if rows else None


async def _fail(sessions: Space, drafts: list[Failure], before: int) -> int:
    """Fail these sessions; return how many the sweep has failed with them."""
    verdicts = await sessions.engine.vault.append([draft.group for _, draft in drafts])
    failed = [one for one, verdict in zip(drafts, verdicts, strict=True) if verdict.outcome is Outcome.APPENDED]
    for session_id, draft in failed:
        sessions.engine.known.of((sessions.namespace, session_id)).wrote(draft.group, blind=True)
    return before + len(failed)
