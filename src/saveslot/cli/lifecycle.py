"""`saveslot pause`, `resume`, `complete` and `fail`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag, Seen, SessionArg, json_object, json_value
from saveslot.cli.screen import line
from saveslot.cli.sessions import short
from saveslot.errors import Conflict, InvalidTransition
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.lifecycle import FAILED

# Attempts: a running agent may write between our read and our write, and then we start over.
ATTEMPTS = 10

Verb = Callable[[AgentSession], None]


async def pause(what: SessionArg, /, *, seen: Seen = None, common: Common = COMMON) -> None:
    await _change(what, AgentSession.pause, common, seen)


async def resume(
    what: SessionArg,
    /,
    *,
    failed: Annotated[bool, Flag("Also resume a failed session.")] = False,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    def verb(session: AgentSession) -> None:
        if session.state is not FAILED:
            session.resume()
        elif failed:
            session.recover()
        else:
            raise InvalidTransition("resume", "failed", "active", "pass --failed to recover it, or roll it back")

    await _change(what, verb, common, seen)


async def complete(
    what: SessionArg,
    /,
    *,
    result: Annotated[str | None, Parameter(metavar="JSON", help="The result to store.")] = None,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    value = None if result is None else json_value(result, "--result")
    await _change(what, lambda session: session.complete(value), common, seen)


async def fail(
    what: SessionArg,
    error: Annotated[str, Parameter(name="ERROR", help="Why, in a few words.")],
    /,
    *,
    details: Annotated[str | None, Parameter(metavar="JSON", help="More about it, a JSON object.")] = None,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    more = json_object(details, "--details")
    await _change(what, lambda session: session.fail(error, more), common, seen)


async def _change(what: str, verb: Verb, common: Common, seen: str | None) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        # Nothing staged is nothing to change; an update would only count as a heartbeat.
        session = await decided(sessions, session, verb, lambda session: bool(session.staged), seen)
    screen.answer(session, [line((short(session.session_id, screen), "bold"), (f"  is {session.state}", ""))])


async def decided(
    sessions: SessionManager,
    session: AgentSession,
    verb: Verb,
    changed: Callable[[AgentSession], bool],
    seen: str | None = None,
) -> AgentSession:
    """Change the session, and store it unless nothing changed; decide again if another caller wrote meanwhile.

    With `seen`, raise `Conflict` then, and if the session has another version.
    """
    for attempt in range(ATTEMPTS):
        verb(session)
        if not changed(session):
            return session
        try:
            return await sessions.update_session(session, seen=seen)
        except Conflict:
            if seen is not None or attempt == ATTEMPTS - 1:
                raise
        fresh = await sessions.get_session(session.session_id, history=0)
        if fresh is None:
            raise target.unknown(session.session_id, sessions.namespace)
        session = fresh
    raise AssertionError  # the last attempt returns or raises
