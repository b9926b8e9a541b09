"""Connections of one process to one server: made when they are needed, never more than the limit, last used first.

A driver's own pool resets a connection and makes tasks each time it is lent; here nothing is set, so nothing is reset.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from saveslot.errors import Unavailable

# One that nobody needed for so long is let go when another comes back.
UNUSED = 300.0


class Lines:
    def __init__(self, connect: Callable[[], Awaitable[Any]], most: int) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, Any]] = deque()  # since when; the last used at the end
        self._lent: set[Any] = set()
        self._closed = False

    async def take(self) -> Any:
        await self._free.acquire()
        try:
            while self._idle:
                _, line = self._idle.pop()
                if not line.is_closed():
                    self._lent.add(line)
                    return line
            line = await self._connect()
            self._lent.add(line)
        except BaseException:
            self._free.release()
            raise
        if self._closed:
            self.give(line)
            raise Unavailable("this store is closed; open it again")
        return line

    def give(self, line: Any) -> None:
        """Back to where it was taken from. One whose state is unknown was terminated before."""
        self._lent.discard(line)
        now = time.monotonic()
        if self._closed:
            line.terminate()
        elif not line.is_closed():
            self._idle.append((now, line))
            if now - self._idle[0][0] > UNUSED:
                self._idle.popleft()[1].terminate()
        self._free.release()

    def doubt(self) -> None:
        """One of them was silent: those that are idle may be as dead, and are not lent again."""
        while self._idle:
            self._idle.pop()[1].terminate()

    async def close(self, patience: float) -> None:
        """Say goodbye on those that are idle; those that are lent end when they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[1].close(timeout=patience)

    def terminate(self) -> None:
        self._closed = True
        for line in [*self._lent, *(line for _, line in self._idle)]:
            line.terminate()
        self._idle.clear()
