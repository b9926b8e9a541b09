"""Lifecycle changes by id, each one entry: pause, resume, complete, fail; and recover."""

from __future__ import annotations

from typing import Any

from saveslot.errors import Conflict, NotFound
from saveslot.manager.reading import get_session
from saveslot.manager.update import update_as
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.log import Log
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import CALL, once_in
from saveslot.session.transition import Transition
from saveslot.values.checks import Data, as_name
from saveslot.values.kinds import Kind
from saveslot.values.log import Outcome, Verdict
from saveslot.values.versions import Version, as_version


async def pause(
    sessions: Space, id: str, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Pause an active session; return it without its history.

    Like `checkpoint`, it follows the entry that `seen` names, or else the newest one that this manager has read or
    written for that id. A worker that holds the session gets a `Conflict` from its next verb. The same call with the
    same `idempotency_key` changes nothing, and returns the session as it is by then.
    """
    return await _changed(sessions, id, Transition.pause(idempotency_key), seen=as_version(seen))


async def resume(
    sessions: Space, id: str, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Make a paused session active, like `pause`. Resuming an active session does nothing, and uses no key up."""
    return await _changed(sessions, id, Transition.resume(idempotency_key), seen=as_version(seen))


async def complete(
    sessions: Space, id: str, result: Any = None, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """End the session for good, like `pause`. While another worker holds it: `LeaseHeld`."""
    return await _changed(sessions, id, Transition.complete(result, idempotency_key), seen=as_version(seen))


async def fail(
    sessions: Space,
    id: str,
    error: str,
    error_details: Data | None = None,
    *,
    seen: str | None = None,
    idempotency_key: str | None = None,
) -> AgentSession:
    """End the session as failed, like `pause`; a rollback reopens it."""
    transition = Transition.fail(error, error_details, idempotency_key)
    return await _changed(sessions, id, transition, seen=as_version(seen))


async def recover(
    sessions: Space, id: str, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Reopen a failed session, as `AgentSession.recover` and `update_session` do."""
    call_id = request(idempotency_key, "recover", {})
    session = await get_session(sessions, id, history=0)
    if session is None:
        raise unknown(id, sessions.namespace)
    if not await repeated(sessions, id, call_id):
        session.recover()
        await update_as(sessions, session, call_id, seen=seen)
    return session


@once_in(scope_of)
async def _changed(sessions: Space, id: str, transition: Transition, *, seen: Version | None) -> AgentSession:
    session_id, vault = as_name(id, "id"), sessions.engine.vault

    async def decide(log: Log) -> Draft | None:
        if await transition.made(vault, log.key):
            return None
        draft = transition.draft(log)
        if draft is not None:
            draft.group.heartbeat = log.at.lease is None  # while it is held, only its owner's writes are signs of life
        return draft

    if not await repeated(sessions, session_id, transition.request):
        alone = transition.kind is Kind.COMPLETED
        try:
            await change(passerby(sessions, session_id, version=seen, fresh=True, alone=alone), decide)
        except Conflict:  # perhaps with the same call in another process
            if not await repeated(sessions, session_id, transition.request):
                raise
    session = await get_session(sessions, session_id, history=0)
    if session is None:
        raise unknown(session_id, sessions.namespace)
    return session


async def repeated(sessions: Space, id: str, request: bytes) -> bool:
    """True if the same call was made before; `InvalidInput` if another call used its key."""
    if not request:
        return False
    head = await sessions.lookup.existing(id)
    return await entry_of(sessions.engine.vault, head.row.key, request) is not None


@once_in(scope_of)
async def delete_session(sessions: Space, id: str, *, seen: str | None = None) -> bool:
    """Delete the session by a tombstone; its log stays as the audit trail. Return True if it existed.

    With `seen`, a version: `Conflict` unless that names its newest entry. Without, whatever is newest.
    """
    session_id, engine, call = as_name(id, "id"), sessions.engine, CALL.get()
    version = as_version(seen)
    scope = (sessions.namespace, session_id)

    async def decide(log: Log) -> Draft:
        draft = log.draft()
        draft.lifecycle(Kind.TOMBSTONE, "session_deleted", {})
        draft.group.delete = True
        draft.landed = gone
        return draft

    def gone(log: Log, _draft: Draft, _verdict: Verdict) -> None:
        engine.cache.drop(scope, log)

    earlier = None if call is None else call.draft
    try:
        await change(passerby(sessions, session_id, version=version, fresh=True, insists=True), decide)
        return True
    except NotFound:
        engine.cache.drop(scope)
        if earlier is None:
            return False
        if earlier.verdict is not None:
            return True
    # This call was made before, and its outcome is unknown: if that deletion landed, it was ours.
    [verdict] = await engine.vault.append([earlier.group])
    return verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}
