"""The story, and the claims that must hold at its end.

A script kills one agent and stops another. From the first key on, a visitor directs instead: whatever is killed,
stopped or restarted then, the same claims must hold.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from saveslot.cli.demo import agency
from saveslot.cli.demo.stage import TRIPS, WISHES, Agent, Stage, Trip, Visited, ended
from saveslot.values.checks import Data
from saveslot.values.words import many

AGENTS = 3
# Bookings before the first kill.
CALM = 9
# Seconds without an agent at work until the story starts one itself: there may be no one to press a key.
ABANDONED = 20.0


class Claim(NamedTuple):
    true: bool
    text: str
    numbers: Data


class Ending(NamedTuple):
    """What the claims of the script are checked against."""

    killed: Agent
    zombie: Agent
    stopped: Trip  # the trip that the zombie was planning
    doubtful: agency.Request  # the booking that was under way when its agent was killed


async def play(stage: Stage) -> Ending | None:
    """Play the script; None if a visitor directed."""
    for trip in TRIPS:
        await stage.sessions.create_session("traveller", context={"wishes": list(WISHES)}, session_id=trip)
    with ended(stage.agents):
        for number in range(1, AGENTS + 1):
            stage.start(number)
        stage.tell(("▶ ", "green"), (f"{AGENTS} agents plan {many(len(TRIPS), 'trip')} and book them", ""))
        try:
            killed, doubtful = await _kill(stage)
            zombie, stopped = await _stop(stage, killed)
            await _wake(stage, zombie, stopped)
            await stage.until("every trip is completed", lambda: _over(stage))
            ending = Ending(killed, zombie, stopped, doubtful)
        except Visited:
            await _improvise(stage)
            ending = None
        await stage.look()
    return ending


async def _improvise(stage: Stage) -> None:
    """Let the visitor direct until every trip is completed and every agent has ended."""
    stage.tell(("● ", "bold cyan"), ("you direct: the script is off", "cyan"))
    while True:
        needed = await stage.until("a trip needs an agent, or none does", lambda: _stuck(stage), directed=False)
        if needed == "":
            break
        stage.tell(("‖ ", "bold yellow"), (needed, "yellow"))
        await stage.until(
            "an agent works again", partial(_unstuck, stage, time.monotonic() + ABANDONED), directed=False
        )
        if _stuck(stage):
            idle = min(agent.number for agent in stage.cast)
            stage.start(idle)
            stage.tell(("▶ ", "green"), (f"nobody did for {ABANDONED:.0f} s: agent {idle} is started again", ""))
    for agent in stage.agents:
        if agent.alive and agent.state == "stopped":
            stage.wake(agent)
            stage.tell(("▶ ", "bold yellow"), (f"SIGCONT {agent.name}: its trips are completed without it", "yellow"))
    await stage.until("every agent has ended", lambda: _over(stage), directed=False)


def _stuck(stage: Stage) -> str | None:
    """What to tell the visitor if no agent is at work; "" once there is nothing left to do."""
    if all(trip.session.state == "completed" for trip in stage.trips.values()):
        return ""
    if any(agent.alive and agent.state == "at work" for agent in stage.agents):
        return None
    return "no agent is at work: choose one (1-3), then r restarts it, or s continues it"


def _unstuck(stage: Stage, end: float) -> bool | None:
    return True if not _stuck(stage) or time.monotonic() > end else None


async def _kill(stage: Stage) -> tuple[Agent, agency.Request]:
    """Kill an agent inside a step: the booking is made, but the agent has no answer yet."""
    request = await stage.until("a booking is under way", lambda: _fresh(stage))
    agent = next(a for a in stage.agents if a.process.pid == request.process)
    stage.kill(agent)
    await stage.look()
    journal = [line.metadata["key"] for line in stage.trips[request.trip].log if line.kind == "step_finished"]
    known = "and" if request.wish in journal else "but not yet"
    text = f"kill -9 {agent.name}: the {request.wish} in {request.trip} is booked, {known} journaled"
    stage.tell(("✗ ", "bold red"), (text, "bold red"))
    await stage.until(f"others take over from {agent.name}", lambda: _freed(stage, agent))
    return agent, request


def _fresh(stage: Stage) -> agency.Request | None:
    last = stage.requests[-1] if stage.requests else None
    fresh = 0.4 * stage.tempo.pace  # seconds for which a booking surely has no answer yet
    return last if last and len(stage.requests) >= CALM and time.time() - last.at < fresh else None


def _freed(stage: Stage, agent: Agent) -> bool | None:
    return True if stage.taken_from(agent) and not stage.held_by(agent) else None


async def _stop(stage: Stage, killed: Agent) -> tuple[Agent, Trip]:
    """Stop an agent while it thinks: its next call is a checkpoint."""
    await stage.until("an agent continues a trip that it took over", lambda: _resumed(stage, killed))
    agent, trip = await stage.until("an agent thinks", lambda: _thinking(stage, killed))
    await stage.stop(agent)
    text = f"SIGSTOP {agent.name}, which plans {trip.id}: silent for {2 * stage.tempo.ttl:.0f} s, twice its TTL"
    stage.tell(("‖ ", "bold yellow"), (text, "bold yellow"), at=agent.gone)
    await stage.until(f"others take over from {agent.name}", lambda: _freed(stage, agent))
    await stage.until(
        "it has been silent for twice its TTL", lambda: True if time.time() > agent.gone + 2 * stage.tempo.ttl else None
    )
    return agent, trip


def _resumed(stage: Stage, killed: Agent) -> bool | None:
    taken = stage.taken_from(killed)
    return True if any(trip.log[-1].seq > line.seq for trip, line in taken) else None


def _thinking(stage: Stage, killed: Agent) -> tuple[Agent, Trip] | None:
    """An agent that just saved a booking and has another one to plan."""
    for agent in stage.agents:
        for trip in stage.held_by(agent) if agent is not killed else []:
            new = time.time() - trip.log[-1].timestamp.timestamp() < stage.tempo.pace / 2
            if trip.log[-1].name == "booked" and len(trip.booked) < len(WISHES) and new:
                return agent, trip
    return None


async def _wake(stage: Stage, zombie: Agent, stopped: Trip) -> None:
    stage.wake(zombie)
    stage.tell(("▶ ", "bold yellow"), (f"SIGCONT {zombie.name}: it goes on as if nothing had happened", "yellow"))
    tried, lost = await stage.until("the zombie is refused", lambda: _refusal(zombie, stopped))
    stage.tell(("  ", ""), (f"{zombie.name}: {tried}", "yellow"))
    stage.tell(("✓ ", "bold green"), (f"{zombie.name}: {lost.partition('; ')[0]}", "green"))


def _refusal(zombie: Agent, stopped: Trip) -> tuple[str, str] | None:
    """The zombie's last output about that trip: the checkpoint it tried to save, and the error it got."""
    said = [line for line in zombie.said if line.startswith(f"{stopped.id}: ")]
    return (said[-2], said[-1]) if len(said) > 1 and said[-1] in _refused(zombie) else None


def _refused(agent: Agent) -> list[str]:
    return [line for line in agent.said if ": LeaseLost: " in line]


def _over(stage: Stage) -> bool | None:
    ended = all(trip.session.state == "completed" for trip in stage.trips.values())
    return True if ended and all(not agent.alive for agent in stage.agents) else None


def highlight(stage: Stage, ending: Ending | None) -> tuple[Trip, str]:
    """The trip whose log tells most, and the idempotency key of its booking in doubt."""
    if ending is not None:
        return stage.trips[ending.doubtful.trip], ending.doubtful.key
    trip = max(stage.trips.values(), key=lambda trip: len(trip.takeovers))
    repeated = [request for request in stage.requests if request.trip == trip.id and not request.booked]
    return trip, repeated[-1].key if repeated else ""


# The claims. Every figure is counted in the store or in the ledger.


def claims(stage: Stage, ending: Ending | None) -> Iterator[Claim]:
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
    yield _takeovers(stage, ending) if ending is not None else _free_takeovers(stage)
    yield _effects(stage, ending)
    yield _zombie(stage, ending)


def _free_takeovers(stage: Stage) -> Claim:
    """However often agents died: each takeover is from another process, and no entry of the log has two owners."""
    taken = [(agent, trip, line) for agent in stage.agents for trip, line in stage.taken_from(agent)]
    by_others = all(stage.agent(line.metadata["worker"]) is not agent for agent, _, line in taken)
    takeovers = sum(len(trip.takeovers) for trip in stage.trips.values())
    gone = Counter(agent.state for agent in stage.agents if agent.gone)
    text = f"{many(takeovers, 'takeover')}, each by another process, after {many(gone['killed'], 'kill')} of yours"
    return Claim(by_others and len(taken) == takeovers, text, {"takeovers": takeovers, "ttl": stage.tempo.ttl})


def _takeovers(stage: Stage, ending: Ending) -> Claim:
    taken = {agent.name: stage.taken_from(agent) for agent in (ending.killed, ending.zombie)}
    once = all(len(pairs) == len({trip.id for trip, _ in pairs}) > 0 for pairs in taken.values())
    seconds = {
        agent.name: sorted(round(line.timestamp.timestamp() - agent.gone, 3) for _, line in taken[agent.name])
        for agent in (ending.killed, ending.zombie)
    }
    kill, stop = (", ".join(f"{late:.1f}" for late in delays) for delays in seconds.values())
    takeovers = sum(len(trip.takeovers) for trip in stage.trips.values())
    return Claim(
        once,
        f"{many(takeovers, 'takeover')}, each by one other agent: {kill} s after the kill, {stop} s after the stop",
        {"takeovers": takeovers, "ttl": stage.tempo.ttl, "seconds_to_takeover": seconds},
    )


def _effects(stage: Stage, ending: Ending | None) -> Claim:
    booked = Counter((request.trip, request.wish) for request in stage.requests if request.booked)
    wanted = {(trip, wish) for trip in TRIPS for wish in WISHES}
    saved = all(trip.booked == list(WISHES) for trip in stage.trips.values())
    if ending is None:
        again = len(stage.requests) - booked.total()
        repeats = f"{again} asked for again, by the same idempotency keys" if again else "none asked for again"
    else:
        doubt = ending.doubtful
        times = sum(request.key == doubt.key for request in stage.requests)
        repeats = f"the {doubt.wish} in {doubt.trip} was asked for {_times(times)}, by one idempotency key"
    return Claim(
        saved and set(booked) == wanted and set(booked.values()) == {1},
        f"{booked.total()} bookings in the ledger, each once; {repeats}",
        {"asked": len(stage.requests), "booked": booked.total(), "twice": booked.total() - len(booked)},
    )


def _zombie(stage: Stage, ending: Ending | None) -> Claim:
    # If a late write had been stored, a wish would be planned twice.
    landed = sum(len(trip.planned) - len(set(trip.planned)) for trip in stage.trips.values())
    late = f"{many(landed, 'late write')} in the logs"
    if ending is None:
        refused = [said for agent in stage.agents for said in _refused(agent)]
        text, true = f"stopped agents were refused {_times(len(refused))} (LeaseLost), {late}", True
    else:
        refused = _refused(ending.zombie)
        tried, _ = _refusal(ending.zombie, ending.stopped) or ("", "")
        text, true = f"the zombie was refused {_times(len(refused))} (LeaseLost), {late}", "saves its plan" in tried
    return Claim(true and landed == 0, text, {"refused": len(refused), "late_writes": landed})


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
