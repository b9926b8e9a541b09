"""What every store must do, as one pytest class. Subclass it, say how your store is opened, run pytest.

The tests are plain functions (each runs its own event loop), so any async plugin, or none, will do. Each gets a new
folder and a namespace of its own; a store that ignores the folder (a server) may keep its data from test to test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from saveslot.errors import InvalidInput, Unavailable
from saveslot.log import Entry, Event, Group, Head, Outcome, Query, Row, Verdict, moment
from saveslot.model import Kind, fresh_id, fresh_key
from saveslot.stores import Store
from saveslot.testing.pen import SECOND, Clock, Pen, payload

APPENDED, ALREADY, CONFLICT = Outcome.APPENDED, Outcome.ALREADY, Outcome.CONFLICT
FENCED, MISSING, LOST = Outcome.FENCED, Outcome.MISSING, Outcome.LOST
# Nothing here takes as long; a test that hangs is a test that fails.
PATIENCE = 60
NASTY = ("../x", "a'b\"c\\d", "%_*?", "Ünïcode 🌱 名前", "null", "x" * 200, " ", "{ns:key}")

P = ParamSpec("P")
T = TypeVar("T")


class Desk:
    """Two handles on the same data, as two processes have them, and shorthand for what most tests do."""

    def __init__(self, store: Store, other: Store, clock: Clock) -> None:
        self.store = store
        self.other = other
        self.clock = clock
        self.namespace = f"test-{fresh_id()}"

    async def create(self, session_id: str = "a", count: int = 1, namespace: str | None = None, **row: Any) -> Pen:
        pen = Pen(namespace or self.namespace, session_id)
        group = pen.begin(count, **row)
        assert (await self.send(group)).outcome is APPENDED
        pen.saw(group)
        return pen

    async def send(self, group: Group, on: Store | None = None) -> Verdict:
        (verdict,) = await (on or self.store).append([group])
        return verdict

    async def write(self, pen: Pen, count: int = 1, kind: Kind = Kind.CHECKPOINT, **of: Any) -> Verdict:
        return await self.land(pen, pen.group(count, kind, **of))

    async def land(self, pen: Pen, group: Group, on: Store | None = None) -> Verdict:
        verdict = await self.send(group, on)
        assert verdict.outcome is APPENDED
        pen.saw(group)
        return verdict

    async def delete(self, pen: Pen) -> Group:
        group = pen.delete()
        await self.land(pen, group)
        return group

    async def log(self, pen: Pen, **how: Any) -> list[Entry]:
        return await self.other.entries(pen.key, **how)

    async def head(self, pen: Pen) -> Head:
        (head,) = await self.other.heads([pen.key])
        assert head is not None
        return head

    async def ids(self, **query: Any) -> list[str]:
        return [row.session_id for row in await self.other.find(Query(namespace=self.namespace, **query))]


def on_a_desk(test: Callable[Concatenate[Any, Desk, P], Awaitable[None]]) -> Callable[[Any, Path], None]:
    def run(self: StoreConformance, tmp_path: Path) -> None:
        async def main() -> None:
            clock = Clock()
            desk = Desk(await self.open(tmp_path, clock), await self.open(tmp_path, clock), clock)
            try:
                async with asyncio.timeout(PATIENCE):
                    await test(self, desk)  # pyright: ignore[reportCallIssue]
            finally:
                await desk.store.close()
                await desk.other.close()

        asyncio.run(main())

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    run.__module__ = test.__module__
    return run


def spots(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    return [(entry.seq, entry.append_id) for entry in entries]


class StoreConformance:
    async def open(self, folder: Path, clock: Clock) -> Store:
        """A handle on the store in this folder. It is called twice; a store that lives in one process returns the same
        one again. `clock` tells the time by which the store judges staleness and dates entries.
        """
        raise NotImplementedError

    # Appending

    @on_a_desk
    async def test_an_entry_comes_back_as_it_was_sent(self, desk: Desk) -> None:
        """Every field of an entry is kept; the store adds only its time, the sign of life and the size."""
        pen = await desk.create()
        sent = Entry(
            seq=2, append_id=b"A" * 16, kind=Kind.ROLLBACK, name="Näme 🌱", at=1_234_567_890_123_456, sign=True,
            fence=3, lease=b"L" * 16, data_seq=2, about_seq=1, recipe=b"\x00r\xff", digest=b"d" * 32,
            note=b"\x00note", frame=b"\x00frame\xff",
        )  # fmt: skip
        await desk.land(pen, Group(pen.key, pen.prev, [sent]))
        (kept,) = await desk.log(pen, ranges=[(2, 2)])
        assert kept == Entry(
            seq=2, append_id=b"A" * 16, kind=Kind.ROLLBACK, name="Näme 🌱", at=1_234_567_890_123_456,
            alive=desk.clock(), fence=3, lease=b"L" * 16, data_seq=2, about_seq=1, recipe=b"\x00r\xff",
            digest=b"d" * 32, note=b"\x00note", frame=b"\x00frame\xff", size=12,
        )  # fmt: skip
        assert isinstance(kept.kind, Kind)

    @on_a_desk
    async def test_what_is_missing_stays_missing(self, desk: Desk) -> None:
        """No frame, an empty frame, no note and an empty note are four things."""
        pen = await desk.create()
        for frame, note in [(None, None), (b"", None), (None, b""), (b"", b"")]:
            await desk.write(pen, frame=frame, note=note)
        found = await desk.log(pen, ranges=[(2, 5)])
        assert [(entry.frame, entry.note) for entry in found] == [(None, None), (b"", None), (None, b""), (b"", b"")]
        assert [entry.size for entry in found] == [0, 0, 0, 0]

    @on_a_desk
    async def test_the_store_dates_what_carries_no_time(self, desk: Desk) -> None:
        """An entry without a time gets the store's, one with an age that much less, one with a time keeps it; the
        verdict tells which.
        """
        pen = await desk.create()
        group = pen.group(3)
        group.entries[1].at, group.entries[2].at = 77, -88
        verdict = await desk.land(pen, group)
        assert verdict.times == [desk.clock(), 77, desk.clock() - 88]
        assert [entry.at for entry in await desk.log(pen, ranges=[(2, 4)])] == verdict.times
        again = await desk.send(group, on=desk.other)
        assert (again.outcome, again.times) == (ALREADY, verdict.times)

    @on_a_desk
    async def test_a_session_begins_as_its_row_says(self, desk: Desk) -> None:
        """The row given at creation is what heads and find show, by key and by id, through any handle."""
        made: dict[str, Any] = {"agent_type": "researcher", "user_id": "u-1", "state": "paused", "body": b"\x00body"}
        pen = await desk.create("s-1", **made, created_at=5, heartbeat=6, labels={"a": "1"})
        expected = Row(pen.key, desk.namespace, "s-1", **made, created_at=5, heartbeat=6, labels={"a": "1"})
        by_key, by_id = await desk.other.heads([pen.key, (desk.namespace, "s-1")])
        assert by_key is not None
        assert by_key == by_id
        assert by_key.row == expected
        assert (by_key.last.seq, by_key.last.append_id, by_key.last.frame) == (1, pen.prev, None)
        assert await desk.other.find(Query(namespace=desk.namespace)) == [expected]

    @on_a_desk
    async def test_a_row_without_times_gets_the_stores(self, desk: Desk) -> None:
        """created_at and heartbeat come from the store's clock when not given, and the verdict tells the heartbeat."""
        pen = Pen(desk.namespace, "a")
        verdict = await desk.land(pen, pen.begin())
        row = (await desk.head(pen)).row
        assert (row.created_at, row.heartbeat, verdict.heartbeat) == (desk.clock(), desk.clock(), desk.clock())

    @on_a_desk
    async def test_many_entries_one_after_another(self, desk: Desk) -> None:
        """Writers that hand the session over to each other fill the numbers without a gap, each seeing the other's."""
        pen = await desk.create()
        sent: list[Entry] = []
        for turn in range(20):
            group = pen.group(1 + turn % 3)
            await desk.land(pen, group, on=desk.other if turn % 2 else desk.store)
            sent += group.entries
            (head,) = await (desk.store if turn % 2 else desk.other).heads([pen.key])
            assert head is not None
            assert (head.last.seq, head.last.append_id) == (pen.seq, pen.prev)
        found = (await desk.log(pen))[1:]
        assert spots(found) == spots(sent)
        assert [entry.frame for entry in found] == [entry.frame for entry in sent]
        assert [entry.seq for entry in found] == list(range(2, len(sent) + 2))

    @on_a_desk
    async def test_the_second_writer_of_an_entry_is_told(self, desk: Desk) -> None:
        """Of two that have seen the same entry one lands; the other is told of a conflict and the newest entry."""
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
    async def test_racing_writers_of_one_session(self, desk: Desk) -> None:
        """Many writers of the same entry at once through two handles: one lands, and its bytes are what is kept."""
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
    async def test_an_entry_must_follow_what_is_there(self, desk: Desk) -> None:
        """The right number is not enough: if the entry before carries another id, nothing lands: history was lost."""
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
    async def test_an_entry_ahead_of_the_log_is_lost(self, desk: Desk) -> None:
        """Who has seen an entry that is not there is told that the database went back, never given a gap."""
        pen = await desk.create()
        ahead = pen.copy()
        ahead.saw(ahead.group(3))
        assert (await desk.send(ahead.group())).outcome is LOST
        assert [entry.seq for entry in await desk.log(pen)] == [1]

    @on_a_desk
    async def test_an_unknown_session_is_missing(self, desk: Desk) -> None:
        """Appending to a key that nobody created says missing, with no head, and creates nothing."""
        pen = Pen(desk.namespace, "a", seq=4, prev=b"p" * 16)
        verdict = await desk.send(pen.group())
        assert verdict == Verdict(MISSING)
        assert await desk.other.heads([pen.key, (desk.namespace, "a")]) == [None, None]
        assert await desk.log(pen) == []

    @on_a_desk
    async def test_a_dead_owners_pipelined_entries_never_land(self, desk: Desk) -> None:
        """Entries sent ahead of their answers never land on top of another's, even where their number is free."""
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
        """A writer that does not wait for answers gets all of its entries in, in order."""
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
        """Of a group that cannot land nothing lands: no entry, no state, no body, no labels, no heartbeat, no event."""
        pen = await desk.create(body=b"before", labels={"kept": "yes"})
        stale = pen.copy()
        await desk.write(pen)
        before, (_, cursor) = await desk.head(pen), await desk.store.events(desk.namespace, None)
        desk.clock.jump(9)
        change: dict[str, Any] = {"state": "paused", "body": b"after", "labels": {}, "heartbeat": True}
        verdict = await desk.send(stale.group(3, Kind.PAUSED, whole=change))
        assert verdict.outcome is CONFLICT
        assert await desk.head(pen) == before
        assert [entry.seq for entry in await desk.log(pen)] == [1, 2]
        assert await desk.other.events(desk.namespace, cursor) == ([], cursor)

    @on_a_desk
    async def test_a_group_changes_the_row_with_its_entries(self, desk: Desk) -> None:
        """State, body, labels and heartbeat change with the group that says so; what it does not name stays."""
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
                (found,) = await desk.other.find(Query(namespace=desk.namespace))
                assert found == row
            steps.insert(0, ({"state": "paused", "body": b"1", "labels": {"a": "1"}}, ("paused", b"1", {"a": "1"})))

    @on_a_desk
    async def test_the_callers_values_stay_its_own(self, desk: Desk) -> None:
        """What a caller changes in its values after the append, or in what it was given, never reaches the store."""
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
    async def test_one_bad_group_harms_no_other(self, desk: Desk) -> None:
        """In one call each group gets its own verdict, in its place, and the good ones land."""
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
    async def test_one_bad_call_harms_no_other(self, desk: Desk) -> None:
        """Calls made at once share a transaction, never a fate."""
        pens = [await desk.create(f"s{n}") for n in range(12)]
        groups = [pen.group(2) for pen in pens]
        for group in groups[::3]:
            group.prev = b"wrong".ljust(16)
        verdicts = await asyncio.gather(*map(desk.send, groups))
        assert [verdict.outcome for verdict in verdicts] == [LOST, APPENDED, APPENDED] * 4
        assert [len(await desk.log(pen)) for pen in pens] == [1, 3, 3] * 4

    # Retries

    @on_a_desk
    async def test_a_retry_is_already_there(self, desk: Desk) -> None:
        """A group sent again lands once and is told the times of its first landing, also after more entries came."""
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
    async def test_a_retry_in_the_same_call_is_already_there(self, desk: Desk) -> None:
        """The same group twice at once, in one call or in two, lands once."""
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
    async def test_a_retried_creation_is_already_there(self, desk: Desk) -> None:
        """Creating with the same entry again is a retry, also after more entries came or the session was deleted."""
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
    async def test_a_retried_deletion_is_already_there(self, desk: Desk) -> None:
        """Deleting with the same entry again is a retry; with another one the session is missing."""
        pen = await desk.create()
        late = pen.copy()
        group = await desk.delete(pen)
        assert (await desk.send(group, on=desk.other)).outcome is ALREADY
        assert (await desk.send(late.delete())).outcome is MISSING
        await desk.create("a")
        assert (await desk.send(group)).outcome is ALREADY
        assert await desk.other.heads([(desk.namespace, "a")]) != [None]

    @on_a_desk
    async def test_a_retry_of_a_deleted_session_is_already_there(self, desk: Desk) -> None:
        """What landed before the session was deleted had landed: a retry learns that, and stays without effect."""
        pen = await desk.create()
        group = pen.group()
        await desk.land(pen, group)
        await desk.delete(pen)
        assert (await desk.send(group)).outcome is ALREADY
        assert len(await desk.log(pen)) == 3

    @on_a_desk
    async def test_cancelling_abandons_the_answer_never_the_write(self, desk: Desk) -> None:
        """A cancelled append lands all the same, once; its retry is already there."""
        pen = await desk.create()
        _, cursor = await desk.store.events(desk.namespace, None)
        for _ in range(5):
            group = pen.group(2)
            call = asyncio.create_task(desk.send(group))
            await asyncio.sleep(0)  # the call has begun
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            seen = 0
            while seen < 2:
                events, cursor = await desk.other.events(desk.namespace, cursor, wait=PATIENCE)
                seen += len(events)
            assert (await desk.send(group)).outcome is ALREADY
            pen.saw(group)
        assert [entry.seq for entry in await desk.log(pen)] == list(range(1, 12))

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

    # Ids, incarnations, namespaces

    @on_a_desk
    async def test_an_id_is_taken_once(self, desk: Desk) -> None:
        """Of many creations of one id at once one lands; the others conflict and are told its newest entry."""
        pens = [Pen(desk.namespace, "same") for _ in range(8)]
        groups = [pen.begin(2) for pen in pens]
        verdicts = await asyncio.gather(*map(desk.send, groups, [desk.store, desk.other] * 4))
        assert sorted(verdict.outcome for verdict in verdicts) == [APPENDED, *[CONFLICT] * 7]
        (winner,) = [n for n, verdict in enumerate(verdicts) if verdict.outcome is APPENDED]
        pens[winner].saw(groups[winner])
        for verdict in verdicts[:winner] + verdicts[winner + 1 :]:
            assert verdict.head is not None
            assert spots([verdict.head]) == [(2, pens[winner].prev)]
            assert verdict.head.frame is None
        assert len(await desk.store.find(Query(namespace=desk.namespace))) == 1
        assert sum([len(await desk.log(pen)) for pen in pens]) == 2

    @on_a_desk
    async def test_a_deleted_session_is_gone(self, desk: Desk) -> None:
        """After its tombstone a session is in no head, page, count or beat, and nothing follows the tombstone."""
        pen = await desk.create("a", count=3)
        await desk.create("b")
        stale = pen.copy()
        await desk.delete(pen)
        assert await desk.other.heads([pen.key, (desk.namespace, "a")]) == [None, None]
        assert await desk.ids() == ["b"]
        assert (await desk.other.count(Query(namespace=desk.namespace))).states == {"active": 1}
        assert await desk.store.beat([(pen.key, None)]) == [0]
        for late in (pen, stale):
            verdict = await desk.send(late.group())
            assert verdict.outcome is MISSING
            assert verdict.head is not None
            assert verdict.head.kind is Kind.TOMBSTONE
        assert [entry.seq for entry in await desk.log(pen)] == [1, 2, 3, 4]

    @on_a_desk
    async def test_nothing_of_a_former_incarnation_returns(self, desk: Desk) -> None:
        """A deleted id may be created again: a new key and a new log, and the former one's writers and retries miss."""
        old = await desk.create("a", count=3, body=b"old", labels={"old": "yes"})
        unsent, landed = old.group(), old.group()
        await desk.land(old, landed)
        await desk.delete(old)
        new = await desk.create("a", body=b"new")
        assert (await desk.send(unsent)).outcome is MISSING
        assert (await desk.send(landed)).outcome is ALREADY
        head = await desk.head(new)
        assert (head.row.body, head.row.labels, head.last.seq) == (b"new", {}, 1)
        assert await desk.other.heads([(desk.namespace, "a"), old.key]) == [head, None]
        assert [entry.seq for entry in await desk.log(new)] == [1]
        assert await desk.ids() == ["a"]
        await desk.store.purge(old.key)
        assert await desk.other.heads([(desk.namespace, "a"), old.key]) == [head, None]
        assert (await desk.send(landed)).outcome is MISSING
        await desk.write(new)

    @on_a_desk
    async def test_namespaces_never_see_each_other(self, desk: Desk) -> None:
        """The same id lives in two namespaces as two sessions; no head, page, count or event crosses over."""
        foreign = f"{desk.namespace}-foreign"
        _, cursor = await desk.store.events(desk.namespace, None)
        _, there = await desk.store.events(foreign, None)
        mine, theirs = await desk.create("a", body=b"mine"), await desk.create("a", namespace=foreign, body=b"theirs")
        await desk.write(theirs, 2)
        one, two, none = await desk.other.heads([(desk.namespace, "a"), (foreign, "a"), (foreign, "b")])
        assert one is not None
        assert two is not None
        assert none is None
        assert (one.row.key, one.row.body, two.row.key, two.row.body) == (mine.key, b"mine", theirs.key, b"theirs")
        for namespace, body in [(desk.namespace, b"mine"), (foreign, b"theirs")]:
            assert [row.body for row in await desk.other.find(Query(namespace=namespace))] == [body]
            assert (await desk.other.count(Query(namespace=namespace))).states == {"active": 1}
        assert len((await desk.other.events(desk.namespace, cursor))[0]) == 1
        assert len((await desk.other.events(foreign, there))[0]) == 3
        assert (await desk.other.events(foreign, cursor, mine.key))[0] == []
        await desk.delete(mine)
        assert [row.body for row in await desk.other.find(Query(namespace=foreign))] == [b"theirs"]
        assert await desk.other.heads([(desk.namespace, "a")]) == [None]

    @on_a_desk
    async def test_names_are_exact(self, desk: Desk) -> None:
        """Ids, namespaces, types, users and labels are text, whatever is in it, and equal only to themselves."""
        for name in NASTY:
            pen = await desk.create(name, agent_type=name, user_id=name, labels={name: name})
            (head,) = await desk.other.heads([(desk.namespace, name)])
            assert head is not None
            row = head.row
            assert (row.key, row.session_id, row.agent_type, row.user_id, row.labels) == (
                *(pen.key, name, name, name),
                {name: name},
            )
            for query in ({"agent_type": name}, {"user_id": name}, {"labels": {name: name}}):
                assert await desk.ids(**query) == [name]
            assert name in await desk.ids(prefix=name)
            assert name in await desk.ids(text=name)
            await desk.create(name, namespace=f"{desk.namespace}{name}")
        await desk.create("A")
        assert await desk.other.heads([(desk.namespace, "a"), (desk.namespace, "A ")]) == [None, None]

    @on_a_desk
    async def test_bytes_are_exact(self, desk: Desk) -> None:
        """NUL, emoji, every byte value and 5 MB come back as they were: frames, notes, recipes, digests, bodies."""
        big = payload() * (5_000_000 // len(payload()))
        pen = await desk.create()
        for data in (b"\x00", "🌱\x00é".encode(), bytes(range(256)), b"", big):
            await desk.write(pen, frame=data, note=data, recipe=data[:4096], digest=data[:64], whole={"body": data})
            (kept,) = await desk.log(pen, newest=1)
            assert (kept.recipe, kept.digest, kept.size) == (data[:4096], data[:64], 2 * len(data))
            assert kept.frame == data
            assert kept.note == data
            assert (await desk.head(pen)).row.body == data

    # Signs of life

    @on_a_desk
    async def test_only_signs_move_alive(self, desk: Desk) -> None:
        """`alive` is carried from entry to entry and moved, by the store's clock, only by an entry that is a sign."""
        pen = await desk.create(heartbeat=11)
        expected = [11]
        for sign, kind in [
            (False, Kind.CHECKPOINT),
            (True, Kind.CHECKPOINT),
            (False, Kind.PAUSED),
            (True, Kind.RESUMED),
        ]:
            desk.clock.jump(10)
            group = pen.group(2, kind, at=1)
            group.entries[1].sign = sign
            await desk.land(pen, group, on=desk.other)
            expected += [expected[-1], desk.clock() if sign else expected[-1]]
        desk.clock.jump(10)
        await desk.store.beat([(pen.key, None)])
        await desk.write(pen, whole={"heartbeat": True})
        expected.append(expected[-1])
        assert [entry.alive for entry in await desk.log(pen)] == expected
        assert (await desk.head(pen)).last.alive == expected[-1]
        signed = Pen(desk.namespace, "b")
        group = signed.begin(2, heartbeat=11)
        group.entries[0].sign = True
        await desk.land(signed, group)
        assert [entry.alive for entry in await desk.log(signed)] == [desk.clock()] * 2

    @on_a_desk
    async def test_a_beat_moves_the_heartbeat_of_the_living(self, desk: Desk) -> None:
        """A beat dates the row and is no entry; unknown, deleted and ended sessions answer 0 and stay as they are."""
        names = ("active", "paused", "completed", "failed")
        pens = [await desk.create(name, state=name, heartbeat=1) for name in names]
        gone = await desk.create("gone", heartbeat=1)
        await desk.delete(gone)
        desk.clock.jump(5)
        keys = [*(pen.key for pen in pens), gone.key, fresh_key()]
        assert await desk.store.beat([(key, None) for key in keys]) == [desk.clock(), desk.clock(), 0, 0, 0, 0]
        heads = [await desk.head(pen) for pen in pens]
        assert [head.row.heartbeat for head in heads] == [desk.clock(), desk.clock(), 1, 1]
        assert {head.last.seq for head in heads} == {1}
        assert await desk.store.beat([]) == []

    @on_a_desk
    async def test_a_group_may_beat(self, desk: Desk) -> None:
        """A group that says heartbeat dates the row and is told so; any other leaves it."""
        pen = await desk.create(heartbeat=1)
        desk.clock.jump(5)
        assert (await desk.write(pen, sign=True)).heartbeat == 0
        assert (await desk.head(pen)).row.heartbeat == 1
        assert (await desk.write(pen, whole={"heartbeat": True})).heartbeat == desk.clock()
        assert (await desk.head(pen)).row.heartbeat == desk.clock()

    @on_a_desk
    async def test_only_stale_spares_the_living(self, desk: Desk) -> None:
        """A group for the stale lands only if neither a heartbeat nor a sign came for so long; to the microsecond."""
        beaten, signed, silent = [await desk.create(name) for name in "abc"]
        desk.clock.jump(100)
        await desk.store.beat([(beaten.key, None)])
        await desk.write(signed, sign=True)
        desk.clock.jump(50)
        fail = {"state": "failed", "only_stale": 50 * SECOND}
        for pen in (beaten, signed):
            verdict = await desk.send(pen.group(kind=Kind.FAILED, whole=fail))
            assert verdict.outcome is CONFLICT
            assert verdict.head is not None
            assert spots([verdict.head]) == [(pen.seq, pen.prev)]
        await desk.land(silent, silent.group(kind=Kind.FAILED, whole=fail))
        assert await desk.ids(stale_for=50 * SECOND) == ["c"]
        desk.clock.at += 1
        assert sorted(await desk.ids(stale_for=50 * SECOND, state="active")) == ["a", "b"]
        for pen in (beaten, signed):
            group = pen.group(kind=Kind.FAILED, whole=fail)
            stale = pen.copy()
            await desk.land(pen, group)
            assert (await desk.send(group)).outcome is ALREADY
            assert (await desk.send(stale.group(kind=Kind.FAILED, whole=fail))).outcome is CONFLICT
        assert sorted(await desk.ids(state="failed")) == ["a", "b", "c"]

    # Finding

    @on_a_desk
    async def test_find_takes_every_filter(self, desk: Desk) -> None:
        """Each filter alone and all together give the sessions that match, newest first."""
        made: list[dict[str, Any]] = [
            {"agent_type": "coder", "user_id": "u1", "state": "active", "labels": {"team": "Red", "x": "1"}},
            {"agent_type": "coder", "user_id": "u2", "state": "paused", "labels": {"team": "blue"}},
            {"agent_type": "Tester", "user_id": "u1", "state": "completed", "labels": {}},
            {"agent_type": "", "user_id": "", "state": "failed", "labels": {"team": "Red"}},
        ]
        for n, row in enumerate(made):
            await desk.create(f"{'Job' if n % 2 else 'job'}-{n}", created_at=10 + n, **row)
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "3210"),
            ({"agent_type": "coder"}, "10"),
            ({"agent_type": ""}, "3"),
            ({"agent_type": "code"}, ""),
            ({"user_id": "u1"}, "20"),
            ({"state": "paused"}, "1"),
            ({"labels": {"team": "Red"}}, "30"),
            ({"labels": {"team": "Red", "x": "1"}}, "0"),
            ({"labels": {"team": "1"}}, ""),
            ({"created_after": 11}, "32"),
            ({"created_before": 11}, "0"),
            ({"created_after": 10, "created_before": 13}, "21"),
            ({"text": "JOB-2"}, "2"),
            ({"text": "TEST"}, "2"),
            ({"text": "U2"}, "1"),
            ({"text": "red"}, "30"),
            ({"text": "team"}, ""),
            ({"text": ""}, "3210"),
            ({"text": "%"}, ""),
            ({"prefix": "job-"}, "20"),
            ({"prefix": "Job-1"}, "1"),
            ({"prefix": "ob"}, ""),
            ({"prefix": "job-0-and-more"}, ""),
            ({"agent_type": "coder", "user_id": "u1", "state": "active", "labels": {"x": "1"}, "text": "j"}, "0"),
            ({"agent_type": "coder", "user_id": "u1", "state": "paused"}, ""),
        ]
        for query, expected in cases:
            assert [name[-1] for name in await desk.ids(**query)] == list(expected), query
            counts = await desk.other.count(Query(namespace=desk.namespace, **query))
            assert sum(counts.states.values()) == len(expected), query
            assert sum(counts.agent_types.values()) == len(expected), query

    @on_a_desk
    async def test_only_ascii_letters_lose_their_case(self, desk: Desk) -> None:
        """Searching text ignores the case of ASCII letters, and of no others, in every store alike."""
        await desk.create("STRASSE Ä")
        assert await desk.ids(text="strasse") == ["STRASSE Ä"]
        assert await desk.ids(text="Ä") == ["STRASSE Ä"]
        assert await desk.ids(text="ä") == []

    @on_a_desk
    async def test_pages_follow_their_place_while_others_insert(self, desk: Desk) -> None:
        """Pages behind a place show every session that was there exactly once, whatever is created or deleted."""
        names = [f"s{n:02}" for n in range(25)]
        pens = {name: await desk.create(name, created_at=100 + n // 4) for n, name in enumerate(names)}
        seen: list[Row] = []
        for turn in range(100):
            after = (seen[-1].created_at, seen[-1].key) if seen else None
            page = await desk.other.find(Query(namespace=desk.namespace), after, limit=4)
            if not page:
                break
            assert len(page) <= 4
            seen += page
            await desk.create(f"new-{turn}", created_at=1000 + turn)
            await desk.delete(pens.pop(seen[-1].session_id))  # the place itself goes away
        assert sorted(row.session_id for row in seen) == names
        places = [(row.created_at, row.key) for row in seen]
        assert places == sorted(places, reverse=True)

    @on_a_desk
    async def test_stale_pages_run_by_heartbeat(self, desk: Desk) -> None:
        """Pages of the stale begin with the longest silent and go on behind (heartbeat, key), past busy sessions."""
        start = desk.clock()
        pens = [await desk.create(f"s{n:02}", heartbeat=start - (n // 3) * SECOND) for n in range(14)]
        busy = pens[::4]
        desk.clock.jump(1000)
        for pen in busy:
            await desk.write(pen, sign=True)  # alive by their last entry, though their rows are old
        query = Query(namespace=desk.namespace, stale_for=500 * SECOND)
        seen: list[Row] = []
        while page := await desk.other.find(query, (seen[-1].heartbeat, seen[-1].key) if seen else None, limit=3):
            seen += page
        places = [(row.heartbeat, row.key) for row in seen]
        assert places == sorted(places)
        silent = {pen.session_id for pen in pens} - {pen.session_id for pen in busy}
        assert sorted(row.session_id for row in seen) == sorted(silent)
        assert sum((await desk.other.count(query)).states.values()) == len(silent)

    @on_a_desk
    async def test_counts_add_up(self, desk: Desk) -> None:
        """Sessions are counted by state and by agent type, entries and bytes over the whole store."""
        before = await desk.other.count(Query(namespace=desk.namespace))
        assert (before.states, before.agent_types) == ({}, {})
        pens = [await desk.create(name, agent_type="coder" if name == "a" else "") for name in "abc"]
        await desk.write(pens[0], 2, Kind.PAUSED, whole={"state": "paused"})
        await desk.delete(pens[2])
        after = await desk.other.count(Query(namespace=desk.namespace))
        assert after.states == {"paused": 1, "active": 1}
        assert after.agent_types == {"coder": 1, "": 1}
        assert after.entries - before.entries == 6
        assert after.stored_bytes > 0

    # Reading entries

    @on_a_desk
    async def test_entries_are_chosen(self, desk: Desk) -> None:
        """Ranges, kinds, a name and the newest n combine; entries come in the order of their seqs."""
        pen = await desk.create()
        for n in range(2, 11):
            kind = Kind.PAUSED if n % 3 == 0 else Kind.CHECKPOINT
            await desk.write(pen, 1, kind, name="even" if n % 2 == 0 else "odd")
        marks = frozenset({Kind.CHECKPOINT})
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [*range(1, 11)]),
            ({"ranges": [(3, 5)]}, [3, 4, 5]),
            ({"ranges": [(0, 2), (4, 4), (9, 99)]}, [1, 2, 4, 9, 10]),
            ({"ranges": []}, []),
            ({"ranges": [(5, 4), (11, 20)]}, []),
            ({"kinds": marks}, [2, 4, 5, 7, 8, 10]),
            ({"kinds": frozenset({Kind.CREATED, Kind.PAUSED})}, [1, 3, 6, 9]),
            ({"kinds": frozenset[int]()}, []),
            ({"name": "even"}, [2, 4, 6, 8, 10]),
            ({"name": "Even"}, []),
            ({"newest": 3}, [8, 9, 10]),
            ({"newest": 0}, []),
            ({"newest": 99}, [*range(1, 11)]),
            ({"newest": 2, "kinds": marks}, [8, 10]),
            ({"newest": 1, "name": "odd", "ranges": [(1, 6)]}, [5]),
            ({"newest": 4, "ranges": [(1, 3), (6, 7)]}, [2, 3, 6, 7]),
            ({"newest": 2, "ranges": [(1, 3), (6, 9)], "kinds": marks, "name": "even"}, [2, 8]),
        ]
        for how, expected in cases:
            assert [entry.seq for entry in await desk.log(pen, **how)] == expected, how
        assert await desk.store.entries(fresh_key()) == []

    @on_a_desk
    async def test_entries_without_frames_tell_their_size(self, desk: Desk) -> None:
        """Without frames everything else is there, the note and the size too."""
        pen = await desk.create()
        await desk.write(pen, frame=b"12345", note=b"123")
        await desk.write(pen, frame=None, note=None)
        whole, bare = await desk.log(pen), await desk.log(pen, frames=False)
        assert [entry.size for entry in bare[1:]] == [8, 0]
        assert [entry.frame for entry in bare] == [None] * 3
        for entry in whole:
            entry.frame = None
        assert bare == whole

    # Emptying and purging

    @on_a_desk
    async def test_emptying_keeps_the_rows(self, desk: Desk) -> None:
        """An emptied entry loses its frame and nothing else: numbers, ids, notes stay, appends and retries go on."""
        pen = await desk.create()
        landed = pen.group(3, note=b"note")
        await desk.land(pen, landed)
        before = await desk.log(pen)
        assert await desk.store.empty(pen.key, [2, 4, 4, 99]) == 2
        assert await desk.other.empty(pen.key, [2, 4]) == 0
        for entry in before:
            if entry.seq in {2, 4}:
                entry.frame, entry.size = None, 4
        assert await desk.log(pen) == before
        assert (await desk.send(landed)).outcome is ALREADY
        await desk.write(pen)
        assert await desk.store.empty(pen.key, [5]) == 1
        await desk.write(pen)
        assert [entry.seq for entry in await desk.log(pen)] == [1, 2, 3, 4, 5, 6]
        assert await desk.store.empty(fresh_key(), [1]) == 0
        assert await desk.store.empty(pen.key, []) == 0

    @on_a_desk
    async def test_emptying_touches_one_session(self, desk: Desk) -> None:
        """The same numbers of another session keep their frames."""
        one, two = await desk.create("a", count=3), await desk.create("b", count=3)
        await desk.store.empty(one.key, [1, 2, 3])
        assert [entry.frame for entry in await desk.log(one)] == [None] * 3
        assert None not in [entry.frame for entry in await desk.log(two)]

    @on_a_desk
    async def test_only_the_deleted_are_purged(self, desk: Desk) -> None:
        """A purge removes every row of a deleted session and leaves a living one alone."""
        living, dead = await desk.create("a", count=3), await desk.create("b", count=3)
        await desk.delete(dead)
        before = await desk.store.count(Query(namespace=desk.namespace))
        assert await desk.store.purge(living.key) == 0
        assert await desk.store.purge(fresh_key()) == 0
        assert await desk.store.purge(dead.key) == 4
        assert await desk.other.purge(dead.key) == 0
        assert await desk.log(dead) == []
        assert len(await desk.log(living)) == 3
        assert (await desk.other.count(Query(namespace=desk.namespace))).entries == before.entries - 4
        assert await desk.send(dead.group()) == Verdict(MISSING)
        await desk.write(living)
        await desk.create("b")

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
        await desk.store.purge(drop.key)
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
        with pytest.raises(InvalidInput):
            await desk.store.events(desk.namespace, "no cursor")

    # The end

    @on_a_desk
    async def test_what_was_acknowledged_outlives_its_handle(self, desk: Desk) -> None:
        """After the writing handle is closed everything is there for the other one."""
        pen = await desk.create()
        writing = asyncio.gather(*(desk.create(f"s{n}") for n in range(20)))
        await writing
        await desk.write(pen, 3)
        if desk.other is not desk.store:
            await desk.store.close()
        assert len(await desk.log(pen)) == 4
        assert len(await desk.ids()) == 21
        await desk.land(pen, pen.group(), on=desk.other)

    @on_a_desk
    async def test_a_closed_store_says_so(self, desk: Desk) -> None:
        """Every call on a closed store raises Unavailable; closing again is fine; who waits for events is let go."""
        pen = await desk.create()
        store, query = desk.store, Query(namespace=desk.namespace)
        watching = asyncio.create_task(store.events(desk.namespace, None, wait=10 * PATIENCE))
        await store.events(desk.namespace, None)
        await store.close()
        await store.close()
        with pytest.raises(Unavailable):
            await watching
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.append([pen.group()]),
            lambda: store.heads([pen.key]),
            lambda: store.entries(pen.key),
            lambda: store.find(query),
            lambda: store.count(query),
            lambda: store.beat([(pen.key, None)]),
            lambda: store.events(desk.namespace, None),
            lambda: store.empty(pen.key, [1]),
            lambda: store.purge(pen.key),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call()

    @on_a_desk
    async def test_nothing_asked_nothing_done(self, desk: Desk) -> None:
        """Empty lists of groups and refs are answered with empty lists."""
        assert await desk.store.append([]) == []
        assert await desk.store.heads([]) == []
