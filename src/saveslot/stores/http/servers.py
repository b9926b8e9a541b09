"""The servers of a store: connections, retries, deadlines. Every request may be made twice, so it is repeated.

A request whose answer was lost may have been carried out. That is fine for all of them: an entry that has landed is
recognised by its append_id, and the others leave the same state behind when they run again.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from saveslot.errors import QuotaExceeded, SaveslotError, Unauthorized, Unavailable, from_dict
from saveslot.stores.http.connection import Answer, Connection
from saveslot.stores.http.url import Address
from saveslot.stores.http.wire import MSGPACK, VERSION
from saveslot.stores.wire.loops import running
from saveslot.stores.wire.metrics import Counters
from saveslot.stores.wire.pool import Pool

# Seconds that a call may take: a restart of the server takes a few, and callers must not wait for ever.
PATIENCE = 30.0
# Seconds for which a caller in a hurry, such as a command, tries a host that is unknown or refuses connections.
HURRY = 0.3
# Seconds without an answer after which the server counts as dead: the request goes to the next one. A server that its
# database keeps waiting says so after 10 s.
SILENCE = 12.0
# Seconds to connect to one server before the next one is tried.
WELCOME = 5.0
# Seconds that a heartbeat gets at least, even where a third of the worker's time to live is less.
BEAT = 2.0
# Connections per process: two lanes of appends, and readers beside them; and those that wait for events.
POOL, WATCHERS = 10, 1000
PASSING = (OSError, TimeoutError)
OK, TOO_MANY, BUSY = 200, 429, 503


class Servers:
    # Further lines for the head of each request, each with its line end: the caller's trace, if `saveslot.otel` traces.
    headers: Callable[[], str] = str

    def __init__(self, address: Address, token: str | None, *, patient: bool = True) -> None:
        self._hosts = list(address.hosts)
        self._shown = address.shown
        self._prefix = f"{address.prefix}/store/{VERSION}/"
        self._tls = ssl.create_default_context() if address.secure else None
        self._token = token
        self._patient, self._reached, self._closed = patient, False, False
        self._pools = {False: Pool(self._connected, POOL), True: Pool(self._connected, WATCHERS)}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside: dict[asyncio.AbstractEventLoop, AsyncGenerator[Connection]] = {}
        self.counters = Counters()
        self.counters.pool = self._pools[False].metrics

    def __repr__(self) -> str:
        return self._shown

    async def call(
        self, verb: str, request: bytes, *, within: float | None = None, waits: float | None = None
    ) -> bytes:
        """Make a request, again if its answer is lost, for at most `within` seconds; return the answer's body.

        `waits`: how many seconds the server may wait for news before it answers.
        """
        if self._closed:
            raise Unavailable("this store is closed; open it again")
        loop = running()
        if self._loop is None:
            self._loop = loop
        limit = PATIENCE if within is None else min(PATIENCE, max(BEAT, within))
        return await self._answered(verb, request, limit + (waits or 0), waits)

    async def _answered(self, verb: str, request: bytes, limit: float, waits: float | None) -> bytes:
        began, pause = running().time(), 0.02
        while True:
            left = began + limit - running().time()
            try:
                async with asyncio.timeout(min(left, SILENCE + (waits or 0))):
                    answer = await self._once(verb, request, watches=waits is not None)
            except PASSING as exc:
                if self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                if isinstance(exc, TimeoutError):
                    self._next()
                took = running().time() - began
                if not (self._patient or self._reached) and absent(exc) and took > HURRY:
                    why = f"{str(exc) or type(exc).__name__}, tried for {HURRY:g} s"
                    hint = "start it (saveslot serve), or correct host and port"
                    raise Unavailable(f"no server answers at {self._shown} ({why}); {hint}") from None
                trouble: SaveslotError = Unavailable(
                    f"{self._shown} does not answer ({str(exc) or type(exc).__name__}); retry"
                )
                trouble.__cause__ = exc
            else:
                self._reached = True
                if answer.status == OK:
                    return answer.body
                trouble = _error(answer, self._shown)
                if answer.status not in {TOO_MANY, BUSY} or isinstance(trouble, QuotaExceeded):
                    raise trouble
                pause = max(pause, _seconds(answer))
                if answer.status == BUSY:
                    self._next()
            if running().time() - began + pause >= limit:
                raise trouble
            self.counters.retries += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
            pause = min(pause * 2, 1.0)

    async def _once(self, verb: str, request: bytes, *, watches: bool) -> Answer:
        loop = running()
        if loop is not self._loop:
            connection = await anext(self._beside.setdefault(loop, self._kept(loop)))
            return await connection.request(self._head(verb, request), request)
        pool = self._pools[watches]
        connection = await pool.take()
        try:
            return await connection.request(self._head(verb, request), request)
        finally:
            pool.give(connection)

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Connection]:
        """A connection that is closed with its event loop: asyncio closes async generators then."""
        connection: Connection | None = None
        try:
            while True:
                if connection is None or connection.is_closed():
                    connection = await self._connected()
                yield connection
        finally:
            self._beside.pop(loop, None)
            if connection is not None:
                connection.terminate()
                await asyncio.sleep(0)

    async def _connected(self) -> Connection:
        """Connect to the first server that can be reached; one that cannot is tried last from then on."""
        failed: Exception = ConnectionError("the URL names no host")
        for host in list(self._hosts):
            try:
                async with asyncio.timeout(WELCOME):
                    return await Connection.open(host, self._tls)
            except ssl.SSLCertVerificationError:
                raise
            except PASSING as exc:
                failed = exc
                self._hosts.sort(key=host.__eq__)
        raise failed

    def _next(self) -> None:
        """Go to the next server, on new connections: this one is silent, busy, or cut off from its database."""
        self._hosts.append(self._hosts.pop(0))
        for pool in self._pools.values():
            pool.doubt()

    def _head(self, verb: str, request: bytes) -> bytes:
        token = "" if self._token is None else f"authorization: Bearer {self._token}\r\n"
        return (
            f"POST {self._prefix}{verb} HTTP/1.1\r\nhost: {self._hosts[0]}\r\ncontent-type: {MSGPACK}\r\n{token}"
            f"{self.headers()}content-length: {len(request)}\r\n\r\n"
        ).encode("latin-1")

    async def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.terminate()
        await asyncio.sleep(0)


def absent(exc: BaseException) -> bool:
    """True if there is no server: the host is unknown, or refuses connections."""
    return isinstance(exc, OSError) and not isinstance(exc, TimeoutError | ConnectionResetError | BrokenPipeError)


def _error(answer: Answer, place: str) -> SaveslotError:
    """The error that a problem describes; a proxy in between answers in its own words."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        fields = {}
    if "code" not in fields:
        kind = "does not speak this protocol" if answer.status < 500 else "is not available"  # noqa: PLR2004
        return Unavailable(f"{place} {kind} (HTTP status {answer.status}); check the URL, or retry")
    if fields["code"] == Unauthorized.code:  # the server says how HTTP carries it
        fields["message"] = f"{place}: {fields.get('message')}; from Python pass token=, or set SAVESLOT_TOKEN"
    return from_dict(fields)


def _seconds(answer: Answer) -> float:
    text = answer.headers.get(b"retry-after", b"")
    return min(float(text), PATIENCE) if text.isdigit() else 0.0
