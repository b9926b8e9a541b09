"""Hearing of appends: pub/sub as a hint, so that a watcher looks at once. Without hints it polls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from saveslot.stores.valkey.connection import PREFIX, Server
from saveslot.stores.wire.bells import Bells
from saveslot.stores.wire.loops import stopped
from saveslot.values.log import ID

CHANNEL = PREFIX + b":news"
# Seconds after which a listener that received nothing subscribes again, and between attempts to subscribe.
SILENCE, PAUSE = 60, 1.0


class News:
    def __init__(self, server: Server) -> None:
        self._bells = Bells()
        self.listening = False
        self._server = server
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    def message(self, key: bytes | None) -> asyncio.Event:
        """The event that is set by the next append that is heard of: to this session, or to any."""
        return self._bells.message(key)

    def ring(self, keys: Sequence[bytes] | None) -> None:
        self._bells.ring(keys)

    def listen(self) -> None:
        """Hear of other processes' appends from now on, as long as the server answers."""
        if self._listener is None and not self._closed:
            self._listener = asyncio.ensure_future(self._listened())

    async def wait(self, message: asyncio.Event, seconds: float) -> None:
        if seconds > 0:
            waiting = asyncio.ensure_future(message.wait())
            await asyncio.wait([waiting], timeout=seconds)
            waiting.cancel()

    async def _listened(self) -> None:
        client: Any = await self._server.client()
        while hasattr(client, "pubsub"):  # a cluster's client may lack it: watchers poll
            try:
                async with client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self.listening = True
                    while True:
                        if (message := await channel.get_message(timeout=SILENCE)) is not None:
                            self.ring(_keys(message.get("data")))
            except Exception:  # noqa: BLE001  (each client has errors of its own; a watcher's query will meet the cause)
                self.listening = False
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        self._closed = True
        await stopped(self._listener)


def _keys(data: Any) -> list[bytes] | None:
    """The sessions that a message names; None for one that names none, such as the answer to a subscription."""
    try:
        text = data.decode()
        return [bytes.fromhex(text[at : at + 2 * ID]) for at in range(0, len(text), 2 * ID)] or None
    except (AttributeError, ValueError):
        return None
