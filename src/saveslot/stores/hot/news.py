"""Hearing of other processes' appends: pub/sub, as long as Valkey answers. A hint: events come from the database."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from saveslot.stores.hot.connection import PAUSE, Connection
from saveslot.stores.wire.loops import stopped

# Seconds after which a listener that received nothing subscribes again.
SILENCE = 60


class News:
    def __init__(self, connection: Connection) -> None:
        self.message = asyncio.Event()  # set by the next message, then replaced
        self._connection = connection
        self._listener: asyncio.Task[None] | None = None
        self._channels: set[str] = set()
        self._pubsub: Any = None

    def wake(self) -> None:
        self.message.set()
        self.message = asyncio.Event()

    def listen(self, namespace: str) -> None:
        """Hear of this namespace's appends from now on."""
        name = channel(namespace)
        if self._connection.closed or not self._connection.shared or name in self._channels:
            return
        self._channels.add(name)
        if self._listener is None:
            self._listener = asyncio.ensure_future(self._listen())
        elif self._pubsub is not None:
            self._connection.started(self._pubsub.subscribe(name))

    async def _listen(self) -> None:
        client = await self._connection.client()
        counts = self._connection.counts
        while True:
            try:
                async with client.pubsub() as pubsub:
                    await pubsub.subscribe(*self._channels)
                    self._pubsub, counts.listening = pubsub, True
                    while True:  # with a timeout of its own: the client's, for answers, is too short for silence
                        if await pubsub.get_message(timeout=SILENCE) is not None:
                            counts.hints += 1
                            self.wake()
            except Exception:  # noqa: BLE001  (each client has errors of its own)
                counts.errors += 1
            self._pubsub, counts.listening = None, False
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        await stopped(self._listener)


@lru_cache(1000)
def channel(namespace: str) -> str:
    return f"saveslot:{quote(namespace, safe='', errors='surrogatepass')}:news"
