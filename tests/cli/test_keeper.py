"""`saveslot keeper` fails silent sessions, and runs a command for each orphan."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import saveslot
from saveslot.cli.keeper import AGAIN

# Takes the session up and finishes it; the store is the keeper's.
FINISH = """
import asyncio, os, sys
import saveslot

async def main():
    async with saveslot.open(worker_beat=0.1, worker_ttl=0.5) as sessions:
        async with sessions.hold(sys.argv[1], wait=30) as held:
            await held.complete({"by": os.getpid()})

asyncio.run(main())
"""
# Says that it began, and stays.
STAY = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"


async def leave(url: str, *ids: str, namespace: str = "default") -> None:
    """Create sessions of a dead worker."""
    sessions = await saveslot.open(url, namespace=namespace)
    for one in ids:
        if await sessions.get_session(one) is None:
            await sessions.create_session("traveller", session_id=one)
        await sessions.take(one)
    await sessions.close()


@pytest.fixture
def keep(spawn, samples):
    """A keeper that looks often, and what it says, line by line."""

    def keep(*argv: str):
        process = spawn("keeper", "--every", "0.1", "--json", *argv)
        assert process.stderr.readline().startswith("keeping")
        return process

    return keep


def said(process, event: str) -> dict:
    """The next line about such an event; what comes before must be no trouble."""
    while line := process.stdout.readline():
        answer = json.loads(line)
        if answer["event"] == event:
            return answer
        assert answer["event"] != "trouble", answer
    raise AssertionError(process.stderr.read())


def test_keeper_fails_silent_sessions(keep, run, samples):
    """Active sessions older than --stale-after are failed, one line says so, and SIGTERM ends it cleanly."""
    process = keep("--stale-after", "1s")
    assert said(process, "swept")["text"] == "1 session failed: no heartbeat for 1s"
    answer = json.loads(run("show", "lesson-1", "--json").out)
    assert (answer["state"], answer["context"]["failure_reason"]) == ("failed", "heartbeat_timeout")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout.read() == ""
    assert "Traceback" not in process.stderr.read()


def test_keeper_prints_nothing_when_all_is_well(keep, samples):
    """Live and unowned sessions are not reported; Ctrl-C ends it."""
    process = keep()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stdout.read() == ""


def test_keeper_reports_orphans_and_takeovers(keep, samples):
    """One line when a worker is gone, one when another takes over its session; the keeper itself claims nothing."""
    process = keep()
    asyncio.run(leave(samples.url, "lesson-1"))
    answer = said(process, "orphan")
    assert (answer["session_id"], answer["text"].endswith(" is dead")) == ("lesson-1", True)

    async def claim() -> None:
        opened = saveslot.open(samples.url, worker_beat=0.1, worker_ttl=0.5)
        async with opened as sessions, sessions.hold("lesson-1", wait=10):
            answer = await asyncio.to_thread(said, process, "taken")
            assert answer["text"] == f"by {sessions.worker['name']}"

    asyncio.run(claim())


def test_command_runs_for_each_orphan(keep, samples, tmp_path):
    """It is started once for each, with the session's id and the keeper's store, whatever the id looks like."""
    script = tmp_path / "finish.py"
    script.write_text(FINISH)
    ids = ["lesson-1", "a b; touch oops", "--odd $(id)"]
    asyncio.run(leave(samples.url, *ids))
    process = keep("--run", f"{sys.executable} {script} {{id}}", "--limit", "2")
    ended = [said(process, "ended") for _ in ids]
    assert {answer["session_id"] for answer in ended} == set(ids)
    assert all(answer["text"].endswith("exit 0") for answer in ended)

    async def results() -> list[str]:
        async with saveslot.open(samples.url) as sessions:
            return [(await sessions.get_session(one)).state for one in ids]

    assert asyncio.run(results()) == ["completed"] * 3
    assert not Path("oops").exists()


def test_all_namespaces_are_kept(keep, run, samples, tmp_path):
    """With --all-namespaces orphans of each namespace get a command, also of one that is new; ids may be the same."""
    script = tmp_path / "finish.py"
    script.write_text(FINISH)
    asyncio.run(leave(samples.url, "lesson-1"))
    asyncio.run(leave(samples.url, "lesson-1", namespace="school-7"))
    process = keep("--all-namespaces", "--run", f"{sys.executable} {script} {{id}}")
    ended = [said(process, "ended") for _ in range(2)]
    assert {event["namespace"] for event in ended} == {"default", "school-7"}
    asyncio.run(leave(samples.url, "lesson-1", namespace="school-8"))
    assert said(process, "ended")["namespace"] == "school-8"
    for name in ("default", "school-7", "school-8"):
        assert json.loads(run("show", "lesson-1", "--namespace", name, "--json").out)["state"] == "completed"
    answer = run("keeper", "--all-namespaces", "--namespace", "school-7")
    assert (answer.code, "exclude each other" in answer.err) == (2, True)


def test_command_runs_for_what_an_error_released(keep, samples, tmp_path):
    """It is started for a session that its owner left by an error; one without attempts left fails instead."""
    script = tmp_path / "finish.py"
    script.write_text(FINISH)

    async def crash() -> None:
        async with saveslot.open(samples.url) as sessions:
            for name, most in (("again", 2), ("never", 1)):
                await sessions.create_session("traveller", session_id=name, max_attempts=most)
                held = await sessions.take(name)
                await held.release(error=OSError("model API down"))

    asyncio.run(crash())
    process = keep("--run", f"{sys.executable} {script} {{id}}")
    assert said(process, "ended")["session_id"] == "again"

    async def results() -> list[str]:
        async with saveslot.open(samples.url) as sessions:
            failed = await sessions.get_checkpoint("never", "session_failed")
            assert failed.data["error"] == "OSError: model API down"
            return [(await sessions.get_session(one)).state for one in ("again", "never")]

    assert asyncio.run(results()) == ["completed", "failed"]


# Leaves the session by an error twice, then finishes it; each run adds a line to the file.
STUMBLE = """
import asyncio, sys
import saveslot

async def main():
    async with saveslot.open(worker_beat=0.1, worker_ttl=0.5, backoff=0.1) as sessions:
        async with sessions.hold(sys.argv[1], wait=30) as held:
            with open(sys.argv[2], "a") as runs:
                runs.write("run\\n")
            if len(open(sys.argv[2]).readlines()) < 3:
                raise OSError("model API down")
            await held.complete()

asyncio.run(main())
"""


def test_command_that_held_its_session_follows_the_sessions_backoff(keep, samples, tmp_path):
    """Only the session's own pauses count: the keeper's 30 s are for commands that never held it."""
    script, runs = tmp_path / "stumble.py", tmp_path / "runs"
    script.write_text(STUMBLE)
    asyncio.run(leave(samples.url, "lesson-1"))
    process = keep("--run", f"{sys.executable} {script} {{id}} {runs}")
    ended = [datetime.fromisoformat(said(process, "ended")["timestamp"]) for _ in range(3)]
    assert runs.read_text() == "run\n" * 3
    assert ended[2] - ended[0] < timedelta(seconds=AGAIN)


def test_running_command_is_not_started_again(keep, samples, tmp_path):
    """One runs per orphan, at most --limit at once; they end with the keeper."""
    begun = tmp_path / "begun"
    asyncio.run(leave(samples.url, "lesson-1", "other", "third"))
    command = shlex.join([sys.executable, "-c", STAY, str(begun), "{id}"])
    process = keep("--run", command, "--limit", "2")
    first, second = said(process, "started"), said(process, "started")
    assert first["session_id"] != second["session_id"]
    while not begun.exists() or len(begun.read_text().splitlines()) < 2:
        time.sleep(0.05)
    time.sleep(1)
    pids = [int(pid) for pid in begun.read_text().split()]
    assert len(pids) == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_failed_command_is_retried_later(keep, samples):
    """Its exit code is reported; the session stays an orphan and is retried later."""
    asyncio.run(leave(samples.url, "lesson-1"))
    process = keep("--run", f"{sys.executable} -c 'exit(3)' {{id}}")
    assert said(process, "started")["session_id"] == "lesson-1"
    assert said(process, "ended")["text"].endswith("exit 3")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout.read() == ""


def ended(pid: int, patience: float = 60) -> bool:
    end = time.monotonic() + patience
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


def pid_in(file: Path) -> int:
    while not file.exists() or not file.read_text().endswith("\n"):
        time.sleep(0.05)
    return int(file.read_text())


def test_keeper_survives_a_program_that_cannot_be_started(keep, samples, tmp_path):
    """A program that is gone for a moment, as in a deployment, is reported and tried again later."""
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    process = keep("--run", f"{program} {{id}}")
    program.unlink()
    asyncio.run(leave(samples.url, "lesson-1"))
    while (answer := json.loads(process.stdout.readline()))["event"] != "trouble":
        pass
    assert answer["text"] == f"cannot start {program} lesson-1 (No such file or directory)"
    asyncio.run(leave(samples.url, "other"))
    while (answer := json.loads(process.stdout.readline())) and answer["session_id"] != "other":
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()


def test_sigterm_ends_whole_process_groups(keep, samples, tmp_path):
    """An agent started by a shell ends with the keeper, too."""
    begun = tmp_path / "begun"
    asyncio.run(leave(samples.url, "lesson-1"))
    agent = shlex.join([sys.executable, "-c", STAY, str(begun)])
    process = keep("--run", shlex.join(["bash", "-c", f"{agent}; true", "{id}"]))
    pid = pid_in(begun)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert ended(pid)


def test_timeout_ends_a_command_with_its_process_group(keep, samples, tmp_path):
    """A command that hangs makes room for the next one."""
    begun = tmp_path / "begun"
    asyncio.run(leave(samples.url, "lesson-1", "other"))
    agent = shlex.join([sys.executable, "-c", STAY, str(begun)])
    process = keep("--run", shlex.join(["bash", "-c", f"{agent}; true", "{id}"]), "--limit", "1", "--timeout", "2s")
    first = said(process, "started")["session_id"]
    pid = pid_in(begun)
    assert said(process, "ended")["session_id"] == first
    assert ended(pid)
    assert said(process, "started")["session_id"] != first
    process.send_signal(signal.SIGTERM)  # a keeper that is killed would leave its command running
    assert process.wait(60) == 0


def test_keeper_hears_sigterm_while_stdout_is_full(keep, samples):
    """It ends although no process reads its output."""
    asyncio.run(leave(samples.url, *(f"{n:0>200}" for n in range(300))))
    process = keep()
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_keeper_lines_on_a_terminal(terminal, samples):
    """Each line has a time, an event and a session."""
    asyncio.run(leave(samples.url, "lesson-1"))
    view = terminal("keeper", "--every", "0.1")
    view.until("orphan   lesson-1")
    view.type("\x03")
    assert view.end() == 130
    assert "Traceback" not in view.seen
