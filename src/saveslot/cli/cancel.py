"""`saveslot cancel` and `saveslot release`: stop the work on a session."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import SessionArg
from saveslot.cli.screen import line
from saveslot.cli.sessions import short

Reason = Annotated[str, Parameter(metavar="TEXT", show_default=False, help="Why, for the log.")]


async def cancel(what: SessionArg, /, *, reason: Reason = "", common: Common = COMMON) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        state = await sessions.cancel(session.session_id, reason)
    worker = "its owner" if session.owner is None else session.owner.worker
    text = "  is failed: cancelled" if state == "failed" else f"  is cancelled: {worker} was asked to stop"
    value = {"session_id": session.session_id, "state": state.value}
    screen.answer(value, [line((short(session.session_id, screen), "bold"), (text, ""))])


async def release(what: SessionArg, /, *, reason: Reason = "", common: Common = COMMON) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        released = await sessions.release(session.session_id, reason)
    worker = "its owner" if session.owner is None else session.owner.worker
    text = f"  is released: {worker} lost its lease" if released else "  has no owner"
    value = {"session_id": session.session_id, "released": released}
    screen.answer(value, [line((short(session.session_id, screen), "bold"), (text, ""))])
