"""`.venv-adk/bin/python -m tests.moving.make_adk`: a database as Google ADK's DatabaseSessionService writes it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService
from google.genai import types

PATH = Path(__file__).parent / "foreign" / "adk.sqlite"
NOON = 1767268800.0  # on the first of January 2026


def event(n: int, author: str, part: types.Part, **delta: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[part])
    actions = EventActions(state_delta=delta)
    return Event(
        id=f"event-{n}", author=author, invocation_id="turn-1", timestamp=NOON + n, content=content, actions=actions
    )


async def talk() -> None:
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{PATH}")
    keys = {"app_name": "tutor", "user_id": "anna"}
    state = {"level": 2, "app:course": "fractions", "user:name": "Anna"}
    chat = await service.create_session(**keys, session_id="chat-1", state=state)
    call = types.FunctionCall(id="c1", name="add", args={"a": 1, "b": {"c": None}})
    answer = types.FunctionResponse(id="c1", name="add", response={"result": 3})
    for each in (
        event(1, "user", types.Part(text="1 + 2?")),
        event(2, "tutor", types.Part(function_call=call, thought_signature=b"\x80\xff")),
        event(3, "tutor", types.Part(function_response=answer)),
        event(4, "tutor", types.Part(text="three"), turn=1, **{"user:seen": 1}),
    ):
        await service.append_event(chat, each)
    await service.create_session(**keys, session_id="chat-2")
    await service.close()


def main() -> None:
    PATH.unlink(missing_ok=True)
    asyncio.run(talk())
    connection = sqlite3.connect(PATH)
    for table, column in (("sessions", "create_time"), ("app_states", "update_time"), ("user_states", "update_time")):
        connection.execute(f"update {table} set {column} = '2026-01-01 12:00:00.000000'")  # noqa: S608
    connection.commit()
    connection.execute("vacuum")
    connection.close()


if __name__ == "__main__":
    main()
