"""The benchmark shapes, for any store. `bench/` runs the same ones on peers.

    whole   long session: 1,000 turns of 1.49 KB, saving the whole state each time
    append  the same with `append=`
    single  one session, checkpoints of 1 KB, one after another
    crowd   64 sessions at once
    resume  resume of the long session by a fresh manager

The text is seeded random words: the same in every run, and about 2x compressible, like agents' prose.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import accumulate
from time import perf_counter
from typing import Any

import msgspec

from saveslot.manager import SessionManager
from saveslot.stores import Store, open_store
from saveslot.values.ids import fresh_id

Message = dict[str, str]
State = dict[str, list[Message]]
# Called by a shape with the session's number, the new message, and the whole state that includes it.
Save = Callable[[int, Message, State], Awaitable[object]]
Progress = Callable[[str, int, int], None]  # shape, checkpoints done, checkpoints in all

# Distinct small states, used in turn: never the same one twice in a row.
POOL = 256


class Sizes(msgspec.Struct, frozen=True):
    turns: int = 1000
    turn_bytes: int = 1490
    small: int = 2000
    small_bytes: int = 1000
    sessions: int = 64
    each: int = 150
    resumes: int = 9


QUICK = Sizes(turns=200, small=300, each=20, resumes=3)


class Series(msgspec.Struct, frozen=True):
    """The time of each call in ms, and of all together in seconds."""

    ms: list[float]
    seconds: float

    @property
    def per_second(self) -> float:
        return len(self.ms) / self.seconds

    @property
    def p50(self) -> float:
        return percentile(self.ms, 50)

    @property
    def p99(self) -> float:
        return percentile(self.ms, 99)

    @property
    def first(self) -> Series:
        """The first tenth."""
        return _part(self.ms[: math.ceil(len(self.ms) / 10)])

    @property
    def last(self) -> Series:
        """The last tenth."""
        return _part(self.ms[-math.ceil(len(self.ms) / 10) :])

    def part(self, first: int, last: int) -> Series:
        return _part(self.ms[first:last])


class Report(msgspec.Struct, frozen=True):
    whole: Series
    whole_bytes: float  # stored per checkpoint
    appended: Series
    appended_bytes: float
    single: Series
    crowd: Series
    resume: Series


async def measure(url: str, sizes: Sizes | None = None, progress: Progress | None = None) -> Report:
    """Run all shapes on a store, in a namespace of their own, and purge it afterwards."""
    sizes, progress = sizes or Sizes(), progress or _silent
    store = await open_store(url, patient=False)
    try:
        bench = _Bench(store, f"bench-{fresh_id()}")
        try:
            await bench.create(sizes.sessions + 3)
            single = await one_by_one(bench.save, sizes, progress)
            crowd = await at_once(bench.save, sizes, progress)
            whole, whole_bytes = await bench.weighed(sizes.sessions, bench.save, "whole", sizes, progress)
            appended, appended_bytes = await bench.weighed(sizes.sessions + 1, bench.append, "append", sizes, progress)
            resume = await _resume(url, bench, sizes.sessions, sizes.resumes)
        finally:
            await bench.remove()
    finally:
        await store.close()
    return Report(whole, whole_bytes, appended, appended_bytes, single, crowd, resume)


# The shapes: loops around a `save`, of Saveslot or of a peer


async def long_session(
    save: Save, sizes: Sizes, progress: Progress, *, shape: str = "whole", session: int = 0
) -> Series:
    """A session that grows by one message per turn."""
    state: State = {"messages": []}
    ms: list[float] = []
    for turn in range(sizes.turns):
        new = message(turn, sizes.turn_bytes)
        state["messages"].append(new)
        start = perf_counter()
        await save(session, new, state)
        ms.append((perf_counter() - start) * 1000)
        progress(shape, turn + 1, sizes.turns)
    return _part(ms)


async def one_by_one(save: Save, sizes: Sizes, progress: Progress) -> Series:
    """Small states of one session, each saved once the previous one is durable."""
    pool = [message(n, sizes.small_bytes) for n in range(POOL)]
    ms: list[float] = []
    for n in range(sizes.small):
        new = pool[n % POOL]
        start = perf_counter()
        await save(0, new, {"messages": [new]})
        ms.append((perf_counter() - start) * 1000)
        progress("single", n + 1, sizes.small)
    return _part(ms)


async def at_once(save: Save, sizes: Sizes, progress: Progress) -> Series:
    """Small states of many sessions: one after another within a session, all sessions at once."""
    pool = [message(n, sizes.small_bytes) for n in range(POOL)]
    ms: list[float] = []
    done = 0

    async def run(session: int) -> None:
        nonlocal done
        for n in range(sizes.each):
            new = pool[(session + n) % POOL]
            start = perf_counter()
            await save(session, new, {"messages": [new]})
            ms.append((perf_counter() - start) * 1000)
        done += sizes.each
        progress("crowd", done, sizes.sessions * sizes.each)

    start = perf_counter()
    await asyncio.gather(*map(run, range(sizes.sessions)))
    return Series(ms, perf_counter() - start)


# Saveslot as the `save`


class _Bench:
    """Sessions in a namespace of their own."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.namespace = namespace
        self.ids: list[str] = []
        self.store = store
        self._manager = SessionManager(store=store, namespace=namespace)

    async def create(self, count: int) -> None:
        for _ in range(count):
            self.ids.append((await self._manager.create_session("benchmark")).session_id)

    async def save(self, session: int, _new: Message, state: State) -> object:
        return await self._manager.checkpoint(self.ids[session], "turn", state)

    async def append(self, session: int, new: Message, _state: State) -> object:
        return await self._manager.checkpoint(self.ids[session], "turn", append={"messages": [new]})

    async def weighed(
        self, session: int, save: Save, shape: str, sizes: Sizes, progress: Progress
    ) -> tuple[Series, float]:
        """A long session, and the bytes stored per checkpoint."""
        before: int = (await self._manager.stats())["stored_bytes"]
        series = await long_session(save, sizes, progress, shape=shape, session=session)
        grown = (await self._manager.stats())["stored_bytes"] - before
        # A store that reuses free space grows by less than was written.
        frames: int = (await self._manager.summary(self.ids[session]))["stored_bytes"]
        return series, max(grown, frames) / sizes.turns

    async def remove(self) -> None:
        for session_id in self.ids:
            [head] = await self.store.heads([(self.namespace, session_id)])
            if head is not None and await self._manager.delete_session(session_id):
                await self.store.purge([head.row.key])


async def _resume(url: str, bench: _Bench, session: int, times: int) -> Series:
    """Open the store, find the newest checkpoint and decode it. A store in memory is not opened again."""
    ms: list[float] = []
    for _ in range(times):
        start = perf_counter()
        store = bench.store if url.startswith("memory") else await open_store(url)
        manager = SessionManager(store=store, namespace=bench.namespace)
        _ = (await manager.get_checkpoint(bench.ids[session])).data
        ms.append((perf_counter() - start) * 1000)
        if store is not bench.store:
            await store.close()
    return _part(ms)


# The states


def message(seed: int, size: int) -> Message:
    """A message whose JSON text takes `size` bytes."""
    dice = random.Random(seed)  # noqa: S311  (text, no secret)
    role = ("user", "assistant", "tool")[seed % 3]
    new = {"id": f"msg_{dice.getrandbits(96):024x}", "role": role, "content": ""}
    room = size - len(json.dumps(new, separators=(",", ":")))
    words, weights = _vocabulary()
    text = " ".join(dice.choices(words, cum_weights=weights, k=room // 4 + 1))
    new["content"] = text[: max(0, room)]
    return new


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Made-up words and their weights by Zipf's law: the n-th occurs half as often as the n/2-th."""
    dice = random.Random(0)  # noqa: S311
    sounds = [a + b for a in ("", *"bcdfghlmnprstvw", "st", "pr", "ch") for b in ("a", "e", "i", "o", "u", "er", "in")]
    words = ["".join(dice.choices(sounds, k=dice.choice((1, 2, 2, 3, 3, 4)))) for _ in range(4000)]
    return words, list(accumulate(1 / (n + 3) for n in range(len(words))))


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _part(ms: list[float]) -> Series:
    return Series(ms, sum(ms) / 1000)


def _silent(*_: Any) -> None: ...
