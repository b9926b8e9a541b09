"""What needs a fresh process: import time, a first resume, memory, and the speed of one contender alone.

python -m bench.fresh resume CONTENDER FILE
python -m bench.fresh small CONTENDER FILE SIZES
python -m bench.fresh crowd CONTENDER FILE SIZES
python -m bench.fresh walk FILE EVERY

It prints JSON; SIZES is JSON too.
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

import msgspec

from saveslot.cli.benchmark import Series, Sizes, at_once, one_by_one

ROOT = Path(__file__).parent.parent


def ask(*arguments: str) -> Any:
    """Run this module in a new process; return what it printed."""
    return printed("-m", "bench.fresh", *arguments)


def series(shape: str, contender: str, path: str, sizes: Sizes) -> Series:
    """Run B ("small") or C ("crowd") in a new process."""
    return msgspec.convert(ask(shape, contender, path, msgspec.json.encode(sizes).decode()), Series)


def printed(*arguments: str) -> Any:
    return json.loads(_printed(*arguments))


def import_ms(name: str) -> float:
    """Time an import in an interpreter that has imported nothing else."""
    code = f"from time import perf_counter as now; start = now(); import {name}; print((now() - start) * 1000)"
    return float(_printed("-c", code))


def _printed(*arguments: str) -> bytes:
    # An installed program has its bytecode cached, whatever the developer's environment says.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout


async def resume_ms(contender: str, path: str) -> float:
    """Time open, read and decode, without imports: for one contender they take longer than all the rest."""
    from bench.contenders import CONTENDERS

    import_used(contender)
    settle()
    return await timed_resume(CONTENDERS[contender], path)


async def saved(shape: str, contender: str, path: str, sizes: Sizes) -> Series:
    """Run B or C after a short warm-up in the same book, so that one-time work is not counted."""
    from bench.contenders import CONTENDERS, GROUPED, grouped

    async def save(book: Any, sizes: Sizes) -> Series:
        if contender == GROUPED:
            return grouped(book.connection, sizes)
        return await (one_by_one if shape == "small" else at_once)(book.save, sizes, quiet)

    import_used(contender)
    async with CONTENDERS[contender](path, 1 if shape == "small" else sizes.sessions) as book:
        await save(book, msgspec.structs.replace(sizes, small=50, each=3))
        settle()
        return await save(book, sizes)


def import_used(contender: str) -> None:
    from bench import servers  # importing it adds its contenders
    from bench.contenders import LANGGRAPH, OPENAI

    used = {
        OPENAI: ["agents"],
        LANGGRAPH: ["langgraph.checkpoint.sqlite.aio"],
        servers.GRAPH: ["langgraph.checkpoint.postgres.aio", "psycopg_pool"],
        servers.SLOT: ["saveslot.opening", "saveslot.stores.postgres"],
        servers.HOT: ["saveslot.opening", "saveslot.stores.postgres", "saveslot.stores.hot"],
    }
    for module in used.get(contender, ["saveslot.opening", "saveslot.stores.sqlite"]):
        import_module(module)


def settle() -> None:
    """Keep the objects of imports out of garbage collections, which would fall into the timed decoding."""
    gc.collect()
    gc.freeze()


def quiet(*_: object) -> None: ...


async def timed_resume(opened: Any, path: str) -> float:
    start = perf_counter()
    async with opened(path, 0) as book:
        await book.load(0)
        return (perf_counter() - start) * 1000


async def walked(path: str, every: int) -> tuple[float, float, int]:
    """Walk through a history and decode every n-th state; return peak growth in MB, seconds and the count."""
    import saveslot

    async with saveslot.open(f"sqlite:///{path}") as manager:
        await manager.count()  # open the reader's connection and everything lazy before measuring
        before, start = peak_mb(), perf_counter()
        count = 0
        async for checkpoint in manager.walk("0"):
            count += 1
            if checkpoint.seq % every == 0:
                assert checkpoint.data  # decoded, and released before the next one
        return peak_mb() - before, perf_counter() - start, count


def peak_mb() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would report the parent's peak if that is larger
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["resume", contender, path]:
            print(json.dumps(asyncio.run(resume_ms(contender, path))))
        case [("small" | "crowd") as shape, contender, path, sizes]:
            times = asyncio.run(saved(shape, contender, path, msgspec.json.decode(sizes, type=Sizes)))
            print(msgspec.json.encode(times).decode())
        case ["walk", path, every]:
            print(json.dumps(asyncio.run(walked(path, int(every)))))
        case _:
            sys.exit(__doc__)
