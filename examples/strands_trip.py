"""A Strands agent books two hotels, each once, although it is killed in the middle of the second booking.

    pip install 'saveslot[strands]'
    python examples/strands_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/strands_trip.py       # goes on where that one was: Paris is not booked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
The model is scripted, so this runs without a network; use your own in its place.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model
from strands.session import RepositorySessionManager

from saveslot import blocking
from saveslot.adapters.strands import SaveslotSessionRepository

BOOKINGS = Path("bookings.txt")


class Script(Model):
    """Books the first city that the conversation shows no booking of."""

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any]:
        done = sum("toolResult" in part for message in messages for part in message["content"])
        start, delta, reason = {}, {"text": "Both hotels are booked."}, "end_turn"
        if done < 2:
            start = {"toolUse": {"name": "book_hotel", "toolUseId": f"call-{done}"}}
            delta = {"toolUse": {"input": json.dumps({"city": ["Paris", "Rome"][done]})}}
            reason = "tool_use"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


def book(city: str, *, idempotency_key: str) -> str:
    """What the hotels' system does; Rome takes its time to answer."""
    known = BOOKINGS.read_text().splitlines() if BOOKINGS.exists() else []
    if f"{idempotency_key} {city}" not in known:
        with BOOKINGS.open("a") as file:
            file.write(f"{idempotency_key} {city}\n")
    print(f"asked for a hotel in {city}", flush=True)
    time.sleep(float(sys.argv[1]) if city == "Rome" and sys.argv[1:] else 0)
    return f"booked in {city}"


with (
    blocking.open("trips.db", worker_beat=1, worker_ttl=4) as sessions,  # by default 5 and 20 seconds
    sessions.hold("trip-1", create="strands", wait=60) as held,  # ours until we leave, or are silent for 4 s
):

    @tool
    def book_hotel(city: str) -> str:
        """Book a hotel."""
        return held.step("book", book, city, key=city)  # once finished, it never runs again

    trip = RepositorySessionManager("trip-1", SaveslotSessionRepository(sessions=sessions))
    agent = Agent(
        model=Script(), tools=[book_hotel], session_manager=trip, agent_id="travel-agent", callback_handler=None
    )
    # Without a prompt it goes on with what is there: the tool call that was not finished.
    print(str(agent(None if agent.messages else "Book hotels in Paris and Rome.")).strip())
