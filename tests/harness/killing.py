"""Agents that save as fast as they can until they are killed, and report each acknowledgement. For any store URL."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any

from saveslot.manager import SessionManager
from saveslot.opening import open as open_sessions

Acknowledged = tuple[str, int, str]  # session id, seq, digest of the data


def digest(data: Any) -> str:
    return sha256(repr(data).encode()).hexdigest()


def save_until_killed(url: str, session_ids: list[str], run: int, answers: Connection) -> None:
    """Run one agent per session in this process; each acknowledgement goes through the pipe."""
    asyncio.run(_all(url, session_ids, run, answers.send))


async def _all(url: str, session_ids: list[str], run: int, tell: Callable[[Acknowledged], None]) -> None:
    async with open_sessions(url) as sessions:
        await asyncio.gather(*(_agent(sessions, session_id, run, tell) for session_id in session_ids))


async def _agent(sessions: SessionManager, session_id: str, run: int, tell: Callable[[Acknowledged], None]) -> None:
    choice = random.Random(f"{run} {session_id}")
    newest = (await sessions.history(session_id, limit=1))[0].data
    messages: list[Any] = list(newest.get("messages", []))
    while True:
        item = {"run": run, "n": len(messages), "text": f"{choice.random()} " * choice.randrange(1, 60)}
        whole = choice.random() < 0.5 or not messages
        messages = [*messages, item] if len(messages) < 200 or not whole else [item]
        if whole:
            checkpoint = await sessions.checkpoint(session_id, f"run {run}", {"messages": messages})
        else:
            checkpoint = await sessions.checkpoint(session_id, f"run {run}", append={"messages": [item]})
        tell((session_id, checkpoint.seq, digest(messages)))


def received(acknowledged: Connection) -> dict[tuple[str, int], str]:
    """The acknowledgements in the pipe. A kill may have cut the last one: no one received that one."""
    by_key: dict[tuple[str, int], str] = {}
    try:
        while acknowledged.poll():
            session_id, seq, digested = acknowledged.recv()
            by_key[session_id, seq] = digested
    except EOFError:
        return by_key
    return by_key
