"""A fault-injecting TCP proxy to a server: it drops or delays bytes, cuts connections, loses answers.

    with Postgres() as server, Proxy(server.url) as way:
        async with saveslot.open(way.url) as sessions:
            way.lose_answers()         # requests arrive from now on, and their answers are lost
            ...
            way.heal()                 # new connections are as good as ever

For anything that speaks over TCP or a Unix socket and has a URL: PostgreSQL, Valkey. It has a thread of its own, so it
fails the same way whatever the event loops do, and its faults may be set from any thread. Connections that lost bytes
stay mute forever, as after a router forgot them: `heal` helps only new ones.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

PORTS = {"http": 80, "postgresql": 5432, "postgres": 5432, "valkey": 6379, "redis": 6379}
# How long the thread may take to start and to end, in seconds.
PATIENCE = 30.0
CHUNK = 1 << 16


class Fault(Enum):
    NONE = "all is well"
    DROP = "nothing arrives, either way"
    LOSE = "what is asked arrives, what is answered does not"
    REFUSE = "connections are refused"


class Proxy:
    """A proxy to the server of this URL; connect to `url` inside the block."""

    def __init__(self, url: str) -> None:
        self._address, self._url_at = parse_url(url)
        self.fault = Fault.NONE
        self.port = 0
        self.accepted = 0  # connections, ever
        self.most = 0  # of them at a time
        self.lost = 0  # pieces that vanished on their way
        self._late = 0.0
        self._ways: set[_Way] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready, self._over = threading.Event(), asyncio.Event()

    @property
    def url(self) -> str:
        """The server's URL with the proxy's address."""
        return self._url_at(self.port)

    @property
    def open(self) -> int:
        """Open connections of clients."""
        return len(self._ways)

    # Faults: they affect requests under way and later ones, until the next fault is set

    def heal(self) -> None:
        """Let everything pass again, at once."""
        self.fault, self._late = Fault.NONE, 0.0

    def drop(self) -> None:
        """Drop all bytes in both directions; neither side notices."""
        self.fault = Fault.DROP

    def lose_answers(self) -> None:
        """Pass requests and drop answers."""
        self.fault = Fault.LOSE

    def refuse(self) -> None:
        """Cut every connection, and each new one."""
        self.fault = Fault.REFUSE
        self.cut()

    def delay(self, seconds: float) -> None:
        """Delay every byte by this many seconds, in order, on top of other faults."""
        self._late = seconds

    def forget(self) -> None:
        """Silence every present connection for good, as a restarted router does; new ones work."""
        self._in_thread(lambda: [way.lost.update(Direction) for way in self._ways])

    def cut(self) -> None:
        """Reset both ends of every connection (RST); new ones work."""
        self._in_thread(lambda: [way.cut() for way in list(self._ways)])

    def _in_thread(self, work: Callable[[], object]) -> None:
        """Done when this returns."""
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(PATIENCE)

    # Its thread

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(PATIENCE):
            raise TimeoutError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        way = _Way(writer)
        self.accepted += 1
        self._ways.add(way)
        self.most = max(self.most, len(self._ways))
        try:
            if self.fault is Fault.REFUSE:
                return
            if isinstance(self._address, str):
                answers, way.server = await asyncio.open_unix_connection(self._address)
            else:
                answers, way.server = await asyncio.open_connection(*self._address)
            asking = self._pump(Direction.ASKING, reader, way.server, way)
            await asyncio.gather(asking, self._pump(Direction.ANSWERING, answers, writer, way))
        except OSError:
            return  # the server is away: so is this
        finally:
            way.cut()
            self._ways.discard(way)

    async def _pump(self, direction: Direction, reader: StreamReader, writer: StreamWriter, way: _Way) -> None:
        """Reads on while delayed bytes wait, in order. The end of one side is passed to the other."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.ensure_future(self._deliver(direction, queue, writer, way))
        try:
            with suppress(OSError):
                while data := await reader.read(CHUNK):
                    queue.put_nowait((self._loop.time() + self._late, data))
            queue.put_nowait((0, b""))
            with suppress(OSError):
                await delivering
        finally:
            delivering.cancel()
        if direction is Direction.ASKING:
            self._ways.discard(way)
        if direction not in way.lost:
            way.close()

    async def _deliver(
        self, direction: Direction, queue: asyncio.Queue[tuple[float, bytes]], writer: StreamWriter, way: _Way
    ) -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - self._loop.time())
            if self.fault is Fault.DROP or (self.fault is Fault.LOSE and direction is Direction.ANSWERING):
                way.lost.add(direction)
                self.lost += 1
            if not data:
                return
            if direction not in way.lost:
                writer.write(data)
                await writer.drain()


class Direction(Enum):
    ASKING = "to the server"
    ANSWERING = "to the client"


class _Way:
    """One connection: its two ends, and the directions in which bytes were lost."""

    def __init__(self, client: StreamWriter) -> None:
        self.client = client
        self.server: StreamWriter | None = None
        self.lost: set[Direction] = set()

    def close(self) -> None:
        """Wait until all bytes are sent."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.close()

    def cut(self) -> None:
        for writer in (self.client, self.server):
            if writer is None:
                continue
            connection: socket.socket | None = writer.get_extra_info("socket")
            if connection is not None and connection.family != socket.AF_UNIX and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def parse_url(url: str) -> tuple[str | tuple[str, int], Callable[[int], str]]:
    """The address in a URL, and the same URL with a port of this machine."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    host, port = options.pop("host", ""), int(options.pop("port", 0))
    port = port or parts.port or PORTS[parts.scheme]
    host = host or unquote(parts.hostname or "127.0.0.1")
    user, at, _ = parts.netloc.rpartition("@")

    def made(ours: int) -> str:
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{ours}", query=urlencode(options)).geturl()

    return (f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)), made
