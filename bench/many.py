"""A million sessions: lists, sweeps and analytics, on SQLite and on PostgreSQL.

python -m bench.many STORE SESSIONS     (STORE: sqlite or postgres; prints JSON)
python -m bench.many [SESSIONS]         (both, as a table; makes and removes its own files and server)

Lists and sweeps are of SESSIONS, analytics of a tenth of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import saveslot
from bench import crowd
from saveslot.stack import Postgres

SESSIONS = 1_000_000
TIMES = 7
PAGE = 50
# The questions, in the order of the table.
LISTS: dict[str, dict[str, Any]] = {
    "list: newest": {},
    "list: state": {"state": "failed"},
    "list: agent type": {"agent_type": "agent-3"},
    "list: user": {"user_id": "user-77"},
    "list: label": {"labels": {"team": "team-7"}},
    "list: a label nobody has": {"labels": {"team": "none"}},
    "list: time": {"days": (20, 19)},
    "list: a text that many have": {"text": "AGENT-3"},
    "list: a text that one has": {"text": "s-00000123"},
    "list: a text that nobody has": {"text": "nowhere"},
}
# Goals in milliseconds.
GOALS = {"list": 20.0, "list: a text": 500.0, "analytics": 200.0, "sweep, others beat": 300.0, "sweep, others": 6000.0}

Build = Callable[[int, str], Awaitable[str]]


async def lists(url: str) -> dict[str, float]:
    """Time a page of each kind; the first one is not counted."""
    by_key: dict[str, float] = {}
    async with saveslot.open(url) as sessions:
        for name, request in LISTS.items():
            query = dict(request)
            if "days" in query:
                first, last = query.pop("days")
                now = datetime.now(UTC)
                query |= {"created_after": now - timedelta(days=first), "created_before": now - timedelta(days=last)}
            by_key[name] = median([await _ms(sessions.find(**query, limit=PAGE)) for _ in range(TIMES + 1)][1:])
    return by_key


async def analytics(url: str) -> dict[str, float]:
    async with saveslot.open(url) as sessions:
        names = ("task_received", "answered")
        return {"analytics": median([await _ms(sessions.analytics(between=names)) for _ in range(TIMES + 1)][1:])}


async def sweep(url: str) -> float:
    async with saveslot.open(url) as sessions:
        await sessions.find(limit=1)
        await asyncio.to_thread(os.sync)  # writes left from building the store must not count as the sweep's
        start = perf_counter()
        swept = await sessions.cleanup_stale_sessions(timedelta(days=2))
        ms = (perf_counter() - start) * 1000
        if swept != crowd.STALE:
            raise RuntimeError(f"{swept} sessions were stale, not {crowd.STALE}")
        return ms


async def _ms(work: Awaitable[object]) -> float:
    start = perf_counter()
    await work
    return (perf_counter() - start) * 1000


async def measured(build: Build, count: int) -> dict[str, float]:
    result = await lists(await build(count, "mixed"))
    result |= await analytics(await build(count // 10, "mixed"))
    result["sweep, others beat"] = await sweep(await build(count, "beating"))
    result["sweep, others only checkpoint"] = await sweep(await build(count, "checkpointing"))
    return result


def sqlite(folder: Path, count: int) -> dict[str, float]:
    def made(sessions: int, shape: str) -> str:
        for old in folder.glob("many.db*"):
            old.unlink()
        crowd.build_sqlite(folder / "many.db", sessions, shape)
        return f"sqlite:///{folder / 'many.db'}"

    async def build(sessions: int, shape: str) -> str:
        return await asyncio.to_thread(made, sessions, shape)

    return asyncio.run(measured(build, count))


def postgres(folder: Path, count: int) -> dict[str, float]:
    (folder / "server").mkdir()
    with Postgres(folder / "server") as server:

        async def build(sessions: int, shape: str) -> str:
            await crowd.build_postgres(server.url, sessions, shape)
            return server.url

        return asyncio.run(measured(build, count))


STORES = {"sqlite": sqlite, "postgres": postgres}


def goal(name: str) -> float:
    return GOALS[max((start for start in GOALS if name.startswith(start)), key=len)]


def main(*arguments: str) -> None:
    chosen = [name for name in arguments if name in STORES]
    count = next((int(text) for text in arguments if text.isdecimal()), SESSIONS)
    by_key: dict[str, dict[str, float]] = {}
    for name in chosen or STORES:
        # Beside this file: the system's temporary folder may be in memory.
        with TemporaryDirectory(suffix=".tmp", dir=Path(__file__).parent) as folder:
            Path(folder).chmod(0o755)  # PostgreSQL may run as another user
            by_key[name] = STORES[name](Path(folder), count)
    if chosen:
        print(json.dumps(by_key[chosen[0]]))
        return
    print(f"{f'{count:,} sessions of 5 entries':<34}{'goal':>10}" + "".join(f"{name:>12}" for name in by_key))
    for row in next(iter(by_key.values())):
        values = "".join(f"{one[row]:>9,.1f} ms" for one in by_key.values())
        print(f"{row:<34}{goal(row):>7,.0f} ms{values}")


if __name__ == "__main__":
    main(*sys.argv[1:])
