"""Reaching a Valkey server: a client for each event loop, retries, deadlines, its errors in Saveslot's words."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Coroutine
from functools import cache
from hashlib import sha1
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from saveslot.errors import Corrupt, InvalidInput, SaveslotError, Unavailable
from saveslot.stores import shown

T = TypeVar("T")

# Every await ends within this: a restart of the server takes seconds, and callers should not wait for ever.
PATIENCE = 30.0
# An answer that does not come within this is given up, and asked for again on another connection.
ATTEMPT = 10.0
# The last attempt has so long, however little is left.
LEAST = 0.1
# Connections of one event loop: two lanes of appends, and readers beside them. Who finds all busy waits.
POOL = 16
# Begins the name of every key. What stands in braces decides the slot of a cluster: a store lies in one.
PREFIX = b"saveslot:{store}"
FORMAT = 1
ESCAPED = "in user and password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23"

# What the script may do, which the server checks before it runs: a full one refuses what needs room as a whole and at
# once, and never what gives room or only says that somebody lives.
READS, WRITES, ALWAYS = " flags=no-writes", "", " flags=allow-oom"

# Errors by the names of their classes: `valkey` and `redis` have the same ones, and a caller may bring either.
PASSING = {
    *("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError", "TryAgainError", "ClusterDownError"),
    *("MasterDownError", "OSError"),
}
STARTING = ("BUSY", "MASTERDOWN", "LOADING")
REFUSING = {"AuthenticationError", "NoPermissionError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}


class Server:
    """One by its URL, or one that a client of the caller's reaches: that one is never closed here."""

    def __init__(self, url: str = "", client: Any = None) -> None:
        self._url = url
        self.shown = shown(url) or "Valkey"
        self._theirs = client
        self._clients: dict[asyncio.AbstractEventLoop, AsyncGenerator[Any]] = {}
        self._loop = _running()
        self._opened = False
        self._closed = False
        if client is None:
            connect(url)  # a URL that makes no sense is refused before anybody waits for it
        elif not iscoroutinefunction(getattr(client, "execute_command", None)):
            raise InvalidInput("redis_client", "must be an asyncio client: valkey.asyncio.Valkey, redis.asyncio.Redis")

    async def client(self) -> Any:
        """The one of this event loop: connections belong to the loop that made them."""
        if self._theirs is not None:
            return self._theirs
        loop = asyncio.get_running_loop()
        return await anext(self._clients.setdefault(loop, self._kept(loop)))

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Any]:
        """A client that ends with its event loop: asyncio closes what its async generators still hold."""
        client = connect(self._url)
        try:
            while True:
                yield client
        finally:
            self._clients.pop(loop, None)
            await client.aclose()

    async def open(self) -> None:
        """Reach it once, and see that what lies there is not of a newer Saveslot."""
        if self._opened:
            return
        self._loop = self._loop or asyncio.get_running_loop()
        found = await self._answered(READS, "format", (b"", b""), None)
        if found is not None and not found.isdigit():
            raise Corrupt(self.shown, f"its format is {found!r}")
        if found is not None and int(found) > FORMAT:
            told = f"(format {int(found)}, this one knows {FORMAT}); upgrade saveslot"
            raise InvalidInput("url", f"{self.shown} is of a newer Saveslot {told}")
        self._opened = True

    async def run(self, flags: str, verb: str, clocks: tuple[bytes, bytes], told: Any) -> Any:
        """What the script answers; asked again when the connection breaks: everything asked here may be asked twice."""
        await self.open()
        return await self._answered(flags, verb, clocks, told)

    async def run_beside(self, flags: str, verb: str, clocks: tuple[bytes, bytes], told: Any) -> Any:
        """The same from another event loop, on connections of its own; with their client, in their loop after all."""
        loop = asyncio.get_running_loop()
        if self._theirs is None or self._loop is None or loop is self._loop:
            return await self.run(flags, verb, clocks, told)
        asked = asyncio.run_coroutine_threadsafe(self.run(flags, verb, clocks, told), self._loop)
        return await asyncio.wrap_future(asked)

    async def close(self) -> None:
        self._closed = True
        kept = self._clients.get(asyncio.get_running_loop())
        if kept is not None:
            await self._ended(kept.aclose(), ATTEMPT)

    async def _answered(self, flags: str, verb: str, clocks: tuple[bytes, bytes], told: Any) -> Any:
        try:
            return await self._tried(flags, verb, clocks, told)
        except SaveslotError:
            raise
        except Exception as exc:
            raise self._translated(exc) from exc

    async def _tried(self, flags: str, verb: str, clocks: tuple[bytes, bytes], told: Any) -> Any:
        script, digest = scripts()[flags]
        try:
            values = (1, PREFIX, verb, *clocks, msgspec.msgpack.encode(told))
        except (UnicodeEncodeError, OverflowError) as exc:
            raise InvalidInput("argument", f"cannot be handed to Valkey ({exc})") from exc
        wait, known, end = 0.02, True, time.monotonic() + PATIENCE
        trouble: Exception | None = None  # what was last said; that nobody answered only if nothing was
        while True:
            how = ("EVALSHA", digest) if known else ("EVAL", script)
            try:
                left = max(LEAST, end - time.monotonic())
                return await self._ended(self._asked(*how, *values), min(ATTEMPT, left))
            except Exception as exc:
                names = _names(exc)
                if "NoScriptError" in names or "NOSCRIPT" in str(exc):
                    known = False  # restarted, failed over, or flushed: it is sent along
                elif REFUSING & names or not (PASSING & names or str(exc).startswith(STARTING)):
                    raise
                elif self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                else:
                    trouble = exc if trouble is None or not isinstance(exc, TimeoutError) else trouble
                    nap = wait * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
                    if time.monotonic() + nap >= end:
                        raise trouble from None
                    await asyncio.sleep(nap)
                    wait = min(wait * 2, 1.0)

    async def _asked(self, *command: Any) -> Any:
        client = await self.client()
        # NEVER_DECODE: the caller's client may turn replies into text.
        return await client.execute_command(*command, NEVER_DECODE=True)

    async def _ended(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        # A task of its own: clients use asyncio.wait_for, which in Python 3.11 may swallow a cancellation.
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task], timeout=seconds)
            if task.done():
                return task.result()
        finally:
            task.cancel()
            task.add_done_callback(_looked)
        raise TimeoutError(f"no answer within {seconds:g} s")

    def _translated(self, exc: Exception) -> SaveslotError:
        names, text = _names(exc), shown(str(exc)) or type(exc).__name__
        if "WRONGTYPE" in text or "DAMAGED" in text:
            return Corrupt(self.shown, text)
        if "OutOfMemoryError" in names or "OOM" in text:
            hint = "give it more memory (maxmemory); what expires or is purged makes room as well"
            return Unavailable(f"{self.shown} is full, nothing was written; {hint}")
        if REFUSING & names or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            return Unavailable(f"{self.shown} refuses us ({text}); check user, password and rights")
        if "DB index" in text or "SELECT is not allowed" in text:
            hint = "name another database, or none: valkey://host:6379/0"
            return InvalidInput("url", f"{self.shown} has no such database ({text}); {hint}")
        if PASSING & names:
            return Unavailable(f"{self.shown} does not answer ({text}); retry")
        return Unavailable(f"{self.shown}: {text}; nothing was acknowledged; retry")


@cache
def scripts() -> dict[str, tuple[bytes, bytes]]:
    """The script under each of its flags, and the digest that a server knows it by."""
    body = Path(__file__).with_name("lua").joinpath("valkey.lua").read_bytes()
    found = {flags: f"#!lua{flags}\n".encode() + body for flags in (READS, WRITES, ALWAYS)}
    return {
        flags: (script, sha1(script, usedforsecurity=False).hexdigest().encode()) for flags, script in found.items()
    }


def connect(url: str) -> Any:
    """A client for the running event loop."""
    try:
        from valkey.asyncio import BlockingConnectionPool, Valkey
    except ModuleNotFoundError:
        raise InvalidInput("url", "Valkey needs a driver: pip install 'saveslot[valkey]'") from None
    wrong = InvalidInput("url", f"{shown(url)} cannot be read; use valkey://host:6379/0; {ESCAPED}")
    try:
        parts = urlsplit(url)
        pool = BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
        pool.make_connection()
    except ValueError:  # it may quote a part of the password
        raise wrong from None
    except TypeError as exc:  # an option that nobody knows
        raise InvalidInput("url", f"{shown(url)} cannot be used: {exc}") from None
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*/?", parts.path):  # the driver would take database 0
        raise wrong
    return Valkey.from_pool(pool)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _names(exc: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(exc).__mro__}


def _looked(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # of one that nobody waits for any more
