"""Connections to a Valkey server: a client per event loop, retries, deadlines, its errors translated to Saveslot's."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import contextmanager
from functools import cache
from hashlib import sha1
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from saveslot.errors import Corrupt, Forbidden, InvalidInput, SaveslotError, Unauthorized, Unavailable
from saveslot.stores import shown

T = TypeVar("T")

# Seconds that a call may take: a restart of the server takes a few.
PATIENCE = 30.0
# Seconds for which a caller in a hurry, such as a command, tries a host that is unknown or refuses connections.
HURRY = 0.3
# Seconds for one attempt; then the call is repeated on another connection.
ATTEMPT = 10.0
# Seconds that the last attempt gets, however little is left.
LEAST = 0.1
# Connections per event loop: two batches of appends, and readers beside them. A caller that finds all busy waits.
POOL = 16
# Begins the name of every key. The part in braces decides the slot in a cluster: a store lies in one.
PREFIX = b"saveslot:{store}"
FORMAT = 3
ESCAPED = "in user and password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23"

# Flags of the script, which the server checks before it runs it: a full server refuses writes as a whole and at once,
# but never reads, heartbeats or what frees memory.
READS, WRITES, ALWAYS = " flags=no-writes", "", " flags=allow-oom"

# Errors by class name: `valkey` and `redis` have the same ones, and a caller may pass a client of either.
PASSING = {
    *("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError", "TryAgainError", "ClusterDownError"),
    *("MasterDownError", "OSError"),
}
STARTING = ("BUSY", "MASTERDOWN", "LOADING")
REFUSING = {"AuthenticationError", "NoPermissionError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}


class Server:
    """A server given by URL, or reached by the caller's client, which is never closed here."""

    def __init__(self, url: str = "", client: Any = None, *, patient: bool = True) -> None:
        self._url = url
        self._patient = patient
        self.shown = shown(url) or "Valkey"
        self._theirs = client
        self._clients: dict[asyncio.AbstractEventLoop, AsyncGenerator[Any]] = {}
        self._loop = _running()
        self._opened = False
        self._closed = False
        if client is None:
            connect(url)  # refuse a wrong URL at once
        elif not iscoroutinefunction(getattr(client, "execute_command", None)):
            raise InvalidInput("redis_client", "must be an asyncio client: valkey.asyncio.Valkey, redis.asyncio.Redis")

    async def client(self) -> Any:
        """The client of this event loop: connections belong to the loop that created them."""
        if self._theirs is not None:
            return self._theirs
        loop = asyncio.get_running_loop()
        return await anext(self._clients.setdefault(loop, self._kept(loop)))

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Any]:
        """A client that is closed with its event loop: asyncio closes async generators then."""
        client = connect(self._url)
        try:
            while True:
                yield client
        finally:
            self._clients.pop(loop, None)
            await client.aclose()

    async def open(self) -> None:
        """Connect once, and check that the stored format is not newer than this version."""
        if self._opened:
            return
        self._loop = self._loop or asyncio.get_running_loop()
        stored = await self._answered(READS, "format", (b"", b""), None)
        if stored is not None and not stored.isdigit():
            raise Corrupt(self.shown, f"its format is {stored!r}")
        if stored is not None and int(stored) > FORMAT:
            newer = f"has format {int(stored)}, but this Saveslot reads only up to {FORMAT}; upgrade it"
            raise InvalidInput("url", f"{self.shown} {newer}")
        self._opened = True

    async def run(self, flags: str, verb: str, clocks: tuple[bytes, bytes], request: Any) -> Any:
        """The script's answer. Repeated when the connection breaks: every call here may run twice."""
        await self.open()
        return await self._answered(flags, verb, clocks, request)

    async def scan(self, cursor: bytes, pattern: bytes) -> tuple[bytes, list[bytes]]:
        """A part of the keys that match, and the cursor of the next; it ends with cursor 0."""
        await self.open()
        try:
            return await self._ended(self._executed("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), ATTEMPT)
        except Exception as exc:
            raise self._translated(exc) from exc

    async def run_beside(self, flags: str, verb: str, clocks: tuple[bytes, bytes], request: Any) -> Any:
        """The same from another event loop, on connections of its own; a caller's client runs it in its own loop."""
        loop = asyncio.get_running_loop()
        if self._theirs is None or self._loop is None or loop is self._loop:
            return await self.run(flags, verb, clocks, request)
        running = asyncio.run_coroutine_threadsafe(self.run(flags, verb, clocks, request), self._loop)
        return await asyncio.wrap_future(running)

    async def close(self) -> None:
        self._closed = True
        kept = self._clients.get(asyncio.get_running_loop())
        if kept is not None:
            await self._ended(kept.aclose(), ATTEMPT)

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Turn errors about an answer's content into `Corrupt`."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, msgspec.MsgspecError) as exc:
            raise Corrupt(self.shown, f"contains something that Saveslot did not write ({exc})") from exc

    async def _answered(self, flags: str, verb: str, clocks: tuple[bytes, bytes], request: Any) -> Any:
        try:
            return await self._tried(flags, verb, clocks, request)
        except SaveslotError:
            raise
        except Exception as exc:
            raise self._translated(exc) from exc

    async def _tried(self, flags: str, verb: str, clocks: tuple[bytes, bytes], request: Any) -> Any:
        script, digest = scripts()[flags]
        try:
            values = (1, PREFIX, verb, *clocks, msgspec.msgpack.encode(request))
        except (UnicodeEncodeError, OverflowError) as exc:
            raise InvalidInput("argument", f"cannot be stored in Valkey ({exc})") from exc
        began = time.monotonic()
        wait, known, end = 0.02, True, began + PATIENCE
        trouble: Exception | None = None  # the last error; a timeout only if there was no other
        while True:
            how = ("EVALSHA", digest) if known else ("EVAL", script)
            try:
                left = max(LEAST, end - time.monotonic())
                return await self._ended(self._executed(*how, *values), min(ATTEMPT, left))
            except Exception as exc:
                names = _names(exc)
                if "NoScriptError" in names or "NOSCRIPT" in str(exc):
                    known = False  # restarted, failed over or flushed: send it again
                elif REFUSING & names or not (PASSING & names or str(exc).startswith(STARTING)):
                    raise
                elif self._closed:
                    raise Unavailable("this store is closed; open it again") from exc
                else:
                    trouble = exc if trouble is None or not isinstance(exc, TimeoutError) else trouble
                    if not (self._patient or self._opened) and _absent(exc) and time.monotonic() > began + HURRY:
                        raise Unavailable(
                            f"no Valkey answers at {self.shown} ({shown(str(exc))}), tried for {HURRY:g} s; "
                            "start the server, or correct host and port"
                        ) from None
                    nap = wait * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
                    if time.monotonic() + nap >= end:
                        raise trouble from None
                    await asyncio.sleep(nap)
                    wait = min(wait * 2, 1.0)

    async def _executed(self, *command: Any) -> Any:
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
            return damaged(text) or Corrupt(self.shown, text)
        if "OutOfMemoryError" in names or "OOM" in text:
            hint = "give it more memory (maxmemory); expired and purged sessions free some too"
            return Unavailable(f"{self.shown} is full, nothing was written; {hint}")
        if REFUSING & names or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            denied = "NoPermissionError" in names or text.startswith("NOPERM")
            kind = Forbidden if denied else Unavailable if self._opened else Unauthorized
            return kind(f"{self.shown} refuses the connection ({text}); check user, password and permissions")
        if "DB index" in text or "SELECT is not allowed" in text:
            hint = "name another database, or none: valkey://host:6379/0"
            return InvalidInput("url", f"{self.shown} has no such database ({text}); {hint}")
        if PASSING & names:
            return Unavailable(f"{self.shown} does not answer ({text}); retry")
        return Unavailable(f"{self.shown}: {text}; nothing was acknowledged; retry")


@cache
def scripts() -> dict[str, tuple[bytes, bytes]]:
    """The script with each of its flags, and the digest by which a server knows it."""
    body = Path(__file__).with_name("script.lua").read_bytes()
    flagged = {flags: f"#!lua{flags}\n".encode() + body for flags in (READS, WRITES, ALWAYS)}
    return {
        flags: (script, sha1(script, usedforsecurity=False).hexdigest().encode()) for flags, script in flagged.items()
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
    except ValueError:  # its message may contain part of the password
        raise wrong from None
    except TypeError as exc:  # an unknown option
        raise InvalidInput("url", f"{shown(url)} cannot be used: {exc}") from None
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*/?", parts.path):  # the driver would use database 0
        raise wrong
    return Valkey.from_pool(pool)


# As `damaged` in the script says it: entry 5 of session 0198…
_DAMAGED = re.compile(r"DAMAGED ((?:entry \d+ of )?session [0-9a-f]+)")


def damaged(text: str) -> Corrupt | None:
    """The script's error about a session, if it is one."""
    match = _DAMAGED.search(text)
    return match and Corrupt(match[1], "a value of it is missing, or Saveslot did not write it")


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _names(exc: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(exc).__mro__}


def _absent(exc: BaseException) -> bool:
    """True if there is no server: the host is unknown, or refuses connections. (The driver wraps the cause.)"""
    return "ConnectionError" in _names(exc) and str(exc).startswith("Error") and "connecting to" in str(exc)


def _looked(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved, because its caller is gone
