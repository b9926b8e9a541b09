"""How new an answer must be. `strong`: nothing that anyone was acknowledged before the call is missing from it.

`session`: never older than what this caller saw or wrote. Answered as `strong`, which is that and more: one question
to the database, shared with whoever asks at the same time. `cached`: no older than `max_age` seconds, for lists and
dashboards that look again and again; given from this process's memory while it is young enough.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from saveslot.errors import InvalidInput
from saveslot.log import Counts, Head, Place, Query, Ref, Row
from saveslot.model import as_span

Level = Literal["strong", "session", "cached"]
T = TypeVar("T")

# A list that is looked at by people may be so many seconds old, unless its caller says otherwise.
MAX_AGE = 5.0
# Answers that are kept: so many bytes, as far as they can be told; the oldest make room.
ROOM = 16 << 20
# What a row weighs beside its context, metadata and labels.
EACH = 500


class Questions(Protocol):
    """Those of a store's verbs that lists and dashboards need."""

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]: ...

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]: ...

    async def count(self, query: Query) -> Counts: ...


class Answer:
    __slots__ = ("asked", "task", "weight")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.asked = time.monotonic()
        self.task = task
        self.weight = EACH


class Recent:
    """Answers of a store, by question. Who asks what is being asked already, since not too long, waits for that."""

    def __init__(self, store: Questions) -> None:
        self.hits = self.misses = 0
        self._store = store
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._weight = 0

    def at(self, level: Level, max_age: float) -> Questions:
        """The store as it answers at that level."""
        if level not in {"strong", "session", "cached"}:
            raise InvalidInput("level", f"{level!r} is none of strong, session, cached")
        oldest = as_span(max_age, "max_age")
        return Young(self, self._store, oldest) if level == "cached" else self._store

    async def answer(self, question: Hashable, max_age: float, ask: Callable[[], Awaitable[T]]) -> T:
        known = self._answers.get(question)
        if known is None or time.monotonic() - known.asked > max_age or known.task.get_loop() is not _loop():
            self.misses += 1
            known = Answer(asyncio.ensure_future(_asked(ask)))
            self._drop(question)
            self._answers[question] = known
            self._weight += known.weight
            known.task.add_done_callback(lambda _: self._arrived(question, known))
        else:
            self.hits += 1
        return await asyncio.shield(known.task)  # who leaves takes nothing from the others

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


class Young:
    """A store whose answers may be a little old."""

    def __init__(self, recent: Recent, store: Questions, max_age: float) -> None:
        self._recent, self._store, self._max_age = recent, store, max_age

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        return await self._recent.answer(("heads", *refs), self._max_age, lambda: self._store.heads(refs))

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        question = ("find", msgspec.json.encode(query), after, limit)
        return await self._recent.answer(question, self._max_age, lambda: self._store.find(query, after, limit))

    async def count(self, query: Query) -> Counts:
        question = ("count", msgspec.json.encode(query))
        return await self._recent.answer(question, self._max_age, lambda: self._store.count(query))


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _weight(answer: list[Head | None] | list[Row] | Counts) -> int:
    if isinstance(answer, Counts):
        return EACH
    rows = [item.row if isinstance(item, Head) else item for item in answer if item is not None]
    return EACH + sum(EACH + len(row.body) for row in rows)
