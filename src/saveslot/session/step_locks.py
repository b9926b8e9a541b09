"""One caller of a step at a time. A caller that would wait for ever is refused instead."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from saveslot.errors import InvalidInput


class StepLock:
    """Held while a step runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._turn: Turn | None = None

    async def acquire(self, thread: int | None = None) -> Turn:
        """Wait for other callers. `thread` is a synchronous caller's."""
        inside = INSIDE.get()
        if self in inside:
            raise InvalidInput("name", f"step {self._name!r} calls itself")
        if thread is not None and self._turn is not None and self._turn.thread == thread:
            self._turn.end()  # its thread is here, not inside the step: it was interrupted before it could end it
        if self._needs(inside):
            raise InvalidInput("name", f"step {self._name!r} waits for a step that called it")
        wait = inside, self
        _waits.append(wait)
        try:
            await self._lock.acquire()
        finally:
            _waits.remove(wait)
        self._turn = Turn(self, thread)
        return self._turn

    def end(self, turn: Turn) -> None:
        if self._turn is turn:
            self._turn = None
            self._lock.release()

    def _needs(self, inside: frozenset[StepLock]) -> bool:
        """True if the step that runs now waits, directly or not, for one of these to end."""
        reached: set[StepLock] = {self}
        pending: list[StepLock] = [self]
        while pending:
            lock = pending.pop()
            following = {wanted for within, wanted in list(_waits) if lock in within} - reached
            if following & inside:
                return True
            reached |= following
            pending.extend(following)
        return False


class Turn:
    """One caller's time with the lock."""

    def __init__(self, lock: StepLock, thread: int | None) -> None:
        self.lock = lock
        self.thread = thread

    def end(self) -> None:
        """Let the next caller proceed. Does nothing a second time."""
        self.lock.end(self)


# Locks of the steps whose functions this task is running.
INSIDE: ContextVar[frozenset[StepLock]] = ContextVar("inside", default=frozenset())
# Waiting callers: the steps that each is inside of, and the one that it waits for.
_waits: list[tuple[frozenset[StepLock], StepLock]] = []
