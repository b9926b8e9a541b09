"""A tutor that may be killed at any moment: start it again, and it continues where it was. The model is scripted.

Stop it with Ctrl-C or kill -9 whenever you like, then type the same again:

    python examples/tutor.py             # gives lesson-1, kept in tutor.db
    python examples/tutor.py lesson-2    # another one
"""

from __future__ import annotations

import argparse
import asyncio
from fractions import Fraction
from typing import Literal, NotRequired, TypedDict

import saveslot


class Message(TypedDict):
    role: Literal["user", "assistant", "tool"]
    content: str
    call: NotRequired[str]  # what an assistant asks the calculator


EXERCISES = ["1/2 + 1/3", "3/4 + 1/6", "2/5 + 1/4"]


def model(messages: list[Message]) -> Message:
    """The scripted model: it has each exercise calculated, then explains the result."""
    exercise = next(m["content"] for m in reversed(messages) if m["role"] == "user")
    if messages[-1]["role"] == "user":
        return {"role": "assistant", "content": "Let me see.", "call": exercise}
    return {"role": "assistant", "content": f"{exercise} = {messages[-1]['content']}: same bottom first, then add."}


def calculator(call: str) -> str:
    return str(sum(map(Fraction, call.split(" + "))))


def next_message(messages: list[Message]) -> Message | None:
    """Who speaks next follows from what was said; None when the lesson is over."""
    last = messages[-1] if messages else None
    if last and last["role"] != "assistant":
        return model(messages)
    if last and "call" in last:
        return {"role": "tool", "content": calculator(last["call"])}
    given = sum(m["role"] == "user" for m in messages)
    return {"role": "user", "content": EXERCISES[given]} if given < len(EXERCISES) else None


async def lesson(url: str, session_id: str, pace: float) -> None:
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("tutor", session_id=session_id, exist_ok=True)  # create or resume
        messages: list[Message] = (await sessions.get_data(session_id)).get("messages", [])
        print(f"{session_id} is {session.state}, {len(messages)} messages so far", flush=True)

        while (message := next_message(messages)) is not None:
            await asyncio.sleep(pace)  # it thinks
            await sessions.checkpoint(session, message["role"], append={"messages": [message]})
            messages.append(message)  # durable: from here on it is never said again
            print(f"{message['role']:>9}  {message['content']}", flush=True)

        if session.state is saveslot.SessionState.ACTIVE:
            session.complete({"exercises": len(EXERCISES)})
            await sessions.update_session(session)
        print(f"{session_id} is {session.state}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A tutor that may be killed at any moment.")
    parser.add_argument("session_id", nargs="?", default="lesson-1")
    parser.add_argument("--store", default="tutor.db", help="where the lesson is kept (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.3, help="seconds that a thought takes (%(default)s)")
    answer = parser.parse_args()
    asyncio.run(lesson(answer.store, answer.session_id, answer.pace))


if __name__ == "__main__":
    main()
