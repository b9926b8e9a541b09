"""Agents that save as fast as they can until they are killed, and tell of each acknowledgement. For any store URL."""

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


def save_until_killed(url: str, session_ids: list[str], run: int, told: Connection) -> None:
    """One process of agents, one for each session; what was acknowledged goes through the pipe."""
    asyncio.run(_all(url, session_ids, run, told.send))


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
            made = await sessions.checkpoint(session_id, f"run {run}", {"messages": messages})
        else:
            made = await sessions.checkpoint(session_id, f"run {run}", append={"messages": [item]})
        tell((session_id, made.seq, digest(messages)))


def received(acknowledged: Connection) -> dict[tuple[str, int], str]:
    """What the pipe holds by now. The last one may be cut by a kill: that one was told to nobody."""
    found: dict[tuple[str, int], str] = {}
    try:
        while acknowledged.poll():
            session_id, seq, digested = acknowledged.recv()
            found[session_id, seq] = digested
    except EOFError:
        return found
    return found
