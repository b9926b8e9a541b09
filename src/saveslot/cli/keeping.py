"""`saveslot keeper`: background work of a store, in a process of its own. One line an event, silent when all is well.

With `--run` it starts a command for each orphan. The keeper itself takes nothing: an orphan stays one until the command
holds it, so whatever dies in between, no session is forgotten; and where two keepers start one each, the second command
is told `LeaseHeld`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse, until_terminated
from saveslot.cli.looking import short
from saveslot.cli.options import Duration, SomeTime, positive
from saveslot.cli.screen import Line, Screen, note, write, write_json
from saveslot.cli.state import DIM
from saveslot.cli.words import many, size, span
from saveslot.errors import SaveslotError
from saveslot.keeper import TIDY
from saveslot.lifecycle import SessionState
from saveslot.manager import SessionManager
from saveslot.model import Data

# Orphans read at a time.
PAGE = 1000
# Seconds until a command is started again for a session that is an orphan still, or once more; twice as many each time
# that it failed, up to an hour: a session that kills its agents must not keep a machine busy.
AGAIN, LONGEST = 30.0, 3600.0
# Seconds that a command has to end when the keeper does. One that is killed then leaves an orphan behind.
GRACE = 10.0

EVENTS = {
    "orphan": "red",
    "started": "cyan",
    "ended": DIM,
    "taken": "green",
    "swept": "yellow",
    "tidied": DIM,
    "trouble": "bold red",
}

Say = Callable[[str, str, str], None]  # which event, of which session, in words


async def keeper(
    *,
    stale_after: Annotated[
        SomeTime, Parameter(show_default=False, help="Fail what gave no sign of life for so long; 48h if left out.")
    ] = timedelta(hours=48),
    run: Annotated[
        str | None,
        Parameter(
            help='Start this for each orphan: "python agent.py {id}". It holds the session itself, with wait=30.'
        ),
    ] = None,
    limit: Annotated[int, Parameter(validator=positive, help="Run at most so many commands at a time.")] = 4,
    agent: Annotated[str | None, Parameter(help="Only orphans of this agent type.")] = None,
    every: Annotated[float, Parameter(validator=positive, help="Seconds between two looks.")] = 5.0,
    thin: Annotated[
        bool, Parameter(help="Thin histories as their rules say, by default 30 days after their sessions ended.")
    ] = True,
    gc: Annotated[bool, Parameter(help="Remove sessions that were deleted a week ago.")] = True,
    gc_after: Annotated[Duration, Parameter(help="Remove also sessions that ended so long ago, such as 90d.")] = None,
    tidy_every: Annotated[
        SomeTime, Parameter(show_default=False, help="How often it thins and removes; 1h if left out.")
    ] = timedelta(seconds=TIDY),
    common: Common = COMMON,
) -> None:
    screen = common.screen

    def say(event: str, id: str, told: str) -> None:
        _say(screen, event, id, told)

    # The command finds the same store, wherever it looks for one.
    environ = {"SAVESLOT_URL": common.url, "SAVESLOT_NAMESPACE": common.settings["namespace"].value}
    commands = None if run is None else Commands(_words(run), limit, environ, say)

    async def keep() -> None:
        async with common.sessions(create=True, worker_beat=every, worker_ttl=max(20.0, 4 * every)) as sessions:
            await sessions.keeper.start(
                stale_after=stale_after, thin=thin, gc=gc, gc_after=gc_after, tidy_every=tidy_every.total_seconds()
            )
            try:
                note(f"keeping {common.place}; Ctrl-C ends it")
                await Watchman(sessions, agent, commands, say).go_on(every, stale_after)
            finally:
                if commands is not None:
                    commands.end()

    await until_terminated(keep())


def _words(run: str) -> list[str]:
    try:
        words = shlex.split(run)
    except ValueError as exc:
        raise Misuse(f"--run {run}: {exc}") from None
    if not any("{id}" in word for word in words):
        raise Misuse(f"--run {run}: write {{id}} where the session's id belongs")
    if shutil.which(words[0]) is None:
        raise Misuse(f"--run {run}: there is no program {words[0]}")
    return words


def _say(screen: Screen, event: str, id: str, told: str) -> None:
    now = datetime.now(UTC)
    if screen.json:
        line: Data = {"timestamp": now.isoformat(), "event": event, "session_id": id or None, "told": told}
        write_json(msgspec.json.encode(line) + b"\n")
        return
    at = f"{now.astimezone():%H:%M:%S}" if screen.terminal else now.isoformat(timespec="milliseconds")
    who = ((f"{short(id, screen)}  ", "bold"),) if id else ()
    screen.lines([Line(((f"{at}  ", DIM), (f"{event:<7}  ", EVENTS[event])), (*who, (told, "")))])
    write(b"")  # at once, also into a pipe


class Watchman:
    """Looks at a store again and again, and says what changed."""

    def __init__(self, sessions: SessionManager, agent: str | None, commands: Commands | None, say: Say) -> None:
        self._sessions = sessions
        self._agent = agent
        self._commands = commands
        self._say = say
        self._orphans: dict[str, str] = {}  # by id: the worker that held it
        self._swept = 0
        self._tidied = (0, 0, 0)

    async def go_on(self, every: float, stale_after: timedelta) -> None:
        before = ""
        while True:
            try:
                await self._look()
                trouble = str(self._sessions.keeper.stats["last_error"])
            except SaveslotError as exc:  # the next look may find the store well again
                trouble = str(exc)
            if trouble not in {"", before}:
                self._say("trouble", "", trouble)
            before = trouble
            swept = int(self._sessions.keeper.stats["swept"])
            if swept > self._swept:
                told = f"{many(swept - self._swept, 'session')} failed: no sign of life for "
                self._say("swept", "", told + span(stale_after.total_seconds()))
            self._swept = swept
            self._tell_tidied(self._sessions.keeper.stats)
            await asyncio.sleep(every)

    def _tell_tidied(self, stats: Data) -> None:
        before, self._tidied = self._tidied, (stats["thinned"], stats["removed"], stats["freed_bytes"])
        thinned, removed, freed = (now - then for now, then in zip(self._tidied, before, strict=True))
        parts = [
            f"{many(thinned, 'checkpoint')} dropped" if thinned else "",
            f"{many(removed, 'session')} removed" if removed else "",
            f"{size(freed)} given back" if freed else "",
        ]
        if any(parts):
            self._say("tidied", "", ", ".join(filter(None, parts)))

    async def _look(self) -> None:
        if self._commands is not None:
            self._commands.reap()
        before, self._orphans = self._orphans, await self._found()
        for one in before.keys() - self._orphans.keys():
            self._say("taken", one, await self._fate(one))
        for one, worker in self._orphans.items():
            if before.get(one) != worker:
                self._say("orphan", one, f"{worker or 'its worker'} is silent")
            if self._commands is not None:
                self._commands.start(one)

    async def _found(self) -> dict[str, str]:
        found: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await self._sessions.find(
                agent_type=self._agent, state=SessionState.ACTIVE, orphaned=True, limit=PAGE, after=after
            )
            found |= {session.session_id: session.owner.worker for session in page if session.owner is not None}
            after = page.next
            if after is None:
                return found

    async def _fate(self, id: str) -> str:
        """What became of a session that is no orphan any more."""
        session = await self._sessions.get_session(id, history=0)
        if session is None:
            return "it was deleted"
        return f"by {session.owner.worker}" if session.owner else f"and let go; it is {session.state}"


class Commands:
    """What was started for orphans: one at a time for each of them."""

    def __init__(self, words: list[str], limit: int, environ: dict[str, str], say: Say) -> None:
        self._words = words
        self._limit = limit
        self._environ = os.environ | environ
        self._say = say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}  # not before

    def start(self, id: str) -> None:
        """Unless one runs for it, or had its turn a moment ago, or there is no room."""
        if id in self._running or len(self._running) >= self._limit or time.monotonic() < self._due.get(id, 0.0):
            return
        # Words, never a shell: an id is whatever somebody chose. Ctrl-C is for the keeper, which ends them all.
        words = [word.replace("{id}", id) for word in self._words]
        process = subprocess.Popen(  # noqa: S603  (that is what was asked for)
            words, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=self._environ, start_new_session=True
        )
        self._running[id] = process
        self._say("started", id, f"{shlex.join(words)} (process {process.pid})")

    def reap(self) -> None:
        ended = [(one, process, code) for one, process in self._running.items() if (code := process.poll()) is not None]
        for one, process, code in ended:
            del self._running[one]
            self._failures[one] = self._failures.get(one, 0) + 1 if code else 0
            wait = min(LONGEST, AGAIN * 2 ** max(0, self._failures[one] - 1))
            self._due[one] = time.monotonic() + wait
            self._say("ended", one, f"process {process.pid}, {f'by signal {-code}' if code < 0 else f'exit {code}'}")

    def end(self) -> None:
        for process in self._running.values():
            process.terminate()
        end = time.monotonic() + GRACE
        try:
            for process in self._running.values():
                process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
