"""A small store with every kind of session, copied for each test; the command in this process, or as a subprocess."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from time import monotonic

import pytest

import saveslot
from saveslot.cli import main

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
NOTES = (
    "Anna likes short examples with food. She mixes up numerator and denominator when she is in a hurry. "
    "Her teacher says bottom number for the denominator. Next lesson is on Thursday."
)
LONG = "Think of a pizza cut into four pieces. " * 40


@dataclass
class Answer:
    code: int
    out: str
    err: str


@dataclass
class Samples:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"


async def _fill(url: str) -> None:
    async with saveslot.open(url) as sessions:
        lesson = await sessions.create_session(
            "tutor", "anna", {"topic": "fractions"}, {"source": "web"}, labels={"env": "prod"}, session_id="lesson-1"
        )
        messages = [
            {"role": "system", "content": "You are a tutor."},
            {"role": "user", "content": "What is 1/2 + 1/4?"},
        ]
        state = {"messages": messages, "plan": {"step": 1, "todo": ["explain", "exercise"]}, "notes": NOTES}
        await sessions.checkpoint(lesson, "task_received", state)  # 2
        call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":"1/2","b":"1/4"}'}}
        messages.append({"role": "assistant", "content": "Let me see.", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "3/4"})
        await sessions.checkpoint(lesson, "tool_called", state)  # 3
        messages.append({"role": "assistant", "content": LONG})
        state["plan"]["step"] = 2
        state["notes"] = NOTES.replace("food", "pizza").replace("Thursday", "Friday")
        await sessions.checkpoint(lesson, "answered", state, {"model": "small"})  # 4
        lesson.pause()
        lesson.resume()
        await sessions.update_session(lesson)  # 5, 6
        await sessions.rollback("lesson-1", "task_received")  # 7
        graded = await sessions.create_session("grader", "bo", session_id="lesson-10")
        await sessions.checkpoint(graded, "read", {"essay": "The moon"})
        graded.complete({"grade": "B+"})
        await sessions.update_session(graded)
        failed = await sessions.create_session("orchestrator", session_id="nightly")
        failed.fail("timeout", {"tool": "pytest"})
        await sessions.update_session(failed)
        paused = await sessions.create_session("tutor", "cleo", session_id="mail:cleo@example.org")
        paused.pause()
        await sessions.update_session(paused)


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.db"
    asyncio.run(_fill(f"sqlite:///{path}"))
    return path


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Isolate tests from this machine's and user's settings."""
    for name in ("SAVESLOT_URL", "SAVESLOT_HOT", "SAVESLOT_NAMESPACE", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@pytest.fixture
def samples(template, tmp_path, monkeypatch) -> Samples:
    path = tmp_path / "samples.db"
    shutil.copy(template, path)
    monkeypatch.setenv("SAVESLOT_URL", f"sqlite:///{path}")
    return Samples(path)


@pytest.fixture
def run(capsys) -> Callable[..., Answer]:
    """The command in this process."""

    def run(*argv: str) -> Answer:
        capsys.readouterr()
        code = main(argv)
        return Answer(code, *capsys.readouterr())

    return run


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "saveslot.cli", *argv]


@pytest.fixture
def spawn():
    """The command as a process of its own; ended with the test."""
    running: list[subprocess.Popen] = []

    def spawn(*argv: str, **options) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        running.append(subprocess.Popen(command(*argv), **pipes))
        return running[-1]

    yield spawn
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Terminal:
    """The command on a terminal of 100 columns."""

    def __init__(self, *argv: str, rows: int = 40, columns: int = 100, **env: str) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environ = os.environ | {"TERM": "xterm-256color"} | env
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        # A session of its own, whose terminal this is: Ctrl-C reaches it.
        self.process = subprocess.Popen(
            command(*argv),
            **streams,
            env=environ,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (no threads here)
        )
        os.close(slave)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end inside a character

    def until(self, text: str, patience: float = 60) -> str:
        end = monotonic() + patience
        while text not in self.seen and monotonic() < end and self._read():
            pass
        assert text in self.seen, self.seen
        return self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self, patience: float = 60) -> int:
        while self._read():
            pass
        code = self.process.wait(patience)
        os.close(self._master)
        return code

    @property
    def seen(self) -> str:
        """The screen's text, without colours."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += self._decoder.decode(data)
        return bool(data)


def _take_terminal() -> None:
    ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def open_terminal(*argv: str, **options) -> Terminal:
        opened.append(Terminal(*argv, **options))
        return opened[-1]

    yield open_terminal
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
