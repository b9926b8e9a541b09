"""Attempts at a step: retries, pauses, timeouts, threads, marked functions, and steps side by side."""

# ruff: noqa: F811  (pytest finds imported fixtures by the names of arguments)

from __future__ import annotations

import asyncio
import threading
import warnings
from contextvars import ContextVar
from datetime import timedelta
from functools import partial

import pytest

import saveslot
from saveslot import InvalidInput, StepFailed, StepUnknown, blocking
from saveslot.session import step_calls
from tests.session.test_held import gone, settled
from tests.session.test_steps import World, ann, bob, held, kinds, world  # noqa: F401

LONG = 60.0  # seconds that a test never waits


def failing(times, world, error=OSError):
    """A function that fails `n` times, then succeeds."""

    def act(*args):
        world.effects.append(args)
        if len(world.effects) <= times:
            raise error(f"no answer {len(world.effects)}")
        return {"n": len(world.effects)}

    return act


async def journal(manager):
    return [(line.kind, line.metadata) for line in await manager.log("s", all=True) if line.kind.startswith("step")]


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once", "at_least_once"])
async def test_failed_attempts_are_retried_and_journaled(ann, held, mode):
    """Each attempt is an entry; the step finishes with the first result, and later calls return that."""
    world = World()
    answer = await held.step("ask", failing(2, world), 1, key="k", retries=3, backoff=0, mode=mode)
    assert answer == {"n": 3} == await held.step("ask", world.act, 1, key="k")
    assert world.effects == [(1,)] * 3
    [step] = await held.steps()
    assert (step.state, step.attempts) == ("finished", 3)
    items = [(kind, note) for kind, note in await journal(ann) if kind != "step_started"]
    assert items == [
        ("step_failed", {"key": "k", "error": "OSError: no answer 1", "again": True}),
        ("step_failed", {"key": "k", "attempt": 2, "error": "OSError: no answer 2", "again": True}),
        ("step_finished", {"key": "k", "attempt": 3}),
    ]
    assert (await kinds(ann)).count("step_started") == (3 if mode == "at_most_once" else 0)


async def test_step_that_fails_after_its_retries_stays_failed(held):
    """The last error is raised, later calls get `StepFailed`, and `retry=True` counts again."""
    world = World()
    with pytest.raises(OSError, match="no answer 3"):
        await held.step("ask", failing(9, world), retries=2, backoff=0)
    [step] = await held.steps()
    assert (step.state, step.attempts, step.error) == ("failed", 3, "OSError: no answer 3")
    with pytest.raises(StepFailed):
        await held.step("ask", world.act, retries=9)
    assert len(world.effects) == 3
    assert await held.step("ask", failing(4, world), retries=1, backoff=0, retry=True) == {"n": 5}
    assert [step.attempts for step in await held.steps()] == [2]


@pytest.mark.parametrize("retry_on", [TimeoutError, (TimeoutError, KeyError)])
async def test_only_errors_of_retry_on_are_retried(held, retry_on):
    """Any other error fails the step at once; so does a function that returned a generator."""
    world = World()
    with pytest.raises(ValueError, match="no answer 2"):
        await held.step(
            "ask", lambda: failing(1, world, TimeoutError)() if not world.effects else failing(2, world, ValueError)(),
            retries=5, backoff=0, retry_on=retry_on,
        )  # fmt: skip
    assert [(step.state, step.attempts) for step in await held.steps()] == [("failed", 2)]
    with pytest.raises(InvalidInput, match="returned a generator"):
        await held.step("list", lambda: (n for n in "abc"), retries=5, backoff=0)
    assert [(step.name, step.attempts) for step in await held.steps()] == [("ask", 2), ("list", 1)]


def test_pauses_double_with_jitter():
    """Before attempt n+1 it is backoff times 2^(n-1), give or take a fifth."""
    options = step_calls.Options(backoff=0.5)
    for attempt, seconds in ((2, 0.5), (3, 1), (4, 2), (5, 4)):
        pauses = [options.pause(attempt) for _ in range(200)]
        assert 0.8 * seconds <= min(pauses) < max(pauses) <= 1.2 * seconds
    assert step_calls.Options(backoff=1e300).pause(5000) < float("inf")
    assert step_calls.Options(backoff=0).pause(9) == 0


async def test_step_pauses_before_the_next_attempt(held, monkeypatch):
    """The pause comes before the second attempt, and before nothing else."""
    pauses, sleep = [], asyncio.sleep

    async def noted(seconds):
        if seconds < 100:  # the store's own, in the background
            return await sleep(seconds)
        pauses.append(seconds)
        return await sleep(0)

    monkeypatch.setattr("saveslot.session.runs.asyncio.sleep", noted)
    world = World()
    await held.step("ask", failing(1, world), retries=3, backoff=1000)
    assert [800 <= pause <= 1200 for pause in pauses] == [True]


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
async def test_attempts_go_on_counting_after_a_takeover(ann, bob, mode):
    """A worker that dies between two attempts leaves the count to the next one, which has no more than the rest."""
    world, options = World(), {"retries": 2, "mode": mode}
    lost = await ann.take("s")
    failed = asyncio.Event()

    async def act():
        world.effects.append(())
        failed.set()
        raise OSError("no answer")

    call = asyncio.ensure_future(lost.step("ask", act, backoff=LONG, **options))
    await failed.wait()
    while [step.state for step in await lost.steps()] != ["retrying"]:  # noqa: ASYNC110  (the entry is on its way)
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await settled(ann)
    await gone(ann)
    async with (await bob.claim())[0] as claimed:
        [step] = await claimed.steps()
        assert (step.state, step.attempts) == ("retrying", 1)
        with pytest.raises(StepFailed, match="retry=True"):
            await claimed.step("ask", act, mode=mode)  # this call allows no second attempt
        with pytest.raises(OSError, match="no answer"):
            await claimed.step("ask", act, backoff=0, **options)
        assert [(step.state, step.attempts) for step in await claimed.steps()] == [("failed", 3)]
    assert len(world.effects) == 3


# Timeouts and threads


@pytest.mark.parametrize("mode", ["idempotent", "at_least_once"])
async def test_async_attempt_that_takes_too_long_is_cancelled_and_retried(held, mode):
    """Its timeout is a failure like any other: `TimeoutError`, journaled, retried if `retry_on` has it."""
    ended = []

    async def slow():
        try:
            await asyncio.sleep(LONG if len(ended) < 2 else 0)
        finally:
            ended.append(1)
        return len(ended)

    assert await held.step("ask", slow, timeout=0.01, retries=2, backoff=0, mode=mode) == 3
    with pytest.raises(TimeoutError, match=r"step 'never' took longer than 0\.01 s"):
        await held.step("never", asyncio.sleep, LONG, timeout=0.01, retries=3, retry_on=ValueError, mode=mode)
    assert [(step.state, step.attempts) for step in await held.steps()] == [("finished", 3), ("failed", 1)]


async def test_durations_of_a_step_may_be_timedeltas(held):
    """`timeout` and `backoff` take seconds or a timedelta, like every duration."""
    short = timedelta(milliseconds=10)
    with pytest.raises(TimeoutError, match=r"took longer than 0\.01 s"):
        await held.step("never", asyncio.sleep, LONG, timeout=short, retries=1, backoff=short)
    [step] = await held.steps()
    assert (step.state, step.attempts) == ("failed", 2)
    with pytest.raises(InvalidInput, match="timeout: must be more than 0 seconds"):
        await held.step("none", asyncio.sleep, 0, timeout=timedelta(0))


async def test_timeout_of_at_most_once_is_unknown(held):
    """Its outcome is not known: `on_unknown` decides at once. An error that `fn` raises is known, and retried."""
    world = World()

    async def slow(seconds=LONG):
        world.effects.append(())
        await asyncio.sleep(seconds)
        return "done"

    once = partial(held.step, timeout=0.01, mode="at_most_once", retries=1, backoff=0)
    with pytest.raises(StepUnknown):
        await once("a", slow)
    assert len(world.effects) == 1
    assert await once("b", slow, on_unknown="skip") is None
    assert await once("c", slow, on_unknown=lambda step: f"found {step.name}") == "found c"
    assert len(world.effects) == 3
    with pytest.raises(StepUnknown):
        await once("d", slow, on_unknown="retry")
    assert len(world.effects) == 5
    states = {step.name: (step.state, step.attempts) for step in await held.steps()}
    assert states == {"a": ("started", 1), "b": ("finished", 2), "c": ("finished", 2), "d": ("started", 2)}
    assert await held.step("e", failing(1, World(), TimeoutError), mode="at_most_once", retries=1, backoff=0) == {
        "n": 2
    }


async def test_thread_that_timed_out_is_retried_only_once_it_ended(held):
    """A thread cannot be stopped: if it ends within another timeout the step is retried, otherwise it is unknown."""
    world, gate, begun = World(), threading.Event(), threading.Event()

    def slow():
        world.effects.append(())
        begun.set()
        gate.wait(LONG)
        return len(world.effects)

    with pytest.raises(StepUnknown, match="still runs in its thread"):
        await held.step("ask", slow, timeout=0.05, retries=3, backoff=0)
    assert len(world.effects) == 1
    assert [(step.state, step.attempts) for step in await held.steps()] == [("retrying", 1)]
    again = asyncio.ensure_future(held.step("ask", slow, retries=3, backoff=0))
    await asyncio.sleep(0)
    assert len(world.effects) == 1  # without a timeout it waits for the thread
    gate.set()
    assert await again == 2
    assert [(step.state, step.attempts) for step in await held.steps()] == [("finished", 2)]


async def test_cancelled_thread_is_not_overtaken(held):
    """Cancelling the caller leaves the thread running: the next call waits until it has ended."""
    begun, gate, running = threading.Event(), threading.Event(), []

    def slow():
        running.append(1)
        assert len(running) == 1
        begun.set()
        gate.wait(LONG)
        running.pop()
        return "done"

    call = asyncio.ensure_future(held.step("ask", slow))
    await asyncio.to_thread(begun.wait, LONG)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    again = asyncio.ensure_future(held.step("ask", slow))
    await asyncio.sleep(0)
    gate.set()
    assert await again == "done"


async def test_sync_functions_run_in_a_thread(held):
    """The event loop keeps running meanwhile, context variables are carried over; `run_in_thread=False` forbids it."""
    who = ContextVar("who", default="")
    who.set("anna")
    loop, turned = asyncio.get_running_loop(), threading.Event()

    def slow():
        loop.call_soon_threadsafe(turned.set)
        return [who.get(), turned.wait(LONG), threading.get_ident() == here]

    here = threading.get_ident()
    assert await held.step("a", slow) == ["anna", True, False]
    assert await held.step("b", lambda: threading.get_ident() == here, run_in_thread=False) is True
    assert await held.step("c", lambda: asyncio.sleep(0, "awaited")) == "awaited"

    async def act():
        return threading.get_ident() == here

    assert await held.step("d", act) is True
    with pytest.raises(InvalidInput, match="run_in_thread"):
        await held.step("e", act, run_in_thread=True)


# Arguments


async def test_keyword_arguments_go_to_the_function(held):
    """Also `name`; names of the options do not, and `functools.partial` passes those."""

    async def act(*args, **kwargs):
        return [list(args), kwargs]

    assert await held.step("a", act, 1, name="n", unit="EUR", key="k") == [[1], {"name": "n", "unit": "EUR"}]
    assert await held.step("b", partial(act, key="mine"), 1, timeout=LONG) == [[1], {"key": "mine"}]
    await held.step("c", act, unit="EUR")
    with pytest.raises(InvalidInput, match="other arguments"):
        await held.step("c", act, unit="USD")


async def test_repeated_step_without_a_key_warns_once(ann, held):
    """The warning names the step and points at the caller; another hold, a key, or a repeated failure is silent."""
    with pytest.warns(RuntimeWarning, match="step 'send' ran before in this hold.*pass a key") as records:
        items = [await held.step("send", lambda text=f"sent {n}": text) for n in range(4)]
    assert items == ["sent 0"] * 4
    [warning] = records
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            await held.step("keyed", lambda: 1, key="k")
        await held.release()
        async with ann.hold("s") as later:
            assert await later.step("send", lambda: "") == "sent 0"


@saveslot.step("mark", retries=2, backoff=0)
async def marked(world, *, fail=0):
    return failing(fail, world)()


async def test_marked_function_knows_its_name_and_options(held):
    """`held.step(fn, *args)`; options of the call win, and the function can still be called directly."""
    world = World()
    assert await held.step(marked, world, fail=2) == {"n": 3}
    assert [(step.name, step.attempts) for step in await held.steps()] == [("mark", 3)]
    with pytest.raises(OSError, match="no answer 1"):
        await held.step(marked, World(), fail=2, key="k", retries=0)
    assert await held.step("other name", marked, World(), fail=2) == {"n": 3}
    assert await marked(World()) == {"n": 1}
    with pytest.raises(InvalidInput, match=r"@saveslot\.step"):
        await held.step(world.act)
    with pytest.raises(InvalidInput, match="retrys"):
        saveslot.step("x", retrys=3)
    with pytest.raises(InvalidInput, match="retries"):
        saveslot.step("x", retries=-3)
    with pytest.raises(InvalidInput, match="name"):
        saveslot.step("")


# Side by side


async def test_gather_runs_steps_side_by_side(held):
    """All run at once, each is journaled under its own key, and the results come in the order of the calls."""
    together = asyncio.Barrier(3)

    async def act(n):
        await together.wait()
        return n

    calls = [held.call("ask", act, n, key=str(n)) for n in range(3)]
    assert await held.gather(*calls) == (0, 1, 2)
    assert await held.gather(*calls) == (0, 1, 2)
    assert sorted(step.key for step in await held.steps()) == ["0", "1", "2"]
    assert await held.gather() == ()
    with pytest.raises(InvalidInput, match="calls"):
        await held.gather(act)


async def test_gather_waits_for_all_and_raises_the_first_error(held):
    """The steps that finished are journaled as finished: a second gather runs only the others."""
    world = World()

    async def act(n):
        world.effects.append(n)
        await asyncio.sleep(0)
        if n % 2:
            raise OSError(f"no answer to {n}")
        return n

    with pytest.raises(OSError, match="no answer to 1"):
        await held.gather(*(held.call("ask", act, n, key=str(n)) for n in range(4)))
    assert {step.key: step.state for step in await held.steps()} == {
        "0": "finished",
        "1": "failed",
        "2": "finished",
        "3": "failed",
    }
    again = [held.call("ask", str, n, key=str(n), retry=True) for n in range(4)]
    assert await held.gather(*again) == (0, "1", 2, "3")
    assert sorted(world.effects) == [0, 1, 2, 3]


# For synchronous callers


def test_blocking_attempts_follow_the_same_rules(url):
    """Retries in the caller's thread; `timeout`, `run_in_thread` and `gather` in threads of their own."""
    here, world = threading.get_ident(), World()
    with blocking.open(url) as sessions:
        sessions.create_session("tutor", session_id="s")
        with sessions.hold("s") as held:
            assert held.step("ask", failing(2, world), 1, retries=2, backoff=0) == {"n": 3}
            assert [step.attempts for step in held.steps()] == [3]
            assert held.step("there", threading.get_ident) == here
            assert held.step("elsewhere", threading.get_ident, timeout=LONG) != here
            assert held.step("else", threading.get_ident, run_in_thread=True) != here
            with pytest.raises(TimeoutError):
                held.step("slow", threading.Event().wait, LONG, timeout=0.01)
            barrier = threading.Barrier(3)

            def act(n, *, to):
                barrier.wait(LONG)
                return [n, to]

            calls = [held.call("side", act, n, to="b", key=str(n)) for n in range(3)]
            assert held.gather(*calls) == ([0, "b"], [1, "b"], [2, "b"])
            with pytest.raises(OSError, match="no answer"):
                held.gather(held.call("ok", lambda: 1), held.call("broken", world.fail))
            assert {step.name: step.state for step in held.steps()}["ok"] == "finished"
            with pytest.raises(InvalidInput, match="async"):
                held.step(marked, world)
            with pytest.warns(RuntimeWarning, match="step 'ok' ran before") as records:
                held.step("ok", lambda: 2)
            assert [one.filename for one in records] == [__file__]
