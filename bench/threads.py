"""`python -m bench.threads [--turns N] [--repeats N]`: LangGraph's savers and ours, called as its loop calls them.

A thread of N turns of 2 KB grows by one checkpoint a turn, each given the whole list of messages, and is resumed from a
store opened anew. Then one thread, and 64 at once, put small states. Contenders take turns; printed are medians, and
ratios within each repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import asyncpg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from saveslot.adapters.langgraph import SaveslotSaver
from saveslot.stack import Postgres

Saver = BaseCheckpointSaver[Any]
Config = dict[str, Any]
# Characters of a message: random words, as text compresses.
MESSAGE = 1_000
# Puts of the last turns that count, puts of a small state on one thread, threads at once and puts of each.
LAST, ALONE, CROWD, EACH = 20, 200, 64, 20
OURS, THEIRS = "saveslot", "langgraph"


def words(chance: random.Random) -> str:
    return " ".join(f"{chance.randrange(1 << 24):x}" for _ in range(MESSAGE // 7))


async def put(saver: Saver, config: Config, values: dict[str, Any], version: Any) -> tuple[Config, float]:
    """Put a checkpoint in which all channels are new; return its config, and seconds."""
    versions = dict.fromkeys(values, version)
    parts = {"v": 4, "id": str(uuid6()), "channel_values": values, "channel_versions": versions}
    checkpoint = empty_checkpoint() | parts
    start = time.perf_counter()
    config = await saver.aput(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, versions)
    return config, time.perf_counter() - start


async def small(saver: Saver, puts: int) -> None:
    config: Config = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    version = None
    for n in range(puts):
        version = saver.get_next_version(version, None)
        config, _ = await put(saver, config, {"n": n, "text": "hello"}, version)


async def measure(make: Callable[[], Any], turns: int, size: Callable[[], Any]) -> dict[str, float]:
    """Grow the thread, then open the store anew, as another process that resumes it, and put small states."""
    async with make() as saver:
        if not isinstance(saver, SaveslotSaver):
            await saver.setup()
        await small(saver, 1)
    chance, messages, times, version = random.Random(7), [], [], None
    thread: Config = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    config, before = thread, await size()
    async with make() as saver:
        for turn in range(turns):
            added = [HumanMessage(words(chance), id=f"h{turn}"), AIMessage(words(chance), id=f"a{turn}")]
            messages, version = [*messages, *added], saver.get_next_version(version, None)
            config, seconds = await put(saver, config, {"messages": messages, "turn": turn}, version)
            times.append(seconds)
    data = sum(len(message.content) for message in messages)
    stored = await size() - before
    async with make() as saver:
        await small(saver, 1)
        start = time.perf_counter()
        await saver.aget_tuple(thread)
        read = time.perf_counter() - start
        start = time.perf_counter()
        await small(saver, ALONE)
        alone = ALONE / (time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.gather(*[small(saver, EACH) for _ in range(CROWD)])
        crowd = CROWD * EACH / (time.perf_counter() - start)
    put_ms = statistics.median(times[-LAST:]) * 1000
    return {"put ms": put_ms, "resume ms": read * 1000, "x data": stored / data, "one/s": alone, "64/s": crowd}


async def repeat(folder: Path, url: str, turns: int) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}

    async def files(name: str) -> int:
        return await asyncio.to_thread(lambda: sum(path.stat().st_size for path in folder.glob(f"{name}*")))

    async def database() -> int:
        connection = await asyncpg.connect(url)
        await connection.execute("vacuum full")
        size = await connection.fetchval("select pg_database_size(current_database())")
        await connection.close()
        return size

    schema = f"{url}&schema=bench_{uuid4().hex[:8]}"
    for name, make, size in (
        (f"sqlite {OURS}", lambda: SaveslotSaver.from_conn_string(folder / "ours.db"), partial(files, "ours")),
        (
            f"sqlite {THEIRS}",
            lambda: AsyncSqliteSaver.from_conn_string(str(folder / "theirs.db")),
            partial(files, "theirs"),
        ),
        (f"postgres {OURS}", lambda: SaveslotSaver.from_conn_string(schema), database),
        (f"postgres {THEIRS}", lambda: AsyncPostgresSaver.from_conn_string(url), database),
    ):
        gc.collect()
        results[name] = await measure(make, turns, size)
        print(f"  {name:20}", {key: round(value, 2) for key, value in results[name].items()}, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.threads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    runs: list[dict[str, dict[str, float]]] = []
    with Postgres() as server:
        for number in range(chosen.repeats):
            print(f"repeat {number + 1} of {chosen.repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
            # Beside this file: the system's temporary folder may be in memory.
            with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
                runs.append(asyncio.run(repeat(Path(folder), server.url, chosen.turns)))
    for name in runs[0]:
        medians = {key: round(statistics.median(run[name][key] for run in runs), 2) for key in runs[0][name]}
        print(f"{name:22}", medians)
    print("how many times better than LangGraph's own, in the same repeat:")
    for store in ("sqlite", "postgres"):
        pairs = [(run[f"{store} {OURS}"], run[f"{store} {THEIRS}"]) for run in runs]
        better = {
            key: round(
                statistics.median((mine[key] / own[key]) ** (1 if "/s" in key else -1) for mine, own in pairs), 2
            )
            for key in pairs[0][0]
        }
        print(f"{store:22}", better)


if __name__ == "__main__":
    main()
