"""A workflow of Microsoft's Agent Framework books two hotels, each once, although it is killed in the second booking.

    pip install 'saveslot[agent-framework]'
    python examples/agent_framework_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/agent_framework_trip.py       # goes on at the superstep of Rome: Paris is not asked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
"""

import asyncio
import sys
import time
from pathlib import Path

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

import saveslot
from saveslot.adapters.agent_framework import SaveslotCheckpointStorage

BOOKINGS = Path("bookings.txt")


def book(city: str, *, idempotency_key: str) -> str:
    """What the hotels' system does; Rome takes its time to answer."""
    known = BOOKINGS.read_text().splitlines() if BOOKINGS.exists() else []
    if f"{idempotency_key} {city}" not in known:
        with BOOKINGS.open("a") as file:
            file.write(f"{idempotency_key} {city}\n")
    print(f"asked for a hotel in {city}", flush=True)
    time.sleep(float(sys.argv[1]) if city == "Rome" and sys.argv[1:] else 0)
    return f"booked in {city}"


class Hotel(Executor):
    """Books a hotel in its city, and hands on what is booked so far."""

    def __init__(self, city: str, held: saveslot.Held) -> None:
        super().__init__(id=city)
        self.held = held

    @handler
    async def book(self, booked: list[str], ctx: WorkflowContext[list[str], list[str]]) -> None:
        booked = [*booked, await self.held.step("book", book, self.id, key=self.id)]  # once finished, never run again
        await (ctx.yield_output(booked) if self.id == "Rome" else ctx.send_message(booked))


async def main() -> None:
    async with (
        saveslot.open("trips.db", worker_beat=1, worker_ttl=4) as sessions,  # by default 5 and 20 seconds
        sessions.hold("trip-1", create="travel-agent", wait=60) as held,  # ours until we leave, or are silent for 4 s
    ):
        storage = SaveslotCheckpointStorage(sessions=sessions)
        paris, rome = Hotel("Paris", held), Hotel("Rome", held)
        builder = WorkflowBuilder(
            start_executor=paris, name="trip-1", checkpoint_storage=storage, output_from=[paris, rome]
        )
        trip = builder.add_edge(paris, rome).build()
        latest = await storage.get_latest(workflow_name="trip-1")
        result = await (trip.run([]) if latest is None else trip.run(checkpoint_id=latest.checkpoint_id))
        print(*result.get_outputs()[0], sep=", ")


asyncio.run(main())
