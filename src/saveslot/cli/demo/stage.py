"""Where the story plays: three processes, their sessions in one store, and a ledger outside. Read, never remembered."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import apsw

from saveslot.cli.demo import agency
from saveslot.cli.screen import Spans
from saveslot.errors import SaveslotError
from saveslot.glance import LogLine
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Data

T = TypeVar("T")

# The sign of life of a demo's worker is good for so long; 20 s where nobody waits for somebody to die.
TTL = 2.0
# What a booking takes, in seconds, and a thought at least: a person can follow, and nobody gets bored.
PACE = 1.4
# Between two looks.
TICK = 0.08
# What has not happened by then does not happen.
PATIENCE = 60.0

TRIPS = ("oslo", "rome", "lima", "cairo", "kyoto", "quito")
WISHES = ("flight", "hotel", "museum", "dinner", "taxi")


class Broken(SaveslotError):
    """Something of what the demonstration claims was not true."""

    code = "demo"


@dataclass
class Agent:
    name: str
    process: subprocess.Popen[bytes]
    output: Path
    state: str = "at work"  # killed, stopped, at work
    gone: float = 0.0  # when it was killed or stopped

    @property
    def said(self) -> list[str]:
        return self.output.read_text().splitlines()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@dataclass
class Trip:
    """One session as the store has it."""

    session: AgentSession
    log: list[LogLine]
    data: Data

    @property
    def id(self) -> str:
        return self.session.session_id

    @property
    def planned(self) -> list[str]:
        return self.data.get("planned", [])

    @property
    def booked(self) -> list[str]:
        return self.data.get("booked", [])

    @property
    def takeovers(self) -> list[LogLine]:
        return [line for line in self.log if line.kind == "claimed"]


@dataclass
class Told:
    at: float
    spans: Spans


@dataclass
class Place:
    """Where sessions and the ledger are kept."""

    url: str
    told: str
    ledger: Path
    file: Path | None = None  # the SQLite file, if the store is one
    hot: str | None = None


@dataclass
class Stage:
    sessions: SessionManager
    place: Place
    draw: Callable[[Stage], None]
    began: float = field(default_factory=time.time)
    agents: list[Agent] = field(default_factory=list[Agent])
    trips: dict[str, Trip] = field(default_factory=dict[str, Trip])
    asked: list[agency.Asked] = field(default_factory=list[agency.Asked])
    told: list[Told] = field(default_factory=list[Told])

    # Look

    async def look(self) -> None:
        """Take in what the store and the ledger say now, and show it."""
        self.asked = agency.read(self.place.ledger)
        for session in await self.sessions.find(limit=len(TRIPS)):
            before = self.trips.get(session.session_id)
            if before is None or before.session.seen != session.seen:
                trip = await self._trip(session)
                self.trips[trip.id] = trip
                self._tell_takeovers(trip, before)
            else:
                before.session = session  # the same, but for what its owner has left
        self.draw(self)

    async def _trip(self, session: AgentSession) -> Trip:
        log = await self.sessions.log(session.session_id, all=True)
        return Trip(session, log, await self.sessions.get_data(session.session_id))

    async def until(self, what: str, true: Callable[[], T | None]) -> T:
        """Look until it is true."""
        end = time.monotonic() + PATIENCE
        while True:
            await self.look()
            if (found := true()) is not None:
                return found
            for agent in self.agents:
                if agent.state == "at work" and agent.process.poll():
                    raise Broken(f"{agent.name} failed: {' '.join(agent.said[-3:])}")
            if time.monotonic() > end:
                raise Broken(f"not within {PATIENCE:.0f} s: {what}")
            await asyncio.sleep(TICK)

    def tell(self, *spans: tuple[str, str], at: float | None = None) -> None:
        self.told.append(Told((at or time.time()) - self.began, spans))
        self.draw(self)

    def agent(self, worker: str) -> Agent | None:
        """By the name that the store knows its process by: `host:4711`."""
        return next((a for a in self.agents if worker.endswith(f":{a.process.pid}")), None)

    def name(self, worker: str) -> str:
        found = self.agent(worker)
        return worker if found is None else found.name

    def held_by(self, agent: Agent) -> list[Trip]:
        owners = [(trip, trip.session.owner) for trip in self.trips.values()]
        return [trip for trip, owner in owners if owner is not None and self.agent(owner.worker) is agent]

    def taken_from(self, agent: Agent) -> list[tuple[Trip, LogLine]]:
        """What others took over from it."""
        claimed = [(trip, line) for trip in self.trips.values() for line in trip.takeovers]
        return [(trip, line) for trip, line in claimed if self.agent(line.metadata["from"]) is agent]

    def _tell_takeovers(self, trip: Trip, before: Trip | None) -> None:
        for line in trip.takeovers[len(before.takeovers) if before else 0 :]:
            dead = self.agent(line.metadata["from"])
            if dead is not None:
                at = line.timestamp.timestamp()
                late = f", {at - dead.gone:.1f} s after it was {dead.state}" if dead.gone else ""
                told = f"{self.name(line.metadata['worker'])} took {trip.id} over from {dead.name}{late}"
                self.tell(("✓ ", "bold green"), (told, "green"), at=at)

    # Act

    def start(self, folder: Path) -> None:
        number = len(self.agents) + 1
        output = folder / f"agent-{number}.txt"
        code = [
            sys.executable,
            "-m",
            "saveslot.cli.demo.agent",
            self.place.url,
            str(self.place.ledger),
            str(TTL),
            str(PACE),
        ]
        environ = os.environ | {"SAVESLOT_NAMESPACE": self.sessions.namespace}
        if self.place.hot is not None:
            environ["SAVESLOT_HOT"] = self.place.hot
        with output.open("wb") as file:
            # In a session of its own: Ctrl-C reaches the stage, and the stage ends everybody.
            process = subprocess.Popen(  # noqa: S603  (our own code)
                code, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, start_new_session=True
            )
        self.agents.append(Agent(f"agent {number}", process, output))

    def kill(self, agent: Agent) -> None:
        agent.state, agent.gone = "killed", time.time()
        agent.process.kill()
        agent.process.wait()

    async def stop(self, agent: Agent) -> None:
        """SIGSTOP, but not inside a commit: there it would stop every writer of a file (no writer of a server)."""
        agent.state = "stopped"
        while True:
            agent.gone = time.time()
            agent.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(TICK)
            if self._writable():
                return
            agent.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(TICK)

    def wake(self, agent: Agent) -> None:
        agent.state = "at work"
        agent.process.send_signal(signal.SIGCONT)

    def _writable(self) -> bool:
        if self.place.file is None:
            return True
        connection = apsw.Connection(str(self.place.file))
        connection.set_busy_timeout(300)
        try:
            connection.execute("begin immediate; rollback")
            return True
        except apsw.BusyError:
            return False
        finally:
            connection.close()


@contextmanager
def ended(agents: Sequence[Agent]) -> Generator[None]:
    """However the story ends, no process stays behind: kill -9 ends a stopped one, too."""
    try:
        yield
    finally:
        for agent in agents:
            agent.process.kill()
        for agent in agents:
            agent.process.wait()
