"""Hearing of appends: pub/sub as a hint, so that a watcher looks at once. Who hears nothing looks now and then."""

from __future__ import annotations

import asyncio
from typing import Any

from saveslot.loops import stopped
from saveslot.stores.valkey_server import PREFIX, Server

CHANNEL = PREFIX + b":news"
# Seconds after which a listener that heard nothing listens again, and that one waits which cannot.
SILENCE, PAUSE = 60, 1.0


class News:
    def __init__(self, server: Server) -> None:
        self.heard = asyncio.Event()
        self.listening = False
        self._server = server
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    def wake(self) -> None:
        self.heard.set()
        self.heard = asyncio.Event()

    def listen(self) -> None:
        """Hear of other processes' appends from now on, as long as the server answers."""
        if self._listener is None and not self._closed:
            self._listener = asyncio.ensure_future(self._listened())

    async def wait(self, heard: asyncio.Event, seconds: float) -> None:
        if seconds > 0:
            waiting = asyncio.ensure_future(heard.wait())
            await asyncio.wait([waiting], timeout=seconds)
            waiting.cancel()

    async def _listened(self) -> None:
        client: Any = await self._server.client()
        while hasattr(client, "pubsub"):  # a cluster's client may have none: watchers poll
            try:
                async with client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self.listening = True
                    while True:
                        if await channel.get_message(timeout=SILENCE) is not None:
                            self.wake()
            except Exception:  # noqa: BLE001  (each client has errors of its own; who polls meets what is wrong)
                self.listening = False
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        self._closed = True
        await stopped(self._listener)
