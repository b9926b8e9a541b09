"""The commands that watch: tail and top."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.looking import KINDS, STATES, entries, listing, short, short_ids, state_cell
from saveslot.cli.screen import Cell, Column, Line, Screen, note, rich_table, write
from saveslot.cli.state import DIM
from saveslot.cli.words import age, size, sparkline
from saveslot.log import Event
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Data

if TYPE_CHECKING:
    from rich.console import RenderableType

# `top` looks at so many sessions, those with the newest sign of life first.
WATCHED = 200
# Counting a large store takes longer than looking at its newest sessions: once in so many looks.
COUNT_EVERY = 5
# Activity is counted in seconds, and so many of them are drawn.
DRAWN = 20


async def tail(
    what: Annotated[
        str | None, Parameter(name="ID", help="A session's id or its beginning; left out: all, from now on.")
    ] = None,
    /,
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"], help="Begin with so many of its newest entries.")] = 10,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions(create=True) as sessions:
        if what is None:
            events = sessions.watch()
            note("following all sessions; Ctrl-C ends it")
        else:
            session = await target.find_session(sessions, what)
            events = sessions.watch(session.session_id, after=max(0, entries(session) - last))
        async for event in events:
            _tell(event, screen, alone=what is not None)


def _tell(event: Event, screen: Screen, *, alone: bool) -> None:
    if screen.json:
        told = {
            "cursor": event.cursor,
            "session_id": event.session_id,
            "seq": event.seq,
            "kind": event.kind,
            "name": event.name,
            "timestamp": event.timestamp.isoformat(),
        }
        write(msgspec.json.encode(told) + b"\n")
        return
    at = f"{event.timestamp.astimezone():%H:%M:%S}" if screen.terminal else event.timestamp.isoformat()
    style = KINDS.get(event.kind, DIM)
    who = () if alone else ((f"{short(event.session_id, screen)}  ", "bold"),)
    screen.lines(
        [Line((), ((f"{at}  ", DIM), *who, (f"{event.seq:>4}  {event.kind:<10}  ", style), (event.name, style)))]
    )
    write(b"")  # at once, also into a pipe


async def top(
    *,
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 1.0,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions(create=common.screen.terminal) as sessions:
        if not screen.terminal:
            found = await _newest(sessions)
            if screen.json:
                screen.data([session.to_dict() for session in found])
            else:
                screen.table(*listing(found, screen))
            return
        activity = _Activity()
        follower = asyncio.create_task(activity.follow(sessions))
        try:
            await _live(sessions, activity, screen, max(0.1, every))
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower


async def _newest(sessions: SessionManager) -> list[AgentSession]:
    found = await sessions.find(limit=WATCHED)
    if found.next is not None:  # many: those that can still do something first
        found = [*await sessions.find(state="active", limit=WATCHED), *await sessions.find(state="paused", limit=50)]
    return sorted(found, key=lambda session: session.last_heartbeat, reverse=True)


class _Activity:
    """How many entries each session got in each of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=DRAWN + 1)

    async def follow(self, sessions: SessionManager) -> None:
        async for event in sessions.watch():
            second = int(time.monotonic())
            if not self._seconds or self._seconds[-1][0] != second:
                self._seconds.append((second, Counter()))
            self._seconds[-1][1][event.session_id] += 1

    def drawn(self, id: str | None = None) -> list[int]:
        """Oldest first, up to the last whole second; of all sessions if none is named."""
        now = int(time.monotonic())
        counts = dict(self._seconds)
        empty = Counter[str]()
        seconds = [counts.get(second, empty) for second in range(now - DRAWN, now)]
        return [second[id] if id is not None else second.total() for second in seconds]


async def _live(sessions: SessionManager, activity: _Activity, screen: Screen, every: float) -> None:
    from rich.live import Live

    stats: Data = {}
    with Live(console=screen.console, screen=True, auto_refresh=False) as live:
        for look in count():
            found = await _newest(sessions)
            if look % COUNT_EVERY == 0:
                stats = await sessions.stats()
            live.update(_view(found, stats, activity, screen), refresh=True)
            await asyncio.sleep(every)


def _view(found: Sequence[AgentSession], stats: Data, activity: _Activity, screen: Screen) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    total = activity.drawn()
    states = [
        (f"  {STATES[state][0]}{number:,} {state}", STATES[state][1]) for state, number in stats["by_state"].items()
    ]
    head = Text.assemble(("saveslot top", "bold"), *states, (f"   {datetime.now(UTC).astimezone():%H:%M:%S}", DIM))
    flow = Text.assemble(
        (f"{stats['entries']:,} entries, {size(stats['stored_bytes'])}   ", DIM),
        (f"{sum(total) / DRAWN:.1f} entries/s  ", ""),
        (sparkline(total), "green"),
    )
    room = max(3, screen.console.height - 5)
    shown = found[:room]
    ids = short_ids([session.session_id for session in shown])
    columns = [
        *(Column("STATE"), Column("ID"), Column("AGENT"), Column("USER"), Column("AGE", right=True)),
        *(Column("SEEN", right=True), Column("ENTRIES", right=True), Column("PER S", right=True)),
        Column(f"LAST {DRAWN} S", wide=True),
    ]
    rows = [_row(session, ids[session.session_id], activity, screen) for session in shown]
    parts: list[RenderableType] = [head, flow, Text(), rich_table(columns, rows, screen.console.width)]
    if len(found) > len(shown):
        parts.append(Text(f"… {len(found) - len(shown):,} more", DIM))
    return Group(*parts)


def _row(session: AgentSession, id: str, activity: _Activity, screen: Screen) -> list[tuple[str, str]]:
    drawn = activity.drawn(session.session_id)
    busy = any(drawn)
    cells: list[Cell] = [
        state_cell(session, screen),
        (id, "bold" if busy else ""),
        session.agent_type,
        session.user_id,
        age(session.created_at),
        age(session.last_heartbeat),
        f"{entries(session):,}",
        f"{sum(drawn) / DRAWN:.1f}" if busy else ("·", DIM),
        (sparkline(drawn), "green") if busy else "",
    ]
    return [cell if isinstance(cell, tuple) else (cell, "") for cell in cells]
