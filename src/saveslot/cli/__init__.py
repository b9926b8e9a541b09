"""The command `saveslot`. Needs the extra: pip install 'saveslot[cli]'."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

# Errors of a write to a file, a pipe or a terminal.
UNWRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not sys.stdin:  # closed, as by `<&-`
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115  (until the end)
    if not sys.stderr:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if not sys.stdout:  # do nothing, since the result could not be shown
        print("saveslot: stdout is closed; use >/dev/null to discard the output", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _answered(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:  # before a command was running
        return 130
    except OSError as exc:
        if exc.filename is not None or exc.errno not in UNWRITTEN:
            raise
        return _unwritten(exc)


def _answered(tokens: list[str]) -> int:
    if tokens in (["--version"], ["-V"], ["version"]):
        from saveslot import __version__

        print(f"saveslot {__version__}")
        return 0
    try:
        return _ended(lambda: _run(tokens))
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in {"cyclopts", "rich"}:
            raise
        print("saveslot: the command line needs the extra: pip install 'saveslot[cli]'", file=sys.stderr)
        return 1


def _unwritten(exc: OSError) -> int:
    """The output could not be written. Say so, unless its reader just went away."""
    from saveslot.cli import exits
    from saveslot.cli.screen import note
    from saveslot.values import codes

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python flushes again at exit; give it a sink
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if isinstance(exc, BrokenPipeError):
        return exits.BROKEN_PIPE
    with suppress(OSError):  # the terminal itself may be gone
        note(f"saveslot: cannot write the output ({exc.strerror})")
    return codes.FAILURE


def _run(tokens: list[str]) -> None:
    import asyncio
    import inspect

    from saveslot.cli.app import after_command, app
    from saveslot.cli.help import fill
    from saveslot.cli.screen import console

    words = after_command(tokens)
    command, bound, _ = app.parse_args(words)
    if "console" in bound.arguments:  # a help page
        bound.arguments["console"] = page = console(sys.stdout)
        fill(app, next((word for word in words if not word.startswith("-")), None), page.width)
    answer = command(*bound.args, **bound.kwargs)
    if inspect.iscoroutine(answer) and asyncio.run(_interrupted(answer)):
        raise KeyboardInterrupt


async def _interrupted(answer: Coroutine[Any, Any, None]) -> bool:
    """True if Ctrl-C was raised inside: asyncio would report it as an exception that was never retrieved."""
    try:
        await answer
    except KeyboardInterrupt:
        return True
    return False


def _ended(run: Callable[[], None]) -> int:
    """Run a command; turn every way it can end into an exit code and at most one message."""
    from cyclopts import CycloptsError

    from saveslot.cli import exits
    from saveslot.cli.app import complaint
    from saveslot.cli.screen import note
    from saveslot.errors import SaveslotError
    from saveslot.values import codes
    from saveslot.values.advice import reworded

    try:
        run()
    except SaveslotError as exc:
        hint = "; run `saveslot doctor` for the extent of the damage" if exc.code == "corrupt" else ""
        note(f"saveslot: {reworded(str(exc), 'command')}{hint}")
        return exits.exit_code(exc)
    except CycloptsError as exc:
        note(f"saveslot: {complaint(exc)}")
        return codes.USAGE
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else codes.OK if exc.code is None else codes.FAILURE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return codes.OK
