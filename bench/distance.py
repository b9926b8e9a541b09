"""What a cold resume costs when the servers are a network away: with and without the hot tier.

    python -m bench.distance [milliseconds of a round trip, 1 if left out]

PostgreSQL and Valkey are reached through a proxy process that delays every byte by half a round trip and counts what
the server sends. For each size of state: the median of `get_data` in a running process that has read another session
before, the bytes that the database and Valkey send, and the CPU time of the database's processes, per read.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import random
import socket
import sys
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

import saveslot
from saveslot.stack import Postgres, Valkey

# Bytes of the states as JSON, and reads of each.
SIZES = {"1.5 MB": (1_500_000, 80), "15 MB": (15_000_000, 20)}
TURNS = 40
WORDS = [random.Random(7).randbytes(random.Random(n).randint(1, 5)).hex() for n in range(4000)]


def _carry(source: socket.socket, target: socket.socket, delay: float, count: Any) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due, data = waiting.get()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if not data:
                target.close()
                return
            try:
                target.sendall(data)
            except OSError:
                return

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        try:
            data = source.recv(1 << 18)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + delay, data))
        if not data:
            return
        if count is not None:
            with count.get_lock():
                count.value += len(data)


def _serve(address: Any, delay: float, port: Any, count: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port.value = server.getsockname()[1]
    while True:
        client, _ = server.accept()
        upstream = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        upstream.connect(address)
        for one in (client, upstream):
            if one.family == socket.AF_INET:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_carry, args=(client, upstream, delay, None), daemon=True).start()
        threading.Thread(target=_carry, args=(upstream, client, delay, count), daemon=True).start()


class Distance:
    """A proxy to a server that adds `delay` seconds in each direction; `sent`: bytes that the server sent."""

    def __init__(self, address: Any, delay: float) -> None:
        self._port: Synchronized[int] = multiprocessing.Value("i", 0)
        self._sent: Synchronized[int] = multiprocessing.Value("q", 0)
        self._process = multiprocessing.Process(
            target=_serve, args=(address, delay, self._port, self._sent), daemon=True
        )
        self._process.start()
        while not self._port.value:
            time.sleep(0.01)

    @property
    def port(self) -> int:
        return self._port.value

    @property
    def sent(self) -> int:
        return self._sent.value

    def close(self) -> None:
        self._process.terminate()


def cpu(folder: Path) -> float:
    """Seconds of CPU that the processes of the server in this folder have used."""
    [root, *_] = next(folder.rglob("postmaster.pid")).read_text().split()
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if root in {fields[1], path.parent.name}:
                total += int((path.parent / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
    return total


def text(size: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=size // 7))


async def measure(round_trip: float) -> None:
    with Postgres() as database, Valkey() as cache:
        parts = urlsplit(database.url)
        folder = parse_qs(parts.query)["host"][0]
        number = parts.port or parse_qs(parts.query).get("port", ["5432"])[0]
        far = Distance(f"{folder}/.s.PGSQL.{number}", round_trip / 2)
        hot = Distance(("127.0.0.1", cache.port), round_trip / 2)
        url = parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{far.port}", query="").geturl()
        print(f"round trip {round_trip * 1000:g} ms; per read:")
        for size, (weight, reads) in SIZES.items():
            async with (
                saveslot.open(url, hot=f"valkey://127.0.0.1:{hot.port}") as writer,
                saveslot.open(url) as alone,
                saveslot.open(url, hot=f"valkey://127.0.0.1:{hot.port}") as tiered,
            ):
                state = {"messages": [text(weight // 1000, n) for n in range(1000)]}
                await writer.create_session("agent", session_id=size)
                await writer.checkpoint(size, "turn", state)
                for turn in range(TURNS):
                    state["messages"].append(text(1500, turn))
                    await writer.checkpoint(size, "turn", state)
                readers = {"database alone": alone, "Valkey in front": tiered}
                for reader in (alone, tiered, tiered, tiered):  # there is a client, and a copy
                    assert await reader.get_data(size) == state
                    await asyncio.sleep(0.5)
                costs: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in readers}
                for _ in range(reads):  # in turn: the machine may have other work
                    for name, reader in readers.items():
                        before = (0.0, far.sent, hot.sent, cpu(database.folder))
                        began = time.perf_counter()
                        await reader.get_data(size)
                        now = (time.perf_counter() - began, far.sent, hot.sent, cpu(database.folder))
                        costs[name].append(tuple(b - a for a, b in zip(before, now, strict=True)))
                for name, each in costs.items():
                    took, sent, lent, used = zip(*each, strict=True)
                    spent = f"database {median(sent) / 1000:8.1f} kB {median(used) * 1e6:7.0f} µs"
                    copied = f"Valkey {median(lent) / 1000:8.1f} kB"
                    latency = f"{median(took) * 1000:7.1f} ms (best {min(took) * 1000:.1f})"
                    print(f"  {size:7} {name:16} {latency}   {spent}   {copied}")
                print("  hits {hits}, misses {misses}".format(**(await tiered.metrics())["hot"]))
        far.close()
        hot.close()


if __name__ == "__main__":
    asyncio.run(measure(float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.001))
