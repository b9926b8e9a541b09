"""Steps: effects that happen once, whoever asks, whatever dies between."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.manager.test_holding import Shaky, gone, settled

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

MODES = ("idempotent", "at_most_once", "at_least_once")


class World:
    """What happened outside, and how often."""

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
    [head] = await manager._store.heads([("default", session_id)])  # noqa: SLF001
    entries = await manager._store.entries(head.row.key)  # noqa: SLF001
    return [entry.kind.label for entry in entries if entry.kind.label.startswith("step")]


async def crashed(ann, bob, **step):
    """A step that started and never ended, in the hands of the next worker."""
    held = await ann.take("s")
    await held.begin_step("charge", mode="at_most_once", **step)
    await gone(ann)
    [claimed] = await bob.claim()
    return await claimed.__aenter__()


# Once


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", ["act", "act_async"])
async def test_a_finished_step_is_never_run_again(ann, bob, world, mode, verb):
    """Its result is returned instead: to the same holder, to the next one, and after the holder's death."""
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


async def test_a_step_is_known_by_its_name_and_key(held, world):
    """Another name or another key is another step; the same is the same, whatever function is handed over."""
    made = [await held.step(*step, world.act, key=key) for step, key in [(("a",), None), (("b",), None), (("a",), "1")]]
    made.append(await held.step("a", world.act, key="2"))
    assert made == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert await held.step("a", world.fail, key="1") == {"n": 3}
    assert await held.step("a", world.fail) == {"n": 1}
    told = [(step.name, step.key) for step in await held.steps()]
    assert told == [("a", None), ("b", None), ("a", "1"), ("a", "2")]
    assert len({step.idempotency_key for step in await held.steps()}) == 4


async def test_in_a_loop_each_needs_a_key(held, world):
    """The same step without a key and with other arguments is refused, before anything happens; with keys it runs."""
    await held.step("mail", world.act, "anna")
    with pytest.raises(InvalidInput, match="key"):
        await held.step("mail", world.act, "bert")
    assert await held.step("mail", world.act, "anna") == {"n": 1}
    for who in ("anna", "bert"):
        await held.step("mail", world.act, who, key=who)
    assert world.effects == [("anna",), ("anna",), ("bert",)]


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "twice"}, {"on_unknown": "shrug"}, {"key": ""}, {"key": 7}, {"key": "x" * 201}, {"name": ""}],
)
async def test_what_makes_no_sense_is_refused_before_anything_happens(held, world, wrong):
    """An unknown mode or answer, an empty name or key: `InvalidInput`, no effect, no entry."""
    with pytest.raises(InvalidInput):
        await held.step(**{"name": "charge", "fn": world.act, **wrong})
    assert world.effects == []
    assert await held.steps() == []


async def test_many_callers_of_one_step_share_one_run(held, world):
    """Asked for at once by many, a step runs once and all get its result; other keys run meanwhile."""
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


async def test_the_holder_saves_while_a_step_runs(held, world):
    """A step under way keeps nobody from writing; its result lands behind what came meanwhile."""

    async def saving():
        await held.checkpoint("within", {"n": 1})
        return world.act()

    await held.step("charge", saving, mode="at_most_once")
    assert held.data == {"n": 1}
    await held.checkpoint("after", append={"list": [1]})
    assert held.data == {"n": 1, "list": [1]}


# The idempotency key


@pytest.mark.parametrize("mode", MODES)
async def test_the_idempotency_key_is_the_same_on_every_run(ann, bob, world, mode):
    """Whoever runs the step gets the same key: after a failure, a rollback, a restart, another worker's takeover."""

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


async def test_unknown_fails_unless_told_otherwise(ann, bob, world):
    """A step that started and never ended is `StepUnknown` for whoever asks again, and is not run."""
    held = await crashed(ann, bob, key="k")
    for _ in range(2):
        with pytest.raises(StepUnknown) as told:
            await held.step("charge", world.act, key="k", mode="at_most_once")
        assert (told.value.name, told.value.key) == ("charge", "k")
    assert world.effects == []
    [step] = await held.steps()
    assert step.state == "started"
    assert await held.step("charge", world.act, key="other", mode="at_most_once") == {"n": 1}
    await held.release()


async def test_unknown_may_be_skipped(ann, bob, world):
    """`skip` gives None, for good: no later call runs it."""
    held = await crashed(ann, bob)
    assert await held.step("charge", world.act, mode="at_most_once", on_unknown="skip") is None
    assert await held.step("charge", world.act, mode="at_most_once") is None
    assert await held.step("charge", world.act, on_unknown="retry") is None
    assert world.effects == []
    assert await kinds(bob) == ["step_started", "step_finished"]
    await held.release()


async def test_unknown_may_be_run_again(ann, bob, world):
    """`retry` runs it, after another durable start."""
    held = await crashed(ann, bob)
    assert await held.step("charge", world.act, mode="at_most_once", on_unknown="retry") == {"n": 1}
    assert await held.step("charge", world.act, mode="at_most_once") == {"n": 1}
    assert await kinds(bob) == ["step_started", "step_started", "step_finished"]
    await held.release()


@pytest.mark.parametrize("is_async", [False, True])
async def test_unknown_may_be_found_out(ann, bob, world, is_async):
    """A function is asked with the step; what it gives counts as the result, and the step itself is not run."""
    held = await crashed(ann, bob, key="k")
    asked = []

    def find_out(step):
        asked.append(step)
        return {"found": step.idempotency_key}

    async def find_out_async(step):
        await asyncio.sleep(0)
        return find_out(step)

    how = find_out_async if is_async else find_out
    made = await held.step("charge", world.act, key="k", mode="at_most_once", on_unknown=how)
    assert await held.step("charge", world.act, key="k", mode="at_most_once", on_unknown=how) == made
    assert len(asked) == 1
    assert (asked[0].name, asked[0].key, asked[0].state) == ("charge", "k", "started")
    assert made == {"found": asked[0].idempotency_key}
    assert world.effects == []
    await held.release()


async def test_what_could_not_be_found_out_stays_unknown(ann, bob, world):
    """When the function that was asked raises, that is raised, and the step stays unknown."""
    held = await crashed(ann, bob)
    with pytest.raises(OSError, match="no answer"):
        await held.step("charge", world.act, mode="at_most_once", on_unknown=world.fail)
    with pytest.raises(StepUnknown):
        await held.step("charge", world.act, mode="at_most_once")
    assert len(world.effects) == 1
    await held.release()


@pytest.mark.parametrize("mode", ["idempotent", "at_least_once"])
async def test_the_other_modes_run_what_never_ended(ann, bob, world, mode):
    """Only `at_most_once` minds a run that never ended: the others journal no start, and run again."""
    held = await ann.take("s")
    await held.begin_step("charge", mode=mode)
    await gone(ann)
    async with (await bob.claim())[0] as held:
        assert await held.step("charge", world.act, mode=mode) == {"n": 1}
    assert await kinds(bob) == ["step_finished"]


async def test_the_start_is_durable_before_anything_happens(held, bob):
    """With `at_most_once` others see the start while the function runs; with the other modes there is none."""
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
async def test_what_a_step_raises_is_journaled_and_raised_again(ann, bob, world, mode):
    """The first caller gets the exception itself; later ones `StepFailed`, without a run, until someone says retry."""
    async with ann.hold("s") as held:
        with pytest.raises(OSError, match="no answer"):
            await held.step("charge", world.fail, mode=mode)
        [step] = await held.steps()
        assert (step.state, step.error) == ("failed", "OSError: no answer")
        with pytest.raises(StepFailed) as told:
            await held.step("charge", world.act, mode=mode)
        assert (told.value.name, told.value.error) == ("charge", "OSError: no answer")
    async with bob.hold("s") as held:
        with pytest.raises(StepFailed):
            await held.step("charge", world.act, mode=mode, on_unknown="retry")
        assert len(world.effects) == 1
        assert await held.step("charge", world.act, mode=mode, retry=True) == {"n": 2}
        assert await held.step("charge", world.act, mode=mode, retry=True) == {"n": 2}
    assert len(world.effects) == 2


async def test_a_long_error_is_kept_in_part(held):
    """Whatever a library prints, the journal keeps enough to read, and the step counts as failed."""

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
async def test_a_result_comes_back_as_it_was(ann, bob, result):
    """Every value that a state may hold may be a result; the first caller and later ones get the same."""
    async with ann.hold("s") as held:
        assert await held.step("x", lambda: result) == result
        assert await held.step("x", dict) == result
    async with bob.hold("s") as held:
        again = await held.step("x", dict)
        assert again == result
        assert type(again) is type(result)


async def test_the_first_caller_gets_what_later_ones_will(held):
    """A tuple becomes a list at once, not only after a crash; nobody shares the function's own objects."""
    mine = {"list": (1, 2)}
    first = await held.step("x", lambda: mine)
    assert first == {"list": [1, 2]} == await held.step("x", dict)
    mine["more"] = 1
    assert await held.step("x", dict) == {"list": [1, 2]}


async def test_a_large_result_is_fine(ann, bob):
    """5 MB come back whole, to this holder and to the next, and do not stand in the agent's data."""
    big = {"text": "".join(map(chr, range(0x4E00, 0x9000))) * 100, "n": 1}
    async with ann.hold("s") as held:
        await held.checkpoint("one", {"n": 1})
        assert await held.step("fetch", lambda: big, mode="at_most_once") == big
        assert held.data == {"n": 1}
    async with bob.hold("s") as held:
        assert await held.step("fetch", dict) == big


async def test_a_result_that_cannot_be_stored_has_happened(ann, bob, world):
    """The first caller is told why, later ones that it happened and its result is not known; it is not run again."""

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


async def test_a_result_over_the_limit_has_happened(stores, world):
    """The same for one that is too large."""
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
async def test_a_rollback_does_not_undo_what_happened(held, world, mode):
    """Steps are facts: on the new branch a finished one gives its result, a failed one stays failed."""
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
async def test_a_caller_that_is_cancelled_inside_its_step(ann, bob, world, mode):
    """A cancelled run is no failure: `at_most_once` does not know what became of it, the others run it again; whoever
    waited for the same step is not left waiting.
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
async def test_a_step_cancelled_at_any_moment_happens_at_most_once(ann, world, after):
    """Wherever it is cancelled, an `at_most_once` step has run once or never; asked again it never runs twice."""
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


async def test_a_paused_session_takes_steps_and_an_ended_one_does_not(held, world):
    """A step is work: it follows the same rule as a checkpoint."""
    await held.pause()
    assert await held.step("charge", world.act) == {"n": 1}
    await held.complete()
    with pytest.raises((InvalidTransition, LeaseLost)):
        await held.step("other", world.act)
    assert len(world.effects) == 1


async def test_a_zombie_starts_nothing(ann, bob, world):
    """After a takeover an `at_most_once` step of the former holder does not run, and no result of it is journaled."""
    zombie = await ann.take("s")
    run = await zombie.begin_step("under way", mode="at_most_once")
    await gone(ann)
    async with (await bob.claim())[0] as held:
        with pytest.raises(LeaseLost):
            await zombie.step("late", world.act, mode="at_most_once")
        with pytest.raises(LeaseLost):
            await zombie.finish_step(run, 1)
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
async def test_a_step_whose_result_got_lost_on_the_way(shaky, bob, world, mode, fault):
    """When the answer to journaling the result is lost, the retry gives that result without another run."""
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
async def test_a_step_whose_start_got_lost_on_the_way(shaky, bob, world, fault):
    """When the answer to the durable start is lost nothing has run yet: the holder's own retry knows that, and runs."""
    sessions, store = shaky
    async with sessions.hold("s") as held:
        store.fault = fault
        with pytest.raises(Unavailable):
            await held.step("charge", world.act, mode="at_most_once")
        assert world.effects == []
        assert await held.step("charge", world.act, mode="at_most_once") == {"n": 1}
    assert await kinds(bob) == ["step_started", "step_finished"]


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_a_failure_that_got_lost_on_the_way(shaky, bob, world, fault):
    """When the answer to journaling a failure is lost it is journaled once, and stays one."""
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
def test_the_same_for_synchronous_callers(tmp_path, world, url):
    """Blocking steps run in the caller's thread and follow the same rules: results, failures, unknown, keys."""
    threads = []

    def act(n, *, idempotency_key):
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
            held.begin_step("unknown", mode="at_most_once").end()
        with sessions.hold("s") as held:
            with pytest.raises(StepUnknown):
                held.step("unknown", world.act, mode="at_most_once")
            found = held.step("unknown", world.act, mode="at_most_once", on_unknown=lambda step: step.name)
            assert found == "unknown"
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
async def test_a_function_that_a_call_does_not_run_is_refused(held, fn):
    """Before anything is journaled; one that only shows it by what it returns has failed, and may be run again."""
    with pytest.raises(InvalidInput, match="fn: is a generator"):
        await held.step("list", fn)
    assert await held.steps() == []
    with pytest.raises(InvalidInput, match="fn: returned a generator"):
        await held.step("list", lambda made=fn: made())
    assert [step.state for step in await held.steps()] == ["failed"]
    assert await held.step("list", lambda: [1], retry=True) == [1]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise KeyError


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
@pytest.mark.parametrize("exc", [ValueError("half \ud800"), Unreadable()])
async def test_an_error_without_a_text_to_store_is_journaled_too(held, exc, mode):
    """It reaches the caller as it is, and the step has failed."""

    def fails():
        raise exc

    with pytest.raises(type(exc)) as caught:
        await held.step("odd", fails, mode=mode)
    assert caught.value is exc
    [step] = await held.steps()
    assert (step.state, step.error.partition(":")[0]) == ("failed", type(exc).__name__)
    with pytest.raises(StepFailed):
        await held.step("odd", fails, mode=mode)


async def test_a_step_inside_itself_is_refused(held):
    """It would wait for itself; another one, or another key, may stand inside."""

    async def outer():
        return await held.step("outer", outer)

    with pytest.raises(InvalidInput, match="by itself"):
        await asyncio.wait_for(held.step("outer", outer), 5)

    async def around():
        return await held.step("around", lambda: 1, key="inner") + await held.step("inner", lambda: 1)

    assert await held.step("around", around) == 2


@pytest.mark.parametrize("mode", ["idempotent", "at_least_once"])
async def test_what_was_begun_as_at_most_once_stays_so(ann, bob, world, mode):
    """Who forgets the mode when he goes on does not charge twice: the unknown is told, until he says what to do."""
    held = await crashed(ann, bob)
    with pytest.raises(StepUnknown):
        await held.step("charge", world.act, mode=mode)
    assert world.effects == []
    assert await held.step("charge", world.act, mode=mode, on_unknown="retry") == {"n": 1}
    await held.release()
