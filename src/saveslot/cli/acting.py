"""The commands that change a session: rollback, fork, pause, resume, rm, erase."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.looking import entries, short
from saveslot.cli.options import CheckpointArg, SessionArg
from saveslot.cli.screen import note
from saveslot.cli.state import DIM
from saveslot.cli.words import ago, many
from saveslot.errors import Conflict, InvalidTransition, NotFound
from saveslot.lifecycle import FAILED
from saveslot.manager import SessionManager
from saveslot.model import AgentSession

# An agent at work may write between our read and our write; so often we read again and decide anew.
TRIES = 10


async def rollback(
    what: SessionArg,
    /,
    *,
    to: Annotated[str, Parameter(help="A checkpoint's name, number or ~2.")],
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        made = await sessions.rollback(session.session_id, to)
    if screen.json:
        screen.data(made.to_dict())
        return
    name = short(session.session_id, screen)
    back = str(made.metadata.get("to", "")).rpartition(":")[2]
    screen.say((f"{name}@{made.seq}", "bold"), (f"  is back at {back} ({made.metadata.get('name')})", ""))
    again = f"saveslot rollback {name} --to {made.seq - 1}"
    if session.state is FAILED:  # going back there would bring back its data, and leave it active
        note(f"it was failed and is active again; what it knew before: {again}")
    else:
        note(f"undo it: {again}")


async def fork(
    what: CheckpointArg,
    /,
    *,
    at: Annotated[str | None, Parameter(help="A checkpoint's name, number or ~2; else the latest.")] = None,
    new_id: Annotated[str | None, Parameter(name="--as", help="The new session's id; else a fresh one.")] = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        source, ref = await target.find(sessions, what)
        if at is not None and ref is not None:
            raise Misuse(f"{what} --at {at}: say once where to fork")
        made = await sessions.fork(source.session_id, at or ref or "latest", session_id=new_id)
    if screen.json:
        screen.data(made.to_dict())
        return
    screen.say((made.session_id, "bold"))
    note(f"forked from {made.metadata['forked_from']}")


async def pause(what: SessionArg, /, *, common: Common = COMMON) -> None:
    await _change(what, AgentSession.pause, common)


async def resume(
    what: SessionArg,
    /,
    *,
    failed: Annotated[
        bool, Parameter(negative="", show_default=False, help="Take up a failed session again, too.")
    ] = False,
    common: Common = COMMON,
) -> None:
    def verb(session: AgentSession) -> None:
        if session.state is not FAILED:
            session.resume()
        elif failed:
            session.recover()
        else:
            raise InvalidTransition("resume", "failed", "active", "--failed takes it up again, or roll it back")

    await _change(what, verb, common)


async def _change(what: str, verb: Callable[[AgentSession], None], common: Common) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        session = await _decided(sessions, session, verb)
    if screen.json:
        screen.data(session.to_dict())
        return
    screen.say((short(session.session_id, screen), "bold"), (f"  is {session.state}", ""))


async def _decided(
    sessions: SessionManager, session: AgentSession, verb: Callable[[AgentSession], None]
) -> AgentSession:
    for attempt in range(TRIES):
        verb(session)
        if not session.staged:  # it is so already; an update would only count as a sign of life
            return session
        try:
            return await sessions.update_session(session)
        except Conflict:
            if attempt == TRIES - 1:
                raise
        fresh = await sessions.get_session(session.session_id, history=0)
        if fresh is None:
            raise target.unknown(session.session_id, sessions.namespace)
        session = fresh
    raise AssertionError  # the last try returns or raises


async def rm(
    *what: SessionArg,
    yes: Annotated[
        bool, Parameter(name=["--yes", "-y"], negative="", show_default=False, help="Do not ask; takes whole ids only.")
    ] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if not what:
        raise Misuse("rm: name the sessions to delete (saveslot ls lists them)")
    async with common.sessions() as sessions:
        # All of them are looked up first: a misspelt one must not leave half of the work done.
        if yes:
            found = dict.fromkeys([await target.whole(sessions, text) for text in what])
        else:
            found = {(session := await target.find_session(sessions, text)).session_id: session for text in what}
            if not _agreed([*found.values()]):
                note("nothing was deleted")
                raise SystemExit(1)
        gone = [session_id for session_id in found if await sessions.delete_session(session_id)]
    if screen.json:
        screen.data(gone)
        return
    for session_id in gone:
        screen.say(("deleted ", DIM), (session_id, "bold"))


async def erase(
    what: Annotated[str | None, Parameter(name="ID", help="A session's whole id, also of a deleted one.")] = None,
    /,
    *,
    user: Annotated[str | None, Parameter(help="All sessions of this user, and what was forked from them.")] = None,
    apply: Annotated[bool, Parameter(negative="", show_default=False, help="Do it; else only say what.")] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if (what is None) == (user is None):
        raise Misuse("erase: name a session, or a user by --user")
    async with common.sessions() as sessions:
        try:
            told = await sessions.erase(what, user, dry_run=not apply)
        except NotFound:
            raise await target.missing(sessions, what or "") from None
    if screen.json:
        screen.data({**told, "applied": apply})
        return
    for name in told["sessions"]:
        screen.say(("erased " if apply else "would erase ", DIM), (name, "bold"))
    count = many(told["entries"], "entry")
    note(f"emptied {count}" if apply else f"nothing was erased; --apply empties {count}, for good")


def _agreed(found: list[AgentSession]) -> bool:
    """Whether a person said yes who was shown the whole ids: what was typed may be the beginning of another one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Misuse("rm: there is no terminal to ask on; --yes deletes without asking")
    for session in found:
        note(f"  {session.session_id}  {session.agent_type}  {session.state}, {entries(session):,} entries, "
             f"last sign of life {ago(session.last_heartbeat)}")  # fmt: skip
    print(f"delete {'it' if len(found) == 1 else f'these {len(found)}'}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
