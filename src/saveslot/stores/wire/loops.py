"""What asyncio of Python 3.11 lacks: a fast get_running_loop, and cancellation that tasks cannot miss."""

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

    # Before 3.12 asyncio makes a system call to answer (has the process forked?), which takes as long as hashing
    # several kilobytes, and every checkpoint calls it. A loop that reports this thread's id is the running one.
    _last = _Last()

    def _forget() -> None:
        _last.loop = None

    # In a child forked by a coroutine, the parent's loop still reports that it runs.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)

    def running() -> asyncio.AbstractEventLoop:
        """As `asyncio.get_running_loop`."""
        loop = _last.loop
        # asyncio's own loops set it while they run; for others, call asyncio each time.
        if getattr(loop, "_thread_id", None) != threading.get_ident():
            loop = _last.loop = asyncio.get_running_loop()
        return loop  # pyright: ignore[reportReturnType]


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, at most this long. Before 3.12 `wait_for` loses a cancellation that meets its event."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def stopped(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel these tasks until they have ended: `wait_for`, which drivers use, can lose a cancellation."""
    going = {task for task in tasks if task is not None}
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=0.1)
