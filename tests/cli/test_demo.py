"""`saveslot demo`: its claims are true, and it cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import saveslot

from .conftest import command

# An agency that forgets the keys: two requests are two bookings.
FORGETFUL = """
import os, time, uuid
import msgspec
from saveslot.cli.demo import agency

def enter(ledger, trip, wish, key):
    with ledger.open("ab") as file:
        asked = agency.Request(time.time(), os.getpid(), trip, wish, uuid.uuid4().hex, True)
        file.write(msgspec.json.encode(asked) + b"\\n")

agency._enter = enter
"""


def agents() -> list[int]:
    """Processes of a demo started from here."""
    items: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            agent = b"saveslot.cli.demo.agent" in (path / "cmdline").read_bytes()
            if agent and (path / "cwd").readlink() == Path.cwd():
                items.append(int(path.name))
    return items


async def logs(url: str) -> dict[str, list[saveslot.LogLine]]:
    async with saveslot.open(url) as sessions:
        return {s.session_id: await sessions.log(s.session_id, all=True) for s in await sessions.find()}


def test_demo_claims_are_true(tmp_path):
    """One agent is killed and one stopped: others complete their sessions, and the ledger has each booking once."""
    file = tmp_path / "demo.db"
    url = f"sqlite:///{file}"
    done = subprocess.run(command("demo", "--store", url), check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "nothing lost, nothing done twice" in done.stdout
    killed = re.search(r"kill -9 (agent \d): the (\w+) in (\w+) is booked, but not yet journaled", done.stdout)
    assert re.search(rf"took {killed[3]} over from {killed[1]}, \d\.\d s after it was killed", done.stdout)
    assert re.search(r"✓ (agent \d): (\w+): LeaseLost: worker", done.stdout)

    items = [json.loads(line) for line in Path(f"{file}.ledger").read_text().splitlines()]
    booked = Counter((line["trip"], line["wish"]) for line in items if line["booked"])
    assert set(booked.values()) == {1}
    assert len(booked) == 30
    doubtful = [line["booked"] for line in items if (line["trip"], line["wish"]) == (killed[3], killed[2])]
    assert doubtful == [True, False]
    entries = asyncio.run(logs(url))
    assert all(lines[-1].kind == "completed" for lines in entries.values())
    assert {trip for trip, _ in booked} == set(entries)
    claimed = [line.metadata for lines in entries.values() for line in lines if line.kind == "claimed"]
    assert len({answer["from"] for answer in claimed}) == 2
    assert all(answer["from"] != answer["worker"] for answer in claimed)
    assert f"{len(claimed)} takeovers" in done.stdout
    assert agents() == []
    printed = done.stdout.partition("look around:\n")[2].splitlines()[:3]
    for name, line in zip(("log", "steps", "fork"), printed, strict=True):
        assert f" {name} {killed[3]}" in line
        looked = subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True, timeout=60)
        assert looked.stdout.strip()
    assert f"{killed[3]}-again" in asyncio.run(logs(url))
    [serve] = re.findall(r"in a browser.*:\n(.*)", done.stdout)
    assert shlex.split(serve)[-3:] == ["serve", "--store", str(file)]


def test_fast_demo_keeps_its_store(tmp_path, monkeypatch):
    """Without --store it makes a file, says where, and leaves nothing else behind; the claims hold at speed, too.

    Without an activated environment, the commands to look around name the program by its path.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    paths = [path for path in os.environ["PATH"].split(":") if not (Path(path) / "saveslot").exists()]
    monkeypatch.setenv("PATH", ":".join(paths))
    script = f"{Path(sys.executable).parent}/saveslot"
    done = subprocess.run([script, "demo", "--fast"], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    [folder] = [path for path in tmp_path.iterdir() if path.name.startswith("saveslot-")]
    assert f"its store is {folder}/demo.db" in done.stdout
    name, _, _ = done.stdout.partition("look around:\n")[2].partition(" log ")
    assert name.strip() == script
    assert len(asyncio.run(logs(f"sqlite:///{folder}/demo.db"))) == 6


def test_visitor_kills_and_restarts_agents(terminal, tmp_path):
    """Whatever a visitor does with the keys, the script gives way, and the claims hold at the end."""
    file = tmp_path / "demo.db"
    view = terminal("demo", "--fast", "--store", f"sqlite:///{file}", columns=120, rows=50)
    view.until("keys: 1-3 choose an agent")
    view.until("booked")
    view.type("1k")
    view.until("you: kill -9 agent 1")
    view.until("you direct")
    view.type("2s3k")
    view.until("no agent is at work")
    view.type("1r2r")
    view.until("you: restart agent 1")
    view.until("you: restart agent 2")
    view.type("2s")
    view.until("you: SIGSTOP agent 2")
    view.type("s")
    view.until("you: SIGCONT agent 2")
    assert view.end(60) == 0, view.seen
    assert "nothing lost, nothing done twice" in view.seen
    items = [json.loads(line) for line in Path(f"{file}.ledger").read_text().splitlines()]
    booked = Counter((line["trip"], line["wish"]) for line in items if line["booked"])
    assert len(booked) == 30
    assert set(booked.values()) == {1}
    assert all(lines[-1].kind == "completed" for lines in asyncio.run(logs(f"sqlite:///{file}")).values())
    assert agents() == []


def fetched(url: str, path: str) -> bytes:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_page_beside_the_story_until_ctrl_c(tmp_path, monkeypatch):
    """With --page the page answers from before the story begins until Ctrl-C, and the store is kept.

    In an activated environment the printed commands name the program alone.
    """
    scripts = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{scripts}:{os.environ['PATH']}")
    file = tmp_path / "demo.db"
    argv = [f"{scripts}/saveslot", "demo", "--fast", "--page", "--store", f"sqlite:///{file}", "--namespace", "trips"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        try:
            words, url = demo.stdout.readline().rsplit(maxsplit=1)
            assert words == "watch it at"
            assert url.endswith("/?ns=trips")
            assert b"<title>" in fetched(url, "/")
            printed = "".join(iter(demo.stdout.readline, f"the page is at {url} until Ctrl-C\n"))
            assert "nothing lost, nothing done twice" in printed
            assert "look around:\n  saveslot log " in printed
            assert json.loads(fetched(url, "/v1/sessions/facets?ns=trips"))["by_state"]["completed"] == 6
            demo.send_signal(signal.SIGINT)
            assert (demo.wait(60), demo.stderr.read()) == (0, "")
        finally:
            demo.kill()
    with pytest.raises(ConnectionRefusedError):
        fetched(url, "/")
    assert file.exists()


def test_page_says_what_it_needs(run, monkeypatch):
    """Without the server's extra, --page says how to install it; with --json, which ends, it is refused."""
    assert "leave --json out" in run("demo", "--page", "--json").err
    monkeypatch.setattr("saveslot.cli.demo.page.find_spec", lambda _: None)
    answer = run("demo", "--page")
    assert answer.code == 2
    assert "pip install 'saveslot[server]'" in answer.err


@pytest.mark.faults
def test_abandoned_demo_ends_by_itself(terminal, tmp_path):
    """If a visitor kills every agent and leaves, one is started again, and the story comes to its end."""
    view = terminal("demo", "--fast", "--store", f"sqlite:///{tmp_path / 'demo.db'}", columns=120, rows=50)
    view.until("booked")
    view.type("1k2k3k")
    view.until("nobody did for 20 s: agent 1 is started again", patience=60)
    assert view.end(120) == 0, view.seen
    assert "nothing lost, nothing done twice" in view.seen


@pytest.mark.faults
def test_false_claim_exits_1(tmp_path, monkeypatch):
    """If an effect happened twice, the demo says so and fails."""
    (tmp_path / "sitecustomize.py").write_text(FORGETFUL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(command("demo", "--json"), check=False, capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert not answer["ok"]
    assert answer["booked"] > 30
    assert answer["twice"] == answer["booked"] - 30


def test_live_view_until_ctrl_c(terminal, tmp_path, monkeypatch):
    """On a terminal sessions, owners and bookings update in place; Ctrl-C ends every process and removes the folder."""
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
    assert not list(tmp_path.glob("saveslot-*"))


def test_sigterm_ends_every_process(spawn, tmp_path, monkeypatch):
    """After SIGTERM nothing is left either."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = spawn("demo")
    assert "3 agents" in demo.stdout.readline()
    while len(agents()) < 3:
        time.sleep(0.05)
    demo.terminate()
    assert demo.wait(60) == 143
    assert agents() == []
    assert not list(tmp_path.glob("saveslot-*"))


def test_demo_requires_an_empty_store(run, samples):
    """Its agents claim unowned sessions: a store with other sessions is refused."""
    answer = run("demo", "--store", samples.url)
    assert (answer.code, answer.out) == (2, "")
    assert "already exists" in answer.err
    assert "such as " in answer.err
    assert "samples-2.db" in answer.err


@pytest.fixture
def shared(monkeypatch):
    """A folder for temporary files that other users may enter: as root, PostgreSQL runs as one."""
    folder = Path(tempfile.mkdtemp(prefix="stack-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def servers(folder: Path) -> list[str]:
    """Server processes that run in that folder."""
    items: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cwd").readlink().is_relative_to(folder):
                items.append((path / "comm").read_text().strip())
    return items


@pytest.mark.faults
def test_demo_claims_are_true_on_servers(shared):
    """The same holds on PostgreSQL with Valkey in front; servers and files are gone at the end."""
    done = subprocess.run(
        command("demo", "--stack", "--json"), check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"]
    assert (answer["completed"], answer["booked"], answer["twice"], answer["late_writes"]) == (6, 30, 0, 0)
    assert agents() == servers(shared) == list(shared.iterdir()) == []


def test_interrupted_demo_stops_its_servers(spawn, shared):
    """Stopped half-way, it leaves no server running."""
    demo = spawn("demo", "--stack")
    assert "3 agents" in demo.stdout.readline()
    assert {"postgres", "valkey-server"} <= set(servers(shared))
    demo.terminate()
    assert demo.wait(60) == 143
    assert agents() == servers(shared) == list(shared.iterdir()) == []


def test_ctrl_c_during_startup_stops_the_servers(terminal, shared):
    """A server is stopped even if it has only just started."""
    view = terminal("demo", "--stack")
    while not servers(shared):
        time.sleep(0.02)
    view.type("\x03")
    assert view.end() == 130
    assert "Traceback" not in view.seen
    left = [path for path in shared.iterdir() if not path.name.startswith("saveslot-wheel-")]  # until the process ends
    assert servers(shared) == left == []


def test_failed_server_start_leaves_nothing(shared, monkeypatch, run):
    """A server started before it is stopped too."""
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setattr("saveslot.stack.Valkey._prepared", lambda _: ["false"])
    answer = run("demo", "--stack")
    assert answer.code == 6
    assert "Valkey did not start" in answer.err
    assert servers(shared) == list(shared.iterdir()) == []


def test_stack_and_store_are_exclusive(run):
    """--stack brings its own store."""
    answer = run("demo", "--stack", "--store", "sqlite:///demo.db")
    assert (answer.code, answer.out) == (2, "")
