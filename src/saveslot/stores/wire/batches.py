"""Group commit for a store over a network: groups that arrive while a batch is under way form the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, cast

from saveslot.errors import Unavailable
from saveslot.stores.wire.loops import running
from saveslot.stores.wire.metrics import Counters
from saveslot.values.log import Group, Verdict

# Batches at a time: while one waits for its sync, the next is planned. A third gained nothing.
LANES = 2
# Groups, and bytes of frames, per batch.
MANY, LARGE = 256, 1 << 20
# More waiting groups than this are split among the free lanes: the server works on one part while the other arrives.
WORTH_SPLITTING = 16

Land = Callable[[list[Group]], Awaitable[list[Verdict]]]
Waiting = tuple[Group, "asyncio.Future[Verdict]", float]  # and its arrival


class Batches:
    def __init__(self, land: Land, counters: Counters) -> None:
        self._land = land
        self._counters = counters
        self._waiting: list[Waiting] = []
        self._busy: set[bytes] = set()  # sessions with a group under way: their next one waits for its verdict
        self._under_way = 0  # batches
        self._starting: set[asyncio.Task[None]] = set()  # lanes that have not taken their batch yet
        self._crowd = False  # whether the last batch had more than one group
        self._lanes: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Event | None = None

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        """Cancelling abandons the answers; the groups are written all the same."""
        loop = running()
        now = loop.time()
        if len(groups) == 1:
            if not (self._under_way or self._waiting or self._crowd):
                return await self._alone(groups[0], now)
            answer: asyncio.Future[Verdict] = loop.create_future()
            self._waiting.append((groups[0], answer, now))
            if self._under_way < LANES:
                self._start()
            return [await answer]  # quicker than gathering
        answers: list[Waiting] = [(group, loop.create_future(), now) for group in groups]
        self._waiting += answers
        self._start()
        return await asyncio.gather(*(answer for _, answer, _ in answers))

    async def together(self, groups: Sequence[Group], land: Land) -> list[Verdict]:
        """A batch of exactly these groups. Cancelling abandons the answers."""
        self._under_way += 1
        self._counters.batches.add(len(groups))
        lane = running().create_task(self._whole(list(groups), land))
        self._lanes.add(lane)  # the event loop alone would forget it
        lane.add_done_callback(self._lanes.discard)
        return await asyncio.shield(lane)

    async def _whole(self, groups: list[Group], land: Land) -> list[Verdict]:
        try:
            return await land(groups)
        finally:
            self._under_way -= 1
            self._start(Context())
            if self._closing is not None and not self._under_way:
                self._closing.set()

    async def close(self) -> None:
        while self._under_way:
            self._closing = asyncio.Event()
            await self._closing.wait()

    async def _alone(self, group: Group, began: float) -> list[Verdict]:
        """A batch of one, in the caller's own task: that saves two turns of the event loop."""
        self._under_way += 1
        self._busy.add(group.key)
        self._counters.batches.add(1)
        try:
            return await self._land([group])
        except asyncio.CancelledError:
            # How far it got is unknown. Sent again, it lands or is recognised as already there.
            abandoned: asyncio.Future[Verdict] = running().create_future()
            abandoned.cancel()
            self._waiting.insert(0, (group, abandoned, began))
            raise
        except Unavailable as exc:
            _fail(self._overdue(began), exc)
            raise
        finally:
            self._end([group])

    def _start(self, context: Context | None = None) -> None:
        """Start lanes. Each takes its batch in its own turn: by then, callers woken together have arrived.

        By default in the caller's context: its trace is that of the batch, which has its group.
        """
        while self._under_way < LANES and len(self._waiting) > len(self._starting) * WORTH_SPLITTING:
            self._under_way += 1
            lane = running().create_task(self._run(), context=context)
            self._starting.add(lane)
            self._lanes.add(lane)  # the event loop alone would forget it
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if lane in self._starting:  # it was cancelled before its turn came
            self._starting.discard(lane)
            self._end([])

    def _end(self, groups: list[Group]) -> None:
        self._under_way -= 1
        self._busy.difference_update([group.key for group in groups])
        if groups:
            self._start(Context())  # the batch that has ended was of other callers
        if self._closing is not None and not self._under_way:
            self._closing.set()

    def _next(self) -> list[Waiting]:
        """The next batch: at most one group per session, and none of a session with a group under way."""
        batch: list[Waiting] = []
        left: list[Waiting] = []
        size, many = 0, min(MANY, -(-len(self._waiting) // len(self._starting)))
        for n, item in enumerate(self._waiting):
            if len(batch) == many or size > LARGE:
                left += self._waiting[n:]
                break
            group = item[0]
            if group.key in self._busy:
                left.append(item)
                continue
            self._busy.add(group.key)
            batch.append(item)
            for entry in group.entries:
                if entry.frame is not None:
                    size += len(entry.frame)
        self._waiting = left
        return batch

    async def _run(self) -> None:
        batch = self._next()
        self._starting.discard(cast("asyncio.Task[None]", asyncio.current_task(running())))
        groups = [item[0] for item in batch]
        if batch:
            self._crowd = len(batch) > 1
            self._counters.batches.add(len(batch))
            self._start()
        began = running().time()
        try:
            verdicts = await self._land(groups) if batch else []
        except Exception as exc:  # noqa: BLE001  (each caller gets it)
            _fail(batch + (self._overdue(began) if isinstance(exc, Unavailable) else []), exc)
        else:
            for (_, answer, _), verdict in zip(batch, verdicts, strict=True):
                if not answer.done():
                    answer.set_result(verdict)
        finally:
            self._end(groups)

    def _overdue(self, began: float) -> list[Waiting]:
        """Remove and return the groups that waited for most of a failed batch: they must not wait as long again."""
        halfway = (began + running().time()) / 2
        overdue = [item for item in self._waiting if item[2] <= halfway]
        self._waiting = [item for item in self._waiting if item[2] > halfway]
        return overdue


def _fail(waiting: list[Waiting], exc: Exception) -> None:
    for _, answer, _ in waiting:
        if not answer.done():
            answer.set_exception(exc)
