"""Who is alive, and who may have whose session: beats that stop, hang or come late, clocks that jump, answers lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from saveslot import SessionManager
from saveslot.errors import Conflict, InvalidInput, LeaseHeld, LeaseLost, Unavailable
from saveslot.log import Head
from saveslot.model import Kind
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore

# Long enough for a busy machine to beat in time, and to be seen to end.
TTL, BEAT = 0.8, 0.1
SHORT = 0.5  # where it is to end anyway


class Shaky:
    """One process's way to the store: beats fail or hang, answers get lost, pages fail. The store itself is well."""

    beats = ""  # "fail", "hang"
    beaten = 0  # how many arrived
    late = never = 0  # appends whose answer gets lost, or that do not arrive
    before = None  # what happens before each append
    no_page: Callable[..., bool] = staticmethod(lambda _: False)

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def beat(self, signs, worker=None):
        while worker is not None and self.beats == "hang":  # noqa: ASYNC110  (set from another loop)
            await asyncio.sleep(0.01)
        if worker is not None and self.beats == "fail":
            raise Unavailable("the beat did not arrive")
        answer = await self.store.beat(signs, worker)
        self.beaten += worker is not None
        return answer

    async def append(self, groups):
        if self.before is not None and groups:
            await self.before()
        if self.never:
            self.never -= 1
            raise Unavailable("the write did not arrive")
        verdicts = await self.store.append(groups)
        if self.late:
            self.late -= 1
            raise Unavailable("the answer got lost")
        return verdicts

    async def find(self, query, after=None, limit=100):
        if self.no_page(query):
            raise Unavailable("the page did not arrive")
        return await self.store.find(query, after, limit)

    async def close(self):
        """The test closes it."""


class Agent(NamedTuple):
    """One process, as far as a store can tell."""

    sessions: SessionManager
    way: Shaky

    async def head(self, session_id: str = "s") -> Head:
        [head] = await self.way.store.heads([("default", session_id)])
        assert head is not None
        return head

    async def kinds(self, session_id: str = "s") -> list[Kind]:
        key = (await self.head(session_id)).row.key
        return [entry.kind for entry in await self.way.store.entries(key)]

    async def free(self, session_id: str = "s") -> bool:
        return (await self.head(session_id)).row.lease is None


@pytest.fixture
async def agents(stores):
    """Makes agents that share one store; the first creates the session s."""
    made: list[Agent] = []

    async def start(ttl=TTL, **options) -> Agent:
        way = Shaky(stores[len(made) % 2])
        made.append(agent := Agent(SessionManager(store=way, worker_ttl=ttl, worker_beat=BEAT, **options), way))
        if len(made) == 1:
            await agent.sessions.create_session("agent", session_id="s")
        return agent

    yield start
    for agent in made:
        agent.way.beats, agent.way.late, agent.way.never = "", 0, 0
        await agent.sessions.close()


async def until(true, within: float = 30) -> None:
    async with asyncio.timeout(within):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def claimed(agent: Agent, limit: int = 10):
    """What it gets of others, as soon as it may."""
    async with asyncio.timeout(30):
        while True:
            if found := await agent.sessions.claim(limit=limit):
                return found
            await asyncio.sleep(0.02)


async def nothing_claimed(agent: Agent, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not await agent.sessions.claim()
        await asyncio.sleep(0.02)


def claiming_thread(store: Store, path, ended: threading.Event) -> list[str]:
    """Another process, as good as: a manager in a thread with a loop of its own, which claims until it gets one."""

    async def claim() -> list[str]:
        own = store if isinstance(store, MemoryStore) else await SqliteStore.open(str(path))
        agent = Agent(SessionManager(store=Shaky(own), worker_ttl=TTL, worker_beat=BEAT), Shaky(own))
        found: list[str] = []
        while not found and not ended.is_set():
            found = [held.session.session_id for held in await agent.sessions.claim()]
            await asyncio.sleep(0.02)
        await agent.sessions.close()
        if own is not store:
            await own.close()
        return found

    return asyncio.run(claim())


# The event loop


async def test_a_blocked_loop_keeps_its_session(agents, tmp_path):
    """While the event loop stands still for less than max_block nobody can claim what it holds."""
    agent = await agents()
    async with agent.sessions.hold("s") as held:
        ended = threading.Event()
        with ThreadPoolExecutor() as pool:
            theirs = pool.submit(claiming_thread, agent.way.store, tmp_path / "s.db", ended)
            time.sleep(2.2 * TTL)  # noqa: ASYNC251  (an agent's long call, made in the wrong place)
            ended.set()
            assert theirs.result() == []
        await held.checkpoint("after", {})


async def test_a_loop_blocked_for_longer_than_max_block_loses_its_session(agents, tmp_path):
    """Once the loop stood still for max_block the worker is silent: others take over, and it is told so."""
    agent = await agents(SHORT, max_block=0.3)
    held = await agent.sessions.take("s")
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(claiming_thread, agent.way.store, tmp_path / "s.db", ended)
        try:
            assert theirs.result(20) == ["s"]  # a call that blocks
        finally:
            ended.set()
    await until(held.lost.is_set)
    with pytest.raises(LeaseLost):
        await held.checkpoint("after", {})
    assert Kind.CHECKPOINT not in await agent.kinds()


# Beats that do not get through


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_a_holder_knows_before_others_may_take_over(agents, trouble):
    """Whoever claims the session of a worker that cannot beat finds that its holder's `lost` is set already."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    await nothing_claimed(other, 1.2 * TTL)  # from here on it takes over at expiry
    agent.way.beats = trouble
    [theirs] = await claimed(other)
    assert held.lost.is_set()
    async with theirs:
        await theirs.checkpoint("theirs", {"by": "other"})
        with pytest.raises(LeaseLost):
            await held.checkpoint("mine", {})
        assert (await other.kinds())[-3:] == [Kind.TAKEN, Kind.CLAIMED, Kind.CHECKPOINT]


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_past_its_deadline_a_worker_does_nothing(agents, trouble):
    """Every verb of a holder that cannot beat raises LeaseLost, and it claims nothing, also when nobody took over."""
    agent = await agents(SHORT)
    held = await agent.sessions.take("s")
    await agent.sessions.create_session("agent", session_id="free")
    before = await agent.kinds()
    agent.way.beats = trouble
    await until(held.lost.is_set)
    ran: list[str] = []
    verbs = [
        lambda: held.checkpoint("late", {}),
        held.heartbeat,
        held.pause,
        held.complete,
        lambda: held.fail("late"),
        lambda: held.update_context(late=True),
        lambda: held.rollback(1),
        lambda: held.step("late", lambda: ran.append("late")),
    ]
    takes = [agent.sessions.claim(released=True), agent.sessions.take("free")]
    told = await asyncio.gather(*takes, *(verb() for verb in verbs), return_exceptions=True)
    assert [type(exc) for exc in told] == [Unavailable] * len(takes) + [LeaseLost] * len(verbs)
    for verb in verbs:  # and again, when it has long been told
        with pytest.raises(LeaseLost):
            await verb()
    assert held.lost.is_set()
    assert not ran
    assert await agent.kinds() == before
    assert await agent.kinds("free") == [Kind.CREATED]
    # Back again it lets go what it gave up, and takes it anew when asked to.
    agent.way.beats = ""
    await until(agent.free)
    async with agent.sessions.hold("s") as again:
        await again.checkpoint("again", {})


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_a_beat_that_gets_through_after_all_revives(agents, trouble):
    """After an outage in which nobody took over the lease is as good as before, and a waiting verb goes on."""
    agent = await agents()
    async with agent.sessions.hold("s") as held:
        fence = (await agent.head()).row.fence
        agent.way.beats = trouble
        await until(held.lost.is_set)
        waiting = asyncio.create_task(held.checkpoint("waited", {"n": 1}))
        await asyncio.sleep(0.05)
        agent.way.beats = ""
        await waiting
        await until(lambda: not held.lost.is_set())
        await held.checkpoint("went on", {"n": 2})
        assert (await agent.head()).row.fence == fence
        assert await agent.kinds() == [Kind.CREATED, Kind.TAKEN, Kind.CHECKPOINT, Kind.CHECKPOINT]


async def test_who_was_taken_for_dead_never_comes_back(agents):
    """A worker that others declared dead loses all that it held, also what nobody took yet, and goes on as another."""
    agent, other = await agents(SHORT), await agents(SHORT)
    await agent.sessions.create_session("agent", session_id="t")
    held = {name: await agent.sessions.take(name) for name in ("s", "t")}
    agent.way.beats = "fail"
    claims = await claimed(other, limit=1)
    agent.way.beats = ""
    for mine in held.values():
        with pytest.raises(LeaseLost):
            await mine.checkpoint("mine", {})
        assert mine.lost.is_set()
    claims += await other.sessions.claim()
    assert {theirs.session.session_id for theirs in claims} == {"s", "t"}
    with pytest.raises(LeaseHeld):
        await agent.sessions.take("s")
    for theirs in claims:
        await theirs.release()
    async with agent.sessions.hold("s") as again:
        await again.checkpoint("mine again", {})


async def test_nobody_takes_a_session_from_the_living(agents):
    """Who beats between being found silent and being declared dead keeps what it holds."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    await nothing_claimed(other, 1.2 * TTL)
    found = asyncio.Event()

    async def revived() -> None:
        found.set()
        beaten, agent.way.beats = agent.way.beaten, ""
        await until(lambda: agent.way.beaten > beaten)

    other.way.before = revived
    agent.way.beats = "fail"
    async with asyncio.timeout(30):
        while not found.is_set():
            assert not await other.sessions.claim()
            await asyncio.sleep(0.02)
    await held.checkpoint("still mine", {})
    assert Kind.CLAIMED not in await agent.kinds()


async def test_after_an_outage_nobody_reaps_before_one_ttl_of_uptime(agents):
    """Whoever saw an outage lets others come back first; who is still silent one TTL later is dead."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    await nothing_claimed(other, 1.2 * TTL)  # from here on it would take over at expiry
    agent.way.beats = other.way.beats = "fail"
    await until(held.lost.is_set)
    other.way.beats = ""
    await until(lambda: other.sessions.worker["alive"])
    await nothing_claimed(other, 0.4 * TTL)
    agent.way.beats = ""
    await held.checkpoint("back", {})
    assert Kind.CLAIMED not in await agent.kinds()
    agent.way.beats = "fail"
    [theirs] = await claimed(other)
    assert held.lost.is_set()
    await theirs.release()


async def test_an_outage_that_has_just_begun_makes_nobody_dead(agents):
    """A worker whose own beat is stuck declares nobody dead, though it has not been told of any outage yet."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    await nothing_claimed(other, 1.2 * TTL)
    agent.way.beats = "hang"  # a moment earlier than the other's, so its time ends earlier too
    await asyncio.sleep(3 * BEAT)
    other.way.beats = "hang"
    with suppress(Unavailable):  # its own time may be over in the middle of a claim
        while other.sessions.worker["alive"]:
            assert not await other.sessions.claim()
            await asyncio.sleep(0.005)
    agent.way.beats = other.way.beats = ""
    await held.checkpoint("back", {})
    assert Kind.CLAIMED not in await agent.kinds()


# Clocks


async def test_a_jumping_wall_clock_expires_nobody(agents, clock):
    """Leases run by a clock that nobody sets: hours forward or back change nothing."""
    agent, other = await agents(), await agents()
    async with agent.sessions.hold("s") as held:
        await nothing_claimed(other, 1.2 * TTL)
        for hours in (5, -10, 1000):
            clock.pass_hours(hours)
            await nothing_claimed(other, 3 * BEAT)
            with pytest.raises(LeaseHeld):
                await other.sessions.take("s")
            await held.checkpoint("still mine", {"hours": hours})
        assert not held.lost.is_set()


async def test_a_worker_of_another_boot_is_dead(tmp_path):
    """After the machine started anew nobody of before is alive: what they held is claimed at once."""
    path = str(tmp_path / "s.db")
    first = SessionManager(store=await SqliteStore.open(path, uptime=lambda: ("a boot", 9_000_000_000)))
    await first.create_session("agent", session_id="s")
    held = await first.take("s")
    second = SessionManager(store=await SqliteStore.open(path, uptime=lambda: ("the next", 1_000_000)))
    [theirs] = await second.claim()
    async with theirs:
        await theirs.checkpoint("theirs", {})
        with pytest.raises(LeaseLost):
            await held.checkpoint("mine", {})
    await first.close()
    await second.close()


# Two who want the same


async def test_a_second_hold_is_told_who_has_it(agents):
    """LeaseHeld names the owner, since when, and until when at least; also in the owner's own process."""
    agent, other = await agents(), await agents()
    async with agent.sessions.hold("s"):
        taken = (await agent.way.store.entries((await agent.head()).row.key))[-1]
        for sessions in (other.sessions, agent.sessions):
            with pytest.raises(LeaseHeld) as told:
                await sessions.take("s")
            assert told.value.owner == agent.sessions.worker["name"]
            assert datetime.fromisoformat(told.value.since) == datetime.fromtimestamp(0, UTC) + timedelta(
                microseconds=taken.at
            )
            assert told.value.owner in str(told.value)
            assert told.value.until
        with pytest.raises(LeaseHeld):
            await other.sessions.checkpoint("s", "not mine", {})
    async with other.sessions.hold("s"):
        assert (await agent.head()).row.worker == other.sessions.worker["name"]


async def test_hold_waits_for_its_turn(agents):
    """With wait= a hold gets the session when it is let go; when that takes too long it is told who has it."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    with pytest.raises(LeaseHeld):
        await other.sessions.take("s", wait=0.2)
    waiting = asyncio.create_task(other.sessions.take("s", wait=30))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await held.checkpoint("before", {"n": 1})
    await held.release()
    theirs = await waiting
    assert theirs.data == {"n": 1}
    await theirs.release()


async def test_hold_waits_for_a_worker_to_be_dead(agents):
    """With wait= a hold also gets what a worker held that fell silent."""
    agent, other = await agents(SHORT), await agents(SHORT)
    held = await agent.sessions.take("s")
    agent.way.beats = "fail"
    async with other.sessions.hold("s", wait=30) as theirs:
        assert held.lost.is_set()
        await theirs.checkpoint("theirs", {})
    assert Kind.CLAIMED in await other.kinds()


async def test_others_may_change_what_is_held(agents):
    """Their pause or update makes the holder's next write a Conflict, and refresh shows what came; the lease stays."""
    agent, other = await agents(), await agents()
    async with agent.sessions.hold("s") as held:
        await held.checkpoint("mine", {"n": 1})
        theirs = await other.sessions.get_session("s")
        theirs.pause()
        theirs.context["told"] = "wait"
        await other.sessions.update_session(theirs)
        with pytest.raises(Conflict):
            await held.checkpoint("mine", {"n": 2})
        assert held.data == {"n": 1}
        with pytest.raises(Conflict):
            await held.checkpoint("mine", {"n": 2})  # until it has looked
        session = await held.refresh()
        assert (session.state, session.context) == ("paused", {"told": "wait"})
        await held.resume()
        await held.checkpoint("mine", {"n": 2})
        assert not held.lost.is_set()
    assert (await agent.kinds())[-6:] == [
        *(Kind.CHECKPOINT, Kind.UPDATED, Kind.PAUSED, Kind.RESUMED, Kind.CHECKPOINT, Kind.RELEASED)
    ]


async def test_others_may_end_what_is_held(agents):
    """When someone fails the session its holder is told of a Conflict, then that the lease is gone with it."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    theirs = await other.sessions.get_session("s")
    theirs.fail("told to stop")
    await other.sessions.update_session(theirs)
    with pytest.raises(Conflict):
        await held.checkpoint("mine", {})
    assert held.lost.is_set()
    with pytest.raises(LeaseLost):
        await held.refresh()
    assert held.session.state == "failed"
    assert (await agent.kinds())[-1] == Kind.FAILED


# Answers that get lost


@pytest.mark.parametrize("how", ["late", "never"])
async def test_a_lost_answer_to_a_take_leaves_nobody_stuck(agents, how):
    """Whether it landed or not: the same worker may take it at once, and without a retry it is let go."""
    agent, other = await agents(), await agents()
    setattr(agent.way, how, 1)
    with pytest.raises(Unavailable):
        await agent.sessions.take("s")
    async with agent.sessions.hold("s") as held:
        await held.checkpoint("retried", {})
    setattr(agent.way, how, 1)
    with pytest.raises(Unavailable):
        await agent.sessions.take("s")
    async with other.sessions.hold("s", wait=30) as theirs:
        await theirs.checkpoint("theirs", {})
    assert Kind.CLAIMED not in await agent.kinds()


@pytest.mark.parametrize("how", ["late", "never"])
async def test_a_lost_answer_to_a_claim_leaves_nobody_stuck(agents, how):
    """What a worker holds without knowing it is let go with one of its next beats."""
    agent, other = await agents(), await agents()
    for n in range(20):
        await agent.sessions.create_session("agent", session_id=f"s{n}")
    setattr(agent.way, how, 1)
    with pytest.raises(Unavailable):
        await agent.sessions.claim(limit=100, released=True)

    async def all_free() -> bool:
        return all([await agent.free(f"s{n}") for n in range(20)])

    await until(all_free)
    theirs = await other.sessions.claim(limit=100, released=True)
    assert len(theirs) == 21
    for held in theirs:
        await held.release()


@pytest.mark.parametrize("how", ["late", "never"])
async def test_a_lost_answer_to_a_release_leaves_nobody_stuck(agents, how):
    """Leaving never fails: whether it landed or not, the session is free soon, by one entry."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    setattr(agent.way, how, 1)
    await held.release()
    async with other.sessions.hold("s", wait=30) as theirs:
        await theirs.checkpoint("theirs", {})
    kinds = await agent.kinds()
    assert kinds == [Kind.CREATED, Kind.TAKEN, Kind.RELEASED, Kind.TAKEN, Kind.CHECKPOINT, Kind.RELEASED]


async def test_a_claim_that_fails_halfway_keeps_nothing(agents):
    """Orphans that were taken before the rest of the claim failed are let go: nobody was told of them."""
    agent, other = await agents(SHORT), await agents(SHORT)
    await agent.sessions.take("s")
    agent.way.beats = "fail"
    other.way.no_page = lambda query: query.unowned

    async def failed_and_free() -> bool:
        with pytest.raises(Unavailable):
            await other.sessions.claim(released=True)
        return Kind.CLAIMED in await other.kinds()

    await until(failed_and_free)
    await until(other.free)
    assert (await other.kinds())[-2:] == [Kind.CLAIMED, Kind.RELEASED]


async def test_a_cancelled_claim_keeps_nothing(agents):
    """Whenever the caller goes away, what was taken for it is let go."""
    agent, other = await agents(), await agents()
    for turns in range(12):
        for take in (agent.sessions.take("s"), agent.sessions.claim(released=True)):
            task = asyncio.create_task(take)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for held in await asyncio.gather(task, return_exceptions=True):
                if not isinstance(held, asyncio.CancelledError):  # it was quicker
                    for mine in held if isinstance(held, list) else [held]:
                        await mine.release()
            async with other.sessions.hold("s", wait=30):
                assert not await agent.free()


async def test_a_worker_that_could_not_start_starts_later(agents):
    """A first beat that fails costs the caller its call, and nothing else; closing is possible at any time."""
    agent = await agents()
    agent.way.beats = "fail"
    with pytest.raises(Unavailable):
        await agent.sessions.take("s")
    await agent.sessions.close()
    agent.way.beats = ""
    async with agent.sessions.hold("s") as held:
        await held.checkpoint("after all", {})


async def test_a_ttl_of_less_than_three_beats_is_refused(agents):
    """One lost beat must not cost a worker its sessions."""
    with pytest.raises(InvalidInput, match="three beats"):
        await agents(ttl=2 * BEAT)
