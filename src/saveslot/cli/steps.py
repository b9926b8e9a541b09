"""`saveslot steps`: what a session's agent did outside, and what is to become of a step that failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import steps as candidates
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import SessionArg, json_value
from saveslot.cli.screen import Cell, Column, Part, Screen, Table, line
from saveslot.cli.sessions import short, when
from saveslot.cli.state import DIM, bare
from saveslot.cli.words import flat
from saveslot.errors import NotFound
from saveslot.manager.steps import StepLine, list_steps, resolve_step, retry_step
from saveslot.session.model import AgentSession

STATES = {
    "finished": "green",
    "failed": "red",
    "running": "cyan",
    "unknown": "bold yellow",
    "retry": "yellow",
    "retrying": "yellow",
}


async def steps(
    what: SessionArg,
    /,
    *,
    retry: Annotated[
        str | None,
        Parameter(
            metavar="NAME[:KEY]", completer=candidates, help="Let the agent run this failed or unknown step again."
        ),
    ] = None,
    resolve: Annotated[
        str | None,
        Parameter(
            metavar="NAME[:KEY]",
            completer=candidates,
            help="Journal that this failed or unknown step happened, with --result.",
        ),
    ] = None,
    result: Annotated[str | None, Parameter(metavar="JSON", help="With --resolve: what the step returned.")] = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if retry is not None and resolve is not None:
        raise Misuse("steps: --retry and --resolve exclude each other")
    if (resolve is None) != (result is None):
        raise Misuse("steps: --resolve needs --result with what the step returned, such as --result null")
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=retry is not None or resolve is not None)
        lines = await list_steps(sessions, session.session_id)
        if retry is None and resolve is None:
            screen.answer(lines, _listed(lines, screen))
            return
        row = _named(lines, session, retry or resolve or "")
        step = row.step
        if retry is not None:
            seq = await retry_step(sessions, session.session_id, step.name, key=step.key)
        else:
            value = json_value(result or "", "--result")
            seq = await resolve_step(sessions, session.session_id, step.name, value, key=step.key)
    does = "runs again at its next call" if retry is not None else "is finished"
    done = line((f"{short(session.session_id, screen)}@{seq}", "bold"), (f"  step {row.label} {does}", ""))
    screen.answer({"id": f"{session.session_id}:{seq}", "name": step.name, "key": step.key}, [done])


def _named(lines: list[StepLine], session: AgentSession, text: str) -> StepLine:
    """The step that `NAME`, `NAME:KEY` or a name with a single key means."""
    exact = [row for row in lines if row.label == text]
    matches = exact or [row for row in lines if row.step.name == text]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise Misuse(f"step {text!r} has several keys: {', '.join(row.label for row in matches)}")
    raise NotFound(f"session {session.session_id} has no step {text!r}; `saveslot steps` lists its steps")


def _listed(lines: list[StepLine], screen: Screen) -> Iterator[Part]:
    if not lines and screen.terminal:
        yield line(("no steps yet", DIM))
        return
    columns = [Column("SEQ", right=True, spare=3), Column("STEP", id=True), Column("STATE")]
    columns += [Column("RUNS", right=True, spare=2), Column("AGE" if screen.terminal else "TIME", right=True, spare=1)]
    columns += [Column("RESULT", wide=True)]
    rows: list[list[Cell]] = []
    for row in lines:
        style = STATES[row.state]
        about = (flat(row.step.error, 200), "red") if row.step.error else (flat(bare(row.result), 200), DIM)
        ended = "" if row.step.at is None else when(row.step.at, screen)
        rows.append(
            [
                str(row.step.seq),
                (row.label, "bold"),
                (row.state, style),
                str(row.attempts),
                ended,
                about if row.state not in {"running", "unknown"} else "",
            ]
        )
    yield Table(columns, rows)
