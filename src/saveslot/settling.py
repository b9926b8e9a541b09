"""Who asked for a write, and what if they left: the write goes on, and whoever asks for it again is told its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from saveslot.errors import Unavailable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Settles")

_order = count(1)


class Caller:
    """Whoever asked for a write. One that was cancelled, or told that the store is away, does not know what became of
    it, and may ask again.
    """

    def __init__(self) -> None:
        self.gone = 0  # when it left without knowing, in the order of such things
        self._began = next(_order)
        self._when_heard: list[Callable[[], None]] = []

    def leave(self) -> None:
        self.gone = next(_order)

    def repeats(self, other: Caller) -> bool:
        """True if it may be the other one, asking again; who came while the other was there is somebody else."""
        return 0 < other.gone < self._began

    def same(self, other: Caller) -> bool:
        """True if either may be the other: one that is on its way unheard may be overtaken by its repetition."""
        return self.repeats(other) or other.repeats(self)

    def when_heard(self, forget: Callable[[], None]) -> None:
        self._when_heard.append(forget)

    def heard(self) -> None:
        for forget in self._when_heard:
            forget()


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Settles(Protocol):
    running: set[asyncio.Future[Any]]  # writes under way


# Writes that go on without their caller, and what they were asked for.
_unheard: WeakKeyDictionary[asyncio.Future[Any], tuple[object, ...]] = WeakKeyDictionary()


async def _behind(earlier: list[asyncio.Future[Any]], work: Coroutine[Any, Any, R]) -> R:
    """Who asks again waits for the first try: overtaken, that would come later and be taken for another."""
    await asyncio.wait(earlier)
    return await work


def settled(
    verb: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[T, P], Coroutine[Any, Any, R]]:
    """Cancelling the caller abandons the answer, never the write; the same asked once more is told that answer."""

    @wraps(verb)
    async def run(self: T, *args: P.args, **kwargs: P.kwargs) -> R:
        caller = Caller()
        before = CALLER.set(caller)
        asked = (verb.__name__, *(told if isinstance(told, str) else id(told) for told in args[:2]))
        earlier = [task for task in self.running if _unheard.get(task) == asked]
        work = verb(self, *args, **kwargs)
        task = asyncio.ensure_future(_behind(earlier, work) if earlier else work)
        CALLER.reset(before)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        try:
            answer = await asyncio.shield(task)
        except (asyncio.CancelledError, Unavailable):
            caller.leave()
            _unheard[task] = asked
            raise
        caller.heard()
        return answer

    return run
