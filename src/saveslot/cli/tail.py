"""`saveslot tail`: entries as they are appended."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import ids
from saveslot.cli.common import COMMON, Common
from saveslot.cli.log import KINDS
from saveslot.cli.screen import Line, Screen, note
from saveslot.cli.sessions import entries, short
from saveslot.cli.state import DIM
from saveslot.values.log import Event


async def tail(
    what: Annotated[
        str | None,
        Parameter(
            name="ID",
            completer=ids,
            help="A session's id, or a unique beginning or end of it (default: all sessions, from now on).",
        ),
    ] = None,
    /,
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"], metavar="N", help="Start with the last N entries.")] = 10,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        if what is None:
            events = sessions.watch()
            note("following all sessions; press Ctrl-C to stop")
        else:
            session = await target.find_session(sessions, what)
            events = sessions.watch(session.session_id, after=max(0, entries(session) - last))
        async for event in events:
            _tell(event, screen, alone=what is not None)


def _tell(event: Event, screen: Screen, *, alone: bool) -> None:
    at = f"{event.timestamp.astimezone():%H:%M:%S}" if screen.terminal else event.timestamp.isoformat()
    style = KINDS.get(event.kind, DIM)
    who = () if alone else ((f"{short(event.session_id, screen)}  ", "bold"),)
    body = ((f"{at}  ", DIM), *who, (f"{event.seq:>4}  {event.kind:<13}  ", style), (event.name, style))
    screen.event(event, Line(body=body))
