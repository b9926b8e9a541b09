"""One owner per session: what holders and others may do, and what happens when either goes away."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from saveslot import (
    Conflict,
    Corrupt,
    InvalidInput,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    NotFound,
    SessionManager,
    Unavailable,
)
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore
from saveslot.values.kinds import Kind
from saveslot.values.log import Wanted, moment


@pytest.fixture
async def ann(stores):
    """A separate worker, as in another process."""
    manager = SessionManager(store=stores[0])
    yield manager
    await settled(manager)
    await gone(manager)


@pytest.fixture
async def bob(stores):
    manager = SessionManager(store=stores[1])
    yield manager
    await settled(manager)
    await gone(manager)


async def settled(manager):
    while manager.running:
        await asyncio.wait(manager.running)


async def gone(manager):
    """Kill the worker: its sessions become orphans, and its holds do not know it yet."""
    if manager.engine.worker is not None:
        await manager.engine.worker.leave()  # close would close the store too


class Gate(PassingStore):
    """Blocks the worker's first heartbeat until it is opened; signals when a head was read."""

    def __init__(self, store):
        super().__init__(store)
        self.open, self.read = asyncio.Event(), asyncio.Event()

    async def beat(self, signs, worker=None):
        if worker is not None and worker.first:
            await self.open.wait()
        return await super().beat(signs, worker)

    async def heads(self, refs, *, state=False):
        heads = await super().heads(refs, state=state)
        self.read.set()
        return heads


async def create(manager, session_id="s", **about):
    await manager.create_session("tutor", session_id=session_id, **about)
    await manager.checkpoint(session_id, "one", {"n": 1, "list": [1]})
    return session_id


async def names(manager, session_id="s"):
    return [entry.name for entry in await manager.history(session_id, all=True)]


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


# The verbs


async def test_every_holder_call_is_durable_and_visible(ann, bob):
    """Each call lands as one entry that others can read; `data`, `session.state` and `context` follow it."""
    await create(ann, context={"topic": "fractions"})
    async with ann.hold("s") as held:
        assert held.data == {"n": 1, "list": [1]}
        assert (await held.checkpoint("two", {"n": 2, "list": [1]}, metadata={"why": "x"})).seq == 4
        assert held.data == {"n": 2, "list": [1]}
        await held.checkpoint("three", append={"list": [2, 3]})
        assert held.data == {"n": 2, "list": [1, 2, 3]}
        await held.checkpoint("four", patch=[{"op": "replace", "path": "/n", "value": 4}])
        assert held.data == {"n": 4, "list": [1, 2, 3]} == await bob.get_data("s")
        back = await held.rollback("two")
        assert (back.seq, back.data) == (7, {"n": 2, "list": [1]})
        assert held.data == {"n": 2, "list": [1]} == await bob.get_data("s")
        await held.checkpoint("branch", append={"list": [9]})
        assert held.data == {"n": 2, "list": [1, 9]}
        await held.update_context({"topic": "decimals"}, grade=5)
        assert held.session.context == {"topic": "decimals", "grade": 5}
        assert (await bob.get_session("s")).context == held.session.context
        await held.pause()
        assert (held.session.state, (await bob.get_session("s")).state) == ("paused", "paused")
        await held.checkpoint("while paused", {"n": 5})
        await held.resume()
        await held.resume()
        assert (held.session.state, (await bob.get_session("s")).state) == ("active", "active")
        await held.heartbeat()
        assert held.session.last_heartbeat == (await bob.get_session("s")).last_heartbeat
        assert not held.lost.is_set()
        await held.complete({"grade": "A"})
        assert held.session.state == "completed"
    assert await names(bob) == [
        *("session_created", "one", "session_taken", "two", "three", "four", "session_rolled_back", "branch"),
        *("session_updated", "session_paused", "while paused", "session_resumed", "session_completed"),
    ]
    assert (await bob.get_checkpoint("s", "session_completed")).data == {"result": {"grade": "A"}}
    assert (await bob.get_checkpoint("s", "two")).metadata == {"why": "x"}


async def test_new_session_has_empty_data(ann):
    """Before the first checkpoint `data` is an empty dict, which a caller can fill and save."""
    await ann.create_session("tutor", session_id="s")
    async with ann.hold("s") as held:
        assert held.data == {}
        held.data["mine"] = 1
        await held.checkpoint("one", append={"list": [1]})
        assert await ann.get_data("s") == {"list": [1]}
        await held.checkpoint("two")
        assert held.data == {"mine": 1, "list": [1]} == await ann.get_data("s")


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_complete_and_fail_release_the_session(ann, bob, end):
    """Completing and failing clear the owner in the same entry; later calls are refused, leaving the block is fine."""
    await create(ann)
    async with ann.hold("s") as held:
        await (held.complete() if end == "complete" else held.fail("broken", {"at": 3}))
        assert (await bob.get_session("s")).owner is None
        assert ann.worker["held"] == 0
        for call in (held.checkpoint("two", {}), held.pause(), held.heartbeat(), held.rollback("one"), held.resume()):
            with pytest.raises(LeaseLost):
                await call
        assert held.data == {"n": 1, "list": [1]}
    assert (await names(bob))[-1] == ("session_completed" if end == "complete" else "session_failed")
    assert (await bob.stats())["held"] == 0


async def test_refused_call_keeps_the_hold(ann):
    """A call that the state or its arguments do not allow stores nothing and leaves the hold as it was."""
    await create(ann)
    async with ann.hold("s") as held:
        await held.pause()
        before = await names(ann)
        with pytest.raises(InvalidTransition):
            await held.pause()
        for call in (
            held.checkpoint("", {}),
            held.checkpoint("two", {"x": object()}),
            held.checkpoint("two", {}, patch=[]),
            held.checkpoint("two", append={"n": [1]}),
            held.update_context({"x": {1, 2}}),
            held.complete(object()),
        ):
            with pytest.raises(InvalidInput):
                await call
        with pytest.raises(NotFound):
            await held.rollback("no such")
        assert held.data == {"n": 1, "list": [1]}
        assert await names(ann) == before
        await held.checkpoint("two", append={"list": [2]})
        assert held.data == {"n": 1, "list": [1, 2]}


# Taking and letting go


async def test_second_hold_is_lease_held(ann, bob):
    """A held session cannot be held again, in the same process or another; `LeaseHeld` names owner and times."""
    await create(ann)
    async with ann.hold("s"):
        for manager in (ann, bob):
            with pytest.raises(LeaseHeld) as error:
                await manager.take("s")
            assert error.value.owner == ann.worker["name"]
            assert error.value.since
            assert error.value.until
        seen = (await bob.get_session("s")).owner
        assert seen.worker == ann.worker["name"]
        assert 0 < seen.left <= 20
        assert (await bob.stats())["held"] == 1
    async with bob.hold("s") as held:
        assert held.data == {"n": 1, "list": [1]}
    fences = [entry.fence for entry in await ann.engine.vault.entries(held.session.seen.key)]
    assert fences == [0, 0, 1, 1, 2, 2]


async def test_hold_with_wait_succeeds_after_a_release(ann, bob):
    """`wait` outlasts another hold; after the timeout it raises `LeaseHeld` all the same."""
    await create(ann)
    held = await ann.take("s")
    waiting = asyncio.ensure_future(bob.take("s", wait=60))
    with pytest.raises(LeaseHeld):
        await bob.take("s", wait=0.01)
    assert not waiting.done()
    await held.release()
    async with asyncio.timeout(60):
        await (await waiting).release()


async def test_release_keeps_the_state_and_ends_the_hold(ann, bob):
    """After a release the session is unchanged and free; calls raise `LeaseLost`; a second release does nothing."""
    await create(ann)
    held = await ann.take("s")
    await held.pause()
    await held.release()
    await held.release()
    for call in (
        *(held.checkpoint("two", {}), held.pause(), held.resume(), held.complete(), held.fail("x"), held.heartbeat()),
        *(held.update_context(a=1), held.rollback("one"), held.refresh(), held.step("x", dict)),
    ):
        with pytest.raises(LeaseLost):
            await call
    value = await bob.get_session("s")
    assert (value.state, value.owner) == ("paused", None)
    await bob.checkpoint("s", "two", {"n": 2})
    assert (await names(bob))[-2:] == ["session_released", "two"]
    async with bob.hold("s") as again:
        assert (again.data, again.session.state) == ({"n": 2}, "paused")


async def test_exception_in_the_block_releases(ann, bob):
    """The block's exception propagates, and the session is free for any other hold."""
    await create(ann)
    with pytest.raises(ZeroDivisionError):
        async with ann.hold("s"):
            raise ZeroDivisionError
    async with bob.hold("s") as held:
        await held.checkpoint("two", {})


async def test_hold_refuses_ended_and_unknown_sessions(ann):
    """An ended session is refused by its state, an unknown one is not found, and nothing is written."""
    for verb in ("complete", "fail"):
        value = await ann.create_session("tutor", session_id=verb)
        getattr(value, verb)(*(("x",) if verb == "fail" else ()))
        await ann.update_session(value)
        with pytest.raises(InvalidTransition):
            await ann.take(verb)
        assert (await names(ann, verb))[-1] == f"session_{verb}{'d' if verb == 'complete' else 'ed'}"
    with pytest.raises(NotFound):
        await ann.take("unknown")
    with pytest.raises(InvalidInput):
        await ann.take("")


@pytest.mark.parametrize("after", range(12))
async def test_cancelled_hold_leaves_the_session_free(ann, bob, after):
    """Whenever a hold is cancelled, the session is free in the end."""
    await create(ann)
    call = asyncio.ensure_future(ann.take("s"))
    await turns(after)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await (await call).release()
    await settled(ann)
    async with bob.hold("s", wait=30) as held:
        assert held.data == {"n": 1, "list": [1]}
    assert ann.worker is None or ann.worker["held"] == 0


@pytest.mark.parametrize("after", range(6))
async def test_cancelled_release_still_releases(ann, bob, after):
    """Whenever a release is cancelled, the session is released, and the holder can no longer use it."""
    await create(ann)
    held = await ann.take("s")
    call = asyncio.ensure_future(held.release())
    await turns(after)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await settled(ann)
    if (await bob.get_session("s")).owner is not None:  # it had not begun
        await held.release()
    with pytest.raises(LeaseLost):
        await held.checkpoint("two", {"n": 2})
    assert (await names(bob))[-1] == "session_released"
    assert ann.worker["held"] == 0


async def test_hold_sees_changes_made_during_registration(stores, bob):
    """The session is read while the worker is registered; if it changed meanwhile, the hold takes the newer head."""
    gate = Gate(stores[0])
    slow = SessionManager(store=gate)
    await create(bob)
    taking = asyncio.ensure_future(slow.take("s"))
    await asyncio.wait_for(gate.read.wait(), 60)
    await bob.checkpoint("s", "two", {"n": 2})
    gate.open.set()
    held = await taking
    assert held.data == {"n": 2}
    await held.checkpoint("three", {"n": 3})
    await held.release()
    assert (await bob.get_checkpoint("s")).data == {"n": 3}
    await gone(slow)


async def test_hold_of_a_missing_session_is_not_found(stores, monkeypatch, caplog):
    """It is NotFound even if the worker could not be registered either; the next hold registers it again."""
    manager = SessionManager(store=stores[0])

    async def down(*_):
        raise Unavailable("no store")

    with monkeypatch.context() as patched:
        patched.setattr(stores[0], "beat", down)
        with pytest.raises(NotFound):
            await manager.take("nobody")
        await settled(manager)
    gc.collect()
    assert not caplog.records
    await create(manager)
    await (await manager.take("s")).release()
    await gone(manager)


async def test_unreadable_session_is_released(stores, ann, bob, monkeypatch):
    """Its state is read while it is acquired: if that fails, it is free again, and can be held once it is repaired."""
    await create(bob)

    async def damaged_heads(*arguments, **options):
        result = await heads(*arguments, **options)
        for head in result:
            cut(head.frames or ())
        return result

    async def damaged_entries(*arguments, **options):
        return cut(await entries(*arguments, **options))

    def cut(result):
        for entry in result:
            entry.frame = entry.frame and entry.frame[:-1]
        return result

    heads, entries = stores[0].heads, stores[0].entries
    before = await names(bob)
    with monkeypatch.context() as patched:
        patched.setattr(stores[0], "heads", damaged_heads)
        patched.setattr(stores[0], "entries", damaged_entries)
        with pytest.raises(Corrupt, match="checkpoint s:2"):
            await ann.take("s")
    await settled(ann)
    assert await names(bob) == [*before, "session_taken", "session_released"]
    async with ann.hold("s") as held:
        assert held.data == {"n": 1, "list": [1]}


# Others, while it is held


@pytest.mark.parametrize("knows", ["nothing", "before", "holder", "value"])
async def test_only_the_holder_writes(ann, bob, knows):
    """Checkpoints, rollbacks and completion by other callers are `LeaseHeld`, whatever they had read; the hold
    continues.
    """
    await create(ann)
    value = await bob.get_session("s")
    if knows == "before":
        await bob.checkpoint("s", "bob's", {"n": 1, "list": [1]})
    async with ann.hold("s") as held:
        value = await bob.get_session("s") if knows == "value" else value
        manager = ann if knows == "holder" else bob
        for call in (
            lambda: manager.checkpoint("s", "theirs", {"n": 9}),
            lambda: manager.checkpoint("s", "theirs", append={"list": [9]}),
            lambda: manager.rollback("s", "one"),
        ):
            with pytest.raises(LeaseHeld) as error:
                await call()
            assert error.value.owner == ann.worker["name"]
        if knows == "value":
            with pytest.raises(LeaseHeld):
                await bob.checkpoint(value, "theirs", {})
            for verb, *arguments in (("checkpoint", "staged", {}), ("complete",)):
                getattr(value, verb)(*arguments)
                with pytest.raises(LeaseHeld):
                    await bob.update_session(value)
                value = await bob.get_session("s")
        await held.checkpoint("mine", {"n": 2})
    assert not {"theirs", "staged", "session_rolled_back", "session_completed"} & set(await names(bob))
    await bob.checkpoint("s", "afterwards", {"n": 3})


async def test_pause_by_another_is_a_conflict(ann, bob):
    """Others may pause; the holder's next write is refused with its lease intact, and succeeds after a refresh."""
    await create(ann)
    async with ann.hold("s") as held:
        value = await bob.get_session("s")
        value.pause()
        await bob.update_session(value)
        for _ in range(2):  # nothing is rebased silently: it stays refused until the news are taken in
            with pytest.raises(Conflict):
                await held.checkpoint("two", append={"list": [2]})
            assert held.data == {"n": 1, "list": [1]} == await bob.get_data("s")
            assert not held.lost.is_set()
        assert held.session.state == "active"
        assert (await held.refresh()).state == "paused"
        assert held.data == {"n": 1, "list": [1]}
        await held.resume()
        await held.checkpoint("two", append={"list": [2]})
        assert held.data == {"n": 1, "list": [1, 2]} == await bob.get_data("s")
    assert (await names(bob))[-5:] == ["session_taken", "session_paused", "session_resumed", "two", "session_released"]


async def test_refresh_shows_anothers_context_change(ann, bob):
    """Others may update the context; the holder's own change, repeated after a refresh, keeps both."""
    await create(ann, context={"topic": "fractions"})
    async with ann.hold("s") as held:
        value = await bob.get_session("s")
        value.context["answer"] = "yes"
        value.labels["team"] = "red"
        await bob.update_session(value)
        with pytest.raises(Conflict):
            await held.update_context(mine=1)
        assert held.session.context == {"topic": "fractions"}
        await held.refresh()
        assert held.session.labels == {"team": "red"}
        await held.update_context(mine=1)
        assert held.session.context == {"topic": "fractions", "answer": "yes", "mine": 1}
    after = await bob.get_session("s")
    assert (after.context, after.labels) == ({"topic": "fractions", "answer": "yes", "mine": 1}, {"team": "red"})


async def test_failing_from_outside_ends_the_hold(ann, bob):
    """Others may fail it: the holder gets one Conflict, then LeaseLost."""
    await create(ann)
    async with ann.hold("s") as held:
        value = await bob.get_session("s")
        value.fail("by hand")
        await bob.update_session(value)
        assert (await bob.get_session("s")).owner is None
        with pytest.raises(Conflict):
            await held.checkpoint("two", {"n": 2})
        assert held.lost.is_set()
        assert held.data == {"n": 1, "list": [1]}
        with pytest.raises(LeaseLost):
            await held.checkpoint("two", {"n": 2})
    assert (await names(bob))[-1] == "session_failed"


async def test_deleting_from_outside_ends_the_hold(ann, bob):
    """Others may delete it: the holder gets an error, and none of its writes reach a new session of that id."""
    await create(ann)
    async with ann.hold("s") as held:
        assert await bob.delete_session("s")
        await bob.create_session("tutor", session_id="s")
        with pytest.raises(NotFound):
            await held.checkpoint("two", {"n": 2})
        assert held.lost.is_set()
        with pytest.raises(NotFound):
            await held.pause()
    assert await names(bob) == ["session_created"]


async def test_update_by_another_is_not_a_heartbeat(ann, bob):
    """While a session is held only its holder renews its heartbeat; others' updates do not."""
    await create(ann)
    async with ann.hold("s") as held:
        await held.heartbeat()
        before = (await bob.get_session("s")).last_heartbeat
        value = await bob.get_session("s")
        value.heartbeat()
        await bob.update_session(value)
        value.context["k"] = 1
        await bob.update_session(value)
        assert (await bob.get_session("s")).last_heartbeat == before


# The dead


ZOMBIE_VERBS = {
    "checkpoint": lambda held: held.checkpoint("late", {"n": 9}),
    "append": lambda held: held.checkpoint("late", append={"list": [9]}),
    "pause": lambda held: held.pause(),
    "fail": lambda held: held.fail("late"),
    "complete": lambda held: held.complete(),
    "update_context": lambda held: held.update_context(late=1),
    "rollback": lambda held: held.rollback("one"),
    "heartbeat": lambda held: held.heartbeat(),
    "refresh": lambda held: held.refresh(),
    "step": lambda held: held.step("late", dict, mode="at_most_once"),
}


@pytest.mark.parametrize("verb", ZOMBIE_VERBS)
async def test_zombie_gets_lease_lost_from_every_call(ann, bob, verb):
    """After a takeover every call of the former holder is `LeaseLost`, nothing of it lands, and `lost` is set."""
    await create(ann)
    zombie = await ann.take("s")
    await zombie.checkpoint("two", {"n": 2, "list": [1]})
    await gone(ann)
    [claimed] = await bob.claim()
    async with claimed as held:
        await held.checkpoint("three", append={"list": [3]})
        before = await names(bob)
        with pytest.raises(LeaseLost):
            await ZOMBIE_VERBS[verb](zombie)
        assert zombie.lost.is_set()
        assert zombie.data == {"n": 2, "list": [1]}
        with pytest.raises(LeaseLost):
            await zombie.checkpoint("late", {})
        await zombie.release()
        assert await names(bob) == before
        await held.checkpoint("four", append={"list": [4]})
        assert held.data == {"n": 2, "list": [1, 3, 4]}


async def test_zombies_concurrent_saves_all_fail(ann, bob):
    """Saves that were all in flight when the owner changed are all refused."""
    await create(ann)
    zombie = await ann.take("s")
    await gone(ann)
    async with (await bob.claim())[0] as held:
        late = await asyncio.gather(
            *(zombie.checkpoint(f"late {n}", {"n": n}) for n in range(8)), return_exceptions=True
        )
        assert {type(answer) for answer in late} == {LeaseLost}
        await held.checkpoint("new", {"n": 2})
    assert (await names(bob))[2:] == ["session_taken", "session_claimed", "new", "session_released"]


async def test_each_orphan_is_claimed_once(ann, bob, stores):
    """`claim` gives each active orphan of the agent type to one claimer, up to the limit."""
    carl = SessionManager(store=stores[0])
    for n in range(9):
        await ann.create_session("tutor" if n % 3 else "coder", session_id=f"s{n}")
        await ann.checkpoint(f"s{n}", "one", {"n": n})
        await ann.take(f"s{n}")
    free = await ann.create_session("tutor", session_id="free")
    assert await bob.claim() == []
    await gone(ann)
    assert (await bob.stats())["orphaned"] == 9
    coders = await bob.claim("coder", limit=2)
    assert {held.session.agent_type for held in coders} == {"coder"}
    assert len(coders) == 2
    claims = await asyncio.gather(*(manager.claim(limit=4) for manager in (bob, carl, bob)))
    claimed = coders + [held for part in claims for held in part]
    assert sorted(held.session.session_id for held in claimed) == [f"s{n}" for n in range(9)]
    assert all(len(part) <= 4 for part in claims)
    assert await bob.claim() == await carl.claim() == []
    for held in claimed:
        with pytest.raises(InvalidInput, match="enter it first"):
            _ = held.data
        async with held:
            assert held.data == {"n": int(held.session.session_id[1:])}
            assert held.session.owner.worker in {bob.worker["name"], carl.worker["name"]}
    assert (await bob.get_session(free.session_id)).owner is None
    await gone(carl)


async def test_claim_includes_released_only_when_asked(ann, bob):
    """Released sessions are claimed only with `released`; paused ones wait for a person."""
    for session_id in ("let go", "never held", "paused"):
        await create(ann, session_id)
    await (await ann.take("let go")).release()
    paused = await ann.take("paused")
    await paused.pause()
    await gone(ann)
    assert await bob.claim() == []
    claimed = await bob.claim(released=True)
    assert sorted(held.session.session_id for held in claimed) == ["let go", "never held"]
    for held in claimed:
        await held.release()
    async with bob.hold("paused") as held:  # by name an orphan may be held in any state that can be
        assert held.session.state == "paused"
    assert (await names(bob, "paused"))[-2:] == ["session_claimed", "session_released"]
    with pytest.raises(InvalidInput):
        await bob.claim(limit=0)


async def test_claim_says_since_when_the_owner_was_silent(ann, bob):
    """The claim's entry names the dead owner and its last heartbeat; a take has no such time."""
    await create(ann)
    await ann.take("s")
    await gone(ann)
    [head] = await bob.engine.vault.heads([("default", "s")])
    [claimed] = await bob.claim()
    taken, note = [line.metadata for line in await bob.log("s", all=True) if line.kind in {"taken", "claimed"}]
    assert "silent_since" not in taken
    assert note["from"] == head.row.worker
    assert datetime.fromisoformat(note["silent_since"]) == moment(head.row.beaten)
    await claimed.release()


async def test_claim_is_not_a_heartbeat(ann, bob):
    """A claim does not renew the session's heartbeat: it stays as the dead owner left it."""
    await create(ann)
    held = await ann.take("s")
    await held.heartbeat()
    before = (await bob.get_session("s")).last_heartbeat
    await gone(ann)
    [claimed] = await bob.claim()
    assert claimed.session.last_heartbeat == before == (await bob.get_session("s")).last_heartbeat
    await claimed.release()


async def test_sweep_spares_sessions_of_live_workers(ann, bob, clock):
    """The sweep spares a live worker's session, even if nothing was written for days, and fails an orphan."""
    await create(ann)
    held = await ann.take("s")
    clock.pass_hours(100)
    await ann.engine.worker._renew()  # noqa: SLF001  (as its thread does every few seconds)
    assert await bob.cleanup_stale_sessions(timedelta(hours=48)) == 0
    await held.checkpoint("two", {"n": 2})
    await gone(ann)
    clock.pass_hours(49)
    assert await bob.cleanup_stale_sessions(timedelta(hours=48)) == 1
    value = await bob.get_session("s")
    assert (value.state, value.owner, value.context["failure_reason"]) == ("failed", None, "heartbeat_timeout")
    with pytest.raises(Conflict):
        await held.checkpoint("late", {})


# Lost acknowledgements


class Shaky:
    """A handle whose appends fail once: after they landed (`late`) or instead of landing (`never`)."""

    def __init__(self, store):
        self._store = store
        self.fault = None

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append(self, groups, **how):
        fault, self.fault = self.fault, None
        if fault == "never":
            raise Unavailable("the write did not arrive")
        verdicts = await self._store.append(groups, **how)
        if fault == "late":
            raise Unavailable("the acknowledgement got lost")
        return verdicts


@pytest.fixture
async def shaky(stores):
    store = Shaky(stores[0])
    manager = SessionManager(store=store)
    yield manager, store
    await settled(manager)
    await gone(manager)


RETRIED = {
    "checkpoint": (lambda held: held.checkpoint("two", {"n": 2}), Kind.CHECKPOINT),
    "append": (lambda held: held.checkpoint("two", append={"list": [2]}), Kind.CHECKPOINT),
    "patch": (lambda held: held.checkpoint("two", patch=[{"op": "remove", "path": "/n"}]), Kind.CHECKPOINT),
    "pause": (lambda held: held.pause(), Kind.PAUSED),
    "fail": (lambda held: held.fail("broken"), Kind.FAILED),
    "complete": (lambda held: held.complete(7), Kind.COMPLETED),
    "update_context": (lambda held: held.update_context(a=1), Kind.UPDATED),
    "rollback": (lambda held: held.rollback("~1"), Kind.ROLLBACK),
}


@pytest.mark.parametrize("fault", ["late", "never"])
@pytest.mark.parametrize("verb", RETRIED)
async def test_retried_call_after_a_lost_answer_happens_once(shaky, bob, verb, fault):
    """Whether the write or only its answer was lost, retrying a holder's call does it once."""
    sessions, store = shaky
    await create(sessions)
    await sessions.checkpoint("s", "one more", {"n": 1, "list": [1]})
    call, kind = RETRIED[verb]
    async with sessions.hold("s") as held:
        store.fault = fault
        with pytest.raises(Unavailable):
            await call(held)
        await call(held)
        assert held.data == await bob.get_data("s")
        assert held.session.context == (await bob.get_session("s")).context
        assert held.session.state == (await bob.get_session("s")).state
    entries = await bob.engine.vault.entries((await bob.get_session("s")).seen.key, Wanted([(5, 99)]))
    assert [entry.kind for entry in entries if entry.kind is not Kind.RELEASED] == [kind]


@pytest.mark.parametrize("fault", ["late", "never"])
@pytest.mark.parametrize("verb", RETRIED)
async def test_next_call_settles_a_write_in_doubt(shaky, bob, verb, fault):
    """If the holder makes another call instead of retrying, both land: the write in doubt first, and visibly."""
    sessions, store = shaky
    await create(sessions)
    await sessions.checkpoint("s", "one more", {"n": 1, "list": [1]})
    call, _ = RETRIED[verb]
    async with sessions.hold("s") as held:
        store.fault = fault
        with pytest.raises(Unavailable):
            await call(held)
        if verb in {"fail", "complete"}:
            with pytest.raises((InvalidTransition, LeaseLost)):
                await held.update_context(b=2)
        else:
            await held.update_context(b=2)
            await held.checkpoint("next", append={"new": [1]})
        value = await bob.get_session("s")
        assert held.session.context == value.context
        expected = {"a": 1} if verb == "update_context" else {}
        assert value.context == (expected if verb in {"fail", "complete"} else {**expected, "b": 2})
        assert held.data == await bob.get_data("s")
        assert held.session.state == value.state


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_retried_hold_after_a_lost_answer_succeeds(shaky, bob, fault):
    """A hold whose answer was lost owns the session without a holder: the retry gets it, others are kept out."""
    sessions, store = shaky
    await create(sessions)
    store.fault = fault
    with pytest.raises(Unavailable):
        await sessions.take("s")
    if fault == "late":
        with pytest.raises(LeaseHeld):
            await bob.take("s")
    async with sessions.hold("s") as held:
        await held.checkpoint("two", {"n": 2})
    async with bob.hold("s") as held:
        assert held.data == {"n": 2}


@pytest.mark.parametrize("fault", ["late", "never"])
async def test_release_with_a_lost_answer_is_completed(shaky, bob, fault):
    """Release never raises when the store is unavailable; the next heartbeat frees the session."""
    sessions, store = shaky
    await create(sessions)
    held = await sessions.take("s")
    store.fault = fault
    await held.release()
    await sessions.engine.worker._renew()  # noqa: SLF001  (as its thread does every few seconds)
    await turns()
    await settled(sessions)
    assert (await bob.get_session("s")).owner is None
    assert (await names(bob)).count("session_released") == 1


async def test_worker_starts_after_an_outage(stores):
    """A hold during an outage is `Unavailable`; afterwards a hold succeeds, and closing is fine."""

    class Away(Shaky):
        away = True

        async def beat(self, signs, worker=None):
            if self.away:
                raise Unavailable("away")
            return await self._store.beat(signs, worker)

    store = Away(stores[0])
    sessions = SessionManager(store=store)
    await create(sessions)
    with pytest.raises(Unavailable):
        await sessions.take("s")
    store.away = False
    async with asyncio.timeout(60):
        async with sessions.hold("s") as held:
            await held.checkpoint("two", {"n": 2})
    await sessions.close()
    broken = SessionManager(store=Away(stores[1]))
    with pytest.raises(Unavailable):
        await broken.take("s")
    await broken.close()


# Export and import


async def test_held_session_imports_unowned(ann, bob):
    """The export contains takes, releases and steps with their numbers and times; the copy has no owner, keeps its
    fence, and can be held at once.
    """
    await create(ann)
    await (await ann.take("s")).release()
    async with ann.hold("s") as held:
        await held.checkpoint("two", {"n": 2})
        await held.step("charge", lambda: {"paid": 3}, key="k")
        run = await held.runs.begin(held.call("open", print, mode="at_most_once"))
        run.end()
        with pytest.raises(ZeroDivisionError):
            await held.step("broken", lambda: 1 / 0)
        text = await ann.export("s")
    copy = await bob.import_session(text, session_id="copy")
    assert copy.owner is None
    assert (await bob.get_session("copy")).owner is None
    head, original = await bob.engine.vault.heads([("default", "copy"), ("default", "s")])
    assert (head.row.fence, head.row.lease, head.row.owner) == (2, None, None)
    theirs, ours = [
        [(c.seq, c.name, c.timestamp, c.data) for c in await bob.history(session_id, all=True)]
        for session_id in ("copy", "s")
    ]
    assert theirs == ours[:-1]
    assert await bob.export("copy") == text.replace('"session_id":"s"', '"session_id":"copy"')
    async with bob.hold("copy") as held:
        assert held.data == {"n": 2}
        states = {(step.name, step.key): step.state for step in await held.steps()}
        assert states == {("charge", "k"): "finished", ("open", None): "started", ("broken", None): "failed"}
        assert await held.step("charge", lambda: None, key="k") == {"paid": 3}
    [head] = await bob.engine.vault.heads([("default", "copy")])
    assert head.row.fence == 3
    assert original.row.fence == 2


class Slow(PassingStore):
    """A store with slow writes."""

    async def append(self, groups, **how):
        for _ in range(5):
            await asyncio.sleep(0)
        return await self._inner.append(groups, **how)


@pytest.mark.parametrize("turns", range(1, 8))
async def test_resume_after_a_cancelled_pause(turns):
    """A cancelled pause has landed all the same: resume makes the session active again, in the store too."""
    sessions = SessionManager(store=Slow(MemoryStore()))
    await sessions.create_session("tutor", session_id="s")
    async with sessions.hold("s") as held:
        pausing = asyncio.ensure_future(held.pause())
        for _ in range(turns):
            await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        await held.resume()
        await settled(sessions)
        await held.refresh()
        assert held.session.state == "active"
    await sessions.close()


@pytest.mark.parametrize("end", ["release", "error", "step"])
async def test_writes_by_id_follow_a_hold_of_the_same_manager(ann, bob, end):
    """A manager's own hold does not conflict with its writes by id; another manager's later write does."""
    session_id = (await ann.create_session("tutor")).session_id
    await ann.checkpoint(session_id, "one", {"n": 1})
    with suppress(ZeroDivisionError):
        async with ann.hold(session_id) as held:
            await held.checkpoint("two", {"n": 2})
            if end == "step":
                await held.step("look", lambda: 1)
            if end == "error":
                raise ZeroDivisionError
    await ann.checkpoint(session_id, "three", {"n": 3})
    async with ann.hold(session_id) as held:
        await held.checkpoint("four", {"n": 4})
    await bob.checkpoint(session_id, "five", {"n": 5})
    with pytest.raises(Conflict):
        await ann.checkpoint(session_id, "six", {"n": 6})
    assert await bob.get_data(session_id) == {"n": 5}
