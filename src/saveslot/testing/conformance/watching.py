"""Events: no gap, no repeat, in commit order."""

from __future__ import annotations

import asyncio
from datetime import UTC

import pytest

from saveslot.errors import InvalidInput
from saveslot.log import Event, moment
from saveslot.model import Kind
from saveslot.stores import Store
from saveslot.testing.conformance.desk import PATIENCE, Desk, Suite, on_a_desk
from saveslot.testing.pen import Pen


class Watching(Suite):
    # Events

    @on_a_desk
    async def test_events_tell_what_was_appended(self, desk: Desk) -> None:
        """From now on, in order, each with the cursor to go on behind it, through any handle."""
        await desk.create("before")
        _, cursor = await desk.store.events(desk.namespace, None)
        pen = await desk.create("a")
        group = pen.group(2, Kind.PAUSED, name="Päuse", at=1_700_000_000_000_001)
        await desk.land(pen, group)
        found, end = await desk.other.events(desk.namespace, cursor)
        assert [(event.session_id, event.seq, event.kind, event.name) for event in found] == [
            ("a", 1, "created", "session_created"),
            ("a", 2, "paused", "Päuse"),
            ("a", 3, "paused", "Päuse"),
        ]
        assert [event.timestamp for event in found] == [moment(desk.clock()), *[moment(1_700_000_000_000_001)] * 2]
        assert found[0].timestamp.tzinfo is UTC
        assert await desk.store.events(desk.namespace, end) == ([], end)
        for n, event in enumerate(found):
            assert (await desk.store.events(desk.namespace, event.cursor))[0] == found[n + 1 :]

    @on_a_desk
    async def test_events_come_in_pages(self, desk: Desk) -> None:
        """A small limit loses nothing, though others' entries lie between: only an empty page means the end."""
        _, cursor = await desk.store.events(desk.namespace, None)
        pen, foreign = await desk.create("a"), await desk.create("a", namespace=f"{desk.namespace}-foreign")
        for n in range(6):
            await desk.write(foreign, 1 + n)
            await desk.write(pen)
        for limit in (1, 2, 3, 100):
            seen: list[int] = []
            place = cursor
            while True:
                page, place = await desk.other.events(desk.namespace, place, limit=limit)
                assert len(page) <= limit
                seen += [event.seq for event in page]
                if not page:
                    break
            assert seen == [1, 2, 3, 4, 5, 6, 7]

    @on_a_desk
    async def test_events_of_one_session(self, desk: Desk) -> None:
        """With a key only that session's entries come, and the cursor moves past the others'."""
        _, cursor = await desk.store.events(desk.namespace, None)
        one, two = await desk.create("a"), await desk.create("b")
        await desk.write(two, 3)
        await desk.write(one, 2)
        await desk.write(two, 2)
        found, end = await desk.other.events(desk.namespace, cursor, one.key)
        assert [(event.session_id, event.seq) for event in found] == [("a", 1), ("a", 2), ("a", 3)]
        await desk.write(one)
        found, _ = await desk.other.events(desk.namespace, end, one.key)
        assert [event.seq for event in found] == [4]
        seen: list[int] = []
        while len(seen) < two.seq:
            found, cursor = await desk.other.events(desk.namespace, cursor, two.key, limit=2)
            assert found
            seen += [event.seq for event in found]
        assert seen == [1, 2, 3, 4, 5, 6]

    @on_a_desk
    async def test_events_after_a_purge(self, desk: Desk) -> None:
        """A purge takes its session's events away and no others; what is appended later comes behind every cursor."""
        _, start = await desk.store.events(desk.namespace, None)
        keep, drop = await desk.create("keep"), await desk.create("drop")
        await desk.delete(drop)
        _, cursor = await desk.store.events(desk.namespace, None)
        await desk.store.purge([drop.key])
        found, _ = await desk.other.events(desk.namespace, start)
        assert [(event.session_id, event.seq) for event in found] == [("keep", 1)]
        await desk.write(keep)
        found, cursor = await desk.other.events(desk.namespace, cursor)
        assert [(event.session_id, event.seq) for event in found] == [("keep", 2)]
        assert (await desk.other.events(desk.namespace, cursor))[0] == []

    @on_a_desk
    async def test_no_gap_and_no_repeat_under_racing_commits(self, desk: Desk) -> None:
        """Watchers on both handles see every entry of racing writers exactly once, in one order, in their pages."""
        pens = [await desk.create(f"s{n}") for n in range(8)]
        _, cursor = await desk.store.events(desk.namespace, None)
        turns = 25

        async def write(pen: Pen, on: Store) -> None:
            for turn in range(turns):
                await desk.land(pen, pen.group(1 + turn % 2), on)

        async def watch(on: Store, limit: int) -> list[tuple[str, int]]:
            seen: list[Event] = []
            place = cursor
            while len(seen) < len(pens) * (turns + turns // 2):
                page, place = await on.events(desk.namespace, place, limit=limit, wait=PATIENCE)
                seen += page
            page, _ = await on.events(desk.namespace, place)
            return [(event.session_id, event.seq) for event in [*seen, *page]]

        watchers = [asyncio.create_task(watch(on, limit)) for on in (desk.store, desk.other) for limit in (3, 500)]
        handles = [desk.store, desk.other] * (len(pens) // 2)
        await asyncio.gather(*(write(pen, on) for pen, on in zip(pens, handles, strict=True)))
        first, *others = await asyncio.gather(*watchers)
        for pen in pens:
            assert [seq for name, seq in first if name == pen.session_id] == [*range(2, pen.seq + 1)]
        assert len(first) == len(set(first))
        assert all(other == first for other in others)

    @on_a_desk
    async def test_waiting_ends_with_the_next_entry(self, desk: Desk) -> None:
        """Who waits for events is woken by an append through its own handle or another, long before the time is up."""
        pen = await desk.create()
        _, cursor = await desk.store.events(desk.namespace, None)
        for on in (desk.store, desk.other):
            watching = asyncio.create_task(desk.store.events(desk.namespace, cursor, pen.key, wait=10 * PATIENCE))
            await asyncio.sleep(0)
            await desk.land(pen, pen.group(), on)
            found, cursor = await watching
            assert [event.seq for event in found] == [pen.seq]

    @on_a_desk
    async def test_waiting_ends_when_the_time_is_up(self, desk: Desk) -> None:
        """With nothing to tell, waiting ends empty, and the cursor still works."""
        pen = await desk.create()
        found, cursor = await desk.store.events(desk.namespace, None, wait=0.02)
        assert found == []
        await desk.write(pen)
        assert len((await desk.store.events(desk.namespace, cursor))[0]) == 1

    @on_a_desk
    async def test_a_cursor_of_nobodys_is_refused(self, desk: Desk) -> None:
        """What is no cursor is refused as input, not taken for a place."""
        for wrong in ("no cursor", "", "-5", " 1", "1_0", "9" * 40, "1:", "1:zz:1", "1::-1"):
            with pytest.raises(InvalidInput, match="after"):
                await desk.store.events(desk.namespace, wrong)
