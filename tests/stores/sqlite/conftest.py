import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import saveslot

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def another() -> Iterator[Start]:
    """Starts `another.py`; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    script = Path(__file__).with_name("another.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(saveslot.__file__).parents[1])}

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), *map(str, arguments)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
