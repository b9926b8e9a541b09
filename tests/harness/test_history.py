"""The history checker: what is legal passes, whatever the overlap; each thing that must never happen is named."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import saveslot
from saveslot import Conflict, NotFound
from tests.harness.history import Effect, Logged, Operation, Recorder, Rule, check, check_effects, read
from tests.harness.killing import digest

SEEDS = st.integers(0, 2**32).map(Random)


def ok(op, at, seq=None, **of):
    """An acknowledged call at a moment, or from one to another."""
    invoked, returned = at if isinstance(at, tuple) else (at, at + 1)
    if op in {"write", "read", "load"} and seq:
        of.setdefault("digest", f"d{seq}")
    return Operation(of.pop("client", "w1"), "s", op, invoked, returned, "ok", seq, **of)


def unknown(op, at, **of):
    return Operation(of.pop("client", "w2"), "s", op, at, **of)


def refused(op, at, **of):
    return Operation("w3", "s", op, at, at + 1, "fail", **of)


def log(*entries):
    """`3` is a write with digest d3; anything else is said in full."""
    return [Logged(e, digest=f"d{e}") if isinstance(e, int) else e for e in entries]


def rules(operations, entries=None):
    result = check(operations, None if entries is None else {"s": entries})
    assert all(str(violation).startswith(f"{violation.rule}: session s: ") for violation in result)
    return {violation.rule for violation in result}


HELD = [ok("hold", 10, 1, lease="A", fence=1), ok("write", 20, 2, lease="A", fence=1)]
HOLD = Logged(1, "hold", fence=1, lease="A")
MINE = Logged(2, "write", "d2", fence=1, lease="A")
CLAIM = Logged(3, "claim", fence=2, lease="B")
THREE = [ok("write", 10, 1), ok("write", 20, 2), ok("write", 30, 3)]
PAIR = {"digest": "b", "group": ("a", "b")}

ILLEGAL = {
    "a read under what was acknowledged": (Rule.STALE, [*THREE, ok("read", 40, 2)], None),
    "a read under what another one saw": (
        Rule.STALE,
        [ok("write", 10, 1), ok("write", (20, 90), 2), ok("read", 30, 2), ok("read", 40, 1)],
        None,
    ),
    "a read of what was not yet begun": (Rule.FUTURE, [ok("read", 5, 1), *THREE], None),
    "a number read before it was begun": (Rule.FUTURE, [ok("read", 5, 1, digest=""), *THREE], None),
    "a read of an unknown write not yet begun": (
        Rule.FUTURE,
        [ok("read", 5, 1), unknown("write", 9, digest="d1")],
        None,
    ),
    "a read of a state that was never written": (Rule.INVENTED, [*THREE, ok("read", 40, 4)], None),
    "a read of other data": (Rule.DIGEST, [*THREE, ok("read", 40, 3, digest="x")], None),
    "data under what was acknowledged": (Rule.STALE, [*THREE, ok("pause", 40, 4), ok("load", 50, 2)], None),
    "data older than a number read": (
        Rule.STALE,
        [ok("write", 10, 1), ok("write", (20, 90), 2), ok("pause", 30, 3), ok("load", 40, 1)],
        None,
    ),
    "a number under an older one": (Rule.ORDER, [ok("write", 10, 2), ok("write", 20, 1)], None),
    "an unknown write that was seen in the past": (
        Rule.ORDER,
        [ok("read", (0, 100), 3), ok("write", 10, 5), unknown("write", 50, seq=3, digest="d3")],
        None,
    ),
    "one number for two writes": (Rule.UNIQUE, [*THREE, ok("write", (15, 40), 2, digest="x")], None),
    "a session that is gone": (Rule.LOST, [*THREE, refused("read", 40, error="not_found")], None),
    "a read after the deletion": (Rule.DELETED, [*THREE, ok("delete", 40), ok("read", 50, 3)], None),
    "a read after the deletion was seen": (
        Rule.DELETED,
        [*THREE, unknown("delete", 40), ok("read", 50, 0), ok("read", 60, 3)],
        None,
    ),
    "a write after the deletion": (Rule.DELETED, [*THREE, ok("delete", 40, 4), ok("write", 50, 5)], None),
    "an entry after the tombstone": (
        Rule.DELETED,
        [*THREE, ok("delete", 40, 4), unknown("write", 5, digest="d5")],
        log(1, 2, 3, Logged(4, "delete"), 5),
    ),
    "a deletion that was forgotten": (Rule.DELETED, [*THREE, ok("delete", 40)], log(1, 2, 3)),
    "a lost acknowledged write": (Rule.LOST, THREE, log(1, 2)),
    "a lost write whose number was not noted": (Rule.LOST, [*THREE, ok("write", 40, digest="x")], log(1, 2, 3)),
    "a write that others saw, lost": (
        Rule.LOST,
        [*THREE, unknown("write", 35, digest="d4"), ok("read", 40, 4)],
        log(1, 2, 3),
    ),
    "another's entry in the place of mine": (
        Rule.LOST,
        [ok("write", 10, 1, append_id="mine")],
        [Logged(1, digest="d1", append_id="other")],
    ),
    "a whole log that is gone": (Rule.LOST, THREE, []),
    "changed bytes": (Rule.DIGEST, THREE, log(1, Logged(2, digest="x"), 3)),
    "a gap": (Rule.GAP, [ok("write", 10, 1), ok("write", 20, 3)], log(1, 3)),
    "two entries with one number": (Rule.UNIQUE, THREE, log(1, 2, 2, 3)),
    "a payload twice": (Rule.DOUBLED, THREE, log(1, 2, 3, Logged(4, digest="d3"))),
    "an append_id twice": (
        Rule.DOUBLED,
        [ok("write", 10, 1, append_id="a")],
        [Logged(1, digest="d1", append_id="a"), Logged(2, append_id="a")],
    ),
    "a retry acknowledged elsewhere": (
        Rule.LOST,
        [ok("write", 10, 1, append_id="a"), ok("write", 20, 2, append_id="a", digest="d1")],
        [Logged(1, digest="d1", append_id="a"), Logged(2, digest="d1", append_id="b")],
    ),
    "a refused write that landed": (Rule.REFUSED, [*THREE, refused("write", 40, digest="d4")], log(1, 2, 3, 4)),
    "an entry from nowhere": (Rule.INVENTED, THREE, log(1, 2, 3, 4)),
    "the first half of a group": (Rule.TORN, [unknown("write", 10, **PAIR)], [Logged(1, digest="a")]),
    "the second half of a group": (Rule.TORN, [unknown("write", 10, **PAIR)], [Logged(1, digest="b")]),
    "a group with another's entry inside": (
        Rule.TORN,
        [unknown("write", 10, **PAIR), unknown("write", 10, digest="x")],
        [Logged(1, digest="a"), Logged(2, digest="x"), Logged(3, digest="b")],
    ),
    "an unknown write without its bytes": (
        Rule.TORN,
        [ok("write", 5, 1), unknown("write", 10, digest="d2", append_id="a")],
        [Logged(1, digest="d1"), Logged(2, append_id="a")],
    ),
    "a fence that goes back": (Rule.FENCE, HELD, [HOLD, msgspec.structs.replace(MINE, fence=0)]),
    "a claim that keeps the fence": (
        Rule.FENCE,
        [*HELD, ok("claim", 30, 3, lease="B", former="A", fence=1)],
        [HOLD, MINE, msgspec.structs.replace(CLAIM, fence=1)],
    ),
    "a write after the claim": (
        Rule.ZOMBIE,
        [*HELD, ok("claim", 30, 3, lease="B", former="A"), unknown("write", 25, lease="A", digest="z")],
        [HOLD, MINE, CLAIM, Logged(4, "write", "z", fence=2, lease="A")],
    ),
    "a write after the claim, by the calls alone": (
        Rule.LIFECYCLE,
        [*HELD, ok("claim", 30, 3, lease="B", former="A"), ok("write", (25, 50), 4, lease="A")],
        None,
    ),
    "a write by someone who holds nothing": (
        Rule.ZOMBIE,
        [*HELD, ok("write", 30, 3)],
        [HOLD, MINE, Logged(3, "write", "d3", fence=1)],
    ),
    "a write under a released lease": (
        Rule.ZOMBIE,
        [*HELD, ok("release", 30, 3, lease="A"), unknown("write", 25, lease="A", digest="d4")],
        [HOLD, MINE, Logged(3, "release", fence=1), Logged(4, "write", "d4", fence=1, lease="A")],
    ),
    "a write under a lease that another client took": (
        Rule.ZOMBIE,
        [ok("hold", 10, 1), ok("write", 20, 2, client="w2")],
        [HOLD, MINE],
    ),
    "two owners at once": (Rule.LIFECYCLE, [ok("hold", 10, lease="A"), ok("hold", 20, lease="B")], None),
    "two owners of one fence": (
        Rule.OWNERS,
        [ok("hold", (10, 30), lease="A", fence=1), ok("hold", (11, 30), lease="B", fence=1)],
        None,
    ),
    "two claimers of one orphan": (
        Rule.OWNERS,
        [*HELD, ok("claim", (30, 40), lease="B", former="A"), ok("claim", (31, 40), lease="C", former="A")],
        None,
    ),
    "a hold after a release that never landed": (
        Rule.LIFECYCLE,
        [
            ok("hold", 10, 1, lease="A", append_id="a"),
            unknown("release", 20, lease="A", append_id="r"),
            ok("hold", 30, 2, lease="B", append_id="b"),
        ],
        [Logged(1, "hold", append_id="a", fence=1, lease="A"), Logged(2, "hold", append_id="b", fence=2, lease="B")],
    ),
    "a release by someone else": (Rule.LIFECYCLE, [*HELD, ok("release", 30, lease="B")], None),
    "a completed session paused": (Rule.LIFECYCLE, [ok("complete", 10), ok("pause", 20)], None),
    "a failed session written": (Rule.LIFECYCLE, [ok("fail", 10, 1), ok("write", 20, 2)], None),
    "a hold of a completed session": (Rule.LIFECYCLE, [ok("complete", 10), ok("hold", 20, lease="A")], None),
    "a hold of a deleted session": (Rule.LIFECYCLE, [ok("delete", 10), ok("hold", 20, lease="A")], None),
    "a write before the creation": (Rule.LIFECYCLE, [ok("write", 10), ok("create", 20)], None),
}

LEGAL = {
    "a read of what is under way": ([*THREE, ok("write", (40, 60), 4), ok("read", 45, 4)], None),
    "a read just before what is under way": ([*THREE, ok("write", (40, 60), 4), ok("read", 45, 3)], None),
    "data under a number without": ([*THREE, ok("pause", 40, 4), ok("load", 50, 3)], None),
    "no data yet": ([ok("pause", 10, 1), ok("load", 20, 0)], None),
    "an unknown write that lands late": ([unknown("write", 1, digest="d4"), *THREE], log(1, 2, 3, 4)),
    "an unknown write that never lands": ([*THREE, unknown("write", 1, digest="d9")], log(1, 2, 3)),
    "a group, whole": ([unknown("write", 10, **PAIR)], [Logged(1, digest="a"), Logged(2, digest="b")]),
    "a group, absent": ([*THREE, unknown("write", 10, **PAIR)], log(1, 2, 3)),
    "a retry under its own id": (
        [unknown("write", 10, digest="d1", append_id="a"), ok("write", 30, 1, append_id="a"), ok("read", 25, 1)],
        [Logged(1, digest="d1", append_id="a")],
    ),
    "the same payload sent once more": ([unknown("write", 10, digest="d1"), ok("write", 30, 1)], log(1)),
    "a purged session": ([*THREE, ok("delete", 40, 4), refused("read", 50, error="not_found")], []),
    "a deletion under way": ([*THREE, unknown("delete", 40), ok("read", 50, 3), ok("read", 60, 0)], log(1, 2, 3)),
    "a claim by a claimer that died of it": (
        [*HELD, unknown("claim", 30, former="A"), ok("claim", 40, 4, lease="C", former="B", fence=3)],
        [HOLD, MINE, CLAIM, Logged(4, "claim", fence=3, lease="C")],
    ),
    "a hold that took over, as the log tells": (
        [*HELD, unknown("hold", 30, lease="B"), ok("write", 40, 4, lease="B", client="w2")],
        [HOLD, MINE, CLAIM, Logged(4, "write", "d4", fence=2, lease="B")],
    ),
    "a claim that was not recorded": (
        [*HELD, ok("write", 40, 4, lease="B")],
        [HOLD, MINE, CLAIM, Logged(4, "write", "d4", fence=2, lease="B")],
    ),
    "a pause whose number was not noted": ([ok("pause", 10)], [Logged(1, "pause")]),
    "clients that know no leases, and a hold that took over": (
        [ok("hold", 10, 1), ok("write", 20, 2), ok("hold", 30, 3, client="w2"), ok("write", 40, 4, client="w2")],
        [HOLD, MINE, CLAIM, Logged(4, "write", "d4", fence=2, lease="B")],
    ),
    "a hold of what a lost answer left held": (
        [unknown("hold", 10), ok("hold", 20, 2, lease="B", fence=2)],
        [HOLD, Logged(2, "hold", fence=2, lease="B")],
    ),
    "a resume between two pauses": ([ok("pause", (4, 10)), ok("resume", (8, 13)), ok("pause", (11, 13))], None),
    "a pause by someone else": ([*HELD, ok("pause", 30, 3), ok("resume", 40, 4), ok("write", 50, 5, lease="A")], None),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_must_never_happen_is_named(name):
    """Each illegal history breaks the rule that forbids it."""
    rule, operations, entries = ILLEGAL[name]
    assert rule in rules(operations, entries)


@pytest.mark.parametrize("name", LEGAL)
def test_what_may_happen_passes(name):
    """Overlap, unknown outcomes, retries and deaths are no violation."""
    assert rules(*LEGAL[name]) == set()


# Histories of a plain model, and all orders tried one by one


STATES = {"pause": "paused", "resume": "active", "complete": "completed", "fail": "failed", "delete": "deleted"}


class Model:
    """A session as a user would explain it."""

    def __init__(self):
        self.state, self.holder, self.fence, self.log = "active", "", 0, []
        self.untold = False  # no caller knows that it holds the session, so it may be held again

    def allows(self, op):
        if self.state == "deleted":
            return op.op == "delete"
        if op.op in {"hold", "claim"}:
            free = not self.holder or self.untold if op.op == "hold" else self.holder == op.former
            return free and self.state in {"active", "paused"}
        if op.op == "delete":
            return not op.lease or op.lease == self.holder
        if (op.lease and op.lease != self.holder) or (op.op == "write" and op.lease != self.holder):
            return False
        if op.op == "release":
            return self.holder != ""
        return self.state == "active" or (self.state == "paused" and op.op != "pause")

    def apply(self, op):
        self.state = STATES.get(op.op, self.state)
        self.fence += op.op in {"hold", "claim"}
        ends = op.op in {"release", "complete", "fail", "delete"}
        self.holder = "" if ends else op.lease if op.op in {"hold", "claim"} else self.holder
        self.untold = not op.acknowledged if op.op in {"hold", "claim"} else self.untold
        self.log.append(Logged(len(self.log) + 1, op.op, op.digest, op.append_id, self.fence, self.holder))


VERBS = ("write",) * 6 + ("read",) * 6 + ("hold",) * 3 + ("claim", "release", "pause", "resume", "complete", "delete")


def lived(pick, calls, *, identified=True):
    """What a correct store does at one moment of each call; some answers and some calls never arrive."""
    model, operations = Model(), []
    for n in range(calls):
        moment = 100 * (n + 1)
        verbs = VERBS if n > calls - 6 else VERBS[:-2]  # most of a session comes before its end
        op = Operation(f"w{n % 5}", "s", pick.choice(verbs), moment - pick.randrange(250))
        lease = model.holder if pick.random() < 0.8 else f"L{pick.randrange(calls)}"
        if op.op in {"hold", "claim"}:
            former = model.holder if op.op == "claim" else ""
            op = msgspec.structs.replace(op, lease=f"L{n}", former=former)
        elif op.op in {"write", "release"}:
            client = f"w{int(lease[1:]) % 5}" if lease else op.client
            op = msgspec.structs.replace(op, client=client, lease=lease, digest=f"d{n}" if op.op == "write" else "")
        if identified and op.op != "read":
            op = msgspec.structs.replace(op, append_id=f"a{n}")
        answer, arrives = pick.random() < 0.8, pick.random() < 0.5
        end = moment + pick.randrange(250)
        if op.op == "read":
            seen = model.log[-1] if model.log and model.state != "deleted" else Logged(0)
            op = msgspec.structs.replace(op, returned=end, outcome="ok", seq=seen.seq, digest=seen.digest)
        elif (answer or arrives) and model.state != "deleted" and model.allows(op):
            if answer:
                op = msgspec.structs.replace(op, returned=end, outcome="ok", seq=len(model.log) + 1)
            model.apply(op)
        elif answer:
            op = msgspec.structs.replace(op, returned=end, outcome="fail")
        operations.append(op)
    return operations, model.log


@given(SEEDS, st.integers(1, 60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_a_correct_store_does_passes(pick, calls, identified):
    """No history of the model is called illegal, with its log or without, however its calls overlap."""
    operations, entries = lived(pick, calls, identified=identified)
    pick.shuffle(operations)
    assert check(operations, {"s": entries}) == []
    assert check(operations) == []


@given(SEEDS, st.integers(20, 60))
@settings(max_examples=200, deadline=None)
def test_one_fault_in_a_legal_history_is_found(pick, calls):
    """Losing, changing, doubling or swapping acknowledged entries never passes."""
    operations, entries = lived(pick, calls)
    items = [op.seq for op in operations if op.outcome == "ok" and op.op == "write" and op.seq > 1]
    if not items:
        return
    place = pick.choice(items) - 1
    assert Rule.LOST in rules(operations, entries[:place])
    changed = [*entries[:place], msgspec.structs.replace(entries[place], digest="x"), *entries[place + 1 :]]
    assert Rule.DIGEST in rules(operations, changed)
    assert Rule.DOUBLED in rules(operations, [*entries, msgspec.structs.replace(entries[place], seq=len(entries) + 1)])
    assert Rule.GAP in rules(operations, entries[:place] + entries[place + 1 :]) or place + 1 == len(entries)
    for n, (one, two) in enumerate(pairwise(entries)):
        swapped = [msgspec.structs.replace(two, seq=one.seq), msgspec.structs.replace(one, seq=two.seq)]
        if {one.seq, two.seq} & set(items):
            assert rules(operations, [*entries[:n], *swapped, *entries[n + 2 :]]), (one, two)


def some_order(operations, state, after):
    """Is there a legal order, by trying them all? `after(state, op)` is the next state, or None."""
    must = [op for op in operations if op.outcome == "ok"]
    if not must:
        return True
    first = min(op.returned for op in must)
    nexts = [(op, after(state, op)) for op in operations if op.invoked <= first]
    return any(some_order([o for o in operations if o is not op], to, after) for op, to in nexts if to is not None)


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=3000, deadline=None)
def test_the_quick_rule_for_reads_is_exact(pick, calls):
    """Bounds on numbers accept exactly the histories for which some order of the calls is legal."""
    operations, entries = [], [(0, ""), (2, "nobody's")]
    kinds = pick.choices(("write", "update", "read", "load", "delete"), (4, 2, 4, 3, 1), k=calls)
    for n, op in enumerate(sorted(kinds, key=lambda op: op in {"read", "load"})):
        start, answer = pick.randrange(12), op in {"update", "read", "load"} or pick.random() < 0.7
        if op in {"write", "update"}:
            entries.append((pick.choice((1, 3, 5)), f"d{n}") if op == "write" else (pick.choice((2, 4)), ""))
        seq, payload = (None, "") if op == "delete" else entries[-1]
        if op in {"read", "load"}:
            seq, payload = pick.choice([entry for entry in entries if op == "read" or entry[1] or not entry[0]])
        end = start + pick.randrange(8) if answer else None
        operations.append(Operation("w", "s", op, start, end, "ok" if answer else "unknown", seq, payload))

    def after(state, op):
        head, data = state
        if op.op in {"read", "load"}:
            result = head if op.op == "read" else data
            same = (op.seq, op.digest) == result if op.digest or op.op == "load" else op.seq == result[0]
            return state if same or (op.seq == 0 and head[0] == 9) else None
        if op.op == "delete":
            return (9, ""), (9, "")
        new = (op.seq, op.digest)
        return (new, new if op.digest else data) if head[0] < op.seq else None

    quick = {Rule.STALE, Rule.FUTURE, Rule.INVENTED, Rule.DIGEST, Rule.ORDER, Rule.UNIQUE, Rule.LOST, Rule.DELETED}
    assert bool(rules(operations) & quick) == (not some_order(operations, ((0, ""), (0, "")), after)), operations


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=1500, deadline=None)
def test_the_search_is_exact(pick, calls):
    """The search accepts exactly the lifecycles for which some order of the calls is legal."""
    operations = []
    for _ in range(calls):
        start, verb = pick.randrange(12), pick.choice(VERBS + VERBS[12:] * 2)
        of = {"lease": pick.choice("AB")} if verb in {"hold", "claim"} or pick.random() < 0.5 else {}
        of |= {"former": pick.choice("AB")} if verb == "claim" else {}
        kind = ok if pick.random() < 0.7 else unknown
        operations.append(kind(verb, (start, start + pick.randrange(8)) if kind is ok else start, **of))
    operations = [op for op in operations if op.op != "read"]

    def after(state, op):
        model = Model()
        model.state, model.holder, model.untold = state
        if not model.allows(op):
            return None
        model.apply(op)
        return model.state, model.holder, model.untold

    assert (Rule.LIFECYCLE in rules(operations)) == (not some_order(operations, ("active", "", False), after)), (
        operations
    )


def test_a_search_that_is_too_long_says_so(monkeypatch):
    """What was not decided is never called legal."""
    monkeypatch.setattr("tests.harness.history.MOST_CONFIGURATIONS", 100)
    holds = [unknown(verb, n, lease=f"L{n}") for n in range(20) for verb in ("hold", "release")]
    assert rules([*holds, ok("complete", 50), ok("pause", 60)]) == {Rule.UNDECIDED}


# Effects


def test_effects_keep_their_mode():
    """At most once is at most once, an idempotent step has one key of its own, and a finished step happened."""
    ran = [
        Effect("at_most_once", "s", "charge", "r1"),
        Effect("idempotent", "s", "mail", "r1", key="k1"),
        Effect("idempotent", "s", "mail", "r2", key="k1"),
        Effect("at_least_once", "s", "log", "r1"),
        Effect("at_least_once", "s", "log", "r2"),
    ]

    def broken(*more, finished=()):
        return [violation.rule for violation in check_effects([*ran, *more], finished)]

    assert broken(finished=[("s", "charge"), ("s", "mail"), ("s", "log")]) == []
    assert broken(Effect("at_most_once", "s", "charge", "r2")) == [Rule.REPEATED]
    assert broken(Effect("idempotent", "s", "mail", "r3", key="k2")) == [Rule.KEY]
    assert broken(Effect("idempotent", "s", "other", "r1", key="k1")) == [Rule.KEY]
    assert broken(Effect("idempotent", "s", "bare", "r1")) == [Rule.KEY]
    assert broken(finished=[("s", "ghost")]) == [Rule.MISSED]


# Recording


def test_calls_are_read_back_with_their_outcomes(tmp_path):
    """A call that returned is ok, one that was refused failed, and any other end leaves it unknown."""
    with Recorder(tmp_path / "w.jsonl", client="w") as record:
        with record.call("write", "s", digest="d1", lease="A") as call:
            call.ok(seq=1)
        for error in (Conflict("no"), NotFound("no"), saveslot.Unavailable("?"), KeyboardInterrupt()):
            with pytest.raises(type(error)), record.call("read", "s"):
                raise error
        with record.call("pause", "ü\n{}"):
            pass
    first, *others, last = result = read([tmp_path / "w.jsonl"])
    assert (first.seq, first.digest, first.lease, first.client) == (1, "d1", "A", "w")
    assert [op.outcome for op in result] == ["ok", "fail", "fail", "unknown", "unknown", "ok"]
    assert [op.error for op in others] == ["conflict", "not_found", "", ""]
    assert last.session == "ü\n{}"
    assert all(op.invoked < op.returned for op in result if op.outcome != "unknown")


def test_a_file_cut_anywhere_is_read(tmp_path):
    """Wherever a kill cuts the file, whole lines count, and lines appended after the cut are read too."""
    path = tmp_path / "w.jsonl"
    with Recorder(path) as record, record.call("write", "s", digest="d1") as call:
        call.ok(seq=1)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        before = read([path])
        assert [op.outcome for op in before] == [[], ["unknown"], ["ok"]][whole[:size].count(b"}")]
        with Recorder(path) as record, record.call("pause", "s"):
            pass
        *rest, last = read([path])
        assert (rest, last.op, last.outcome) == (before, "pause", "ok")
    path.write_bytes(b'{"nonsense": }\n')
    with pytest.raises(ValueError, match=r"w\.jsonl:1 is not a recorder's line"):
        read([path])


def test_killed_processes_that_share_a_file_leave_at_most_one_unknown_each(tmp_path):
    """Lines of many processes never mix, and each kill -9 costs the one call that was under way."""
    path = tmp_path / "all.jsonl"
    code = f"""
from tests.harness.history import Recorder
record = Recorder({str(path)!r})
for n in range(10**9):
    with record.call("write", "s", digest="d" * 300) as call:
        call.ok(seq=1)
    if n == 200:
        print("going", flush=True)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    for writer in writers:
        with writer:  # waits for it, and closes the pipe
            assert writer.stdout.readline() == b"going\n"
            writer.kill()
    operations = read([path])
    assert {op.client for op in operations} == {str(writer.pid) for writer in writers}
    lost = Counter(op.client for op in operations if op.outcome == "unknown")
    assert set(lost.values()) <= {1}


async def test_what_managers_do_to_one_file_is_legal(tmp_path):
    """Agents of several managers on one SQLite file make a legal history; with one entry less it is not."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    async with saveslot.open(url) as one, saveslot.open(url) as two, saveslot.open(url) as three:
        await one.create_session("agent", session_id="s")
        with Recorder(tmp_path / "w.jsonl") as record:

            async def agent(sessions, name):
                for n in range(30):
                    with record.call("load", "s") as call:
                        (head,) = await sessions.history("s", limit=1)
                        call.ok(seq=head.seq, digest=digest(head.data) if head.seq > 1 else "")
                    data = {"by": name, "n": n}
                    try:
                        with record.call("write", "s", digest=digest(data)) as call:
                            call.ok(seq=(await sessions.checkpoint("s", "turn", data)).seq)
                    except Conflict:
                        await asyncio.sleep(0)

            await asyncio.gather(*(agent(sessions, n) for n, sessions in enumerate((one, two, three))))
        history = await one.history("s")
    entries = [
        Logged(checkpoint.seq, digest=digest(checkpoint.data) if checkpoint.seq > 1 else "") for checkpoint in history
    ]
    operations = read([tmp_path / "w.jsonl"])
    assert len(entries) > 30
    assert check(operations, {"s": entries}) == []
    assert rules(operations, entries[:-1]) == {Rule.LOST}
