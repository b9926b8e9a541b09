"""`.venv-adk/bin/python -m bench.adk`: Google ADK's DatabaseSessionService and SaveslotSessionService on PostgreSQL.

One server with its default settings (fsync on), a database for each. A turn is four events: what the user says, a tool
call with nested arguments, the tool's result of about 2 KB, and the answer, which sets a key of the conversation's
state; every fourth turn sets one of the user's, too. The services take turns, so that a busy moment hits both; each
figure is a median, and `times` is how many times faster Saveslot is.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.genai import types

import saveslot
from bench.machine import load
from saveslot.adapters.adk import SaveslotSessionService
from saveslot.stack import Postgres

TURNS, CROWD, CROWD_TURNS = 75, 32, 10
KEYS = {"app_name": "tutor", "user_id": "anna"}
_choice = random.Random(1)


def words(count: int) -> str:
    return " ".join("".join(_choice.choices("abcdefghij", k=6)) for _ in range(count))


def turn(n: int) -> list[Event]:
    """The events of a turn; each service gets its own."""
    call = types.FunctionCall(
        id=f"call-{n}", name="search", args={"query": words(6), "filter": {"level": n, "tags": [words(1), words(1)]}}
    )
    hits = [
        {"title": words(5), "text": words(40), "score": n / 7, "source": {"page": n, "lines": [1, 2]}} for _ in "abcde"
    ]
    result = types.FunctionResponse(id=f"call-{n}", name="search", response={"hits": hits})
    state: dict[str, Any] = {"turn": n} | ({"user:seen": n} if n % 4 == 3 else {})
    parts = [types.Part(text=words(50)), types.Part(function_call=call), types.Part(function_response=result)]
    says = [(author, [part], {}) for author, part in zip(("user", "tutor", "tutor"), parts, strict=True)]
    return [
        Event(
            author=author,
            invocation_id=f"turn-{n}",
            content=types.Content(role="user" if author == "user" else "model", parts=said),
            actions=EventActions(state_delta=delta),
        )
        for author, said, delta in [*says, ("tutor", [types.Part(text=words(120))], state)]
    ]


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


async def talk(service: BaseSessionService, name: str) -> None:
    chat = await service.create_session(**KEYS, session_id=name)
    for n in range(CROWD_TURNS):
        for event in turn(n):
            await service.append_event(chat, event)


async def measure(pair: list[BaseSessionService]) -> dict[str, tuple[float, float]]:
    figures: dict[str, list[list[float]]] = {}

    def samples(what: str, which: int) -> list[float]:
        return figures.setdefault(what, [[], []])[which]

    chats = [await service.create_session(**KEYS, session_id="chat") for service in pair]
    for n in range(TURNS):
        for which in (0, 1) if n % 2 else (1, 0):
            for event in turn(n):
                took = await timed(lambda event=event, which=which: pair[which].append_event(chats[which], event))
                what = "and user: state" if "user:seen" in event.actions.state_delta else "append_event"
                samples(what, which).append(took)
    chat = {**KEYS, "session_id": "chat"}
    for _ in range(20):
        for which, service in enumerate(pair):
            samples("get_session, 300 events", which).append(await timed(lambda s=service: s.get_session(**chat)))
            few = GetSessionConfig(num_recent_events=10)
            took = await timed(lambda s=service, few=few: s.get_session(**chat, config=few))
            samples("get_session, the last 10", which).append(took)
    for attempt in range(3):
        for which, service in enumerate(pair):
            names = [f"c{attempt}-{n}" for n in range(CROWD)]
            took = await timed(lambda s=service, names=names: asyncio.gather(*(talk(s, name) for name in names)))
            samples(f"append_event, {CROWD} conversations at once", which).append(took / (CROWD * CROWD_TURNS * 4))
    return {what: (statistics.median(a), statistics.median(b)) for what, (a, b) in figures.items()}


async def both(url: str) -> dict[str, tuple[float, float]]:
    theirs = DatabaseSessionService(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with saveslot.open(f"{url}&schema=saveslot_bench") as sessions:
        figures = await measure([theirs, SaveslotSessionService(sessions=sessions)])
    await theirs.close()
    return figures


def main() -> None:
    before = load()
    with Postgres() as server:
        figures = asyncio.run(both(server.url))
    print(f"load before: {before}\n\n{'ms':42}{'DatabaseSessionService':>24}{'Saveslot':>10}{'times':>7}")
    for what, (theirs, ours) in figures.items():
        print(f"{what:42}{theirs:24.3f}{ours:10.3f}{theirs / ours:7.1f}")


if __name__ == "__main__":
    main()
