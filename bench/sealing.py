"""The cost of encryption: the same shapes with and without a key, in turn.

python -m bench.sealing [url]           every shape, by CPU time (others may use the machine)
python -m bench.sealing pairs COUNT     64 sessions at once on SQLite, by throughput, in COUNT pairs; prints JSON
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import saveslot
from saveslot import SessionManager
from saveslot.cli.benchmark import Sizes, at_once, message

ROUNDS = 7
# Seconds after which no more pairs start.
LONGEST = 30.0
TURNS = [message(n, 1490) for n in range(400)]
SMALL = [message(n, 1000) for n in range(40)]


async def crowd(url: str, key: bytes | None, sessions: int = 64, each: int = len(SMALL)) -> float:
    """Return checkpoints per second of many sessions at once, 1 KB each."""
    async with saveslot.open(url, encryption_key=key, namespace=f"bench-{os.urandom(4).hex()}") as manager:
        ids = [(await manager.create_session("bench")).session_id for _ in range(sessions)]

        async def work(session_id: str) -> None:
            for n in range(each):
                await manager.checkpoint(session_id, "step", {"messages": [SMALL[n]]})

        start = process_time()
        await asyncio.gather(*map(work, ids))
        return sessions * each / (process_time() - start)


async def lone(url: str, key: bytes | None) -> float:
    """Return checkpoints per second of one session that grows by one message per turn."""
    async with saveslot.open(url, encryption_key=key, namespace=f"bench-{os.urandom(4).hex()}") as manager:
        session_id = (await manager.create_session("bench")).session_id
        state: dict[str, list[dict[str, str]]] = {"messages": []}
        start = process_time()
        for new in TURNS:
            state["messages"].append(new)
            await manager.checkpoint(session_id, "step", state)
        return len(TURNS) / (process_time() - start)


async def resume(url: str, key: bytes | None, turns: int = 200) -> float:
    """Return resumes per second of a 0.3 MB session by a manager with an empty cache."""
    namespace = f"bench-{os.urandom(4).hex()}"
    async with saveslot.open(url, encryption_key=key, namespace=namespace) as manager:
        await manager.create_session("bench", session_id="s")
        for n in range(turns):
            await manager.checkpoint("s", "step", append={"messages": [TURNS[n]]})
    if url == "memory:":
        return 1.0
    start = process_time()
    for _ in range(10):
        async with saveslot.open(url, encryption_key=key, namespace=namespace) as manager:
            await manager.get_data("s")
    return 10 / (process_time() - start)


async def pairs(folder: Path, count: int) -> dict[str, float]:
    """Return checkpoints per second with and without a key, and the median ratio of adjacent turns.

    A turn takes a tenth of a second: what disturbs the machine for longer disturbs both. Who goes first changes.
    """
    url = f"sqlite:///{folder / 'pairs.db'}"
    async with (
        saveslot.open(url, namespace="plain") as plain,
        saveslot.open(url, namespace="sealed", encryption_key=os.urandom(32)) as sealed,
    ):
        turns = [await turn_of(plain), await turn_of(sealed)]
        for turn in turns:
            await turn()
        gc.collect()
        gc.freeze()
        rates: list[list[float]] = [[], []]
        end = perf_counter() + LONGEST
        for n in range(count):
            if rates[0] and perf_counter() > end:
                break
            for who in (n % 2, 1 - n % 2):
                rates[who].append(await turns[who]())
    shares = [b / a for a, b in zip(*rates, strict=True)]
    return {
        "pairs": len(shares),
        "plain": statistics.median(rates[0]),
        "sealed": statistics.median(rates[1]),
        "share": statistics.median(shares),
    }


async def turn_of(manager: SessionManager) -> Callable[[], Awaitable[float]]:
    """Run C with a few checkpoints per session; return checkpoints per second."""
    sizes = Sizes(each=20)
    ids = [(await manager.create_session("bench")).session_id for _ in range(sizes.sessions)]

    async def save(session: int, _new: object, state: Any) -> None:
        await manager.checkpoint(ids[session], "turn", state)

    async def turn() -> float:
        return (await at_once(save, sizes, lambda *_: None)).per_second

    return turn


async def main(urls: list[str]) -> None:
    key = os.urandom(32)
    with tempfile.TemporaryDirectory() as folder:
        for url in urls or ["memory:", f"sqlite:///{Path(folder) / 'bench.db'}"]:
            for shape in (crowd, lone, resume):
                pairs = [(await shape(url, None), await shape(url, key)) for _ in range(ROUNDS)]
                plain, sealed = (statistics.median(column) for column in zip(*pairs, strict=True))
                cost = statistics.median(1 - b / a for a, b in pairs)
                name = url.partition(":")[0]
                print(f"{name:<11} {shape.__name__:<7} {plain:>9,.0f}/s plain {sealed:>9,.0f}/s sealed {cost:>7.1%}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pairs", count]:
            # Beside this file: the system's temporary folder may be in memory.
            with tempfile.TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
                print(json.dumps(asyncio.run(pairs(Path(folder), int(count)))))
        case urls:
            asyncio.run(main(urls))
