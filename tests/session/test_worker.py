"""Worker liveness and ownership: heartbeats that stop, hang or come late, clocks that jump, lost answers."""

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
from saveslot.stores import Store, Traits, open_store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.values.kinds import Kind
from saveslot.values.log import Head

# Long enough for a busy machine to beat in time, and to be seen to end.
TTL, BEAT = 0.8, 0.1
SHORT = 0.5  # where it is to end anyway


class Shaky:
    """One process's connection to a healthy store: heartbeats fail or hang, answers get lost, pages fail."""

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

    async def append(self, groups, **how):
        if self.before is not None and groups:
            await self.before()
        if self.never and groups:
            self.never -= 1
            raise Unavailable("the write did not arrive")
        verdicts = await self.store.append(groups, **how)
        if self.late and groups:
            self.late -= 1
            raise Unavailable("the answer got lost")
        return verdicts

    async def find(self, query, after=None, limit=100):
        if self.no_page(query):
            raise Unavailable("the page did not arrive")
        return await self.store.find(query, after, limit)

    async def close(self):
        """The test closes it."""


class Remote(PassingStore):
    """A store across a network, which may have been unreachable for all workers."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.traits = Traits()

    async def close(self):
        """The test closes it."""


class Agent(NamedTuple):
    """One process, as far as the store can tell."""

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
    """Creates agents that share one store; the first creates the session s."""
    items: list[Agent] = []

    async def start(ttl=TTL, **options) -> Agent:
        way = Shaky(stores[len(items) % 2])
        items.append(agent := Agent(SessionManager(store=way, worker_ttl=ttl, worker_beat=BEAT, **options), way))
        if len(items) == 1:
            await agent.sessions.create_session("agent", session_id="s")
        return agent

    yield start
    for agent in items:
        agent.way.beats, agent.way.late, agent.way.never = "", 0, 0
        await agent.sessions.close()


async def until(true, within: float = 60) -> None:
    async with asyncio.timeout(within):
        while True:
            value = true()
            if await value if asyncio.iscoroutine(value) else value:
                return
            await asyncio.sleep(0.02)


async def claimed(agent: Agent, limit: int = 10):
    """Claim other workers' sessions as soon as that is allowed."""
    async with asyncio.timeout(60):
        while True:
            if claimed_sessions := await agent.sessions.claim(limit=limit):
                return claimed_sessions
            await asyncio.sleep(0.02)


async def nothing_claimed(agent: Agent, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                assert not await agent.sessions.claim()
                await asyncio.sleep(0.02)


def claiming_thread(store: Store, place: str, ended: threading.Event) -> list[str]:
    """Stands in for another process: a manager in a thread with its own loop that claims until it gets one."""

    async def claim() -> list[str]:
        own = store if isinstance(store, MemoryStore) else await open_store(place)
        agent = Agent(SessionManager(store=Shaky(own), worker_ttl=TTL, worker_beat=BEAT), Shaky(own))
        result: list[str] = []
        while not result and not ended.is_set():
            result = [held.session.session_id for held in await agent.sessions.claim()]
            await asyncio.sleep(0.02)
        await agent.sessions.close()
        if own is not store:
            await own.close()
        return result

    return asyncio.run(claim())


# The event loop


async def test_blocked_loop_keeps_its_session(agents, place):
    """While the event loop is blocked for less than max_block, no other worker can claim its sessions."""
    agent = await agents()
    async with agent.sessions.hold("s") as held:
        ended = threading.Event()
        with ThreadPoolExecutor() as pool:
            theirs = pool.submit(claiming_thread, agent.way.store, place, ended)
            time.sleep(2.2 * TTL)  # noqa: ASYNC251  (an agent's long call, made in the wrong place)
            ended.set()
            assert theirs.result() == []
        await held.checkpoint("after", {})


async def test_loop_blocked_beyond_max_block_loses_its_session(agents, place):
    """After max_block the worker stops its heartbeat: others take over, and its holder gets LeaseLost."""
    agent = await agents(SHORT, max_block=0.3)
    held = await agent.sessions.take("s")
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(claiming_thread, agent.way.store, place, ended)
        try:
            assert theirs.result(60) == ["s"]  # a call that blocks
        finally:
            ended.set()
    await until(held.lost.is_set)
    with pytest.raises(LeaseLost):
        await held.checkpoint("after", {})
    assert Kind.CHECKPOINT not in await agent.kinds()


# Beats that do not get through


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_lost_is_set_before_a_takeover(agents, trouble):
    """When another worker claims the session of a worker that cannot renew, its holder's `lost` is already set."""
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
async def test_worker_past_its_deadline_does_nothing(agents, trouble):
    """Every call of a holder that cannot renew raises LeaseLost, and it claims nothing, even without a takeover."""
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
    answers = await asyncio.gather(*takes, *(verb() for verb in verbs), return_exceptions=True)
    assert [type(exc) for exc in answers] == [Unavailable] * len(takes) + [LeaseLost] * len(verbs)
    for verb in verbs:  # and again, long after the first error
        with pytest.raises(LeaseLost):
            await verb()
    assert held.lost.is_set()
    assert not ran
    assert await agent.kinds() == before
    assert await agent.kinds("free") == [Kind.CREATED]
    # Once back, it releases what it gave up, and can take it again.
    agent.way.beats = ""
    await until(agent.free)
    async with agent.sessions.hold("s") as again:
        await again.checkpoint("again", {})


@pytest.mark.parametrize("trouble", ["fail", "hang"])
async def test_late_heartbeat_revives_the_lease(agents, trouble):
    """After an outage without a takeover the lease is valid again, and a waiting call proceeds."""
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


async def test_worker_declared_dead_never_returns(agents):
    """A worker declared dead loses all its sessions, claimed or not, and continues under a new identity."""
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


async def test_late_heartbeat_prevents_a_takeover(agents):
    """A worker that renews between being found silent and being declared dead keeps its sessions."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    await nothing_claimed(other, 1.2 * TTL)
    result = asyncio.Event()

    async def revived() -> None:
        result.set()
        beaten, agent.way.beats = agent.way.beaten, ""
        await until(lambda: agent.way.beaten > beaten)

    other.way.before = revived
    agent.way.beats = "fail"
    async with asyncio.timeout(60):
        while not result.is_set():
            assert not await other.sessions.claim()
            await asyncio.sleep(0.02)
    await held.checkpoint("still mine", {})
    assert Kind.CLAIMED not in await agent.kinds()


async def test_no_reaping_within_one_ttl_after_an_outage(agents):
    """A worker that saw an outage lets others return first; a worker still silent one TTL later is dead."""
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


@pytest.mark.parametrize("how", ["claim", "hold"])
async def test_newcomer_takes_nothing_from_the_living_after_an_outage(agents, stores, how):
    """However long the outage was: a worker that starts when it ends lets the others renew first."""
    agent = await agents()
    held = await agent.sessions.take("s")
    agent.way.beats = "fail"
    await until(held.lost.is_set)
    await asyncio.sleep(2 * TTL)
    newcomer = Remote(stores[1])
    sessions = SessionManager(store=newcomer, worker_ttl=TTL, worker_beat=BEAT)
    agent.way.beats = ""
    if how == "claim":
        assert await sessions.claim() == []
    else:
        with pytest.raises(LeaseHeld):
            await sessions.take("s")
    await held.checkpoint("still mine", {})
    assert Kind.CLAIMED not in await agent.kinds()
    agent.way.beats = "fail"
    [theirs] = await claimed(Agent(sessions, agent.way))
    await theirs.release()
    await sessions.close()


async def test_newcomer_waits_for_a_silent_owner_and_takes_over(agents, stores):
    """A program that holds once and ends needs no loop: `hold` itself waits until the owner counts as dead."""
    agent = await agents()
    held = await agent.sessions.take("s")
    agent.way.beats = "fail"
    await until(held.lost.is_set)
    await asyncio.sleep(TTL)
    sessions = SessionManager(store=Remote(stores[1]), worker_ttl=TTL, worker_beat=BEAT)
    async with sessions.hold("s") as theirs:
        await theirs.checkpoint("taken over", {})
    await sessions.close()


async def test_stuck_worker_declares_no_worker_dead(agents):
    """A worker whose own heartbeat is stuck declares no other dead, even before it notices an outage."""
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


async def test_wall_clock_jumps_expire_no_lease(agents, clock):
    """Leases use a monotonic clock: wall clock jumps of hours, forward or back, change nothing."""
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


@pytest.mark.parametrize("boots", [("a boot", "the next"), ("", ""), ("", "a boot"), ("3a boot", "")])
async def test_worker_of_an_earlier_boot_is_dead(tmp_path, boots):
    """After a reboot no earlier worker is alive: its sessions can be claimed at once, also without a boot id."""
    path = str(tmp_path / "s.db")
    first = SessionManager(store=await SqliteStore.open(path, uptime=lambda: (boots[0], 9_000_000_000)))
    await first.create_session("agent", session_id="s")
    held = await first.take("s")
    second = SessionManager(store=await SqliteStore.open(path, uptime=lambda: (boots[1], 1_000_000)))
    assert (await second.get_session("s")).owner.left == 0
    assert (await second.stats())["orphaned"] == 1
    [theirs] = await second.claim()
    async with theirs:
        await theirs.checkpoint("theirs", {})
        with pytest.raises(LeaseLost):
            await held.checkpoint("mine", {})
    await first.close()
    await second.close()


async def test_workers_live_as_long_as_their_own_ttl_without_a_boot_id(tmp_path):
    """A worker with a longer TTL than the claimer's is not an orphan until that time has passed."""
    path, up = str(tmp_path / "s.db"), [9_000_000_000]
    first = SessionManager(store=await SqliteStore.open(path, uptime=lambda: ("", up[0])), worker_ttl=3600)
    await first.create_session("agent", session_id="s")
    await first.take("s")
    second = SessionManager(store=await SqliteStore.open(path, uptime=lambda: ("", up[0])), worker_ttl=20)
    assert await second.claim() == []
    assert (await second.get_session("s")).owner.left == 3600
    up[0] += 3700_000_000
    assert len(await second.claim()) == 1
    await first.close()
    await second.close()


# Two who want the same


async def test_second_hold_names_the_owner(agents):
    """LeaseHeld names the owner, since when, and until when at least; also in the owner's own process."""
    agent, other = await agents(), await agents()
    async with agent.sessions.hold("s"):
        taken = (await agent.way.store.entries((await agent.head()).row.key))[-1]
        for sessions in (other.sessions, agent.sessions):
            with pytest.raises(LeaseHeld) as error:
                await sessions.take("s")
            assert error.value.owner == agent.sessions.worker["name"]
            assert datetime.fromisoformat(error.value.since) == datetime.fromtimestamp(0, UTC) + timedelta(
                microseconds=taken.at
            )
            assert error.value.owner in str(error.value)
            assert error.value.until
        with pytest.raises(LeaseHeld):
            await other.sessions.checkpoint("s", "not mine", {})
    async with other.sessions.hold("s"):
        assert (await agent.head()).row.worker == other.sessions.worker["name"]


async def test_hold_with_wait_waits_for_a_release(agents):
    """With wait= a hold gets the session when it is released; on timeout LeaseHeld names the owner."""
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


async def test_hold_with_wait_outlasts_a_silent_worker(agents):
    """With wait= a hold also gets the session of a worker that fell silent."""
    agent, other = await agents(SHORT), await agents(SHORT)
    held = await agent.sessions.take("s")
    agent.way.beats = "fail"
    async with other.sessions.hold("s", wait=30) as theirs:
        assert held.lost.is_set()
        await theirs.checkpoint("theirs", {})
    assert Kind.CLAIMED in await other.kinds()


async def test_others_can_change_a_held_session(agents):
    """Another caller's pause or update makes the holder's next write a Conflict; refresh shows the change, and the
    lease stays.
    """
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


async def test_others_can_end_a_held_session(agents):
    """When another caller fails the session, its holder gets a Conflict, then LeaseLost."""
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
async def test_lost_answer_to_a_hold_leaves_no_lock(agents, how):
    """Whether it landed or not, the same worker can hold it at once, and without a retry it is released."""
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
async def test_lost_answer_to_a_claim_leaves_no_lock(agents, how):
    """A session that a worker owns without knowing it is released with one of its next heartbeats."""
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
async def test_lost_answer_to_a_release_leaves_no_lock(agents, how):
    """Release never fails: whether it landed or not, the session is soon free, by one entry."""
    agent, other = await agents(), await agents()
    held = await agent.sessions.take("s")
    setattr(agent.way, how, 1)
    await held.release()
    async with other.sessions.hold("s", wait=30) as theirs:
        await theirs.checkpoint("theirs", {})
    kinds = await agent.kinds()
    assert kinds == [Kind.CREATED, Kind.TAKEN, Kind.RELEASED, Kind.TAKEN, Kind.CHECKPOINT, Kind.RELEASED]


@pytest.mark.parametrize("how", ["late", "never"])
async def test_lost_answer_to_a_release_after_a_claim_leaves_no_orphan(agents, how):
    """An orphan that was claimed and released without an error is no orphan again, though the answer was lost."""
    agent, other = await agents(), await agents()
    held = await other.sessions.take("s")
    await held.release(error=RuntimeError("why"))
    (held,) = await agent.sessions.claim()
    setattr(agent.way, how, 1)
    await held.release()
    await until(agent.free)
    assert await other.sessions.claim() == []


async def test_failed_claim_keeps_nothing(agents):
    """Orphans acquired before the rest of the claim failed are orphans again, because the caller never got them."""
    agent, other = await agents(SHORT), await agents(SHORT)
    await agent.sessions.take("s")
    agent.way.beats = "fail"
    other.way.no_page = lambda query: query.unowned

    async def failed_and_free() -> bool:
        with pytest.raises(Unavailable):
            await other.sessions.claim(released=True)
        return Kind.CLAIMED in await other.kinds()

    await until(failed_and_free)

    async def orphaned() -> bool:
        return await other.sessions.count(orphaned=True) == 1

    await until(orphaned)
    assert (await other.kinds())[-2:] == [Kind.CLAIMED, Kind.RELEASED]


async def test_cancelled_claim_keeps_nothing(agents):
    """Whenever the caller is cancelled, the sessions acquired for it are released."""
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


async def test_worker_start_is_retried(agents):
    """A failed first heartbeat fails only the call that needed it; closing is possible at any time."""
    agent = await agents()
    agent.way.beats = "fail"
    with pytest.raises(Unavailable):
        await agent.sessions.take("s")
    await agent.sessions.close()
    agent.way.beats = ""
    async with agent.sessions.hold("s") as held:
        await held.checkpoint("after all", {})


async def test_ttl_below_three_heartbeats_is_refused(agents):
    """One lost heartbeat must not cost a worker its sessions."""
    with pytest.raises(InvalidInput, match="three beats"):
        await agents(ttl=2 * BEAT)
