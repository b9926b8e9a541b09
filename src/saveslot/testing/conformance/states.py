"""The newest state of a session: `heads(state=True)`."""

from __future__ import annotations

import asyncio

from saveslot.testing.conformance.desk import Desk, Suite, on_a_desk
from saveslot.testing.pen import Pen
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import Entry, Group, Head, Wanted
from saveslot.values.recipe import Recipe


def recipe(first: int, last: int, seq: int | None = None) -> bytes:
    """Of a state rebuilt from a keyframe and the short patches right after it, in entry `seq`, or else the last one."""
    ranges = ((first + 1, last),) if last > first else ()
    return Recipe(first, ranges, last - first, 9, 9, 9).pack(last if seq is None else seq)


def saved(pen: Pen, first: int, count: int = 1) -> Group:
    """The next checkpoints, of states whose keyframe is entry `first`."""
    group = pen.group(count)
    for entry in group.entries:
        entry.data_seq, entry.recipe, entry.digest = entry.seq, recipe(first, entry.seq), b"%032d" % entry.seq
        entry.base = first if entry.seq > first else 0
    return group


def facts(entries: list[Entry]) -> list[tuple[int, Kind, bytes, bytes | None]]:
    """What `Head.frames` has of each entry."""
    return [(entry.seq, entry.kind, entry.digest, entry.frame) for entry in entries if entry.frame is not None]


class States(Suite):
    async def state(self, desk: Desk, pen: Pen) -> Head:
        """Through both handles: the head with its state, checked against what the log holds."""
        [head], [plain] = await desk.store.heads([pen.key], state=True), await desk.other.heads([pen.key])
        assert head is not None
        assert plain is not None
        assert (plain.data, plain.frames) == (None, None)
        assert (head.row, head.last) == (plain.row, plain.last)
        for [result] in (
            await desk.other.heads([pen.key], state=True),
            await desk.store.heads([(pen.namespace, pen.session_id)], state=True),
        ):
            assert result is not None
            assert (result.row, result.last, result.data) == (head.row, head.last, head.data)
            if result.data is not None and result.frames is not None:
                named = Recipe.unpack(result.data.recipe, result.data.seq)
                wanted = Wanted(named.ranges, kinds=DATA_KINDS, chain=named.base)
                stored = await desk.other.entries(pen.key, wanted)
                assert facts(result.frames) == facts(stored)
        return head

    @on_a_desk
    async def test_state_is_the_newest_data(self, desk: Desk) -> None:
        """The header of the entry with the newest data comes with the head, whether it is the newest entry or not."""
        pen = await desk.create()
        assert (await self.state(desk, pen)).data is None
        for _ in range(3):
            await desk.land(pen, saved(pen, 2))
            head = await self.state(desk, pen)
            assert head.data == head.last
        step = pen.group(2, Kind.STEP_FINISHED, data_seq=4, frame=b"a step's result", note=b"note")
        await desk.land(pen, step, on=desk.other)
        head = await self.state(desk, pen)
        [entry] = await desk.log(pen, ranges=[(4, 4)], frames=False)
        assert (head.last.seq, head.data) == (6, entry)

    @on_a_desk
    async def test_state_of_a_rollback_is_the_older_one(self, desk: Desk) -> None:
        """A rollback has an older entry's recipe and no frame of its own."""
        pen = await desk.create()
        await desk.land(pen, saved(pen, 2, 5))
        back = pen.group(kind=Kind.ROLLBACK, frame=None, data_seq=7, recipe=recipe(2, 4, 7), digest=b"%032d" % 4)
        await desk.land(pen, back)
        head = await self.state(desk, pen)
        assert head.data is not None
        assert (head.data.seq, head.data.recipe) == (7, recipe(2, 4, 7))
        await desk.land(pen, saved(pen, 8))
        await self.state(desk, pen)

    @on_a_desk
    async def test_cleared_session_has_no_state(self, desk: Desk) -> None:
        """An entry whose `data_seq` is 0 leaves no data, also after the frames before it were emptied."""
        pen = await desk.create()
        await desk.land(pen, saved(pen, 2, 3))
        await self.state(desk, pen)
        await desk.write(pen, kind=Kind.CLEARED, frame=None)
        assert (await self.state(desk, pen)).data is None
        await desk.store.empty(pen.key, [2, 3, 4])
        assert (await self.state(desk, pen)).data is None
        await desk.land(pen, saved(pen, 6))
        await self.state(desk, pen)

    @on_a_desk
    async def test_states_of_many(self, desk: Desk) -> None:
        """Each ref gets its own state, by key or by id; unknown and deleted sessions have none."""
        pens = [await desk.create(f"s{n}") for n in range(5)]
        for n, pen in enumerate(pens):
            await desk.land(pen, saved(pen, 2, n + 1))
            await self.state(desk, pen)
        await desk.delete(pens[3])
        refs = [pens[4].key, (desk.namespace, "s1"), (desk.namespace, "nobody"), pens[3].key, pens[0].key]
        heads = await desk.other.heads(refs, state=True)
        assert [head and head.data and head.data.seq for head in heads] == [6, 3, None, None, 2]
        assert await desk.other.heads([], state=True) == []

    @on_a_desk
    async def test_recreated_session_has_its_own_state(self, desk: Desk) -> None:
        """Nothing of a deleted session's state is shown for the next one with its id."""
        old = await desk.create()
        await desk.land(old, saved(old, 2, 3))
        await self.state(desk, old)
        await desk.delete(old)
        new = await desk.create()
        await desk.land(new, saved(new, 2, 3))
        await self.state(desk, new)
        assert await desk.store.purge([old.key]) == [5]
        await self.state(desk, new)

    @on_a_desk
    async def test_state_is_of_one_moment(self, desk: Desk) -> None:
        """`data` is the entry that the newest one names, while others append."""
        pen = await desk.create()
        await desk.land(pen, saved(pen, 2))
        over = False

        async def write() -> None:
            while not over:
                await desk.land(pen, saved(pen, pen.seq + 1))

        writing = asyncio.create_task(write())
        try:
            for _ in range(50):
                for store in (desk.store, desk.other):
                    [head] = await store.heads([(desk.namespace, "a")], state=True)
                    assert head is not None
                    assert head.data is not None
                    assert head.data.seq == head.last.data_seq
                    if head.frames is not None:
                        assert [entry.seq for entry in head.frames if entry.frame is not None] == [head.data.seq]
        finally:
            over = True
            await writing
