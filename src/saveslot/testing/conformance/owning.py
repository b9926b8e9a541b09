"""Who holds a session, and who may take it."""

from __future__ import annotations

from saveslot.model import Kind
from saveslot.testing.conformance.desk import CONFLICT, FENCED, Desk, Suite, on_a_desk, spots


class Owning(Suite):
    # Who holds it

    @on_a_desk
    async def test_taking_over_fences_the_former_owner(self, desk: Desk) -> None:
        """A takeover is an entry with a new lease; the former owner's next entry is fenced and nothing of it lands."""
        first = await desk.create()
        await desk.land(first, first.take_over())
        await desk.write(first)
        second = first.copy()
        await desk.land(second, second.take_over(), on=desk.other)
        row = (await desk.head(second)).row
        assert (row.fence, row.lease) == (2, second.lease)
        verdict = await desk.send(first.group(2))
        assert verdict.outcome is FENCED
        assert verdict.head is not None
        assert spots([verdict.head]) == [(second.seq, second.prev)]
        await desk.write(second)
        assert (await desk.send(first.group())).outcome is FENCED
        assert [entry.seq for entry in await desk.log(second)] == [1, 2, 3, 4, 5]

    @on_a_desk
    async def test_another_lease_of_the_same_number_is_fenced(self, desk: Desk) -> None:
        """After a failover two leases may carry the same number; the random id tells them apart."""
        first = await desk.create()
        second = first.copy()
        await desk.land(first, first.take_over())
        second.fence, second.lease = first.fence, b"other lease".ljust(16)
        verdict = await desk.send(second.group())
        assert verdict.outcome is FENCED

    @on_a_desk
    async def test_anothers_entry_under_my_lease_is_a_conflict(self, desk: Desk) -> None:
        """Who still holds the session and missed an entry has a conflict, and is not fenced."""
        holder = await desk.create()
        await desk.land(holder, holder.take_over())
        someone = holder.copy()
        await desk.land(someone, someone.group(kind=Kind.PAUSED, whole={"state": "paused"}))
        assert (await desk.send(holder.group())).outcome is CONFLICT

    @on_a_desk
    async def test_letting_go_clears_the_lease(self, desk: Desk) -> None:
        """An entry without lease frees the session, wherever it stands in its group; the fence stays."""
        pen = await desk.create()
        await desk.land(pen, pen.take_over())
        holder = pen.copy()
        group = pen.group(2, Kind.COMPLETED, lease=None)
        group.entries[1].kind = Kind.CHECKPOINT
        await desk.land(pen, group)
        row = (await desk.head(pen)).row
        assert (row.fence, row.lease) == (1, None)
        assert (await desk.send(holder.group())).outcome is FENCED
