"""One connection to a server: HTTP/1.1, one request at a time, kept open. Parsed by httptools, as the server does.

A general client would cost more CPU per request than all the rest of this store.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, cast

import httptools

from saveslot.stores.http.url import Host
from saveslot.stores.wire.loops import running


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]  # names in lower case
    body: bytes


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._writable: asyncio.Future[None] | None = None
        self.used = False  # answered a request: the server may close it at any time

    @classmethod
    async def open(cls, host: Host, tls: ssl.SSLContext | None) -> Connection:
        _, connection = await running().create_connection(cls, host.name, host.port, ssl=tls)
        return connection

    async def request(self, head: bytes, body: bytes) -> Answer:
        """Send a request and return its answer. The connection is of no use after an error, or a cancellation."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._answer = running().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._parts = {}, []
        try:
            self._transport.write(head + body)
            return await self._answer
        except BaseException:
            self.terminate()
            raise
        finally:
            self._answer = None

    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def terminate(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout: float) -> None:  # noqa: ARG002, ASYNC109  (as a pool calls it)
        if self._transport is not None:
            self._transport.close()
        await asyncio.sleep(0)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(ConnectionError(f"the answer is not HTTP ({exc})"))
            self.terminate()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))
        self._transport = None

    def _fail(self, exc: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self.used = True
        answer = Answer(self._parser.get_status_code(), self._headers, b"".join(self._parts))
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
