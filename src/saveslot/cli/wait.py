"""`saveslot wait`: until a session has reached a state."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Duration, SessionArg, States
from saveslot.cli.screen import line, note
from saveslot.cli.sessions import entries, short
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.codes import FAILURE
from saveslot.values.lifecycle import COMPLETED, FAILED
from saveslot.values.words import span


async def wait(
    what: SessionArg,
    /,
    *,
    state: Annotated[States, Parameter(help="The state to wait for; repeatable (default: completed).")] = None,
    timeout: Annotated[  # noqa: ASYNC109  (of the command)
        Duration, Parameter(metavar="TIME", help="Give up after this long, such as 10m (default: never).")
    ] = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    wanted = set(state or ["completed"])
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                session = await _reached(sessions, session, wanted)
        except TimeoutError:
            waited = span(0 if timeout is None else timeout.total_seconds())
            note(f"saveslot: {session.session_id} is not {' or '.join(sorted(wanted))} after {waited}")
            raise SystemExit(FAILURE) from None
    screen.answer(session, [line((short(session.session_id, screen), "bold"), (f"  is {session.state}", ""))])
    if session.state not in wanted:
        raise SystemExit(FAILURE)


async def _reached(sessions: SessionManager, session: AgentSession, wanted: set[str]) -> AgentSession:
    """The session once it is in one of these states, or has ended in another one."""
    session_id = session.session_id
    if _over(session, wanted):
        return session
    async for event in sessions.watch(session_id, after=entries(session)):
        if event.kind != "checkpoint":
            now = await sessions.get_session(session_id, history=0)
            if now is None:
                raise target.unknown(session_id, sessions.namespace)
            if _over(now, wanted):
                return now
    raise AssertionError  # a feed has no end


def _over(session: AgentSession, wanted: set[str]) -> bool:
    return session.state in wanted or session.state in {COMPLETED, FAILED}
