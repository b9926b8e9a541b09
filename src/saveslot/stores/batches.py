"""Group commit for a store that is reached over a wire: what comes while a batch is under way forms the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from saveslot.errors import Unavailable
from saveslot.log import Group, Verdict
from saveslot.metrics import Counters

# Two batches at a time: while one waits for its sync the next is planned. A third brought nothing.
LANES = 2
# A batch: so many groups, so many bytes of frames.
MANY, LARGE = 256, 1 << 20

Land = Callable[[list[Group]], Awaitable[list[Verdict]]]
Waiting = tuple[Group, "asyncio.Future[Verdict]", float]  # and when it came


class Batches:
    def __init__(self, land: Land, counters: Counters) -> None:
        self._land = land
        self._counters = counters
        self._waiting: list[Waiting] = []
        self._busy: set[bytes] = set()  # sessions with a group under way: the next one waits for its verdict
        self._lanes: set[asyncio.Task[None]] = set()

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        """Cancelling abandons the answers; what was handed over is written all the same."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        answers: list[Waiting] = [(group, loop.create_future(), now) for group in groups]
        self._waiting += answers
        self._start()
        if len(answers) == 1:  # quicker than gathering
            return [await answers[0][1]]
        return await asyncio.gather(*(answer for _, answer, _ in answers))

    async def close(self) -> None:
        while self._lanes:
            await asyncio.wait(self._lanes)

    def _start(self) -> None:
        while self._waiting and len(self._lanes) < LANES:
            batch = self._next()
            if not batch:
                return
            lane = asyncio.ensure_future(self._run(batch))
            self._lanes.add(lane)
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        self._start()

    def _next(self) -> list[Waiting]:
        """One group a session, and none of a session whose last one is still under way."""
        batch: list[Waiting] = []
        left: list[Waiting] = []
        taken: set[bytes] = set()
        size = 0
        for item in self._waiting:
            group = item[0]
            full = len(batch) == MANY or size > LARGE
            if full or group.key in self._busy or group.key in taken:
                left.append(item)
                taken.add(group.key)  # the order within a session stays
            else:
                batch.append(item)
                taken.add(group.key)
                size += sum(len(entry.frame or b"") for entry in group.entries)
        self._waiting = left
        self._busy |= {group.key for group, *_ in batch}
        return batch

    async def _run(self, batch: list[Waiting]) -> None:
        self._counters.batches.add(len(batch))
        began = asyncio.get_running_loop().time()
        try:
            verdicts = await self._land([group for group, *_ in batch])
        except Exception as exc:  # noqa: BLE001  (each caller gets it)
            for _, answer, _ in batch + (self._behind(began) if isinstance(exc, Unavailable) else []):
                if not answer.done():
                    answer.set_exception(exc)
        else:
            for (_, answer, _), verdict in zip(batch, verdicts, strict=True):
                if not answer.done():
                    answer.set_result(verdict)
        finally:
            self._busy -= {group.key for group, *_ in batch}

    def _behind(self, began: float) -> list[Waiting]:
        """Take out who waited behind a batch all the time that it took: nobody waits so long again and again."""
        behind = [item for item in self._waiting if item[2] <= began]
        self._waiting = [item for item in self._waiting if item[2] > began]
        return behind
