"""What happens, in order, and what must be true at its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from saveslot.cli.demo import agency
from saveslot.cli.demo.stage import PACE, TRIPS, TTL, WISHES, Agent, Stage, Trip, ended
from saveslot.cli.words import many
from saveslot.model import Data

AGENTS = 3
# So many bookings in peace; and how new one must be for its answer to be still under way, in seconds.
CALM, FRESH = 9, 0.4 * PACE


class Claim(NamedTuple):
    true: bool
    told: str
    numbers: Data


class Ending(NamedTuple):
    """What the closing lines are made of."""

    killed: Agent
    zombie: Agent
    stopped: Trip  # what the zombie was thinking about
    doubtful: agency.Asked  # the booking that was under way when its agent was killed


async def play(stage: Stage, folder: Path) -> Ending:
    for trip in TRIPS:
        await stage.sessions.create_session("traveller", context={"wishes": list(WISHES)}, session_id=trip)
    with ended(stage.agents):
        for _ in range(AGENTS):
            stage.start(folder)
        stage.tell(("▶ ", "green"), (f"{AGENTS} agents plan {many(len(TRIPS), 'trip')} and book them", ""))
        killed, doubtful = await _kill(stage)
        zombie, stopped = await _stop(stage, killed)
        await _wake(stage, zombie, stopped)
        await stage.until("every trip is completed", lambda: _over(stage))
        await stage.look()
    return Ending(killed, zombie, stopped, doubtful)


async def _kill(stage: Stage) -> tuple[Agent, agency.Asked]:
    """Inside a step: the booking is made, and its agent does not know it yet."""
    asked = await stage.until("a booking is under way", lambda: _fresh(stage))
    agent = next(a for a in stage.agents if a.process.pid == asked.process)
    stage.kill(agent)
    await stage.look()
    journal = [line.metadata["key"] for line in stage.trips[asked.trip].log if line.kind == "step_finished"]
    known = "and" if asked.wish in journal else "but not yet"
    told = f"kill -9 {agent.name}: the {asked.wish} in {asked.trip} is booked, {known} journaled"
    stage.tell(("✗ ", "bold red"), (told, "bold red"))
    await stage.until(f"others take over from {agent.name}", lambda: _freed(stage, agent))
    return agent, asked


def _fresh(stage: Stage) -> agency.Asked | None:
    last = stage.asked[-1] if stage.asked else None
    return last if last and len(stage.asked) >= CALM and time.time() - last.at < FRESH else None


def _freed(stage: Stage, agent: Agent) -> bool | None:
    return True if stage.taken_from(agent) and not stage.held_by(agent) else None


async def _stop(stage: Stage, killed: Agent) -> tuple[Agent, Trip]:
    """While it thinks: what it does next is a checkpoint."""
    await stage.until("somebody goes on with what was taken over", lambda: _resumed(stage, killed))
    agent, trip = await stage.until("an agent thinks", lambda: _thinking(stage, killed))
    await stage.stop(agent)
    told = f"SIGSTOP {agent.name}, which plans {trip.id}: silent for {2 * TTL:.0f} s, twice its TTL"
    stage.tell(("‖ ", "bold yellow"), (told, "bold yellow"), at=agent.gone)
    await stage.until(f"others take over from {agent.name}", lambda: _freed(stage, agent))
    await stage.until("its time is over", lambda: True if time.time() > agent.gone + 2 * TTL else None)
    return agent, trip


def _resumed(stage: Stage, killed: Agent) -> bool | None:
    taken = stage.taken_from(killed)
    return True if any(trip.log[-1].seq > line.seq for trip, line in taken) else None


def _thinking(stage: Stage, killed: Agent) -> tuple[Agent, Trip] | None:
    """An agent that saved a booking a moment ago, and has another one to plan."""
    for agent in stage.agents:
        for trip in stage.held_by(agent) if agent is not killed else []:
            new = time.time() - trip.log[-1].timestamp.timestamp() < PACE / 2
            if trip.log[-1].name == "booked" and len(trip.booked) < len(WISHES) and new:
                return agent, trip
    return None


async def _wake(stage: Stage, zombie: Agent, stopped: Trip) -> None:
    stage.wake(zombie)
    stage.tell(("▶ ", "bold yellow"), (f"SIGCONT {zombie.name}: it goes on as if nothing had happened", "yellow"))
    tried, lost = await stage.until("the zombie is refused", lambda: _refusal(zombie, stopped))
    stage.tell(("  ", ""), (f"{zombie.name}: {tried}", "yellow"))
    stage.tell(("✓ ", "bold green"), (f"{zombie.name}: {lost}", "green"))


def _refusal(zombie: Agent, stopped: Trip) -> tuple[str, str] | None:
    """What it said last about that trip: the checkpoint that it tried to save, and what it got."""
    said = [line for line in zombie.said if line.startswith(f"{stopped.id}: ")]
    return (said[-2], said[-1]) if len(said) > 1 and said[-1] in _refused(zombie) else None


def _refused(agent: Agent) -> list[str]:
    return [line for line in agent.said if ": LeaseLost: " in line]


def _over(stage: Stage) -> bool | None:
    ended = all(trip.session.state == "completed" for trip in stage.trips.values())
    return True if ended and all(not agent.alive for agent in stage.agents) else None


# What must be true. Every figure is counted in the store or in the ledger.


def claims(stage: Stage, ending: Ending) -> Iterator[Claim]:
    trips = stage.trips.values()
    lines = [line for trip in trips for line in trip.log]
    kinds = Counter(line.kind for line in lines)
    whole = all([line.seq for line in trip.log] == list(range(1, len(trip.log) + 1)) for trip in trips)
    completed = sum(trip.session.state == "completed" for trip in trips)
    yield Claim(
        whole and completed == len(TRIPS),
        f"{completed} of {len(TRIPS)} trips completed: {kinds['checkpoint']} checkpoints among "
        f"{len(lines)} entries, no gap",
        {"sessions": len(trips), "completed": completed, "checkpoints": kinds["checkpoint"], "entries": len(lines)},
    )
    yield _takeovers(stage, ending)
    yield _effects(stage, ending)
    yield _zombie(stage, ending)


def _takeovers(stage: Stage, ending: Ending) -> Claim:
    taken = {agent.name: stage.taken_from(agent) for agent in (ending.killed, ending.zombie)}
    once = all(len(found) == len({trip.id for trip, _ in found}) > 0 for found in taken.values())
    seconds = {
        agent.name: sorted(round(line.timestamp.timestamp() - agent.gone, 3) for _, line in taken[agent.name])
        for agent in (ending.killed, ending.zombie)
    }
    kill, stop = (", ".join(f"{late:.1f}" for late in found) for found in seconds.values())
    made = sum(len(trip.takeovers) for trip in stage.trips.values())
    return Claim(
        once,
        f"{many(made, 'takeover')}, each by one other agent: {kill} s after the kill, {stop} s after the stop",
        {"takeovers": made, "ttl": TTL, "seconds_to_takeover": seconds},
    )


def _effects(stage: Stage, ending: Ending) -> Claim:
    booked = Counter((asked.trip, asked.wish) for asked in stage.asked if asked.booked)
    wanted = {(trip, wish) for trip in TRIPS for wish in WISHES}
    saved = all(trip.booked == list(WISHES) for trip in stage.trips.values())
    doubt = ending.doubtful
    times = sum(asked.key == doubt.key for asked in stage.asked)
    return Claim(
        saved and set(booked) == wanted and set(booked.values()) == {1},
        f"{booked.total()} bookings in the ledger, each once; the {doubt.wish} in {doubt.trip} was asked for "
        f"{_times(times)}, by one idempotency key",
        {"asked": len(stage.asked), "booked": booked.total(), "twice": booked.total() - len(booked)},
    )


def _zombie(stage: Stage, ending: Ending) -> Claim:
    refused = _refused(ending.zombie)
    tried, _ = _refusal(ending.zombie, ending.stopped) or ("", "")
    # Had a late write landed, a wish would stand twice in what the agents planned.
    landed = sum(len(trip.planned) - len(set(trip.planned)) for trip in stage.trips.values())
    return Claim(
        "saves its plan" in tried and landed == 0,
        f"the zombie was refused {_times(len(refused))} (LeaseLost), {many(landed, 'late write')} in the logs",
        {"refused": len(refused), "late_writes": landed},
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
