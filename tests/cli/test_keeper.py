"""`saveslot keeper`: what is silent for too long is failed, and a command takes up each orphan."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

import saveslot

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
STAY = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(60)"


async def leave(url: str, *ids: str) -> None:
    """Sessions of a worker that is no more."""
    sessions = await saveslot.open(url)
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
        told = json.loads(line)
        if told["event"] == event:
            return told
        assert told["event"] != "trouble", told
    raise AssertionError(process.stderr.read())


def test_it_fails_what_gives_no_sign_of_life(keep, run, samples):
    """Active sessions older than --stale-after are failed, one line says so, and SIGTERM ends it well."""
    process = keep("--stale-after", "1s")
    assert said(process, "swept")["told"] == "1 session failed: no sign of life for 1s"
    told = json.loads(run("show", "lesson-1", "--json").out)
    assert (told["state"], told["context"]["failure_reason"]) == ("failed", "heartbeat_timeout")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert process.stdout.read() == ""
    assert "Traceback" not in process.stderr.read()


def test_it_is_silent_when_all_is_well(keep, samples):
    """Sessions that live and those that nobody holds are no news; Ctrl-C ends it."""
    process = keep()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stdout.read() == ""


def test_it_tells_of_orphans_and_who_took_them(keep, samples):
    """One line when a worker is gone, one when another has its session; the keeper takes nothing itself."""
    process = keep()
    asyncio.run(leave(samples.url, "lesson-1"))
    told = said(process, "orphan")
    assert (told["session_id"], told["told"].endswith(" is silent")) == ("lesson-1", True)

    async def claim() -> None:
        opened = saveslot.open(samples.url, worker_beat=0.1, worker_ttl=0.5)
        async with opened as sessions, sessions.hold("lesson-1", wait=10):
            told = await asyncio.to_thread(said, process, "taken")
            assert told["told"] == f"by {sessions.worker['name']}"

    asyncio.run(claim())


def test_a_command_finishes_each_orphan(keep, samples, tmp_path):
    """It is started once for each, with the session's id and the keeper's store, whatever the id looks like."""
    script = tmp_path / "finish.py"
    script.write_text(FINISH)
    ids = ["lesson-1", "a b; touch oops", "--odd $(id)"]
    asyncio.run(leave(samples.url, *ids))
    process = keep("--run", f"{sys.executable} {script} {{id}}", "--limit", "2")
    ended = [said(process, "ended") for _ in ids]
    assert {told["session_id"] for told in ended} == set(ids)
    assert all(told["told"].endswith("exit 0") for told in ended)

    async def results() -> list[str]:
        async with saveslot.open(samples.url) as sessions:
            return [(await sessions.get_session(one)).state for one in ids]

    assert asyncio.run(results()) == ["completed"] * 3
    assert not Path("oops").exists()


def test_a_command_is_not_started_again_while_it_runs(keep, samples, tmp_path):
    """One for each orphan and at most --limit of them; when the keeper ends, so do they."""
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
    assert process.wait(20) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_command_that_fails_is_not_tried_again_at_once(keep, samples):
    """Its exit code is told; the session stays an orphan, and its next turn comes later."""
    asyncio.run(leave(samples.url, "lesson-1"))
    process = keep("--run", f"{sys.executable} -c 'exit(3)' {{id}}")
    assert said(process, "started")["session_id"] == "lesson-1"
    assert said(process, "ended")["told"].endswith("exit 3")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert process.stdout.read() == ""


def test_a_person_reads_lines(terminal, samples):
    """On a terminal: a time, what happened, to which session."""
    asyncio.run(leave(samples.url, "lesson-1"))
    view = terminal("keeper", "--every", "0.1")
    view.until("orphan   lesson-1")
    view.type("\x03")
    assert view.end() == 130
    assert "Traceback" not in view.seen
