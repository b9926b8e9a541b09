"""The stage: three processes, their sessions in one store, and the agency's ledger, read again at each poll."""

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
from typing import NamedTuple, TypeVar

import apsw

from saveslot.cli.demo import agency
from saveslot.cli.demo.keys import Keys
from saveslot.cli.screen import Spans
from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.manager.log_lines import LogLine
from saveslot.session.model import AgentSession
from saveslot.stores.sqlite.file import connect
from saveslot.values.checks import Data

T = TypeVar("T")

# Seconds between two polls.
TICK = 0.08
# Seconds to wait for an event before the demo fails.
PATIENCE = 60.0

TRIPS = ("oslo", "rome", "lima", "cairo", "kyoto", "quito")
WISHES = ("flight", "hotel", "museum", "dinner", "taxi")


class Tempo(NamedTuple):
    """Seconds until a silent worker counts as dead (20 by default elsewhere), and that a booking or a thought takes."""

    ttl: float
    pace: float


# Slow enough to follow, fast enough not to bore; and for those who have seen it.
USUAL, FAST = Tempo(2.0, 1.4), Tempo(1.0, 0.55)


class Broken(SaveslotError):
    """The demo did not run as it should: an agent failed, or an expected event did not happen."""

    code = "demo"


class Visited(Exception):
    """A visitor pressed a key: from here on the visitor directs, not the script."""


@dataclass
class Agent:
    """One process. A restarted agent is another one with the same number."""

    number: int
    process: subprocess.Popen[bytes]
    output: Path
    state: str = "at work"  # killed, stopped, at work
    gone: float = 0.0  # when it was last killed or stopped

    @property
    def name(self) -> str:
        return f"agent {self.number}"

    @property
    def said(self) -> list[str]:
        return self.output.read_text().splitlines()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@dataclass
class Trip:
    """One session as stored."""

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
class Message:
    at: float
    spans: Spans


@dataclass
class Place:
    """The store and the ledger."""

    url: str
    description: str
    ledger: Path
    file: Path | None = None  # the SQLite file, if the store is one
    hot: str | None = None


@dataclass
class Stage:
    sessions: SessionManager
    place: Place
    folder: Path  # of what the agents print
    draw: Callable[[Stage], None]
    tempo: Tempo = USUAL
    keys: Keys | None = None  # what a visitor typed; None without a terminal
    chosen: int = 0  # the agent that the visitor's next key is for
    visited: bool = False
    began: float = field(default_factory=time.time)
    agents: list[Agent] = field(default_factory=list[Agent])
    trips: dict[str, Trip] = field(default_factory=dict[str, Trip])
    requests: list[agency.Request] = field(default_factory=list[agency.Request])
    messages: list[Message] = field(default_factory=list[Message])

    # Look

    async def look(self) -> None:
        """Read the store and the ledger, and draw."""
        self.requests = agency.read(self.place.ledger)
        for session in await self.sessions.find(limit=len(TRIPS)):
            before = self.trips.get(session.session_id)
            if before is None or before.session.seen != session.seen:
                trip = await self._trip(session)
                self.trips[trip.id] = trip
                self._tell_takeovers(trip, before)
            else:
                before.session = session  # unchanged, except for the time its lease has left
        self.draw(self)

    async def _trip(self, session: AgentSession) -> Trip:
        log = await self.sessions.log(session.session_id, all=True)
        return Trip(session, log, await self.sessions.get_data(session.session_id))

    async def until(self, what: str, true: Callable[[], T | None], *, directed: bool = True) -> T:
        """Poll until `true` returns a value, and return it. `Visited` once a visitor directs, if the script did."""
        end = time.monotonic() + PATIENCE
        while True:
            await self.look()
            if (value := true()) is not None:
                return value
            if await self._obey() and directed:
                raise Visited
            for agent in self.agents:
                if agent.state == "at work" and agent.process.poll():
                    raise Broken(f"{agent.name} failed: {' '.join(agent.said[-3:])}")
            if time.monotonic() > end and directed:
                raise Broken(f"this did not happen within {PATIENCE:.0f} s: {what}")
            await asyncio.sleep(TICK)

    def tell(self, *spans: tuple[str, str], at: float | None = None) -> None:
        self.messages.append(Message((at or time.time()) - self.began, spans))
        self.draw(self)

    def agent(self, worker: str) -> Agent | None:
        """The agent with this worker name, such as `host:4711`."""
        return next((a for a in self.agents if worker.endswith(f":{a.process.pid}")), None)

    def name(self, worker: str) -> str:
        agent = self.agent(worker)
        return worker if agent is None else agent.name

    def held_by(self, agent: Agent) -> list[Trip]:
        owners = [(trip, trip.session.owner) for trip in self.trips.values()]
        return [trip for trip, owner in owners if owner is not None and self.agent(owner.worker) is agent]

    def taken_from(self, agent: Agent) -> list[tuple[Trip, LogLine]]:
        """The takeovers from this agent."""
        claimed = [(trip, line) for trip in self.trips.values() for line in trip.takeovers]
        return [(trip, line) for trip, line in claimed if self.agent(line.metadata["from"]) is agent]

    def _tell_takeovers(self, trip: Trip, before: Trip | None) -> None:
        for line in trip.takeovers[len(before.takeovers) if before else 0 :]:
            dead = self.agent(line.metadata["from"])
            if dead is not None:
                at = line.timestamp.timestamp()
                late = f", {at - dead.gone:.1f} s after it was {dead.state}" if dead.gone else ""
                text = f"{self.name(line.metadata['worker'])} took {trip.id} over from {dead.name}{late}"
                self.tell(("✓ ", "bold green"), (text, "green"), at=at)

    # Act

    @property
    def cast(self) -> list[Agent]:
        """The newest process of each agent, by number."""
        return [*{agent.number: agent for agent in self.agents}.values()]

    async def _obey(self) -> bool:
        """Do what the visitor typed; True once there was something to do."""
        for key in "" if self.keys is None else self.keys.typed():
            chosen = next((agent for agent in self.cast if agent.number == self.chosen), None)
            if key.isdigit():
                self.chosen = int(key) if any(agent.number == int(key) for agent in self.cast) else self.chosen
            elif chosen is not None and key in "ksr":
                self.visited = await self._done(key, chosen) or self.visited
        return self.visited

    async def _done(self, key: str, agent: Agent) -> bool:
        """Kill, stop, continue or restart an agent for the visitor; False if there is nothing to do."""
        if key == "k" and agent.alive:
            self.kill(agent)
            self.tell(("✗ ", "bold red"), (f"you: kill -9 {agent.name}", "bold red"), at=agent.gone)
        elif key == "s" and agent.alive and agent.state == "stopped":
            self.wake(agent)
            self.tell(("▶ ", "bold yellow"), (f"you: SIGCONT {agent.name}", "yellow"))
        elif key == "s" and agent.alive:
            await self.stop(agent)
            self.tell(("‖ ", "bold yellow"), (f"you: SIGSTOP {agent.name}", "bold yellow"), at=agent.gone)
        elif key == "r":
            if agent.alive:
                self.kill(agent)
            self.start(agent.number)
            self.tell(("▶ ", "green"), (f"you: restart {agent.name}", ""))
        else:
            return False
        return True

    def start(self, number: int) -> None:
        output = self.folder / f"agent-{len(self.agents) + 1}.txt"
        code = [
            sys.executable,
            "-m",
            "saveslot.cli.demo.agent",
            self.place.url,
            str(self.place.ledger),
            str(self.tempo.ttl),
            str(self.tempo.pace),
        ]
        environ = os.environ | {"SAVESLOT_NAMESPACE": self.sessions.namespace}
        if self.place.hot is not None:
            environ["SAVESLOT_HOT"] = self.place.hot
        with output.open("wb") as file:
            # In its own session: Ctrl-C reaches only the stage, which ends all agents.
            process = subprocess.Popen(  # noqa: S603  (our own code)
                code, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, start_new_session=True
            )
        self.agents.append(Agent(number, process, output))

    def kill(self, agent: Agent) -> None:
        agent.state, agent.gone = "killed", time.time()
        agent.process.kill()
        agent.process.wait()

    async def stop(self, agent: Agent) -> None:
        """Send SIGSTOP, but not inside a commit: that would block every writer of a file (no writer of a server)."""
        agent.state = "stopped"
        while agent.alive:
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
        connection = connect(str(self.place.file), None)
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
    """End all agents however the demo ends: kill -9 ends a stopped process, too."""
    try:
        yield
    finally:
        for agent in agents:
            agent.process.kill()
        for agent in agents:
            agent.process.wait()
