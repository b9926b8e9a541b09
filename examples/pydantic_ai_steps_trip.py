"""A Pydantic AI agent books two hotels; killed in the middle of the second booking, its run goes on right there.

    pip install 'saveslot[pydantic-ai]'
    python examples/pydantic_ai_steps_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/pydantic_ai_steps_trip.py       # goes on where that one was: it asks the model nothing twice

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
The model is scripted, so this runs without a network; use your own in its place.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from saveslot.adapters.pydantic_ai import SaveslotStepStore, idempotency_key

BOOKINGS = Path("bookings.txt")


def script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Book the first city that the conversation shows no booking of."""
    print("asked the model", flush=True)
    done = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
    if done < 2:
        city = ["Paris", "Rome"][done]
        return ModelResponse(parts=[ToolCallPart("book_hotel", {"city": city}, tool_call_id=f"call-{done}")])
    return ModelResponse(parts=[TextPart("Both hotels are booked.")])


def book(city: str, key: str | None) -> str:
    """What the hotels' system does; Rome takes its time to answer."""
    known = BOOKINGS.read_text().splitlines() if BOOKINGS.exists() else []
    if f"{key} {city}" not in known:
        with BOOKINGS.open("a") as file:
            file.write(f"{key} {city}\n")
    print(f"asked for a hotel in {city}", flush=True)
    time.sleep(float(sys.argv[1]) if city == "Rome" and sys.argv[1:] else 0)
    return f"booked in {city}"


steps = SaveslotStepStore("trips.db", worker_beat=1, worker_ttl=4)  # by default 5 and 20 seconds
agent = Agent(FunctionModel(script), name="travel-agent", capabilities=[steps])


@agent.tool_plain
async def book_hotel(city: str) -> str:
    return await asyncio.to_thread(book, city, idempotency_key())  # a call that was interrupted has the same key again


async def main() -> None:
    async with steps.hold("trip-1", wait=60):  # ours until we leave, or are silent for 4 s
        result = await agent.run("Book hotels in Paris and Rome.")
        print(result.output)
    await steps.close()


asyncio.run(main())
