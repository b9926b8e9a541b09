"""`saveslot ls`: the sessions of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from saveslot.cli.candidates import workers
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import Agent, Flag, Labels, Limit, NewerThan, OlderThan, States, User, before_now, labelled
from saveslot.cli.screen import Part, Screen, line
from saveslot.cli.sessions import as_row, listing
from saveslot.cli.state import DIM
from saveslot.manager import SessionManager
from saveslot.manager.owners import owned
from saveslot.session.model import AgentSession

# Rows on a terminal unless --limit says otherwise; a pipe gets all.
SHOWN = 50
PAGE = 500


async def ls(
    *,
    state: States = None,
    agent: Agent = None,
    user: User = None,
    label: Labels = None,
    text: Annotated[
        str | None,
        Parameter(metavar="TEXT", help="Only sessions with this text in id, agent type, user or a label."),
    ] = None,
    orphaned: Annotated[bool, Flag("Only sessions whose owner died, or left by an error.")] = False,
    held: Annotated[bool, Flag("Only sessions that a live worker holds.")] = False,
    owner: Annotated[
        str | None,
        Parameter(metavar="WORKER", completer=workers, help="Only sessions of this worker, such as host:4711."),
    ] = None,
    newer_than: NewerThan = None,
    older_than: OlderThan = None,
    sort: Annotated[
        Literal["created", "changed"],
        Parameter(metavar="ORDER", help="By creation, or by the newest entry (which looks at all that match)."),
    ] = "created",
    limit: Limit = None,
    quiet: Annotated[bool, Flag("Print only the ids, one per line.", ["--quiet", "-q"])] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if orphaned and held:
        raise Misuse("ls: --orphaned and --held exclude each other")
    wanted: dict[str, Any] = {
        "agent_type": agent,
        "user_id": user,
        "labels": labelled(label or []),
        "text": text,
        "created_after": before_now(newer_than),
        "created_before": before_now(older_than),
        "orphaned": orphaned,
        "order": sort,
    }
    if limit is None:
        limit = SHOWN if screen.terminal and not quiet else 0
    async with common.sessions() as sessions:
        if held or owner is not None:
            matches = await owned(sessions, worker=owner, alive=True if held else None, states=state, **wanted)
            count, matches = len(matches), matches[:limit] if limit else matches
        else:
            matches, count = await matching(sessions, wanted, state, limit)
    if quiet:
        screen.answer([session.session_id for session in matches], (line((s.session_id, "")) for s in matches))
        return
    screen.answer([as_row(session) for session in matches], _listed(matches, count, screen))


def _listed(matches: list[AgentSession], count: int, screen: Screen) -> Iterator[Part]:
    if not matches and screen.terminal:
        yield line(("no sessions yet; try `saveslot demo`", DIM))
        return
    yield listing(matches, screen)
    if count > len(matches):
        yield line((f"… {count - len(matches):,} more; --limit 0 shows all", DIM))


async def matching(
    sessions: SessionManager, wanted: dict[str, Any], states: Sequence[str] | None, limit: int = 0
) -> tuple[list[AgentSession], int]:
    """The newest sessions in these states, up to the limit (0: all), and how many there are."""
    each = [*dict.fromkeys(states or [None])]
    if len(each) > 1 and wanted.get("order") == "changed":  # a session does not tell when it changed: one list for all
        matches, more = await _pages(sessions, wanted, limit, each)
    else:
        matches, more = list[AgentSession](), False
        for state in each:
            part, left = await _pages(sessions, {**wanted, "state": state}, limit)
            matches, more = matches + part, more or left
    if len(each) > 1 and wanted.get("order") != "changed":
        matches.sort(key=lambda session: session.created_at, reverse=True)
    filters = {name: value for name, value in wanted.items() if name != "order"}
    count = sum([await sessions.count(**filters, state=state) for state in each]) if more else len(matches)
    return matches[:limit] if limit else matches, count


async def _pages(
    sessions: SessionManager, wanted: dict[str, Any], limit: int, states: Sequence[str | None] = ()
) -> tuple[list[AgentSession], bool]:
    """Sessions up to the limit, of these states only, and whether there are more."""
    matches: list[AgentSession] = []
    after: str | None = None
    while True:
        page = await sessions.find(**wanted, limit=min(PAGE, limit) if limit else PAGE, after=after)
        matches += [session for session in page if not states or session.state in states]
        after = page.next
        if after is None or (limit and len(matches) >= limit):
            return matches, after is not None
