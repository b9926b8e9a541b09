"""Reaching the Valkey in front: a client, one circuit breaker, and a budget for every operation.

An operation ends within its budget and never raises: whatever happens to Valkey, the database answers. A client given
by URL is created in the background when it is first needed: a process that reads one state and ends never waits for
the driver's import, nor for a connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any
from urllib.parse import urlsplit

import msgspec

from saveslot.errors import InvalidInput
from saveslot.stores.wire.loops import stopped
from saveslot.stores.wire.metrics import Calls

LOG = logging.getLogger("saveslot")

# Seconds that one operation may take, and bytes per second that a large state may take on top: half of what a gigabit
# network carries. After that the database answers, or the copy is not made.
BUDGET, PACE = 0.05, 50e6
# Circuit breaker: failures in a row that open it, seconds until one operation probes again.
FAILURES, PAUSE = 3, 1.0
# Seconds from first need to creating the client: a process that needed Valkey once may end right after.
SETTLED = 0.1


class HotMetrics(msgspec.Struct):
    """What the hot tier did since the store was opened."""

    hits: int = 0  # states that came from Valkey
    misses: int = 0  # states that the database had to send
    garbage: int = 0  # copies, among the misses, with bytes that Saveslot did not write
    fills: int = 0  # changes made to copies
    dropped: int = 0  # changes not made: too many were waiting, or Valkey was skipped
    buried: int = 0  # copies removed because their session was thinned, erased or purged
    left: int = 0  # those that could not be removed: never read, they end with their time to live
    errors: int = 0  # operations that failed …
    timeouts: int = 0  # … or took longer than their budget
    hints: int = 0  # messages about appends, from any process
    connected: bool = False  # there is a client: it is created when it is first needed
    listening: bool = False  # for hints


class Breaker:
    """closed: all is well; open: Valkey is skipped; half-open: one operation may probe."""

    def __init__(self) -> None:
        self._failed = 0
        self._until = 0.0

    @property
    def state(self) -> str:
        if self._failed < FAILURES:
            return "closed"
        return "open" if time.monotonic() < self._until else "half-open"

    def admits(self) -> bool:
        state = self.state
        if state == "half-open":  # the caller probes; others stay out until its outcome is known
            self._until = time.monotonic() + PAUSE
        return state != "open"

    def record(self, *, good: bool) -> None:
        before, self._failed = self._failed, 0 if good else self._failed + 1
        self._until = time.monotonic() + PAUSE
        if self._failed == FAILURES:
            LOG.warning("hot tier: Valkey failed %d times in a row; the database answers alone", FAILURES)
        elif good and before >= FAILURES:
            LOG.info("hot tier: Valkey works again")


class Connection:
    def __init__(self, client: Any, *, own: bool = False) -> None:
        """`client`: an asyncio one, or a URL. `own`: close it with this; one created from a URL always is."""
        self._client: Any = client
        self._own, self._url = own, ""
        if isinstance(client, str):
            self._client, self._own, self._url = None, True, checked(client)
        elif not iscoroutinefunction(getattr(client, "execute_command", None)):
            raise InvalidInput("redis_client", "must be an asyncio client: valkey.asyncio.Valkey, redis.asyncio.Redis")
        self.counts = HotMetrics()
        self.breaker = Breaker()
        self._calls = {"read": Calls(), "fill": Calls(), "bury": Calls()}
        self._connecting: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._refused = False  # whether the last write was answered with an error
        self.closed = False
        # A cluster's commands name one session each, and not every version of its client can subscribe.
        self.cluster = hasattr(client, "get_nodes")
        self.shared = not self.cluster and (bool(self._url) or hasattr(client, "pubsub"))

    def metrics(self) -> dict[str, Any]:
        self.counts.connected = self._client is not None
        calls = {verb: calls.to_dict() for verb, calls in self._calls.items()}
        return {**msgspec.structs.asdict(self.counts), "breaker": self.breaker.state, **calls}

    def calls(self) -> dict[tuple[str, str], Calls]:
        return {("hot", verb): calls for verb, calls in self._calls.items()}

    @property
    def ready(self) -> bool:
        """True once there is a client. If there is none, create it soon."""
        if self._client is None and self._connecting is None and not self.closed:
            self._connecting = asyncio.ensure_future(self._connect())
        return self._client is not None

    async def client(self) -> Any:
        """The client, once it is there. A caller that leaves does not keep others waiting."""
        if not self.ready and self._connecting is not None:
            await asyncio.shield(self._connecting)
        return self._client

    async def _connect(self) -> None:
        await asyncio.sleep(SETTLED)
        await asyncio.to_thread(import_module, "valkey.asyncio")  # takes as long as several resumes
        try:
            self._client = connect(self._url)
        except InvalidInput as exc:  # an option that only the driver knows to be wrong: every operation will fail
            LOG.warning("hot tier: %s", exc)

    async def execute(self, *command: Any) -> Any:
        # NEVER_DECODE: the caller's client may turn replies into text.
        return await self._client.execute_command(*command, NEVER_DECODE=True)

    def begin(self, verb: str, work: Coroutine[Any, Any, Any]) -> Operation | None:
        """Start an operation ("read", "fill" or "bury"); None while Valkey is skipped."""
        if not self.breaker.admits():
            work.close()
            return None
        return Operation(self, verb, self.started(work))

    async def run(self, verb: str, work: Coroutine[Any, Any, Any], size: int = 0) -> Any:
        """The result of an operation that moves `size` bytes; None if Valkey is skipped, fails or is late."""
        operation = self.begin(verb, work)
        return None if operation is None else await operation.result(size)

    def started(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        # A task of its own: clients use asyncio.wait_for, which in Python 3.11 may swallow a cancellation.
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because its caller may be gone

    def record(self, verb: str, seconds: float, task: asyncio.Task[Any]) -> Any:
        """Count an operation that ended or used up its budget; return its result, or None."""
        calls, counts, done = self._calls[verb], self.counts, task.done()
        calls.took.add(int(seconds * 1e9))
        exc = None if not done else asyncio.CancelledError() if task.cancelled() else task.exception()
        if done and exc is None:
            self.breaker.record(good=True)
            self._refused = self._refused and verb == "read"
            return task.result()
        calls.errors += 1
        counts.timeouts += not done
        counts.errors += done
        # Full, a replica, or this user may not: Valkey is there, and may answer reads. (`valkey` and `redis` name
        # the class of such errors alike.)
        if done and any(cls.__name__ == "ResponseError" for cls in type(exc).__mro__):
            if not self._refused:
                LOG.warning("hot tier: Valkey refuses to %s: %s", verb, exc)
            self._refused = True
        else:
            self.breaker.record(good=False)
        return None

    async def close(self) -> None:
        self.closed = True
        await stopped(self._connecting)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=PAUSE)
        if self._own and self._client is not None:
            closing = self.started(self._client.aclose())
            await asyncio.wait([closing], timeout=PAUSE)
            closing.cancel()


class Operation:
    """One that was started, and whose result may not be needed."""

    def __init__(self, connection: Connection, verb: str, task: asyncio.Task[Any]) -> None:
        self._connection, self._verb, self._task = connection, verb, task
        self._start = time.perf_counter()
        self._wanted = False

    async def result(self, size: int = 0) -> Any:
        """Wait for the result within the budget for `size` bytes; None if it failed or was late."""
        self._wanted = True
        try:
            left = self._start + BUDGET + size / PACE - time.perf_counter()
            await asyncio.wait([self._task], timeout=max(0.0, left))
            return self._connection.record(self._verb, time.perf_counter() - self._start, self._task)
        finally:
            self._task.cancel()

    def abandon(self) -> None:
        """Let it end by itself if its result was not awaited: to interrupt it would cost a connection."""
        if not self._wanted:
            self._connection.started(self.result())


def checked(url: str) -> str:
    """The same URL; `InvalidInput` if no client could be created from it. None is created."""
    if find_spec("valkey") is None:
        raise InvalidInput("hot", "Valkey needs a driver: pip install 'saveslot[valkey]'")
    try:
        _ = urlsplit(url).port
    except ValueError as exc:
        raise InvalidInput("hot", f"{exc}; use valkey://host:6379") from None
    return url


def connect(url: str) -> Any:
    """A client for a `valkey://` or `redis://` URL; with a TLS connection for `valkeys://` and `rediss://`."""
    checked(url)
    from valkey.asyncio import BlockingConnectionPool, Valkey

    try:
        # A caller that finds all sixteen busy waits, within its budget.
        pool = BlockingConnectionPool.from_url(url, max_connections=16, timeout=None)
    except ValueError as exc:
        raise InvalidInput("hot", f"{exc}; use valkey://host:6379") from None
    return Valkey.from_pool(pool)
