"""A process as a worker: one row in the store, renewed by a dedicated thread.

The thread renews it even while the event loop is blocked, up to `max_block` seconds; after that the loop counts as
hung, and other workers may take its sessions. The deadline counts from before the heartbeat was sent, so this process
knows first and starts nothing more. A late heartbeat revives the row unless another worker declared it dead.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from saveslot.errors import FORKED, InvalidInput, LeaseLost, SaveslotError, Unavailable
from saveslot.stores import Store
from saveslot.stores.wire.loops import set_within
from saveslot.values.checks import Data, Span, as_span
from saveslot.values.log import FOREVER, ID, Head, Worker as WorkerRow


def clock() -> float:
    """Return seconds of a clock that cannot be set, and that on Linux runs while the machine sleeps."""
    if not hasattr(time, "CLOCK_BOOTTIME"):  # not Linux: the clock that Python has everywhere
        return time.monotonic()
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def jittered(seconds: float) -> float:
    """Return 75 to 125 % of `seconds`, so that callers do not wake at once. (Importing `random` would take 2 ms.)"""
    return seconds * (0.75 + os.urandom(1)[0] / 512)


def worker_name() -> str:
    """Return this process's name as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def new_worker(store: Store) -> bytes:
    """Return a new worker's id."""
    crew = store.traits.crew
    return crew + os.urandom(ID - len(crew))


class Holder(Protocol):
    """A held session: it depends on the worker being alive."""

    @property
    def key(self) -> bytes: ...

    def doubt(self) -> None:
        """The deadline has passed; other workers may take the session now."""
        ...

    def trust(self) -> None:
        """A heartbeat arrived after all."""
        ...

    def lose(self, why: LeaseLost) -> None: ...

    async def look(self, head: Head) -> None:
        """Notice what others wrote."""
        ...


def timing(beat: Span, ttl: Span, max_block: Span) -> dict[str, float]:
    """Check the three. A TTL is at least three heartbeats: one may get lost, and the next must still be in time."""
    beat, ttl, max_block = as_span(beat, "worker_beat"), as_span(ttl, "worker_ttl"), as_span(max_block, "max_block")
    if not 0 < beat * 2.999 <= ttl:  # 3 * 0.1 is more than 0.3
        raise InvalidInput("worker_ttl", f"must be at least three beats of {beat} s, not {ttl} s")
    if max_block <= 0:
        raise InvalidInput("max_block", f"must be more than 0 s, not {max_block}")
    return {"beat": beat, "ttl": ttl, "max_block": max_block}


class Worker:
    def __init__(
        self, store: Store, tidy: Callable[[Worker], None], *, beat: float, ttl: float, max_block: float
    ) -> None:
        self.name = worker_name()
        self.row = WorkerRow(new_worker(store), self.name, round(ttl * 1_000_000), first=True)
        self.ttl = ttl
        self.holders: dict[bytes, Holder] = {}  # by lease
        self.dead: LeaseLost | None = None  # the error, once another worker declared it dead
        self.strays: set[str] = set()  # namespaces where the store may say that this worker holds what it does not
        self.parting: dict[
            bytes, tuple[str, Data | None]
        ] = {}  # releases of unknown outcome, by lease: namespace, note
        self.beats = 0
        self.deadline = 0.0
        self._beat = beat
        self._max_block = max_block
        self._store = store
        self._up_since = 0.0
        self._outage = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saveslot-worker", daemon=True)
        self._doubted = False
        self._tidy = tidy  # after each heartbeat, in the event loop

    async def start(self) -> None:
        """Register before anything is held."""
        self._loop = asyncio.get_running_loop()
        self._renewed = asyncio.Event()
        self._moved = sent = clock()
        await self._store.beat((), self.row)
        self.row.first = False
        self.beats, self.deadline, self._up_since = 1, sent + self.ttl, clock()
        self._outage = self._up_since - sent > self._beat
        self._alarm = self._loop.call_later(self.ttl, self._on_deadline)
        try:
            self._thread.start()
        except RuntimeError:
            raise Unavailable("cannot start the heartbeat thread: is the interpreter exiting?") from None

    async def leave(self) -> None:
        """Stop the heartbeats. Sessions that are still held become orphans at once."""
        self._stop.set()
        self._alarm.cancel()
        await self._loop.run_in_executor(None, self._thread.join)
        if self.dead is None:
            self.row.ttl = 0
            try:
                await self._store.beat((), self.row)
            except SaveslotError:
                return  # the row will expire all the same

    def forked(self) -> None:
        """In a forked child: the parent is the worker, and owns the held sessions."""
        self.dead = LeaseLost(FORKED)
        for holder in list(self.holders.values()):
            with suppress(RuntimeError):  # an event loop in debug mode refuses calls from another thread
                holder.lose(self.dead)
        self.holders.clear()

    @property
    def patience(self) -> int:
        """Microseconds since another worker's expiry after which this one may declare it dead.

        After an outage no worker declares others dead before the store was up for one TTL: the others could not send
        heartbeats either. A worker that has just started cannot know whether there was one.
        """
        if self._late(clock()):
            return FOREVER  # an outage may have begun, and the next heartbeat is stuck in it
        left = self.trial
        if not left:
            return 0
        return round(left * 1_000_000) if self._store.traits.local and not self._outage else FOREVER

    @property
    def trial(self) -> float:
        """Seconds until this worker has seen the store up for one TTL."""
        return max(0.0, self.ttl - (clock() - self._up_since))

    async def judging(self) -> bool:
        """Wait until a dead worker can be told from one that an outage kept silent; False if it can be already."""
        if self._store.traits.local or not self.trial:
            return False
        await asyncio.sleep(self.trial)
        return True

    @property
    def usable(self) -> bool:
        """False if it was declared dead, its thread has ended, or it belongs to another event loop."""
        return self.dead is None and self._thread.is_alive() and asyncio.get_running_loop() is self._loop

    @property
    def alive(self) -> bool:
        return self.dead is None and clock() < self.deadline

    def _late(self, now: float) -> bool:
        """True if the last answered heartbeat is over two beats ago: then the silence of others proves nothing."""
        return now - (self.deadline - self.ttl) > 2 * self._beat

    async def ready(self) -> None:
        """Return once this worker is known to be alive; wait at most one TTL."""
        end = clock() + self.ttl
        while self.dead is None and clock() >= self.deadline:
            if not await set_within(self._renewed, end - clock()):
                raise Unavailable(f"worker {self.name} could not renew its heartbeat for {self.ttl} s; retry")
        if self.dead is not None:
            raise self.dead

    # In the thread

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stop.wait(self._beat):
                try:
                    self._loop.call_soon_threadsafe(self._turn)
                except RuntimeError:
                    return  # the event loop is closed, and the holders with it
                if clock() - self._moved <= self._max_block and not runner.run(self._renew()):
                    return

    async def _renew(self) -> bool:
        """Send one heartbeat. False ends the thread: declared dead, or the event loop is closed."""
        sent = clock()
        late = self._late(sent)  # stopped, or the machine slept
        try:
            [at] = await self._store.beat((), self.row)
        except SaveslotError:
            self._outage, self._up_since = True, clock()
            return True  # retry next time
        if not at:
            self.dead = LeaseLost(
                f"worker {self.name} missed its deadline; other workers may own its sessions: stop now"
            )
        elif late or clock() - sent > self._beat:
            # Other workers may have been cut off too: their silence proves nothing yet.
            self._outage, self._up_since = True, clock()
        self.deadline = sent + self.ttl
        self.beats += 1
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            return False
        return self.dead is None

    # In the event loop

    def _turn(self) -> None:
        self._moved = clock()

    def _on_deadline(self) -> None:
        """Tell the holders, unless a heartbeat moved the deadline."""
        left = self.deadline - clock()
        if left <= 0 and not self._doubted:
            self._doubted = True
            for holder in self.holders.values():
                holder.doubt()
        self._alarm = self._loop.call_later(left if left > 0 else self._beat, self._on_deadline)

    def _tell(self) -> None:
        self._renewed.set()
        self._renewed = asyncio.Event()
        if self.dead is not None:
            self._alarm.cancel()
            for holder in list(self.holders.values()):
                holder.lose(self.dead)
            self.holders.clear()
        elif self._doubted and clock() < self.deadline:
            self._doubted = False
            for holder in self.holders.values():
                holder.trust()
        if self.dead is None:
            self._tidy(self)


class Tenant(Worker):
    """The worker of one lease: not a process, but a row that requests renew, each at any server.

    What holds the lease is elsewhere and knows its deadline; here the store alone decides whether the lease counts.
    """

    def __init__(self, row: WorkerRow) -> None:
        self.name, self.row, self.ttl = row.name, row, row.ttl / 1_000_000
        self.holders, self.dead, self.strays, self.parting = {}, None, set(), {}

    @property
    def alive(self) -> bool:
        return True

    async def ready(self) -> None: ...
