"""Thinning: checkpoints that retention drops are first marked, and emptied later.

    … 7 checkpoint   8 checkpoint   9 completed   10 marked [2-6]          refs, history and `~n` no longer find 2 to 6
    ten minutes later: the frames of 2 to 6 are gone, except those that an unmarked entry is rebuilt from

A mark is an entry of the log. A writer has seen the newest entry, and so every mark before it: no later entry can be
built on a dropped frame. A reader whose head is older than the mark, and that misses a frame, reads the head again.
Rows stay, so numbers, audit and retries keep working.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, cast

from saveslot.errors import Conflict, Corrupt, InvalidInput, LeaseHeld, LeaseLost, NotFound
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.held import Held
from saveslot.session.log import Log
from saveslot.session.lookup import about_of
from saveslot.session.model import Checkpoint
from saveslot.session.requests import entry_of, request
from saveslot.session.retention import Retention, as_rule, pins as pinned, rule_of
from saveslot.session.retries import once_in
from saveslot.session.timeline import bases_of, hidden_by, needed, note_of, visible
from saveslot.values.checks import Data, Span, as_name, now
from saveslot.values.kinds import DATA_KINDS, HIDING_KINDS, KEEPING_KINDS, Kind
from saveslot.values.lifecycle import COMPLETED, FAILED, SessionState
from saveslot.values.log import Entry, Head, Place, Query, Wanted, as_age, micros
from saveslot.values.versions import Version

# Delay from marking to emptying: longer than any read.
GRACE = timedelta(minutes=10)
# Frames emptied per transaction; other writers get their turn in between.
EMPTY_BATCH = 500
# Sessions per page of `thin_all`.
LOOK = 500
# Sessions remembered as having nothing to thin until they grow.
MOST_IDLE = 100_000

Decide = Callable[[Head, Draft], Awaitable[bool]]


class Thinned(NamedTuple):
    """Result of thinning: checkpoints marked, frames emptied, and the bytes freed."""

    marked: int = 0
    emptied: int = 0
    freed_bytes: int = 0

    def __add__(self, other: object) -> Thinned:
        return Thinned(*map(sum, zip(self, other, strict=True))) if isinstance(other, Thinned) else NotImplemented

    def to_dict(self) -> Data:
        return self._asdict()


@dataclass
class Headers:
    """The entries of a log that thinning needs, without frames."""

    key: bytes
    session_id: str
    now: int  # by the store's clock
    log: list[Entry]
    marks: list[Entry] = field(default_factory=list[Entry])  # appended since

    @property
    def data(self) -> list[Entry]:
        return [entry for entry in self.log if entry.kind in DATA_KINDS]

    def drops(self, rule: Retention) -> list[int]:
        """Return the seqs of the visible checkpoints to drop."""
        if rule.keeps_all:
            return []
        data = self.data
        sizes = {entry.seq: weight for entry in data if (weight := _frame_bytes(entry))}
        return rule.drops(visible(data, self.log, self.session_id), self.now, pinned(self.log), sizes, bases_of(data))

    def victims(self, grace: int) -> tuple[list[Entry], list[Entry]]:
        """Return the entries hidden at least `grace` ago whose frames are not needed, and the marks then finished."""
        old = max([self.now, *(mark.at for mark in self.marks)]) - grace
        hiding = [entry for entry in (*self.log, *self.marks) if entry.kind in HIDING_KINDS and entry.at <= old]
        data = self.data
        # A mark's own frame is emptied last: while it exists, the work is not done.
        done = [entry for entry in hiding if entry.kind is Kind.MARKED and (_frame_bytes(entry) or entry in self.marks)]
        return list(_unneeded(data, visible(data, hiding, self.session_id))), done


@once_in(scope_of)
async def thin(
    sessions: Space,
    id: str,
    retention: Retention | None = None,
    *,
    grace: Span = GRACE,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Thinned:
    """Drop the checkpoints that the session's rule (or `retention`) does not keep, whether it has ended or not.

    They are hidden at once; their bytes are freed by a call at least `grace` later, or by the keeper. While another
    process holds the session: `LeaseHeld`. `dry_run` only reports. The same call with the same `idempotency_key` drops
    nothing more, and returns how many the first one dropped; one that drops nothing uses no key up.
    """
    session_id, age = as_name(id, "id"), as_age(grace, "grace")
    rule = None if retention is None else as_rule(retention)
    given = {"retention": None if rule is None else rule.to_dict(), "grace": age}
    call_id = b"" if dry_run else request(idempotency_key, "thin", given)
    if (earlier := await hidden_before(sessions, session_id, call_id)) is not None:
        return Thinned(earlier)
    read: Headers | None = None
    drops: list[int] = []

    async def mark(head: Head, draft: Draft) -> bool:
        nonlocal read, drops
        if await entry_of(sessions.engine.vault, head.row.key, call_id) is not None:
            return False
        read = await _headers(sessions, head)
        drops = read.drops(rule or _rule(sessions, head))
        if not drops or dry_run:
            return False
        draft.mark((seq, seq) for seq in drops)
        draft.group.entries[-1].request = call_id
        read.marks = draft.group.entries
        draft.answer = Thinned(len(drops))
        return True

    try:
        draft = await keep(sessions, session_id, mark)
    except Conflict:  # perhaps with the same call in another process
        if (earlier := await hidden_before(sessions, session_id, call_id)) is None:
            raise
        return Thinned(earlier)
    if draft is None and (earlier := await hidden_before(sessions, session_id, call_id)) is not None:
        return Thinned(earlier)
    done = Thinned(len(drops)) if draft is None else cast("Thinned", draft.answer)
    if not dry_run:
        if read is None:  # marked by an earlier attempt of this call
            read = await _headers(sessions, await sessions.lookup.existing(session_id))
        done += await _emptied(sessions, read, age)
    if draft is not None:
        draft.answer = done
    return done


async def pin(sessions: Space, id: str, ref: str | int = "latest", *, idempotency_key: str | None = None) -> Checkpoint:
    """Exempt a checkpoint from retention, until `unpin`.

    While another process holds the session: `LeaseHeld`. The same call with the same `idempotency_key` returns the same
    checkpoint, whatever `ref` names by then, and pins nothing; one that finds it pinned uses no key up.
    """
    return await _pin(sessions, id, ref, Kind.PINNED, request(idempotency_key, "pin", {"ref": ref}))


async def unpin(sessions: Space, id: str, ref: str | int, *, idempotency_key: str | None = None) -> Checkpoint:
    """Make a checkpoint subject to retention again, like `pin`."""
    return await _pin(sessions, id, ref, Kind.UNPINNED, request(idempotency_key, "unpin", {"ref": ref}))


async def pins(sessions: Space, id: str) -> list[int]:
    """Return the numbers of its pinned checkpoints."""
    return sorted(await pinned_in(sessions, await sessions.reader.existing(id)))


@once_in(scope_of)
async def _pin(sessions: Space, id: str, ref: str | int, kind: Kind, call_id: bytes) -> Checkpoint:
    session_id = as_name(id, "id")
    chosen = 0

    async def mark(head: Head, draft: Draft) -> bool:
        nonlocal chosen
        earlier = await entry_of(sessions.engine.vault, head.row.key, call_id)
        if earlier is not None:
            chosen = note_of(earlier, f"{session_id}:{earlier.seq}")["seq"]
            return False
        entry = await sessions.lookup.entry(head, ref)
        if entry.kind not in DATA_KINDS:
            raise InvalidInput("ref", f"{ref!r} is an entry of kind {Kind(entry.kind).label}; those are always kept")
        chosen = entry.seq
        if (chosen in await pinned_in(sessions, head)) == (kind is Kind.PINNED):
            return False
        draft.lifecycle(kind, f"checkpoint_{kind.label}", {"seq": chosen})
        draft.group.entries[-1].request = call_id
        draft.answer = chosen
        return True

    draft = await keep(sessions, session_id, mark)
    return await sessions.lookup.checkpoint(session_id, chosen if draft is None else cast("int", draft.answer))


async def pinned_in(sessions: Space, head: Head) -> set[int]:
    """Return the numbers of the pinned checkpoints as of that head."""
    return pinned(
        await sessions.engine.vault.entries(
            head.row.key, Wanted([(1, head.last.seq)], kinds=KEEPING_KINDS, frames=False)
        )
    )


# Marking


async def hidden_before(sessions: Space, id: str, call_id: bytes) -> int | None:
    """Return how many checkpoints the same call dropped before; None if it was not made before."""
    if not call_id:
        return None
    entry = await entry_of(sessions.engine.vault, (await sessions.lookup.existing(id)).row.key, call_id)
    if entry is None:
        return None
    return sum(last - first + 1 for first, last in hidden_by(entry, f"{id}:{entry.seq}"))


async def keep(sessions: Space, session_id: str, decide: Decide, seen: Version | None = None) -> Draft | None:
    """Append the entry that `decide` adds after the newest one; decide again if another writer was first."""
    head = await sessions.lookup.existing(session_id)
    held = in_hand(sessions, head)
    if held is not None:
        return await held.keep(decide, seen)
    author = passerby(sessions, session_id, version=seen, fresh=True, insists=True, alone=True)

    async def decided(log: Log) -> Draft | None:
        draft = log.draft()
        return draft if await decide(cast("Head", author.head), draft) else None

    return await change(author, decided)


def in_hand(sessions: Space, head: Head) -> Held | None:
    """Return the session if this process holds it: its owner then writes the mark without a conflict."""
    worker = sessions.engine.worker
    holder = None if worker is None else worker.holders.get(head.row.lease or b"")
    return holder if isinstance(holder, Held) else None


def _rule(sessions: Space, head: Head) -> Retention:
    if head.row.locked is not None:
        raise head.row.locked
    return rule_of(sessions.engine.rules, head.row.agent_type, about_of(head.row, head.last)[0]["metadata"])


async def _headers(sessions: Space, head: Head) -> Headers:
    kinds = DATA_KINDS | HIDING_KINDS | KEEPING_KINDS
    log = await sessions.engine.vault.entries(head.row.key, Wanted([(1, head.last.seq)], kinds=kinds, frames=False))
    return Headers(head.row.key, head.row.session_id, head.row.now or micros(now()), log)


async def dropped(sessions: Space, head: Head, rule: Retention | None = None) -> tuple[list[int], int, int]:
    """Return what the session's rule (or `rule`) would drop now: numbers, bytes that no other state needs, and pinned
    ones kept.
    """
    with suppress(InvalidInput, Corrupt):  # a session's own invalid rule drops nothing
        rule = rule or _rule(sessions, head)
        if rule.keeps_all or head.last.seq <= rule.least or not await _over(sessions, head, rule.after_end):
            return [], 0, 0
        read = await _headers(sessions, head)
        drops = read.drops(rule)
        staying = [entry for entry in visible(read.data, read.log, read.session_id) if entry.seq not in set(drops)]
        return drops, sum(map(_frame_bytes, _unneeded(read.data, staying))), len(pinned(read.log))
    return [], 0, 0


# Emptying


def freeable(head: Head, grace: Span) -> bool:
    """True if the newest entry hides checkpoints, whose bytes may be freed by now."""
    return head.last.kind in HIDING_KINDS and head.last.at <= head.row.now - as_age(grace, "grace")


async def free(sessions: Space, head: Head, grace: Span = GRACE) -> Thinned:
    """Free the bytes of checkpoints that were hidden at least `grace` ago."""
    return await _emptied(sessions, await _headers(sessions, head), as_age(grace, "grace"))


async def _emptied(sessions: Space, read: Headers, grace: int) -> Thinned:
    """Empty the frames hidden at least `grace` ago, except those that other entries are rebuilt from."""
    victims, marks = read.victims(grace)
    emptied = 0
    for part in (victims, marks):
        for start in range(0, len(part), EMPTY_BATCH):
            seqs = [entry.seq for entry in part[start : start + EMPTY_BATCH]]
            count = await sessions.engine.vault.empty(read.key, seqs)
            emptied += count if part is victims else 0
    return Thinned(0, emptied, sum(map(_frame_bytes, victims)) if emptied else 0)


# All of them


async def thin_all(sessions: Space, *, grace: Span = GRACE) -> Thinned:
    """Thin each session whose rule is due, and free the bytes of checkpoints marked at least `grace` ago.

    Sessions that another process holds are not marked until released; one whose own rule is invalid is skipped.
    """
    return await thin_each(sessions, grace=grace)


async def thin_each(sessions: Space, *, grace: Span = GRACE, trusted: Callable[[], bool] = lambda: True) -> Thinned:
    """Do that. End early if the clock that ages are measured by is not `trusted` any more."""
    done = Thinned()
    as_age(grace, "grace")  # checked here: the loop suppresses InvalidInput of a session's own invalid rule
    for state in SessionState:
        after: Place | None = None
        while rows := await sessions.engine.vault.find(
            Query(namespace=sessions.namespace, state=state.value), after, LOOK
        ):
            after = (rows[-1].created_at, rows[-1].key)
            for head in await sessions.engine.vault.heads([row.key for row in rows]):
                if not trusted():
                    return done
                if head is None or head.row.locked is not None:  # sealed: a mark needs its key
                    continue
                if sessions.engine.idle.get(head.row.key) != head.last.append_id:
                    with suppress(InvalidInput, Corrupt):
                        done += await _thin_one(sessions, head, grace)
            await asyncio.sleep(0)
    return done


async def _thin_one(sessions: Space, head: Head, grace: Span) -> Thinned:
    last, rule, done = head.last, _rule(sessions, head), Thinned()
    due = not rule.keeps_all and last.seq > rule.least and await _over(sessions, head, rule.after_end)
    hides = last.kind in HIDING_KINDS
    try:
        if due:
            done = await thin(sessions, head.row.session_id, grace=grace)
        elif hides:
            done = await free(sessions, head, grace)
    except (LeaseHeld, Conflict):  # held elsewhere, or its owner has not seen the newest entry: next time
        return await free(sessions, head, grace)
    except (LeaseLost, NotFound):
        return done
    later = hides and not freeable(head, grace)
    settled = rule.keeps_all or last.seq <= rule.least or (due and rule.max_age is None)
    if settled and not later and not any(done):
        sessions.engine.idle[head.row.key] = last.append_id
        if len(sessions.engine.idle) > MOST_IDLE:
            del sessions.engine.idle[next(iter(sessions.engine.idle))]
    return done


async def _over(sessions: Space, head: Head, after_end: Span | None) -> bool:
    """True if the rule does not wait for the session's end, or has waited long enough."""
    if after_end is None:
        return True
    if head.row.state not in {COMPLETED, FAILED}:
        return False
    ends = await sessions.engine.vault.entries(
        head.row.key, Wanted(kinds=frozenset({Kind.COMPLETED, Kind.FAILED}), newest=1, frames=False)
    )
    ended = max([head.row.heartbeat, *(entry.at for entry in ends)])
    return ended <= head.row.now - as_age(after_end, "after_end")


def _frame_bytes(entry: Entry) -> int:
    return entry.size - len(entry.note or b"")


def _unneeded(data: Sequence[Entry], staying: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries whose frame no staying entry is rebuilt from."""
    ranges = needed(staying, bases_of(data))
    firsts, lasts = [first for first, _ in ranges], [0, *(last for _, last in ranges)]
    kept = {entry.seq for entry in staying}
    for entry in data:
        if _frame_bytes(entry) and entry.seq not in kept and entry.seq > lasts[bisect_right(firsts, entry.seq)]:
            yield entry
