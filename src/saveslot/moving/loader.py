"""Append parcels to a store. A session continues after what is there, and is reported once it is complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from saveslot.errors import Corrupt, InvalidInput, KeyMissing, TooLarge
from saveslot.moving.parcel import Parcel, Problem
from saveslot.stores import Store
from saveslot.values.log import Entry, Group, Head, Outcome, Verdict, Wanted

# Sessions per commit.
TOGETHER = 256
LANDED = frozenset({Outcome.APPENDED, Outcome.ALREADY})
REFUSALS = {
    Outcome.CONFLICT: "another session has this id here; delete it, or import this one under another id (--as)",
    Outcome.MISSING: "it was deleted here; import it under another id (--as)",
}
DIFFERS = "is already here with another history; it was left unchanged"
DAMAGED = "{}; nothing was copied; run `saveslot doctor` for what can be saved"
CHANGED = "was removed or changed in its source meanwhile; run this again"
# Sessions verified at once; all headers of each are in memory meanwhile.
LOOKED = 16

Step = Callable[[int], None]  # called with the number of sessions done since the last call


@dataclass
class Report:
    """The outcome for everything in a source."""

    landed: list[str] = field(default_factory=list[str])  # ids of sessions that are new here or were continued
    already: int = 0  # sessions that were here before, unchanged
    replaced: list[str] = field(default_factory=list[str])  # ids of sessions whose old copy was deleted for a new one
    entries: int = 0  # entries written
    problems: list[Problem] = field(default_factory=list[Problem])


class Loader:
    """With `verify` every entry is read back and compared."""

    def __init__(self, store: Store, report: Report, *, verify: bool = False, step: Step | None = None) -> None:
        self.report = report
        self._store = store
        self._verify = verify
        self._step: Step = step or _unseen
        self._looking = asyncio.Semaphore(LOOKED)

    async def load(self, parcels: AsyncIterable[Parcel | Problem]) -> None:
        """Append everything that a source yields. Safe to repeat after an interruption: nothing is written twice."""
        batch: dict[bytes, Parcel] = {}  # by key: a session that comes again continues after what this batch stored
        loading: asyncio.Task[None] | None = None  # one batch is written while the next is read
        try:
            async for item in parcels:
                if isinstance(item, Problem):
                    self.report.problems.append(item)
                    continue
                if len(batch) == TOGETHER or item.row.key in batch:
                    if loading is not None:
                        await loading
                    loading = asyncio.create_task(self._land([*batch.values()]))
                    batch = {}
                batch[item.row.key] = item
                await asyncio.sleep(0)
        finally:
            if loading is not None:
                await loading
        if batch:
            await self._land([*batch.values()])

    async def _land(self, batch: list[Parcel]) -> None:
        heads = await self._store.heads([parcel.row.key for parcel in batch])
        begun = await asyncio.gather(*map(self._begun, batch, heads))
        going = [trip for trip in begun if trip is not None]
        groups = [trip.group() for trip in going]
        verdicts = await self._appended(groups) if groups else []
        again: list[Parcel] = []  # continued by another import meanwhile, or with its id free now
        for trip, first, verdict in zip(going, groups, verdicts, strict=True):
            group = first
            outcome = await self._outcome(first, verdict)
            while outcome in LANDED and await self._landed(trip, group) and await trip.advance():
                group = trip.group()
                [answer] = await self._appended([group])
                outcome = await self._outcome(group, answer)
            if outcome is None or (group.create is not None and await self._replaced(trip.parcel, outcome)):
                again.append(trip.parcel)
                continue
            if isinstance(outcome, Corrupt):
                self._refused(trip.parcel, str(outcome))
            elif outcome not in LANDED:
                self._refused(trip.parcel, REFUSALS.get(outcome, DIFFERS))
            elif trip.lost:
                self._refused(trip.parcel, CHANGED)
            elif trip.done:
                self.report.landed.append(trip.parcel.row.session_id)
        self._step(len(batch) - len(again))
        if again:
            await self._land(again)

    async def _appended(self, groups: list[Group]) -> list[Verdict | Corrupt]:
        """A verdict per group. If one session is damaged in the target store, only that session is refused."""
        try:
            return [*await self._store.append(groups)]
        except Corrupt as exc:
            if len(groups) == 1:
                return [exc]
        verdicts = [(await self._appended([group]))[0] for group in groups]
        refused = [one for one in verdicts if isinstance(one, Corrupt)]
        if len(refused) == len(groups):  # the store is damaged, not the sessions
            raise refused[0]
        return verdicts

    async def _begun(self, parcel: Parcel, head: Head | None) -> _Trip | None:
        """Its first part; None if there is nothing to write, or the session is refused."""
        after = 0 if head is None else head.last.seq
        if head is not None:
            try:
                met = await parcel.met(self._store, head)
            except (InvalidInput, TooLarge, Corrupt, KeyMissing) as exc:
                return self._refused(parcel, f"cannot be continued here ({exc})")
            if met is None:
                if await self._includes(head, parcel):
                    self.report.already += 1
                    return None
                return self._refused(parcel, await self._damage(parcel, parcel.last) or DIFFERS)
            parcel = met
            if after == parcel.last:
                self.report.already += 1
                return None
        if (damage := await self._damage(parcel, after)) is not None:
            return self._refused(parcel, damage)
        trip = _Trip(parcel, after, None if head is None else head.last.append_id)
        return trip if await trip.advance() else self._refused(parcel, CHANGED)

    async def _includes(self, head: Head, parcel: Parcel) -> bool:
        """True if the session here is the parcel's, and went on after it."""
        last = parcel.last
        if last >= head.last.seq:
            return False
        then = await self._store.entries(head.row.key, Wanted([(last, last)], frames=False))
        met = await parcel.met(self._store, Head(head.row, then[0])) if then else None
        return met is not None and met.last == last  # otherwise it changed over there, too

    async def _damage(self, parcel: Parcel, after: int) -> str | None:
        async with self._looking:
            damage = await parcel.damage(after)
        return damage and DAMAGED.format(damage)

    async def _outcome(self, group: Group, verdict: Verdict | Corrupt) -> Outcome | Corrupt | None:
        """The verdict. MISSING if the session was written before and deleted since; None if another import has just
        written it, and got less far, further, or elsewhere.
        """
        if isinstance(verdict, Corrupt) or verdict.outcome is not Outcome.ALREADY:
            return verdict if isinstance(verdict, Corrupt) else verdict.outcome
        [head] = await self._store.heads([group.key])
        if head is None:
            return Outcome.MISSING
        return Outcome.ALREADY if head.last.append_id == group.entries[-1].append_id else None

    async def _replaced(self, parcel: Parcel, outcome: Outcome | Corrupt) -> bool:
        """Delete the session that has this id here, if it is a copy of one that the source deleted: True if done."""
        row = parcel.row
        if outcome is not Outcome.CONFLICT:
            return False
        [head] = await self._store.heads([(row.namespace, row.session_id)])
        groups = [] if head is None else await parcel.deletion(head)
        for group in groups:
            [verdict] = await self._appended([group])
            if isinstance(verdict, Corrupt) or verdict.outcome not in LANDED:
                return False
            self.report.entries += len(group.entries)
        if groups:
            self.report.replaced.append(row.session_id)
        return bool(groups)

    async def _landed(self, trip: _Trip, group: Group) -> bool:
        """Count what was written; with `verify`, read it back and compare."""
        self.report.entries += len(group.entries)
        if not self._verify:
            return True
        first, last = group.entries[0].seq, group.entries[-1].seq
        entries = await self._store.entries(group.key, Wanted([(first, last)]))
        if list(map(_essence, entries)) == list(map(_essence, group.entries)):
            return True
        trip.done = False
        head = (await self._store.heads([group.key]))[0]
        reason = "what was read back differs from what was written" if head is not None else REFUSALS[Outcome.MISSING]
        self._refused(trip.parcel, reason)
        return False

    def _refused(self, parcel: Parcel, reason: str) -> None:
        self.report.problems.append(Problem(f"session {parcel.row.session_id}", reason))


def _unseen(_: int) -> None:
    """No progress is wanted."""


class _Trip:
    """A parcel being written: the current part, and the entry it follows."""

    def __init__(self, parcel: Parcel, after: int, prev: bytes | None) -> None:
        self.parcel = parcel
        self.done = False
        self.lost = False  # the next part is gone from the source
        self._after, self._prev = after, prev
        self._parts: AsyncIterator[list[Entry]] = parcel.parts(after)
        self._part: list[Entry] = []

    async def advance(self) -> bool:
        """Read the next part; False if there is none."""
        if self.done:
            return False
        if self._part:
            self._after, self._prev = self._part[-1].seq, self._part[-1].append_id
        part = await anext(self._parts, None) or []
        self.lost = not part or [entry.seq for entry in part] != [*range(self._after + 1, part[-1].seq + 1)]
        if self.lost:
            return False
        self._part = part
        self.done = part[-1].seq == self.parcel.last
        return True

    def group(self) -> Group:
        """The part as a group. Until the last one is written the session is paused: no worker takes half a log."""
        row, entries = self.parcel.row, self._part
        if self._prev is None:
            state = row.state if self.done else "paused"
            created = msgspec.structs.replace(row, state=state, fence=entries[-1].fence, labels=dict(row.labels))
            return Group(row.key, None, entries, create=created)
        group = Group(row.key, self._prev, entries)
        if self.done:
            group.state, group.body, group.labels = row.state, row.body, dict(row.labels)
        return group


def _essence(entry: Entry) -> Entry:
    """What a copy shares with its original: all but heartbeats and ownership."""
    return msgspec.structs.replace(entry, alive=0, lease=None, sign=False, size=0, labels={})
