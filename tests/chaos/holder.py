"""A process that holds one session until its input ends: `holder.py URL SESSION TTL BEAT careful|blind TASKS`.

On "go", TASKS tasks save one checkpoint after another until one fails. Each line of its output is an acknowledgement
("ok", what was saved, its seq) or the end of a task (the error's code, what was to be saved). A blind holder never
looks at its own deadline or at the answers to its heartbeats: only the log can stop it.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

import saveslot
from saveslot.errors import SaveslotError
from saveslot.session.worker import Worker


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url: str, session_id: str, ttl: float, beat: float, tasks: int) -> None:
    numbers = count(1)

    async def save(held: saveslot.Held) -> None:
        while True:
            n = next(numbers)
            try:
                checkpoint = await held.checkpoint(f"zombie {n}", {"by": "zombie", "n": n})
            except SaveslotError as exc:
                say(exc.code, n)
                return
            say("ok", n, checkpoint.seq)

    async with saveslot.open(url, worker_ttl=ttl, worker_beat=beat) as sessions, sessions.hold(session_id) as held:
        say("holds")
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(save(held) for _ in range(tasks)))
        say("lost" if held.lost.is_set() else "kept")


if sys.argv[5] == "blind":
    Worker.alive = property(lambda _: True)
    Worker._tell = lambda _: None  # noqa: SLF001
asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[6])))
