"""A process that holds one session until its input ends: `holder.py URL SESSION TTL BEAT careful|blind TASKS`.

So many tasks save when told "go", each once more whenever it was acknowledged, until one error. Each line on its output
is an acknowledgement ("ok", what was saved, its seq) or the end of a task (the error's code, what was to be saved).
A blind one never looks at its own deadline, nor hears what its beats are told: only the log can stop it.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

import saveslot
from saveslot.errors import SaveslotError
from saveslot.lifeline import Lifeline


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url: str, session_id: str, ttl: float, beat: float, tasks: int) -> None:
    numbers = count(1)

    async def save(held: saveslot.Held) -> None:
        while True:
            n = next(numbers)
            try:
                made = await held.checkpoint(f"zombie {n}", {"by": "zombie", "n": n})
            except SaveslotError as exc:
                say(exc.code, n)
                return
            say("ok", n, made.seq)

    async with saveslot.open(url, worker_ttl=ttl, worker_beat=beat) as sessions, sessions.hold(session_id) as held:
        say("holds")
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(save(held) for _ in range(tasks)))
        say("lost" if held.lost.is_set() else "kept")


if sys.argv[5] == "blind":
    Lifeline.alive = property(lambda _: True)
    Lifeline._tell = lambda _: None  # noqa: SLF001
asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[6])))
