"""The command among other processes: pipes, signals, start-up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from select import select

import pytest

import saveslot
from saveslot.stores.sqlite.file import connect

from .conftest import command


def test_pipe_output_imports_no_rich(samples):
    """Only terminals import rich; a command's module is imported when it is called."""
    code = "import sys; from saveslot.cli import main; main(['ls']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "saveslot.cli.ls" in loaded
    assert not {"rich.console", "saveslot.cli.rollback"} & set(loaded)


def test_missing_extra_is_one_line():
    """Without cyclopts or rich: what to install, and no traceback."""
    for missing in ("cyclopts", "rich"):
        without = f"import sys; sys.modules[{missing!r}] = None"
        code = f"{without}; from saveslot.cli import main; sys.exit(main(['ls', '--help']))"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "saveslot: the command line needs the extra: pip install 'saveslot[cli]'\n"


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environ(request) -> dict[str, str]:
    """Output fails at its end, or at once."""
    return os.environ | {"PYTHONUNBUFFERED": request.param}


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "lesson-1"],
        ["export", "lesson-1"],
        ["log", "lesson-1", "--json"],
        ["ls"],
        ["doctor"],
        ["key", "new"],
        ["completion", "bash"],
        ["--help"],
        ["ls", "--help"],
        ["--version"],
    ],
)
def test_closed_pipe_is_not_an_error(samples, environ, argv):
    """`saveslot export | head -1` prints no error, and ends as a broken pipe does."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(*argv), check=False, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ)
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert done.stderr.strip() in {"", KEY_ADVICE}


KEY_ADVICE = "store this key outside the database (SAVESLOT_ENCRYPTION_KEY); if you lose it, sealed sessions are lost"


def test_closed_pipe_wins_over_another_exit_code(samples, environ):
    """A command that would exit with another code also ends as a broken pipe does."""
    connection = connect(str(samples.path), None)
    connection.execute("update checkpoints set digest = zeroblob(32) where seq = 3")
    connection.close()
    assert subprocess.run(command("doctor"), check=False, capture_output=True, env=environ).returncode == 1
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command("doctor"), check=False, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
@pytest.mark.parametrize("argv", [["ls"], ["show", "lesson-1", "--json"], ["export", "lesson-1"], ["--version"]])
def test_full_output_device_is_one_line(samples, environ, argv):
    """Exit 1 and the reason, no traceback."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command(*argv), check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 1
    assert done.stderr == "saveslot: cannot write the output (No space left on device)\n"


def without(number: int, *argv: str) -> subprocess.CompletedProcess:
    """With that stream closed, as by `>&-` in a shell."""
    shell = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *command(*argv)]
    return subprocess.run(shell, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_closed_stdout_is_one_line(samples, run):
    """The command does nothing if it cannot report the outcome."""
    for argv in (["show", "lesson-1"], ["rm", "lesson-1", "--yes"], ["--version"]):
        done = without(1, *argv)
        assert done.returncode == 1
        assert done.stderr == "saveslot: stdout is closed; use >/dev/null to discard the output\n"
    assert run("show", "lesson-1").code == 0


def test_other_closed_streams_do_not_matter(samples):
    """Text for stderr never appears on stdout; without stdin the command does not prompt."""
    done = without(2, "show", "nobody")
    assert (done.returncode, done.stdout) == (5, "")
    done = without(0, "rm", "lesson-1")
    assert done.returncode == 2
    assert "no terminal to ask on" in done.stderr


def test_terminal_without_utf8(samples):
    """Characters it cannot show are escaped, and nothing fails."""
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command("log", "lesson-1"), check=True, capture_output=True, env=env)
    assert b"\\u21a9 to 2" in done.stdout


def test_tail_follows_other_processes(spawn, samples):
    """Each entry another process appends is printed within moments, one JSON object per line, none twice."""
    tail = spawn("tail", "--json")
    assert tail.stderr.readline().startswith("following")

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            while not select([tail.stdout], [], [], 0.05)[0]:  # it begins some time after it says so
                await sessions.checkpoint("lesson-1", "begun", {})
            for n in range(20):
                await sessions.checkpoint("lesson-1", f"live-{n}", {"n": n})
                await asyncio.sleep(0.005)

    asyncio.run(save())
    events = [json.loads(tail.stdout.readline())]
    while events[-1]["name"] != "live-19":
        events.append(json.loads(tail.stdout.readline()))
    assert [event["name"] for event in events if event["name"] != "begun"] == [f"live-{n}" for n in range(20)]
    first = events[0]["seq"]
    assert [event["seq"] for event in events] == list(range(first, first + len(events)))
    tail.send_signal(signal.SIGINT)
    assert tail.wait(60) == 130
    assert "Traceback" not in tail.stderr.read()


def test_tail_of_one_session_starts_with_its_newest(spawn, samples):
    """It prints the newest entries as `tail` does, then waits."""
    tail = spawn("tail", "lesson-1", "-n", "2")
    lines = [tail.stdout.readline().split() for _ in range(2)]
    assert [line[1:3] for line in lines] == [["6", "resumed"], ["7", "rollback"]]
