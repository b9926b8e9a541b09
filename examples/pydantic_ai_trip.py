"""A Pydantic AI agent books two hotels, each once, although it is killed in the middle of the second booking.

    pip install 'saveslot[pydantic-ai]'
    python examples/pydantic_ai_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/pydantic_ai_trip.py       # goes on where that one was: Paris is not booked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
The model is scripted, so this runs without a network; use your own in its place.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import saveslot
from saveslot.adapters.pydantic_ai import SaveslotMessageHistory

BOOKINGS = Path("bookings.txt")


def script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Book the first city that the conversation shows no booking of."""
    done = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
    if done < 2:
        return ModelResponse(parts=[ToolCallPart("book_hotel", {"city": ["Paris", "Rome"][done]})])
    return ModelResponse(parts=[TextPart("Both hotels are booked.")])


def book(city: str, *, idempotency_key: str) -> str:
    """What the hotels' system does; Rome takes its time to answer."""
    known = BOOKINGS.read_text().splitlines() if BOOKINGS.exists() else []
    if f"{idempotency_key} {city}" not in known:
        with BOOKINGS.open("a") as file:
            file.write(f"{idempotency_key} {city}\n")
    print(f"asked for a hotel in {city}", flush=True)
    time.sleep(float(sys.argv[1]) if city == "Rome" and sys.argv[1:] else 0)
    return f"booked in {city}"


async def main() -> None:
    async with (
        saveslot.open("trips.db", worker_beat=1, worker_ttl=4) as sessions,  # by default 5 and 20 seconds
        sessions.hold("trip-1", create="pydantic-ai", wait=60) as held,  # ours until we leave, or are silent for 4 s
    ):
        agent = Agent(FunctionModel(script))

        @agent.tool_plain
        async def book_hotel(city: str) -> str:
            return await held.step("book", book, city, key=city)  # once finished, it never runs again

        history = SaveslotMessageHistory(sessions=sessions)
        trip = await history.load("trip-1") or Conversation(conversation_id="trip-1")
        result = await agent.run("Book hotels in Paris and Rome.", conversation=trip)
        await history.save(result)
        print(result.output)


asyncio.run(main())
