"""The command `saveslot` with a clock that a test sets: `python -m tests.page.still CLOCK serve --store …`.

CLOCK is a file of eight bytes, microseconds since 1970. All that the store measures goes by it: times of entries,
leases, ages. What only paces the program (timeouts, sleeping) goes by the machine's own clock, so nothing waits for
ever. Random bytes come in the same order every time.
"""

from __future__ import annotations

import datetime as dt
import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import Any


class Clock:
    """The file that the server reads, for whoever sets it."""

    def __init__(self, file: Path, at: dt.datetime) -> None:
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._bytes = mmap.mmap(opened.fileno(), 8)
        self.file = file
        self.set(at.timestamp())

    def set(self, seconds: float) -> None:
        self.seconds = seconds
        self._bytes[:] = round(seconds * 1_000_000).to_bytes(8, "little")


class _Any(type):
    """Times that others made count as ours."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, dt.datetime)


class Still(dt.datetime, metaclass=_Any):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return dt.datetime.fromtimestamp(time.time(), tz)


def main(clock: str, argv: list[str]) -> int:
    with Path(clock).open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)

    def nanoseconds() -> int:
        return int.from_bytes(shared[:8], "little") * 1000

    time.time_ns = time.monotonic_ns = nanoseconds
    time.time = lambda: nanoseconds() / 1e9
    os.urandom = random.Random(20).randbytes

    from saveslot import cli
    from saveslot.session import worker
    from saveslot.values import checks

    checks.datetime = Still
    worker.Worker.patience = 0  # it has been up for long enough to tell who is silent
    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
