"""A state machine over owners: two managers with a worker each, clocks that the machine sets, and answers that get
lost. A plain model knows each session's owner, its data and the effects of its steps.

Nothing sleeps: the workers' threads wait for a day that never comes, and the machine beats for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from saveslot.errors import (
    Conflict,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    NotFound,
    StepFailed,
    StepUnknown,
    Unavailable,
)
from saveslot.manager import SessionManager
from saveslot.session import worker
from saveslot.session.held import Held
from saveslot.session.model import AgentSession
from saveslot.session.worker import Worker
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.testing.pen import SECOND, Clock
from saveslot.values.checks import Data
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.lifecycle import TRANSITIONS, SessionState
from saveslot.values.log import NO_WORKER, Group, Query, Verdict, Worker as WorkerRow
from tests.harness.crowd import Tardy, answered, crowd, ended

T = TypeVar("T")

IDS = ("a", "ü b")
WHO = st.integers(0, 1)
PICKS = st.integers(0, 2**32).map(Random)
# Real seconds that never pass in a test; the machine's own clock makes them.
BEAT, TTL = 100_000.0, 400_000.0
MODES = ("idempotent", "at_most_once", "at_least_once")
VERBS = (
    *("checkpoint", "checkpoint", "append", "rollback", "pause", "resume", "complete", "fail", "context"),
    *("heartbeat", "refresh", "release", "step", "step", "step", "step"),
)


class Shaky:
    """A store whose next answer is lost: after the write landed (`late`), or together with the write (`never`)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fault = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        fault, self.fault = self.fault, ""
        if fault == "never":
            raise Unavailable("planted: the write did not arrive")
        verdicts = await self.store.append(groups, **how)
        if fault == "late":
            raise Unavailable("planted: the answer got lost")
        return verdicts

    async def beat(self, signs: Sequence[Any], worker: WorkerRow | None = None) -> list[int]:
        return await self.store.beat(signs, worker)


class Boom(Exception):
    """What a step of an agent may raise."""


@dataclass
class Life:
    """The model of one incarnation of a session."""

    incarnation: int
    state: SessionState = SessionState.ACTIVE
    context: Data = field(default_factory=dict[str, Any])
    data: Data = field(default_factory=dict[str, Any])
    shown: list[tuple[str, Data]] = field(default_factory=list[tuple[str, Data]])
    steps: dict[tuple[str, str], tuple[str, Any]] = field(default_factory=dict[tuple[str, str], tuple[str, Any]])
    grip: Grip | None = None
    left: bool = False  # by an error: it has no owner, and any worker may claim it

    def add(self, name: str, shown: Data, data: Data | None = None) -> None:
        self.data = self.data if data is None else data
        self.shown.append((name, shown))

    def written_by_another(self) -> None:
        if self.grip is not None:
            self.grip.behind = True


@dataclass(eq=False)
class Grip:
    """A `Held` that a caller keeps, perhaps long after another worker took the session over."""

    held: Held
    who: int
    session_id: str
    incarnation: int
    worker: Worker
    behind: bool = False  # others wrote, and it did not take that in yet
    over: bool = False  # it got `LeaseLost`
    cut: str = ""  # what it was cancelled in: the same once more would be that call's repetition


class OwnersMachine(RuleBasedStateMachine):
    """Override `open_stores` to run it on another store."""

    patience: ClassVar[float] = 60.0  # seconds until a caller without an answer counts as one that never gets one

    async def open_stores(self, clock: Clock) -> tuple[Store, Store]:
        """Two handles on one empty store."""
        store = MemoryStore(clock, clock.uptime)
        return store, store

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.patched = patch.object(worker, "clock", lambda: self.clock.up / SECOND)
        self.patched.start()
        self.tardy = [Tardy(store) for store in self.run(self.open_stores(self.clock))]
        self.stores = [Shaky(store) for store in self.tardy]
        self.managers = [self.manager(0), self.manager(1)]
        self.lives: dict[str, Life] = {}
        self.grips: list[Grip] = []
        self.effects: Counter[tuple[int, str, str]] = Counter()
        self.unknown: set[tuple[int, str, str]] = set()  # steps that were run again because someone said so
        self.count = 0

    def manager(self, who: int) -> SessionManager:
        timing = {"worker_beat": BEAT, "worker_ttl": TTL, "max_block": 1e12, "backoff": 0, "max_attempts": None}
        return SessionManager(store=self.stores[who], **timing)  # pyright: ignore[reportArgumentType]

    def teardown(self) -> None:
        try:
            for session_id in self.lives:
                self.check(session_id, 1)
                self.carried(session_id)
        finally:
            for who in (0, 1):
                self.run(_left(self.managers[who]))
            for store in self.stores:
                self.run(store.close())
            self.runner.close()
            self.patched.stop()

    # How things are run

    def run(self, call: Awaitable[T]) -> T:
        try:
            return self.runner.run(_awaited(call))
        except asyncio.CancelledError:
            raise AssertionError("a step ran that should not have") from None

    def next(self) -> int:
        self.count += 1
        return self.count

    def settle(self, who: int) -> None:
        self.run(_settled(self.managers[who]))

    def did(self, who: int, pick: Random, make: Callable[[], Awaitable[T]]) -> T:
        """Make the call; sometimes the answer or the write is lost, and the caller repeats it."""
        store = self.stores[who]
        store.fault = pick.choice(("", "", "", "late", "never"))
        for _ in range(3):  # a step has two writes, which may both get lost
            with suppress(Unavailable):
                result = self.run(make())
                store.fault = ""
                return result
        raise AssertionError("it stays unavailable")

    def refused(self, call: Awaitable[Any], *errors: type[Exception]) -> Exception:
        try:
            self.run(call)
        except errors as exc:
            return exc
        raise AssertionError(f"one of {errors} was expected")

    def beat(self, worker: Worker) -> None:
        """Send a heartbeat as the worker's thread does."""
        if worker.dead is None:
            self.run(_beaten(worker))
            for who in (0, 1):
                self.settle(who)

    def awake(self, worker: Worker | None) -> None:
        """Past its deadline a worker starts nothing until a heartbeat succeeds or it is declared dead."""
        if worker is not None and worker.dead is None and not worker.alive:
            self.beat(worker)

    def workers(self) -> list[Worker | None]:
        return [manager.engine.worker for manager in self.managers]

    def living(self, session_id: str) -> bool:
        """True while the owner's lease has not expired by the store's clock."""
        (head,) = self.run(self.stores[0].store.heads([("default", session_id)]))
        assert head is not None
        return head.row.left > 0

    def owned(self, session_id: str) -> bool:
        (head,) = self.run(self.stores[0].store.heads([("default", session_id)]))
        return head is not None and head.row.lease is not None and head.row.owner != NO_WORKER

    def orphaned(self, session_id: str) -> bool:
        (head,) = self.run(self.stores[0].store.heads([("default", session_id)]))
        return head is not None and head.row.owner == NO_WORKER

    # Sessions

    @initialize(pick=PICKS)
    def begin(self, pick: Random) -> None:
        for who in (0, 1):
            self.create(who, pick)
            self.hold(who, pick)

    @rule(who=WHO, pick=PICKS)
    def create(self, who: int, pick: Random) -> None:
        free = [session_id for session_id in IDS if session_id not in self.lives]
        if free:
            session_id, context = pick.choice(free), {"n": self.next()}
            manager = self.managers[who]
            self.did(who, pick, lambda: manager.create_session("t", context=context, session_id=session_id))
            self.lives[session_id] = Life(self.next(), context=context)
            self.lives[session_id].shown.append(("session_created", {"agent_type": "t", "user_id": ""}))

    @precondition(lambda self: self.lives)
    @rule(who=WHO, pick=PICKS)
    def delete(self, who: int, pick: Random) -> None:
        """Any caller may delete a session, held or not, once."""
        if pick.random() < 0.3:
            session_id = pick.choice(sorted(self.lives))
            manager = self.managers[who]
            assert self.did(who, pick, lambda: manager.delete_session(session_id)) is True
            assert self.run(self.managers[1 - who].delete_session(session_id)) is False
            del self.lives[session_id]

    @precondition(lambda self: self.lives)
    @rule(
        who=WHO,
        pick=PICKS,
        verb=st.sampled_from(["checkpoint", "staged", "rollback", "complete", "pause", "resume", "fail", "context"]),
    )
    def outsider(self, who: int, pick: Random, verb: str) -> None:
        """A caller that does not hold the session writes after the newest entry."""
        session_id = pick.choice(sorted(self.lives))
        life, manager = self.lives[session_id], self.managers[who]
        value = self.run(manager.get_session(session_id))
        assert value is not None
        query = "checkpoint" if verb == "staged" else "resume" if verb == "context" else verb
        if verb != "context" and value.state not in TRANSITIONS[query]:
            return
        number = self.next()
        call = self.asked(manager, value, verb, number)
        if life.grip is not None and verb in {"checkpoint", "staged", "rollback", "complete"}:
            self.refused(call(), LeaseHeld)
            return
        self.did(who, pick, call)
        data: Data = {"n": number}
        match verb:
            case "checkpoint" | "staged":
                life.add(f"c{number}", data, data)
            case "rollback":
                life.state = TRANSITIONS["rollback"][life.state]
                life.add("session_rolled_back", {}, {})
            case "complete":
                life.add("session_completed", {"result": {}})
            case "pause":
                life.add("session_paused", {"previous_state": "active"})
            case "resume" if life.state is SessionState.PAUSED:
                life.add("session_resumed", {})
            case "fail":
                life.add("session_failed", {"error": str(number), "details": {}})
            case "context":
                life.context = {"n": number}
            case _:
                return
        if verb not in {"context", "rollback"}:
            life.state = TRANSITIONS[query][life.state]
        life.written_by_another()
        if life.state in {SessionState.COMPLETED, SessionState.FAILED}:
            life.grip, life.left = None, False
        assert self.orphaned(session_id) is life.left

    @precondition(lambda self: self.lives)
    @rule(who=WHO, pick=PICKS)
    def cancel(self, who: int, pick: Random) -> None:
        """A free session fails at once, a held one as soon as its holder leaves it, whether that knows or not."""
        session_id = pick.choice(sorted(self.lives))
        life, manager, grip = self.lives[session_id], self.managers[who], self.lives[session_id].grip
        if pick.random() > 0.3:
            return
        if life.state not in TRANSITIONS["cancel"]:
            self.refused(manager.cancel(session_id), InvalidTransition)
            return
        if grip is not None:
            if grip not in self.grips or grip.worker not in self.workers():
                return
            self.beat(grip.worker)
            if grip.worker.dead is not None or grip.over:
                return
        answer = self.did(who, pick, lambda: manager.cancel(session_id))
        assert (answer is SessionState.FAILED) is (grip is None)
        if grip is not None:
            if pick.random() < 0.5:
                self.beat(grip.worker)
                assert grip.held.cancelled.is_set()
            self.run(grip.held.release(error=Boom() if pick.random() < 0.5 else None))
            grip.over = True
        life.add("session_failed", {"error": "cancelled", "details": {}})
        life.context = {**life.context, "failure_reason": "cancelled"}
        life.state, life.grip, life.left = SessionState.FAILED, None, False
        assert not self.orphaned(session_id)

    def asked(self, manager: SessionManager, value: AgentSession, verb: str, number: int) -> Callable[[], Any]:
        match verb:
            case "checkpoint":
                return lambda: manager.checkpoint(value, f"c{number}", {"n": number})
            case "rollback":
                return lambda: manager.rollback(value, 1)
            case "staged":
                value.checkpoint(f"c{number}", {"n": number})
            case "fail":
                value.fail(str(number))
            case "context":
                value.context = {"n": number}
            case _:
                getattr(value, verb)()
        return lambda: manager.update_session(value)

    # Time

    @rule(beats=st.integers(1, 6), who=st.sampled_from([(0,), (1,), (0, 1), (0, 1), ()]))
    def time(self, beats: int, who: tuple[int, ...]) -> None:
        """Let time pass while these workers send heartbeats and the others do not."""
        for _ in range(beats):
            self.clock.go(BEAT)
            for n in who:
                if (worker := self.workers()[n]) is not None:
                    self.beat(worker)

    @rule(days=st.sampled_from([-300, -1, 1, 300]))
    def jump(self, days: int) -> None:
        """Set the wall clock: no worker expires by that."""
        self.clock.jump(days * 86_400)

    # Owners

    @precondition(lambda self: self.lives)
    @rule(who=WHO, pick=PICKS)
    def hold(self, who: int, pick: Random) -> None:
        session_id = pick.choice(sorted(self.lives))
        life, manager = self.lives[session_id], self.managers[who]
        self.awake(self.workers()[who])
        if life.state not in TRANSITIONS["hold"]:
            self.refused(manager.take(session_id), InvalidTransition)
        elif life.grip is None:
            self.took(who, session_id, self.did(who, pick, lambda: manager.take(session_id)))
        elif self.living(session_id):
            self.refused(manager.take(session_id), LeaseHeld)
        else:
            try:
                held = self.run(manager.take(session_id))
            except LeaseHeld:
                worker = self.workers()[who]
                assert worker is None or worker.patience > 0, "its owner is dead, and it is kept all the same"
            else:
                self.took(who, session_id, held)

    @rule(who=WHO, limit=st.integers(1, 3), pick=PICKS)
    def claim(self, who: int, limit: int, pick: Random) -> None:
        """Each orphan is claimed once; a living worker's sessions never."""
        manager = self.managers[who]
        self.awake(self.workers()[who])
        worker = self.workers()[who]
        patience = 1 << 60 if worker is None or worker.dead is not None else worker.patience
        query = Query(namespace="default", state="active", orphan_for=patience)
        orphans = {row.session_id for row in self.run(self.stores[0].store.find(query))}
        claimed = self.did(who, pick, lambda: manager.claim(limit=limit))
        by_key = {held.session.session_id for held in claimed}
        assert len(claimed) == len(by_key) <= limit
        assert by_key <= {session_id for session_id, life in self.lives.items() if life.grip is not None or life.left}
        if worker is self.workers()[who]:
            assert by_key <= orphans
            assert len(by_key) == min(limit, len(orphans))
        for held in claimed:
            self.run(held.__aenter__())
            self.took(who, held.session.session_id, held)

    def took(self, who: int, session_id: str, held: Held) -> None:
        life, worker = self.lives[session_id], self.workers()[who]
        assert worker is not None
        assert (held.data, held.session.state, held.session.context) == (life.data, life.state, life.context)
        if life.grip is not None:
            assert life.grip.held is not held
        life.grip, life.left = Grip(held, who, session_id, life.incarnation, worker), False
        self.grips.append(life.grip)

    @rule(who=WHO, crash=st.booleans())
    def restart(self, who: int, crash: bool) -> None:  # noqa: FBT001
        """A process ends: closed, so that its sessions are orphans at once, or crashed."""
        manager, worker = self.managers[who], self.workers()[who]
        self.settle(who)
        if not crash:
            self.run(_left(manager))
        elif worker is not None:
            worker._stop.set()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self.grips = [grip for grip in self.grips if grip.worker is not worker]
        self.managers[who] = self.manager(who)

    # What a holder does

    @rule(pick=PICKS, verbs=st.lists(st.sampled_from(VERBS), min_size=1, max_size=4))
    def work(self, pick: Random, verbs: list[str]) -> None:
        """A holder, mostly a present owner, calls a verb; a former owner gets LeaseLost."""
        for verb in verbs if self.grips else ():
            self.work_once(pick, verb)

    def work_once(self, pick: Random, verb: str) -> None:
        owners = [life.grip for life in self.lives.values() if life.grip in self.grips]
        grip = pick.choice(owners if owners and pick.random() < 0.75 else self.grips)
        assert grip is not None
        life = self.lives.get(grip.session_id)
        self.awake(grip.worker)
        verb = "checkpoint" if verb == grip.cut else verb
        if verb == "release":
            self.let_go(grip, life, pick)
        elif life is None or life.grip is not grip or grip.over or grip.worker.dead is not None:
            self.stopped(grip, verb)
            if life is not None and life.grip is grip and not self.owned(grip.session_id):
                assert grip.over
                life.grip = None  # a release whose answer was lost, sent once more
        elif verb == "refresh" or (grip.behind and pick.random() < 0.5):
            value = self.run(grip.held.refresh())
            grip.behind = False
            assert (value.state, value.context, grip.held.data) == (life.state, life.context, life.data)
        elif verb == "heartbeat":
            self.run(grip.held.heartbeat())
        elif grip.behind:
            before = grip.held.data
            if verb != "resume":
                self.refused(self.verb(grip, verb, 0)(), Conflict, InvalidTransition)
            assert grip.held.data == before
            assert not grip.held.lost.is_set()
        elif verb == "step":
            self.step(grip, life, pick)
        else:
            self.saved(grip, life, verb, pick)

    def stopped(self, grip: Grip, verb: str) -> None:
        """No longer the owner: every call is refused, and from then on `lost` is set."""
        if grip.held.session.state is SessionState.ACTIVE and verb in {"pause", "resume"}:
            verb = "checkpoint"  # to resume an active one is nothing, and tells nothing
        call = self.verb(grip, verb, 0)
        errors = (LeaseLost, NotFound) if grip.over else (LeaseLost, NotFound, Conflict)
        error = self.refused(call(), *errors, InvalidTransition)
        if not isinstance(error, InvalidTransition):
            assert grip.over or grip.held.lost.is_set()
            grip.over = True

    def verb(self, grip: Grip, verb: str, number: int) -> Callable[[], Awaitable[Any]]:
        held = grip.held
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "checkpoint": lambda: held.checkpoint(f"c{number}", {"n": number}),
            "append": lambda: held.checkpoint(f"c{number}", append={"list": [number]}),
            "rollback": lambda: held.rollback(1),
            "context": lambda: held.update_context(n=number),
            "fail": lambda: held.fail(str(number)),
            "step": lambda: held.step("late", dict[str, Any], mode="at_most_once"),
        }
        return calls.get(verb) or getattr(held, verb)

    def saved(self, grip: Grip, life: Life, verb: str, pick: Random) -> None:
        number = self.next()
        call = self.verb(grip, verb, number)
        if verb in TRANSITIONS and life.state not in TRANSITIONS[verb]:
            self.refused(call(), InvalidTransition)
            return
        cut = pick.random() < 0.15
        if not cut:
            self.did(grip.who, pick, call)
        else:
            cancelled, landed = self.cut(grip, call, pick.randint(0, 6))
            if cancelled and pick.random() < 0.5 and verb not in {"complete", "fail"}:
                self.run(call())  # asked for once more
                cut = False
            else:
                grip.cut = verb
                if not landed:
                    return
        match verb:
            case "checkpoint":
                life.add(f"c{number}", {"n": number}, {"n": number})
            case "append":
                data = {**life.data, "list": [*life.data.get("list", []), number]}
                life.add(f"c{number}", data, data)
            case "rollback":
                life.add("session_rolled_back", {}, {})
            case "context":
                life.context = {**life.context, "n": number}
            case "pause":
                life.add("session_paused", {"previous_state": "active"})
            case "resume" if life.state is SessionState.PAUSED:
                life.add("session_resumed", {})
            case "complete":
                life.add("session_completed", {"result": {}})
            case "fail":
                life.add("session_failed", {"error": str(number), "details": {}})
            case _:
                pass
        if verb in TRANSITIONS:
            life.state = TRANSITIONS[verb][life.state]
        if verb in {"complete", "fail"}:
            grip.over, life.grip = True, None
        held = grip.held
        if not cut:
            assert (held.data, held.session.state, held.session.context) == (life.data, life.state, life.context)

    def cut(self, grip: Grip, call: Callable[[], Awaitable[Any]], turns: int) -> tuple[bool, bool]:
        """Cancel the caller after that many turns of the loop; return whether it was cancelled and whether it wrote."""
        before = self.run(self.stores[0].store.heads([("default", grip.session_id)]))
        cancelled = self.run(_cut(call(), turns))
        self.run(_settled(grip.held))  # its manager may be one of the past
        self.run(self.stores[grip.who].store.append([]))  # behind whatever is still under way
        return cancelled, self.run(self.stores[0].store.heads([("default", grip.session_id)])) != before

    def let_go(self, grip: Grip, life: Life | None, pick: Random) -> None:
        """Release never raises. If its answer is lost, the next heartbeat repeats it. An error leaves an orphan."""
        self.stores[grip.who].fault = pick.choice(("", "", "late", "never"))
        error = Boom("why") if pick.random() < 0.5 else None
        over = grip.over or grip.held.lost.is_set()
        self.run(grip.held.release(error=error))
        self.stores[grip.who].fault = ""
        grip.over = True
        if life is not None and life.grip is grip:
            self.beat(grip.worker)
            if not self.owned(grip.session_id):
                life.grip, life.left = None, self.orphaned(grip.session_id)
                assert over or life.left is (error is not None)
            else:
                assert grip.worker.dead is not None or grip.worker not in self.workers()

    def step(self, grip: Grip, life: Life, pick: Random) -> None:
        """A step: a journaled result is returned, and at_most_once runs at most once."""
        mode: Any = pick.choice(MODES)
        name, key = pick.choice(("x1", "x2", "y1"))
        how, retry = pick.choice(("ok", "ok", "raise", "cut")), pick.random() < 0.3
        on_unknown: Any = pick.choice(("fail", "fail", "skip", "retry"))
        retries = pick.choice((0, 0, 2))
        state, result = life.steps.get((name, key), ("new", None))
        effect, number = (life.incarnation, name, key), self.next()
        store = self.stores[grip.who]
        fault = pick.choice(("", "", "late", "never"))

        async def act() -> int:
            self.effects[effect] += 1
            if how == "raise":
                raise Boom
            if how == "cut":
                raise asyncio.CancelledError
            store.fault = fault
            return number

        def call() -> Awaitable[Any]:
            return grip.held.step(name, act, key=key, mode=mode, on_unknown=on_unknown, retry=retry, **again)

        again: Any = {"retries": retries, "backoff": 0}
        before = self.effects[effect]
        if state == "finished":
            assert self.run(call()) == result
        elif state == "failed" and not retry:
            self.refused(call(), StepFailed)
        elif state == "started" and on_unknown == "fail":
            self.refused(call(), StepUnknown)
        elif state == "started" and on_unknown == "skip":
            assert self.did(grip.who, pick, call) is None
            life.steps[name, key] = ("finished", None)
        else:
            if state != "new":
                self.unknown.add(effect)
            if how == "ok":
                assert self.did(grip.who, pick, call) == number
                life.steps[name, key] = ("finished", number)
            else:
                with suppress(Boom, asyncio.CancelledError):
                    self.run(_shielded(call()))
                cut = ("started", None) if mode == "at_most_once" else (state, result)
                life.steps[name, key] = ("failed", None) if how == "raise" else cut
                if how == "cut" and mode != "at_most_once":
                    self.unknown.add(effect)
            attempts = 1 + retries if how == "raise" else 1
            assert self.effects[effect] == before + attempts
            if attempts > 1:
                self.unknown.add(effect)
                [step] = [one for one in self.run(grip.held.steps()) if (one.name, one.key) == (name, key)]
                assert (step.state, step.attempts) == ("failed", attempts)
            before += attempts
        store.fault = ""
        assert self.effects[effect] == before
        assert self.effects[effect] <= 1 or effect in self.unknown

    @rule(pick=PICKS)
    def together(self, pick: Random) -> None:
        """Several callers of one holder at once, some cancelled; sometimes one of them releases the session."""
        if not self.grips:  # no precondition: which thread has released depends on timing, and no draw may depend on it
            return
        grip = pick.choice(self.grips)
        life = self.lives.get(grip.session_id)
        self.awake(grip.worker)
        if life is None or life.grip is not grip or grip.over or grip.behind or grip.worker.dead is not None:
            return
        held, asks = grip.held, dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[Data], Data] | None]]()
        verbs = pick.choices(("checkpoint", "append", "context", "heartbeat", "refresh", "steps"), k=pick.randint(2, 6))
        for verb in [*verbs, *["release"] * (pick.random() < 0.3)]:
            number = self.next()
            asks[f"c{number}"] = self.verb(grip, verb, number), _after(verb, number)
        pick.shuffle(keys := list(asks))
        items = dict(zip(keys, self.run(self.at_once(held, [asks[key][0] for key in keys], pick)), strict=True))
        # Who left before it began let nothing go.
        released = len(asks) > len(verbs) and not self.owned(grip.session_id)
        assert released or len(asks) == len(verbs) or isinstance(items[f"c{self.count}"], asyncio.CancelledError)
        if not released and life.state in TRANSITIONS["checkpoint"]:  # what is in doubt is settled first
            number = self.next()
            asks[f"c{number}"] = self.verb(grip, "checkpoint", number), _after("checkpoint", number)
            items[f"c{number}"] = self.run(answered(asks[f"c{number}"][0](), self.patience))
        elif not released:
            self.run(answered(held.refresh(), self.patience))
        grip.over, life.grip = released, None if released else grip
        self.landed(life, grip, {name: after for name, (_, after) in asks.items() if after is not None}, items)
        for name, answer in items.items():
            allowed = LeaseLost if released else InvalidTransition
            assert not isinstance(answer, Exception) or isinstance(answer, allowed), f"{name}: {answer!r}"

    async def at_once(self, held: Held, calls: list[Callable[[], Awaitable[Any]]], pick: Random) -> list[Any]:
        answer = await crowd(calls, self.tardy, pick, self.patience)
        await ended(held.running.copy(), self.patience)
        for store in self.tardy:
            await store.quiet()
        return answer

    def landed(self, life: Life, grip: Grip, asks: dict[str, Callable[[Data], Data]], answers: dict[str, Any]) -> None:
        """Apply the log's new entries to the model, if each is possible there, and none after a release."""
        reader = SessionManager(store=self.stores[0].store)
        history = self.run(reader.history(grip.session_id))
        for checkpoint in history[len(life.shown) :]:
            assert checkpoint.name in asks, f"{checkpoint} came twice, or no call asked for it"
            after = asks.pop(checkpoint.name)(life.data)
            assert checkpoint.data == after, f"{checkpoint} does not follow what was before it"
            life.add(checkpoint.name, after, after)
        for name in asks:
            assert isinstance(answers[name], (asyncio.CancelledError, Exception)), (
                f"{name} was acknowledged, and is not there"
            )
        (head,) = self.run(self.stores[0].store.heads([("default", grip.session_id)]))
        assert head is not None
        assert not grip.over or (head.row.lease is None and head.last.kind is Kind.RELEASED)
        value = self.run(reader.get_session(grip.session_id))
        assert value is not None
        life.context = value.context

    # How it is checked

    @invariant()
    def same_as_the_model(self) -> None:
        for n, session_id in enumerate(self.lives):
            if (self.count + n) % 2 == 0:
                self.check(session_id, n)

    def check(self, session_id: str, on: int) -> None:
        life = self.lives[session_id]
        reader = SessionManager(store=self.stores[on % 2].store)
        assert [(c.name, c.data) for c in self.run(reader.history(session_id))] == life.shown
        value = self.run(reader.get_session(session_id))
        assert value is not None
        assert (value.state, value.context) == (life.state, life.context)
        assert self.owned(session_id) is (life.grip is not None)
        assert (value.owner is None) is (life.grip is None and not life.left)
        assert self.run(reader.get_data(session_id)) == life.data
        (head,) = self.run(self.stores[0].store.heads([("default", session_id)]))
        assert head is not None
        entries = self.run(self.stores[0].store.entries(head.row.key))
        assert [entry.seq for entry in entries] == [*range(1, len(entries) + 1)]
        fence = 0
        for entry in entries:
            fence += entry.kind in TAKING_KINDS
            assert entry.fence == fence

    def carried(self, session_id: str) -> None:
        """An export of a session, held or not, can be imported elsewhere, reads the same and has no owner."""
        life, elsewhere = self.lives[session_id], SessionManager()
        value = self.run(elsewhere.import_session(self.run(self.managers[0].export(session_id))))
        assert (value.state, value.context, value.owner) == (life.state, life.context, None)
        assert [(c.name, c.data) for c in self.run(elsewhere.history(session_id))] == life.shown


def _after(verb: str, number: int) -> Callable[[Data], Data] | None:
    """The agent's data after this call; None if it does not change."""
    match verb:
        case "checkpoint":
            return lambda _: {"n": number}
        case "append":
            return lambda before: {**before, "list": [*before.get("list", []), number]}
        case _:
            return None


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _shielded(call: Awaitable[Any]) -> None:
    await asyncio.gather(asyncio.ensure_future(call), return_exceptions=True)


async def _cut(call: Awaitable[Any], turns: int) -> bool:
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


async def _settled(whose: SessionManager | Held) -> None:
    await asyncio.sleep(0)
    while whose.running:
        await asyncio.wait(whose.running)


async def _beaten(worker: Worker) -> None:
    await worker._renew()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0)


async def _left(manager: SessionManager) -> None:
    await _settled(manager)
    if manager.engine.worker is not None:
        await manager.engine.worker.leave()
