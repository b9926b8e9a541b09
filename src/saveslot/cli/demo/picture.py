"""The demo's output: a live picture on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from saveslot.cli.demo.keys import HINT
from saveslot.cli.demo.stage import WISHES, Agent, Message, Stage, Trip
from saveslot.cli.log import KINDS, owners, summary
from saveslot.cli.screen import Cell, Column, Line, Screen, Span, rich_table
from saveslot.cli.state import DIM

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

AGENTS = ("cyan", "magenta", "blue")
STATES = {"at work": ("● ", "green"), "killed": ("✗ ", "red"), "stopped": ("‖ ", "yellow"), "done": ("✓ ", "blue")}
IDLE = ("○ ", DIM)
# Height of the picture without the messages below it.
FRAME = 20


@contextmanager
def picture(screen: Screen) -> Generator[Callable[[Stage], None]]:
    """Yield a function that draws the stage after each poll."""
    if screen.terminal:
        from rich.live import Live

        with Live(console=screen.console, auto_refresh=False) as live:
            yield lambda stage: live.update(_view(stage, screen), refresh=True)
    else:
        printed = 0

        def lines(stage: Stage) -> None:
            nonlocal printed
            if not screen.json:
                screen.lines(Line(_clock(message), message.spans) for message in stage.messages[printed:])
                sys.stdout.flush()
            printed = len(stage.messages)

        yield lines


def _clock(message: Message) -> tuple[Span, ...]:
    return ((f"{message.at:5.1f} s  ", DIM),)


def _view(stage: Stage, screen: Screen) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    title = [
        ("saveslot demo", "bold"),
        (f"  {len(stage.agents)} agents on {stage.place.description}", ""),
        (f", TTL {stage.tempo.ttl:.0f} s (20 s by default)", DIM),
        (f"  {time.time() - stage.began:.1f} s", "bold"),
    ]
    messages = Table.grid(padding=(0, 1))
    messages.add_column(no_wrap=True)
    messages.add_column(no_wrap=True, overflow="ellipsis")
    playing = any(agent.alive for agent in stage.agents) or stage.visited
    room = max(4, screen.console.height - FRAME) if playing else len(stage.messages)
    for message in stage.messages[-room:]:
        messages.add_row(_text(_clock(message)), _text(message.spans))
    return Group(
        _text(title),
        _text(),
        *(_text(_agent(stage, agent)) for agent in stage.cast),
        _text([(HINT, DIM)] if stage.keys is not None else ()),
        _trips(stage, screen),
        _text(_ledger(stage)),
        _text(),
        messages,
    )


def _text(spans: Sequence[Span] = ()) -> Text:
    from rich.text import Text

    return Text.assemble(*spans)


def _agent(stage: Stage, agent: Agent) -> list[Span]:
    state = agent.state if agent.state != "at work" or agent.alive else "done"
    trips = [trip.id for trip in stage.held_by(agent)]
    idle = state == "at work" and not trips
    mark, style = IDLE if idle else STATES[state]
    state = "idle" if idle else state
    kill = " with -9" if state == "killed" else ""
    chosen = " reverse" if agent.number == stage.chosen else ""
    return [
        (mark, style),
        (f"{agent.name}", f"{_colour(agent)}{chosen}"),
        ("  ", ""),
        (f"process {agent.process.pid:<9}", DIM),
        (f"{state + kill:<16}", style),
        ("holds " if trips else "", DIM),
        (" ".join(trips), ""),
    ]


def _colour(agent: Agent | None) -> str:
    return "" if agent is None else AGENTS[(agent.number - 1) % len(AGENTS)]


def _trips(stage: Stage, screen: Screen) -> RenderableType:
    columns = [Column("SESSION"), Column("OWNER"), *(Column(wish.upper()) for wish in WISHES)]
    columns += [Column("ENTRIES", right=True)]
    ledger = Counter((request.trip, request.wish) for request in stage.requests if request.booked)
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
    return (stage.name(owner.worker), _colour(stage.agent(owner.worker)))


def _wish(trip: Trip, wish: str, booked: int) -> Span:
    """Progress of a trip: saved and planned from the store, booked from the ledger."""
    if booked > 1:
        return ("TWICE!", "bold red")
    if wish in trip.booked:
        return ("saved", "green")
    if booked:
        return ("booked", "bold yellow")
    return ("planned", "cyan") if wish in trip.planned else ("·", DIM)


def _ledger(stage: Stage) -> list[Span]:
    booked = sum(request.booked for request in stage.requests)
    again = len(stage.requests) - booked
    repeats = f", {again} asked for again, known by their keys" if again else ""
    return [("the agency's ledger: ", DIM), (f"{booked} bookings", "bold"), (repeats, DIM)]


def timeline(stage: Stage, trip: Trip, key: str) -> tuple[list[Column], list[list[Cell]]]:
    """The log of a session with its owners, in seconds since the start, merged with kills and stops of its owners and
    the ledger's requests for one booking.
    """
    columns = [
        *(Column("TIME", right=True), Column("SEQ", right=True), Column("OWNER"), Column("KIND"), Column("NAME")),
        Column("CHANGED", wide=True),
    ]
    rows: list[tuple[float, list[Cell]]] = []
    workers = dict(owners(trip.log))
    for line in trip.log:
        style, agent = KINDS.get(line.kind, DIM), stage.agent(workers[line.seq])
        cells: list[Cell] = [(str(line.seq), "bold"), _named(agent), (line.kind, style), (line.name, style)]
        rows.append((line.timestamp.timestamp(), [*cells, summary(line)]))
    for agent in stage.agents:
        if agent.gone and trip.id in {taken.id for taken, _ in stage.taken_from(agent)}:
            kill = agent.process.returncode < 0
            mark, style = STATES["killed" if kill else "stopped"]
            how = "killed with -9" if kill else "stopped"
            rows.append((agent.gone, ["", _named(agent), (mark + how, style), "", ""]))
    for request in stage.requests:
        if request.key == key:
            agent = next((agent for agent in stage.agents if agent.process.pid == request.process), None)
            answer = "booked" if request.booked else "known, not booked again"
            cells = ["", _named(agent), ("→ agency", "yellow"), (request.wish, "yellow"), answer]
            rows.append((request.at, cells))
    rows.sort(key=lambda row: row[0])
    return columns, [[(f"{at - stage.began:.1f}", DIM), *cells] for at, cells in rows]


def _named(agent: Agent | None) -> Cell:
    return "" if agent is None else (agent.name, _colour(agent))
