"""What identifies calls and entries (requests, labels of entries), and groups that land together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from saveslot.errors import InvalidInput
from saveslot.testing.conformance.desk import (
    ALREADY,
    APPENDED,
    CONFLICT,
    FENCED,
    LOST,
    MISSING,
    SKIPPED,
    Desk,
    Suite,
    on_a_desk,
    spots,
)
from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Group, Query


class Calls(Suite):
    # Requests

    @on_a_desk
    async def test_entry_is_found_by_its_request(self, desk: Desk) -> None:
        """By its first 16 bytes, in its own session, within the ranges and other conditions."""
        pen, other = await desk.create("a"), await desk.create("b")
        for n in range(1, 5):
            await desk.write(pen, request=_request(n))
            await desk.write(other)
        await desk.write(pen)
        [found] = await desk.log(pen, request=_request(3)[:16])
        assert (found.seq, found.request) == (4, _request(3))
        assert found == (await desk.log(pen, ranges=[(4, 4)]))[0]
        assert [entry.request for entry in await desk.log(pen, ranges=[(1, 3), (6, 6)])] == [
            b"", _request(1), _request(2), b"",
        ]  # fmt: skip
        assert (await desk.head(pen)).last.request == b""
        for how in ({"ranges": [(1, 3)]}, {"kinds": frozenset({Kind.PAUSED})}, {"name": "no"}, {"newest": 0}):
            assert await desk.log(pen, request=_request(3)[:16], **how) == []
        assert [e.frame for e in await desk.log(pen, request=_request(3)[:16], frames=False)] == [None]
        for how in ({"ranges": [(1, 2), (4, 9)]}, {"newest": 1, "name": "step"}):
            assert await desk.log(pen, request=_request(3)[:16], **how) == [found]
        assert await desk.log(pen, request=_request(9)[:16]) == await desk.log(other, request=_request(3)[:16]) == []

    @on_a_desk
    async def test_second_entry_of_a_request_conflicts(self, desk: Desk) -> None:
        """Whatever its place in a group and its content; nothing of the group lands, and a retry is still a retry."""
        pen, other = await desk.create("a"), await desk.create("b")
        first = pen.group(3)
        first.entries[1].request = _request(1)
        await desk.land(pen, first)
        for count, place in ((1, 0), (3, 0), (3, 2)):
            group = pen.group(count)
            group.entries[place].request = _request(1)[:16] + b"another content."
            verdict = await desk.send(group, on=desk.other)
            assert verdict.outcome is CONFLICT
            assert verdict.head is not None
            assert (verdict.head.seq, (await desk.head(pen)).last.seq) == (4, 4)
        changing = pen.group(1, Kind.PAUSED, request=_request(1), whole={"state": "paused"})
        assert (await desk.send(changing)).outcome is CONFLICT
        assert (await desk.head(pen)).row.state == "active"
        assert (await desk.send(first)).outcome is ALREADY
        await desk.write(pen, request=_request(2))
        await desk.write(other, request=_request(1))

    @on_a_desk
    async def test_one_of_many_racing_requests_lands(self, desk: Desk) -> None:
        """The same call from eight writers through two handles: one of them lands."""
        pen = await desk.create()
        for n in range(5):
            groups = [pen.group(request=_request(n)) for _ in range(8)]
            verdicts = await asyncio.gather(*map(desk.send, groups, [desk.store, desk.other] * 4))
            assert sorted(verdict.outcome for verdict in verdicts) == [APPENDED, *[CONFLICT] * 7]
            [winner] = [g for g, verdict in zip(groups, verdicts, strict=True) if verdict.outcome is APPENDED]
            pen.saw(winner)

    @on_a_desk
    async def test_session_is_found_by_its_request(self, desk: Desk) -> None:
        """A second creation with it conflicts, under any id, until the session is deleted; namespaces are apart."""
        pen = await desk.create("a", request=_request(1))
        await desk.create("b", request=_request(2))
        await desk.create("c")
        assert (await desk.head(pen)).row.request == _request(1)
        assert await desk.ids(request=_request(1)[:16]) == ["a"]
        assert await desk.ids(request=_request(1)[:16], state="paused") == await desk.ids(request=bytes(16)) == []
        for name in ("a", "d"):
            again = Pen(desk.namespace, name).begin(request=_request(1)[:16] + bytes(16))
            verdict = await desk.send(again, on=desk.other)
            assert verdict.outcome is CONFLICT
            assert verdict.head == (await desk.log(pen, frames=False))[-1]
        assert {*await desk.ids()} == {"a", "b", "c"}
        await desk.create("a", namespace=f"{desk.namespace}-b", request=_request(1))
        await desk.delete(pen)
        assert await desk.ids(request=_request(1)[:16]) == []
        await desk.create("d", request=_request(1))
        assert await desk.ids(request=_request(1)[:16]) == ["d"]
        [purged] = await desk.store.purge([pen.key])
        assert purged == 2
        assert await desk.ids(request=_request(1)[:16]) == ["d"]

    # Labels of entries

    @on_a_desk
    async def test_sessions_are_found_by_labels_of_an_entry(self, desk: Desk) -> None:
        """One entry has all of them; each session is listed once, in the order of any other page."""
        pens = {name: await desk.create(name, user_id=name[-1], created_at=7) for name in ("s1", "s2", "s3", "s4")}
        await desk.write(pens["s1"], labels={"run": "r1", "step": "1"})
        await desk.write(pens["s1"], labels={"run": "r1", "step": "2"})
        await desk.write(pens["s1"], 3, labels={"run": "r1"})
        await desk.write(pens["s2"], labels={"run": "r1"})
        await desk.write(pens["s2"], labels={"step": "1"})
        await desk.write(pens["s3"], labels={"run": "R1", "step": "1"})
        await desk.create("s5", namespace=f"{desk.namespace}-b")
        paused = pens["s4"].group(2, Kind.PAUSED, whole={"state": "paused"})
        paused.entries[1].labels = {"run": "r1", "": "ü"}
        await desk.land(pens["s4"], paused)
        by_key = sorted(pens, key=lambda name: pens[name].key, reverse=True)

        def those(*names: str) -> list[str]:
            return [name for name in by_key if name in names]

        assert await desk.ids(entry={"run": "r1"}) == those("s1", "s2", "s4")
        assert await desk.ids(entry={"run": "r1", "step": "1"}) == ["s1"]
        assert await desk.ids(entry={"step": "1", "run": "R1"}) == ["s3"]
        assert await desk.ids(entry={"": "ü"}) == await desk.ids(entry={"run": "r1"}, state="paused") == ["s4"]
        assert await desk.ids(entry={"run": "r1"}, user_id="2") == ["s2"]
        assert {*await desk.ids(entry={"run": "r1"}, changed=True)} == {"s1", "s2", "s4"}
        assert await desk.ids(entry={"run": "r2"}) == await desk.ids(entry={"step": "r1"}) == []
        assert await desk.ids(entry={"run": "r1"}, ended_for=0) == []
        assert [entry.labels for entry in await desk.log(pens["s1"])] == [{}] * 6
        assert (await desk.head(pens["s1"])).row.labels == {}
        pages: list[str] = []
        after = None
        while page := await desk.other.find(Query(namespace=desk.namespace, entry={"run": "r1"}), after, 1):
            pages += [row.session_id for row in page]
            after = (page[-1].created_at, page[-1].key)
        assert pages == those("s1", "s2", "s4")

    @on_a_desk
    async def test_labels_of_entries_begin_with_a_session(self, desk: Desk) -> None:
        """The entries that create it may have some, and older sessions are listed after newer ones."""
        for name, created_at in (("old", -5), ("new", 0), ("mid", 9)):
            group = Pen(desk.namespace, name).begin(2, created_at=created_at)
            group.entries[1].labels = {"run": "r1"}
            assert (await desk.send(group)).outcome is APPENDED
        assert await desk.ids(entry={"run": "r1"}) == ["new", "mid", "old"]

    @on_a_desk
    async def test_labels_of_entries_are_read_if_asked_for(self, desk: Desk) -> None:
        """`labelled` gives the entries that have some, of those that are wanted, with their labels."""
        pen, other = await desk.create("a"), await desk.create("b")
        await desk.write(other, labels={"run": "r1"})
        for labels in ({"run": "r1", "step": "é"}, {}, {"run": "r2"}, {"run": "r2"}, {"": ""}):
            await desk.write(pen, labels=labels)

        async def labelled(**how: Any) -> dict[int, dict[str, str]]:
            entries = await desk.log(pen, labelled=True, **how)
            plain = {entry.seq: entry for entry in await desk.log(pen, frames=how.get("frames", True))}
            assert [replace(entry, labels={}) for entry in entries] == [plain[entry.seq] for entry in entries]
            return {entry.seq: entry.labels for entry in entries}

        every = {2: {"run": "r1", "step": "é"}, 4: {"run": "r2"}, 5: {"run": "r2"}, 6: {"": ""}}
        assert await labelled() == await labelled(frames=False) == every
        assert await labelled(newest=2) == {5: {"run": "r2"}, 6: {"": ""}}
        assert await labelled(ranges=[(1, 3), (5, 5)]) == {2: every[2], 5: every[5]}
        assert await labelled(kinds=frozenset({Kind.CREATED})) == await labelled(ranges=()) == {}
        await desk.delete(pen)
        assert await desk.log(pen, labelled=True) == []

    @on_a_desk
    async def test_labels_of_entries_are_replaced_with_a_body(self, desk: Desk) -> None:
        """In the same write as the body or not at all, and of entries that have labels alone."""
        if not self.erases:
            return
        pen, other = await desk.create("a", body=b"1"), await desk.create("b", body=b"1")
        await desk.write(pen, labels={"run": "r1", "step": "1"})
        await desk.write(pen, labels={"run": "r1"})
        await desk.write(pen)
        await desk.write(other, labels={"run": "r1"})
        new = {2: {"run": "r3", "step": "1"}, 3: {"run": "r1"}, 4: {"run": "r4"}, 9: {"run": "r9"}}
        assert not await desk.store.swap(pen.key, b"0", b"2", new)
        assert {*await desk.ids(entry={"run": "r1"})} == {"a", "b"}
        assert await desk.store.swap(pen.key, b"1", b"1", new)
        labels = {entry.seq: entry.labels for entry in await desk.log(pen, labelled=True)}
        assert labels == {2: {"run": "r3", "step": "1"}, 3: {"run": "r1"}}
        assert await desk.ids(entry={"run": "r3", "step": "1"}) == ["a"]
        assert await desk.ids(entry={"run": "r1", "step": "1"}) == await desk.ids(entry={"run": "r4"}) == []
        assert await desk.store.swap(pen.key, b"1", b"2", {2: {"run": "r5"}, 3: {"run": "r5"}})
        assert await desk.ids(entry={"run": "r5"}) == ["a"]
        assert await desk.ids(entry={"run": "r1"}) == ["b"]
        assert (await desk.head(pen)).row.body == b"2"
        await desk.write(pen, labels={"run": "r6"})
        await desk.delete(pen)
        assert await desk.store.swap(pen.key, b"2", b"3", {2: {"run": "r7"}})
        assert await desk.ids(entry={"run": "r7"}) == await desk.ids(entry={"run": "r7"}, deleted_for=0) == []

    @on_a_desk
    async def test_labels_of_entries_end_with_the_session(self, desk: Desk) -> None:
        """A deleted session, or one that was purged, is found by none; a refused or repeated group adds none."""
        deleted, purged = await desk.create("a"), await desk.create("b")
        late = deleted.copy().group(labels={"run": "late"})
        for pen in (deleted, purged):
            group = pen.group(labels={"run": "r1"})
            await desk.land(pen, group)
            assert (await desk.send(group, on=desk.other)).outcome is ALREADY
        assert (await desk.send(late)).outcome is CONFLICT
        assert await desk.ids(entry={"run": "late"}) == []
        assert {*await desk.ids(entry={"run": "r1"})} == {"a", "b"}
        await desk.delete(deleted)
        assert await desk.ids(entry={"run": "r1"}) == ["b"]
        assert await desk.ids(entry={"run": "r1"}, deleted_for=0) == []
        assert await desk.store.purge([purged.key], [purged.prev or b""]) == [2]
        assert await desk.ids(entry={"run": "r1"}) == []
        again = await desk.create("a")
        assert await desk.ids(entry={"run": "r1"}) == []
        await desk.write(again, labels={"run": "r1"})
        assert await desk.ids(entry={"run": "r1"}) == ["a"]

    # Together

    @on_a_desk
    async def test_groups_land_together(self, desk: Desk) -> None:
        """A creation, a checkpoint, a change and a deletion, with requests and labels: all land, as if each alone."""
        pens = [await desk.create(name, labels={"a": "1"}) for name in "abc"]
        worker = await desk.worker()
        new = Pen(desk.namespace, "new")
        change = {"state": "paused", "labels": {"a": "2"}, "heartbeat": True}
        groups = [
            pens[0].group(2, labels={"run": "r1"}),
            new.begin(2, labels={"a": "3"}, request=_request(1)),
            pens[1].group(1, Kind.PAUSED, whole=change, request=_request(2)),
            pens[2].delete(),
        ]
        verdicts = await desk.store.append(groups, together=True)
        assert [(verdict.outcome, len(verdict.times)) for verdict in verdicts] == [
            (APPENDED, 2), (APPENDED, 2), (APPENDED, 1), (APPENDED, 1),
        ]  # fmt: skip
        for pen, group in zip((pens[0], new, pens[1], pens[2]), groups, strict=True):
            pen.saw(group)
        assert {*await desk.ids()} == {"a", "b", "new"}
        assert await desk.ids(entry={"run": "r1"}) == ["a"]
        assert await desk.ids(labels={"a": "3"}) == await desk.ids(request=_request(1)[:16]) == ["new"]
        row = (await desk.head(pens[1])).row
        assert (row.state, row.labels, row.heartbeat) == ("paused", {"a": "2"}, desk.clock())
        again = await desk.other.append(groups, together=True)
        assert [(verdict.outcome, verdict.times) for verdict in again] == [(ALREADY, v.times) for v in verdicts]
        await desk.land(pens[0], pens[0].take_over(worker))
        assert [v.outcome for v in await desk.store.append([pens[0].group(), new.group()], together=True)] == [
            APPENDED, APPENDED,
        ]  # fmt: skip

    @on_a_desk
    async def test_groups_that_land_together_are_refused_together(self, desk: Desk) -> None:
        """Whatever refuses one: its verdict says why, the others are SKIPPED, and nothing has changed."""
        pens = {name: await desk.create(name, labels={"a": "1"}) for name in ("a", "b", "late", "gone", "held", "lost")}
        late = pens["late"].copy().group()
        await desk.write(pens["late"], request=_request(1))
        await desk.delete(pens["gone"])
        await desk.land(pens["held"], pens["held"].take_over(await desk.worker()))
        former = pens["held"].copy()
        await desk.land(pens["held"], pens["held"].take_over(await desk.worker()))
        lost = pens["lost"].group()
        lost.prev = bytes(16)
        refused = {
            CONFLICT: [late, pens["late"].group(request=_request(1)), Pen(desk.namespace, "a").begin()],
            MISSING: [pens["gone"].group()],
            FENCED: [former.group()],
            LOST: [lost],
        }
        before = await desk.other.find(Query(namespace=desk.namespace))
        logs = [await desk.log(pen) for pen in pens.values()]
        for outcome, group in [(outcome, group) for outcome, groups in refused.items() for group in groups]:
            new = Pen(desk.namespace, "new").begin(labels={"a": "1"}, request=_request(9))
            change = pens["a"].group(1, Kind.PAUSED, whole={"state": "paused", "labels": {}}, labels={"run": "r1"})
            groups = [change, group, pens["b"].delete(), new]
            verdicts = await desk.store.append(groups, together=True)
            assert [verdict.outcome for verdict in verdicts] == [SKIPPED, outcome, SKIPPED, SKIPPED]
            assert (verdicts[0].head, verdicts[0].times) == (None, [])
            if group.create is None and outcome is not MISSING:
                assert verdicts[1].head is not None
                assert spots([verdicts[1].head]) == spots(await desk.other.entries(group.key))[-1:]
            assert await desk.other.find(Query(namespace=desk.namespace)) == before
            assert await desk.ids(entry={"run": "r1"}) == await desk.ids(request=_request(9)[:16]) == []
            assert [await desk.log(pen) for pen in pens.values()] == logs

    @on_a_desk
    async def test_part_that_has_landed_does_not_keep_the_rest(self, desk: Desk) -> None:
        """A group that had landed before is ALREADY there, whether the others land or are refused."""
        one, two, three = [await desk.create(name) for name in "abc"]
        landed = one.group()
        await desk.land(one, landed)
        ahead = three.copy()
        await desk.write(three)
        verdicts = await desk.store.append([landed, two.group(), ahead.group()], together=True)
        assert [verdict.outcome for verdict in verdicts] == [ALREADY, SKIPPED, CONFLICT]
        verdicts = await desk.store.append([landed, group := two.group()], together=True)
        assert [verdict.outcome for verdict in verdicts] == [ALREADY, APPENDED]
        two.saw(group)
        assert (await desk.head(two)).last.append_id == two.prev

    @on_a_desk
    async def test_racing_pairs_land_whole(self, desk: Desk) -> None:
        """Writers of the same two sessions, in either order and through two handles: each pair lands whole or not."""
        pens = [await desk.create(name) for name in "ab"]
        for _ in range(5):
            pairs = [[pen.group(2) for pen in pens] for _ in range(6)]
            sent = [pair[:: 1 if n % 2 else -1] for n, pair in enumerate(pairs)]
            handles = [desk.store, desk.other] * 3
            answers = await asyncio.gather(
                *(store.append(pair, together=True) for store, pair in zip(handles, sent, strict=True))
            )
            outcomes = [{verdict.outcome for verdict in verdicts} for verdicts in answers]
            assert outcomes.count({APPENDED}) == 1
            assert all(outcome <= {CONFLICT, SKIPPED} for outcome in outcomes if outcome != {APPENDED})
            for pen, group in zip(pens, pairs[outcomes.index({APPENDED})], strict=True):
                pen.saw(group)
                assert (await desk.head(pen)).last.append_id == pen.prev

    @on_a_desk
    async def test_dependent_groups_do_not_land_together(self, desk: Desk) -> None:
        """A session, an id or a request twice, and guards that look at workers, are refused."""
        pen = await desk.create()
        wrong: list[list[Group]] = [
            [pen.group(), pen.group()],
            [Pen(desk.namespace, "x").begin(), Pen(desk.namespace, "x").begin()],
            [Pen(desk.namespace, name).begin(request=_request(1)) for name in "xy"],
            [pen.take_over(orphan=0)],
            [pen.group(whole={"only_stale": 1})],
        ]
        for groups in wrong:
            with pytest.raises(InvalidInput, match="groups"):
                await desk.store.append(groups, together=True)
        assert await desk.ids() == ["a"]
        assert await desk.store.append([], together=True) == []


def _request(number: int) -> bytes:
    return number.to_bytes(16, "big") + b"content %08d" % number
