"""The running event loop, for those who ask for it at every checkpoint.

Before Python 3.12 asyncio makes a system call to answer that (has the process forked?), which takes as long as hashing
a kilobyte several times over. A loop that says that it runs in this thread is the one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

if sys.version_info >= (3, 12):
    running = asyncio.get_running_loop
else:

    class _Last(threading.local):
        loop: asyncio.AbstractEventLoop | None = None

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
