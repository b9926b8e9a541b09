"""`saveslot rm` and `saveslot erase`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import ids
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.ls import matching
from saveslot.cli.options import (
    Agent,
    Apply,
    Flag,
    Labels,
    NewerThan,
    OlderThan,
    Seen,
    SessionArg,
    States,
    User,
    before_now,
    labelled,
)
from saveslot.cli.screen import Part, line, note, progress
from saveslot.cli.sessions import entries
from saveslot.cli.state import DIM
from saveslot.cli.words import ago
from saveslot.errors import NotFound
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data
from saveslot.values.words import many


async def rm(
    *what: SessionArg,
    yes: Annotated[bool, Flag("Do not ask; accepts full ids only.", ["--yes", "-y"])] = False,
    state: States = None,
    agent: Agent = None,
    user: User = None,
    label: Labels = None,
    newer_than: NewerThan = None,
    older_than: OlderThan = None,
    seen: Seen = None,
    apply: Annotated[bool, Flag("With filters: delete what they match; default is a dry run.")] = False,
    common: Common = COMMON,
) -> None:
    wanted: dict[str, Any] = {
        "agent_type": agent,
        "user_id": user,
        "labels": labelled(label or []),
        "created_after": before_now(newer_than),
        "created_before": before_now(older_than),
    }
    filtered = state is not None or any(value is not None and value != {} for value in wanted.values())
    if filtered == bool(what):
        raise Misuse("rm: name the sessions to delete, or filters such as --state failed, not both")
    if seen is not None and (filtered or len(what) > 1):
        raise Misuse("rm: --seen is about one session, named by its id")
    if filtered:
        await _remove_matching(common, wanted, state, apply=apply)
        return
    if apply:
        raise Misuse("rm: --apply is for filters; sessions named by id are deleted once you say yes, or with --yes")
    async with common.sessions() as sessions:
        # Look up all of them first: a misspelt id must not leave half of the work done.
        if yes:
            matches = dict.fromkeys([await target.whole(sessions, text) for text in what])
        else:
            named = [await target.find_session(sessions, text, changes=True) for text in what]
            matches = {session.session_id: session for session in named}
            if not _confirmed([*matches.values()]):
                note("nothing was deleted")
                raise SystemExit(1)
        gone = [session_id for session_id in matches if await sessions.delete_session(session_id, seen=seen)]
    common.screen.answer(gone, [line(("deleted ", DIM), (session_id, "bold")) for session_id in gone])


async def _remove_matching(
    common: Common, wanted: dict[str, Any], states: Sequence[str] | None, *, apply: bool
) -> None:
    """Delete what `ls` lists with these filters, except sessions that changed state since."""
    async with common.sessions() as sessions:
        matches, _ = await matching(sessions, wanted, states)
        with progress() as bars:
            bar = bars.add_task("deleting", total=len(matches), visible=apply)
            gone: list[str] = []
            for session in matches:
                gone += [session.session_id] * (not apply or await _deleted(sessions, session))
                bars.advance(bar)
    common.screen.answer({"sessions": gone, "applied": apply}, _removed(gone, apply=apply))


async def _deleted(sessions: SessionManager, session: AgentSession) -> bool:
    now = await sessions.get_session(session.session_id, history=0)
    return now is not None and now.state is session.state and await sessions.delete_session(session.session_id)


def _removed(gone: list[str], *, apply: bool) -> Iterator[Part]:
    for session_id in gone:
        yield line(("deleted " if apply else "would delete ", DIM), (session_id, "bold"))
    if not apply:
        yield f"nothing was deleted; --apply deletes {many(len(gone), 'session')}" if gone else "no session matches"


def _confirmed(matches: list[AgentSession]) -> bool:
    """Ask for confirmation, showing the full ids: a typed prefix may match another session than was meant."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Misuse("rm: no terminal to ask on; pass --yes to delete without asking")
    for session in matches:
        note(f"  {session.session_id}  {session.agent_type}  {session.state}, {entries(session):,} entries, "
             f"last heartbeat {ago(session.last_heartbeat)}")  # fmt: skip
    print(
        f"delete {'it' if len(matches) == 1 else f'these {len(matches)}'}? [y/N] ", end="", file=sys.stderr, flush=True
    )
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


async def erase(
    what: Annotated[
        str | None, Parameter(name="ID", completer=ids, help="A session's full id; deleted sessions too.")
    ] = None,
    /,
    *,
    user: Annotated[str | None, Parameter(metavar="USER", help="All sessions of this user, and their forks.")] = None,
    rewrite: Annotated[bool, Flag("PostgreSQL: rewrite the tables without old row versions (locks them).")] = False,
    apply: Apply = False,
    common: Common = COMMON,
) -> None:
    if (what is None) == (user is None):
        raise Misuse("erase: name either a session or a user (--user)")
    async with common.sessions() as sessions:
        try:
            erased = await sessions.erase(what, user, dry_run=not apply, rewrite=rewrite)
        except NotFound:
            raise await target.missing(sessions, what or "") from None
    common.screen.answer({**erased, "applied": apply}, _erased(erased, apply=apply))


def _erased(erased: Data, *, apply: bool) -> Iterator[Part]:
    for name in erased["sessions"]:
        yield line(("erased " if apply else "would erase ", DIM), (name, "bold"))
    count = many(erased["entries"], "entry")
    yield f"emptied {count}" if apply else f"nothing was erased; --apply empties {count} for good"
