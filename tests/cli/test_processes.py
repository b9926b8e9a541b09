"""The command among other processes: pipes, signals, start-up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import apsw
import pytest

import saveslot

from .conftest import command


def test_a_pipe_needs_no_rich(samples):
    """What is not needed is not imported: rich for terminals only, a command's module when it is called."""
    code = "import sys; from saveslot.cli import main; main(['ls']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "saveslot.cli.looking" in loaded
    assert not {"rich.console", "saveslot.cli.acting"} & set(loaded)


def test_a_missing_extra_is_told_in_one_line():
    """Without cyclopts or rich: what to install, and no traceback."""
    for missing in ("cyclopts", "rich"):
        without = f"import sys; sys.modules[{missing!r}] = None"
        code = f"{without}; from saveslot.cli import main; sys.exit(main(['ls', '--help']))"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "saveslot: the command line needs two more packages: pip install 'saveslot[cli]'\n"


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
def test_a_reader_that_goes_away_is_no_error(samples, environ, argv):
    """`saveslot export | head -1`: silent, and ended as a broken pipe ends."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(*argv), check=False, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ)
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert done.stderr.strip() in {"", KEY_ADVICE}


KEY_ADVICE = "keep it where the store is not: without it nobody reads what it seals (SAVESLOT_ENCRYPTION_KEY)"


def test_a_reader_that_goes_away_before_a_failure_is_told(samples, environ):
    """Also a command that ends with another code ends so when its output was not wanted."""
    connection = apsw.Connection(str(samples.path))
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
def test_output_that_finds_no_room_is_told_in_one_line(samples, environ, argv):
    """Exit 1 and the reason, no traceback."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command(*argv), check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 1
    assert done.stderr == "saveslot: the output cannot be written (No space left on device)\n"


def without(number: int, *argv: str) -> subprocess.CompletedProcess:
    """With that stream closed, as by `>&-` in a shell."""
    shell = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *command(*argv)]
    return subprocess.run(shell, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_a_closed_stdout_is_told_in_one_line(samples, run):
    """Nothing is done whose outcome nobody would learn."""
    for argv in (["show", "lesson-1"], ["rm", "lesson-1", "--yes"], ["--version"]):
        done = without(1, *argv)
        assert done.returncode == 1
        assert done.stderr == "saveslot: stdout is closed; >/dev/null throws the output away\n"
    assert run("show", "lesson-1").code == 0


def test_other_closed_streams_do_not_matter(samples):
    """What goes to stderr never turns up on stdout; without stdin there is nobody to ask."""
    done = without(2, "show", "nobody")
    assert (done.returncode, done.stdout) == (5, "")
    done = without(0, "rm", "lesson-1")
    assert done.returncode == 2
    assert "no terminal to ask on" in done.stderr


def test_a_terminal_that_speaks_no_utf8(samples):
    """What it cannot show is escaped; nothing fails."""
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command("log", "lesson-1"), check=True, capture_output=True, env=env)
    assert b"\\u21a9 to 2" in done.stdout


def test_tail_follows_other_processes(spawn, samples):
    """Each entry that another process appends is there within moments, one JSON object a line, none twice."""
    tail = spawn("tail", "--json")
    assert tail.stderr.readline().startswith("following")

    async def save() -> None:
        async with saveslot.open(samples.url) as sessions:
            for n in range(20):
                await sessions.checkpoint("lesson-1", f"live-{n}", {"n": n})
                await asyncio.sleep(0.005)

    time.sleep(0.3)  # it says so right before its first look
    asyncio.run(save())
    events = [json.loads(tail.stdout.readline()) for _ in range(20)]
    assert [event["name"] for event in events] == [f"live-{n}" for n in range(20)]
    assert [event["seq"] for event in events] == list(range(8, 28))
    tail.send_signal(signal.SIGINT)
    assert tail.wait(10) == 130
    assert "Traceback" not in tail.stderr.read()


def test_tail_of_one_session_begins_with_its_newest(spawn, samples):
    """As `tail` does, then it waits."""
    tail = spawn("tail", "lesson-1", "-n", "2")
    lines = [tail.stdout.readline().split() for _ in range(2)]
    assert [line[1:3] for line in lines] == [["6", "resumed"], ["7", "rollback"]]
