"""Connection pool of one process to one server: opened when needed, up to a limit, last used first.

A driver's own pool resets a connection and creates tasks on every use; these connections have no state to reset.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from saveslot.errors import Unavailable

# Seconds after which an idle connection is closed, when another is given back.
UNUSED = 300.0


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Any]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._waits = 0  # callers that found all connections lent
        self._free = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, Any]] = deque()  # idle since, connection; last used at the end
        self._lent: set[Any] = set()
        self._closed = False

    async def take(self) -> Any:
        if self._free.locked():
            self._waits += 1
        await self._free.acquire()
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    self._lent.add(connection)
                    return connection
            connection = await self._connect()
            self._lent.add(connection)
        except BaseException:
            self._free.release()
            raise
        if self._closed:
            self.give(connection)
            raise Unavailable("this store is closed; open it again")
        return connection

    def give(self, connection: Any) -> None:
        """Give a connection back. The caller has terminated it if its state is unknown."""
        self._lent.discard(connection)
        now = time.monotonic()
        if self._closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((now, connection))
            if now - self._idle[0][0] > UNUSED:
                self._idle.popleft()[1].terminate()
        self._free.release()

    def metrics(self) -> dict[str, int]:
        return {"most": self._most, "used": len(self._lent), "idle": len(self._idle), "waits": self._waits}

    def doubt(self) -> None:
        """A connection was silent: terminate the idle ones, which may be as dead."""
        while self._idle:
            self._idle.pop()[1].terminate()

    async def close(self, patience: float) -> None:
        """Close the idle connections; those in use are terminated when they are given back."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[1].close(timeout=patience)

    def terminate(self) -> None:
        self._closed = True
        for connection in [*self._lent, *(connection for _, connection in self._idle)]:
            connection.terminate()
        self._idle.clear()
