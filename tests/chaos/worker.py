"""A worker as users write one: it claims sessions, works on each in turns, and may die or stop anywhere.

Its parent passes `PLAN`. It ends when no session is active any more; an unexpected error ends it too, with a traceback.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import saveslot
from saveslot.errors import LeaseLost, Unavailable
from tests.harness.history import Effect, Recorder

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Plan(NamedTuple):
    url: str
    folder: str  # of the records of its calls and their answers, and of the ledger
    name: str
    sessions: int
    turns: int
    room: int  # sessions that it works on at a time
    pace: float  # seconds that a turn takes at most, beside the disk
    ttl: float
    beat: float


def digest(data: Any) -> str:
    return sha256(repr(data).encode()).hexdigest()[:16]


class Ledger:
    """The world outside: what was written here happened, whatever becomes of the worker."""

    def __init__(self, plan: Plan) -> None:
        self._file = os.open(Path(plan.folder) / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._plan = plan

    async def happen(self, mode: str, session: str, step: str, key: str = "") -> int:
        await asyncio.sleep(random.uniform(0, self._plan.pace / 4))
        effect = Effect(mode, session, step, self._plan.name, time.time_ns(), key)
        text = msgspec.json.encode(effect) + b"\n"
        assert os.write(self._file, text) == len(text)
        os.fsync(self._file)
        await asyncio.sleep(random.uniform(0, self._plan.pace / 4))
        return effect.at


class Worker:
    def __init__(self, plan: Plan, sessions: saveslot.SessionManager, record: Recorder) -> None:
        self._plan = plan
        self._sessions = sessions
        self._record = record
        self._ledger = Ledger(plan)

    async def run(self) -> None:
        agents = set[asyncio.Task[None]]()
        while agents or await self._sessions.count(state="active"):
            room = self._plan.room - len(agents)
            agents |= {asyncio.create_task(self.agent(held)) for held in await self.claimed(room)}
            done, agents = await asyncio.wait(agents, timeout=0.1) if agents else (set(), agents)
            for agent in done:
                agent.result()
            await asyncio.sleep(random.uniform(0, 0.1))

    async def claimed(self, room: int) -> list[saveslot.Held]:
        invoked = time.clock_gettime_ns(CLOCK)
        try:
            claimed = await self._sessions.claim(limit=room, released=True) if room else []
        except (LeaseLost, Unavailable):
            return []
        for held in claimed:
            with self._record.call("hold", held.session.session_id, invoked=invoked) as call:
                call.ok(seq=held.session.seen.seq + 1)
        return claimed

    async def agent(self, held: saveslot.Held) -> None:
        session_id = held.session.session_id
        try:
            async with held:
                while (turn := held.data.get("turn", 0)) < self._plan.turns:
                    await self.turn(held, session_id, turn + 1)
                    await self.look()
                    if random.random() < 0.1:
                        return  # released; its next claimer continues
                with self._record.call("complete", session_id) as call:
                    await held.complete({"turns": turn})
                    call.ok(seq=held._log.at.seq)  # noqa: SLF001
        except (LeaseLost, Unavailable):
            return  # another worker continues

    async def turn(self, held: saveslot.Held, session_id: str, turn: int) -> None:
        happen = self._ledger.happen

        async def charge() -> int:
            return await happen("at_most_once", session_id, f"charge {turn}")

        async def mail(idempotency_key: str) -> int:
            return await happen("idempotent", session_id, f"mail {turn}", idempotency_key)

        await held.step("charge", charge, key=str(turn), mode="at_most_once", on_unknown="skip")
        await held.step("mail", mail, key=str(turn))
        data = {"turn": turn, "by": self._plan.name, "text": random.randbytes(random.randrange(8, 300)).hex()}
        with self._record.call("write", session_id, digest=digest(data)) as call:
            checkpoint = await held.checkpoint(f"turn {turn}", data)
            call.ok(seq=checkpoint.seq)

    async def look(self) -> None:
        """No reader sees a state older than one that was acknowledged."""
        session_id = f"s{random.randrange(self._plan.sessions)}"
        with self._record.call("read", session_id) as call:
            session = await self._sessions.get_session(session_id, history=1)
            newest = session.checkpoints[-1]
            turn = newest.id == f"{session_id}:{session.seen.seq}" and newest.name.startswith("turn")
            call.ok(seq=session.seen.seq, digest=digest(newest.data) if turn else "")


async def main(plan: Plan) -> None:
    with Recorder(Path(plan.folder) / f"{plan.name}.jsonl", plan.name) as record:
        async with saveslot.open(plan.url, worker_ttl=plan.ttl, worker_beat=plan.beat) as sessions:
            await Worker(plan, sessions, record).run()


if __name__ == "__main__":
    asyncio.run(main(Plan(*PLAN)))  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
