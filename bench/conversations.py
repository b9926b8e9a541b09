"""`python -m bench.conversations`: OpenAI Agents' SQLiteSession and SaveslotSession, side by side in one run.

Both sync each call to the disk. They take turns, so that a busy moment hits both; each figure is a median, and `times`
is how many times faster Saveslot is.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agents import SQLiteSession

import saveslot
from bench.machine import load
from saveslot.adapters.openai_agents import SaveslotSession

ROUNDS, PER_ROUND = 40, 25  # turns of one conversation: 2,000 items at the end
CROWD, CROWD_TURNS = 64, 20


def turn(n: int) -> list[Any]:
    return [{"role": "user", "content": f"{n} " + "x" * 300}, {"role": "assistant", "content": f"{n} " + "y" * 400}]


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


async def crowd(sessions: list[Any]) -> float:
    """Milliseconds per call of many conversations at once."""

    async def talk(session: Any) -> None:
        for n in range(CROWD_TURNS):
            await session.add_items(turn(n))

    return await timed(lambda: asyncio.gather(*map(talk, sessions))) / (CROWD * CROWD_TURNS)


async def measure(folder: Path) -> dict[str, tuple[float, float]]:
    path = str(folder / "theirs.db")
    async with saveslot.open(folder / "ours.db") as sessions:
        pair = [SQLiteSession("chat", path), SaveslotSession("chat", sessions=sessions)]
        figures: dict[str, list[list[float]]] = {}

        async def compare(what: str, count: int, call: Callable[[Any], Awaitable[Any]]) -> None:
            for session, samples in zip(pair, figures.setdefault(what, [[], []]), strict=True):
                for _ in range(count):
                    samples.append(await timed(lambda session=session: call(session)))

        for _ in range(ROUNDS):
            await compare("add_items of a turn", PER_ROUND, lambda session: session.add_items(turn(1)))
        for _ in range(20):
            await compare("get_items(limit=10) of 2,000", 5, lambda session: session.get_items(limit=10))
            await compare("get_items() of 2,000", 2, lambda session: session.get_items())
        for _ in range(10):
            await compare("pop_item", 5, lambda session: session.pop_item())
        medians = {what: (statistics.median(a), statistics.median(b)) for what, (a, b) in figures.items()}
        theirs = await crowd([SQLiteSession(f"c{n}", path) for n in range(CROWD)])
        ours = await crowd([SaveslotSession(f"c{n}", sessions=sessions) for n in range(CROWD)])
        medians[f"add_items, {CROWD} conversations at once"] = theirs, ours
        return medians


def main() -> None:
    before = load()
    with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
        figures = asyncio.run(measure(Path(folder)))
    print(f"load before: {before}\n\n{'ms':38}{'SQLiteSession':>14}{'Saveslot':>10}{'times':>7}")
    for what, (theirs, ours) in figures.items():
        print(f"{what:38}{theirs:14.3f}{ours:10.3f}{theirs / ours:7.1f}")


if __name__ == "__main__":
    main()
