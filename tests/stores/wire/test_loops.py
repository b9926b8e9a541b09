"""The running event loop, and reliably stopping tasks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from saveslot.stores.wire.loops import running, stopped


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons mind the threads; the child uses none
async def test_running_loop_is_per_thread() -> None:
    """In other threads, and in a child forked by a coroutine, it is the loop that runs there."""
    assert running() is asyncio.get_running_loop()

    async def same() -> bool:
        return running() is asyncio.get_running_loop()

    items: list[bool] = []
    thread = threading.Thread(target=lambda: items.append(asyncio.run(same())))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert items == [True]
    child = os.fork()
    if not child:
        right = False
        try:
            asyncio.events._set_running_loop(None)  # noqa: SLF001  (what asyncio.run asks in a child: does one run?)
            right = asyncio.new_event_loop().run_until_complete(same())
        finally:
            os._exit(not right)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_task_that_swallows_a_cancellation_is_stopped() -> None:
    """It is cancelled until it has ended; a finished task, or none, needs no waiting."""
    lost = []

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                lost.append(1)
                if len(lost) == 3:
                    raise

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(asyncio.sleep(0))]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await stopped(*tasks, None)
    assert tasks[0].cancelled()
    assert tasks[1].done()
    assert len(lost) == 3
