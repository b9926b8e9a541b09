"""Servers in a thread of the test process, each on a store that the test opens: in one place, below a path of its own.

with Serving() as serving:
url = serving.serve(lambda: SqliteStore.open("agents.db", clock))
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from itertools import count
from types import TracebackType
from typing import Any, Self

import uvicorn

from saveslot.manager import SessionManager
from saveslot.server.app import Server
from saveslot.server.guard import Rates
from saveslot.server.limits import Limited
from saveslot.server.load import Room
from saveslot.server.measured import Measured
from saveslot.server.run import Protocol, Uvicorn, bind
from saveslot.server.tokens import Tokens
from saveslot.stores import Store

PATIENCE = 60


class Serving:
    """One listening socket for all of them: starting a server takes longer than most tests."""

    def __init__(self) -> None:
        self._servers: dict[str, tuple[Server, SessionManager]] = {}
        self._names = count()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()
        self._uvicorn.should_exit = True
        self._thread.join(PATIENCE)

    def serve(self, open_store: Callable[[], Awaitable[Store]], *, room: Room | None = None) -> str:
        """Open a store in the server's thread, and return the URL that serves it."""
        return asyncio.run_coroutine_threadsafe(self._serve(open_store, room), self._loop).result(PATIENCE)

    def stop(self) -> None:
        """Close every store that is served."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE)

    async def _serve(self, open_store: Callable[[], Awaitable[Store]], room: Room | None) -> str:
        limits = Limited(await open_store())
        manager = SessionManager(store=Measured(limits))
        tokens = Tokens(manager, limits, required=False)
        await tokens.start()
        name = str(next(self._names))
        server = Server(manager, tokens, Rates(1e9))
        server.room = room or server.room
        self._servers[name] = server, manager
        return f"http://127.0.0.1:{self._port}/{name}"

    async def _stop(self) -> None:
        while self._servers:
            _, (server, manager) = self._servers.popitem()
            await server.jobs.stop()
            await server.tokens.stop()
            await manager.close()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        with closing(bind("127.0.0.1", 0)) as listening:
            self._port: int = listening.getsockname()[1]
            config = uvicorn.Config(
                self, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, loop="none"
            )
            config.timeout_graceful_shutdown = 1
            self._uvicorn = Uvicorn(config, self._ready.set)
            await self._uvicorn.serve(sockets=[listening])

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        raw: bytes = scope["raw_path"]
        _, name, rest = raw.split(b"/", 2)
        scope["raw_path"], scope["path"] = b"/" + rest, "/" + rest.decode()
        server, _ = self._servers[name.decode()]
        await server(scope, receive, send)
