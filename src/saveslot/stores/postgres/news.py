"""Hints between processes: a writer sends NOTIFY after an append, a watcher listens. Watchers poll as well.

NOTIFY serializes the commits of the whole server, so it is never part of an append: a separate message follows, one for
all appends of the last 50 ms.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from saveslot.errors import SaveslotError
from saveslot.stores.postgres.connection import PASSING, Server
from saveslot.stores.postgres.partitions import lock
from saveslot.stores.wire.bells import Bells
from saveslot.stores.wire.loops import set_within, stopped
from saveslot.values.log import ID

# Least seconds between two messages of one process.
QUIET = 0.05
# Sessions that a message names; if there are more, it names none and wakes all watchers. It has room for 8,000 bytes.
NAMED = 200
# Hexadecimal digits of a process's name and of a key.
NAME, KEY = 16, 2 * ID
# Seconds until a broken connection is replaced, and of silence after which a connection is tested.
PAUSE, SILENCE = 1.0, 30.0


class News:
    def __init__(self, server: Server) -> None:
        self.listening = False
        self._bells = Bells()
        self._server = server
        self._channel = channel(server.schema)
        self._name = os.urandom(8).hex()
        self._pending: set[bytes] = set()  # sessions with appends not announced to other processes yet
        self._over = asyncio.Event()
        self._teller: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    def message(self, key: bytes | None) -> asyncio.Event:
        """The event that is set by the next hint about this session, or about any."""
        return self._bells.message(key)

    def tell(self, keys: Sequence[bytes]) -> None:
        """Announce appends: wake watchers of this process now, those of other processes soon."""
        self._bells.ring(keys)
        self._pending.update(keys)
        if self._teller is None:
            self._teller = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        try:
            while self._pending:
                keys = "".join(key.hex() for key in self._pending) if len(self._pending) <= NAMED else ""
                message = f"notify {self._channel}, '{self._name}{keys}'"
                self._pending.clear()
                await self._server.run(lambda connection, message=message: connection.execute(message))
                await set_within(self._over, QUIET)
        except SaveslotError:
            pass  # a lost hint does no harm
        finally:
            self._teller = None

    def listen(self) -> None:
        """Listen for other processes' appends from now on, on a dedicated connection that is replaced if it breaks."""
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
            self._bells.ring()  # an append may have landed before
            while not ended.is_set():
                if not await set_within(ended, SILENCE):
                    await connection.execute("select", timeout=PAUSE)  # an empty one confuses the driver
        finally:
            self.listening = False
            connection.terminate()

    def _hear(self, _connection: Any, _pid: int, _channel: str, text: str) -> None:
        name, keys = text[:NAME], text[NAME:]
        if name != self._name:
            self._bells.ring([bytes.fromhex(keys[at : at + KEY]) for at in range(0, len(keys), KEY)] or None)

    async def close(self) -> None:
        """Send a pending hint, waiting at most 1 s, and stop."""
        self._over.set()
        if self._teller is not None:
            await asyncio.wait([self._teller], timeout=PAUSE)
        await stopped(self._teller, self._listener)


def channel(schema: str) -> str:
    """The NOTIFY channel of a schema's log."""
    return f"saveslot_{lock(schema):08x}"
