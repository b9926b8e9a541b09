"""A state machine over whole managers: two of them on one store, compared with a plain model after every step.

The model knows the one rule and nothing else: after the newest entry seen, a write lands; any other is a `Conflict`.
It is steered towards live sessions: few ids, unique payloads, writers that mostly know the head.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from saveslot.errors import AlreadyExists, Conflict, InvalidTransition, NotFound
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.values.checks import Data
from saveslot.values.lifecycle import TRANSITIONS, SessionState, follow
from tests.harness.crowd import Tardy, answered, crowd, ended

T = TypeVar("T")

IDS = ("a", "b:2", "ü c")
WHO = st.integers(0, 1)
# Drawn once: what callers at once come to is the threads' affair, and nothing drawn may depend on it.
PICKS = st.integers(0, 2**32).map(Random)
NAMES = st.sampled_from(["turn", "tool", "plan"])
# Something that stays: small states would all be keyframes, and patches and recipes would go untried.
BULK = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9000), k=500)))
# What several callers at once ask for. Who refreshes waits for its turn too, and leaves the line when it is cancelled.
ASKS = ("whole", "whole", "append", "append", "patch", "rollback", "value", *["refresh"] * 5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | st.integers(-3, 2**70) | FLOATS | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
DATA = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@dataclass
class Log:
    """The model of one incarnation of a session."""

    incarnation: int
    state: SessionState = SessionState.ACTIVE
    context: Data = field(default_factory=dict[str, Any])
    shown: list[tuple[int, str, Data]] = field(default_factory=list[tuple[int, str, Data]])
    head: int = 1
    data: Data = field(default_factory=dict[str, Any])
    at: dict[int, Data] = field(default_factory=dict[int, Data])  # the agent's data as of each entry

    def add(self, name: str, shown: Data, data: Data | None = None) -> None:
        self.head += 1
        self.data = self.data if data is None else data
        self.at[self.head] = self.data
        self.shown.append((self.head, name, shown))


@dataclass
class Held:
    """A session value that a caller keeps, and the entries it has seen."""

    value: AgentSession
    incarnation: int
    seen: int


@dataclass
class Ask:
    """One of several callers at once: what it calls, and what the agent's data is when that has landed."""

    call: Callable[[], Awaitable[Any]]
    after: Callable[[Data], Data] | None  # None for one who only looks
    context: Data | None = None
    by_value: bool = False


class ManagerMachine(RuleBasedStateMachine):
    """Override `open_stores` to run it on another store."""

    patience: ClassVar[float] = 60.0  # seconds until a caller without an answer counts as one that never gets one

    async def open_stores(self) -> tuple[Store, Store]:
        """Two handles on one empty store."""
        store = MemoryStore()
        return store, store

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stores = [Tardy(store) for store in self.run(self.open_stores())]
        self.managers = [SessionManager(store=store) for store in self.stores]
        self.logs: dict[str, Log] = {}
        self.knows: list[dict[str, tuple[int, int]]] = [{}, {}]
        self.held: dict[str, Held] = {}
        self.count = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        try:
            for session_id, log in self.logs.items():
                self.check(self.stores[1], session_id, log)
                self.carried(session_id)
        finally:
            for store in self.stores:
                self.run(store.close())
            self.runner.close()

    def unique(self, data: Data) -> Data:
        self.count += 1
        return {"bulk": BULK, **data, "unique": self.count}

    def live(self) -> list[str]:
        return sorted(self.logs)

    def stale(self, who: int, session_id: str) -> bool:
        """True if the newest entry is not the one that this manager's callers have read or written."""
        log = self.logs[session_id]
        known = self.knows[who].get(session_id)
        return known is not None and known != (log.incarnation, log.head)

    def saw(self, who: int, session_id: str) -> None:
        log = self.logs[session_id]
        self.knows[who][session_id] = (log.incarnation, log.head)

    # Sessions

    @rule(who=WHO, session_id=st.sampled_from(IDS), context=DATA)
    def create(self, who: int, session_id: str, context: Data) -> None:
        call = self.managers[who].create_session("t", context=context, session_id=session_id)
        if session_id in self.logs:
            try:
                self.run(call)
            except AlreadyExists:
                return
            raise AssertionError(f"{session_id} was created twice")
        self.count += 1
        value = self.run(call)
        log = Log(self.count, context=value.to_dict()["context"])
        log.shown.append((1, "session_created", {"agent_type": "t", "user_id": ""}))
        log.at[1] = {}
        self.logs[session_id] = log
        self.saw(who, session_id)
        self.held[session_id] = Held(value, log.incarnation, 1)

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS, rare=st.integers(0, 4))
    def delete(self, who: int, pick: Random, rare: int) -> None:
        if rare:
            return
        session_id = pick.choice(self.live())
        assert self.run(self.managers[who].delete_session(session_id)) is True
        assert self.run(self.managers[1 - who].delete_session(session_id)) is False
        del self.logs[session_id]

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.managers[who] = SessionManager(store=self.stores[who])
        self.knows[who] = {}

    # Checkpoints

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS, name=NAMES, data=DATA, how=st.sampled_from("wwwap"))
    def checkpoint(self, who: int, pick: Random, name: str, data: Data, how: str) -> None:
        session_id = pick.choice(self.live())
        log, manager = self.logs[session_id], self.managers[who]
        self.count += 1
        lists = isinstance(log.data.get("list", []), list)
        if how == "a" and lists:
            data = {**log.data, "list": [*log.data.get("list", []), self.count]}
            call = manager.checkpoint(session_id, name, append={"list": [self.count]})
        elif how == "p":
            data = {**log.data, "patched": self.count}
            call = manager.checkpoint(session_id, name, patch=[{"op": "add", "path": "/patched", "value": self.count}])
        else:
            data = self.unique(data)
            call = manager.checkpoint(session_id, name, data)
        self.written(who, session_id, call, "checkpoint", lambda: log.add(name, data, data))

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS, by_another=st.booleans())
    def rollback(self, who: int, pick: Random, by_another: bool) -> None:  # noqa: FBT001
        session_id = pick.choice(self.live())
        log = self.logs[session_id]
        to = pick.randint(1, log.head)
        if self.stale(who, session_id):
            self.refused(self.managers[who].rollback(session_id, to), (Conflict, NotFound))
            return
        if log.state is SessionState.COMPLETED:
            self.refused(self.managers[who].rollback(session_id, to), InvalidTransition)
            self.saw(who, session_id)
            return
        checkpoint = self.run(self.managers[who].rollback(session_id, to))
        log.state = follow(log.state, "rollback")
        log.add("session_rolled_back", log.at[to], log.at[to])
        assert (checkpoint.seq, checkpoint.data) == (log.head, log.data)
        self.saw(who, session_id)
        if by_another:  # what was rolled back to is read cold and gone on from, by someone who knows nothing
            manager = SessionManager(store=self.stores[who])
            self.count += 1
            data = {**log.data, "branch": self.count}
            self.run(manager.checkpoint(session_id, "branch", data))
            log.add("branch", data, data)

    @precondition(lambda self: 0 < len(self.logs) < len(IDS))
    @rule(who=WHO, pick=PICKS)
    def fork(self, who: int, pick: Random) -> None:
        source_id = pick.choice(self.live())
        target_id = pick.choice([free for free in IDS if free not in self.logs])
        source = self.logs[source_id]
        at = pick.randint(1, source.head)
        value = self.run(self.managers[who].fork(source_id, at, session_id=target_id))
        self.count += 1
        log = Log(self.count, context=value.to_dict()["context"])
        assert log.context == source.context
        log.shown.append((1, "session_created", {"agent_type": "t", "user_id": ""}))
        log.at[1] = {}
        if len(value.checkpoints) > 1:
            log.add(value.checkpoints[1].name, source.at[at], source.at[at])
        else:
            assert source.at[at] == {}
        self.logs[target_id] = log
        self.saw(who, target_id)

    # Values

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS)
    def get(self, who: int, pick: Random) -> None:
        session_id = pick.choice(self.live())
        value = self.run(self.managers[who].get_session(session_id))
        assert value is not None
        log = self.logs[session_id]
        self.held[session_id] = Held(value, log.incarnation, log.head)
        self.saw(who, session_id)

    @rule(
        who=WHO,
        pick=PICKS,
        verbs=st.lists(st.sampled_from(["checkpoint", "pause", "resume", "complete", "fail", "recover"]), max_size=3),
        refresh=st.booleans(),
        context=st.booleans(),
    )
    def update(self, who: int, pick: Random, verbs: list[str], refresh: bool, context: bool) -> None:  # noqa: FBT001
        if not self.held:
            return
        session_id = pick.choice(sorted(self.held))
        held, log, manager = self.held[session_id], self.logs.get(session_id), self.managers[who]
        if refresh and log is not None and held.incarnation != log.incarnation:
            self.refused(manager.refresh(held.value), NotFound)
            self.saw(who, session_id)
        elif refresh and log is not None:
            self.run(manager.refresh(held.value))
            self.saw(who, session_id)
            held.incarnation, held.seen = log.incarnation, log.head
        value = held.value
        for verb in verbs:
            if value.state in TRANSITIONS[verb] and not (verb == "resume" and value.state is SessionState.ACTIVE):
                self.count += 1
                arguments = {"checkpoint": ("staged", {"unique": self.count}), "fail": (f"e{self.count}",)}
                getattr(value, verb)(*arguments.get(verb, ()))
        if context:
            self.count += 1
            value.context["changed"] = self.count
        if log is None or held.incarnation != log.incarnation:
            self.refused(manager.update_session(value), NotFound)
            del self.held[session_id]
            return
        if held.seen != log.head:
            self.refused(manager.update_session(value), Conflict)
            return
        staged = [(item.checkpoint.name, item.checkpoint.data, item.kind.name) for item in value.staged]
        try:
            self.run(manager.update_session(value))
        except InvalidTransition:
            del self.held[session_id]  # staged on a state that is no longer: the caller starts over
            return
        document = value.to_dict()["context"]
        if document != log.context:
            log.context = document
            log.head += 1
            log.at[log.head] = log.data
        for name, data, kind in staged:
            log.add(name, data, data if kind == "CHECKPOINT" else None)
        log.state = value.state
        if held.seen != log.head:
            self.saw(who, session_id)
        held.seen = log.head
        assert value.staged == []

    # Several at once

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS)
    def block(self, who: int, pick: Random) -> None:
        """Checkpoints of some sessions in one commit, perhaps with a new session: all of them, or none."""
        manager, logs = self.managers[who], self.logs
        chosen = pick.sample(self.live(), pick.randint(1, len(logs)))
        saved = {session_id: self.unique(logs[session_id].data) for session_id in chosen}
        new = [session_id for session_id in IDS if session_id not in logs][: pick.randint(0, 1)]
        ended = any(logs[session_id].state not in TRANSITIONS["checkpoint"] for session_id in chosen)
        refused = ended or any(self.stale(who, session_id) for session_id in chosen)

        async def commit() -> None:
            async with manager.together() as block:
                for session_id, data in saved.items():
                    block.checkpoint(session_id, "block", data)
                for session_id in new:
                    block.create_session("t", session_id=session_id)

        if refused:
            self.refused(commit(), (Conflict, InvalidTransition, NotFound))
            for session_id in chosen:
                assert self.run(manager.head(session_id)) is not None
                self.saw(who, session_id)
            return
        self.run(commit())
        for session_id, data in saved.items():
            logs[session_id].add("block", data, data)
            self.saw(who, session_id)
        for session_id in new:
            self.count += 1
            log = logs[session_id] = Log(self.count)
            log.shown.append((1, "session_created", {"agent_type": "t", "user_id": ""}))
            log.at[1] = {}
            self.saw(who, session_id)

    @precondition(lambda self: self.logs)
    @rule(who=WHO, pick=PICKS, both=st.integers(0, 3))
    def together(self, who: int, pick: Random, both: int) -> None:
        """Several callers of one session, some cancelled: each gets its write's outcome; each write is stored once."""
        session_id = pick.choice(self.live())
        log = self.logs[session_id]
        if log.state not in TRANSITIONS["checkpoint"]:
            return
        managers = self.managers if not both else [self.managers[who]]
        others = not both or self.stale(who, session_id)  # then a writer by id may not have seen the newest
        asks = dict(self.ask(pick, pick.choice(managers), session_id) for _ in range(pick.randint(2, 7)))
        outcome = self.run(self.at_once(asks, pick))
        closing = self.unique({})
        for _ in range(2 + others):
            try:  # what is in doubt is settled first
                checkpoint = self.run(
                    answered(self.managers[who].checkpoint(session_id, "closing", closing), self.patience)
                )
                break
            except (Conflict, InvalidTransition, NotFound):
                assert others, "only this manager wrote, but it got a conflict"
                self.run(self.managers[who].head(session_id))
        else:
            raise AssertionError("a manager does not learn of the newest entry")
        if not both:  # the other one may know anything now: it starts over
            value = self.run(self.managers[1 - who].get_session(session_id))
            assert value is not None
            self.run(self.managers[1 - who].refresh(value))
        asks["closing"] = Ask(lambda: asyncio.sleep(0), lambda _: closing)
        outcome["closing"] = checkpoint
        self.landed(session_id, asks, outcome)
        for name, answer in outcome.items():
            if isinstance(answer, (Conflict, InvalidTransition, NotFound)):
                assert others or asks[name].by_value, f"{name}: {answer}"
            else:
                assert not isinstance(answer, Exception), f"{name}: {answer!r}"
        self.saw(who, session_id)
        if not both:
            self.saw(1 - who, session_id)

    async def at_once(self, asks: dict[str, Ask], pick: Random) -> dict[str, Any]:
        items = await crowd([ask.call for ask in asks.values()], self.stores, pick, self.patience)
        for manager in self.managers:
            await ended(manager.running.copy(), self.patience)  # writes that continue without their caller
        for store in self.stores:
            await store.quiet()
        return dict(zip(asks, items, strict=True))

    def ask(self, pick: Random, manager: SessionManager, session_id: str) -> tuple[str, Ask]:
        log, data = self.logs[session_id], self.unique({})
        number = self.count
        name = f"t{number}"
        match pick.choice(ASKS):
            case "refresh":
                value = self.run(manager.get_session(session_id))
                assert value is not None
                return name, Ask(lambda: manager.refresh(value), None)
            case "append":
                added = {"list": [number]}
                return name, Ask(
                    lambda: manager.checkpoint(session_id, name, append=added),
                    lambda before: {**before, "list": [*before.get("list", []), number]},
                )
            case "patch":
                patch = [{"op": "add", "path": "/patched", "value": number}]
                return name, Ask(
                    lambda: manager.checkpoint(session_id, name, patch=patch),
                    lambda before: {**before, "patched": number},
                )
            case "rollback":
                to = pick.randint(1, log.head)
                back = log.at[to]
                return "session_rolled_back", Ask(lambda: manager.rollback(session_id, to), lambda _: back)
            case "value":
                value = self.run(manager.get_session(session_id))
                assert value is not None
                value.checkpoint(name, data)
                value.context["changed"] = number
                context = value.to_dict()["context"]
                return name, Ask(lambda: manager.update_session(value), lambda _: data, context, by_value=True)
            case _:
                return name, Ask(lambda: manager.checkpoint(session_id, name, data), lambda _: data)

    def landed(self, session_id: str, asks: dict[str, Ask], answers: dict[str, Any]) -> None:
        """Apply the log's new entries to the model one by one, if each is possible there."""
        log, left = self.logs[session_id], dict(asks)
        history = self.run(SessionManager(store=self.stores[0]).history(session_id))
        for checkpoint in history:
            if checkpoint.seq > log.head:
                ask = left.pop(checkpoint.name, None)
                assert ask is not None, f"{checkpoint} came twice, or no call asked for it"
                assert ask.after is not None
                assert checkpoint.data == ask.after(log.data), f"{checkpoint} does not follow what was before it"
                if ask.context is not None:
                    log.context = ask.context
                while log.head < checkpoint.seq - 1:
                    log.head += 1
                    log.at[log.head] = log.data
                log.add(checkpoint.name, checkpoint.data, checkpoint.data)
                answer = answers[checkpoint.name]
                assert isinstance(answer, (asyncio.CancelledError, AgentSession)) or answer == checkpoint
        for name, ask in left.items():
            known = ask.after is None or isinstance(answers[name], (asyncio.CancelledError, Exception))
            assert known, f"{name} was acknowledged, and is not there"

    # How it is checked

    def refused(self, call: Coroutine[Any, Any, Any], error: type[Exception] | tuple[type[Exception], ...]) -> None:
        try:
            self.run(call)
        except error:
            return
        raise AssertionError(f"{error} was expected")

    def written(
        self, who: int, session_id: str, call: Coroutine[Any, Any, Any], verb: str, note: Callable[[], None]
    ) -> None:
        log = self.logs[session_id]
        stale = self.stale(who, session_id)
        if log.state not in TRANSITIONS[verb] and not stale:
            self.refused(call, InvalidTransition)
            self.saw(who, session_id)
        elif stale:
            # A manager that remembers an ended state may refuse by that; either way nothing is stored: it stays stale.
            self.refused(call, (Conflict, NotFound, InvalidTransition))
        else:
            self.run(call)
            note()
            self.saw(who, session_id)

    @invariant()
    def same_as_the_model(self) -> None:
        for n, (session_id, log) in enumerate(self.logs.items()):
            if (self.count + n) % 3 == 0:
                self.check(self.stores[n % 2], session_id, log)

    def check(self, store: Store, session_id: str, log: Log) -> None:
        manager = SessionManager(store=store)
        history = self.run(manager.history(session_id))
        assert [(c.seq, c.name, c.data) for c in history] == log.shown
        value = self.run(manager.get_session(session_id))
        assert value is not None
        assert (value.state, value.context) == (log.state, log.context)

    def carried(self, session_id: str) -> None:
        """An export of any session can be imported elsewhere and reads the same."""
        elsewhere = SessionManager()
        value = self.run(elsewhere.import_session(self.run(self.managers[0].export(session_id))))
        assert (value.state, value.context) == (self.logs[session_id].state, self.logs[session_id].context)
        assert [(c.seq, c.name, c.data) for c in self.run(elsewhere.history(session_id))] == self.logs[session_id].shown
