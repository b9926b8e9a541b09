"""Deadlines that share a timer: late ones end in TimeoutError, everybody else goes on as if there were none."""

from __future__ import annotations

import asyncio

import pytest

from saveslot.stores.deadlines import Deadlines


async def waiting(deadlines: Deadlines, seconds: float | None, over: asyncio.Event) -> str:
    with deadlines.within(seconds):
        await over.wait()
    return "in time"


async def test_who_is_late_is_interrupted_and_nobody_else() -> None:
    """A shorter deadline that comes later is met first; longer ones and none at all are left alone."""
    deadlines, over = Deadlines(), asyncio.Event()
    patient = [asyncio.ensure_future(waiting(deadlines, seconds, over)) for seconds in (None, 3600, 7200)]
    await asyncio.sleep(0)
    late = [asyncio.ensure_future(waiting(deadlines, seconds, over)) for seconds in (0.02, 0.01, 0.03)]
    assert [type(error) for error in await asyncio.gather(*late, return_exceptions=True)] == [TimeoutError] * 3
    over.set()
    assert await asyncio.gather(*patient) == ["in time"] * 3


async def test_the_inner_deadline_ends_the_inner_part_only() -> None:
    """What comes after it has the time of the outer one."""
    deadlines, over = Deadlines(), asyncio.Event()
    with deadlines.within(3600):
        with pytest.raises(TimeoutError):
            await waiting(deadlines, 0.001, over)
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_somebody_elses_cancellation_is_no_timeout() -> None:
    """It goes on, also when the deadline passes at the same time."""
    deadlines, over = Deadlines(), asyncio.Event()
    for seconds in (3600, 0):
        task = asyncio.ensure_future(waiting(deadlines, seconds, over))
        await asyncio.sleep(0)  # it waits; where it has no time at all, that is over in the next turn
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_error_of_ones_own_comes_out() -> None:
    """Not the timeout, if it happened before."""
    with pytest.raises(KeyError), Deadlines().within(3600):
        raise KeyError
