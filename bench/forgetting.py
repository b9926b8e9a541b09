"""The cost of retention: thinning a long session, the space it frees, and removing many sessions while others write.

python -m bench.forgetting [sqlite | postgres | URL] [--sessions N] [--checkpoints N] [--writers N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import asyncpg

import saveslot
from saveslot import Retention, SessionManager, codec
from saveslot.cli.benchmark import message
from saveslot.stack import Postgres
from saveslot.stores import open_store
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Group, Row

NOW = timedelta(0)
# Entries of each removed session: its creation, three checkpoints and its end.
ENTRIES = 5
AT_ONCE = 250
# Seconds that the writers run alone, then with the removal, and so on.
TURN = 2.0


async def thinned(url: str, count: int, *, whole: bool) -> dict[str, float]:
    """Thin a session of `count` checkpoints to the parity rule; each state is one turn longer, or another one."""
    async with saveslot.open(url) as sessions:
        session = (await sessions.create_session("benchmark")).session_id
        text = message(0, 2000)["content"]
        for n in range(count):
            if whole:  # a state of constant size that changes in many places
                await sessions.checkpoint(session, "turn", {"parts": [text[n % 50 + k :: 9] for k in range(9)], "n": n})
            else:
                await sessions.checkpoint(session, "turn", append={"messages": [message(n, 1000)]})
        before = (await sessions.summary(session))["stored_bytes"]
        start = perf_counter()
        marked = await sessions.thin(session, Retention.parity())
        mark_seconds = perf_counter() - start
        start = perf_counter()
        emptied = await sessions.thin(session, Retention.parity(), grace=NOW)
        empty_seconds = perf_counter() - start
        keyframe = codec.write(codec.State(), await sessions.get_data(session), 1, "data", codec.ANY_SIZE).frame
    return {
        "marked": marked.marked,
        "seconds": mark_seconds + empty_seconds,
        "bytes_before": before,
        "freed_bytes": emptied.freed_bytes,
        "left_bytes": before - emptied.freed_bytes,
        "keyframe_bytes": len(keyframe or b""),
    }


async def filled(url: str, count: int) -> None:
    """Write sessions that ended long ago, bypassing the manager, which would take as long as the benchmark."""
    store = await open_store(url)
    about = codec.note({"context": {}, "metadata": {}, "labels": {}}, "session")
    frame = os.urandom(600)

    def group(number: int) -> Group:
        key = fresh_key()
        kinds = [Kind.CREATED, *[Kind.CHECKPOINT] * (ENTRIES - 2), Kind.COMPLETED]
        entries = [
            Entry(seq, os.urandom(16), kind, kind.label, at=seq, frame=frame if kind is Kind.CHECKPOINT else None)
            for seq, kind in enumerate(kinds, 1)
        ]
        row = Row(
            key, "default", f"old-{number}", "benchmark", state="completed", created_at=1, heartbeat=1, body=about
        )
        return Group(key, None, entries, row)

    for first in range(0, count, AT_ONCE * 4):
        numbers = range(first, min(count, first + AT_ONCE * 4))
        parts = [numbers[n : n + AT_ONCE] for n in range(0, len(numbers), AT_ONCE)]
        await asyncio.gather(*(store.append([group(number) for number in part]) for part in parts))
    await store.close()
    if url.startswith("postgres"):  # as sessions that ended long ago would have been
        server = await asyncpg.connect(url)
        await server.execute("vacuum analyze", timeout=600)
        await server.execute("checkpoint", timeout=600)
        await server.close()
    os.sync()


class Writers:
    """Sessions that save small checkpoints as fast as they can."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        self.saved = 0

    async def one(self) -> None:
        session = (await self._sessions.create_session("writer")).session_id
        for n in range(1 << 60):
            await self._sessions.checkpoint(session, "turn", {"n": n, "text": "x" * 300})
            self.saved += 1

    async def rate(self, seconds: float) -> float:
        saved, start = self.saved, perf_counter()
        await asyncio.sleep(seconds)
        return (self.saved - saved) / (perf_counter() - start)


async def collected(url: str, writers: int) -> dict[str, float]:
    """Measure the writers' rate alone and while another process removes, as `saveslot gc` or a keeper does. They take
    turns, since the rate varies from second to second anyway.
    """
    async with saveslot.open(url) as sessions:
        crowd = Writers(sessions)
        tasks = [asyncio.create_task(crowd.one()) for _ in range(writers)]
        removing = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.forgetting", url, "--remove", stdin=PIPE, stdout=PIPE
        )
        assert removing.stdin is not None
        assert removing.stdout is not None
        await removing.stdout.readline()  # it is ready
        await asyncio.sleep(2)
        alone, beside, seconds, spent, ended = [await crowd.rate(TURN)], list[float](), 0.0, 0.0, False
        while not ended:
            saved, start = crowd.saved, perf_counter()
            removing.stdin.write(b"go\n")
            took, spent, ended = json.loads(await removing.stdout.readline())
            seconds += took
            beside.append((crowd.saved - saved) / (perf_counter() - start))
            alone.append(await crowd.rate(TURN))
        await removing.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    shares = [rate / ((alone[n] + alone[n + 1]) / 2) for n, rate in enumerate(beside)]
    rates = {"rate_alone": median(alone), "rate_beside": median(beside), "share": median(shares)}
    return {"seconds": seconds, "cpu_seconds": spent, **rates}


async def remove(url: str) -> None:
    """Remove for one turn per input line; print its length, the CPU time so far, and whether all are gone."""
    async with saveslot.open(url) as sessions:
        print("ready", flush=True)
        began, ended = process_time(), False
        while not ended:
            await asyncio.to_thread(sys.stdin.readline)
            start = perf_counter()
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN):
                    await sessions.gc(timedelta(days=1))
                    ended = True
            print(json.dumps([perf_counter() - start, process_time() - began, ended]), flush=True)


async def stored(url: str) -> int:
    """Return the size of the store on disk."""
    async with saveslot.open(url) as sessions:
        return (await sessions.stats())["stored_bytes"]


async def measured(url: str, checkpoints: int, sessions: int, writers: int) -> dict[str, float]:
    result: dict[str, float] = {"checkpoints": checkpoints, "sessions": sessions, "writers": writers}
    for shape in ("grows", "changes"):
        answer = await thinned(url, checkpoints, whole=shape == "changes")
        result |= {f"thin_{shape}_{name}": value for name, value in answer.items()}
    await filled(url, sessions)
    result["bytes_before"] = await stored(url)
    result |= await collected(url, writers)
    return result | {"bytes_after": await stored(url)}


@contextmanager
def place(store: str) -> Iterator[str]:
    """Yield a new store beside this file: the system's temporary folder may be in memory."""
    if ":" in store:
        yield store
        return
    with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
        if store == "sqlite":
            yield f"sqlite:///{folder}/forgetting.db"
            return
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        (Path(folder) / "server").mkdir()
        with Postgres(Path(folder) / "server") as server:
            yield server.url


def main(chosen: argparse.Namespace) -> None:
    if chosen.remove:
        asyncio.run(remove(chosen.store))
        return
    with place(chosen.store) as url:
        print(json.dumps(asyncio.run(measured(url, chosen.checkpoints, chosen.sessions, chosen.writers))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", nargs="?", default="sqlite", help="sqlite, postgres or a URL")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--remove", action="store_true", help=argparse.SUPPRESS)
    main(parser.parse_args())
