"""What encryption costs: the same shapes with and without a key, in turn, by CPU time (others may use the machine).

python -m bench.sealing [url]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import process_time

import saveslot
from saveslot.benchmark import message

ROUNDS = 7
TURNS = [message(n, 1490) for n in range(400)]
SMALL = [message(n, 1000) for n in range(40)]


async def crowd(url: str, key: bytes | None, sessions: int = 64, each: int = len(SMALL)) -> float:
    """Checkpoints a second of many sessions at once, each of 1 KB."""
    async with saveslot.open(url, encryption_key=key, namespace=f"bench-{os.urandom(4).hex()}") as manager:
        ids = [(await manager.create_session("bench")).session_id for _ in range(sessions)]

        async def work(session_id: str) -> None:
            for n in range(each):
                await manager.checkpoint(session_id, "step", {"messages": [SMALL[n]]})

        start = process_time()
        await asyncio.gather(*map(work, ids))
        return sessions * each / (process_time() - start)


async def lone(url: str, key: bytes | None) -> float:
    """Checkpoints a second of one session that grows by one message a turn."""
    async with saveslot.open(url, encryption_key=key, namespace=f"bench-{os.urandom(4).hex()}") as manager:
        session_id = (await manager.create_session("bench")).session_id
        state: dict[str, list[dict[str, str]]] = {"messages": []}
        start = process_time()
        for new in TURNS:
            state["messages"].append(new)
            await manager.checkpoint(session_id, "step", state)
        return len(TURNS) / (process_time() - start)


async def resume(url: str, key: bytes | None, turns: int = 200) -> float:
    """Resumes a second of a session of 0.3 MB by a manager that knows nothing yet."""
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
    asyncio.run(main(sys.argv[1:]))
