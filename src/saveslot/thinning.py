"""Thinning a history: what retention drops is marked first, and emptied later.

    … 7 checkpoint   8 checkpoint   9 completed   10 marked [2-6]          refs, history and `~n` no longer find 2 to 6
    ten minutes later: the frames of 2 to 6 are gone, but for those that an unmarked entry is rebuilt from

A mark is an entry of the log. Whoever appends has seen the newest entry, and so every mark before it: no later entry
can be built on a frame that was given up. A reader whose head is older than the mark, and who misses a frame, reads the
head again. Rows stay, so numbers, audit and retries stay true.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from saveslot import codec
from saveslot.errors import Conflict, InvalidInput, LeaseHeld, LeaseLost, NotFound, Unavailable
from saveslot.held import Held
from saveslot.holding import SessionHolder
from saveslot.lifecycle import COMPLETED, FAILED, SessionState
from saveslot.log import MICROSECOND, Entry, Head, Place, Query, as_age, micros
from saveslot.model import DATA_KINDS, HIDING_KINDS, KEEPING_KINDS, Checkpoint, Kind, as_name, now
from saveslot.retention import Retention, Rules, as_rule, checked, pins, rule_of
from saveslot.sealing import SealedStore
from saveslot.settling import settled
from saveslot.slot import Draft
from saveslot.slots import Slots
from saveslot.timeline import needed, shown

# Between marking and emptying: longer than anybody reads.
GRACE = timedelta(minutes=10)
# Frames that are emptied in one transaction: others write in between.
EMPTY_BATCH = 500
# Sessions that are looked at together.
LOOK = 500
# Sessions without anything to thin that are remembered as such until they grow.
MOST_IDLE = 100_000

Decide = Callable[[Head, Draft], Awaitable[bool]]


class Thinned(NamedTuple):
    """What thinning did: checkpoints marked now, frames emptied now, and their bytes."""

    marked: int = 0
    emptied: int = 0
    freed_bytes: int = 0

    def __add__(self, other: object) -> Thinned:
        return Thinned(*map(sum, zip(self, other, strict=True))) if isinstance(other, Thinned) else NotImplemented


@dataclass
class Headers:
    """A log without its frames, as far as thinning looks at it."""

    key: bytes
    session_id: str
    now: int  # by the store's clock
    log: list[Entry]
    marks: list[Entry] = field(default_factory=list[Entry])  # appended since

    @property
    def data(self) -> list[Entry]:
        return [entry for entry in self.log if entry.kind in DATA_KINDS]

    def drops(self, rule: Retention) -> list[int]:
        """The checkpoints that go, of those that nothing hides yet."""
        if rule.keeps_all:
            return []
        data = self.data
        sizes = {entry.seq: weight for entry in data if (weight := _frame_bytes(entry))}
        return rule.drops(shown(data, self.log, self.session_id), self.now, pins(self.log), sizes)

    def victims(self, grace: int) -> tuple[list[Entry], list[Entry]]:
        """What was hidden so long ago, has a frame and rebuilds nothing else; and the marks that are done with it."""
        old = max([self.now, *(mark.at for mark in self.marks)]) - grace
        hiding = [entry for entry in (*self.log, *self.marks) if entry.kind in HIDING_KINDS and entry.at <= old]
        data = self.data
        # A mark's own frame goes last: as long as it is there, the work is not done.
        done = [entry for entry in hiding if entry.kind is Kind.MARKED and (_frame_bytes(entry) or entry in self.marks)]
        return list(_unneeded(data, shown(data, hiding, self.session_id))), done


class SessionThinner(SessionHolder):
    """A holder that can forget parts of a history."""

    def __init__(
        self,
        store: SealedStore,
        namespace: str,
        limit: int,
        *,
        worker_beat: float,
        worker_ttl: float,
        max_block: float,
        retention: Rules,
    ) -> None:
        super().__init__(store, namespace, limit, worker_beat=worker_beat, worker_ttl=worker_ttl, max_block=max_block)
        self._rules = checked(retention)
        self._slots = Slots()
        self._idle: dict[bytes, bytes] = {}  # by session: its newest entry when nothing was to be thinned

    async def thin(
        self, id: str, retention: Retention | None = None, *, grace: timedelta = GRACE, dry_run: bool = False
    ) -> Thinned:
        """Drop what the session's rule (or this one) does not keep, now, whether it has ended or not.

        What is dropped is out of sight at once; its bytes are given back by a call at least `grace` later, or by the
        keeper. While another process holds the session: `LeaseHeld`. `dry_run` only tells.
        """
        session_id, age = as_name(id, "session_id"), as_age(grace, "grace")
        rule = None if retention is None else as_rule(retention)
        read = Headers(b"", "", 0, [])
        drops: list[int] = []

        async def mark(head: Head, draft: Draft) -> bool:
            nonlocal read, drops
            read = await self._headers(head)
            drops = read.drops(rule or self._rule(head))
            if not drops or dry_run:
                return False
            draft.mark((seq, seq) for seq in drops)
            read.marks = draft.group.entries
            return True

        await self._keep(session_id, mark)
        return Thinned(len(drops)) + (Thinned() if dry_run else await self._emptied(read, age))

    async def pin(self, id: str, ref: str | int = "latest") -> Checkpoint:
        """Keep a checkpoint whatever retention says, until `unpin`.

        While another process holds the session: `LeaseHeld`.
        """
        return await self._pin(id, ref, Kind.PINNED)

    async def unpin(self, id: str, ref: str | int) -> Checkpoint:
        """Leave a checkpoint to retention again."""
        return await self._pin(id, ref, Kind.UNPINNED)

    async def pins(self, id: str) -> list[int]:
        """The numbers of its pinned checkpoints."""
        return sorted(await self._pinned(await self._lookup.existing(id)))

    async def _pin(self, id: str, ref: str | int, kind: Kind) -> Checkpoint:
        session_id = as_name(id, "session_id")
        chosen = 0

        async def change(head: Head, draft: Draft) -> bool:
            nonlocal chosen
            entry = await self._lookup.entry(head, ref)
            if entry.kind not in DATA_KINDS:
                raise InvalidInput("ref", f"{ref!r} is {Kind(entry.kind).label}; such entries are always kept")
            chosen = entry.seq
            if (chosen in await self._pinned(head)) == (kind is Kind.PINNED):
                return False
            draft.lifecycle(kind, f"checkpoint_{kind.label}", {"seq": chosen})
            return True

        await self._keep(session_id, change)
        return await self._lookup.checkpoint(session_id, chosen)

    async def _pinned(self, head: Head) -> set[int]:
        return pins(await self._store.entries(head.row.key, [(1, head.last.seq)], kinds=KEEPING_KINDS, frames=False))

    # Marking

    @settled
    async def _keep(self, session_id: str, decide: Decide) -> None:
        """Append what is decided behind the newest entry; anew when somebody wrote meanwhile."""
        while True:
            head = await self._lookup.existing(session_id)
            if (held := self._in_hand(head)) is not None:
                await held.keep(decide)
                return
            with suppress(Conflict):
                await self._keep_free(head, decide)
                return

    def _in_hand(self, head: Head) -> Held | None:
        """The session if it is in our own hands: its holder writes the mark itself, and is not disturbed."""
        holder = None if self._lifeline is None else self._lifeline.holders.get(head.row.lease or b"")
        return holder if isinstance(holder, Held) else None

    async def _keep_free(self, head: Head, decide: Decide) -> None:
        session_id = head.row.session_id
        slot = self._slots.get(session_id) or self._slot_at(head)
        async with slot.lock:
            if slot.doubtful:
                raise Unavailable(f"session {session_id}: a write is in doubt; first retry that one")
            head = await self._lookup.existing(session_id)
            if head.row.lease is not None:
                raise await self._lookup.held(head)
            slot.meet(head)
            draft = slot.draft()
            if await decide(head, draft):
                try:
                    await slot.append(draft)
                finally:
                    if slot.refused:
                        self._slots.forget(slot)

    def _rule(self, head: Head) -> Retention:
        if head.row.locked is not None:
            raise head.row.locked
        return rule_of(self._rules, head.row.agent_type, codec.read_note(head.row.body)["metadata"])

    async def _headers(self, head: Head) -> Headers:
        kinds = DATA_KINDS | HIDING_KINDS | KEEPING_KINDS
        log = await self._store.entries(head.row.key, [(1, head.last.seq)], kinds=kinds, frames=False)
        return Headers(head.row.key, head.row.session_id, head.row.now or micros(now()), log)

    # Emptying

    async def _emptied(self, read: Headers, grace: int) -> Thinned:
        """Empty the frames of what was hidden so long ago, but for those that others are rebuilt from."""
        victims, marks = read.victims(grace)
        emptied = 0
        for part in (victims, marks):
            for start in range(0, len(part), EMPTY_BATCH):
                seqs = [entry.seq for entry in part[start : start + EMPTY_BATCH]]
                count = await self._store.empty(read.key, seqs)
                emptied += count if part is victims else 0
        return Thinned(0, emptied, sum(map(_frame_bytes, victims)) if emptied else 0)

    # All of them

    async def thin_all(self, *, grace: timedelta = GRACE) -> Thinned:
        """Thin each session whose rule says so by now, and give back the bytes of what was marked long ago.

        What another process holds is not marked until it is let go; a session whose own rule is none is left alone.
        """
        done = Thinned()
        as_age(grace, "grace")  # the loop passes over what is refused there: a session's own rule that is none
        for state in SessionState:
            after: Place | None = None
            while rows := await self._store.find(Query(namespace=self.namespace, state=state.value), after, LOOK):
                after = (rows[-1].created_at, rows[-1].key)
                for head in await self._store.heads([row.key for row in rows]):
                    if head is None or head.row.locked is not None:  # sealed: only who has its key may write a mark
                        continue
                    if self._idle.get(head.row.key) != head.last.append_id:
                        with suppress(InvalidInput):
                            done += await self._thin_one(head, grace)
                await asyncio.sleep(0)
        return done

    async def _thin_one(self, head: Head, grace: timedelta) -> Thinned:
        last, rule, done, age = head.last, self._rule(head), Thinned(), as_age(grace, "grace")
        due = not rule.keeps_all and last.seq > rule.least and await self._over(head, rule.after_end)
        hides = last.kind in HIDING_KINDS
        try:
            if due:
                done = await self.thin(head.row.session_id, grace=grace)
            elif hides:
                done = await self._emptied(await self._headers(head), age)
        except (LeaseHeld, Conflict):  # in other hands, or its holder has not seen the newest entry: the next time
            return await self._emptied(await self._headers(head), age)
        except (LeaseLost, NotFound):
            return done
        waits = hides and last.at > head.row.now - age
        settled = rule.keeps_all or last.seq <= rule.least or (due and rule.max_age is None)
        if settled and not waits and not any(done):
            self._idle[head.row.key] = last.append_id
            if len(self._idle) > MOST_IDLE:
                del self._idle[next(iter(self._idle))]
        return done

    async def _over(self, head: Head, after_end: timedelta | None) -> bool:
        """True when a rule that waits for the session's end has waited long enough."""
        if after_end is None:
            return True
        if head.row.state not in {COMPLETED, FAILED}:
            return False
        ends = await self._store.entries(
            head.row.key, kinds=frozenset({Kind.COMPLETED, Kind.FAILED}), newest=1, frames=False
        )
        ended = max([head.row.heartbeat, *(entry.at for entry in ends)])
        return ended <= head.row.now - after_end // MICROSECOND


def _frame_bytes(entry: Entry) -> int:
    return entry.size - len(entry.note or b"")


def _unneeded(data: Sequence[Entry], staying: Sequence[Entry]) -> Iterator[Entry]:
    """Those with a frame that nothing which stays is rebuilt from."""
    ranges = needed(staying)
    firsts, lasts = [first for first, _ in ranges], [0, *(last for _, last in ranges)]
    kept = {entry.seq for entry in staying}
    for entry in data:
        if _frame_bytes(entry) and entry.seq not in kept and entry.seq > lasts[bisect_right(firsts, entry.seq)]:
            yield entry
