"""`make demo`: an agent is killed with -9 in the middle of its work, another process goes on from what was saved."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import saveslot

TASK = ["read the essay", "check the facts", "mark the grammar", "weigh the argument", "write the feedback", "grade it"]
COLOURS = sys.stdout.isatty() and "NO_COLOR" not in os.environ


async def agent(url: str, session_id: str, pace: float) -> None:
    """The agent: take the session up where it stands, do one step after the other, save each one."""
    async with saveslot.open(url) as sessions:
        session = await sessions.get_session(session_id)
        assert session is not None
        last = session.get_last_checkpoint("step_done")
        done = last.data["messages"] if last else []
        print(f"resumed with {len(done)} of {len(TASK)} steps done" if done else "starting", flush=True)
        for step in TASK[len(done) :]:
            print(f"working: {step}", flush=True)
            await asyncio.sleep(pace * random.uniform(0.8, 1.2))  # the model thinks
            answer = {"role": "assistant", "step": step, "content": f"{step}: done"}
            made = await sessions.checkpoint(session_id, "step_done", append={"messages": [answer]})
            print(f"saved:   {step} as {made.name} #{made.seq}", flush=True)  # durable: it may die now
        await sessions.refresh(session)
        session.complete({"grade": "A"})
        await sessions.update_session(session)
        print("completed", flush=True)


def start(url: str, session_id: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, url, session_id]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def say(who: str, text: str, colour: int = 0) -> None:
    shown = f"\033[{colour}m{who:>9}\033[0m" if COLOURS else f"{who:>9}"
    print(f"{shown}  {text}", flush=True)


def follow(worker: subprocess.Popen[str], who: str, colour: int, kill_at: int | None = None) -> int:
    """Show what a worker says; kill it in the middle of the step after so many were saved."""
    saved = 0
    assert worker.stdout is not None
    for line in worker.stdout:
        say(who, line.rstrip(), colour)
        saved += line.startswith("saved")
        if kill_at is not None and saved == kill_at and line.startswith("working"):
            time.sleep(0.3)
            worker.send_signal(signal.SIGKILL)
            say("kill -9", f"{who} dies in the middle of a step", 31)
            break
    worker.wait()
    return saved


async def story(url: str) -> None:
    async with saveslot.open(url) as sessions:
        session = await sessions.create_session("grader", user_id="anna", context={"essay": "On fractions"})
        sid = session.session_id
        say("", f"a session: {sid}\n")
        acknowledged = await asyncio.to_thread(follow, start(url, sid), "worker 1", 36, 3)
        left = [c for c in await sessions.history(sid) if c.name == "step_done"]
        say("", f"{acknowledged} steps were acknowledged, {len(left)} are there: nothing lost\n")
        if len(left) < acknowledged:
            raise SystemExit("an acknowledged checkpoint is missing")
        await asyncio.to_thread(follow, start(url, sid), "worker 2", 32)

        print("\n  what the session knows, entry by entry:\n")
        history = await sessions.history(sid)
        for checkpoint in history:
            steps = len(checkpoint.data.get("messages", []))
            when = checkpoint.timestamp.astimezone().strftime("%H:%M:%S.%f")[:-3]
            print(f"    {checkpoint.seq:>2}  {when}  {checkpoint.name:<18} {'#' * steps}")
        done = [m["step"] for m in (await sessions.get_checkpoint(sid)).data["messages"]]
        if done != TASK:
            raise SystemExit("a step is missing, or was done twice")
        back = await sessions.diff(sid, "~1", "latest")
        print(f"\n  the last change:  {back[0]['op']} {back[0]['path']}  {back[0]['value']['content']!r}")
        print(f"  every step once, in order: {', '.join(done)}")


def main() -> None:
    if len(sys.argv) == 3:
        asyncio.run(agent(sys.argv[1], sys.argv[2], pace=0.5))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.db"
        print("\n  Saveslot: an agent dies, another finishes its work. One SQLite file, two processes.\n")
        asyncio.run(story(f"sqlite:///{file}"))
        print()


if __name__ == "__main__":
    main()
