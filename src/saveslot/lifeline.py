"""How others see this process: one worker row, renewed by a thread of its own.

The thread goes on while the event loop is busy with an agent's long call, up to `max_block`: a loop that stands still
for longer is taken for hung, and others may have its sessions. What one beat is worth is counted from before it was
sent, so this process knows that its time is over before anybody else does. From then on nothing is started; a beat
that gets through after all revives the row, unless somebody declared it dead meanwhile.
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
from saveslot.log import Worker
from saveslot.model import as_span
from saveslot.stores import Store

# Nobody who saw an outage declares others dead before the store was up for one TTL: they could not beat either.
NEVER = 1 << 60


def clock() -> float:
    """Seconds by a clock that nobody sets. It goes on while the machine sleeps, as the others' does."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def jittered(seconds: float) -> float:
    """Something near it, so that many who wait do not come all at once. (`random` would take 2 ms of every import.)"""
    return seconds * (0.75 + os.urandom(1)[0] / 512)


class Holder(Protocol):
    """Someone who depends on the worker being alive."""

    def doubt(self) -> None:
        """Its time is over; others may take the session now."""
        ...

    def trust(self) -> None:
        """A beat got through after all."""
        ...

    def lose(self, why: LeaseLost) -> None: ...


def checked(beat: float, ttl: float, max_block: float) -> dict[str, float]:
    """Three beats at least: one may get lost, and the next one must still be in time."""
    beat, ttl, max_block = as_span(beat, "worker_beat"), as_span(ttl, "worker_ttl"), as_span(max_block, "max_block")
    if not 0 < beat * 2.999 <= ttl:  # 3 * 0.1 is more than 0.3
        raise InvalidInput("worker_ttl", f"must be at least three beats of {beat} s, not {ttl} s")
    if max_block <= 0:
        raise InvalidInput("max_block", f"must be more than 0 s, not {max_block}")
    return {"beat": beat, "ttl": ttl, "max_block": max_block}


class Lifeline:
    def __init__(
        self, store: Store, tidy: Callable[[Lifeline], None], *, beat: float, ttl: float, max_block: float
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.row = Worker(os.urandom(16), self.name, round(ttl * 1_000_000), first=True)
        self.ttl = ttl
        self.holders: dict[bytes, Holder] = {}  # by lease
        self.dead: LeaseLost | None = None  # why, once others declared it so
        self.strays = False  # the store may say that this worker holds what it does not
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
        self._tidy = tidy  # lets strays go, in the event loop

    async def start(self) -> None:
        """Be there, for others to see, before anything is held."""
        self._loop = asyncio.get_running_loop()
        self._renewed = asyncio.Event()
        self._moved = sent = clock()
        await self._store.beat((), self.row)
        self.row.first = False
        self.beats, self.deadline, self._up_since = 1, sent + self.ttl, clock()
        self._outage = self._up_since - sent > self._beat
        self._alarm = self._loop.call_later(self.ttl, self._ring)
        try:
            self._thread.start()
        except RuntimeError:
            raise Unavailable("no thread can be started for this worker's beats: is the interpreter exiting?") from None

    async def leave(self) -> None:
        """Stop beating. What is still held is an orphan at once."""
        self._stop.set()
        self._alarm.cancel()
        await self._loop.run_in_executor(None, self._thread.join)
        if self.dead is None:
            self.row.ttl = 0
            try:
                await self._store.beat((), self.row)
            except SaveslotError:
                return  # its time will run out all the same

    def forked(self) -> None:
        """In the child: the worker is its parent, and so is the owner of what is held."""
        self.dead = LeaseLost(FORKED)
        for holder in list(self.holders.values()):
            with suppress(RuntimeError):  # an event loop in debug mode minds being told by another thread
                holder.lose(self.dead)
        self.holders.clear()

    @property
    def patience(self) -> int:
        """How many microseconds ago another worker's time must have run out for this one to declare it dead."""
        now = clock()
        up = now - self._up_since
        if self._late(now):
            return NEVER  # an outage may have begun, and the next beat is still stuck in it
        if up >= self.ttl:
            return 0
        return NEVER if self._outage else round((self.ttl - up) * 1_000_000)

    @property
    def usable(self) -> bool:
        """False for one that was declared dead, whose thread is gone, or whose event loop is of the past."""
        return self.dead is None and self._thread.is_alive() and asyncio.get_running_loop() is self._loop

    @property
    def alive(self) -> bool:
        return self.dead is None and clock() < self.deadline

    def _late(self, now: float) -> bool:
        """True when the last beat that was answered is two or more ago: then others' silence proves nothing either."""
        return now - (self.deadline - self.ttl) > 2 * self._beat

    async def ready(self) -> None:
        """Return once this worker is known to be alive. Nobody waits for longer than a TTL."""
        end = clock() + self.ttl
        while self.dead is None and clock() >= self.deadline:
            try:
                await asyncio.wait_for(self._renewed.wait(), end - clock())
            except TimeoutError:
                raise Unavailable(
                    f"worker {self.name} could not tell the store for {self.ttl} s that it is alive; retry"
                ) from None
        if self.dead is not None:
            raise self.dead

    # In the thread

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stop.wait(self._beat):
                try:
                    self._loop.call_soon_threadsafe(self._turn)
                except RuntimeError:
                    return  # the event loop is closed: whoever held sessions is gone
                if clock() - self._moved <= self._max_block and not runner.run(self._beaten()):
                    return

    async def _beaten(self) -> bool:
        """One beat; False once others have declared this worker dead."""
        sent = clock()
        late = self._late(sent)  # stopped, or the machine slept
        try:
            [at] = await self._store.beat((), self.row)
        except SaveslotError:
            self._outage, self._up_since = True, clock()
            return True
        if not at:
            self.dead = LeaseLost(f"worker {self.name} was silent for too long; others may have its sessions: stop now")
        elif late or clock() - sent > self._beat:
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

    def _ring(self) -> None:
        """At the deadline, unless it was moved."""
        left = self.deadline - clock()
        if left <= 0 and not self._doubted:
            self._doubted = True
            for holder in self.holders.values():
                holder.doubt()
        self._alarm = self._loop.call_later(left if left > 0 else self._beat, self._ring)

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
        if self.strays and self.dead is None:
            self._tidy(self)
