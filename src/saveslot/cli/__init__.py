"""The command `saveslot`. Needs the extra: pip install 'saveslot[cli]'."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what it ends with is the exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    if tokens == ["--version"]:
        from saveslot import __version__

        print(f"saveslot {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that does not speak UTF-8 must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        return _ended(lambda: _run(tokens))
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in {"cyclopts", "rich"}:
            raise
        print("saveslot: the command line needs two more packages: pip install 'saveslot[cli]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before there was anything to end
        return 130


def _run(tokens: list[str]) -> None:
    import asyncio
    import inspect

    from saveslot.cli.app import app, behind_command

    command, bound, _ = app.parse_args(behind_command(tokens))
    answer = command(*bound.args, **bound.kwargs)
    if inspect.iscoroutine(answer):
        asyncio.run(answer)
    sys.stdout.flush()


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
    except BrokenPipeError:
        # Python flushes stdout once more at its end; give it one that takes everything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    return exits.OK
