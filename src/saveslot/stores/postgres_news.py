"""News between processes: who appends says so by NOTIFY, who watches listens. A hint: watchers look by themselves, too.

NOTIFY makes commits of the whole server wait for each other, so it is never part of an append: a message of its own
follows, one for all that landed within a moment.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import asyncpg

from saveslot.errors import SaveslotError
from saveslot.loops import stopped
from saveslot.stores.postgres_partitions import lock
from saveslot.stores.postgres_server import PASSING, Server

# Seconds between two messages of one process, at least.
QUIET = 0.05
# Seconds until a connection that broke is replaced, and after which a silent one is asked whether it still is one.
PAUSE, SILENCE = 1.0, 30.0


class News:
    def __init__(self, server: Server) -> None:
        self.listening = False
        self.coming = asyncio.Event()  # set with the next news; then there is another one
        self._server = server
        self._channel = channel(server.schema)
        self._name = os.urandom(8).hex()
        self._untold = False
        self._over = asyncio.Event()
        self._teller: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Something landed: wake those who watch here, now, and elsewhere, soon."""
        self._wake()
        self._untold = True
        if self._teller is None:
            self._teller = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        message = f"notify {self._channel}, '{self._name}'"
        try:
            while self._untold:
                self._untold = False
                await self._server.run(lambda connection: connection.execute(message))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), QUIET)
        except SaveslotError:
            pass  # nobody waits for a hint
        finally:
            self._teller = None

    def listen(self) -> None:
        """Hear of other processes' appends from now on, on a connection of our own that is replaced when it breaks."""
        if self._listener is None and not self._over.is_set() and self._server.keeps_state:
            self._listener = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        while True:
            with suppress(SaveslotError, asyncpg.PostgresError, *PASSING):
                await self._heard()
            await asyncio.sleep(PAUSE)

    async def _heard(self) -> None:
        connection = await self._server.connected()
        ended = asyncio.Event()

        def end(_: Any) -> None:
            ended.set()

        try:
            connection.add_termination_listener(end)
            await connection.add_listener(self._channel, self._hear)
            self.listening = True
            self._wake()  # something may have come before
            while not ended.is_set():
                try:
                    await asyncio.wait_for(ended.wait(), SILENCE)
                except TimeoutError:
                    await connection.execute("select", timeout=PAUSE)  # an empty one confuses the driver
        finally:
            self.listening = False
            connection.terminate()

    def _hear(self, _connection: Any, _pid: int, _channel: str, name: str) -> None:
        if name != self._name:
            self._wake()

    def _wake(self) -> None:
        self.coming.set()
        self.coming = asyncio.Event()

    async def close(self) -> None:
        """What is not told yet is told, if that is quick."""
        self._over.set()
        if self._teller is not None:
            await asyncio.wait([self._teller], timeout=PAUSE)
        await stopped(self._teller, self._listener)


def channel(schema: str) -> str:
    """Where the news of a schema's log are told."""
    return f"saveslot_{lock(schema):08x}"
