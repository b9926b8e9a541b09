"""An OpenAI agent books two hotels, each once, although it is killed in the middle of the second booking.

    pip install 'saveslot[openai]'
    python examples/openai_agents_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/openai_agents_trip.py       # goes on where that one was: Paris is not booked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
The model is scripted, so this runs without a network; use your own in its place.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import saveslot
from saveslot.adapters.openai_agents import SaveslotSession

BOOKINGS = Path("bookings.txt")


class Script(Model):
    """Books the first city that the conversation shows no booking of."""

    async def get_response(self, *, input: Any, **_: Any) -> ModelResponse:
        done = sum(item.get("type") == "function_call_output" for item in input)
        if done < 2:
            call = json.dumps({"city": ["Paris", "Rome"][done]})
            said: Any = ResponseFunctionToolCall(
                type="function_call", name="book_hotel", arguments=call, call_id=f"call-{done}"
            )
        else:
            text = ResponseOutputText(type="output_text", text="Both hotels are booked.", annotations=[])
            said = ResponseOutputMessage(
                id="message", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


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
        sessions.hold("trip-1", create="openai-agents", wait=60) as held,  # ours until we leave, or are silent for 4 s
    ):

        @function_tool
        async def book_hotel(city: str) -> str:
            return await held.step("book", book, city, key=city)  # once finished, it never runs again

        agent = Agent("travel agent", model=Script(), tools=[book_hotel])
        session = SaveslotSession("trip-1", sessions=sessions)
        text = [] if await session.get_items(1) else "Book hotels in Paris and Rome."  # []: go on with what is there
        result = await Runner.run(agent, text, session=session, run_config=RunConfig(tracing_disabled=True))
        print(result.final_output)


asyncio.run(main())
