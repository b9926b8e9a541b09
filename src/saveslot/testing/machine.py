"""The store machine: a store and memory take the same random steps; the first difference is shrunk and shown.

Most steps are ones that land: writers know their session's head, ids to create are free, payloads are unique. A machine
that explores mostly error paths passes with bugs planted in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.testing.pen import SECOND, Clock, Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Group, Outcome, Query, Wanted, Worker, order

T = TypeVar("T")
Open = Callable[[Clock], Awaitable[tuple[Store, Store]]]

IDS = ("a", "b", "B-long", "c's 🌱")
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "Red"}, {"team": "blue", "x": 'q"'})
# Labels of entries.
MARKS: tuple[dict[str, str], ...] = ({"run": "r1"}, {"run": "r1", "step": "\U0001f331"}, {"step": ""})
STATES = ("active", "paused", "completed", "failed")
JUMPS = (0.000_001, 1, 60, 3_600, 30 * 86_400, -1, -86_400)
HOUR = 3_600 * SECOND
TTL = 20 * SECOND
FOREVER = 1 << 60

# One drawn number makes all the choices of a step: drawn one by one they cost more than the step itself.
picks = st.integers(0, 2**32).map(Random)
handle = st.integers(0, 1)
# A fresh store for each example would spend most of its time on opening files; a fresh namespace does as well.
_examples = count(1)


@dataclass
class Known:
    """A session as the machine knows it: a writer at its head, and where that writer stood before."""

    pen: Pen
    past: list[Pen] = field(default_factory=list[Pen])
    deleted: bool = False

    def saw(self, group: Group) -> None:
        self.past.append(self.pen.copy())
        self.pen.saw(group)


class LikeMemory(RuleBasedStateMachine):
    loop: ClassVar[asyncio.AbstractEventLoop]
    handles: ClassVar[tuple[Store, Store]]
    clock: ClassVar[Clock]

    def __init__(self) -> None:
        super().__init__()
        self.clock.at, self.clock.up = Clock().at, Clock().up
        self.memory = MemoryStore(self.clock, self.clock.uptime)
        self.example = next(_examples)
        self.numbers = count(1)
        self.namespaces = (f"{self.example}", f"{self.example}-b")
        self.known: list[Known] = []
        self.landed: list[Group] = []
        self.crew: list[Worker] = []
        query = Query(namespace=self.namespaces[0])
        self.entries_before = self.wait(self.handles[0].count(query)).entries
        self.start = [self.wait(store.events("", None))[1] for store in (self.memory, self.handles[0])]
        self.cursors = {namespace: list(self.start) for namespace in self.namespaces}

    # Both stores do the same

    def wait(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(_awaited(call))

    def both(self, on: int, call: Callable[[Store], Awaitable[T]]) -> T:
        expected, result = self.wait(_pair(call(self.memory), call(self.handles[on])))
        assert result == expected, f"memory: {expected}\nstore:  {result}"
        return expected

    def send(self, on: int, *groups: Group) -> list[Outcome]:
        """Send, and look at what came of it through the other handle."""
        verdicts = self.both(on, lambda store: store.append(groups))
        self.both(1 - on, lambda store: store.heads([group.key for group in groups]))
        return [verdict.outcome for verdict in verdicts]

    def land(self, on: int, known: Known, group: Group) -> None:
        assert self.send(on, group) == [Outcome.APPENDED]
        known.saw(group)
        self.landed.append(group)

    # Choosing

    def fresh(self) -> bytes:
        # Keys are compared by their bytes: made in one order, they sort in another.
        number = next(self.numbers)
        return self.example.to_bytes(6, "big") + (number * 0x9E37_79B9 % 2**32).to_bytes(4, "big") + b"\x00" * 6

    def living(self) -> list[Known]:
        return [known for known in self.known if not known.deleted]

    def held(self) -> list[Known]:
        return [known for known in self.living() if known.pen.lease is not None]

    def some_live(self) -> bool:
        return bool(self.living())

    def free_ids(self) -> list[tuple[str, str]]:
        taken = {(known.pen.namespace, known.pen.session_id) for known in self.living()}
        return [spot for spot in ((ns, name) for ns in self.namespaces for name in IDS) if spot not in taken]

    # Steps that land

    @initialize(pick=picks)
    def begin(self, pick: Random) -> None:
        for on in (0, 1, 0):
            self.create(on, pick)
        for on in (0, 1):
            self.arrive(on, pick)

    @precondition(lambda self: bool(self.free_ids()))
    @rule(on=handle, pick=picks)
    def create(self, on: int, pick: Random) -> None:
        """A new session, often under the id of a deleted one."""
        known = Known(Pen(*pick.choice(self.free_ids()), key=self.fresh(), new_id=self.fresh))
        row: dict[str, Any] = {
            "agent_type": pick.choice(("", "coder")),
            "user_id": pick.choice(("", "u1")),
            "state": pick.choice(("active", "active", *STATES)),
            "created_at": pick.choice((0, 7, 7)),
            "heartbeat": pick.choice((0, self.clock() - HOUR)),
            "body": b"body \x00 %d" % pick.getrandbits(20),
            "labels": pick.choice(LABELS),
        }
        group = known.pen.begin(pick.randint(1, 3), **row)
        group.entries[0].sign = pick.random() < 0.2
        self.known.append(known)
        self.land(on, known, group)

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def checkpoint(self, on: int, pick: Random) -> None:
        known = pick.choice(self.living())
        group = known.pen.group(pick.randint(1, 4), note=pick.choice((None, b"", b"n\x00")))
        for entry in group.entries:
            entry.name = pick.choice(("step", "turn"))
            entry.sign = pick.random() < 0.3
            entry.at = pick.choice((0, 0, -5, pick.getrandbits(40)))
            entry.frame = pick.choice((b"", None, entry.frame, entry.frame, entry.frame))
            entry.base = pick.randrange(entry.seq)
            entry.labels = pick.choice(({}, {}, *MARKS))
            entry.request = pick.choice((b"", b"", self.fresh() + bytes(16)))
        self.land(on, known, group)

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def together(self, on: int, pick: Random) -> None:
        """Some sessions at once; now and then one of them is refused, by its place in the log or by its request."""
        chosen = pick.sample(self.living(), min(len(self.living()), pick.randint(1, 3)))
        groups = [known.pen.group(pick.randint(1, 2), labels=pick.choice(({}, *MARKS))) for known in chosen]
        late = pick.randrange(3)
        if late == 0:
            groups[-1].prev = self.fresh()
        elif late == 1 and self.landed:
            groups[-1].entries[0].request = pick.choice(pick.choice(self.landed).entries).request
        verdicts = self.both(on, lambda store: store.append(groups, together=True))
        outcomes = {verdict.outcome for verdict in verdicts}
        if outcomes == {Outcome.APPENDED}:
            for known, group in zip(chosen, groups, strict=True):
                known.saw(group)
                self.landed.append(group)
        assert Outcome.APPENDED not in outcomes or len(outcomes) == 1
        self.both(1 - on, lambda store: store.heads([group.key for group in groups]))

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def change(self, on: int, pick: Random) -> None:
        """Some of state, body, labels, heartbeat and lease change with a group, whatever the kind of its last entry."""
        known = pick.choice(self.living())
        new = {"state": pick.choice(STATES), "body": b"body %d" % pick.getrandbits(20), "labels": pick.choice(LABELS)}
        whole: dict[str, Any] = {name: value for name, value in new.items() if pick.random() < 0.5}
        whole["heartbeat"] = pick.random() < 0.3
        group = known.pen.group(pick.randint(1, 3), pick.choice((Kind.UPDATED, Kind.CHECKPOINT)), whole=whole)
        if group.entries[0].kind is Kind.UPDATED:
            group.entries[-1].kind = pick.choice((Kind.UPDATED, Kind.CHECKPOINT))
        if group.entries[0].kind is Kind.UPDATED and pick.random() < 0.3:
            for entry in group.entries:
                entry.lease = None
        self.land(on, known, group)

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def take_over(self, on: int, pick: Random) -> None:
        """Another owner; the former one tries once more, with what it had sent ahead."""
        known = pick.choice(self.living())
        former = known.pen.copy()
        ahead = [former.group(pick.randint(1, 2))]
        former.saw(ahead[0])
        ahead.append(former.group())
        self.land(on, known, known.pen.take_over(pick.choice((*self.crew, None))))
        if pick.random() < 0.5:
            assert Outcome.APPENDED not in self.send(1 - on, pick.choice(ahead))

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def claim(self, on: int, pick: Random) -> None:
        """Sessions are taken from workers whose time ran out: long ago, just now, or almost."""
        if not self.held() and self.crew:
            self.land(on, known := pick.choice(self.living()), known.pen.take_over(pick.choice(self.crew)))
        among = self.held() if self.held() and pick.random() < 0.8 else self.living()
        chosen = pick.sample(among, min(len(among), pick.randint(1, 3)))
        patience = pick.choice((0, 0, 0, 7, 5 * SECOND, FOREVER))
        row = self.wait(self.memory.heads([chosen[0].pen.key]))[0]
        left = 0 if row is None else row.row.left
        self.clock.up += pick.choice((0, left + patience % FOREVER, left + patience % FOREVER, max(0, left - 1), HOUR))
        if pick.random() < 0.3 and self.crew:
            self.work(on, pick)
        self.same_pages(1 - on, Query(namespace=chosen[0].pen.namespace, orphan_for=patience), 2)
        if pick.random() < 0.3:  # one that has not seen the newest entry: it takes nothing and declares no worker dead
            late = [known.past[-1].take_over(orphan=0) for known in chosen if known.past[-1].seq]
            assert Outcome.APPENDED not in self.send(on, *late)
            for worker in self.crew:
                self.both(on, lambda store, worker=worker: store.beat((), worker))
            return
        groups = [known.pen.take_over(pick.choice((*self.crew, None)), orphan=patience) for known in chosen]
        for known, group, outcome in zip(chosen, groups, self.send(on, *groups), strict=True):
            if outcome is Outcome.APPENDED:
                known.saw(group)
                self.landed.append(group)
        self.work(1 - on, pick)

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def release(self, on: int, pick: Random) -> None:
        """Without an owner, or after an error to `NO_WORKER`."""
        known = pick.choice(self.held() or self.living())
        self.land(on, known, known.pen.release(orphaned=known.pen.lease is not None and pick.random() < 0.4))

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def batch(self, on: int, pick: Random) -> None:
        """Groups of several sessions in one call, and among them one that cannot land."""
        living = self.living()
        chosen = pick.sample(living, min(len(living), pick.randint(1, 4)))
        groups = [known.pen.group(pick.randint(1, 3)) for known in chosen]
        stray = pick.choice(self.known).pen.copy()
        stray.prev = b"wrong".ljust(16)
        bad = stray.group(2)
        at = pick.randint(0, len(groups))
        outcomes = self.send(on, *groups[:at], bad, *groups[at:])
        assert outcomes == [*[Outcome.APPENDED] * at, outcomes[at], *[Outcome.APPENDED] * (len(groups) - at)]
        for known, group in zip(chosen, groups, strict=True):
            known.saw(group)
            self.landed.append(group)

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def delete(self, on: int, pick: Random) -> None:
        known = pick.choice(self.living())
        self.land(on, known, known.pen.delete())
        known.deleted = True

    # Steps that must not land, or not twice

    @rule(on=handle, pick=picks)
    def retry(self, on: int, pick: Random) -> None:
        """A group that landed is sent again, right away or much later."""
        created = [group for group in self.landed if group.create is not None]
        group = pick.choice(pick.choice((self.landed, self.landed[-3:], created)))
        if group.create is None or self.wait(self.memory.entries(group.key)):  # a purged one would be created again
            assert Outcome.APPENDED not in self.send(on, group)

    @precondition(some_live)
    @rule(on=handle, pick=picks, how=st.sampled_from(("late", "dead", "wrong", "ahead", "lease", "taken")))
    def refused(self, on: int, pick: Random, how: str) -> None:
        """A writer that has not seen the newest entry, for one of many reasons."""
        pen = pick.choice(self.living()).pen.copy()
        if how == "late":
            pen = pick.choice(pick.choice(self.known).past[1:] or [pen.copy()]).copy()
        elif how == "dead" and len(self.known) > len(self.living()):
            pen = pick.choice([known.pen for known in self.known if known.deleted]).copy()
        elif how == "wrong":
            pen.prev = b"wrong".ljust(16)
        elif how == "ahead":
            pen.saw(pen.group(pick.randint(1, 2)))
        elif how == "lease":
            pen = pick.choice([known.past[-1] for known in self.living()]).copy()
            pen.lease, pen.fence = b"another".ljust(16), max(1, pen.fence)
        elif how == "taken":
            pen = Pen(pen.namespace, pen.session_id, key=self.fresh(), new_id=self.fresh)
        if pen.seq == 0:
            known = next((known for known in self.known if known.pen.key == pen.key), None)
            group = pen.begin(pick.randint(1, 2))
            assert self.send(on, group) == [Outcome.CONFLICT], known
            return
        current = any(pen.prev == known.pen.prev for known in self.living())
        outcomes = self.send(on, group := pen.group(pick.randint(1, 3)))
        assert (outcomes == [Outcome.APPENDED]) == current
        if current:
            next(known for known in self.living() if known.pen.key == pen.key).saw(group)

    # Time, and everything that is not an entry

    @rule(seconds=st.sampled_from(JUMPS))
    def jump(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule(seconds=st.sampled_from((0.000_001, 1, TTL // SECOND, 3_600, 7_200)), alone=st.booleans())
    def go(self, seconds: float, alone: bool) -> None:  # noqa: FBT001
        """Let time pass; `alone`: only on the monotonic clock, as if the wall clock had been set back."""
        self.clock.go(seconds)
        if alone:
            self.clock.jump(-seconds)

    @rule(on=handle, pick=picks)
    def arrive(self, on: int, pick: Random) -> None:
        """A worker says for the first time that it lives."""
        if len(self.crew) > 4:
            self.crew.pop(pick.randrange(len(self.crew)))
        worker = Worker(self.fresh(), pick.choice(("ann", "bob")), pick.choice((TTL, HOUR)), first=True)
        self.crew.append(worker)
        if pick.random() < 0.9:  # else others hear of it before the store does
            self.both(on, lambda store: store.beat((), worker))
            worker.first = pick.random() < 0.1

    @precondition(lambda self: bool(self.crew))
    @rule(on=handle, pick=picks)
    def work(self, on: int, pick: Random) -> None:
        """A worker beats, and some of its sessions; now and then it leaves. The other side sees what that changes."""
        worker = pick.choice(self.crew)
        chosen = [pick.choice(self.known).pen for _ in range(2)]
        signs = [(pen.key, pick.choice((pen.lease, pen.lease, None, b"another".ljust(16)))) for pen in chosen]
        said = Worker(worker.id, worker.name, 0 if pick.random() < 0.1 else worker.ttl, worker.first)
        self.both(on, lambda store: store.beat(signs, said))
        if not said.ttl:  # gone, and no word of it counts any more
            again = Worker(worker.id, worker.name, worker.ttl, pick.random() < 0.5)
            self.both(1 - on, lambda store: store.beat((), again))
        self.both(1 - on, lambda store: store.heads([known.pen.key for known in self.known]))

    @precondition(some_live)
    @rule(on=handle, pick=picks)
    def sweep(self, on: int, pick: Random) -> None:
        """Fail sessions without a sign of life for that long; sometimes for exactly that long."""
        known = pick.choice(pick.choice((self.held(), self.living())) or self.living())
        age = pick.choice((1, HOUR))
        self.clock.at += pick.choice((0, age, age, age + 1))
        for worker in self.crew if pick.random() < 0.3 else ():
            self.both(on, lambda store, worker=worker: store.beat((), worker))
        whole = {"state": "failed", "only_stale": age}
        group = known.pen.group(kind=Kind.FAILED, name="session_failed", frame=None, whole=whole)
        if self.send(on, group) == [Outcome.APPENDED]:
            known.saw(group)
            self.landed.append(group)
        self.same_pages(1 - on, Query(namespace=known.pen.namespace, stale_for=age), 2)

    @rule(on=handle, pick=picks)
    def beat(self, on: int, pick: Random) -> None:
        pens = [pick.choice(self.known).pen for _ in range(3)]
        signs = [(pen.key, pick.choice((pen.lease, pen.lease, None))) for pen in pens]
        self.both(on, lambda store: store.beat([*signs, (self.fresh(), None)]))
        self.both(1 - on, lambda store: store.heads([pen.key for pen in pens]))

    @rule(on=handle, pick=picks)
    def empty(self, on: int, pick: Random) -> None:
        pen = pick.choice(self.known).pen
        seqs = [pick.randint(1, pen.seq + 1) for _ in range(pick.randint(0, 4))]
        self.both(on, lambda store: store.empty(pen.key, seqs))
        self.both(1 - on, lambda store: store.entries(pen.key))

    @rule(on=handle, pick=picks)
    def purge_seen(self, on: int, pick: Random) -> None:
        """Living or not, if it ends with the entry that was seen; often it does no longer."""
        known = pick.choice(self.known)
        seen = pick.choice((known.pen, *known.past[-1:])).prev or b"none".ljust(16)
        keys = [known.pen.key, self.fresh()]
        count, _ = self.both(on, lambda store: store.purge(keys, [seen, seen]))
        known.deleted = known.deleted or count > 0
        self.both(1 - on, lambda store: store.entries(known.pen.key))

    @rule(on=handle, pick=picks)
    def purge(self, on: int, pick: Random) -> None:
        """Only deleted sessions are removed. The next entry must come after every cursor."""
        if self.living() and pick.random() < 0.5:
            self.delete(on, pick)
        pen = pick.choice([known for known in self.known if known.deleted] or self.known).pen
        if pick.random() < 0.2:
            pen = pick.choice(self.known).pen
        self.watch(on, pick)
        self.both(on, lambda store: store.purge([pen.key, self.fresh()]))
        self.both(1 - on, lambda store: store.entries(pen.key))
        if self.living():
            self.checkpoint(on, pick)
            self.watch(on, pick)

    # Looking

    @rule(on=handle, pick=picks)
    def read(self, on: int, pick: Random) -> None:
        pen = pick.choice(self.known).pen
        ranges = pick.choice((((1, 2**62),), ((2, 3), (5, 9)), ((0, pen.seq - 1),), ()))
        how: dict[str, Any] = {
            "kinds": pick.choice((None, frozenset({1}), frozenset({0, 8, 9}))),
            "name": pick.choice((None, None, "turn")),
            "newest": pick.choice((None, 0, 1, 3)),
            "frames": pick.random() < 0.5,
            "chain": pick.choice((0, 0, pen.seq, pen.seq - 1)),
        }
        if self.landed and pick.random() < 0.2:
            how["request"] = pick.choice(pick.choice(self.landed).entries).request[:16] or None
        self.both(on, lambda store: store.entries(pen.key, Wanted(ranges, **how)))

    @rule(on=handle, pick=picks)
    def find(self, on: int, pick: Random) -> None:
        choices: tuple[dict[str, Any], ...] = (
            {},
            {},
            {"state": pick.choice(STATES)},
            {"agent_type": "coder", "labels": {"team": "Red"}},
            {"user_id": "u1", "created_before": self.clock()},
            {"entry": pick.choice(MARKS), **pick.choice(({}, {"state": "active"}, {"labels": {"team": "Red"}}))},
            {"text": pick.choice(("RED", "b", "🌱", 'q"'))},
            {"prefix": pick.choice(("b", "c's", "")), "created_after": self.clock() - HOUR},
            {"stale_for": pick.choice((0, 1, HOUR))},
            {"stale_for": HOUR, "state": pick.choice(STATES)},
            {"orphan_for": pick.choice((0, 7, FOREVER))},
            {"orphan_for": 0, "state": "active", "agent_type": "coder"},
            {"owner": pick.choice(self.crew).id if self.crew else b"nobody"},
            {"unowned": True, "state": pick.choice((None, "active"))},
            {"ended_for": pick.choice((0, 1, HOUR)), "state": pick.choice((None, *STATES))},
            {"deleted_for": pick.choice((0, 1, HOUR))},
            {"deleted_for": 0},
            {"changed": True},
            {"changed": True, "state": "active", "labels": {"team": "Red"}},
            {"changed": True, "orphan_for": 0},
            {"changed": True, "text": "b", "prefix": pick.choice(("", "b"))},
        )
        query = Query(namespace=pick.choice(self.namespaces), **pick.choice(choices))
        self.same_pages(on, query, pick.randint(1, 3))
        self.same_counts(on, query)

    def same_pages(self, on: int, query: Query, limit: int) -> None:
        after = None
        while page := self.both(on, lambda store, after=after: store.find(query, after, limit)):
            last = page[-1]
            after = (getattr(last, order(query)[0]), last.key)

    def same_counts(self, on: int, query: Query) -> None:
        expected, result = self.wait(_pair(self.memory.count(query), self.handles[on].count(query)))
        assert (result.states, result.agent_types) == (expected.states, expected.agent_types)
        assert (result.held, result.orphaned) == (expected.held, expected.orphaned)
        assert result.entries - self.entries_before == expected.entries

    @rule(on=handle, pick=picks)
    def watch(self, on: int, pick: Random) -> None:
        """What came since the last look, each time in both stores the same."""
        limit = pick.randint(1, 4)
        for namespace in self.namespaces:
            self.cursors[namespace] = self.same_events(on, namespace, self.cursors[namespace], limit)

    def same_events(
        self, on: int, namespace: str, after: Sequence[str], limit: int, key: bytes | None = None
    ) -> list[str]:
        seen: list[list[Any]] = []
        ends: list[str] = []
        for store, start in zip((self.memory, self.handles[on]), after, strict=True):
            place, events = start, list[Any]()
            while True:
                page, place = self.wait(store.events(namespace, place, key, limit=limit))
                if not page:
                    break
                events += [(event.session_id, event.seq, event.kind, event.name, event.timestamp) for event in page]
            seen.append(events)
            ends.append(place)
        # What was committed at once has no order among sessions; each session's own is kept by sorting.
        assert sorted(seen[1], key=_session) == sorted(seen[0], key=_session)
        return ends

    def teardown(self) -> None:
        """At the end everything is read from both: sessions, logs, pages, counts, events."""
        keys = [known.pen.key for known in self.known]
        refs = [(namespace, name) for namespace in self.namespaces for name in IDS]
        for on in (0, 1):
            self.both(on, lambda store: store.heads([*keys, *refs]))
        for on, key in enumerate(keys):
            self.both(on % 2, lambda store, key=key: store.entries(key))
        for on, namespace in enumerate(self.namespaces):
            query = Query(namespace=namespace)
            self.both(on, lambda store, query=query: store.find(query))
            self.same_counts(on, query)
            self.same_events(on, namespace, self.start, 500)
        if keys:
            self.same_events(0, self.known[-1].pen.namespace, self.start, 500, keys[-1])


def _session(event: tuple[Any, ...]) -> str:
    return event[0]


def behaves_like_memory(open_two: Open, *, examples: int, steps: int = 50, repeatable: bool = False) -> None:
    """Give a store (two handles on the same data) and memory the same random steps; raise where they differ.

    `repeatable` takes the same steps each time and does not shrink them: for a store that is known to be faulty.
    """
    clock = Clock()
    with asyncio.Runner() as runner:
        handles = runner.run(_awaited(open_two(clock)))
        machine = type("Machine", (LikeMemory,), {"loop": runner.get_loop(), "handles": handles, "clock": clock})
        phases = [Phase.generate] if repeatable else [Phase.generate, Phase.shrink]
        try:
            run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType]
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    derandomize=repeatable,
                    deadline=None,
                    database=None,
                    phases=phases,
                    suppress_health_check=[
                        HealthCheck.too_slow,
                        HealthCheck.data_too_large,
                        HealthCheck.filter_too_much,
                    ],
                ),
            )
        finally:
            runner.run(_closed(handles))


async def _closed(handles: Sequence[Store]) -> None:
    for store in handles:
        await store.close()


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _pair(one: Awaitable[T], other: Awaitable[T]) -> tuple[T, T]:
    return await one, await other
