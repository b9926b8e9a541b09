"""Turns: one writer of a session at a time."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """A lock that is handed straight to the next waiter, so that it is free only if no caller wants it."""

    __slots__ = ("_waiting", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> None:
        """Acquire it without waiting; only if no caller wants it."""
        self.wanted += 1

    def give(self) -> None:
        self.wanted -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
            self.wanted -= 1  # a cancelled waiter, whose own cleanup has not run yet

    async def __aenter__(self) -> None:
        self.wanted += 1
        if self.wanted == 1:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # this waiter had its turn already
                self.give()
            elif turn in self._waiting:
                self._waiting.remove(turn)
                self.wanted -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()
