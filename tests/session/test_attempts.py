"""An exception loses nothing: a session left by one is an orphan, and its attempts are counted."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import saveslot
from saveslot import InvalidInput, InvalidTransition, LeaseHeld, LeaseLost, SessionManager, SessionState
from saveslot.session.attempts import LONGEST, MAX_ERROR, error_text, pause
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.valkey import ValkeyStore
from saveslot.values.log import NO_WORKER, Query

HOUR = 3600.0
BEAT = {"worker_beat": 0.05, "worker_ttl": 0.5}


class Overload(Exception):
    """What a model may raise."""


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
async def stores(request, tmp_path, clock) -> AsyncIterator[list[Store]]:
    """Two handles on one empty store."""
    if request.param == "memory":
        opened: list[Store] = [MemoryStore(clock)] * 2
    elif request.param == "sqlite":
        opened = [await SqliteStore.open(str(tmp_path / "s.db"), clock) for _ in range(2)]
    elif request.param == "postgres":
        url = await request.getfixturevalue("servers").emptied()
        opened = [await PostgresStore.open(url, clock) for _ in range(2)]
    else:
        url = request.getfixturevalue("valkey_url")
        opened = [await ValkeyStore.open(url, 30 * 24 * HOUR, clock) for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
async def ann(stores) -> AsyncIterator[SessionManager]:
    manager = SessionManager(store=stores[0], backoff=60)
    yield manager
    await left(manager)


@pytest.fixture
async def bob(stores) -> AsyncIterator[SessionManager]:
    """A separate worker, as in another process."""
    manager = SessionManager(store=stores[1], backoff=60)
    yield manager
    await left(manager)


async def left(manager: SessionManager) -> None:
    """End the worker as `close` does, but leave the store open; its sessions become orphans."""
    while manager.running:
        await asyncio.wait(manager.running)
    if manager.engine.worker is not None:
        await manager.engine.worker.leave()


async def crash(held, error: BaseException | None = None) -> None:
    """Leave the block by an exception, which comes out."""
    error = error or Overload("model API down")
    try:
        async with held:
            _raise(error)
    except BaseException as exc:
        if exc is not error:
            raise
    else:
        raise AssertionError("the exception was swallowed")


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await done():
                return
            await asyncio.sleep(0.01)


async def notes(manager: SessionManager, kind: str = "released") -> list[dict]:
    return [line.metadata for line in await manager.log("s", all=True) if line.kind == kind]


# Leaving by an exception


@pytest.mark.parametrize(
    "error",
    [
        Overload("model API down\nand much more"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        SystemExit(3),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_exception_leaves_an_orphan_that_says_why(ann, bob, error):
    """Whatever leaves the block leaves an orphan that counts as one and is claimed at once; its release says why."""
    await ann.create_session("tutor", session_id="s")
    held = await ann.take("s")
    await held.checkpoint("one", {"n": 1})
    await crash(held, error)
    assert await notes(bob) == [{"error": error_text(error), "attempts": 1}]
    assert "\n" not in error_text(error)
    assert (await bob.stats())["orphaned"] == await bob.count(orphaned=True) == 1
    assert [session.session_id for session in await bob.find(orphaned=True)] == ["s"]
    [claimed] = await bob.claim("tutor")
    async with claimed:
        assert claimed.data == {"n": 1}
        with pytest.raises(LeaseLost):
            await held.checkpoint("late", {})
    assert await bob.count(orphaned=True) == 0
    assert await bob.claim() == []


async def test_leaving_normally_leaves_no_orphan(ann, bob):
    """A block that ends normally releases the session: `claim` skips it, and its release has no error."""
    async with ann.hold("s", create="tutor"):
        pass
    assert await notes(bob) == [{}]
    assert await bob.count(orphaned=True) == 0
    assert await bob.claim() == []
    [held] = await bob.claim(released=True)
    await held.release()


async def test_ended_session_stays_ended(ann, bob):
    """An exception after `complete` changes nothing."""
    await ann.create_session("tutor", session_id="s")
    held = await ann.take("s")
    await held.complete()
    await crash(held)
    assert (await bob.get_session("s")).state is SessionState.COMPLETED
    assert await bob.claim() == []


async def test_release_may_name_the_error(ann, bob):
    """Without a block, `release(error=…)` does what leaving the block by that exception does."""
    await ann.create_session("tutor", session_id="s")
    held = await ann.take("s")
    await held.release(error=Overload("no"))
    assert await notes(bob) == [{"error": "Overload: no", "attempts": 1}]
    [again] = await bob.claim()
    await again.release()


async def test_anyone_may_use_what_an_error_released(ann, bob):
    """Until it is claimed, hold works at once, and so does a checkpoint by id, which leaves it claimable."""
    await ann.create_session("tutor", session_id="s")
    for _ in range(3):
        await crash(await ann.take("s"))
    assert await bob.claim() == []  # too early
    await bob.checkpoint("s", "by hand", {"n": 1})
    assert await bob.count(orphaned=True) == 1
    async with ann.hold("s") as held:
        assert held.data == {"n": 1}
        with pytest.raises(LeaseHeld):
            await bob.checkpoint("s", "too late", {})


def test_error_text_is_one_short_line():
    """The release keeps the type and the first line, at most 200 characters, of any exception."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert error_text(Overload("x" * 300)) == f"Overload: {'x' * 300}"[:MAX_ERROR]
    assert error_text(Odd()) == "Odd: (unreadable: ValueError)"
    assert error_text(Overload("\ud800")) == "Overload: \\ud800"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_error_text_of_a_task_group_is_that_of_its_first_error():
    """The group's own text says only how many there are."""
    down, late = OSError("model API down\nsecond line"), TimeoutError()
    assert error_text(ExceptionGroup("unhandled errors in a TaskGroup", [down])) == "OSError: model API down"
    nested = BaseExceptionGroup("outer", [ExceptionGroup("inner", [down, late]), KeyboardInterrupt()])
    assert error_text(nested) == "OSError: model API down (and 2 more)"


async def test_error_reaches_no_log(ann, caplog):
    """An exception's message may be content: it is stored in the session, and never logged."""
    caplog.set_level(logging.DEBUG)
    await ann.create_session("tutor", session_id="s")
    await crash(await ann.take("s"), Overload("the secret"))
    assert "the secret" not in caplog.text


def _raise(error: BaseException) -> None:
    raise error


async def test_error_is_sealed_with_its_session(clock):
    """In a sealed session the release's note is sealed too: without the key the error cannot be read."""
    store = MemoryStore(clock)
    sealing, blind = SessionManager(store=store, encryption_key=bytes(32)), SessionManager(store=store)
    await sealing.create_session("tutor", session_id="s")
    await crash(await sealing.take("s"), Overload("the secret"))
    assert (await notes(sealing))[0]["error"] == "Overload: the secret"
    [row] = await store.find(Query(namespace="default"))
    assert not any(b"secret" in (entry.note or b"") for entry in await store.entries(row.key))
    assert await blind.claim() == []
    [held] = await sealing.claim()
    await held.release()
    await sealing.erase("s")
    assert not any(len(entry.note or b"") > 16 for entry in await store.entries(row.key) if entry.kind == 15)


# Attempts


async def test_pause_grows_and_is_the_same_for_all(ann, bob, clock):
    """One failed attempt is followed at once, later ones after `backoff`, doubled each time, by the store's clock."""
    await ann.create_session("tutor", session_id="s", max_attempts=None)
    await crash(await ann.take("s"))
    [held] = await bob.claim()
    await crash(held)
    for seconds in (60, 120, 240):
        clock.pass_hours(0.7 * seconds / HOUR)
        assert await ann.claim() == await bob.claim() == []
        clock.pass_hours(0.6 * seconds / HOUR)
        [held] = await bob.claim()
        await crash(held)
    assert [note["attempts"] for note in await notes(bob)] == [1, 2, 3, 4, 5]
    assert [note.get("attempts") for note in await notes(bob, "claimed")] == [1, 2, 3, 4]


def test_pause_has_jitter_and_a_cap():
    """Pauses are 75 to 125 % of 1 s, 2 s, 4 s …, and at most five minutes (and jitter)."""
    early, late = bytes(16), bytes([255] * 16)
    assert pause(0, 1, late) == pause(1, 1, late) == 0
    assert [pause(n, 1, early) for n in (2, 3, 4)] == [0.75, 1.5, 3.0]
    assert 1.24 < pause(2, 1, late) < 1.25
    assert pause(10_000, 1, early) == 0.75 * LONGEST


@pytest.mark.parametrize("progress", ["checkpoint", "step", "rollback"])
async def test_progress_starts_the_count_again(ann, bob, progress):
    """A new checkpoint, a rollback or a finished step means that the next failure is the first again."""
    await ann.create_session("tutor", session_id="s", data={})
    for _ in range(3):
        held = await ann.take("s")
        if progress == "checkpoint":
            await held.checkpoint("saved", {})
        elif progress == "step":
            await held.step("ask", lambda: 1, key=held.lease)
        else:
            await held.rollback("created")
        await crash(held)
    assert [note["attempts"] for note in await notes(ann)] == [1, 1, 1]
    [held] = await bob.claim()
    await held.release()


async def test_failed_steps_are_no_progress(ann):
    """A step that failed saved nothing: it counts as another attempt."""
    await ann.create_session("tutor", session_id="s")
    for n in range(3):
        held = await ann.take("s")
        with pytest.raises(Overload):
            async with held:
                await held.step("ask", lambda: _raise(Overload("down")), key=str(n))
    assert [note["attempts"] for note in await notes(ann)] == [1, 2, 3]


async def test_exhausted_session_fails_with_the_last_error(ann, bob):
    """After `max_attempts` the next claimer fails the session, with the last error, instead of taking it."""
    await ann.create_session("tutor", session_id="s", context={"topic": "fractions"}, max_attempts=2)
    await crash(await ann.take("s"))
    [held] = await bob.claim()
    await crash(held, Overload("again"))
    assert await ann.claim() == []
    session = await bob.get_session("s")
    assert session.state is SessionState.FAILED
    assert session.owner is None
    assert session.context == {"topic": "fractions", "failure_reason": "max_attempts"}
    assert session.checkpoints[-1].data == {"error": "Overload: again", "details": {"attempts": 2}}
    session.recover()
    await bob.update_session(session)
    await crash(await ann.take("s"))
    [held] = await bob.claim()  # recovered on purpose: the count starts again
    await held.release()


@pytest.mark.parametrize(
    ("own", "claimed", "fails"), [(..., ..., False), (1, ..., True), (None, 1, True), (1, 2, False)]
)
async def test_limit_of_the_call_counts_before_the_sessions_and_the_managers(ann, bob, own, claimed, fails):
    """`claim(max_attempts=)` comes first, then `create_session(max_attempts=)`, then `open(max_attempts=)`."""
    await ann.create_session("tutor", session_id="s", max_attempts=own)
    await crash(await ann.take("s"))
    claimed_sessions = await bob.claim(max_attempts=claimed)
    assert bool(claimed_sessions) is not fails
    assert ((await bob.get_session("s")).state is SessionState.FAILED) is fails
    for held in claimed_sessions:
        await held.release()


async def test_limits_are_checked(ann):
    """A limit is a whole number of 1 or more, or None."""
    for wrong in (0, -1, "5", 1.5, True):
        with pytest.raises(InvalidInput, match="max_attempts"):
            await ann.create_session("tutor", max_attempts=wrong)
        with pytest.raises(InvalidInput, match="max_attempts"):
            await ann.claim(max_attempts=wrong)
        with pytest.raises(InvalidInput, match="max_attempts"):
            SessionManager(max_attempts=wrong)
    with pytest.raises(InvalidInput, match="backoff"):
        SessionManager(backoff=-1)


async def test_takeovers_of_dead_workers_are_attempts(stores):
    """A worker that dies without having saved anything has failed an attempt, as one that raised has."""
    creator = SessionManager(store=stores[0])
    await creator.create_session("tutor", session_id="s", max_attempts=3)
    for n in range(3):
        manager = SessionManager(store=stores[n % 2])
        if n:
            assert len(await manager.claim()) == 1
        else:
            await manager.take("s")
        await left(manager)
    manager = SessionManager(store=stores[0])
    assert await manager.claim() == []
    session = await manager.get_session("s")
    assert session.state is SessionState.FAILED
    assert session.checkpoints[-1].data["error"].endswith("died")
    await left(manager)


async def test_a_long_hold_counts_as_progress(ann, bob):
    """Attempts are counted also behind hundreds of entries, which were written by the last owner."""
    await ann.create_session("tutor", session_id="s", max_attempts=1)
    held = await ann.take("s")
    for n in range(300):
        await held.checkpoint("saved", {"n": n})
    await left(ann)
    assert await bob.claim(max_attempts=1) == []
    assert (await bob.get_checkpoint("s", "session_failed")).data["details"] == {"attempts": 1}


# Nothing is stranded


async def test_reserved_owner_is_never_removed(stores, clock):
    """New workers remove rows of dead ones, but the one that owns what errors released stays, whatever the order."""
    ann, bob = SessionManager(store=stores[0]), SessionManager(store=stores[1])
    await ann.create_session("tutor", session_id="s")
    await crash(await ann.take("s"))
    async with ann.hold("s") as held:  # now it owns nothing
        assert held.session.owner.worker != ""
        async with bob.hold("t", create="tutor"):
            pass  # bob's worker is new: it tidies up
        with pytest.raises(Overload):
            async with ann.hold("u", create="tutor"):
                raise Overload
    assert [row.owner for row in await stores[1].find(Query(namespace="default", orphan_for=0))] == [NO_WORKER]
    await left(ann)
    await left(bob)


async def test_cancelled_claim_leaves_orphans(ann, bob):
    """A claim that is cancelled at any moment leaves the session claimable, and was no attempt."""
    await ann.create_session("tutor", session_id="s")
    await crash(await ann.take("s"))
    for after in range(0, 30, 3):
        task = asyncio.create_task(bob.claim())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        try:
            for held in await task:
                await held.give_back()
        except asyncio.CancelledError:
            pass
        while bob.running:
            await asyncio.wait(bob.running)
    [held] = await bob.claim()
    assert all(note.get("attempts") == 1 for note in await notes(bob, "claimed"))
    await held.release()


# claim(wait=…) and claims


async def test_claim_waits_for_an_orphan(ann, bob):
    """`wait` returns with the first one, or with nothing once the time is over."""
    assert await bob.claim(wait=0.05) == []
    await ann.create_session("tutor", session_id="s")
    waiting = asyncio.create_task(bob.claim(wait=60))
    await crash(await ann.take("s"))
    [held] = await asyncio.wait_for(waiting, 60)
    assert held.session.session_id == "s"
    await held.release()
    with pytest.raises(InvalidInput, match="wait"):
        await bob.claim(wait=-1)


async def test_claims_yields_each_and_waits_for_more(ann, bob):
    """The loop gets every orphan of the type, one at a time, waits for later ones, and ends when it is cancelled."""
    for name in ("a", "b", "other"):
        await ann.create_session("coder" if name == "other" else "tutor", session_id=name)
        await crash(await ann.take(name))
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def work() -> None:
        async for held in bob.claims("tutor"):
            async with held:
                await held.complete()
                seen.put_nowait(held.session.session_id)

    task = asyncio.create_task(work())
    async with asyncio.timeout(60):
        assert {await seen.get(), await seen.get()} == {"a", "b"}
        await ann.create_session("tutor", session_id="c")
        await crash(await ann.take("c"))
        assert await seen.get() == "c"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [session.session_id for session in await ann.find(orphaned=True)] == ["other"]


async def test_claims_takes_only_what_it_yields(ann, bob):
    """Leaving the loop leaves all other orphans to others."""
    for name in ("a", "b", "c"):
        await ann.create_session("tutor", session_id=name)
        await crash(await ann.take(name))
    async for held in bob.claims():
        await held.complete()
        break
    assert await ann.count(orphaned=True) == 2


# The keeper and synchronous callers


async def test_keeper_takes_over_after_errors(stores):
    """The keeper calls its function for a session that an error released, again after it raised, until it is done."""
    ann = SessionManager(store=stores[0], backoff=0.01, **BEAT)
    await ann.create_session("tutor", session_id="s")
    await crash(await ann.take("s"))
    calls = 0

    async def finish(held):
        nonlocal calls
        calls += 1
        if calls < 3:
            raise Overload
        await held.complete()

    await ann.keeper.start(takeover=finish, thin=False)

    async def completed() -> bool:
        return (await ann.get_session("s")).state is SessionState.COMPLETED

    await until(completed)
    await ann.keeper.stop()
    assert calls == 3
    assert ann.keeper.stats["errors"] == 2
    await left(ann)


def test_blocking_block_left_by_an_exception():
    """The same for synchronous callers: the session is claimable, `claims` yields it, and its attempts are counted."""
    with saveslot.blocking.open("memory:") as sessions:
        with pytest.raises(KeyboardInterrupt), sessions.hold("s", create="tutor", data={"n": 1}):
            raise KeyboardInterrupt
        assert sessions.count(orphaned=True) == 1
        for claimed in sessions.claims(agent_type="tutor"):
            with claimed:
                assert claimed.data == {"n": 1}
            break
        assert sessions.claim(wait=0.01, max_attempts=None) == []
        lines = [line.metadata for line in sessions.log("s", all=True) if line.kind == "released"]
        assert lines == [{"error": "KeyboardInterrupt", "attempts": 1}, {}]


PROGRAM = """
import asyncio, signal, sys, saveslot

async def main():
    async with saveslot.open(sys.argv[1]) as sessions, sessions.hold("s", create="tutor") as held:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
        await held.checkpoint("begun", {"n": 1})
        print("begun", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_program_leaves_its_session_claimable(tmp_path, number):
    """A program that ends by Ctrl-C, or cancels its work on SIGTERM, leaves an orphan: no TTL has to pass."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    process.communicate()
    with saveslot.blocking.open(url) as sessions:
        [held] = sessions.claim()
        with held:
            assert held.data == {"n": 1}
        lines = [line.metadata for line in sessions.log("s", all=True) if line.kind == "released"]
        assert {"error": "CancelledError", "attempts": 1} in lines


async def test_ended_sessions_say_how_to_go_on(ann):
    """`hold` of a completed session names its result and fork; of a failed one its error and how to reopen it."""
    for name in ("complete", "fail"):
        async with ann.hold(name, create="tutor") as held:
            await (held.complete({"grade": "A"}) if name == "complete" else held.fail("down"))
    with pytest.raises(InvalidTransition, match=r"get_checkpoint\(id, 'session_completed'\).data.*fork"):
        await ann.take("complete")
    assert (await ann.get_checkpoint("complete", "session_completed")).data == {"result": {"grade": "A"}}
    with pytest.raises(InvalidTransition, match=r"rollback\(id, 'latest'\) or recover"):
        await ann.take("fail", create="tutor")
