"""Deadlines that share a timer: expired ones raise TimeoutError, all others continue undisturbed."""

from __future__ import annotations

import asyncio

import pytest

from saveslot.stores.wire.deadlines import Deadlines


async def waiting(deadlines: Deadlines, seconds: float | None, over: asyncio.Event) -> str:
    with deadlines.within(seconds):
        await over.wait()
    return "in time"


async def test_only_expired_deadlines_interrupt() -> None:
    """A shorter deadline set later expires first; longer ones, and code without a deadline, are not interrupted."""
    deadlines, over = Deadlines(), asyncio.Event()
    patient = [asyncio.ensure_future(waiting(deadlines, seconds, over)) for seconds in (None, 3600, 7200)]
    await asyncio.sleep(0)
    late = [asyncio.ensure_future(waiting(deadlines, seconds, over)) for seconds in (0.02, 0.01, 0.03)]
    assert [type(error) for error in await asyncio.gather(*late, return_exceptions=True)] == [TimeoutError] * 3
    over.set()
    assert await asyncio.gather(*patient) == ["in time"] * 3


async def test_inner_deadline_ends_only_the_inner_block() -> None:
    """Code after the inner block has the outer deadline's time."""
    deadlines, over = Deadlines(), asyncio.Event()
    with deadlines.within(3600):
        with pytest.raises(TimeoutError):
            await waiting(deadlines, 0.001, over)
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_outside_cancellation_is_not_a_timeout() -> None:
    """It propagates as a cancellation, even when the deadline passes at the same time."""
    deadlines, over = Deadlines(), asyncio.Event()
    for seconds in (3600, 0):
        task = asyncio.ensure_future(waiting(deadlines, seconds, over))
        await asyncio.sleep(0)  # it waits; where it has no time at all, that is over in the next turn
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_blocks_own_error_propagates() -> None:
    """The block's error wins over the timeout if it was raised first."""
    with pytest.raises(KeyError), Deadlines().within(3600):
        raise KeyError
