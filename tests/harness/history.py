"""A history checker: many processes record their calls and the answers; afterwards the checker judges them.

    record = Recorder(folder / "w3.jsonl", client="w3")            # in each process; they may also share one file
    with record.call("write", session, digest=digest) as call:     # noted before the call, so a kill leaves an unknown
        checkpoint = await sessions.checkpoint(session, "turn", data)
        call.ok(seq=checkpoint.seq)

    assert not check(read(folder.glob("*.jsonl")), logs)           # each violation is a sentence

Assumptions of the checker: all clocks are one machine's, each payload is written once, sessions are recorded
from their creation on, and a deleted id that is created again is another session here: name sessions by their keys.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from saveslot.errors import Conflict, InvalidInput, InvalidTransition, LeaseHeld, NotFound, TooLarge
from saveslot.values.lifecycle import ACTIVE, TRANSITIONS
from saveslot.values.log import Entry

# One clock for all processes of a machine that never jumps; BOOTTIME also counts while the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# After these errors nothing of the caller's was stored. After any other error that is unknown.
REFUSALS = (Conflict, InvalidInput, InvalidTransition, LeaseHeld, NotFound, TooLarge)
READS = frozenset({"read", "load"})
TAKES = frozenset({"hold", "claim"})
ENDS = frozenset({"release", "complete", "fail", "delete"})  # of a hold
_VERBS = {verb: {str(source): str(target) for source, target in rows.items()} for verb, rows in TRANSITIONS.items()}
_VERBS["write"] = _VERBS["checkpoint"]
# A deletion is the last entry there can be, so "deleted never returns" is the same rule as "no read is stale".
GONE = 2**62
# Legal histories need about one configuration per call; one that needs this many is reported, never passed.
MOST_CONFIGURATIONS = 500_000
NEVER = 2**63


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call, from its invocation to its return. `Call.ok` takes what only the answer says.

    `op`: create, write, delete, release, a verb of the lifecycle; hold takes an unheld session, claim takes from a
    holder that is thought dead (the log tells which it was, or `call.ok(op="claim")`); read is of the head, load of
    the newest entry with data, both at the level at which no read is stale. Anything else is an entry, too.
    """

    client: str
    session: str
    op: str
    invoked: int  # nanoseconds
    returned: int | None = None
    outcome: Literal["ok", "fail", "unknown"] = "unknown"  # fail: it had no effect, and never will
    seq: int | None = None  # of the entry written (a group's last) or read; 0: there was none to read
    digest: str = ""  # of what was written or read; compared where both sides have one
    group: tuple[str, ...] = ()  # the digests of all entries of one write, when they are several
    append_id: str = ""
    fence: int | None = None
    lease: str = ""  # the one that it was called under, the new one of a hold or claim; "": the log's, so give logs
    former: str = ""  # the lease that a claim takes the session from
    error: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.outcome == "ok" and self.returned is not None

    @property
    def end(self) -> int:
        return NEVER if self.returned is None else self.returned

    @property
    def digests(self) -> tuple[str, ...]:
        return self.group or (self.digest,)

    def __str__(self) -> str:
        at = "" if self.seq is None else f" of {self.seq}"
        return f"{self.client}'s {self.op}{at}"


class Logged(msgspec.Struct, frozen=True):
    """An entry of a final log."""

    seq: int
    op: str = "write"
    digest: str = ""  # "": it carries no data that anyone recorded
    append_id: str = ""
    fence: int = 0
    lease: str = ""  # under which the session is held as of this entry


_OPS = {"checkpoint": "write", "thinned": "write", "created": "create", "tombstone": "delete", "taken": "hold"} | {
    "claimed": "claim", "released": "release", "paused": "pause", "resumed": "resume", "completed": "complete",
    "failed": "fail", "recovered": "recover",
}  # fmt: skip


def logged(entry: Entry, digest: str = "") -> Logged:
    """A Saveslot entry; the digest is that of the decoded data, by the same rule as the client's."""
    op = _OPS.get(entry.kind.name.lower(), entry.kind.name.lower())
    lease = entry.lease.hex() if entry.lease else ""
    return Logged(entry.seq, op, digest, entry.append_id.hex(), entry.fence, lease)


class Effect(msgspec.Struct, frozen=True):
    """One line of a ledger kept outside: a step's function ran."""

    mode: str
    session: str
    step: str
    run: str
    at: int = 0
    key: str = ""  # the idempotency key that it was given


class Rule(StrEnum):
    STALE = "stale"  # a read is never older than what was acknowledged or read before its call
    FUTURE = "future"  # nor newer than what was begun before its return
    INVENTED = "invented"  # what is read or in the log was written by someone
    DIGEST = "digest"  # an entry's data never changes
    ORDER = "order"  # an entry's number is above all that were acknowledged or read before its call
    UNIQUE = "unique"  # one number, one entry
    DELETED = "deleted"  # deleted never returns
    LOST = "lost"  # acknowledged or read: present
    GAP = "gap"  # seqs are 1..n
    DOUBLED = "doubled"  # one write, one entry
    REFUSED = "refused"  # refused: absent
    TORN = "torn"  # unacknowledged: whole or absent
    FENCE = "fence"  # fences never decrease, and taking a session raises it
    ZOMBIE = "zombie"  # entries of a lease are between the entry that took it and the next taking one
    OWNERS = "owners"  # one claim, one claimer
    LIFECYCLE = "lifecycle"  # the calls, in some order that their times allow, are ones that the model allows
    UNDECIDED = "undecided"  # too many orders to try: shorter sessions, or fewer unknown outcomes, please
    REPEATED = "repeated"  # at most once
    KEY = "key"  # an idempotent step has one key on every run, and shares it with no other
    MISSED = "missed"  # a finished step happened


@dataclass(frozen=True)
class Violation:
    rule: Rule
    session: str
    seqs: tuple[int, ...]
    operations: tuple[Operation | Effect, ...]
    sentence: str

    def __str__(self) -> str:
        return f"{self.rule}: session {self.session}: {self.sentence}"


class Recorder:
    """Appends to a JSON Lines file, each line in one write: a process killed at any moment tears at most its last one.

    Lines outlive the process, not the machine: nothing is synced.
    """

    def __init__(self, path: Path | str, client: str = "") -> None:
        self.client = client or f"{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def call(self, op: str, session: str, **known: Any) -> Call:
        """Enter this around the call, with what is known of the operation before it."""
        return Call(self, {"client": self.client, "session": session, "op": op, **known})

    def write(self, line: dict[str, Any]) -> None:
        # The newline in front ends a line that another process was killed in.
        text = b"\n" + msgspec.json.encode(line) + b"\n"
        if os.write(self._file, text) != len(text):
            raise OSError("the disk is full: what follows would not be recorded")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Call:
    """Ok when its block ends, fail when the block raises a refusal, unknown after any other error."""

    def __init__(self, recorder: Recorder, known: dict[str, Any]) -> None:
        self._recorder, self._known, self._open = recorder, known, True
        self._id = os.urandom(8).hex()

    def ok(self, **fields: Any) -> None:
        """Record that it was acknowledged, and what it returned."""
        self._return({"outcome": "ok", **fields})

    def fail(self, error: str = "") -> None:
        """Record that it was refused: for stores that do not raise Saveslot's errors."""
        self._return({"outcome": "fail", "error": error})

    def _return(self, fields: dict[str, Any]) -> None:
        if self._open:
            self._open = False
            self._recorder.write({"call": self._id, "returned": time.clock_gettime_ns(_CLOCK), **fields})

    def __enter__(self) -> Self:
        self._recorder.write({"call": self._id, "invoked": time.clock_gettime_ns(_CLOCK), **self._known})
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.ok()
        elif isinstance(error, REFUSALS):
            self.fail(error.code)


def read(paths: Iterable[Path | str]) -> list[Operation]:
    """All operations of these files, in the order of their invocations."""
    calls: dict[str, dict[str, Any]] = {}
    for path in paths:
        for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
            if not line.endswith(b"}"):  # empty, or torn by a kill: its call was not made, or its outcome is unknown
                continue
            try:
                result = msgspec.json.decode(line, type=dict[str, Any])
                calls.setdefault(result.pop("call"), {}).update(result)
            except (msgspec.DecodeError, KeyError) as error:
                raise ValueError(f"{path}:{number} is not a recorder's line: {line[:80]!r}") from error
    return sorted((msgspec.convert(call, Operation) for call in calls.values()), key=lambda op: op.invoked)


def check(operations: Iterable[Operation], logs: Mapping[str, Sequence[Logged]] | None = None) -> list[Violation]:
    """All violations in these operations and the sessions' final logs; empty if legal.

    `logs` are read when the last client has ended: every recorded session's, an empty one for a purged session. With
    them the fate of most unknown operations is known, and more is checked; unrecorded entries count too.
    """
    by_session: defaultdict[str, list[Operation]] = defaultdict(list)
    for op in operations:
        by_session[op.session].append(op)
    result: list[Violation] = []
    for name in sorted(by_session.keys() | (logs or {}).keys()):
        session = _Session(name, by_session[name], None if logs is None else logs.get(name, ()))
        for rule in (_reads, _logs, _leases, _lifecycle):
            result += rule(session)
    return result


class _Session:
    """One session's operations without refusals and retries; unknown ones are settled where the log or a read tells."""

    def __init__(self, name: str, operations: list[Operation], log: Sequence[Logged] | None) -> None:
        self.name = name
        self.log = None if log is None else sorted(log, key=lambda entry: entry.seq)
        self.logged = {entry.seq: entry for entry in log or ()}
        self.refused = {digest for op in operations if op.outcome == "fail" for digest in op.digests}
        calls = _once(operations)
        places = {name: entry.seq for entry in reversed(self.log or ()) for name in _names(entry)}
        self.names = {what for what, _ in places}  # by what the log names its entries
        seen = {(op.seq, op.digest) for op in calls if op.op in READS and op.digest}
        taken = {op.seq for op in calls if op.outcome == "ok" and op.op not in READS}
        for n, op in enumerate(calls):
            if op.op in READS or (op.outcome == "ok" and op.seq):
                continue
            seq = next((places.get(name) for name in _names(op) if name[0] in self.names), None)
            if log is None and (op.seq, op.digest) in seen:
                seq = op.seq
            if seq is not None and seq not in taken:
                taken.add(seq)  # it landed, whether or not it was acknowledged
                returned = op.returned if op.outcome == "ok" else None
                calls[n] = msgspec.structs.replace(op, outcome="ok", returned=returned, seq=seq)
        self.calls = sorted(map(self._informed, calls), key=lambda op: op.invoked)
        self.reads = [op for op in self.calls if op.op in READS and op.outcome == "ok"]
        self.writes = [op for op in self.calls if op.op not in READS]
        self.deletes = [op for op in self.writes if op.op == "delete"]
        # Each entry that a write is known to have made: seq, digest, and that write.
        self.landed = [
            (op.seq - len(op.digests) + 1 + n, digest, op)
            for op in self.writes
            if op.outcome == "ok" and op.seq
            for n, digest in enumerate(op.digests)
        ]
        self.at = {seq: (digest, op) for seq, digest, op in self.landed}

    def _informed(self, op: Operation) -> Operation:
        """Add what only the log has: the lease, and whether a hold took the session over."""
        entry = self.logged.get(op.seq or 0)
        if entry is None or op.op in READS:
            return op
        how = entry.op if {op.op, entry.op} <= TAKES else op.op
        return msgspec.structs.replace(op, op=how, lease=op.lease or entry.lease)

    def wrong(self, rule: Rule, sentence: str, *operations: Operation | None, seqs: Sequence[int] = ()) -> Violation:
        named = tuple(op for op in operations if op is not None)
        return Violation(rule, self.name, tuple(seqs) or tuple(op.seq for op in named if op.seq), named, sentence)


def _names(of: Operation | Logged) -> list[tuple[str, str]]:
    """What identifies a write, the surest first."""
    lease, only = of.lease if of.op in TAKES else "", "one" if of.op == "delete" else ""
    names = (("append_id", of.append_id), ("lease", lease), ("delete", only), ("digest", of.digest))
    return [name for name in names if name[1]]


def _once(operations: list[Operation]) -> list[Operation]:
    """Calls under one append_id are one operation, from the first call to the first ok."""
    tries: defaultdict[str | int, list[Operation]] = defaultdict(list)
    for n, op in enumerate(operations):
        if op.op in READS and op.error == NotFound.code:
            tries[n].append(msgspec.structs.replace(op, outcome="ok", seq=0))
        elif op.outcome != "fail":
            tries[n if op.op in READS else op.append_id or n].append(op)
    kept: list[Operation] = []
    for same in tries.values():
        begun = min(op.invoked for op in same)
        latest_first = sorted(same, key=lambda op: -op.end)
        by_key = {op.seq: op for op in latest_first if op.outcome == "ok"}  # two numbers: no retry, but a second entry
        kept += [msgspec.structs.replace(op, invoked=begun) for op in by_key.values() or same[:1]]
    return kept


def _reads(of: _Session) -> Iterator[Violation]:
    """Linearizable iff no number falls behind what was acknowledged or read before its call, and no read returns before
    what it returns was begun: then the order of the numbers is an order of the calls. O(n log n).
    """
    for seq, _, op in of.landed:
        if of.at[seq][1] is not op:
            other = of.at[seq][1]
            yield of.wrong(Rule.UNIQUE, f"{op} and {other} were given the same number", op, other, seqs=[seq])
    begun: dict[str, int] = {}  # digest -> when its first write was called
    for op in of.writes:
        for digest in op.digests:
            begun.setdefault(digest, op.invoked)
    data = sorted({0} | {seq for seq, digest, _ in of.landed if digest})
    floor, highest = 0, None
    items: list[tuple[int, int, int, Operation]] = []
    for n, op in enumerate(of.calls):
        while items and items[0][0] < op.invoked:
            _, _, seq, other = heappop(items)
            floor, highest = (seq, other) if seq > floor else (floor, highest)
        if op.outcome != "ok" or (op.seq is None and op.op != "delete"):
            continue
        seq = GONE if op.op == "delete" else op.seq or 0
        bound = floor if op.op != "load" or floor == GONE else data[bisect_right(data, floor) - 1]
        if op.op in READS and seq == 0 and bound:
            if any(delete.invoked <= op.end for delete in of.deletes):
                seq = GONE
            else:
                yield of.wrong(Rule.LOST, f"{op.client} found no session after {highest}", op, highest)
        elif seq < GONE <= floor:
            yield of.wrong(Rule.DELETED, f"{op} succeeded though {highest} had shown the session deleted", op, highest)
        elif op.op in READS and seq < bound:
            yield of.wrong(Rule.STALE, f"{op} was called after {highest} had returned", op, highest)
        elif op.op not in READS and seq - len(op.digests) + 1 < floor:
            yield of.wrong(Rule.ORDER, f"{op} was called after {highest} had returned", op, highest)
        if op.op in READS and 0 < seq < GONE:
            yield from _origin(of, op, begun)
        if op.returned is not None:
            heappush(items, (op.returned, n, seq, op))


def _origin(of: _Session, op: Operation, begun: dict[str, int]) -> Iterator[Violation]:
    digest, writer = of.at.get(op.seq or 0, ("", None))
    if writer is not None and writer.invoked > op.end:
        yield of.wrong(Rule.FUTURE, f"{op} returned before {writer} was called", op, writer)
    elif digest and op.digest and digest != op.digest:
        yield of.wrong(Rule.DIGEST, f"{op} returned {op.digest}, but {writer} wrote {digest}", op, writer)
    elif op.digest and op.digest not in begun:
        yield of.wrong(Rule.INVENTED, f"{op} returned {op.digest}, which no call wrote", op)
    elif op.digest and begun[op.digest] > op.end:
        yield of.wrong(Rule.FUTURE, f"{op} returned {op.digest} before its write was called", op)


def _logs(of: _Session) -> Iterator[Violation]:
    if of.log is None or (not of.log and of.deletes):  # purged
        return
    for before, entry in zip([Logged(0), *of.log], of.log, strict=False):
        if entry.seq == before.seq:
            yield of.wrong(Rule.UNIQUE, f"the log has two entries {entry.seq}", seqs=[entry.seq])
        elif entry.seq != before.seq + 1:
            yield of.wrong(Rule.GAP, f"entry {entry.seq} follows {before.seq}", seqs=[before.seq, entry.seq])
        if entry.fence < before.fence:
            sentence = f"the fence goes back from {before.fence} to {entry.fence} at entry {entry.seq}"
            yield of.wrong(Rule.FENCE, sentence, seqs=[before.seq, entry.seq])
        if before.op == "delete":
            yield of.wrong(Rule.DELETED, f"entry {entry.seq} follows the tombstone", seqs=[before.seq, entry.seq])
    answer = next((op for op in of.deletes if op.acknowledged), None)
    if answer is not None and all(entry.op != "delete" for entry in of.log):
        yield of.wrong(Rule.DELETED, f"{answer} was acknowledged, and its log has no tombstone", answer)
    yield from _entries(of, of.log)
    for seq, digest, op in of.landed:
        entry = of.logged.get(seq)
        another = entry and seq == op.seq and op.append_id and entry.append_id and op.append_id != entry.append_id
        if entry is None or another:
            sentence = f"entry {seq}, of {op}, is {'another one' if entry else 'not there'}"
            yield of.wrong(Rule.LOST if op.acknowledged else Rule.TORN, sentence, op, seqs=[seq])
        elif digest and "digest" in of.names and entry.digest != digest:
            sentence = f"{op} wrote {digest} as entry {seq}, which now holds {entry.digest or 'nothing'}"
            yield of.wrong(Rule.DIGEST if op.acknowledged else Rule.TORN, sentence, op, seqs=[seq])
    for op in of.writes:
        if op.acknowledged and not op.seq and of.names & {what for what, _ in _names(op)} & {"append_id", "digest"}:
            yield of.wrong(Rule.LOST, f"{op} was acknowledged, and is not in the log", op)
    for op in of.reads:
        entry = of.logged.get(op.seq or 0)
        if op.seq and entry is None:
            yield of.wrong(Rule.LOST, f"{op} returned an entry that is not there", op)
        elif entry and entry.digest and op.digest and entry.digest != op.digest:
            yield of.wrong(Rule.DIGEST, f"{op} returned {op.digest}, the log holds {entry.digest}", op)


def _entries(of: _Session, log: Sequence[Logged]) -> Iterator[Violation]:
    """Each entry with data comes from one write, and each write is stored once, whole, or not at all."""
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for entry in log:
        for name in (("append_id", entry.append_id), ("digest", entry.digest)):
            places[name].append(entry.seq)
    writers = Counter(digest for op in of.writes for digest in op.digests)
    for (what, name), seqs in places.items():
        if not name:
            continue
        if len(seqs) > (1 if what == "append_id" else max(writers[name], 1)):
            yield of.wrong(Rule.DOUBLED, f"{what} {name} is stored as entries {seqs}", seqs=seqs)
        if what == "digest" and not writers[name]:
            rule = Rule.REFUSED if name in of.refused else Rule.INVENTED
            who = "a write that was refused" if name in of.refused else "nobody"
            yield of.wrong(rule, f"entry {seqs[0]} holds {name}, written by {who}", seqs=seqs)
    for op in of.writes:
        if op.outcome == "unknown" and op.group:
            seqs = [seq for digest in op.group if digest for seq in places.get(("digest", digest), ())]
            if seqs:
                yield of.wrong(Rule.TORN, f"of {op}, {len(op.group)} entries, only {seqs} are there", op, seqs=seqs)


def _leases(of: _Session) -> Iterator[Violation]:
    owners: dict[tuple[str, str | int], Operation] = {}
    takers = {op.lease: op.client for op in of.writes if op.op in TAKES and op.outcome == "ok" and op.lease}
    for op in of.writes:
        if op.op in TAKES and op.acknowledged:
            for what, name in (("fence", op.fence), ("former lease", op.former)):
                other = owners.setdefault((what, name), op) if name else op
                if other is not op:
                    yield of.wrong(Rule.OWNERS, f"{other} and {op} both took it with {what} {name}", other, op)
        entry = of.logged.get(op.seq or 0)
        if entry and op.acknowledged and op.lease and entry.lease and op.lease != entry.lease:
            yield of.wrong(Rule.ZOMBIE, f"{op} under lease {op.lease} is in the log under {entry.lease}", op)
        if op.op == "write" and op.acknowledged and takers.get(op.lease, op.client) != op.client:
            yield of.wrong(Rule.ZOMBIE, f"{op} is stored under lease {op.lease}, which {takers[op.lease]} took", op)
        if entry and op.acknowledged and op.fence and entry.fence and op.fence != entry.fence:
            yield of.wrong(Rule.FENCE, f"{op} with fence {op.fence} is in the log with {entry.fence}", op)
    holder, fence, ever = "", 0, set[str]()
    for entry in of.log or ():
        takes = entry.op in TAKES or (entry.op == "create" and entry.lease)
        again = entry.lease and entry.lease in ever
        if takes and (again or 0 < entry.fence == fence):
            what = f"the old lease {entry.lease}" if again else f"the same fence {fence}"
            yield of.wrong(Rule.FENCE, f"entry {entry.seq} takes the session with {what}", seqs=[entry.seq])
        elif not takes and entry.lease != holder and (entry.lease or entry.op == "write"):
            lease, now = (f"lease {name}" if name else "no lease" for name in (entry.lease, holder))
            sentence = f"entry {entry.seq} was written under {lease}, while the session was held under {now}"
            yield of.wrong(Rule.ZOMBIE, sentence, of.at.get(entry.seq, (0, None))[1], seqs=[entry.seq])
        holder, fence = entry.lease if takes else holder, entry.fence
        ever.add(entry.lease)
        if entry.op in ENDS:
            holder = ""


# State, and the lease that holds the session. "?" marks a lease whose taking was not acknowledged: its
# owner may take the session again, or not know that it has it.
_Now = tuple[str, str]


def _same(holder: str, lease: str) -> bool:
    return holder in {lease, "?" + lease, "?"}


def _after(now: _Now, op: Operation) -> _Now | None:
    """The sequential model: what the session becomes, None where the operation is illegal."""
    state, holder = now
    if op.op == "create":
        return (ACTIVE, op.lease) if state == "" else None
    if state in {"", "deleted"}:
        return now if state and op.op == "delete" else None
    if op.op in TAKES:
        free = holder[:1] in {"", "?"} if op.op == "hold" else not op.former or _same(holder, op.former)
        lease = op.lease if op.acknowledged else "?" + op.lease
        return (state, lease) if free and state in _VERBS["write"] else None
    if op.lease and not _same(holder, op.lease):
        return None
    if op.op == "release":
        return (state, "") if holder else None
    if op.op == "delete":
        return ("deleted", "")
    if op.op == "write" and holder and not op.lease:
        return None
    after = _VERBS[op.op].get(state) if op.op in _VERBS else state
    return None if after is None else (after, "" if op.op in ENDS else holder)


def _lifecycle(of: _Session) -> Iterator[Violation]:
    """Wing and Gong's search with Lowe's memory: is there an order of the calls, within their times, that is legal?

    Three things keep it short. The store's numbers order the entries. A write changes nothing here, so a legal one is
    never worth postponing. And of unacknowledged calls, only those that change something can matter.
    """
    must = [op for op in of.writes if op.outcome == "ok" and (op.seq or not of.log)]
    # Entries that no client recorded, or not with their numbers, happened all the same: the log says what, not when.
    unseen = [entry for entry in of.log or () if entry.seq not in of.at]
    must += [Operation("someone", of.name, e.op, 0, None, "ok", e.seq, lease=e.lease) for e in unseen]
    must.sort(key=lambda op: op.invoked)
    # What the log would name, and does not, never landed.
    untold = [op for op in of.writes if op.outcome == "unknown" and op.op != "write"]
    may = [op for op in untold if not of.names & {what for what, _ in _names(op)}]
    numbered = sorted((n for n, op in enumerate(must) if op.seq), key=lambda n: must[n].seq or 0)
    start: _Now = ("" if any(op.op == "create" for op in [*must, *may]) else ACTIVE, "")
    # How many calls of `must` are done without a gap, which beyond these, how many numbered ones, which of `may`.
    stack: list[tuple[int, int, int, int, _Now]] = [(0, 0, 0, 0, start)]
    tried = set(stack)
    furthest: tuple[int, _Now, list[Operation]] = (-1, start, [])
    while stack:
        low, beyond, count, landed, now = stack.pop()
        if low == len(must):
            return
        ready: list[int] = []
        n, deadline = low, NEVER
        while n < len(must) and must[n].invoked <= deadline:
            if not beyond >> (n - low) & 1:
                ready.append(n)
                deadline = min(deadline, must[n].end)
            n += 1
        ready = [n for n in ready if not must[n].seq or numbered[count] == n]
        done = low + beyond.bit_count()
        if done > furthest[0]:
            furthest = done, now, [must[n] for n in ready]
        following: list[tuple[int, int, int, int, _Now]] = []
        for n, op in enumerate(may):
            after = _after(now, op)
            if not landed >> n & 1 and op.invoked <= deadline and after not in {None, now}:
                following.append((low, beyond, count, landed | 1 << n, after or now))
        for n in ready:
            after = _after(now, must[n])
            if after is not None:
                bits = beyond | 1 << (n - low)
                gone = (~bits & (bits + 1)).bit_length() - 1
                step = (low + gone, bits >> gone, count + bool(must[n].seq), landed, after)
                if must[n].op == "write":
                    following = [step]
                    break
                following.append(step)
        stack += [step for step in following if step not in tried]
        tried.update(following)
        if len(tried) > MOST_CONFIGURATIONS:
            yield of.wrong(Rule.UNDECIDED, f"{len(must)} calls and {len(may)} unknown ones have too many orders")
            return
    done, (state, holder), blocked = furthest
    held = f"held under {holder}" if holder else "held by no worker"
    tail = " nor ".join(str(op) for op in blocked) or "what has the next number, by the times of the calls"
    sentence = f"no order is legal: after {done} calls it is {state or 'not created'} and {held}; next cannot be {tail}"
    yield of.wrong(Rule.LIFECYCLE, sentence, *blocked)


def check_effects(ledger: Iterable[Effect], finished: Iterable[tuple[str, str]] = ()) -> list[Violation]:
    """What happened outside, against the modes of the steps. `finished`: (session, step) of each that the logs call so.

    A step that its caller chose to retry or verify after an unknown outcome ran at least once: say so in its mode.
    """
    runs: defaultdict[tuple[str, str], list[Effect]] = defaultdict(list)
    users: defaultdict[str, dict[tuple[str, str], Effect]] = defaultdict(dict)
    for effect in ledger:
        runs[effect.session, effect.step].append(effect)
        if effect.mode == "idempotent":
            users[effect.key].setdefault((effect.session, effect.step), effect)
    items: list[Violation] = []
    for (session, step), effects in runs.items():
        modes = {effect.mode for effect in effects}
        if "at_most_once" in modes and len(effects) > 1:
            names = ", ".join(effect.run for effect in effects)
            sentence = f"step {step!r} happened {len(effects)} times, in runs {names}"
            items.append(Violation(Rule.REPEATED, session, (), tuple(effects), sentence))
        keys = {effect.key for effect in effects if effect.mode == "idempotent"}
        if len(keys) > 1 or "" in keys:
            sentence = f"step {step!r} was given the keys {sorted(keys)}"
            items.append(Violation(Rule.KEY, session, (), tuple(effects), sentence))
    for key, steps in users.items():
        if key and len(steps) > 1:
            names = ", ".join(f"{step!r} of {session}" for session, step in steps)
            session = next(iter(steps))[0]
            items.append(Violation(Rule.KEY, session, (), tuple(steps.values()), f"{key} is the key of {names}"))
    for session, step in dict.fromkeys(finished):
        if (session, step) not in runs:
            sentence = f"step {step!r} is finished in the log, and never happened"
            items.append(Violation(Rule.MISSED, session, (), (), sentence))
    return items
