"""Events: no gap, no repeat, in commit order."""

from __future__ import annotations

import asyncio
from datetime import UTC

import pytest

from saveslot.errors import InvalidInput
from saveslot.stores import Store
from saveslot.testing.conformance.desk import PATIENCE, Desk, Suite, on_a_desk
from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Event, moment


class Watching(Suite):
    # Events

    @on_a_desk
    async def test_events_returns_what_was_appended(self, desk: Desk) -> None:
        """From now on, in order, each with the cursor to continue after it, through any handle."""
        await desk.create("before")
        _, cursor = await desk.store.events(desk.namespace, None)
        pen = await desk.create("a")
        group = pen.group(2, Kind.PAUSED, name="Päuse", at=1_700_000_000_000_001)
        await desk.land(pen, group)
        events, end = await desk.other.events(desk.namespace, cursor)
        assert [(event.session_id, event.seq, event.kind, event.name) for event in events] == [
            ("a", 1, "created", "session_created"),
            ("a", 2, "paused", "Päuse"),
            ("a", 3, "paused", "Päuse"),
        ]
        assert [event.timestamp for event in events] == [moment(desk.clock()), *[moment(1_700_000_000_000_001)] * 2]
        assert events[0].timestamp.tzinfo is UTC
        assert await desk.store.events(desk.namespace, end) == ([], end)
        for n, event in enumerate(events):
            assert (await desk.store.events(desk.namespace, event.cursor))[0] == events[n + 1 :]

    @on_a_desk
    async def test_events_come_in_pages(self, desk: Desk) -> None:
        """A small limit loses nothing, even with other namespaces' entries between: only an empty page is the end."""
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
        """With a key only that session's entries are returned, and the cursor moves past the others."""
        _, cursor = await desk.store.events(desk.namespace, None)
        one, two = await desk.create("a"), await desk.create("b")
        await desk.write(two, 3)
        await desk.write(one, 2)
        await desk.write(two, 2)
        events, end = await desk.other.events(desk.namespace, cursor, one.key)
        assert [(event.session_id, event.seq) for event in events] == [("a", 1), ("a", 2), ("a", 3)]
        await desk.write(one)
        events, _ = await desk.other.events(desk.namespace, end, one.key)
        assert [event.seq for event in events] == [4]
        seen: list[int] = []
        while len(seen) < two.seq:
            events, cursor = await desk.other.events(desk.namespace, cursor, two.key, limit=2)
            assert events
            seen += [event.seq for event in events]
        assert seen == [1, 2, 3, 4, 5, 6]

    @on_a_desk
    async def test_events_of_one_session_after_a_seq(self, desk: Desk) -> None:
        """With a key `@n` continues after entry n, whatever others wrote, and the cursor that is returned after it."""
        one = await desk.create("a", count=3)
        other = await desk.create("b", count=5)
        for seq in range(5):
            events, cursor = await desk.other.events(desk.namespace, f"@{seq}", one.key)
            assert [event.seq for event in events] == [*range(seq + 1, 4)]
            assert (await desk.store.events(desk.namespace, cursor, one.key))[0] == []
        _, start = await desk.store.events(desk.namespace, "@3", one.key)
        await desk.write(other, 3)
        await desk.write(one)
        events, cursor = await desk.other.events(desk.namespace, start, one.key)
        assert [(event.session_id, event.seq) for event in events] == [("a", 4)]
        assert cursor == events[0].cursor
        assert await desk.other.events(desk.namespace, "@0", Pen(desk.namespace, "none").key) == ([], "@0")
        _, start = await desk.store.events(desk.namespace, None, one.key)
        await desk.write(other)
        await desk.write(one)
        events, _ = await desk.store.events(desk.namespace, start, one.key)
        assert [event.seq for event in events] == [5]

    @on_a_desk
    async def test_flood_of_another_session_does_not_reach_a_watch(self, desk: Desk) -> None:
        """While others write thousands of entries, a watch of one session gets its own, each once."""
        quiet, loud = await desk.create("quiet"), await desk.create("loud")
        _, cursor = await desk.other.events(desk.namespace, None, quiet.key)
        seen: list[int] = []

        async def watch() -> None:
            place = cursor
            while len(seen) < 10:
                page, place = await desk.other.events(desk.namespace, place, quiet.key, limit=3, wait=PATIENCE)
                seen.extend(event.seq for event in page)

        watching = asyncio.create_task(watch())
        for _ in range(10):
            for _ in range(10):
                await desk.land(loud, loud.group(10))
            await desk.write(quiet)
        await watching
        assert seen == [*range(2, 12)]

    @on_a_desk
    async def test_events_after_a_purge(self, desk: Desk) -> None:
        """A purge removes its session's events only; later entries come after every cursor."""
        _, start = await desk.store.events(desk.namespace, None)
        keep, drop = await desk.create("keep"), await desk.create("drop")
        await desk.delete(drop)
        _, cursor = await desk.store.events(desk.namespace, None)
        await desk.store.purge([drop.key])
        events, _ = await desk.other.events(desk.namespace, start)
        assert [(event.session_id, event.seq) for event in events] == [("keep", 1)]
        await desk.write(keep)
        events, cursor = await desk.other.events(desk.namespace, cursor)
        assert [(event.session_id, event.seq) for event in events] == [("keep", 2)]
        assert (await desk.other.events(desk.namespace, cursor))[0] == []

    @on_a_desk
    async def test_no_gap_and_no_repeat_under_racing_commits(self, desk: Desk) -> None:
        """Readers on both handles get every entry of racing writers exactly once, in one order, in pages."""
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
    async def test_an_append_wakes_a_waiting_events_call(self, desk: Desk) -> None:
        """An append through either handle wakes it, long before `wait` is over."""
        pen = await desk.create()
        _, cursor = await desk.store.events(desk.namespace, None)
        for on in (desk.store, desk.other):
            watching = asyncio.create_task(desk.store.events(desk.namespace, cursor, pen.key, wait=10 * PATIENCE))
            await asyncio.sleep(0)
            await desk.land(pen, pen.group(), on)
            events, cursor = await watching
            assert [event.seq for event in events] == [pen.seq]

    @on_a_desk
    async def test_events_returns_empty_after_wait(self, desk: Desk) -> None:
        """Without new entries the call returns an empty list after `wait`, and its cursor still works."""
        pen = await desk.create()
        events, cursor = await desk.store.events(desk.namespace, None, wait=0.02)
        assert events == []
        await desk.write(pen)
        assert len((await desk.store.events(desk.namespace, cursor))[0]) == 1

    @on_a_desk
    async def test_an_invalid_cursor_is_refused(self, desk: Desk) -> None:
        """A text that is not a cursor raises InvalidInput."""
        for wrong in ("no cursor", "", "-5", " 1", "1_0", "9" * 40, "1:", "1:zz:1", "1::-1", "@", "@-1", "@1"):
            with pytest.raises(InvalidInput, match="after"):
                await desk.store.events(desk.namespace, wrong)
