"""How the story looks: a picture that moves on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from saveslot.cli.demo.stage import TTL, WISHES, Agent, Stage, Told, Trip
from saveslot.cli.looking import KINDS, owners, said
from saveslot.cli.screen import Cell, Column, Line, Screen, Span, rich_table
from saveslot.cli.state import DIM

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

AGENTS = ("cyan", "magenta", "blue")
STATES = {"at work": ("● ", "green"), "killed": ("✗ ", "red"), "stopped": ("‖ ", "yellow"), "done": ("✓ ", "blue")}
# Lines that the picture takes without what is told below it.
FRAME = 19


@contextmanager
def picture(screen: Screen) -> Generator[Callable[[Stage], None]]:
    """What draws a stage, each time that it was looked at."""
    if screen.terminal:
        from rich.live import Live

        with Live(console=screen.console, auto_refresh=False) as live:
            yield lambda stage: live.update(_view(stage, screen), refresh=True)
    else:
        printed = 0

        def lines(stage: Stage) -> None:
            nonlocal printed
            if not screen.json:
                screen.lines(Line(_clock(told), told.spans) for told in stage.told[printed:])
                sys.stdout.flush()
            printed = len(stage.told)

        yield lines


def _clock(told: Told) -> tuple[Span, ...]:
    return ((f"{told.at:5.1f} s  ", DIM),)


def _view(stage: Stage, screen: Screen) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    title = [
        ("saveslot demo", "bold"),
        (f"  {len(stage.agents)} agents on {stage.place.told}", ""),
        (f", TTL {TTL:.0f} s (20 s by default)", DIM),
        (f"  {time.time() - stage.began:.1f} s", "bold"),
    ]
    told = Table.grid(padding=(0, 1))
    room = max(4, screen.console.height - FRAME) if any(agent.alive for agent in stage.agents) else len(stage.told)
    for line in stage.told[-room:]:
        told.add_row(_text(_clock(line)), _text(line.spans))
    return Group(
        _text(title),
        _text(),
        *(_text(_agent(stage, agent)) for agent in stage.agents),
        _text(),
        _trips(stage, screen),
        _text(_ledger(stage)),
        _text(),
        told,
    )


def _text(spans: Sequence[Span] = ()) -> Text:
    from rich.text import Text

    return Text.assemble(*spans)


def _agent(stage: Stage, agent: Agent) -> list[Span]:
    state = agent.state if agent.state != "at work" or agent.alive else "done"
    mark, style = STATES[state]
    trips = [trip.id for trip in stage.held_by(agent)]
    kill = " with -9" if state == "killed" else ""
    return [
        (mark, style),
        (f"{agent.name}  ", _colour(stage, agent)),
        (f"process {agent.process.pid:<9}", DIM),
        (f"{state + kill:<16}", style),
        ("holds " if trips else "", DIM),
        (" ".join(trips), ""),
    ]


def _colour(stage: Stage, agent: Agent | None) -> str:
    return "" if agent is None else AGENTS[stage.agents.index(agent) % len(AGENTS)]


def _trips(stage: Stage, screen: Screen) -> RenderableType:
    columns = [Column("SESSION"), Column("OWNER"), *(Column(wish.upper()) for wish in WISHES)]
    columns += [Column("ENTRIES", right=True)]
    ledger = Counter((asked.trip, asked.wish) for asked in stage.asked if asked.booked)
    rows = [
        [
            (trip.id, "bold"),
            _owner(stage, trip),
            *(_wish(trip, wish, ledger[trip.id, wish]) for wish in WISHES),
            (str(len(trip.log)), ""),
        ]
        for trip in sorted(stage.trips.values(), key=lambda trip: trip.session.created_at)
    ]
    return rich_table(columns, rows, screen.console.width)


def _owner(stage: Stage, trip: Trip) -> Span:
    owner = trip.session.owner
    if owner is None:
        return (trip.session.state.value, "blue") if trip.session.state != "active" else ("", "")
    if not owner.left:
        return (f"orphan ({stage.name(owner.worker)})", "bold red")
    return (stage.name(owner.worker), _colour(stage, stage.agent(owner.worker)))


def _wish(trip: Trip, wish: str, booked: int) -> Span:
    """How far it is: saved and planned say the store, booked says the ledger."""
    if booked > 1:
        return ("TWICE!", "bold red")
    if wish in trip.booked:
        return ("saved", "green")
    if booked:
        return ("booked", "bold yellow")
    return ("planned", "cyan") if wish in trip.planned else ("·", DIM)


def _ledger(stage: Stage) -> list[Span]:
    booked = sum(asked.booked for asked in stage.asked)
    again = len(stage.asked) - booked
    told = f", {again} asked for again, known by their keys" if again else ""
    return [("the agency's ledger: ", DIM), (f"{booked} bookings", "bold"), (told, DIM)]


def timeline(stage: Stage, trip: Trip, key: str) -> tuple[list[Column], list[list[Cell]]]:
    """The log of a session with its owners, in seconds of the story; among it what befell them, and what the ledger
    says of one booking.
    """
    columns = [
        *(Column("TIME", right=True), Column("SEQ", right=True), Column("OWNER"), Column("KIND"), Column("NAME")),
        Column("CHANGED", wide=True),
    ]
    rows: list[tuple[float, list[Cell]]] = []
    workers = dict(owners(trip.log))
    for line in trip.log:
        style, agent = KINDS.get(line.kind, DIM), stage.agent(workers[line.seq])
        cells: list[Cell] = [(str(line.seq), "bold"), _named(stage, agent), (line.kind, style), (line.name, style)]
        rows.append((line.timestamp.timestamp(), [*cells, said(line)]))
    for agent in stage.agents:
        if agent.gone and trip.id in {taken.id for taken, _ in stage.taken_from(agent)}:
            kill = agent.process.returncode < 0
            mark, style = STATES["killed" if kill else "stopped"]
            how = "killed with -9" if kill else "stopped"
            rows.append((agent.gone, ["", _named(stage, agent), (mark + how, style), "", ""]))
    for asked in stage.asked:
        if asked.key == key:
            agent = next((agent for agent in stage.agents if agent.process.pid == asked.process), None)
            told = "booked" if asked.booked else "known, not booked again"
            rows.append((asked.at, ["", _named(stage, agent), ("→ agency", "yellow"), (asked.wish, "yellow"), told]))
    rows.sort(key=lambda row: row[0])
    return columns, [[(f"{at - stage.began:.1f}", DIM), *cells] for at, cells in rows]


def _named(stage: Stage, agent: Agent | None) -> Cell:
    return "" if agent is None else (agent.name, _colour(stage, agent))
