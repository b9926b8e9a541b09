"""Bringing parcels into a store: each session is continued where it stands, and whole when it is told as landed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from saveslot.errors import Corrupt, InvalidInput, KeyMissing, TooLarge
from saveslot.log import Entry, Group, Head, Outcome, Verdict
from saveslot.moving.parcel import Parcel, Problem
from saveslot.stores import Store

# So many sessions land in one commit.
TOGETHER = 256
LANDED = frozenset({Outcome.APPENDED, Outcome.ALREADY})
REFUSALS = {
    Outcome.CONFLICT: "another session has this id here; delete that one, or import this one under another id (--as)",
    Outcome.MISSING: "it was here and was deleted; import it under another id (--as)",
}
DIFFERS = "is here already with another history; it was left as it is"
DAMAGED = "{}; nothing was copied, saveslot doctor tells what of it is sound"
CHANGED = "was removed from its source meanwhile, or changed there; run it again"
# So many sessions are looked through at a time: of each all headers are in memory then.
LOOKED = 16

Step = Callable[[int], None]  # told how many more are done


@dataclass
class Report:
    """What became of everything that a source held."""

    landed: list[str] = field(default_factory=list[str])  # new here, or continued
    already: int = 0  # were here before, the same
    entries: int = 0  # written
    problems: list[Problem] = field(default_factory=list[Problem])


class Landing:
    """With `verify` every entry is read back and compared."""

    def __init__(self, store: Store, report: Report, *, verify: bool = False, step: Step | None = None) -> None:
        self.report = report
        self._store = store
        self._verify = verify
        self._step: Step = step or _unseen
        self._looking = asyncio.Semaphore(LOOKED)

    async def take(self, found: AsyncIterable[Parcel | Problem]) -> None:
        """Land all that a source yields. Interrupted, it can be run again: what is here is not written twice."""
        batch: list[Parcel] = []
        landing: asyncio.Task[None] | None = None  # one batch lands while the next is made
        try:
            async for item in found:
                if isinstance(item, Problem):
                    self.report.problems.append(item)
                    continue
                batch.append(item)
                if len(batch) == TOGETHER:
                    if landing is not None:
                        await landing
                    landing = asyncio.create_task(self._land(batch))
                    batch = []
                await asyncio.sleep(0)
        finally:
            if landing is not None:
                await landing
        if batch:
            await self._land(batch)

    async def _land(self, batch: list[Parcel]) -> None:
        heads = await self._store.heads([parcel.row.key for parcel in batch])
        begun = await asyncio.gather(*map(self._begun, batch, heads))
        going = [trip for trip in begun if trip is not None]
        groups = [trip.group() for trip in going]
        verdicts = await self._appended(groups) if groups else []
        for trip, first, verdict in zip(going, groups, verdicts, strict=True):
            group = first
            outcome = verdict if isinstance(verdict, Corrupt) else await self._told(first, verdict)
            while outcome in LANDED and await self._landed(trip, group) and await trip.advance():
                group = trip.group()
                [told] = await self._appended([group])
                outcome = told if isinstance(told, Corrupt) else told.outcome
            if isinstance(outcome, Corrupt):
                self._refused(trip.parcel, str(outcome))
            elif outcome not in LANDED:
                self._refused(trip.parcel, REFUSALS.get(outcome, DIFFERS))
            elif trip.lost:
                self._refused(trip.parcel, CHANGED)
            elif trip.done:
                self.report.landed.append(trip.parcel.row.session_id)
        self._step(len(batch))

    async def _appended(self, groups: list[Group]) -> list[Verdict | Corrupt]:
        """A verdict each. Where one session is damaged over there, it alone is refused."""
        try:
            return [*await self._store.append(groups)]
        except Corrupt as exc:
            if len(groups) == 1:
                return [exc]
        found = [(await self._appended([group]))[0] for group in groups]
        refused = [one for one in found if isinstance(one, Corrupt)]
        if len(refused) == len(groups):  # it is not the sessions
            raise refused[0]
        return found

    async def _begun(self, parcel: Parcel, head: Head | None) -> _Trip | None:
        """Its first part; None when there is nothing to do, or nothing that may be done."""
        behind = 0 if head is None else head.last.seq
        if head is not None:
            try:
                met = await parcel.met(self._store, head)
            except (InvalidInput, TooLarge, Corrupt, KeyMissing) as exc:
                return self._refused(parcel, f"cannot be continued here ({exc})")
            if met is None:
                return self._refused(parcel, await self._damage(parcel, parcel.last) or DIFFERS)
            parcel = met
            if behind == parcel.last:
                self.report.already += 1
                return None
        if (damage := await self._damage(parcel, behind)) is not None:
            return self._refused(parcel, damage)
        trip = _Trip(parcel, behind, None if head is None else head.last.append_id)
        return trip if await trip.advance() else self._refused(parcel, CHANGED)

    async def _damage(self, parcel: Parcel, behind: int) -> str | None:
        async with self._looking:
            damage = await parcel.damage(behind)
        return damage and DAMAGED.format(damage)

    async def _told(self, group: Group, verdict: Verdict) -> Outcome:
        """The verdict; one that landed before and cannot be seen was deleted since."""
        if group.create is not None and verdict.outcome is Outcome.ALREADY:
            [head] = await self._store.heads([group.key])
            return Outcome.ALREADY if head is not None else Outcome.MISSING
        return verdict.outcome

    async def _landed(self, trip: _Trip, group: Group) -> bool:
        """Count what landed; with `verify`, see that it did, as it was."""
        self.report.entries += len(group.entries)
        if not self._verify:
            return True
        first, last = group.entries[0].seq, group.entries[-1].seq
        found = await self._store.entries(group.key, [(first, last)])
        if list(map(_essence, found)) == list(map(_essence, group.entries)):
            return True
        trip.done = False
        head = (await self._store.heads([group.key]))[0]
        reason = "what was read back is not what was written" if head is not None else REFUSALS[Outcome.MISSING]
        self._refused(trip.parcel, reason)
        return False

    def _refused(self, parcel: Parcel, reason: str) -> None:
        self.report.problems.append(Problem(f"session {parcel.row.session_id}", reason))


def _unseen(_: int) -> None:
    """Nobody looks."""


class _Trip:
    """A parcel under way: the part at hand, and what it stands behind."""

    def __init__(self, parcel: Parcel, behind: int, prev: bytes | None) -> None:
        self.parcel = parcel
        self.done = False
        self.lost = False  # the next part is not there any more
        self._behind, self._prev = behind, prev
        self._parts: AsyncIterator[list[Entry]] = parcel.parts(behind)
        self._part: list[Entry] = []

    async def advance(self) -> bool:
        """The next part, if there is one."""
        if self.done:
            return False
        if self._part:
            self._behind, self._prev = self._part[-1].seq, self._part[-1].append_id
        part = await anext(self._parts, None) or []
        self.lost = not part or [entry.seq for entry in part] != [*range(self._behind + 1, part[-1].seq + 1)]
        if self.lost:
            return False
        self._part = part
        self.done = part[-1].seq == self.parcel.last
        return True

    def group(self) -> Group:
        """Until its last part has landed a session is paused here: nobody takes up what is not whole."""
        row, entries = self.parcel.row, self._part
        if self._prev is None:
            state = row.state if self.done else "paused"
            made = msgspec.structs.replace(row, state=state, fence=entries[-1].fence, labels=dict(row.labels))
            return Group(row.key, None, entries, create=made)
        group = Group(row.key, self._prev, entries)
        if self.done:
            group.state, group.body, group.labels = row.state, row.body, dict(row.labels)
        return group


def _essence(entry: Entry) -> Entry:
    """What a copy must have in common with the original: all but signs of life, and who holds it."""
    return msgspec.structs.replace(entry, alive=0, lease=None, sign=False, size=0)
