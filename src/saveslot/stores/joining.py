"""Heads for many callers at once: who comes while questions are under way shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from saveslot.errors import InvalidInput, Unavailable
from saveslot.log import Head, Ref
from saveslot.metrics import Counters

# Questions under way at a time. One that was sent is never joined: its answer may be older than the asker's call.
LANES = 2
# No question names more, except one caller's own.
MANY = 256

Ask = Callable[[Sequence[Ref]], Awaitable[list[Head | None]]]
Waiting = tuple[Sequence[Ref], "asyncio.Future[list[Head | None]]", float]  # and when it came


class Joining:
    def __init__(self, ask: Ask, counters: Counters) -> None:
        self._ask = ask
        self._counters = counters
        self._busy = 0
        self._forming: list[Waiting] = []
        self._lanes: set[asyncio.Task[None]] = set()

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        if self._busy >= LANES:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[list[Head | None]] = loop.create_future()
            self._forming.append((refs, answer, loop.time()))
            return await answer
        self._busy += 1
        try:
            return await self._sent(refs)
        finally:
            self._freed()

    async def _sent(self, refs: Sequence[Ref]) -> list[Head | None]:
        began = asyncio.get_running_loop().time()
        try:
            return await self._ask(refs)
        except Unavailable as exc:  # who waited behind it all that time need not wait as long once more
            behind = [item for item in self._forming if item[2] <= began]
            self._forming = [item for item in self._forming if item[2] > began]
            for _, answer, _ in behind:
                if not answer.done():
                    answer.set_exception(exc)
            raise

    def _freed(self) -> None:
        """The lane goes on with what has formed, or is free."""
        batch: list[Waiting] = []
        many = 0
        while self._forming and (not batch or many + len(self._forming[0][0]) <= MANY):
            batch.append(self._forming.pop(0))
            many += len(batch[-1][0])
        if not batch:
            self._busy -= 1
            return
        self._counters.shared += len(batch) - 1
        lane = asyncio.ensure_future(self._run(batch))
        self._lanes.add(lane)
        lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        self._freed()

    async def _run(self, batch: list[Waiting]) -> None:
        try:
            heads = await self._sent([ref for refs, *_ in batch for ref in refs])
        except Exception as exc:  # noqa: BLE001  (each caller gets it)
            if isinstance(exc, InvalidInput) and len(batch) > 1:  # what one of them asks must not fail the others
                for one in batch:
                    await self._run([one])
                return
            for _, answer, _ in batch:
                if not answer.done():
                    answer.set_exception(exc)
        else:
            start = 0
            for refs, answer, _ in batch:
                if not answer.done():
                    answer.set_result(heads[start : start + len(refs)])
                start += len(refs)
