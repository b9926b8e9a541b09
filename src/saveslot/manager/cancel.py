"""Stopping the work on a session from outside: `cancel` tells its holder to stop, `release` takes its lease away."""

from __future__ import annotations

from typing import cast

from saveslot.session import attempts
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.log import Log
from saveslot.session.model import AgentSession
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import CALL, once_in
from saveslot.values.checks import as_label, as_name
from saveslot.values.lifecycle import SessionState, follow
from saveslot.values.log import FOREVER, NO_WORKER, Head, Outcome


@once_in(scope_of)
async def cancel(
    sessions: Space, id: AgentSession | str, reason: str = "", *, idempotency_key: str | None = None
) -> SessionState:
    """Stop the work on a session; return its state: `failed`, or while a worker holds it still `active` or `paused`.

    The holder's `cancelled` is set within a heartbeat, and its next verb raises `Cancelled`, except `checkpoint`,
    `complete` and `fail`. When it leaves, or dies, the session fails with the reason `cancelled`. The same call with
    the same `idempotency_key` changes nothing, and returns the state as it is by then.
    """
    session_id, reason = as_name(getattr(id, "session_id", id), "id"), as_label(reason, "reason")
    call_id = request(idempotency_key, "cancel", {"reason": reason})
    author = passerby(sessions, session_id, fresh=True, insists=True)
    silent: bytes | None = None  # the newest entry when its owner was found silent, but not known to be dead

    async def decide(log: Log) -> Draft | None:
        nonlocal silent
        head = cast("Head", author.head)
        if await entry_of(sessions.engine.vault, log.key, call_id) is not None:
            return None
        follow(log.at.state, "cancel")
        if head.row.locked is not None:
            raise head.row.locked
        if head.row.lease is None or head.row.owner == NO_WORKER:
            draft = attempts.cancellation(sessions.engine.vault, head, reason)
        elif not head.row.left and silent != head.last.append_id:
            silent = head.last.append_id
            draft = attempts.cancellation(sessions.engine.vault, head, reason)
            draft.group.only_orphan = FOREVER  # only if its owner has been declared dead, or left
        else:
            draft = log.draft()
            draft.cancel(reason)
        draft.group.entries[-1].request = call_id
        return draft

    draft = await _earlier(sessions) or await change(author, decide)
    if draft is None:
        return SessionState(cast("Head", author.head).row.state)
    await sessions.engine.tell(draft.at.lease)
    return draft.at.state


@once_in(scope_of)
async def release(
    sessions: Space, id: AgentSession | str, reason: str = "", *, idempotency_key: str | None = None
) -> bool:
    """Take the lease away from a session's owner, which gets `LeaseLost`; return False if it had no owner.

    The session stays active, without an owner: `claim(released=True)` and `hold` take it. A cancelled one fails. The
    same call with the same `idempotency_key` changes nothing; one that found no owner uses no key up.
    """
    session_id, reason = as_name(getattr(id, "session_id", id), "id"), as_label(reason, "reason")
    call_id = request(idempotency_key, "release", {"reason": reason})
    author = passerby(sessions, session_id, fresh=True, insists=True)
    lease: bytes | None = None
    before = False  # the same call has done it

    async def decide(log: Log) -> Draft | None:
        nonlocal lease, before
        head = cast("Head", author.head)
        if await entry_of(sessions.engine.vault, log.key, call_id) is not None:
            before = True
            return None
        lease = head.row.lease
        if head.row.locked is not None:
            raise head.row.locked
        if lease is None:
            return None
        past = await attempts.read(sessions.engine.vault, head)
        if past.cancelled is not None:
            draft = attempts.cancellation(sessions.engine.vault, head, past.cancelled)
        else:
            draft = log.draft()
            draft.dismiss(reason)
        draft.group.entries[-1].request = call_id
        return draft

    if await _earlier(sessions) is not None:
        return True
    draft = await change(author, decide)
    await sessions.engine.tell(lease)
    return before or draft is not None


async def _earlier(sessions: Space) -> Draft | None:
    """Send again what this call wrote when its answer was lost; return it if it landed, then or now."""
    call = CALL.get()
    draft = None if call is None else call.draft
    if draft is None or draft.verdict is not None:
        return None
    [verdict] = await sessions.engine.vault.append([draft.group])
    return draft if verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY} else None
