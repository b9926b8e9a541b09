"""Copies of frames in Valkey: quick to reach, believed by nobody without proof, missed by nobody when they are gone.

    saveslot:{0190b5c2f3…}:7   ->   seal (16 bytes) | frame         SET NX, with the tier's time to live
    saveslot:{0190b5c2f3…}:7   ->   (nothing)                       buried: the entry was emptied or its session purged

The seal is a hash of the append_id, which no two entries share, and the frame. A reader knows from the database which
id belongs there: a copy under the wrong key, of an entry that a restored database no longer has, cut short or scribbled
over is noticed, and counts as missing.

What holds a session's copies is its hash tag, and no command names two sessions: Valkey Cluster works. Every operation
ends within its budget, and none raises.

A client by URL is made when it is first needed, behind the caller's back: a process that only reads one state and
ends never waits for a driver to be imported, or for a connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence, Set as AbstractSet
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any
from urllib.parse import urlsplit

import msgspec

from saveslot.errors import InvalidInput
from saveslot.log import Entry
from saveslot.loops import stopped
from saveslot.metrics import Calls

LOG = logging.getLogger("saveslot")

Copy = tuple[str, bytes, bool]  # its name, what it holds, and whether it goes over what lies there

# Seconds that one operation may take; then the database is asked, or the copy is not made.
BUDGET = 0.05
# So many failures in a row, and Valkey is left alone for so many seconds; then one operation tries for all.
FAILURES, PAUSE = 3, 1.0
# A process that needed Valkey once may end right afterwards: so many seconds later it makes its client.
SETTLED = 0.1
# One question names so many frames: within the budget also for a client that parses in Python.
CHUNK = 128
# A larger frame would not come within the budget over a slow network. (Most are a few kilobytes.)
LARGE = 1 << 20
# Copies that wait to be made: so many bytes, and so many for each, then new ones are left out.
BACKLOG, EACH = 8 << 20, 200
# One pipeline makes so many of them.
BATCH = 256
# A grave is kept longer than any copy can be under way, so that none rises from it.
GRAVE = 3600
SEAL = 16
CHANNEL = "saveslot:news"
# Seconds after which a listener that heard nothing listens again.
SILENCE = 60


class HotMetrics(msgspec.Struct):
    """What the hot tier did since the store was opened."""

    hits: int = 0  # frames that came from Valkey
    misses: int = 0  # frames that the database had to send
    garbage: int = 0  # copies, among the misses, that did not match what the database knows
    fills: int = 0  # copies made
    dropped: int = 0  # copies not made: too many were waiting, or Valkey was left alone
    buried: int = 0  # copies of emptied and purged entries, taken away
    left: int = 0  # those that could not be: nobody reads them, they end with their time to live
    errors: int = 0  # operations that failed …
    timeouts: int = 0  # … and that took too long
    hints: int = 0  # heard over Valkey: something was appended
    connected: bool = False  # there is a client: it is made when it is first needed
    listening: bool = False  # for hints


class Breaker:
    """closed: all is well; open: Valkey is left alone; half-open: one may try."""

    def __init__(self, name: str = "") -> None:
        self.calls = Calls()
        self._name = name
        self._failed = 0
        self._until = 0.0

    @property
    def state(self) -> str:
        if self._failed < FAILURES:
            return "closed"
        return "open" if time.monotonic() < self._until else "half-open"

    def admits(self) -> bool:
        state = self.state
        if state == "half-open":  # this one tries; the others wait for what becomes of it
            self._until = time.monotonic() + PAUSE
        return state != "open"

    def record(self, *, good: bool) -> None:
        before, self._failed = self._failed, 0 if good else self._failed + 1
        self._until = time.monotonic() + PAUSE
        if self._failed == FAILURES:
            LOG.warning("hot tier: %s failed %d times in a row; the database is asked alone", self._name, FAILURES)
        elif good and before >= FAILURES:
            LOG.info("hot tier: %s works again", self._name)

    def told(self) -> dict[str, Any]:
        return {"breaker": self.state, **self.calls.told()}


class HotTier:
    def __init__(self, client: Any, ttl: float, *, own: bool = False) -> None:
        """`client`: an asyncio one, or a URL. `own`: it ends with the tier, as one by URL always does."""
        self._client: Any = client
        self._own, self._url = own, ""
        if isinstance(client, str):
            self._client, self._own, self._url = None, True, checked(client)
        elif not iscoroutinefunction(getattr(client, "execute_command", None)):
            raise InvalidInput("redis_client", "must be an asyncio client: valkey.asyncio.Valkey, redis.asyncio.Redis")
        if ttl <= 0:
            raise InvalidInput("session_ttl_hours", "must be more than 0")
        self.counts = HotMetrics()
        self.news = asyncio.Event()
        self._warming: asyncio.Task[None] | None = None
        self._ttl = max(1, int(ttl * 1000))
        # They fail apart: a full server still answers, and gives up what it has.
        self.reading, self.filling, self.burying = Breaker("reading"), Breaker("filling"), Breaker("burying")
        self._waiting: deque[Copy] = deque()
        self._weight = 0
        self._untold = False
        self._filler: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[bool]] = set()
        self._closed = False
        # A cluster's client has no channel that every version of it can hear: watchers ask the database.
        self._shared = bool(self._url) or (hasattr(client, "pubsub") and not hasattr(client, "get_nodes"))

    def metrics(self) -> dict[str, Any]:
        self.counts.connected = self._client is not None
        verbs = {"read": self.reading, "fill": self.filling, "bury": self.burying}
        return {**msgspec.structs.asdict(self.counts), **{verb: breaker.told() for verb, breaker in verbs.items()}}

    @property
    def readable(self) -> bool:
        return self._client is not None and not self._closed and self.reading.state != "open"

    def warm(self) -> asyncio.Task[None]:
        """Make the client, some time soon."""
        if self._warming is None:
            self._warming = asyncio.ensure_future(self._connected())
        return self._warming

    async def _connected(self) -> None:
        if self._client is not None:
            return
        await asyncio.sleep(SETTLED)
        await asyncio.to_thread(import_module, "valkey.asyncio")  # takes as long as several resumes
        try:
            self._client = connect(self._url)
        except InvalidInput as exc:  # an option that only the driver knows to be wrong: every operation will fail
            LOG.warning("hot tier: %s", exc)

    async def _there(self) -> None:
        """Until there is a client. Who waits may leave; the others go on waiting."""
        if self._client is None:
            await asyncio.shield(self.warm())

    # Frames

    async def read(self, key: bytes, seqs: Sequence[int]) -> dict[int, bytes]:
        """What lies there for these entries; `frame_of` says what it is worth."""
        found: dict[int, bytes] = {}

        async def ask(part: Sequence[int]) -> bool:
            names = [_name(key, seq) for seq in part]
            # NEVER_DECODE: the caller's client may turn replies into text.
            values = await self._client.execute_command("MGET", *names, NEVER_DECODE=True)
            found.update((seq, value) for seq, value in zip(part, values, strict=True) if isinstance(value, bytes))
            return True

        for start in range(0, len(seqs), CHUNK):
            if not await self._try(self.reading, ask(seqs[start : start + CHUNK])):
                break
        return found

    def frame_of(self, entry: Entry, value: bytes | None) -> bytes | None:
        """The frame of this entry, if that is what the value holds."""
        if value is not None and value[:SEAL] == _seal(entry, value[SEAL:]):
            self.counts.hits += 1
            return value[SEAL:]
        self.counts.misses += 1
        self.counts.garbage += value is not None
        return None

    def fill(self, key: bytes, entries: Iterable[Entry], over: AbstractSet[int] = frozenset()) -> None:
        """Copy these frames, soon and if nothing is in the way: only where nothing lies, or something spoilt (`over`).

        (Should what was spoilt become a grave just then, the copy covers it: nobody reads it, and it ends in time.)
        """
        for entry in entries:
            frame = entry.frame
            if not frame or len(frame) > LARGE:
                continue
            if self._weight > BACKLOG or self.filling.state == "open":
                self.counts.dropped += 1
                continue
            self._waiting.append((_name(key, entry.seq), _seal(entry, frame) + frame, entry.seq in over))
            self._weight += EACH + len(frame)
        self._start()

    def tell(self) -> None:
        """Let whoever watches, here and in other processes, know that something was appended."""
        self._wake()
        self._untold = self._shared
        self._start()

    async def bury(self, key: bytes, seqs: Sequence[int]) -> None:
        """Take copies away, and keep those that are still under way from coming."""

        async def dig(names: Sequence[str]) -> bool:
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.set(name, b"", ex=GRAVE)
            await pipeline.execute()
            return True

        async def drop(names: Sequence[str]) -> bool:
            await self._client.execute_command("UNLINK", *names)
            return True

        if seqs:
            await self._there()
        for start in range(0, len(seqs), BATCH):
            names = [_name(key, seq) for seq in seqs[start : start + BATCH]]
            # A full server has no room for a grave, nor for a copy that comes late.
            if not (await self._try(self.burying, dig(names)) or await self._try(self.burying, drop(names))):
                self.counts.left += len(seqs) - start
                return
            self.counts.buried += len(names)

    def _start(self) -> None:
        if self._filler is None and (self._waiting or self._untold) and self.filling.state != "open":
            self._filler = asyncio.ensure_future(self._fill())

    async def _fill(self) -> None:
        try:
            await self._there()
            while self._waiting or self._untold:
                batch = self._next()
                if await self._try(self.filling, self._copied(batch)):
                    continue
                self.counts.dropped += len(batch)
                if self.filling.state == "open":
                    self.counts.dropped += len(self._waiting)
                    self._waiting.clear()
                    self._weight, self._untold = 0, False
        finally:
            self._filler = None

    def _next(self) -> list[Copy]:
        batch: list[Copy] = []
        size = 0
        while self._waiting and len(batch) < BATCH and size < LARGE:
            batch.append(self._waiting.popleft())
            size += len(batch[-1][1])
            self._weight -= EACH + len(batch[-1][1]) - SEAL
        return batch

    async def _copied(self, batch: list[Copy]) -> bool:
        pipeline = self._client.pipeline(transaction=False)
        for name, value, over in batch:
            pipeline.set(name, value, px=self._ttl, nx=not over)
        if self._untold:
            self._untold = False
            pipeline.publish(CHANNEL, "")
        done = await pipeline.execute()
        self.counts.fills += sum(map(bool, done[: len(batch)]))
        return True

    async def _try(self, breaker: Breaker, work: Coroutine[Any, Any, bool]) -> bool:
        """True if it went well and in time: nothing that happens to Valkey may reach a caller."""
        if not breaker.admits():
            work.close()
            return False
        # A task of its own: clients use asyncio.wait_for, which in Python 3.11 may swallow a cancellation.
        start = time.perf_counter_ns()
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait([task], timeout=BUDGET)
        finally:
            task.cancel()
        good = task.done() and not task.cancelled() and task.exception() is None
        breaker.record(good=good)
        breaker.calls.took.add(time.perf_counter_ns() - start)
        breaker.calls.errors += not good
        self.counts.timeouts += not task.done()
        self.counts.errors += task.done() and not good
        return good

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # of one that nobody waits for any more

    # Hints

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def listen(self) -> None:
        """Hear of other processes' appends from now on, as long as Valkey answers."""
        if self._listener is None and self._shared and not self._closed:
            self._listener = asyncio.ensure_future(self._listened())

    async def _listened(self) -> None:
        await self._there()
        while True:
            try:
                async with self._client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self.counts.listening = True
                    while True:  # with a time of its own: the client's, for answers, is too short for silence
                        if await channel.get_message(timeout=SILENCE) is not None:
                            self.counts.hints += 1
                            self._wake()
            except Exception:  # noqa: BLE001  (as above)
                self.counts.errors += 1
            self.counts.listening = False
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        """What waits to be copied has the time of one operation."""
        self._closed = True
        if self._filler is not None:
            await asyncio.wait([self._filler], timeout=BUDGET)
        await stopped(self._filler, self._listener, self._warming)
        if self._running:  # cancelled, each of them
            await asyncio.wait(self._running, timeout=PAUSE)
        if self._own and self._client is not None:
            hanging_up = asyncio.ensure_future(self._client.aclose())
            hanging_up.add_done_callback(self._ended)
            await asyncio.wait([hanging_up], timeout=PAUSE)
            await stopped(hanging_up)


def _name(key: bytes, seq: int) -> str:
    return f"saveslot:{{{key.hex()}}}:{seq}"


def _seal(entry: Entry, frame: bytes) -> bytes:
    seal = blake2b(entry.append_id, digest_size=SEAL)
    seal.update(frame)
    return seal.digest()


def checked(url: str) -> str:
    """The same URL; `InvalidInput` where no client could be made of it, without making one."""
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
        # Who finds all sixteen busy waits, within its budget.
        pool = BlockingConnectionPool.from_url(url, max_connections=16, timeout=None)
    except ValueError as exc:
        raise InvalidInput("hot", f"{exc}; use valkey://host:6379") from None
    return Valkey.from_pool(pool)
