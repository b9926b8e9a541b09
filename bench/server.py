"""Checkpoints through a server beside the same ones straight into its database, on PostgreSQL 18 from its wheel.

python -m bench.server [SECONDS]        (prints a table; starts and removes its own servers)

64 sessions save 1 KB as fast as they can, all from one process, which shares the machine with the server and with
PostgreSQL. Direct and served take turns.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

import saveslot
from saveslot.stack import Postgres

SESSIONS = 64
PAYLOAD = "x" * 1000
ROUNDS = 3
READS = 300


async def checkpoints(url: str, seconds: float) -> float:
    """Durable checkpoints per second of 64 sessions."""
    async with saveslot.open(url) as sessions:
        ids = [(await sessions.create_session("bench")).session_id for _ in range(SESSIONS)]
        ends = perf_counter() + seconds

        async def save(session_id: str) -> int:
            n = 0
            while perf_counter() < ends:
                n += 1
                await sessions.checkpoint(session_id, "turn", {"turn": n, "text": f"{n:06}{PAYLOAD}"})
            return n

        began = perf_counter()
        done = sum(await asyncio.gather(*map(save, ids)))
        return done / (perf_counter() - began)


async def small_read(url: str) -> float:
    """Milliseconds of one small read, median."""
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("bench", data={"text": PAYLOAD})
        times: list[float] = []
        for _ in range(READS):
            began = perf_counter()
            await sessions.get_data(session.session_id)
            times.append(perf_counter() - began)
        return median(times) * 1000


async def resume(url: str, session_id: str) -> float:
    """Milliseconds until a new manager has the state of a long session."""
    async with saveslot.open(url) as sessions:
        began = perf_counter()
        await sessions.get_data(session_id)
        return (perf_counter() - began) * 1000


async def long_session(url: str) -> str:
    """A session of 1.5 MB in 1,000 turns."""
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("bench")
        for n in range(1000):
            text = f"turn {n}: " + " ".join(str(n * k % 9973) for k in range(300))
            await sessions.checkpoint(session.session_id, "turn", append={"messages": [{"role": "user", "text": text}]})
        return session.session_id


@contextmanager
def served(store: str) -> Iterator[str]:
    argv = [sys.executable, "-m", "saveslot", "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def main(seconds: float) -> None:
    with Postgres() as postgres, served(postgres.url) as http:
        runs = {"direct": postgres.url, "served": http}
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, url in runs.items():
                rates[name].append(asyncio.run(checkpoints(url, seconds)))
        best = {name: max(each) for name, each in rates.items()}
        for name, each in rates.items():
            print(f"{name:8} checkpoints/s: {', '.join(f'{rate:,.0f}' for rate in each)}")
        print(f"best served / best direct: {best['served'] / best['direct']:.2f}")
        for name, url in runs.items():
            print(f"{name:8} small read p50: {asyncio.run(small_read(url)):.2f} ms")
        session_id = asyncio.run(long_session(postgres.url))
        times = {name: min(asyncio.run(resume(url, session_id)) for _ in range(5)) for name, url in runs.items()}
        print(f"resume of 1.5 MB: direct {times['direct']:.1f} ms, served {times['served']:.1f} ms")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
