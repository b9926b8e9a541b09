"""Appends: what lands, what is refused, and what a retry returns."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from saveslot.testing.conformance.desk import (
    ALREADY,
    APPENDED,
    CONFLICT,
    LOST,
    MISSING,
    PATIENCE,
    Desk,
    Suite,
    on_a_desk,
    spots,
)
from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Group, Query, Row, Verdict


class Appending(Suite):
    # Appending

    @on_a_desk
    async def test_entries_returns_every_field_as_appended(self, desk: Desk) -> None:
        """The store adds only the time, the sign of life and the size."""
        pen = await desk.create()
        sent = Entry(
            seq=2, append_id=b"A" * 16, kind=Kind.ROLLBACK, name="Näme 🌱", at=1_234_567_890_123_456, sign=True,
            fence=3, lease=b"L" * 16, data_seq=2, about_seq=1, recipe=b"\x00r\xff", digest=b"d" * 32,
            note=b"\x00note", frame=b"\x00frame\xff", request=b"R" * 32, base=1,
        )  # fmt: skip
        await desk.land(pen, Group(pen.key, pen.prev, [sent]))
        (kept,) = await desk.log(pen, ranges=[(2, 2)])
        assert kept == Entry(
            seq=2, append_id=b"A" * 16, kind=Kind.ROLLBACK, name="Näme 🌱", at=1_234_567_890_123_456,
            alive=desk.clock(), fence=3, lease=b"L" * 16, data_seq=2, about_seq=1, recipe=b"\x00r\xff",
            digest=b"d" * 32, note=b"\x00note", frame=b"\x00frame\xff", size=12, request=b"R" * 32, base=1,
        )  # fmt: skip
        assert isinstance(kept.kind, Kind)

    @on_a_desk
    async def test_none_and_empty_frames_and_notes_differ(self, desk: Desk) -> None:
        """None and b"" are different values, for frames and for notes."""
        pen = await desk.create()
        for frame, note in [(None, None), (b"", None), (None, b""), (b"", b"")]:
            await desk.write(pen, frame=frame, note=note)
        entries = await desk.log(pen, ranges=[(2, 5)])
        assert [(entry.frame, entry.note) for entry in entries] == [(None, None), (b"", None), (None, b""), (b"", b"")]
        assert [entry.size for entry in entries] == [0, 0, 0, 0]

    @on_a_desk
    async def test_append_dates_entries_without_a_time(self, desk: Desk) -> None:
        """No time: the store's. A negative time: that much before the store's. A time: kept. The verdict returns it."""
        pen = await desk.create()
        group = pen.group(3)
        group.entries[1].at, group.entries[2].at = 77, -88
        verdict = await desk.land(pen, group)
        assert verdict.times == [desk.clock(), 77, desk.clock() - 88]
        assert [entry.at for entry in await desk.log(pen, ranges=[(2, 4)])] == verdict.times
        again = await desk.send(group, on=desk.other)
        assert (again.outcome, again.times) == (ALREADY, verdict.times)

    @on_a_desk
    async def test_create_stores_the_given_row(self, desk: Desk) -> None:
        """`heads` and `find` return the row given at creation, by key and by id, through any handle."""
        values: dict[str, Any] = {"agent_type": "researcher", "user_id": "u-1", "state": "paused", "body": b"\x00body"}
        pen = await desk.create("s-1", **values, created_at=5, heartbeat=6, labels={"a": "1"})
        expected = Row(pen.key, desk.namespace, "s-1", **values, created_at=5, heartbeat=6, labels={"a": "1"})
        expected.now = desk.clock()
        by_key, by_id = await desk.other.heads([pen.key, (desk.namespace, "s-1")])
        assert by_key is not None
        assert by_key == by_id
        assert by_key.row == expected
        assert (by_key.last.seq, by_key.last.append_id, by_key.last.frame) == (1, pen.prev, None)
        assert await desk.other.find(Query(namespace=desk.namespace)) == [expected]

    @on_a_desk
    async def test_create_dates_a_row_without_times(self, desk: Desk) -> None:
        """created_at and heartbeat default to the store's clock; the verdict returns the heartbeat."""
        pen = Pen(desk.namespace, "a")
        verdict = await desk.land(pen, pen.begin())
        row = (await desk.head(pen)).row
        assert (row.created_at, row.heartbeat, verdict.heartbeat) == (desk.clock(), desk.clock(), desk.clock())

    @on_a_desk
    async def test_two_handles_append_in_turns_without_a_gap(self, desk: Desk) -> None:
        """Each handle sees the other's entries at once."""
        pen = await desk.create()
        sent: list[Entry] = []
        for turn in range(20):
            group = pen.group(1 + turn % 3)
            await desk.land(pen, group, on=desk.other if turn % 2 else desk.store)
            sent += group.entries
            (head,) = await (desk.store if turn % 2 else desk.other).heads([pen.key])
            assert head is not None
            assert (head.last.seq, head.last.append_id) == (pen.seq, pen.prev)
        entries = (await desk.log(pen))[1:]
        assert spots(entries) == spots(sent)
        assert [entry.frame for entry in entries] == [entry.frame for entry in sent]
        assert [entry.seq for entry in entries] == list(range(2, len(sent) + 2))

    @on_a_desk
    async def test_second_append_of_a_seq_conflicts(self, desk: Desk) -> None:
        """Of two writers that saw the same head one lands; the other gets CONFLICT and the newest entry."""
        mine = await desk.create()
        theirs = mine.copy()
        await desk.land(mine, mine.group(2))
        verdict = await desk.send(theirs.group(), on=desk.other)
        assert (verdict.outcome, verdict.times) == (CONFLICT, [])
        assert verdict.head is not None
        assert verdict.head == (await desk.log(mine, frames=False))[-1]
        assert verdict.head.frame is None
        assert spots([verdict.head]) == [(mine.seq, mine.prev)]
        assert len(await desk.log(mine)) == 3

    @on_a_desk
    async def test_one_of_many_racing_appends_lands(self, desk: Desk) -> None:
        """Eight writers of the same seq through two handles: one lands, and its bytes are stored."""
        pen = await desk.create()
        for _ in range(10):
            groups = [pen.group(2) for _ in range(8)]
            handles = [desk.store, desk.other] * 4
            verdicts = await asyncio.gather(*map(desk.send, groups, handles))
            winners = [group for group, verdict in zip(groups, verdicts, strict=True) if verdict.outcome is APPENDED]
            assert sorted(verdict.outcome for verdict in verdicts) == [APPENDED, *[CONFLICT] * 7]
            assert spots(await desk.log(pen, ranges=[(pen.seq + 1, 2**62)])) == spots(winners[0].entries)
            pen.saw(winners[0])

    @on_a_desk
    async def test_append_after_another_prev_is_lost(self, desk: Desk) -> None:
        """The right seq is not enough: if the entry before has another append id, nothing lands: history was lost."""
        pen = await desk.create(count=3)
        group = pen.group(2)
        group.prev = b"never written"[:13].ljust(16, b"\x00")
        verdict = await desk.send(group)
        assert verdict.outcome is LOST
        assert verdict.head is not None
        assert verdict.head.seq == 3
        assert len(await desk.log(pen)) == 3
        await desk.write(pen)

    @on_a_desk
    async def test_append_ahead_of_the_log_is_lost(self, desk: Desk) -> None:
        """A writer that saw an entry that is not there learns that the database went back; no gap appears."""
        pen = await desk.create()
        ahead = pen.copy()
        ahead.saw(ahead.group(3))
        assert (await desk.send(ahead.group())).outcome is LOST
        assert [entry.seq for entry in await desk.log(pen)] == [1]

    @on_a_desk
    async def test_append_to_an_unknown_key_is_missing(self, desk: Desk) -> None:
        """The verdict has no head, and nothing is created."""
        pen = Pen(desk.namespace, "a", seq=4, prev=b"p" * 16)
        verdict = await desk.send(pen.group())
        assert verdict == Verdict(MISSING)
        assert await desk.other.heads([pen.key, (desk.namespace, "a")]) == [None, None]
        assert await desk.log(pen) == []

    @on_a_desk
    async def test_a_former_owners_pipelined_entries_never_land(self, desk: Desk) -> None:
        """Entries sent before the last answer never follow another writer's entry, even if their seq is free."""
        mine = await desk.create(count=3)
        dead = mine.copy()
        pipeline: list[Group] = []
        for _ in range(4):
            pipeline.append(dead.group())
            dead.saw(pipeline[-1])
        await desk.land(mine, mine.group())  # entry 4, which the dead owner wanted
        outcomes = [(await desk.send(group, on=desk.other)).outcome for group in pipeline]
        assert outcomes == [CONFLICT, LOST, LOST, LOST]
        assert spots(await desk.log(mine))[3:] == [(4, mine.prev)]
        await desk.land(mine, mine.group())
        again = await desk.store.append(pipeline)
        assert APPENDED not in {verdict.outcome for verdict in again}
        assert [entry.seq for entry in await desk.log(mine)] == [1, 2, 3, 4, 5]

    @on_a_desk
    async def test_pipelined_entries_land_in_order(self, desk: Desk) -> None:
        """A writer that does not wait for verdicts still lands all its entries, in order."""
        pen = await desk.create()
        groups: list[Group] = []
        for _ in range(30):
            groups.append(pen.group())
            pen.saw(groups[-1])
        verdicts = await asyncio.gather(*map(desk.send, groups))
        assert {verdict.outcome for verdict in verdicts} == {APPENDED}
        assert spots(await desk.log(pen))[1:] == spots([group.entries[0] for group in groups])

    @on_a_desk
    async def test_a_group_is_all_or_none(self, desk: Desk) -> None:
        """A refused group changes nothing: no entry, state, body, labels, heartbeat or event."""
        pen = await desk.create(body=b"before", labels={"kept": "yes"})
        stale = pen.copy()
        await desk.write(pen)
        before, (_, cursor) = await desk.head(pen), await desk.store.events(desk.namespace, None)
        desk.clock.jump(9)
        before.row.now = desk.clock()
        change: dict[str, Any] = {"state": "paused", "body": b"after", "labels": {}, "heartbeat": True}
        verdict = await desk.send(stale.group(3, Kind.PAUSED, whole=change))
        assert verdict.outcome is CONFLICT
        assert await desk.head(pen) == before
        assert [entry.seq for entry in await desk.log(pen)] == [1, 2]
        assert await desk.other.events(desk.namespace, cursor) == ([], cursor)

    @on_a_desk
    async def test_append_changes_the_row_with_its_entries(self, desk: Desk) -> None:
        """State, body, labels and heartbeat change if the group names them; the others stay."""
        pen = await desk.create(body=b"1", labels={"a": "1"})
        steps: list[tuple[dict[str, Any], tuple[str, bytes, dict[str, str]]]] = [
            ({"state": "paused"}, ("paused", b"1", {"a": "1"})),
            ({"body": b""}, ("paused", b"", {"a": "1"})),
            ({"labels": {"b": "2"}}, ("paused", b"", {"b": "2"})),
            ({"labels": {}}, ("paused", b"", {})),
            ({}, ("paused", b"", {})),
            ({"state": "active", "body": b"3", "labels": {"c": "3"}}, ("active", b"3", {"c": "3"})),
        ]
        for kind in (Kind.UPDATED, Kind.CHECKPOINT):
            for change, expected in steps:
                await desk.write(pen, 2, kind, whole=change)
                row = (await desk.head(pen)).row
                assert (row.state, row.body, row.labels) == expected
                (session,) = await desk.other.find(Query(namespace=desk.namespace))
                assert session == row
            steps.insert(0, ({"state": "paused", "body": b"1", "labels": {"a": "1"}}, ("paused", b"1", {"a": "1"})))

    @on_a_desk
    async def test_the_store_shares_no_value_with_its_caller(self, desk: Desk) -> None:
        """Changing a value after appending or reading it does not change the store."""
        labels = {"a": "1"}
        pen = Pen(desk.namespace, "a")
        group = pen.begin(labels=labels)
        await desk.land(pen, group)
        labels["a"] = "changed"
        group.entries[0].frame = b"changed"
        given = (await desk.head(pen)).row
        given.labels["a"] = "changed"
        (entry,) = await desk.log(pen)
        entry.name = "changed"
        row = (await desk.head(pen)).row
        (kept,) = await desk.log(pen)
        assert (row.labels, kept.name) == ({"a": "1"}, "session_created")
        assert kept.frame != b"changed"

    @on_a_desk
    async def test_each_group_of_a_call_has_its_own_verdict(self, desk: Desk) -> None:
        """Verdicts come in the order of the groups; groups beside a refused one land."""
        good, stale, gone = [await desk.create(name) for name in "abc"]
        old = stale.copy()
        await desk.write(stale)
        await desk.delete(gone)
        unknown = Pen(desk.namespace, "u", seq=1, prev=b"p" * 16)
        lost = await desk.create("d")
        lost.prev = b"wrong".ljust(16)
        taken, new = Pen(desk.namespace, "a"), Pen(desk.namespace, "new")
        groups = [
            *(old.group(2), good.group(2), gone.group(), unknown.group(), new.begin(3), lost.group(), taken.begin()),
            stale.group(),
        ]
        verdicts = await desk.store.append(groups)
        expected = [CONFLICT, APPENDED, MISSING, MISSING, APPENDED, LOST, CONFLICT, APPENDED]
        assert [verdict.outcome for verdict in verdicts] == expected
        lengths = [len(await desk.log(pen)) for pen in (good, stale, gone, unknown, new, lost, taken)]
        assert lengths == [3, 3, 2, 0, 3, 1, 0]

    @on_a_desk
    async def test_concurrent_calls_have_their_own_verdicts(self, desk: Desk) -> None:
        """Calls that share a transaction are judged apart."""
        pens = [await desk.create(f"s{n}") for n in range(12)]
        groups = [pen.group(2) for pen in pens]
        for group in groups[::3]:
            group.prev = b"wrong".ljust(16)
        verdicts = await asyncio.gather(*map(desk.send, groups))
        assert [verdict.outcome for verdict in verdicts] == [LOST, APPENDED, APPENDED] * 4
        assert [len(await desk.log(pen)) for pen in pens] == [1, 3, 3] * 4

    # Retries

    @on_a_desk
    async def test_a_retried_group_is_already_stored(self, desk: Desk) -> None:
        """A group sent again gets ALREADY and the times of its first landing, also after later entries."""
        pen = await desk.create()
        group = pen.group(3, whole={"heartbeat": True})
        first = await desk.land(pen, group)
        desk.clock.jump(100)
        for _ in range(2):
            again = await desk.send(group, on=desk.other)
            assert (again.outcome, again.times, again.heartbeat) == (ALREADY, first.times, first.heartbeat)
            await desk.write(pen, 2)
        assert [entry.seq for entry in await desk.log(pen)] == list(range(1, 9))

    @on_a_desk
    async def test_a_longer_retry_adds_nothing(self, desk: Desk) -> None:
        """A group that begins with a stored entry gets ALREADY and the times of the entries that are stored."""
        pen = Pen(desk.namespace, "a")
        for begin in (pen.begin, pen.group):
            group = begin(3)
            shorter = replace(group, entries=group.entries[:1])
            first = await desk.land(pen, shorter)
            again = await desk.send(group, on=desk.other)
            assert (again.outcome, again.times) == (ALREADY, first.times)
        assert len(await desk.log(pen)) == 2

    @on_a_desk
    async def test_a_group_sent_twice_at_once_lands_once(self, desk: Desk) -> None:
        """In one call or in two."""
        pen = await desk.create()
        group = pen.group(2)
        both = await desk.store.append([group, group])
        assert [verdict.outcome for verdict in both] == [APPENDED, ALREADY]
        pen.saw(group)
        group = pen.group(2)
        raced = await asyncio.gather(desk.send(group), desk.send(group, on=desk.other))
        assert sorted(verdict.outcome for verdict in raced) == [ALREADY, APPENDED]
        assert len(await desk.log(pen)) == 5

    @on_a_desk
    async def test_a_retried_creation_is_already_stored(self, desk: Desk) -> None:
        """Also after later entries, and after the session was deleted."""
        pen = Pen(desk.namespace, "a")
        group = pen.begin(2)
        first = await desk.land(pen, group)
        desk.clock.jump(100)
        again = await desk.send(group, on=desk.other)
        assert (again.outcome, again.times) == (ALREADY, first.times)
        await desk.write(pen)
        assert (await desk.send(group)).outcome is ALREADY
        assert len(await desk.log(pen)) == 3
        await desk.delete(pen)
        assert (await desk.send(group)).outcome is ALREADY
        assert await desk.other.heads([(desk.namespace, "a")]) == [None]

    @on_a_desk
    async def test_a_retried_deletion_is_already_stored(self, desk: Desk) -> None:
        """The same tombstone again gets ALREADY; another one gets MISSING."""
        pen = await desk.create()
        late = pen.copy()
        group = await desk.delete(pen)
        assert (await desk.send(group, on=desk.other)).outcome is ALREADY
        assert (await desk.send(late.delete())).outcome is MISSING
        await desk.create("a")
        assert (await desk.send(group)).outcome is ALREADY
        assert await desk.other.heads([(desk.namespace, "a")]) != [None]

    @on_a_desk
    async def test_a_retry_after_deletion_is_already_stored(self, desk: Desk) -> None:
        """A group that landed before the deletion gets ALREADY, without effect."""
        pen = await desk.create()
        group = pen.group()
        await desk.land(pen, group)
        await desk.delete(pen)
        assert (await desk.send(group)).outcome is ALREADY
        assert len(await desk.log(pen)) == 3

    @on_a_desk
    async def test_a_cancelled_append_still_lands(self, desk: Desk) -> None:
        """It lands once; its retry gets ALREADY."""
        pen = await desk.create()
        _, cursor = await desk.store.events(desk.namespace, None)
        for _ in range(5):
            before = pen.group(1)  # a store that links entries need not read what the next group follows
            assert (await desk.send(before)).outcome is APPENDED
            pen.saw(before)
            group = pen.group(2)
            call = asyncio.create_task(desk.send(group))
            await asyncio.sleep(0)  # the call has begun
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            seen = 0
            while seen < 3:
                events, cursor = await desk.other.events(desk.namespace, cursor, wait=PATIENCE)
                seen += len(events)
            assert (await desk.send(group)).outcome is ALREADY
            pen.saw(group)
        assert [entry.seq for entry in await desk.log(pen)] == list(range(1, 17))
