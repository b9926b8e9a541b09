"""Cached answers, a few seconds old at most, for lists and dashboards that poll.

`strong`: the answer includes every write acknowledged before the call. `cached`: the answer is at most `max_age`
seconds old, and comes from this process's memory until then.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec

from saveslot.errors import InvalidInput
from saveslot.values.checks import Span, as_span
from saveslot.values.log import Counts, Head, Place, Query, Ref, Row, Totals

Level = Literal["strong", "cached"]
T = TypeVar("T")

# Default age limit of a cached answer, in seconds: young enough for people.
MAX_AGE = 5.0
# Approximate bytes of answers kept; beyond that the oldest are dropped.
ROOM = 16 << 20
# Bytes of a row besides its context, metadata and labels.
EACH = 500


class Questions(Protocol):
    """The reads of a store that lists and dashboards need."""

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]: ...

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]: ...

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts: ...


class Answer:
    __slots__ = ("started", "task", "weight")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.started = time.monotonic()
        self.task = task
        self.weight = EACH


class CachedAnswers:
    """A store's answers, by question. A question under way, and young enough, is not sent twice."""

    def __init__(self, store: Questions) -> None:
        self.hits = self.misses = 0
        self._store = store
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._weight = 0

    def at(self, level: Level, max_age: Span) -> Questions:
        """The store, answering at that level."""
        if level not in {"strong", "cached"}:
            raise InvalidInput("level", f"{level!r} is not strong or cached")
        oldest = as_span(max_age, "max_age")
        return CachedStore(self, self._store, oldest) if level == "cached" else self._store

    async def answer(self, question: Hashable, max_age: float, ask: Callable[[], Awaitable[T]]) -> T:
        known = self._answers.get(question)
        if known is None or time.monotonic() - known.started > max_age or known.task.get_loop() is not _loop():
            self.misses += 1
            known = Answer(asyncio.ensure_future(_asked(ask)))
            self._drop(question)
            self._answers[question] = known
            self._weight += known.weight
            known.task.add_done_callback(lambda _: self._arrived(question, known))
        else:
            self.hits += 1
        return await asyncio.shield(known.task)  # a cancelled caller does not cancel the others

    def _arrived(self, question: Hashable, answer: Answer) -> None:
        task = answer.task
        failed = task.cancelled() or task.exception() is not None
        if self._answers.get(question) is not answer:
            return
        if failed:
            self._drop(question)
            return
        self._weight += _weight(task.result()) - answer.weight
        answer.weight = _weight(task.result())
        while self._weight > ROOM:
            self._drop(next(iter(self._answers)))

    def _drop(self, question: Hashable) -> None:
        gone = self._answers.pop(question, None)
        if gone is not None:
            self._weight -= gone.weight


class CachedStore:
    """A store whose answers may be `max_age` seconds old."""

    def __init__(self, answers: CachedAnswers, store: Questions, max_age: float) -> None:
        self._answers, self._store, self._max_age = answers, store, max_age

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        return await self._answers.answer(("heads", *refs), self._max_age, lambda: self._store.heads(refs))

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        question = ("find", msgspec.json.encode(query), after, limit)
        return await self._answers.answer(question, self._max_age, lambda: self._store.find(query, after, limit))

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        question = ("count", msgspec.json.encode(query), totals)
        return await self._answers.answer(question, self._max_age, lambda: self._store.count(query, totals=totals))


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _weight(answer: object) -> int:
    if not isinstance(answer, list):
        return EACH
    return EACH + sum(EACH + _text(item) for item in cast("list[object]", answer))


def _text(item: object) -> int:
    """Bytes of an item that vary: the context, metadata and labels of a row, or a name."""
    row = item.row if isinstance(item, Head) else item
    return len(row.body) if isinstance(row, Row) else len(row) if isinstance(row, str) else 0
