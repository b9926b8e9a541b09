"""A Google ADK agent books two hotels, each once, although it is killed in the middle of the second booking.

    pip install 'saveslot[adk]'
    python examples/adk_trip.py 60    # kill -9 it: the hotel in Rome takes 60 seconds to answer
    python examples/adk_trip.py       # goes on where that one was: Paris is not booked again

The hotels' system is a file, `bookings.txt`. Like a payment service, it ignores an idempotency key that it has seen.
The model is scripted, so this runs without a network; use your own in its place.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

import saveslot
from saveslot.adapters.adk import SaveslotSessionService

BOOKINGS = Path("bookings.txt")
TRIP = {"app_name": "travel", "user_id": "anna", "session_id": "trip-1"}


class Script(BaseLlm):
    """Books the first city that the conversation shows no booking of."""

    async def generate_content_async(self, llm_request: LlmRequest, **_: Any) -> AsyncGenerator[LlmResponse]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        done = sum(part.function_response is not None for part in parts)
        if done < 2:
            call = types.FunctionCall(name="book_hotel", args={"city": ["Paris", "Rome"][done]})
            part = types.Part(function_call=call)
        else:
            part = types.Part(text="Both hotels are booked.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


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
    async with saveslot.open("trips.db", worker_beat=1, worker_ttl=4) as sessions:  # by default 5 and 20 seconds
        service = SaveslotSessionService(sessions=sessions)
        if await service.get_session(**TRIP) is None:
            await service.create_session(**TRIP)
        async with sessions.hold(service.saveslot_id(**TRIP), wait=60) as held:  # ours until we leave, or die

            async def book_hotel(city: str) -> str:
                """Book a hotel."""
                return await held.step("book", book, city, key=city)  # once finished, it never runs again

            agent = LlmAgent(name="travel_agent", model=Script(model="script"), tools=[book_hotel])
            app = App(name="travel", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
            runner = Runner(app=app, session_service=service)
            trip = await service.get_session(**TRIP)
            if trip and trip.events:  # go on with what is there: the tool call that was not finished
                run: dict[str, Any] = {"invocation_id": trip.events[-1].invocation_id}
            else:
                run = {"new_message": types.UserContent("Book hotels in Paris and Rome.")}
            async for event in runner.run_async(user_id="anna", session_id="trip-1", **run):
                if event.is_final_response() and event.content and event.content.parts:
                    print(event.content.parts[0].text)


asyncio.run(main())
