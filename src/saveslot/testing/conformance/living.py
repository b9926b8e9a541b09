"""Signs of life, and workers that count as dead without one."""

from __future__ import annotations

from saveslot.testing.conformance.desk import ALREADY, APPENDED, CONFLICT, MISSING, Desk, Suite, on_a_desk, spots
from saveslot.testing.pen import SECOND, Pen
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind


class Living(Suite):
    # Signs of life

    @on_a_desk
    async def test_only_entries_with_sign_move_alive(self, desk: Desk) -> None:
        """Other entries carry `alive` on; an entry with `sign` sets it to the store's clock."""
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
    async def test_beat_moves_the_heartbeat_of_active_sessions(self, desk: Desk) -> None:
        """No entry is written; unknown, deleted and ended sessions return 0 and do not change."""
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
    async def test_append_with_heartbeat_moves_the_heartbeat(self, desk: Desk) -> None:
        """The verdict returns the new heartbeat; other groups leave it."""
        pen = await desk.create(heartbeat=1)
        desk.clock.jump(5)
        assert (await desk.write(pen, sign=True)).heartbeat == 0
        assert (await desk.head(pen)).row.heartbeat == 1
        assert (await desk.write(pen, whole={"heartbeat": True})).heartbeat == desk.clock()
        assert (await desk.head(pen)).row.heartbeat == desk.clock()

    @on_a_desk
    async def test_only_stale_refuses_sessions_with_a_sign_of_life(self, desk: Desk) -> None:
        """It lands only if no heartbeat and no sign came for that long, to the microsecond."""
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

    @on_a_desk
    async def test_only_stale_judges_each_group_of_a_call(self, desk: Desk) -> None:
        """Sessions that gave a sign of life, were written to or were deleted are not failed with the others."""
        pens = {name: await desk.create(name, body=b"1", labels={"team": "red"}) for name in "abcdefghij"}
        desk.clock.go(100)
        fail = {"state": "failed", "body": b"2", "labels": {"team": "red"}, "only_stale": 50 * SECOND}
        groups = {name: pen.group(2, Kind.FAILED, whole=fail) for name, pen in pens.items()}
        groups["i"].labels = groups["j"].labels = {"team": "blue"}
        first = await desk.store.append([groups["a"], groups["b"]])
        assert [(v.outcome, v.times, v.heartbeat) for v in first] == [(APPENDED, [desk.clock()] * 2, 0)] * 2
        assert await desk.store.beat([(pens["c"].key, None)]) == [desk.clock()]
        await desk.write(pens["d"])
        await desk.delete(pens["e"])
        # Each beside one that can: what is done for many at once must look at each.
        for names, outcome in (("bf", ALREADY), ("cg", CONFLICT), ("dh", CONFLICT), ("ei", MISSING), ("fj", ALREADY)):
            verdicts = await desk.store.append([groups[name] for name in names])
            assert [verdict.outcome for verdict in verdicts] == [outcome, APPENDED]
        ended = {name: await desk.head(pens[name]) for name in "abfghij"}
        assert {(head.row.state, head.row.body) for head in ended.values()} == {("failed", b"2")}
        for name, head in ended.items():
            assert spots(await desk.log(pens[name]))[1:] == spots(groups[name].entries)
            assert head.last.alive == head.row.heartbeat < desk.clock()
        spared = [await desk.head(pens[name]) for name in "cd"]
        assert [(head.row.state, head.row.body) for head in spared] == [("active", b"1")] * 2
        assert [head.last.seq for head in spared] == [1, 2]
        assert sorted(await desk.ids(labels={"team": "red"})) == [*"abcdfgh"]
        assert await desk.other.heads([pens[name].key for name in "aej"]) == [ended["a"], None, ended["j"]]
        # Other labels, for all of a call.
        relabelled = [pens[name].group(whole={"labels": {"team": "green"}}) for name in "cd"]
        assert {verdict.outcome for verdict in await desk.store.append(relabelled)} == {APPENDED}
        assert sorted(await desk.ids(labels={"team": "green"})) == ["c", "d"]
        assert sorted(await desk.ids(labels={"team": "blue"})) == ["i", "j"]
