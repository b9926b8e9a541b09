"""The command `saveslot`. Needs the extra: pip install 'saveslot[cli]'."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

# What a write into a file, a pipe or a terminal fails with.
UNWRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what it ends with is the exit code."""
    if not sys.stdin:  # closed, as by `<&-`
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115  (until the end)
    if not sys.stderr:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if not sys.stdout:  # nobody would learn what was done: nothing is
        print("saveslot: stdout is closed; >/dev/null throws the output away", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that does not speak UTF-8 must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _answered(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:  # before there was anything to end
        return 130
    except OSError as exc:
        if exc.filename is not None or exc.errno not in UNWRITTEN:
            raise
        return _unwritten(exc)


def _answered(tokens: list[str]) -> int:
    if tokens == ["--version"]:
        from saveslot import __version__

        print(f"saveslot {__version__}")
        return 0
    try:
        return _ended(lambda: _run(tokens))
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in {"cyclopts", "rich"}:
            raise
        print("saveslot: the command line needs two more packages: pip install 'saveslot[cli]'", file=sys.stderr)
        return 1


def _unwritten(exc: OSError) -> int:
    """The output found no place. Of a reader that went away nothing is said: it had enough."""
    from saveslot.cli import exits
    from saveslot.cli.screen import note

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python flushes once more at its end; give it what takes everything
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if isinstance(exc, BrokenPipeError):
        return exits.BROKEN_PIPE
    with suppress(OSError):  # the terminal itself may be gone
        note(f"saveslot: the output cannot be written ({exc.strerror})")
    return exits.FAILURE


def _run(tokens: list[str]) -> None:
    import asyncio
    import inspect

    from saveslot.cli.app import app, behind_command
    from saveslot.cli.screen import console

    command, bound, _ = app.parse_args(behind_command(tokens))
    if "console" in bound.arguments:  # a page of help
        bound.arguments["console"] = console(sys.stdout)
    answer = command(*bound.args, **bound.kwargs)
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


def _ended(run: Callable[[], None]) -> int:
    """Every way in which a command can end, as an exit code and at most one message."""
    from cyclopts import CycloptsError

    from saveslot.cli import exits
    from saveslot.cli.app import complaint
    from saveslot.cli.screen import note
    from saveslot.errors import SaveslotError

    try:
        run()
    except SaveslotError as exc:
        hint = "; saveslot doctor tells how far the damage goes" if exc.code == "corrupt" else ""
        note(f"saveslot: {exc}{hint}")
        return exits.exit_code(exc)
    except CycloptsError as exc:
        note(f"saveslot: {complaint(exc)}")
        return exits.USAGE
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else exits.OK if exc.code is None else exits.FAILURE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return exits.OK
