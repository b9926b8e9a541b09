"""`saveslot demo`: what it says happened did happen, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

import saveslot

from .conftest import command

# An agency that forgets the keys: whoever asks twice gets two.
FORGETFUL = """
import os, time, uuid
import msgspec
from saveslot.cli.demo import agency

def enter(ledger, trip, wish, key):
    with ledger.open("ab") as file:
        asked = agency.Asked(time.time(), os.getpid(), trip, wish, uuid.uuid4().hex, True)
        file.write(msgspec.json.encode(asked) + b"\\n")

agency._enter = enter
"""


def agents() -> list[int]:
    """Processes of a demonstration that were started from here."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            agent = b"saveslot.cli.demo.agent" in (path / "cmdline").read_bytes()
            if agent and (path / "cwd").readlink() == Path.cwd():
                found.append(int(path.name))
    return found


async def logs(url: str) -> dict[str, list[saveslot.LogLine]]:
    async with saveslot.open(url) as sessions:
        return {s.session_id: await sessions.log(s.session_id, all=True) for s in await sessions.find()}


def test_the_story_is_true(tmp_path):
    """One is killed, one stopped: others complete their sessions, and the ledger has each booking once."""
    file = tmp_path / "demo.db"
    url = f"sqlite:///{file}"
    done = subprocess.run(command("demo", "--store", url), check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "nothing lost, nothing done twice" in done.stdout
    killed = re.search(r"kill -9 (agent \d): the (\w+) in (\w+) is booked, but not yet journaled", done.stdout)
    assert re.search(rf"took {killed[3]} over from {killed[1]}, \d\.\d s after it was killed", done.stdout)
    assert re.search(r"✓ (agent \d): (\w+): LeaseLost: worker", done.stdout)

    asked = [json.loads(line) for line in Path(f"{file}.ledger").read_text().splitlines()]
    booked = Counter((line["trip"], line["wish"]) for line in asked if line["booked"])
    assert set(booked.values()) == {1}
    assert len(booked) == 30
    doubtful = [line["booked"] for line in asked if (line["trip"], line["wish"]) == (killed[3], killed[2])]
    assert doubtful == [True, False]
    entries = asyncio.run(logs(url))
    assert all(lines[-1].kind == "completed" for lines in entries.values())
    assert {trip for trip, _ in booked} == set(entries)
    claimed = [line.metadata for lines in entries.values() for line in lines if line.kind == "claimed"]
    assert len({told["from"] for told in claimed}) == 2
    assert all(told["from"] != told["worker"] for told in claimed)
    assert f"{len(claimed)} takeovers" in done.stdout
    assert agents() == []


@pytest.mark.faults
def test_a_claim_that_is_not_true_ends_with_1(tmp_path, monkeypatch):
    """Where an effect happened twice the demonstration says so, and fails."""
    (tmp_path / "sitecustomize.py").write_text(FORGETFUL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(command("demo", "--json"), check=False, capture_output=True, text=True, timeout=120)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert not told["ok"]
    assert told["booked"] > 30
    assert told["twice"] == told["booked"] - 30


def test_a_picture_that_moves_until_ctrl_c(terminal, tmp_path, monkeypatch):
    """On a terminal sessions, owners and bookings change in place; Ctrl-C ends every process and removes the folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    view = terminal("demo")
    view.until("booked")
    shown = view.until("saved")
    assert "TTL 2 s" in shown
    assert re.search(r"● agent 1  process \d+", shown)
    assert "\x1b[1A" in view.raw
    assert len(agents()) == 3
    view.type("\x03")
    assert view.end() == 130
    assert "Traceback" not in view.seen
    assert agents() == []
    assert not list(tmp_path.glob("saveslot-demo-*"))


def test_sigterm_ends_every_process(spawn, tmp_path, monkeypatch):
    """Asked to end it leaves nothing behind either."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = spawn("demo")
    assert "3 agents" in demo.stdout.readline()
    while len(agents()) < 3:
        time.sleep(0.05)
    demo.terminate()
    assert demo.wait(20) == 143
    assert agents() == []
    assert not list(tmp_path.glob("saveslot-demo-*"))


def test_it_needs_a_file_of_its_own(run, samples):
    """Its agents take what nobody holds: a store with other people's sessions is refused."""
    answer = run("demo", "--store", samples.url)
    assert (answer.code, answer.out) == (2, "")
    assert "is there already" in answer.err


@pytest.fixture
def shared(monkeypatch):
    """A folder for temporary files that other users may enter: as root, PostgreSQL runs as one."""
    folder = Path(tempfile.mkdtemp(prefix="stack-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def servers(folder: Path) -> list[str]:
    """Processes that work in it."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cwd").readlink().is_relative_to(folder):
                found.append((path / "comm").read_text().strip())
    return found


@pytest.mark.faults
def test_the_story_is_true_on_servers(shared):
    """The same on a PostgreSQL with a Valkey in front; servers and files are gone at its end."""
    done = subprocess.run(
        command("demo", "--stack", "--json"), check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert (told["completed"], told["booked"], told["twice"], told["late_writes"]) == (6, 30, 0, 0)
    assert agents() == servers(shared) == list(shared.iterdir()) == []


def test_servers_end_with_the_story(spawn, shared):
    """Asked to end in the middle, it leaves no server behind."""
    demo = spawn("demo", "--stack")
    assert "3 agents" in demo.stdout.readline()
    assert {"postgres", "valkey-server"} <= set(servers(shared))
    demo.terminate()
    assert demo.wait(20) == 143
    assert agents() == servers(shared) == list(shared.iterdir()) == []


def test_servers_end_by_ctrl_c_while_they_start(terminal, shared):
    """As soon as there is one, it is also ended."""
    view = terminal("demo", "--stack")
    while not servers(shared):
        time.sleep(0.02)
    view.type("\x03")
    assert view.end() == 130
    assert "Traceback" not in view.seen
    left = [path for path in shared.iterdir() if not path.name.startswith("saveslot-wheel-")]  # until the process ends
    assert servers(shared) == left == []


def test_a_server_that_does_not_start_leaves_nothing(shared, monkeypatch, run):
    """Not the one that started before it either."""
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setattr("saveslot.stack.Valkey._prepared", lambda _: ["false"])
    answer = run("demo", "--stack")
    assert answer.code == 6
    assert "Valkey did not start" in answer.err
    assert servers(shared) == list(shared.iterdir()) == []


def test_servers_of_its_own_and_a_store_do_not_go_together(run):
    """--stack brings the store."""
    answer = run("demo", "--stack", "--store", "sqlite:///demo.db")
    assert (answer.code, answer.out) == (2, "")
