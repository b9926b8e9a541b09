"""Lifecycle changes by id, each one entry: pause, resume, complete, fail."""

from __future__ import annotations

from typing import Any

from saveslot.errors import Conflict
from saveslot.manager.reading import get_session
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.log import Log
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import once_in
from saveslot.values.checks import Data, as_data, as_name
from saveslot.values.kinds import VERBS, Kind
from saveslot.values.lifecycle import ACTIVE, follow
from saveslot.values.versions import Version, as_version


async def pause(
    sessions: Space, id: str, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Pause an active session; return it without its history.

    Like `checkpoint`, it follows the entry that `seen` names, or else the newest one that this manager has read or
    written for that id. A worker that holds the session gets a `Conflict` from its next verb. The same call with the
    same `idempotency_key` changes nothing, and returns the session as it is by then.
    """
    note: Data = {"previous_state": ACTIVE.value}
    call_id = request(idempotency_key, "pause", {})
    return await _changed(sessions, id, Kind.PAUSED, "session_paused", note, seen=as_version(seen), request=call_id)


async def resume(
    sessions: Space, id: str, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Make a paused session active, like `pause`. Resuming an active session does nothing, and uses no key up."""
    call_id = request(idempotency_key, "resume", {})
    return await _changed(sessions, id, Kind.RESUMED, "session_resumed", {}, seen=as_version(seen), request=call_id)


async def complete(
    sessions: Space, id: str, result: Any = None, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """End the session for good, like `pause`. While another worker holds it: `LeaseHeld`."""
    note: Data = {"result": {} if result is None else result}
    call_id = request(idempotency_key, "complete", {"result": result})
    return await _changed(
        sessions, id, Kind.COMPLETED, "session_completed", note, seen=as_version(seen), request=call_id
    )


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
    note: Data = {"error": error, "details": error_details or {}}
    call_id = request(idempotency_key, "fail", {"error": error, "error_details": error_details})
    return await _changed(sessions, id, Kind.FAILED, "session_failed", note, seen=as_version(seen), request=call_id)


@once_in(scope_of)
async def _changed(
    sessions: Space, id: str, kind: Kind, name: str, note: Data, *, seen: Version | None, request: bytes
) -> AgentSession:
    session_id, note, verb, vault = as_name(id, "id"), as_data(note, "data"), VERBS[kind], sessions.engine.vault

    async def decide(log: Log) -> Draft | None:
        if await entry_of(vault, log.key, request) is not None:
            return None
        state = follow(log.at.state, verb)
        if kind is Kind.RESUMED and state is log.at.state:
            return None
        draft = log.draft()
        draft.group.heartbeat = log.at.lease is None  # while it is held, only its owner's writes are signs of life
        draft.lifecycle(kind, name, note)
        draft.group.entries[-1].request = request
        draft.become(state)
        return draft

    if not await repeated(sessions, session_id, request):
        try:
            await change(passerby(sessions, session_id, version=seen, fresh=True, alone=kind is Kind.COMPLETED), decide)
        except Conflict:  # perhaps with the same call in another process
            if not await repeated(sessions, session_id, request):
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
