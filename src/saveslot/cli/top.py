"""`saveslot top`: sessions, live."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import TERMINATED, until_terminated
from saveslot.cli.screen import Cell, Column, Screen, rich_table
from saveslot.cli.sessions import STATES, as_row, entries, listing, owner_cell, short_ids, state_cell
from saveslot.cli.show import ROLLED_BACK
from saveslot.cli.state import DIM
from saveslot.cli.words import age, sparkline
from saveslot.errors import NotFound
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data
from saveslot.values.words import many, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

# Sessions shown, those with the newest heartbeat first.
WATCHED = 200
# Polls per count: counting a large store takes longer than reading its newest sessions.
COUNT_EVERY = 5
# Seconds of activity in a sparkline.
DRAWN = 20


async def top(
    *,
    every: Annotated[float, Parameter(metavar="SECONDS", help="Seconds between two polls.")] = 1.0,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        if not screen.terminal:
            newest = await _newest(sessions)
            screen.answer([as_row(session) for session in newest], [listing(newest, screen)])
            return
        activity = Activity()
        follower = asyncio.create_task(activity.follow(sessions))
        try:
            with _quit() as over:
                stopped = await until_terminated(_live(sessions, activity, screen, max(0.1, every), over))
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
        if stopped:
            raise SystemExit(TERMINATED)


@contextmanager
def _quit() -> Generator[asyncio.Event]:
    """An event that the key q sets. Keys are read one by one meanwhile, and not shown."""
    over = asyncio.Event()
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield over
        return
    import termios
    import tty

    def read() -> None:
        if os.read(keys, 64).lower() in {b"q", b""}:
            over.set()

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    asyncio.get_running_loop().add_reader(keys, read)
    try:
        yield over
    finally:
        asyncio.get_running_loop().remove_reader(keys)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


async def _newest(sessions: SessionManager) -> list[AgentSession]:
    newest = await sessions.find(limit=WATCHED)
    if newest.next is not None:  # too many: first those that have not ended
        newest = [*await sessions.find(state="active", limit=WATCHED), *await sessions.find(state="paused", limit=50)]
    return sorted(newest, key=lambda session: session.last_heartbeat, reverse=True)


class Activity:
    """Activity from the feed: each session's entries in each of the last seconds, and its last checkpoint."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()  # seconds count from the start: each is watched whole
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=DRAWN + 1)
        self._last: dict[str, str] = {}

    async def follow(self, sessions: SessionManager) -> None:
        async for event in sessions.watch():
            self.count(event.session_id)
            if event.kind == "checkpoint":
                self._last[event.session_id] = event.name
            elif event.kind == "rollback":
                self._last.pop(event.session_id, None)  # read it from the log again

    @property
    def _now(self) -> int:
        return int(self._clock() - self._start)

    def count(self, id: str) -> None:
        """Count an entry of this session now."""
        second = self._now
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][id] += 1

    async def last(self, sessions: SessionManager, listed: Sequence[AgentSession]) -> dict[str, str]:
        """The name of each session's newest checkpoint: read once, then kept up to date by the feed."""
        for session in listed:
            if session.session_id not in self._last:
                self._last[session.session_id] = await _last_checkpoint(sessions, session.session_id)
        return self._last

    def drawn(self, id: str | None = None) -> list[int]:
        """Entries in each of the last whole seconds of a session, or of all; oldest first."""
        now = self._now
        counts = dict(self._seconds)
        empty = Counter[str]()
        seconds = [counts.get(second, empty) for second in range(max(0, now - DRAWN), now)]
        return [second[id] if id is not None else second.total() for second in seconds]


def rate(drawn: Sequence[int]) -> float:
    """Entries per second over the seconds watched."""
    return sum(drawn) / max(1, len(drawn))


async def _last_checkpoint(sessions: SessionManager, id: str) -> str:
    try:
        checkpoint = await sessions.get_checkpoint(id)
    except NotFound:
        return ""
    return str(checkpoint.metadata["name"]) if checkpoint.name == ROLLED_BACK else checkpoint.name


async def _live(
    sessions: SessionManager, activity: Activity, screen: Screen, every: float, over: asyncio.Event
) -> None:
    from rich.live import Live

    stats: Data = {}
    with Live(console=screen.console, screen=True, auto_refresh=False) as live:
        for look in count():
            newest = await _newest(sessions)
            if look % COUNT_EVERY == 0:
                stats = await sessions.stats()
            listed = newest[: max(3, screen.console.height - 6)]
            last = await activity.last(sessions, listed)
            parts = [*_totals(newest, stats, activity), _table(listed, last, activity, screen)]
            live.update(_group(parts, len(newest) - len(listed)), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await over.wait()
            if over.is_set():
                return


def _group(parts: Sequence[RenderableType], more: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(*parts, *([Text(f"… {more:,} more", DIM)] if more else []))


def _totals(sessions: Sequence[AgentSession], stats: Data, activity: Activity) -> Iterator[Text]:
    from rich.text import Text

    total = activity.drawn()
    owners = {session.owner.worker for session in sessions if session.owner is not None and session.owner.left}
    states = [
        (f"  {STATES[state][0]}{number:,} {state}", STATES[state][1]) for state, number in stats["by_state"].items()
    ]
    yield Text.assemble(("saveslot top", "bold"), *states, (f"   {datetime.now(UTC).astimezone():%H:%M:%S}", DIM))
    yield Text.assemble(
        (f"{many(len(owners), 'worker')}  {stats['held'] - stats['orphaned']:,} held  ", "cyan"),
        (f"{stats['orphaned']:,} orphaned", "bold red" if stats["orphaned"] else DIM),
    )
    yield Text.assemble(
        (f"{stats['entries']:,} entries, {size(stats['stored_bytes'])}   ", DIM),
        (f"{rate(total):.1f} entries/s  ", ""),
        (sparkline(total), "green"),
    )
    yield Text()


def _table(
    listed: Sequence[AgentSession], last: Mapping[str, str], activity: Activity, screen: Screen
) -> RenderableType:
    ids = short_ids([session.session_id for session in listed])
    users, held = (any(getattr(session, part) for session in listed) for part in ("user_id", "owner"))
    columns = [Column("STATE"), Column("ID", id=True), Column("AGENT", name=True, spare=3)]
    columns += [Column("USER", name=True, spare=7)] * users + [Column("OWNER", name=True, spare=2)] * held
    columns += [Column("AGE", right=True, spare=6), Column("HEARTBEAT", right=True, spare=4)]
    columns += [Column("CHECKPOINT", name=True, spare=5)]
    columns += [
        Column("ENTRIES", right=True, spare=8),
        Column("PER S", right=True, spare=1),
        Column(f"LAST {DRAWN} S", wide=True, newest_last=True),
    ]
    rows: list[list[tuple[str, str]]] = []
    for session in listed:
        drawn = activity.drawn(session.session_id)
        busy = any(drawn)
        cells: list[Cell] = [state_cell(session, screen), (ids[session.session_id], "bold" if busy else "")]
        cells += [session.agent_type, *([session.user_id] * users), *([owner_cell(session)] * held)]
        cells += [age(session.created_at), age(session.last_heartbeat), last.get(session.session_id, "")]
        cells += [f"{entries(session):,}", f"{rate(drawn):.1f}" if busy else ("·", DIM)]
        cells += [(sparkline(drawn), "green") if busy else ""]
        rows.append([cell if isinstance(cell, tuple) else (cell, "") for cell in cells])
    return rich_table(columns, rows, screen.console.width)
