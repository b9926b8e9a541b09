"""A pager for output that is longer than the terminal, as in git: `$PAGER`, by default `less -FRX`. Never in a pipe."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

# Flags of less unless LESS is set: quit if it fits, keep colours, leave the text on the screen.
LESS = "FRX"


def page(text: str) -> None:
    """Print a text to stdout, through the pager if it does not fit."""
    words = _pager()
    if words is None or text.count("\n") < _height():
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    environ = {"LESS": LESS, "LESSCHARSET": "utf-8"} | os.environ
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environ) as process:  # noqa: S603  (the user's own choice)
        # Ctrl-C is for the pager, which stays until its reader leaves.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(BrokenPipeError):  # left before the end
                process.communicate(text.encode(errors="backslashreplace"))
        finally:
            signal.signal(signal.SIGINT, before)


def _height() -> int:
    """Lines of the terminal; one whose size is unknown holds any text."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or sys.maxsize
    except OSError:
        return sys.maxsize


def _pager() -> list[str] | None:
    """The pager's command line; None if there is none, or it is `cat`."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return None
    return words if words and words != ["cat"] and shutil.which(words[0]) else None
