"""Turns of those who wait for a session, and the loop that runs."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from saveslot.loops import running, stopped
from saveslot.slot import Turns


async def test_a_turn_is_not_lost_with_a_cancelled_waiter() -> None:
    """Who was cancelled may not have run yet when the lock is handed on: the next one gets it all the same."""
    turns = Turns()
    turns.take()

    async def wait() -> None:
        async with turns:
            pass

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    turns.give()
    async with asyncio.timeout(10):
        await wait()  # in this task, so before the other has heard
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert turns.wanted == 0


async def test_a_turn_that_was_given_is_passed_on() -> None:
    """Cancelled right after it was given the lock, a waiter hands it to the next; nobody is left who wants it."""
    turns = Turns()
    turns.take()
    order: list[int] = []

    async def wait(n: int) -> None:
        async with turns:
            order.append(n)

    tasks = [asyncio.create_task(wait(n)) for n in range(4)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    turns.give()
    tasks[0].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert (order, turns.wanted) == ([1, 3], 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons mind the threads; the child uses none
async def test_the_running_loop_is_the_threads_own() -> None:
    """In other threads, and in a child that a coroutine forked, it is the loop that runs there."""
    assert running() is asyncio.get_running_loop()

    async def same() -> bool:
        return running() is asyncio.get_running_loop()

    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(same())))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == [True]
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


async def test_a_task_that_loses_a_cancellation_is_stopped() -> None:
    """It is cancelled until it has ended; one that ended, and none at all, are nothing to wait for."""
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
    async with asyncio.timeout(20):
        await stopped(*tasks, None)
    assert tasks[0].cancelled()
    assert tasks[1].done()
    assert len(lost) == 3
