"""The cost of ownership: taking and releasing, many sessions held at once, taking over those of a dead worker.

python -m bench.owning FILE SESSIONS
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import saveslot
from bench.fresh import peak_mb
from saveslot.cli.benchmark import message

# Entries of each orphan: its creation, its hold, and checkpoints.
ENTRIES = 20
AT_ONCE = 250
BEAT = 5.0


async def hold_ms(url: str, times: int = 300) -> list[float]:
    """Take and release one session. The first time also registers the worker, and is not counted."""
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("benchmark")
        await sessions.checkpoint(session, "turn", message(0, 1000))
        items: list[float] = []
        for _ in range(times + 1):
            start = perf_counter()
            async with sessions.hold(session.session_id):
                pass
            items.append((perf_counter() - start) * 1000)
        return items[1:]


async def made(url: str, count: int) -> None:
    async with saveslot.open(url) as sessions:

        async def one(number: int) -> None:
            session = await sessions.create_session("orphan", session_id=f"orphan-{number}")
            for n in range(ENTRIES - 2):
                await sessions.checkpoint(session, "turn", message(n, 500))

        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*map(one, range(first, min(count, first + AT_ONCE))))


async def crowd(url: str, count: int) -> dict[str, float]:
    """Hold them all for more than two heartbeats, die, and let another worker claim them."""
    async with saveslot.open(url, worker_beat=BEAT) as sessions:
        before = peak_mb()
        held = await sessions.claim("orphan", limit=count, released=True)
        first = sessions.worker or {}
        await asyncio.sleep(2.2 * BEAT)
        worker = sessions.worker or {}
        beats, grown = worker["beats"] - first["beats"], peak_mb() - before
        # Closing orphans the held sessions, as a death does, only sooner.
    async with saveslot.open(url) as sessions:
        start = perf_counter()
        claimed = await sessions.claim("orphan", limit=count)
        seconds = perf_counter() - start
    return {"held": len(held), "beats": beats, "grown_mb": grown, "claimed": len(claimed), "claim_seconds": seconds}


async def main(path: str, count: int) -> None:
    url = f"sqlite:///{path}"
    await made(url, count)
    result = await crowd(url, count)
    result["hold_ms"] = median(await hold_ms(url))
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(str(Path(sys.argv[1]).absolute()), int(sys.argv[2])))
