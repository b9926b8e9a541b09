"""The commands that watch: tail and top."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.looking import (
    KINDS,
    ROLLED_BACK,
    STATES,
    entries,
    listing,
    owner_cell,
    short,
    short_ids,
    state_cell,
    told,
)
from saveslot.cli.screen import Cell, Column, Line, Screen, note, rich_table, write, write_json
from saveslot.cli.state import DIM
from saveslot.cli.words import age, many, size, sparkline
from saveslot.errors import NotFound
from saveslot.log import Event
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Data

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

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
        line = {
            "cursor": event.cursor,
            "session_id": event.session_id,
            "seq": event.seq,
            "kind": event.kind,
            "name": event.name,
            "timestamp": event.timestamp.isoformat(),
        }
        write_json(msgspec.json.encode(line) + b"\n")
        return
    at = f"{event.timestamp.astimezone():%H:%M:%S}" if screen.terminal else event.timestamp.isoformat()
    style = KINDS.get(event.kind, DIM)
    who = () if alone else ((f"{short(event.session_id, screen)}  ", "bold"),)
    screen.lines(
        [Line((), ((f"{at}  ", DIM), *who, (f"{event.seq:>4}  {event.kind:<13}  ", style), (event.name, style)))]
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
                screen.data([told(session) for session in found])
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
    """What the feed tells: how many entries each session got in each of the last seconds, and its last checkpoint."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=DRAWN + 1)
        self._last: dict[str, str] = {}

    async def follow(self, sessions: SessionManager) -> None:
        async for event in sessions.watch():
            second = int(time.monotonic())
            if not self._seconds or self._seconds[-1][0] != second:
                self._seconds.append((second, Counter()))
            self._seconds[-1][1][event.session_id] += 1
            if event.kind == "checkpoint":
                self._last[event.session_id] = event.name
            elif event.kind == "rollback":
                self._last.pop(event.session_id, None)  # what it went back to, the log tells

    async def last(self, sessions: SessionManager, shown: Sequence[AgentSession]) -> dict[str, str]:
        """The name of each one's newest checkpoint; asked for once, then the feed says."""
        for session in shown:
            if session.session_id not in self._last:
                self._last[session.session_id] = await _last_checkpoint(sessions, session.session_id)
        return self._last

    def drawn(self, id: str | None = None) -> list[int]:
        """Oldest first, up to the last whole second; of all sessions if none is named."""
        now = int(time.monotonic())
        counts = dict(self._seconds)
        empty = Counter[str]()
        seconds = [counts.get(second, empty) for second in range(now - DRAWN, now)]
        return [second[id] if id is not None else second.total() for second in seconds]


async def _last_checkpoint(sessions: SessionManager, id: str) -> str:
    try:
        made = await sessions.get_checkpoint(id)
    except NotFound:
        return ""
    return str(made.metadata["name"]) if made.name == ROLLED_BACK else made.name


async def _live(sessions: SessionManager, activity: _Activity, screen: Screen, every: float) -> None:
    from rich.live import Live

    stats: Data = {}
    with Live(console=screen.console, screen=True, auto_refresh=False) as live:
        for look in count():
            found = await _newest(sessions)
            if look % COUNT_EVERY == 0:
                stats = await sessions.stats()
            shown = found[: max(3, screen.console.height - 6)]
            last = await activity.last(sessions, shown)
            parts = [*_totals(found, stats, activity), _table(shown, last, activity, screen)]
            live.update(_group(parts, len(found) - len(shown)), refresh=True)
            await asyncio.sleep(every)


def _group(parts: Sequence[RenderableType], more: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(*parts, *([Text(f"… {more:,} more", DIM)] if more else []))


def _totals(found: Sequence[AgentSession], stats: Data, activity: _Activity) -> Iterator[Text]:
    from rich.text import Text

    total = activity.drawn()
    owners = {session.owner.worker for session in found if session.owner is not None and session.owner.left}
    states = [
        (f"  {STATES[state][0]}{number:,} {state}", STATES[state][1]) for state, number in stats["by_state"].items()
    ]
    yield Text.assemble(("saveslot top", "bold"), *states, (f"   {datetime.now(UTC).astimezone():%H:%M:%S}", DIM))
    yield Text.assemble(
        (f"{many(len(owners), 'worker')}  {stats['held']:,} held  ", "cyan"),
        (f"{stats['orphaned']:,} orphaned", "bold red" if stats["orphaned"] else DIM),
    )
    yield Text.assemble(
        (f"{stats['entries']:,} entries, {size(stats['stored_bytes'])}   ", DIM),
        (f"{sum(total) / DRAWN:.1f} entries/s  ", ""),
        (sparkline(total), "green"),
    )
    yield Text()


def _table(
    shown: Sequence[AgentSession], last: Mapping[str, str], activity: _Activity, screen: Screen
) -> RenderableType:
    ids = short_ids([session.session_id for session in shown])
    users, held = (any(getattr(session, part) for session in shown) for part in ("user_id", "owner"))
    columns = [Column("STATE"), Column("ID", name=True), Column("AGENT", name=True)]
    columns += [Column("USER", name=True)] * users + [Column("OWNER", name=True)] * held
    columns += [Column("AGE", right=True), Column("SEEN", right=True), Column("CHECKPOINT", name=True)]
    columns += [Column("ENTRIES", right=True), Column("PER S", right=True), Column(f"LAST {DRAWN} S", wide=True)]
    rows: list[list[tuple[str, str]]] = []
    for session in shown:
        drawn = activity.drawn(session.session_id)
        busy = any(drawn)
        cells: list[Cell] = [state_cell(session, screen), (ids[session.session_id], "bold" if busy else "")]
        cells += [session.agent_type, *([session.user_id] * users), *([owner_cell(session)] * held)]
        cells += [age(session.created_at), age(session.last_heartbeat), last.get(session.session_id, "")]
        cells += [f"{entries(session):,}", f"{sum(drawn) / DRAWN:.1f}" if busy else ("·", DIM)]
        cells += [(sparkline(drawn), "green") if busy else ""]
        rows.append([cell if isinstance(cell, tuple) else (cell, "") for cell in cells])
    return rich_table(columns, rows, screen.console.width)
