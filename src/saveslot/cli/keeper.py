"""`saveslot keeper`: maintenance of a store in a process of its own. One line per event, silent when all is well.

With `--run` it starts a command for each orphan. The keeper takes no lease itself: an orphan remains one until the
command holds it, so no session is forgotten if keeper or command dies. If two keepers start a command each, the second
command gets `LeaseHeld`.
"""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli.candidates import agents
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse, until_terminated
from saveslot.cli.options import Duration, Flag, Rules, SomeTime, positive
from saveslot.cli.screen import Line, Screen, note
from saveslot.cli.sessions import short
from saveslot.cli.state import DIM
from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.manager.claims import startable
from saveslot.manager.keeper import TIDY
from saveslot.session.model import Owner
from saveslot.session.retention import DEFAULT
from saveslot.values.checks import Data
from saveslot.values.lifecycle import SessionState
from saveslot.values.words import many, size, span

# Orphans per page; namespaces that one process keeps.
PAGE, NAMESPACES = 1000, 10_000
# Seconds until a command that ended without having held its session is started again for it, doubled after each failure
# up to an hour. Commands that held it follow the session's own attempts and `backoff`.
AGAIN, LONGEST = 30.0, 3600.0
# Seconds that commands get to end when the keeper does. A command killed after that leaves an orphan.
GRACE = 10.0
# Ends a command that ignored SIGTERM; Windows has only one way.
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
# Events kept while stdout is a full pipe; older ones are dropped.
UNREAD = 10_000

EVENTS = {
    "orphan": "red",
    "started": "cyan",
    "ended": DIM,
    "taken": "green",
    "swept": "yellow",
    "tidied": DIM,
    "trouble": "bold red",
}

# A namespace, and the id of a session in it or "". Both are "" for trouble with the whole store.
Place = tuple[str, str]
Say = Callable[[str, Place, str], None]  # event, place, text


async def keeper(
    *,
    stale_after: Annotated[
        SomeTime, Parameter(show_default=False, help="Fail sessions without a heartbeat for this long (default: 48h).")
    ] = timedelta(hours=48),
    run: Annotated[
        str | None,
        Parameter(
            metavar="COMMAND",
            help='Command to start for each orphan: "python agent.py {id}". It holds the session itself, with wait=30.',
        ),
    ] = None,
    limit: Annotated[
        int, Parameter(validator=positive, metavar="N", help="Maximum number of commands running at once.")
    ] = 4,
    timeout: Annotated[  # noqa: ASYNC109  (of each command)
        Duration,
        Parameter(
            metavar="TIME", help="End a command, with its process group, that runs longer than this, such as 10m."
        ),
    ] = None,
    agent: Annotated[
        str | None, Parameter(metavar="AGENT", completer=agents, help="Only orphans of this agent type.")
    ] = None,
    all_namespaces: Annotated[bool, Flag("Keep every namespace that has sessions, instead of one.")] = False,
    every: Annotated[float, Parameter(validator=positive, metavar="SECONDS", help="Seconds between two polls.")] = 5.0,
    thin: Annotated[bool, Parameter(help="Apply retention policies; by default 30 days after a session ended.")] = True,
    retention: Rules = None,
    gc: Annotated[bool, Parameter(help="Remove sessions deleted a week ago.")] = True,
    gc_after: Annotated[Duration, Parameter(help="Also remove sessions that ended this long ago, such as 90d.")] = None,
    tidy_every: Annotated[
        SomeTime, Parameter(show_default=False, metavar="TIME", help="Interval between retention runs (default: 1h).")
    ] = timedelta(seconds=TIDY),
    common: Common = COMMON,
) -> None:
    if all_namespaces and common.namespace is not None:
        raise Misuse("keeper: --all-namespaces and --namespace exclude each other")
    events = Events(common.screen, named=all_namespaces)
    commands = None if run is None else Commands(_words(run), limit, timeout, common.url, events.say)
    watchmen: dict[str, Watchman] = {}

    async def keep() -> None:
        async with common.sessions(
            create=True,
            patient=True,
            worker_beat=every,
            worker_ttl=max(20.0, 4 * every),
            retention=DEFAULT if retention is None else retention,
        ) as sessions:

            async def begin() -> None:
                """Keep the namespaces that are not kept yet."""
                names = await sessions.namespaces(limit=NAMESPACES) if all_namespaces else []
                for name in {sessions.namespace, *names} - watchmen.keys():
                    one = sessions.of(name)
                    await one.keeper.start(
                        stale_after=stale_after, thin=thin, gc=gc, gc_after=gc_after, tidy_every=tidy_every
                    )
                    watchmen[name] = Watchman(one, agent, stale_after, commands, events.say)

            try:
                await begin()
                note(f"keeping {common.place}; press Ctrl-C to stop")
                await _go_on(begin, watchmen, every, commands, events)
            finally:
                if commands is not None:
                    commands.end()

    await until_terminated(keep())


async def _go_on(
    begin: Callable[[], Awaitable[None]],
    watchmen: dict[str, Watchman],
    every: float,
    commands: Commands | None,
    events: Events,
) -> None:
    ended = asyncio.Event() if commands is None else commands.ended
    trouble = ""
    while True:
        before, trouble = trouble, ""
        try:
            await begin()
        except SaveslotError as exc:  # the store may be back at the next poll
            trouble = str(exc)
        if trouble not in {"", before}:
            events.say("trouble", ("", ""), trouble)
        for watchman in watchmen.values():
            await watchman.poll()
        events.write()
        with suppress(TimeoutError):
            async with asyncio.timeout(every):
                await ended.wait()
        ended.clear()


def _words(run: str) -> list[str]:
    try:
        words = shlex.split(run)
    except ValueError as exc:
        raise Misuse(f"--run {run}: {exc}") from None
    if not any("{id}" in word for word in words):
        raise Misuse(f"--run {run}: write {{id}} where the session's id goes")
    if shutil.which(words[0]) is None:
        raise Misuse(f"--run {run}: program {words[0]} not found")
    return words


class Events:
    """The keeper's output. It never waits for a reader: a full pipe must not keep the keeper from its work."""

    def __init__(self, screen: Screen, *, named: bool) -> None:
        self._screen = screen
        self._named = named  # each line names its namespace
        self._unwritten: deque[tuple[Data, Line]] = deque(maxlen=UNREAD)

    def say(self, event: str, place: Place, text: str) -> None:
        now, namespace, session_id = datetime.now(UTC), *place
        about = {"namespace": namespace or None, "session_id": session_id or None}
        value: Data = {"timestamp": now.isoformat(), "event": event, **about, "text": text}
        at = f"{now.astimezone():%H:%M:%S}" if self._screen.terminal else now.isoformat(timespec="milliseconds")
        where = ((f"{namespace}  ", ""),) if self._named and namespace else ()
        who = ((f"{short(session_id, self._screen)}  ", "bold"),) if session_id else ()
        lead = ((f"{at}  ", DIM), (f"{event:<7}  ", EVENTS[event]))
        self._unwritten.append((value, Line(lead, (*where, *who, (text, "")))))

    def write(self) -> None:
        """Write the events for which stdout has room now."""
        while self._unwritten and _writable():
            self._screen.event(*self._unwritten.popleft())


def _writable() -> bool:
    """True if stdout takes a line (up to 4 KB) at once."""
    return sys.platform == "win32" or bool(select.select([], [sys.stdout], [], 0)[1])


class Watchman:
    """Polls a namespace and reports what changed."""

    def __init__(
        self, sessions: SessionManager, agent: str | None, stale_after: timedelta, commands: Commands | None, say: Say
    ) -> None:
        self._sessions = sessions
        self._agent = agent
        self._stale_after = stale_after
        self._commands = commands
        self._report = say
        self._trouble = ""
        self._orphans: dict[str, Owner] = {}  # by id
        self._swept = 0
        self._tidied = (0, 0, 0)

    async def poll(self) -> None:
        before = self._trouble
        try:
            await self._look()
            self._trouble = str(self._sessions.keeper.stats["last_error"])
        except SaveslotError as exc:  # the store may be back at the next poll
            self._trouble = str(exc)
        if self._trouble not in {"", before}:
            self._say("trouble", "", self._trouble)
        swept = int(self._sessions.keeper.stats["swept"])
        if swept > self._swept:
            text = f"{many(swept - self._swept, 'session')} failed: no heartbeat for "
            self._say("swept", "", text + span(self._stale_after.total_seconds()))
        self._swept = swept
        self._tell_tidied(self._sessions.keeper.stats)

    def _say(self, event: str, id: str, text: str) -> None:
        self._report(event, (self._sessions.namespace, id), text)

    def _tell_tidied(self, stats: Data) -> None:
        before, self._tidied = self._tidied, (stats["thinned"], stats["removed"], stats["freed_bytes"])
        thinned, removed, freed = (now - then for now, then in zip(self._tidied, before, strict=True))
        parts = [
            f"{many(thinned, 'checkpoint')} dropped" if thinned else "",
            f"{many(removed, 'session')} removed" if removed else "",
            f"{size(freed)} freed" if freed else "",
        ]
        if any(parts):
            self._say("tidied", "", ", ".join(filter(None, parts)))

    async def _look(self) -> None:
        if self._commands is not None:
            self._commands.reap()
        before, self._orphans = self._orphans, await self._found()
        for one in before.keys() - self._orphans.keys():
            self._say("taken", one, await self._fate(one))
        for one, owner in self._orphans.items():
            if one not in before or before[one].worker != owner.worker:
                self._say("orphan", one, f"{owner.worker} is dead" if owner.worker else "its owner left it by an error")
        if self._commands is not None:
            for one in await startable(self._sessions, list(self._orphans)):
                self._commands.start((self._sessions.namespace, one), self._orphans[one].fence)

    async def _found(self) -> dict[str, Owner]:
        owners: dict[str, Owner] = {}
        after: str | None = None
        while True:
            page = await self._sessions.find(
                agent_type=self._agent, state=SessionState.ACTIVE, orphaned=True, limit=PAGE, after=after
            )
            owners |= {session.session_id: session.owner for session in page if session.owner is not None}
            after = page.next
            if after is None:
                return owners

    async def _fate(self, id: str) -> str:
        """What became of a session that is no longer an orphan."""
        session = await self._sessions.get_session(id, history=0)
        if session is None:
            return "it was deleted"
        return f"by {session.owner.worker}" if session.owner else f"and released; it is {session.state}"


class Commands:
    """The commands started for orphans: one at a time per session, each in a process group of its own."""

    def __init__(self, words: list[str], limit: int, timeout: timedelta | None, url: str, say: Say) -> None:
        self._words = words
        self._limit = limit
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._environ = os.environ | {"SAVESLOT_URL": url}  # the command opens the same store by default
        self._say = say
        self.ended = asyncio.Event()  # set when a command ends
        self._loop = asyncio.get_running_loop()
        self._running: dict[Place, subprocess.Popen[bytes]] = {}
        self._late_at: dict[Place, float] = {}  # monotonic time of the next signal to a command, with `timeout`
        self._overdue: set[Place] = set()  # was sent SIGTERM
        self._failures: dict[Place, int] = {}
        self._due: dict[Place, float] = {}  # monotonic time before which it is not started again …
        self._fences: dict[Place, int] = {}  # … while the session still has the fence that the command met

    def start(self, place: Place, fence: int) -> None:
        """Start the command, unless one runs for this session, `limit` commands run, or the last one ended just now
        without having held the session.
        """
        unheld = fence == self._fences.get(place)
        if place in self._running or len(self._running) >= self._limit:
            return
        if unheld and time.monotonic() < self._due.get(place, 0.0):
            return
        if not unheld:
            self._failures.pop(place, None)
        self._fences[place] = fence
        namespace, session_id = place
        # No shell, since users choose ids. In its own session, so that Ctrl-C reaches only the keeper, which ends it.
        words = [word.replace("{id}", session_id) for word in self._words]
        environ = self._environ | {"SAVESLOT_NAMESPACE": namespace}
        try:
            process = subprocess.Popen(  # noqa: S603  (the user's own command)
                words, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environ, start_new_session=True
            )
        except OSError as exc:  # being deployed, or no process left: it may work later
            self._postpone(place, failed=True)
            self._say("trouble", place, f"cannot start {shlex.join(words)} ({exc.strerror})")
            return
        self._running[place] = process
        threading.Thread(target=self._wait, args=(process,), name="saveslot-command", daemon=True).start()
        if self._timeout is not None:
            self._late_at[place] = time.monotonic() + self._timeout
        self._say("started", place, f"{shlex.join(words)} (process {process.pid})")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with suppress(RuntimeError):  # the keeper ended first
            self._loop.call_soon_threadsafe(self.ended.set)

    def reap(self) -> None:
        """Report the commands that ended, and end those that exceeded the timeout."""
        ended = [(one, process, code) for one, process in self._running.items() if (code := process.poll()) is not None]
        for one, process, code in ended:
            del self._running[one]
            if one in self._overdue:  # what it started must not outlive it
                _signal(process, KILL)
            self._overdue.discard(one)
            self._late_at.pop(one, None)
            self._postpone(one, failed=code != 0)
            self._say("ended", one, f"process {process.pid}, {f'by signal {-code}' if code < 0 else f'exit {code}'}")
        now = time.monotonic()
        for one, late_at in self._late_at.items():
            if now >= late_at:
                _signal(self._running[one], KILL if one in self._overdue else signal.SIGTERM)
                self._overdue.add(one)
                self._late_at[one] = now + GRACE

    def _postpone(self, place: Place, *, failed: bool) -> None:
        self._failures[place] = self._failures.get(place, 0) + 1 if failed else 0
        self._due[place] = time.monotonic() + min(LONGEST, AGAIN * 2 ** max(0, self._failures[place] - 1))

    def end(self) -> None:
        """End all commands with their process groups; kill what is left after `GRACE`."""
        left = list(self._running.values())
        for process in left:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + GRACE
        try:
            while left and time.monotonic() < end:
                time.sleep(0.02)
                left = [process for process in left if process.poll() is None or _signal(process, 0)]
        finally:
            for process in left:
                _signal(process, KILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a command's process group; False if nothing of it is left."""
    if sys.platform == "win32":
        if number:
            process.terminate()
        return process.poll() is None
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
