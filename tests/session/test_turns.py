"""Callers of one session take turns, and a cancelled caller does not lose the turn."""

from __future__ import annotations

import asyncio

from saveslot.session.log import Turns


async def test_cancelled_waiter_does_not_lose_the_turn() -> None:
    """A cancelled waiter may not have run yet when the lock is handed on: the next waiter still gets it."""
    turns = Turns()
    turns.take()

    async def wait() -> None:
        async with turns:
            pass

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    turns.give()
    async with asyncio.timeout(60):
        await wait()  # in this task, so before the other has heard
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert turns.wanted == 0


async def test_waiter_cancelled_after_getting_the_lock_passes_it_on() -> None:
    """A waiter cancelled right after it got the lock hands it to the next; in the end no waiter is left."""
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
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert (order, turns.wanted) == ([1, 3], 0)
