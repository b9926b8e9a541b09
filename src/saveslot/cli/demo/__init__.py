"""`saveslot demo`: an agent is killed in the middle of its work, and another one finishes it. Real processes.

The story needs nothing but this package: the model is scripted, the store is one SQLite file. What the first process
was told to be saved is written down by the one that watches, and compared with what the second one reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from saveslot.cli.common import COMMON, Common
from saveslot.cli.looking import history, short
from saveslot.cli.screen import Line, Screen, Span
from saveslot.cli.state import DIM, ROLES
from saveslot.cli.words import flat, many
from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.model import Data, fresh_id
from saveslot.opening import open as open_sessions
from saveslot.settings import sqlite_url

# What is said in the lesson; each line is a turn, saved before the next one begins.
LESSON = [
    ("user", "Can you help me with 1/2 + 1/3?"),
    ("assistant", "Gladly. Which number can be divided by 2 and by 3?"),
    ("user", "6?"),
    ("assistant", "Right. So 1/2 is how many sixths?"),
    ("user", "3/6. And 1/3 is 2/6!"),
    ("assistant", "Exactly. Now add them."),
    ("user", "5/6"),
    ("assistant", "Well done. One more: 3/4 + 1/6?"),
    ("user", "Twelfths: 9/12 + 2/12 = 11/12"),
    ("assistant", "Perfect. You have got it: same bottom first, then add the tops."),
]
# The first worker dies while it thinks about this turn.
FATAL = 6
# How long a thought takes: long enough to watch, short enough to stay.
THOUGHT = 0.35
# A worker that says nothing for so long is stuck.
PATIENCE = 15.0


class Broken(SaveslotError):
    """The demonstration itself did not work."""

    code = "demo"


async def demo(*, common: Common = COMMON) -> None:
    with contextlib.ExitStack() as stack:
        url = common.store
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="saveslot-demo-"))
            url = sqlite_url(Path(folder) / "demo.db")
        namespace = common.settings["namespace"].value
        told = await _story(_Stage(url, namespace, common.screen))
    if common.screen.json:
        common.screen.data(told)
    elif common.store is None:
        say = "keep the file and look around: saveslot demo --store sqlite:///demo.db"
        common.screen.lines([Line(body=((say, DIM),))])


class _Stage:
    """Where the story plays: which store, which session, and the screen that shows it."""

    def __init__(self, url: str, namespace: str, screen: Screen) -> None:
        self.url = url
        self.namespace = namespace
        self.screen = screen
        self.id = fresh_id()

    def tell(self, *body: Span) -> None:
        if not self.screen.json:
            self.screen.lines([Line((("  ", ""),), body)])
            sys.stdout.flush()

    def title(self, *body: Span) -> None:
        if not self.screen.json:
            self.screen.lines([Line(), Line(body=body)])
            sys.stdout.flush()


async def _story(stage: _Stage) -> Data:
    started = time.monotonic()
    stage.title(("An agent dies, another one finishes its work", "bold"))
    stage.tell((stage.url, DIM))

    acknowledged: list[Data] = []
    async with _worker(stage) as first:
        stage.title(("▶ ", "green"), (f"worker 1 (process {first.pid}) gives a lesson", ""))
        async for told in _reports(first):
            acknowledged.append(told)
            stage.tell(*_turn(told))
            if told["turn"] + 1 == FATAL:
                break
        await asyncio.sleep(THOUGHT / 2)
        first.kill()
        await first.wait()
    stage.tell(("✗ ", "bold red"), (f"kill -9 {first.pid}", "bold red"), ("  in the middle of a thought", ""))

    async with _worker(stage) as second:
        stage.title(("▶ ", "green"), (f"worker 2 (process {second.pid}) knows nothing but the session's id", ""))
        reports = _reports(second)
        found = await anext(reports)
        _compare(acknowledged, found)
        text = f"{len(acknowledged)} of {len(acknowledged)} acknowledged turns read back, word for word"
        stage.tell(("✓ ", "bold green"), (text, "bold"))
        async for told in reports:
            stage.tell(*_turn(told))
        if await second.wait():
            raise Broken("the second worker failed; please report this with the output above")

    async with open_sessions(stage.url, namespace=stage.namespace) as sessions:
        lines = await sessions.log(stage.id)
        session = await sessions.get_session(stage.id, history=0)
        said = [(told["role"], told["content"]) for told in (await sessions.get_data(stage.id))["messages"]]
    if session is None or session.state != "completed" or said != LESSON:
        raise Broken("the lesson is not what it should be; please report this with the output above")
    if not stage.screen.json:
        stage.title((f"saveslot log {short(stage.id, stage.screen)}", "bold"))
        stage.screen.table(*history(lines, stage.screen))
    seconds = time.monotonic() - started
    stage.title(
        ("nothing lost, nothing done twice", "bold green"),
        (f": {many(len(LESSON), 'turn')}, two processes, one session, {seconds:.1f} s", ""),
    )
    return {
        "session_id": stage.id,
        "acknowledged": len(acknowledged),
        "read_back": found["turn"] + 1,
        "turns": len(LESSON),
        "entries": len(lines),
        "seconds": round(seconds, 3),
    }


def _turn(told: Data) -> tuple[Span, ...]:
    if "turn" not in told:
        return (("✓ ", "green"), (f"saved {told['seq']:>2}  ", DIM), (told["said"], "bold green"))
    role = str(told["role"])
    return (
        ("✓ ", "green"),
        (f"saved {told['seq']:>2}  ", DIM),
        (f"{role:<9}  ", ROLES[role]),
        (flat(str(told["said"]), 80), ""),
    )


def _compare(acknowledged: list[Data], found: Data) -> None:
    """Everything that was acknowledged is there, as it was; one turn more may have been saved and not yet told."""
    said = [told["said"] for told in acknowledged]
    if found["all"][: len(said)] != said:
        raise Broken(f"acknowledged were {said}, read back {found['all']}; please report this")


# --- processes --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _worker(stage: _Stage) -> AsyncGenerator[asyncio.subprocess.Process]:
    arguments = ("-m", "saveslot.cli.demo", stage.url, stage.namespace, stage.id)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _reports(process: asyncio.subprocess.Process) -> AsyncGenerator[Data]:
    if process.stdout is None:
        raise Broken("a worker has no output")
    while line := await asyncio.wait_for(process.stdout.readline(), PATIENCE):
        yield msgspec.json.decode(line)


def _report(**told: Any) -> None:
    print(msgspec.json.encode(told).decode(), flush=True)


async def _work(url: str, namespace: str, id: str) -> None:
    """One worker, the same code for both: begin the session or go on where it stands."""
    async with open_sessions(url, namespace=namespace) as sessions:
        said = await _begin(sessions, id)
        for turn in range(len(said), len(LESSON)):
            await asyncio.sleep(THOUGHT)
            role, text = LESSON[turn]
            message = {"role": role, "content": text}
            made = await sessions.checkpoint(
                id, "asked" if role == "user" else "answered", append={"messages": [message]}
            )
            _report(turn=turn, seq=made.seq, role=role, said=text)
        session = await sessions.get_session(id, history=0)
        if session is None:
            raise Broken("the session is gone")
        session.complete({"grade": "A"})
        await sessions.update_session(session)
        _report(seq=0 if session.seen is None else session.seen.seq, said="the lesson is over: completed, grade A")


async def _begin(sessions: SessionManager, id: str) -> list[str]:
    """What was said so far; reported, if someone was here before."""
    if await sessions.get_session(id, history=0) is None:
        await sessions.create_session("tutor", user_id="anna", context={"topic": "fractions"}, session_id=id)
        return []
    said = [str(message["content"]) for message in (await sessions.get_data(id)).get("messages", [])]
    _report(turn=len(said) - 1, all=said)
    return said


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # the one who watches says goodbye for both
        asyncio.run(_work(*sys.argv[1:4]))
