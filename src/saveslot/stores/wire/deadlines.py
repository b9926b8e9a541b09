"""`asyncio.timeout` for many calls that are rarely late: one timer for all of them, in one event loop."""

from __future__ import annotations

import asyncio
from types import TracebackType

from saveslot.stores.wire.loops import running


class Deadlines:
    def __init__(self) -> None:
        self._open: set[Within] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float | None) -> Within:
        """Context manager: a task that stays inside for longer is cancelled, and `TimeoutError` is raised."""
        return Within(self, seconds)

    def begin(self, one: Within) -> None:
        self._open.add(one)
        if self._timer is None or one.when < self._timer.when():
            self._wake(one.when)

    def end(self, one: Within) -> None:
        """The timer is left alone: it finds nothing to do, or is set again for the calls still open."""
        self._open.discard(one)

    def _wake(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = running().call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        now = running().time()
        for one in [one for one in self._open if one.when <= now]:
            self.end(one)
            one.expire()
        if self._open:
            self._wake(min(one.when for one in self._open))


class Within:
    __slots__ = ("_among", "_cancelling", "_seconds", "_task", "expired", "when")

    def __init__(self, among: Deadlines, seconds: float | None) -> None:
        self._among, self._seconds = among, seconds
        self.expired = False

    def __enter__(self) -> None:
        loop = running()
        task = asyncio.current_task(loop)
        if self._seconds is None or task is None:
            return
        self._task, self._cancelling = task, task.cancelling()
        self.when = loop.time() + self._seconds
        self._among.begin(self)

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self._among.end(self)
        # If another caller cancelled the task too, its cancellation continues.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from exc
