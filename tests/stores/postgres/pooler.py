"""A pooler of transactions, as PgBouncer is one: few connections to the server, each lent for one transaction.

It knows nothing of prepared statements, like PgBouncer before 1.21 or with max_prepared_statements = 0. A client gets
another connection for each transaction wherever there is one, so a client that leaves state in a connection
does not see it again.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from asyncio import StreamReader, StreamWriter
from typing import Self

Streams = tuple[StreamReader, StreamWriter]
Message = tuple[bytes, bytes]  # its kind, and all of it
STARTUP = b"user\0%b\0database\0postgres\0\0"
ASKED = b"QS"  # simple queries and Sync: each is answered by one ReadyForQuery
READY, GONE = b"Z", b"X"


class Pooler:
    """In a thread, for as long as the block lasts."""

    def __init__(self, socket: str, user: str, size: int = 3) -> None:
        self._socket, self._user, self._size = socket, user, size
        self._idle: asyncio.Queue[Streams] = asyncio.Queue()
        self._greeting = b""
        self._listening = threading.Event()
        self._over = asyncio.Event()
        self.port = 0
        self.lent = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._listening.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        backends = [await self._connected() for _ in range(self._size)]
        for backend in backends:
            self._idle.put_nowait(backend)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._over.wait()
        server.close()
        for _, writer in backends:
            writer.close()

    async def _connected(self) -> Streams:
        """Every client gets what the server said to the first one."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        answer = struct.pack("!I", 196608) + STARTUP % self._user.encode()
        writer.write(struct.pack("!I", len(answer) + 4) + answer)
        greeting = kind = b""
        while kind != READY:
            kind, message = await _message(reader)
            # As PgBouncer does: a process id that no backend has, since each transaction may meet another one.
            greeting += b"K" + struct.pack("!III", 12, 1, 1) if kind == b"K" else message
        self._greeting = greeting
        return reader, writer

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        query: asyncio.Queue[Message] = asyncio.Queue()
        hearing = None
        try:
            await self._greeted(reader, writer)
            hearing = asyncio.ensure_future(_heard(reader, query))
            while (message := await query.get())[0] != GONE:
                backend = await self._idle.get()
                self.lent += 1
                if await self._transaction(query, writer, backend, message):
                    self._idle.put_nowait(backend)  # after the others
                else:
                    backend[1].close()
                    self._idle.put_nowait(await self._connected())
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if hearing is not None:
                hearing.cancel()
            writer.close()

    async def _greeted(self, reader: StreamReader, writer: StreamWriter) -> None:
        while True:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            answer = await reader.readexactly(length - 4)
            if answer[:4] == struct.pack("!I", 80877102):  # a cancel request: the connection ends by itself
                raise ConnectionError
            if answer[:4] != struct.pack("!I", 80877103):  # may it be encrypted?
                writer.write(self._greeting)
                return
            writer.write(b"N")

    async def _transaction(
        self, messages: asyncio.Queue[Message], writer: StreamWriter, backend: Streams, message: Message
    ) -> bool:
        """From its first message until the server is ready for another one; False if the client went away."""
        waiting = 0

        async def answer() -> None:
            nonlocal waiting
            while True:
                kind, answered = await _message(backend[0])
                writer.write(answered)
                waiting -= kind == READY
                if kind == READY and not waiting and answered.endswith(b"I"):
                    return

        answering = asyncio.ensure_future(answer())
        while message[0] != GONE:
            waiting += message[0] in ASKED
            backend[1].write(message[1])
            asking = asyncio.ensure_future(messages.get())
            await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
                await answering
                return True
            message = asking.result()
        answering.cancel()
        return False


async def _heard(reader: StreamReader, messages: asyncio.Queue[Message]) -> None:
    """Read apart from the rest, so that nothing is cut in two."""
    try:
        while True:
            messages.put_nowait(await _message(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        messages.put_nowait((GONE, b""))


async def _message(reader: StreamReader) -> Message:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
