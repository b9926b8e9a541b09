"""Steps: effects that happen once, whichever caller asks and whatever dies in between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from saveslot import (
    InvalidInput,
    InvalidTransition,
    LeaseLost,
    SessionManager,
    StepFailed,
    StepUnknown,
    TooLarge,
    Unavailable,
    blocking,
)
from tests.session.test_held import Shaky, gone, settled

# Most of these look at what the second call of a step returns.
pytestmark = pytest.mark.filterwarnings("ignore:step .* ran before in this hold")
MODES = ("idempotent", "at_most_once", "at_least_once")


class World:
    """Counts the effects outside Saveslot."""

    def __init__(self):
        self.effects = []
        self.keys = []

    def act(self, *args):
        self.effects.append(args)
        return {"n": len(self.effects)}

    async def act_async(self, *args):
        await asyncio.sleep(0)
        return self.act(*args)

    def act_keyed(self, *args, idempotency_key):
        self.keys.append(idempotency_key)
        return self.act(*args)

    def fail(self, *args):
        self.effects.append(args)
        raise OSError("no answer")


@pytest.fixture
def world():
    return World()


@pytest.fixture
async def ann(stores):
    manager = SessionManager(store=stores[0])
    await manager.create_session("tutor", session_id="s")
    yield manager
    await settled(manager)
    await gone(manager)


@pytest.fixture
async def bob(stores):
    manager = SessionManager(store=stores[1])
    yield manager
    await settled(manager)
    await gone(manager)


@pytest.fixture
async def held(ann):
    async with ann.hold("s") as held:
        yield held


async def kinds(manager, session_id="s"):
    [head] = await manager.engine.vault.heads([("default", session_id)])
    entries = await manager.engine.vault.entries(head.row.key)
    return [entry.kind.label for entry in entries if entry.kind.label.startswith("step")]


async def crashed(ann, bob, **step):
    """A step that started and never ended, as the next worker finds it."""
    held = await ann.take("s")
    await held.runs.begin(held.call("charge", print, mode="at_most_once", **step))
    await gone(ann)
    [claimed] = await bob.claim()
    return await claimed.__aenter__()


# Once


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", ["act", "act_async"])
async def test_finished_step_is_never_rerun(ann, bob, world, mode, verb):
    """Its stored result is returned instead: to the same holder, to the next one, and after the holder's death."""
    fn = getattr(world, verb)
    async with ann.hold("s") as held:
        for _ in range(3):
            assert await held.step("charge", fn, 1, "a", mode=mode) == {"n": 1}
        [step] = await held.steps()
        assert (step.name, step.key, step.state, step.error) == ("charge", None, "finished", "")
    lost = await ann.take("s")
    assert await lost.step("charge", fn, 1, "a", mode=mode) == {"n": 1}
    await gone(ann)
    async with (await bob.claim())[0] as held:
        assert await held.step("charge", fn, 1, "a", mode=mode) == {"n": 1}
    assert world.effects == [(1, "a")]
    started = ["step_started"] if mode == "at_most_once" else []
    assert await kinds(bob) == [*started, "step_finished"]


async def test_step_is_identified_by_name_and_key(held, world):
    """Another name or key is another step; the same name and key are the same step, whatever function is passed."""
    items = [
        await held.step(*step, world.act, key=key) for step, key in [(("a",), None), (("b",), None), (("a",), "1")]
    ]
    items.append(await held.step("a", world.act, key="2"))
    assert items == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert await held.step("a", world.fail, key="1") == {"n": 3}
    assert await held.step("a", world.fail) == {"n": 1}
    items = [(step.name, step.key) for step in await held.steps()]
    assert items == [("a", None), ("b", None), ("a", "1"), ("a", "2")]
    assert len({step.idempotency_key for step in await held.steps()}) == 4


async def test_steps_in_a_loop_need_keys(held, world):
    """The same step with other arguments and no key is refused before it runs; with keys it runs."""
    await held.step("mail", world.act, "anna")
    with pytest.raises(InvalidInput, match="key"):
        await held.step("mail", world.act, "bert")
    assert await held.step("mail", world.act, "anna") == {"n": 1}
    for who in ("anna", "bert"):
        await held.step("mail", world.act, who, key=who)
    assert world.effects == [("anna",), ("anna",), ("bert",)]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"mode": "twice"}, {"on_unknown": "shrug"}, {"key": ""}, {"key": 7}, {"key": "x" * 201}, {"name": ""}),
        *({"retries": -1}, {"retries": 1.5}, {"backoff": -1}, {"retry_on": "OSError"}, {"retry_on": KeyboardInterrupt}),
        *({"timeout": 0}, {"timeout": "60"}, {"timeout": 1, "run_in_thread": False}, {"name": None}),
    ],
)
async def test_bad_step_arguments_are_refused_before_running(held, world, wrong):
    """An unknown mode or `unknown` policy, or an empty name or key, is `InvalidInput`: no effect, no entry."""
    with pytest.raises(InvalidInput):
        await held.step(wrong.get("name", "charge"), world.act, **{k: v for k, v in wrong.items() if k != "name"})
    assert world.effects == []
    assert await held.steps() == []


async def test_concurrent_callers_share_one_run(held, world):
    """Called many times at once, a step runs once and all callers get its result; other keys run meanwhile."""
    gate = asyncio.Event()

    async def slow():
        await gate.wait()
        return world.act()

    calls = [asyncio.ensure_future(held.step("charge", slow)) for _ in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert await held.step("other", world.act, key="k") == {"n": 1}
    gate.set()
    assert await asyncio.gather(*calls) == [{"n": 2}] * 10
    assert len(world.effects) == 2


async def test_holder_can_save_while_a_step_runs(held, world):
    """A running step blocks no writes; its result lands after the entries written meanwhile."""

    async def saving():
        await held.checkpoint("within", {"n": 1})
        return world.act()

    await held.step("charge", saving, mode="at_most_once")
    assert held.data == {"n": 1}
    await held.checkpoint("after", append={"list": [1]})
    assert held.data == {"n": 1, "list": [1]}


# The idempotency key


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
async def test_idempotency_key_is_stable_across_runs(ann, bob, world, mode):
    """Every run of a step gets the same key: after a failure, a rollback, a restart or a takeover by another worker."""

    def broken(*, idempotency_key):
        world.keys.append(idempotency_key)
        raise OSError("no answer")

    held = await ann.take("s")
    await held.checkpoint("one", {"n": 1})
    with pytest.raises(OSError, match="no answer"):
        await held.step("charge", broken, key="k", mode=mode)
    await held.rollback("one")
    with pytest.raises(OSError, match="no answer"):
        await held.step("charge", broken, key="k", mode=mode, retry=True)
    await gone(ann)
    async with (await bob.claim())[0] as held:
        await held.step("charge", world.act_keyed, key="k", mode=mode, retry=True)
        [step] = await held.steps()
        await held.step("charge", world.act_keyed, key="other", mode=mode)
    assert world.keys[:3] == [step.idempotency_key] * 3
    assert world.keys[3] != world.keys[0]
    await bob.create_session("tutor", session_id="t")
    async with bob.hold("t") as held:
        await held.step("charge", world.act_keyed, key="k", mode=mode)
    assert world.keys[4] not in world.keys[:4]


# Unknown


async def test_unknown_step_raises_by_default(ann, bob, world):
    """A step that started and never ended raises `StepUnknown` on the next call, and does not run."""
    held = await crashed(ann, bob, key="k")
    for _ in range(2):
        with pytest.raises(StepUnknown) as error:
            await held.step("charge", world.act, key="k", mode="at_most_once")
        assert (error.value.name, error.value.key) == ("charge", "k")
    assert world.effects == []
    [step] = await held.steps()
    assert step.state == "started"
    assert await held.step("charge", world.act, key="other", mode="at_most_once") == {"n": 1}
    await held.release()


async def test_unknown_step_can_be_skipped(ann, bob, world):
    """`skip` returns None, permanently: no later call runs it."""
    held = await crashed(ann, bob)
    assert await held.step("charge", world.act, mode="at_most_once", on_unknown="skip") is None
    assert await held.step("charge", world.act, mode="at_most_once") is None
    assert await held.step("charge", world.act, on_unknown="retry") is None
    assert world.effects == []
    assert await kinds(bob) == ["step_started", "step_finished"]
    await held.release()


async def test_unknown_step_can_be_retried(ann, bob, world):
    """`retry` runs it, after another durable start."""
    held = await crashed(ann, bob)
    assert await held.step("charge", world.act, mode="at_most_once", on_unknown="retry") == {"n": 1}
    assert await held.step("charge", world.act, mode="at_most_once") == {"n": 1}
    assert await kinds(bob) == ["step_started", "step_started", "step_finished"]
    await held.release()


@pytest.mark.parametrize("is_async", [False, True])
async def test_unknown_step_can_be_resolved_by_a_function(ann, bob, world, is_async):
    """The function is called with the step; its return value becomes the result, and the step does not run."""
    held = await crashed(ann, bob, key="k")
    items = []

    def find_out(step):
        items.append(step)
        return {"found": step.idempotency_key}

    async def find_out_async(step):
        await asyncio.sleep(0)
        return find_out(step)

    how = find_out_async if is_async else find_out
    answer = await held.step("charge", world.act, key="k", mode="at_most_once", on_unknown=how)
    assert await held.step("charge", world.act, key="k", mode="at_most_once", on_unknown=how) == answer
    assert len(items) == 1
    assert (items[0].name, items[0].key, items[0].state) == ("charge", "k", "started")
    assert answer == {"found": items[0].idempotency_key}
    assert world.effects == []
    await held.release()


async def test_failed_resolver_leaves_the_step_unknown(ann, bob, world):
    """An exception of the resolving function propagates, and the step stays unknown."""
    held = await crashed(ann, bob)
    with pytest.raises(OSError, match="no answer"):
        await held.step("charge", world.act, mode="at_most_once", on_unknown=world.fail)
    with pytest.raises(StepUnknown):
        await held.step("charge", world.act, mode="at_most_once")
    assert len(world.effects) == 1
    await held.release()


@pytest.mark.parametrize("mode", ["idempotent", "at_least_once"])
async def test_other_modes_rerun_unfinished_steps(ann, bob, world, mode):
    """Only `at_most_once` tracks unfinished runs: the other modes journal no start, and run again."""
    held = await ann.take("s")
    await held.runs.begin(held.call("charge", print, mode=mode))
    await gone(ann)
    async with (await bob.claim())[0] as held:
        assert await held.step("charge", world.act, mode=mode) == {"n": 1}
    assert await kinds(bob) == ["step_finished"]


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once", "at_least_once"])
async def test_only_at_least_once_passes_no_idempotency_key(held, mode):
    """A function that takes a key gets the step's, unless it may run any number of times."""

    async def act(idempotency_key=None):
        return idempotency_key

    assert (await held.step("charge", act, mode=mode) is None) == (mode == "at_least_once")


async def test_start_is_durable_before_the_function_runs(held, bob):
    """With `at_most_once` others see the start while the function runs; the other modes journal none."""
    seen = {}

    async def look(mode):
        seen[mode] = await kinds(bob)

    for mode in MODES:
        await held.step("look", look, mode, key=mode, mode=mode)
    assert seen == {
        "idempotent": [],
        "at_most_once": ["step_finished", "step_started"],
        "at_least_once": ["step_finished", "step_started", "step_finished"],
    }


# Failures


@pytest.mark.parametrize("mode", MODES)
async def test_step_failure_is_journaled(ann, bob, world, mode):
    """The first caller gets the exception itself; later ones `StepFailed`, without a run, until a caller
    passes retry.
    """
    async with ann.hold("s") as held:
        with pytest.raises(OSError, match="no answer"):
            await held.step("charge", world.fail, mode=mode)
        [step] = await held.steps()
        assert (step.state, step.error) == ("failed", "OSError: no answer")
        with pytest.raises(StepFailed) as error:
            await held.step("charge", world.act, mode=mode)
        assert (error.value.name, error.value.error) == ("charge", "OSError: no answer")
    async with bob.hold("s") as held:
        with pytest.raises(StepFailed):
            await held.step("charge", world.act, mode=mode, on_unknown="retry")
        assert len(world.effects) == 1
        assert await held.step("charge", world.act, mode=mode, retry=True) == {"n": 2}
        assert await held.step("charge", world.act, mode=mode, retry=True) == {"n": 2}
    assert len(world.effects) == 2


async def test_long_error_is_truncated(held):
    """However long the error text, the journal keeps a readable part, and the step counts as failed."""

    def broken():
        raise ValueError("x" * 1_000_000)

    with pytest.raises(ValueError, match="x"):
        await held.step("charge", broken)
    [step] = await held.steps()
    assert step.error.startswith("ValueError: xxx")
    assert len(step.error) <= 2000


# Results


@pytest.mark.parametrize(
    "result",
    [None, 0, "", [], "text 🌱\x00", [1, {"a": None}], {"deep": [[[]]]}, 2**70, 1.5, b"\x00bytes", True],
)
async def test_results_round_trip(ann, bob, result):
    """Every value that a state may hold may be a result; the first caller and later ones get the same."""
    async with ann.hold("s") as held:
        assert await held.step("x", lambda: result) == result
        assert await held.step("x", dict) == result
    async with bob.hold("s") as held:
        again = await held.step("x", dict)
        assert again == result
        assert type(again) is type(result)


async def test_first_caller_gets_the_stored_form(held):
    """A tuple becomes a list at once, not only after a crash; no caller shares the function's own objects."""
    mine = {"list": (1, 2)}
    first = await held.step("x", lambda: mine)
    assert first == {"list": [1, 2]} == await held.step("x", dict)
    mine["more"] = 1
    assert await held.step("x", dict) == {"list": [1, 2]}


async def test_large_result_round_trips(ann, bob):
    """The same holder and the next get all 5 MB back; the result is not part of the agent's data."""
    big = {"text": "".join(map(chr, range(0x4E00, 0x9000))) * 100, "n": 1}
    async with ann.hold("s") as held:
        await held.checkpoint("one", {"n": 1})
        assert await held.step("fetch", lambda: big, mode="at_most_once") == big
        assert held.data == {"n": 1}
    async with bob.hold("s") as held:
        assert await held.step("fetch", dict) == big


async def test_unstorable_result_still_counts_as_run(ann, bob, world):
    """The first caller learns why; later ones, that the step ran and its result is unknown; it is not rerun."""

    def act():
        world.act()
        return object()

    async with ann.hold("s") as held:
        with pytest.raises(InvalidInput):
            await held.step("charge", act, mode="at_most_once")
    async with bob.hold("s") as held:
        for retry in (False, True):
            with pytest.raises(InvalidInput, match="happened"):
                await held.step("charge", act, mode="at_most_once", retry=retry)
    assert len(world.effects) == 1


async def test_oversized_result_still_counts_as_run(stores, world):
    """The same holds for a result that is too large."""
    sessions = SessionManager(store=stores[0], max_state_bytes=10_000)
    await sessions.create_session("tutor", session_id="small")
    async with sessions.hold("small") as held:
        with pytest.raises(TooLarge):
            await held.step("fetch", lambda: world.act() and "x" * 20_000)
        with pytest.raises(InvalidInput, match="happened"):
            await held.step("fetch", lambda: world.act() and "x" * 20_000)
        await held.checkpoint("goes on", {"n": 1})
    assert len(world.effects) == 1
    await gone(sessions)


# What comes between


@pytest.mark.parametrize("mode", MODES)
async def test_rollback_does_not_undo_steps(held, world, mode):
    """On the new branch a finished step returns its result, and a failed one stays failed."""
    await held.checkpoint("one", {"n": 1})
    await held.step("charge", world.act, mode=mode)
    with pytest.raises(OSError, match="no answer"):
        await held.step("broken", world.fail, mode=mode)
    await held.checkpoint("two", {"n": 2})
    await held.rollback("one")
    assert held.data == {"n": 1}
    assert await held.step("charge", world.act, mode=mode) == {"n": 1}
    with pytest.raises(StepFailed):
        await held.step("broken", world.act, mode=mode)
    assert len(world.effects) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_run_is_not_a_failure(ann, bob, world, mode):
    """After a cancelled run an `at_most_once` step is unknown, and other modes run it again; callers waiting for the
    same step are released.
    """
    begun = asyncio.Event()

    async def endless():
        world.act()
        begun.set()
        await asyncio.Event().wait()

    async with ann.hold("s") as held:
        call = asyncio.ensure_future(held.step("charge", endless, mode=mode))
        await begun.wait()
        waiting = asyncio.ensure_future(held.step("charge", world.act, mode=mode))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if mode == "at_most_once":
            with pytest.raises(StepUnknown):
                await waiting
        else:
            assert await waiting == {"n": 2}
    assert len(world.effects) == (1 if mode == "at_most_once" else 2)


@pytest.mark.parametrize("after", range(8))
async def test_at_most_once_holds_under_cancellation(ann, world, after):
    """Cancelled at any point, an `at_most_once` step has run once or never; calling it again never runs it twice."""
    async with ann.hold("s") as held:
        call = asyncio.ensure_future(held.step("charge", world.act_async, mode="at_most_once"))
        for _ in range(after):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await settled(ann)
        ran = len(world.effects)
        try:
            assert await held.step("charge", world.act_async, mode="at_most_once") == {"n": 1}
        except StepUnknown:
            assert [step.state for step in await held.steps()] == ["started"]
            assert len(world.effects) == ran
        else:
            assert len(world.effects) == 1
        await held.checkpoint("goes on", {"n": 1})


async def test_paused_session_allows_steps_and_ended_refuses(held, world):
    """A step follows the same state rules as a checkpoint."""
    await held.pause()
    assert await held.step("charge", world.act) == {"n": 1}
    await held.complete()
    with pytest.raises((InvalidTransition, LeaseLost)):
        await held.step("other", world.act)
    assert len(world.effects) == 1


async def test_zombie_cannot_start_a_step(ann, bob, world):
    """After a takeover the former holder's `at_most_once` step does not run, and no result of it is journaled."""
    zombie = await ann.take("s")
    run = await zombie.runs.begin(zombie.call("under way", print, mode="at_most_once"))
    await gone(ann)
    async with (await bob.claim())[0] as held:
        with pytest.raises(LeaseLost):
            await zombie.step("late", world.act, mode="at_most_once")
        with pytest.raises(LeaseLost):
            await zombie.runs.finish(run, 1)
        run.end()
        assert world.effects == []
        assert [(step.name, step.state) for step in await held.steps()] == [("under way", "started")]


# Lost acknowledgements


@pytest.fixture
async def shaky(stores, ann):
    store = Shaky(stores[0])
    manager = SessionManager(store=store)
    yield manager, store
    await settled(manager)
    await gone(manager)


@pytest.mark.parametrize("fault", ["late", "never"])
@pytest.mark.parametrize("mode", MODES)
async def test_lost_answer_to_a_result_is_retried_without_a_rerun(shaky, bob, world, mode, fault):
    """When the answer to journaling the result is lost, the retry returns that result without another run."""
    sessions, store = shaky

    def act():
        store.fault = fault
        return world.act()

    async with sessions.hold("s") as held:
        with pytest.raises(Unavailable):
            await held.step("charge", act, mode=mode)
        assert await held.step("charge", act, mode=mode) == {"n": 1}
    async with bob.hold("s") as held:
        assert await held.step("charge", act, mode=mode) == {"n": 1}
    assert len(world.effects) == 1
    assert (await kinds(bob)).count("step_finished") == 1


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_lost_answer_to_a_start_runs_once(shaky, bob, world, fault):
    """When the answer to the durable start is lost nothing has run: the holder's own retry knows that, and runs it."""
    sessions, store = shaky
    async with sessions.hold("s") as held:
        store.fault = fault
        with pytest.raises(Unavailable):
            await held.step("charge", world.act, mode="at_most_once")
        assert world.effects == []
        assert await held.step("charge", world.act, mode="at_most_once") == {"n": 1}
    assert await kinds(bob) == ["step_started", "step_finished"]


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_lost_answer_to_a_failure_is_journaled_once(shaky, bob, world, fault):
    """When the answer to journaling a failure is lost, the failure is journaled once, and stays a failure."""
    sessions, store = shaky

    def broken():
        store.fault = fault
        return world.fail()

    async with sessions.hold("s") as held:
        with pytest.raises(Unavailable):
            await held.step("charge", broken)
        with pytest.raises(StepFailed):
            await held.step("charge", broken)
    assert len(world.effects) == 1
    assert await kinds(bob) == ["step_failed"]


# For synchronous callers


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
def test_blocking_steps_follow_the_same_rules(tmp_path, world, url):
    """Blocking steps run in the caller's thread with the same results, failures, unknown outcomes and keys."""
    threads = []

    def act(n, *, idempotency_key=""):
        threads.append(threading.get_ident())
        world.keys.append(idempotency_key)
        return world.act(n)

    with blocking.open(url if url == "memory:" else f"sqlite:///{tmp_path}/s.db") as sessions:
        sessions.create_session("tutor", session_id="s")
        with sessions.hold("s") as held:
            for mode in MODES:
                first = held.step("charge", act, 1, key=mode, mode=mode)
                assert held.step("charge", act, 1, key=mode, mode=mode) == first
            with pytest.raises(OSError, match="no answer"):
                held.step("broken", world.fail)
            with pytest.raises(StepFailed):
                held.step("broken", world.act)
            assert held.step("broken", world.act, retry=True) == {"n": 5}
            unknown = held.call("unknown", print, mode="at_most_once")
            held.resident.run(lambda inner: inner.runs.begin(unknown)).end()
        with sessions.hold("s") as held:
            with pytest.raises(StepUnknown):
                held.step("unknown", world.act, mode="at_most_once")
            answer = held.step("unknown", world.act, mode="at_most_once", on_unknown=lambda step: step.name)
            assert answer == "unknown"
            assert [step.state for step in held.steps()] == ["finished"] * 5
        with pytest.raises(LeaseLost):
            held.step("late", world.act)
    assert set(threads) == {threading.get_ident()}
    assert len(set(world.keys)) == 3
    assert len(world.effects) == 5


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize("fn", [generator, async_generator])
async def test_generator_function_is_refused(held, fn):
    """It is refused before anything is journaled; a function that returns a generator has failed, and
    can be retried.
    """
    with pytest.raises(InvalidInput, match="fn: is a generator"):
        await held.step("list", fn)
    assert await held.steps() == []
    with pytest.raises(InvalidInput, match="fn: returned a generator"):
        await held.step("list", lambda result=fn: result())
    assert [step.state for step in await held.steps()] == ["failed"]
    assert await held.step("list", lambda: [1], retry=True) == [1]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise KeyError


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
@pytest.mark.parametrize("exc", [ValueError("half \ud800"), Unreadable()])
async def test_error_with_unstorable_text_is_journaled(held, exc, mode):
    """The caller gets the original exception, and the step has failed."""

    def fails():
        raise exc

    with pytest.raises(type(exc)) as caught:
        await held.step("odd", fails, mode=mode)
    assert caught.value is exc
    [step] = await held.steps()
    assert (step.state, step.error.partition(":")[0]) == ("failed", type(exc).__name__)
    with pytest.raises(StepFailed):
        await held.step("odd", fails, mode=mode)


async def test_steps_that_call_each_other_are_refused(held):
    """Both run, and each would wait for the other."""
    running = {name: asyncio.Event() for name in "ab"}

    async def call(mine, other):
        running[mine].set()
        await running[other].wait()
        return await held.step(other, lambda: 1, key="k")

    calls = [held.step(mine, call, mine, other, key="k") for mine, other in ("ab", "ba")]
    refused, failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert isinstance(refused, InvalidInput)
    assert "waits for a step that called it" in str(refused)
    assert isinstance(failed, StepFailed)


async def test_recursive_step_is_refused(held):
    """It would wait for itself; another step, or the same with another key, may be nested."""

    async def outer():
        return await held.step("outer", outer)

    with pytest.raises(InvalidInput, match="calls itself"):
        await asyncio.wait_for(held.step("outer", outer), 60)

    async def around():
        return await held.step("around", lambda: 1, key="inner") + await held.step("inner", lambda: 1)

    assert await held.step("around", around) == 2


@pytest.mark.parametrize("mode", ["idempotent", "at_least_once"])
async def test_at_most_once_start_outlives_the_mode(ann, bob, world, mode):
    """A later call without the mode does not rerun it: it raises StepUnknown until the caller chooses a policy."""
    held = await crashed(ann, bob)
    with pytest.raises(StepUnknown):
        await held.step("charge", world.act, mode=mode)
    assert world.effects == []
    assert await held.step("charge", world.act, mode=mode, on_unknown="retry") == {"n": 1}
    await held.release()


async def test_unstorable_answer_of_on_unknown_leaves_the_step_unknown(sessions, others, session):
    """Whether it happened is still unknown: the next answer counts."""

    async def interrupted() -> None:
        raise asyncio.CancelledError

    async with sessions.hold(session) as held:
        with pytest.raises(asyncio.CancelledError):
            await held.step("pay", interrupted, mode="at_most_once")
        with pytest.raises(InvalidInput):
            await held.step("pay", interrupted, mode="at_most_once", on_unknown=lambda _: object())
        assert [step.state for step in await held.steps()] == ["started"]
        assert await held.step("pay", interrupted, mode="at_most_once", on_unknown=lambda _: "paid") == "paid"
