"""Lifecycle changes by id, each one entry: pause, resume, complete, fail."""

from __future__ import annotations

from typing import Any

from saveslot.manager.reading import get_session
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.log import Log
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.retries import once_in
from saveslot.values.checks import Data, as_data, as_name
from saveslot.values.kinds import VERBS, Kind
from saveslot.values.lifecycle import ACTIVE, follow
from saveslot.values.versions import Version, as_version


async def pause(sessions: Space, id: str, *, seen: str | None = None) -> AgentSession:
    """Pause an active session; return it without its history.

    Like `checkpoint`, it follows the entry that `seen` names, or else the newest one that this manager has read or
    written for that id. A worker that holds the session gets a `Conflict` from its next verb.
    """
    note: Data = {"previous_state": ACTIVE.value}
    return await _changed(sessions, id, Kind.PAUSED, "session_paused", note, seen=as_version(seen))


async def resume(sessions: Space, id: str, *, seen: str | None = None) -> AgentSession:
    """Make a paused session active, like `pause`. Resuming an active session does nothing."""
    return await _changed(sessions, id, Kind.RESUMED, "session_resumed", {}, seen=as_version(seen))


async def complete(sessions: Space, id: str, result: Any = None, *, seen: str | None = None) -> AgentSession:
    """End the session for good, like `pause`. While another worker holds it: `LeaseHeld`."""
    note: Data = {"result": {} if result is None else result}
    return await _changed(sessions, id, Kind.COMPLETED, "session_completed", note, seen=as_version(seen))


async def fail(
    sessions: Space, id: str, error: str, error_details: Data | None = None, *, seen: str | None = None
) -> AgentSession:
    """End the session as failed, like `pause`; a rollback reopens it."""
    note: Data = {"error": error, "details": error_details or {}}
    return await _changed(sessions, id, Kind.FAILED, "session_failed", note, seen=as_version(seen))


@once_in(scope_of)
async def _changed(
    sessions: Space, id: str, kind: Kind, name: str, note: Data, *, seen: Version | None
) -> AgentSession:
    session_id, note, verb = as_name(id, "id"), as_data(note, "data"), VERBS[kind]

    async def decide(log: Log) -> Draft | None:
        state = follow(log.at.state, verb)
        if kind is Kind.RESUMED and state is log.at.state:
            return None
        draft = log.draft()
        draft.group.heartbeat = log.at.lease is None  # while it is held, only its owner's writes are signs of life
        draft.lifecycle(kind, name, note)
        draft.become(state)
        return draft

    await change(passerby(sessions, session_id, version=seen, fresh=True, alone=kind is Kind.COMPLETED), decide)
    session = await get_session(sessions, session_id, history=0)
    if session is None:
        raise unknown(session_id, sessions.namespace)
    return session
