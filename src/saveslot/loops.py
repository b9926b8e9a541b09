"""What asyncio before Python 3.12 does slowly (tell which loop runs) or not at all times (end a task)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

if sys.version_info >= (3, 12):
    running = asyncio.get_running_loop
else:

    class _Last(threading.local):
        loop: asyncio.AbstractEventLoop | None = None

    # Asyncio makes a system call to answer (has the process forked?), which takes as long as hashing a kilobyte several
    # times over. For those who ask at every checkpoint: a loop that says that it runs in this thread is the one.
    _last = _Last()

    def _forget() -> None:
        _last.loop = None

    # In a child that was forked by a coroutine the parent's loop still says that it runs.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)

    def running() -> asyncio.AbstractEventLoop:
        """As `asyncio.get_running_loop`."""
        loop = _last.loop
        # What asyncio's own loops carry while they run; others do not, and are asked for each time.
        if getattr(loop, "_thread_id", None) != threading.get_ident():
            loop = _last.loop = asyncio.get_running_loop()
        return loop  # pyright: ignore[reportReturnType]


async def stopped(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel them until they have ended: in `wait_for`, which clients of servers use, a cancellation can get lost."""
    going = {task for task in tasks if task is not None}
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=0.1)
