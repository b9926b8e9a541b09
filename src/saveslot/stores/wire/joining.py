"""Answers for many callers at once: callers that arrive while two queries are under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from saveslot.errors import InvalidInput, Unavailable
from saveslot.stores.wire.metrics import Counters

# Queries at a time. No caller joins one that was sent: its answer may be older than the call.
LANES = 2
# Refs per query, unless a single caller passes more.
MANY = 256

Q = TypeVar("Q")
A = TypeVar("A")
Waiting = tuple[Sequence[Q], "asyncio.Future[list[A]]", float]  # and its arrival


class Joining(Generic[Q, A]):
    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[list[A]]], counters: Counters) -> None:
        self._ask = ask
        self._counters = counters
        self._busy = 0
        self._forming: list[Waiting[Q, A]] = []
        self._lanes: set[asyncio.Task[None]] = set()

    async def answers(self, questions: Sequence[Q]) -> list[A]:
        """The answers to these questions, in their order."""
        if self._busy >= LANES:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[list[A]] = loop.create_future()
            self._forming.append((questions, answer, loop.time()))
            return await answer
        self._busy += 1
        try:
            return await self._sent(questions)
        finally:
            self._freed()

    async def _sent(self, questions: Sequence[Q]) -> list[A]:
        began = asyncio.get_running_loop().time()
        try:
            return await self._ask(questions)
        except Unavailable as exc:  # callers that waited all that time do not wait as long again
            behind = [item for item in self._forming if item[2] <= began]
            self._forming = [item for item in self._forming if item[2] > began]
            for _, answer, _ in behind:
                if not answer.done():
                    answer.set_exception(exc)
            raise

    def _freed(self) -> None:
        """Send the questions that have gathered, or free the lane."""
        batch: list[Waiting[Q, A]] = []
        many = 0
        while self._forming and (not batch or many + len(self._forming[0][0]) <= MANY):
            batch.append(self._forming.pop(0))
            many += len(batch[-1][0])
        if not batch:
            self._busy -= 1
            return
        self._counters.shared += len(batch) - 1
        lane = asyncio.get_running_loop().create_task(self._run(batch), context=Context())  # of no caller
        self._lanes.add(lane)
        lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        self._freed()

    async def _run(self, batch: list[Waiting[Q, A]]) -> None:
        try:
            answers = await self._sent([question for questions, *_ in batch for question in questions])
        except Exception as exc:  # noqa: BLE001  (each caller gets it)
            if isinstance(exc, InvalidInput) and len(batch) > 1:  # one caller's bad ref must not fail the others
                for one in batch:
                    await self._run([one])
                return
            for _, answer, _ in batch:
                if not answer.done():
                    answer.set_exception(exc)
        else:
            start = 0
            for questions, answer, _ in batch:
                if not answer.done():
                    answer.set_result(answers[start : start + len(questions)])
                start += len(questions)
