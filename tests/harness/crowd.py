"""Several callers at once, some of them cancelled: at any turn of the event loop, even in the turn of an answer.

For state machines. One call at a time never shows what happens between two: a lock passed on to a
caller that has just been cancelled, a state that ran ahead of a write that never arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from saveslot.errors import SaveslotError
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.log import Group, Verdict

T = TypeVar("T")

# At most this many turns of the loop before a write lands, and again before it is answered.
TURNS = 4


class Tardy(PassingStore):
    """A store whose writes land some turns of the loop after they were sent, and are answered some turns later.

    After its caller was cancelled a write lands or not: with a real store the caller does not know which.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.pace: Random | None = None  # None: no delays
        self.coming: list[Callable[[], None]] = []  # started when the next write is answered
        self.leaving: list[asyncio.Task[Any]] = []  # cancelled then
        self._under_way: set[asyncio.Task[Any]] = set()

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        if self.pace is None:
            return await self._inner.append(groups, **how)
        arrives, before, behind = self.pace.random() < 0.7, self.pace.randint(0, TURNS), self.pace.randint(0, TURNS)
        try:
            await turns(before)
        except asyncio.CancelledError:
            if arrives:
                self._under_way.add(asyncio.create_task(_awaited(lambda: self._inner.append(groups, **how))))
            raise
        verdicts = await self._inner.append(groups, **how)
        await turns(behind)
        self.turn()
        return verdicts

    def turn(self) -> None:
        """Start some callers in the turn in which others are cancelled, before those tasks run."""
        coming, self.coming, leaving, self.leaving = self.coming, [], self.leaving, []
        for come in coming:
            come()
        for task in leaving:
            task.cancel()

    async def quiet(self) -> None:
        """Delay nothing any more, and wait for writes under way."""
        self.pace, self.leaving = None, []
        await asyncio.gather(*self._under_way)
        self._under_way.clear()
        await self._inner.append([])


async def turns(many: int) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


async def crowd(
    calls: Sequence[Callable[[], Awaitable[Any]]], stores: Sequence[Tardy], pick: Random, patience: float
) -> list[Any]:
    """Each call's result, error or `CancelledError`, in order. Raises if a call is never answered."""
    tasks: dict[int, asyncio.Task[Any]] = {}
    leaving: list[asyncio.Task[None]] = []

    def come(number: int) -> None:
        tasks[number] = asyncio.create_task(_awaited(calls[number]))
        match pick.randint(0, 5):
            case 0 | 1:
                leaving.append(asyncio.create_task(_leave(tasks[number], pick.randint(0, 3 * TURNS))))
            case 2 | 3:
                pick.choice(stores).leaving.append(tasks[number])
            case _:
                pass

    for store in stores:
        store.pace = pick
    for number in range(len(calls)):
        if pick.random() < 0.3:
            pick.choice(stores).coming.append(partial(come, number))
        else:
            come(number)
            await turns(pick.choice((0, 0, 1, 1, 2, 4)))
    await ended([*tasks.values(), *leaving], patience)
    for store in stores:
        store.turn()
    await ended([*tasks.values(), *leaving], patience)
    return [_told(tasks[number]) for number in range(len(calls))]


async def ended(tasks: Iterable[asyncio.Future[Any]], patience: float) -> None:
    """Wait for all of them; raise if none finishes within `patience` seconds."""
    while going := [task for task in tasks if not task.done()]:
        done, _ = await asyncio.wait(going, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        assert done, f"{len(going)} calls at once were never answered"


async def answered(call: Awaitable[T], patience: float) -> T:
    task = asyncio.ensure_future(call)
    await ended([task], patience)
    return task.result()


async def _leave(task: asyncio.Task[Any], many: int) -> None:
    await turns(many)
    task.cancel()


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def _told(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    if error is not None and not isinstance(error, SaveslotError):
        raise error
    return error or task.result()
