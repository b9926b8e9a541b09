"""What a visitor types while the demo plays, on a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

HINT = "keys: 1-3 choose an agent, then k kills it, s stops or continues it, r restarts it"


class Keys:
    def __init__(self) -> None:
        self._typed = ""

    def typed(self) -> str:
        """The keys since the last call."""
        keys, self._typed = self._typed, ""
        return keys

    def read(self) -> None:
        data = os.read(sys.stdin.fileno(), 64)
        self._typed += data.decode(errors="ignore")
        if not data:  # closed
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


@contextmanager
def keys() -> Generator[Keys | None]:
    """Read single keys from the terminal, and give it back as it was; None if stdin or stdout is not one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield None
        return
    import termios  # not available on Windows, where there is no demo
    import tty

    terminal, loop, pressed = sys.stdin.fileno(), asyncio.get_running_loop(), Keys()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, pressed.read)
    try:
        yield pressed
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
