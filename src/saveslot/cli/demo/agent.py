"""The agent of `saveslot demo`, as you would write one. Several run at once, and any may die at any moment."""

from __future__ import annotations

import asyncio
import random
import sys

import saveslot
from saveslot.cli.demo.agency import book


async def agent(url: str, ledger: str, ttl: float, pace: float) -> None:
    async with saveslot.open(url, worker_beat=ttl / 4, worker_ttl=ttl) as sessions, asyncio.TaskGroup() as trips:
        while await sessions.count(state="active"):
            for held in await sessions.claim("traveller", limit=1, released=True):  # orphans first, then new sessions
                trips.create_task(plan(held, ledger, pace))
            await asyncio.sleep(0.3)


async def plan(held: saveslot.Held, ledger: str, pace: float) -> None:
    trip, wishes = held.session.session_id, held.session.context["wishes"]
    try:
        async with held:
            planned, booked = held.data.get("planned", []), held.data.get("booked", [])
            for wish in wishes:
                if wish not in planned:
                    await asyncio.sleep(pace * random.uniform(1.0, 1.5))  # noqa: S311  (the model thinks)
                    print(f"{trip}: saves its plan for the {wish}", flush=True)
                    await held.checkpoint("planned", append={"planned": [wish]})
                if wish not in booked:
                    # Not run again once it is journaled; before that only with the same idempotency key.
                    await held.step("book", book, ledger, trip, wish, pace, key=wish)
                    await held.checkpoint("booked", append={"booked": [wish]})
            await held.complete({"bookings": len(wishes)})
    except saveslot.LeaseLost as lost:
        print(f"{trip}: LeaseLost: {lost}", flush=True)  # another agent has it


if __name__ == "__main__":
    _, url, ledger, ttl, pace = sys.argv
    asyncio.run(agent(url, ledger, float(ttl), float(pace)))
