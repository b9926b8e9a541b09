"""Checkpoints through a server beside the same ones straight into its database, on PostgreSQL 18 from its wheel.

python -m bench.server [SECONDS]        (prints a table; starts and removes its own servers)

64 sessions save 1 KB as fast as they can, all from one process, which shares the machine with the server and with
PostgreSQL: straight, through `/store`, and through `/v1` as JSON, by turns. CPU time is that of this process and of the
server, per checkpoint. At the end 1,000 listeners of `/v1/events` wait for a checkpoint, 20 times.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import msgspec

import saveslot
from saveslot.stack import Postgres
from saveslot.stores.http.connection import Connection
from saveslot.stores.http.url import parse_url

SESSIONS = 64
PAYLOAD = "x" * 1000
ROUNDS = 3
READS = 300
LISTENERS = 1000
EVENTS = 20


class Rate(NamedTuple):
    """Durable checkpoints per second of all sessions, and microseconds of CPU time for each: here and in the server."""

    per_second: float
    here: float
    there: float


async def checkpoints(url: str, seconds: float, server: int) -> Rate:
    async with saveslot.open(url) as sessions:
        ids = [(await sessions.create_session("bench")).session_id for _ in range(SESSIONS)]
        save = [lambda data, one=one: sessions.checkpoint(one, "turn", data) for one in ids]
        return await measured(save, seconds, server)


async def over_json(url: str, seconds: float, server: int) -> Rate:
    """The same through `/v1`, one connection per session. The client is the one that managers use."""
    host = parse_url(url).hosts[0]

    async def post(connection: Connection, path: str, body: Any) -> Any:
        text = msgspec.json.encode(body)
        kind = f"content-type: application/json\r\ncontent-length: {len(text)}"
        answer = await connection.request(f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{kind}\r\n\r\n".encode(), text)
        assert answer.status == 201, answer
        return msgspec.json.decode(answer.body)

    connections = [await Connection.open(host, None) for _ in range(SESSIONS)]
    save: list[Save] = []
    for one in connections:
        created = await post(one, "/v1/sessions", {"agent_type": "bench"})
        path = f"/v1/sessions/{created['session_id']}/checkpoints"
        save.append(lambda data, one=one, path=path: post(one, path, {"name": "turn", "data": data}))
    rate = await measured(save, seconds, server)
    for one in connections:
        await one.close(0)
    return rate


Save = Callable[[Any], Awaitable[Any]]


async def measured(save: list[Save], seconds: float, server: int) -> Rate:
    """Save 1 KB of each session again and again."""
    began, here, there = perf_counter(), process_time(), cpu(server)

    async def saves(one: Save) -> int:
        n = 0
        while perf_counter() < began + seconds:
            n += 1
            await one({"turn": n, "text": f"{n:06}{PAYLOAD}"})
        return n

    done = sum(await asyncio.gather(*map(saves, save)))
    took = perf_counter() - began
    return Rate(done / took, (process_time() - here) / done * 1e6, (cpu(server) - there) / done * 1e6)


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


async def events(url: str) -> list[float]:
    """Milliseconds from the start of a checkpoint until every listener has its event, for each of some checkpoints."""
    host, _, port = str(parse_url(url).hosts[0]).rpartition(":")
    request = f"GET /v1/events HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode()
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("bench")
        listeners = [await asyncio.open_connection(host, int(port), limit=1 << 20) for _ in range(LISTENERS)]
        for _, writer in listeners:
            writer.write(request)
        await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in listeners))
        await asyncio.sleep(1)  # what a stream begins with
        times: list[float] = []
        for n in range(EVENTS):
            name = f"event-{n}!"
            began = perf_counter()
            await sessions.checkpoint(session.session_id, name, {"n": n})
            await asyncio.gather(*(reader.readuntil(name.encode()) for reader, _ in listeners))
            times.append((perf_counter() - began) * 1000)
        for _, writer in listeners:
            writer.close()
        return times


async def long_session(url: str) -> str:
    """A session of 1.5 MB in 1,000 turns."""
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("bench")
        for n in range(1000):
            text = f"turn {n}: " + " ".join(str(n * k % 9973) for k in range(300))
            await sessions.checkpoint(session.session_id, "turn", append={"messages": [{"role": "user", "text": text}]})
        return session.session_id


@contextmanager
def served(store: str) -> Iterator[tuple[str, int]]:
    """Yield the URL of a server of that store, and its process."""
    argv = [sys.executable, "-m", "saveslot", "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()


def main(seconds: float) -> None:
    with Postgres() as postgres, served(postgres.url) as (http, server):
        runs = {
            "direct": lambda: checkpoints(postgres.url, seconds, server),
            "/store": lambda: checkpoints(http, seconds, server),
            "/v1": lambda: over_json(http, seconds, server),
        }
        rates: dict[str, list[Rate]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                rates[name].append(asyncio.run(run()))
        print(f"{'':8}{'checkpoints/s':>28}{'CPU us here':>13}{'in the server':>15}{'of direct':>11}")
        for name, each in rates.items():
            here, there = median(rate.here for rate in each), median(rate.there for rate in each)
            ratio = median(
                one.per_second / direct.per_second for one, direct in zip(each, rates["direct"], strict=True)
            )
            speeds = ", ".join(f"{rate.per_second:,.0f}" for rate in each)
            print(f"{name:8}{speeds:>28}{here:13.0f}{there:15.0f}{ratio:11.2f}")
        for name, url in {"direct": postgres.url, "/store": http}.items():
            print(f"{name:8} small read p50: {asyncio.run(small_read(url)):.2f} ms")
        session_id = asyncio.run(long_session(postgres.url))
        times = [min(asyncio.run(resume(url, session_id)) for _ in range(5)) for url in (postgres.url, http)]
        print(f"resume of 1.5 MB: direct {times[0]:.1f} ms, /store {times[1]:.1f} ms")
        waits = asyncio.run(events(http))
        print(f"an event at all of {LISTENERS:,} listeners: median {median(waits):.0f} ms, longest {max(waits):.0f} ms")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
