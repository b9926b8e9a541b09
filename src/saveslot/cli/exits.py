"""Exit codes. Those of errors are in `saveslot.values.codes`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from saveslot.errors import SaveslotError
from saveslot.values.codes import meaning

INTERRUPTED = 130  # as shells report a program stopped by Ctrl-C
BROKEN_PIPE = 141  # … by the end of the program that reads its output
TERMINATED = 143  # … by SIGTERM


class Misuse(SaveslotError):
    """A usage error."""

    code = "invalid_input"


def exit_code(error: SaveslotError) -> int:
    return meaning(error.code).exit


async def until_terminated(work: Coroutine[Any, Any, None]) -> bool:
    """Run until done, or until SIGTERM or a closed terminal cancels it (after its cleanup): True in that case."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    signals = () if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
        return False
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is None or current.cancelling():  # Ctrl-C
            raise
        return True
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
