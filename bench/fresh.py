"""What only a fresh process can tell: import time, a first resume, memory. Prints one JSON number or list.

python -m bench.fresh resume CONTENDER FILE
python -m bench.fresh walk FILE EVERY
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parent.parent


def ask(*arguments: str) -> Any:
    """Run this module in a new process; what it printed."""
    return printed("-m", "bench.fresh", *arguments)


def printed(*arguments: str) -> Any:
    return json.loads(_printed(*arguments))


def import_ms(name: str) -> float:
    """In an interpreter that has imported nothing else."""
    code = f"from time import perf_counter as now; start = now(); import {name}; print((now() - start) * 1000)"
    return float(_printed("-c", code))


def _printed(*arguments: str) -> bytes:
    # An installed program has its bytecode at hand, whatever the developer's environment says.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout


async def resume_ms(contender: str, path: str) -> float:
    """Open, read, decode. Imports are not counted: for one contender they take longer than everything else."""
    from bench import servers
    from bench.contenders import CONTENDERS, LANGGRAPH, OPENAI

    used = {
        OPENAI: ["agents"],
        LANGGRAPH: ["langgraph.checkpoint.sqlite.aio"],
        servers.GRAPH: ["langgraph.checkpoint.postgres.aio", "psycopg_pool"],
        servers.SLOT: ["saveslot.opening", "saveslot.stores.postgres"],
        servers.HOT: ["saveslot.opening", "saveslot.stores.postgres", "saveslot.stores.tiered"],
    }
    for module in used.get(contender, ["saveslot.opening", "saveslot.stores.sqlite"]):
        import_module(module)
    # Nor is what they left to the collector: it would look through it in somebody's decoding, whoever comes there then.
    gc.collect()
    gc.freeze()
    return await timed_resume(CONTENDERS[contender], path)


async def timed_resume(opened: Any, path: str) -> float:
    start = perf_counter()
    async with opened(path, 0) as book:
        await book.load(0)
        return (perf_counter() - start) * 1000


async def walked(path: str, every: int) -> tuple[float, float, int]:
    """Walk through a history, looking at every n-th state: MB of growth at the peak, seconds, how many."""
    import saveslot

    async with saveslot.open(f"sqlite:///{path}") as manager:
        await manager.count()  # the reader's connection and everything lazy are there before we weigh
        before, start = peak_mb(), perf_counter()
        count = 0
        async for checkpoint in manager.walk("0"):
            count += 1
            if checkpoint.seq % every == 0:
                assert checkpoint.data  # looked at, and let go before the next one
        return peak_mb() - before, perf_counter() - start, count


def peak_mb() -> float:
    """The largest this process has been."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would tell the parent's peak, if that is larger
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["resume", contender, path]:
            print(json.dumps(asyncio.run(resume_ms(contender, path))))
        case ["walk", path, every]:
            print(json.dumps(asyncio.run(walked(path, int(every)))))
        case _:
            sys.exit(__doc__)
