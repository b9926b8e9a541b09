"""Exit codes: the one place where they are derived from error codes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from saveslot.errors import SaveslotError

OK, FAILURE, USAGE, CONFLICT, AUTH, NOT_FOUND, UNREACHABLE = range(7)
INTERRUPTED = 130  # as shells report a program stopped by Ctrl-C
BROKEN_PIPE = 141  # … by the end of the program that reads its output
TERMINATED = 143  # … by SIGTERM

BY_CODE = {
    "not_found": NOT_FOUND,
    "conflict": CONFLICT,
    "already_exists": CONFLICT,
    "lease_held": CONFLICT,
    "lease_lost": CONFLICT,
    "invalid_transition": CONFLICT,
    "cancelled": CONFLICT,
    "invalid_input": USAGE,
    "unauthorized": AUTH,
    "forbidden": AUTH,
    "key_missing": AUTH,
    "wrong_key": AUTH,
    "unavailable": UNREACHABLE,
}


class Misuse(SaveslotError):
    """A usage error."""

    code = "invalid_input"


def exit_code(error: SaveslotError) -> int:
    return BY_CODE.get(error.code, FAILURE)


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
