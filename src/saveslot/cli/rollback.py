"""`saveslot rollback` and `saveslot fork`: continue from an older checkpoint, in the same session or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import names
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import CheckpointArg, Seen, SessionArg
from saveslot.cli.screen import Part, Screen, line
from saveslot.cli.sessions import short
from saveslot.session.model import AgentSession, Checkpoint
from saveslot.values.lifecycle import FAILED


async def rollback(
    what: SessionArg,
    /,
    *,
    to: Annotated[str, Parameter(metavar="REF", completer=names, help="A checkpoint's name, number or ~2.")],
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        checkpoint = await sessions.rollback(session.session_id, to, seen=seen)
    screen.answer(checkpoint, _rolled_back(checkpoint, session, screen))


def _rolled_back(checkpoint: Checkpoint, session: AgentSession, screen: Screen) -> Iterator[Part]:
    name = short(session.session_id, screen)
    back = str(checkpoint.metadata.get("to", "")).rpartition(":")[2]
    yield line((f"{name}@{checkpoint.seq}", "bold"), (f"  is back at {back} ({checkpoint.metadata.get('name')})", ""))
    again = f"saveslot rollback {name} --to {checkpoint.seq - 1}"
    if session.state is FAILED:  # undoing it would restore the data, but leave the session active
        yield f"it had failed and is active again; its state before: {again}"
    else:
        yield f"undo: {again}"


async def fork(
    what: CheckpointArg,
    /,
    *,
    at: Annotated[
        str | None,
        Parameter(metavar="REF", completer=names, help="A checkpoint's name, number or ~2 (default: the latest)."),
    ] = None,
    new_id: Annotated[
        str | None, Parameter(name="--as", metavar="ID", help="The new session's id (default: a generated one).")
    ] = None,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    async with common.sessions() as sessions:
        source, ref = await target.find(sessions, what, changes=True)
        if at is not None and ref is not None:
            raise Misuse(f"{what} --at {at}: name the checkpoint only once")
        session = await sessions.fork(source.session_id, at or ref or "latest", session_id=new_id, seen=seen)
    common.screen.answer(
        session, [line((session.session_id, "bold")), f"forked from {session.metadata['forked_from']}"]
    )
