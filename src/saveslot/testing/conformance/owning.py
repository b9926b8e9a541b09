"""Who holds a session, and who may take it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec

from saveslot.ids import fresh_key
from saveslot.log import Group, Query, Row, Worker
from saveslot.model import Kind
from saveslot.stores import Store
from saveslot.testing.conformance.desk import (
    ALREADY,
    APPENDED,
    CONFLICT,
    FENCED,
    LOST,
    PATIENCE,
    TTL,
    Desk,
    Suite,
    on_a_desk,
    spots,
)
from saveslot.testing.pen import SECOND


class Owning(Suite):
    # Its lease

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
    async def test_an_owner_whose_taking_was_lost_is_told_so(self, desk: Desk) -> None:
        """A store that has not seen the owner's fence went back in time: nobody else has the session."""
        pen = await desk.create()
        owner = pen.copy()
        owner.saw(owner.take_over())  # acknowledged, and not there any more
        assert (await desk.send(owner.group())).outcome is LOST

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

    # Its owner

    @on_a_desk
    async def test_the_owner_comes_with_a_lease_and_goes_with_it(self, desk: Desk) -> None:
        """Who takes a session owns it until an entry without lease, whatever comes between; heads tell its name."""
        ann, bob = await desk.worker("ann"), await desk.worker("bob", on=desk.other)
        pen = await desk.create()
        for worker in (ann, bob):
            for end in (Kind.RELEASED, Kind.COMPLETED, Kind.FAILED):
                await desk.land(pen, pen.take_over(worker))
                for kind in (Kind.CHECKPOINT, Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.UPDATED, Kind.PAUSED):
                    await desk.write(pen, 2, kind)
                    row = (await desk.head(pen)).row
                    assert (row.owner, row.worker, row.left) == (worker.id, worker.name, TTL)
                    assert (row.lease, row.fence) == (pen.lease, pen.fence)
                    assert await desk.other.find(Query(namespace=desk.namespace)) == [row]
                await desk.write(pen, 1, end, lease=None)
                row = (await desk.head(pen)).row
                assert (row.owner, row.worker, row.left, row.lease) == (None, "", 0, None)
                assert row.fence == pen.fence
        await desk.land(pen, pen.take_over(ann))
        await desk.land(pen, pen.take_over(bob))
        assert (await desk.head(pen)).row.worker == "bob"
        assert pen.fence == 8
        await desk.land(
            pen, msgspec.structs.replace(pen.delete(), entries=pen.group(1, Kind.TOMBSTONE, lease=None).entries)
        )
        assert await desk.ids(owner=bob.id) == []

    @on_a_desk
    async def test_an_owner_nobody_heard_of_is_dead(self, desk: Desk) -> None:
        """A session taken by a worker that never said that it lives, or whose row is gone, is an orphan at once."""
        stranger = Worker(b"s" * 8 + fresh_key()[8:], "stranger", TTL)
        pen = await desk.held(stranger)
        row = (await desk.head(pen)).row
        assert (row.owner, row.worker, row.left) == (stranger.id, "", 0)
        assert await desk.ids(orphan_for=1 << 60) == ["a"]
        counts = await desk.other.count(Query(namespace=desk.namespace))
        assert (counts.held, counts.orphaned) == (1, 1)
        assert not await desk.beat(stranger)
        await desk.land(pen, pen.take_over(await desk.worker(), orphan=1 << 60))

    @on_a_desk
    async def test_time_left_is_counted_by_the_clock_nobody_sets(self, desk: Desk) -> None:
        """However the wall clock jumps no owner's time runs out by it, and none is won."""
        worker = await desk.worker()
        pen = await desk.held(worker)
        for seconds in (30 * 86_400, -60 * 86_400, 0.000_001):
            desk.clock.jump(seconds)
            assert (await desk.head(pen)).row.left == TTL
            assert await desk.ids(orphan_for=0) == []
            assert (await desk.send(pen.take_over(worker, orphan=0))).outcome is FENCED
        desk.clock.go(5)
        assert (await desk.head(pen)).row.left == TTL - 5 * SECOND
        desk.clock.jump(-86_400)
        assert await desk.beat(worker)
        assert (await desk.head(pen)).row.left == TTL
        desk.clock.go(TTL / SECOND)
        desk.clock.jump(-TTL / SECOND)
        assert (await desk.head(pen)).row.left == 0
        assert await desk.ids(orphan_for=0) == ["a"]

    # Taking from the dead

    @on_a_desk
    async def test_nothing_is_taken_from_the_living(self, desk: Desk) -> None:
        """A claim is refused up to the last microsecond of the owner's time, told the newest entry, without effect."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        desk.clock.go(TTL / SECOND)
        desk.clock.up -= 1
        before = await desk.head(pen)
        verdict = await desk.send(pen.take_over(claimer, orphan=0), on=desk.other)
        assert (verdict.outcome, verdict.times) == (FENCED, [])  # the session is not under the lease that it names
        assert verdict.head is not None
        assert spots([verdict.head]) == [(pen.seq, pen.prev)]
        assert await desk.head(pen) == before
        await desk.write(pen)
        assert await desk.beat(owner)
        assert (await desk.head(pen)).row.left == TTL

    @on_a_desk
    async def test_a_claim_lands_when_the_owners_time_is_over(self, desk: Desk) -> None:
        """From that microsecond on a claim lands, and the former owner is dead for ever: no beat brings it back."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen, second = await desk.held(owner), await desk.held(owner, "b")
        desk.clock.go(TTL / SECOND)
        zombie = pen.copy()
        await desk.land(pen, pen.take_over(claimer, orphan=0), on=desk.other)
        row = (await desk.head(pen)).row
        assert (row.owner, row.worker, row.fence, row.lease) == (claimer.id, "claimer", 2, pen.lease)
        assert (await desk.send(zombie.group())).outcome is FENCED
        for _ in range(2):
            assert not await desk.beat(owner)
        owner.first = True
        assert not await desk.beat(owner, on=desk.other)
        assert (await desk.head(second)).row.left == 0
        await desk.land(
            second, second.take_over(claimer, orphan=1 << 60)
        )  # patience is for those who may still come back

    @on_a_desk
    async def test_a_beat_in_time_revives(self, desk: Desk) -> None:
        """A worker whose time ran out lives on after a beat, as long as nobody declared it dead."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        desk.clock.go(3 * TTL / SECOND)
        assert await desk.ids(orphan_for=0) == ["a"]
        assert await desk.beat(owner)
        assert await desk.ids(orphan_for=0) == []
        assert (await desk.send(pen.take_over(claimer, orphan=0))).outcome is FENCED
        assert (await desk.head(pen)).row.left == TTL

    @on_a_desk
    async def test_patience_waits_longer(self, desk: Desk) -> None:
        """Who asks for patience gets no session before the owner's time ran out that long ago; to the microsecond."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        patience = 7 * SECOND
        desk.clock.go((TTL + patience) / SECOND)
        desk.clock.up -= 1
        assert (await desk.ids(orphan_for=patience), await desk.ids(orphan_for=0)) == ([], ["a"])
        assert (await desk.send(pen.take_over(claimer, orphan=patience))).outcome is FENCED
        assert await desk.beat(owner)
        desk.clock.go((TTL + patience) / SECOND)
        assert await desk.ids(orphan_for=patience) == ["a"]
        await desk.land(pen, pen.take_over(claimer, orphan=patience))
        assert not await desk.beat(owner)

    @on_a_desk
    async def test_what_nobody_owns_is_no_orphan(self, desk: Desk) -> None:
        """A claim is refused where there is no owner: never taken, let go, or ended."""
        worker = await desk.worker()
        never, released, ended = [await desk.create(name) for name in "abc"]
        for pen in (released, ended):
            await desk.land(pen, pen.take_over(worker))
        await desk.land(released, released.release())
        await desk.write(ended, 1, Kind.COMPLETED, lease=None)
        desk.clock.go(2 * TTL / SECOND)
        for pen in (never, released, ended):
            assert (await desk.send(pen.take_over(worker, orphan=0))).outcome is FENCED
        assert await desk.ids(orphan_for=0) == []
        assert await desk.beat(worker)

    @on_a_desk
    async def test_a_claim_that_came_too_late_declares_nobody_dead(self, desk: Desk) -> None:
        """Where the entry does not land, for whatever reason, the owner may still come back."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        late = pen.copy()
        await desk.write(pen)
        lost = pen.copy()
        lost.prev = b"wrong".ljust(16)
        desk.clock.go(2 * TTL / SECOND)
        outcomes = [(await desk.send(who.take_over(claimer, orphan=0))).outcome for who in (late, lost)]
        assert outcomes == [FENCED, FENCED]
        assert await desk.beat(owner)

    @on_a_desk
    async def test_a_retried_claim_is_already_there(self, desk: Desk) -> None:
        """A claim sent again is a retry, also when the claimer's own time is over: it does not declare itself dead."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer")
        pen = await desk.held(owner)
        desk.clock.go(TTL / SECOND)
        assert await desk.beat(claimer)
        group = pen.take_over(claimer, orphan=0)
        first = await desk.land(pen, group)
        desk.clock.go(2 * TTL / SECOND)
        again = await desk.send(group, on=desk.other)
        assert (again.outcome, again.times) == (ALREADY, first.times)
        assert await desk.beat(claimer)

    @on_a_desk
    async def test_each_orphan_is_claimed_once(self, desk: Desk) -> None:
        """Many claimers at once, in batches, through two handles: every orphan is one claimer's, and counted once."""
        owner = await desk.worker("owner")
        pens = [await desk.held(owner, f"s{n}") for n in range(12)]
        desk.clock.go(TTL / SECOND)
        claimers = [await desk.worker(f"c{n}") for n in range(4)]
        batches = [[pen.copy().take_over(claimer, orphan=0) for pen in pens] for claimer in claimers]
        handles = [desk.store, desk.other] * 2
        answers = await asyncio.gather(*(on.append(batch) for on, batch in zip(handles, batches, strict=True)))
        for verdicts in zip(*answers, strict=True):
            assert sorted(verdict.outcome for verdict in verdicts) == [APPENDED, *[FENCED] * 3]
        owned = [await desk.ids(owner=claimer.id) for claimer in claimers]
        assert sorted(name for names in owned for name in names) == sorted(pen.session_id for pen in pens)
        assert await desk.ids(owner=owner.id) == []

    @on_a_desk
    async def test_a_zombies_pipeline_is_fenced_to_the_last(self, desk: Desk) -> None:
        """Whatever a former owner had under way, none of it lands, on the claim or on what was written behind it."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        await desk.write(pen, 2)
        zombie = pen.copy()
        pipeline: list[Group] = []
        for n in range(6):
            pipeline.append(zombie.group(1 + n % 2, Kind.CHECKPOINT if n < 5 else Kind.PAUSED))
            zombie.saw(pipeline[-1])
        desk.clock.go(TTL / SECOND)
        await desk.land(pen, pen.take_over(claimer, orphan=0))
        for _ in range(3):
            verdicts = await asyncio.gather(*(desk.send(group, on=desk.other) for group in pipeline))
            assert {verdict.outcome for verdict in verdicts} == {FENCED}
            assert {verdict.outcome for verdict in await desk.store.append(pipeline)} == {FENCED}
            await desk.write(pen, 2)
        log = await desk.log(pen)
        assert [entry.seq for entry in log] == [*range(1, 12)]
        assert not {entry.append_id for entry in log} & {entry.append_id for g in pipeline for entry in g.entries}
        assert (await desk.head(pen)).row.owner == claimer.id

    # Workers

    @on_a_desk
    async def test_a_first_beat_is_good_twice(self, desk: Desk) -> None:
        """A first beat whose answer got lost may be sent again; any other beat of a worker unknown says 0."""
        worker = Worker(fresh_key(), "w", TTL)
        assert not await desk.beat(worker)
        worker.first = True
        assert await desk.beat(worker)
        desk.clock.go(1)
        assert await desk.beat(worker, on=desk.other)
        pen = await desk.held(worker)
        assert (await desk.head(pen)).row.left == TTL

    @on_a_desk
    async def test_a_worker_that_leaves_is_dead(self, desk: Desk) -> None:
        """A beat that is good for nothing orphans what the worker holds at once, and is its last."""
        leaving, staying = await desk.worker("leaving"), await desk.worker("staying")
        pen, other = await desk.held(leaving), await desk.held(staying, "b")
        leaving.ttl = 0
        assert await desk.beat(leaving, on=desk.other)
        assert await desk.ids(orphan_for=1 << 60) == ["a"]
        assert ((await desk.head(pen)).row.left, (await desk.head(other)).row.left) == (0, TTL)
        leaving.ttl = TTL
        assert not await desk.beat(leaving)
        await desk.land(pen, pen.take_over(staying, orphan=1 << 60))
        assert sorted(await desk.ids(owner=staying.id)) == ["a", "b"]

    @on_a_desk
    async def test_workers_do_not_touch_each_other(self, desk: Desk) -> None:
        """One worker's beats, leaving or death say nothing about another, also one of the same name."""
        one, two = await desk.worker("same"), await desk.worker("same", ttl=3 * TTL)
        first, second = await desk.held(one), await desk.held(two, "b")
        desk.clock.go(2 * TTL / SECOND)
        assert await desk.ids(orphan_for=0) == ["a"]
        assert await desk.beat(one)
        assert ((await desk.head(first)).row.left, (await desk.head(second)).row.left) == (TTL, TTL)
        one.ttl = 0
        assert await desk.beat(one)
        assert await desk.beat(two)
        assert ((await desk.head(first)).row.left, (await desk.head(second)).row.left) == (0, 3 * TTL)

    @on_a_desk
    async def test_a_worker_beats_from_a_thread_of_its_own(self, desk: Desk) -> None:
        """While the event loop that everything else runs in stands still, a beat from another one gets through."""
        worker = await desk.worker()
        pen = await desk.held(worker)
        await desk.write(pen)
        desk.clock.go(1)
        beaten: list[int] = []

        def beat() -> None:
            beaten.extend(asyncio.run(_beaten(desk.store, worker)))

        for turn in range(3):
            writing = [asyncio.create_task(desk.send(pen.group())) for _ in range(turn)]
            await asyncio.sleep(0)
            thread = threading.Thread(target=beat)
            thread.start()
            thread.join(PATIENCE)  # the loop of this test does not move meanwhile
            assert not thread.is_alive()
            await asyncio.gather(*writing)
            (head,) = await desk.other.heads([pen.key])
            assert head is not None
            pen.seq, pen.prev = head.last.seq, head.last.append_id
        assert beaten == [desk.clock()] * 3
        assert (await desk.head(pen)).row.left == TTL

    # Signs of life of what is held

    @on_a_desk
    async def test_a_beat_of_a_held_session_needs_its_lease(self, desk: Desk) -> None:
        """Only who holds a session moves its heartbeat; of one that nobody holds, only who claims no lease."""
        worker = await desk.worker()
        pen = await desk.create(heartbeat=1)
        assert await desk.store.beat([(pen.key, b"no lease".ljust(16))]) == [0]
        await desk.land(pen, pen.take_over(worker))
        former = pen.lease
        await desk.land(pen, pen.take_over(worker))
        desk.clock.go(1)
        assert await desk.store.beat([(pen.key, None), (pen.key, former)], worker) == [0, 0, desk.clock()]
        assert (await desk.head(pen)).row.heartbeat == 1
        assert await desk.store.beat([(pen.key, pen.lease), (pen.key, None)], worker) == [desk.clock(), 0, desk.clock()]
        assert (await desk.head(pen)).row.heartbeat == desk.clock()
        held = pen.lease
        await desk.land(pen, pen.release())
        desk.clock.go(1)
        assert await desk.store.beat([(pen.key, held), (pen.key, None)]) == [0, desk.clock()]

    @on_a_desk
    async def test_the_owners_beat_is_a_sign_of_life(self, desk: Desk) -> None:
        """What a living worker holds is not stale, though nothing is written; once let go, the beats count no more."""
        worker = await desk.worker(ttl=1000 * TTL)
        held, released, free = [await desk.create(name) for name in "abc"]
        for pen in (held, released):
            await desk.land(pen, pen.take_over(worker))
        await desk.land(released, released.release())
        desk.clock.go(100)
        assert await desk.beat(worker)
        desk.clock.go(50)
        stale = {"stale_for": 50 * SECOND}
        fail = {"state": "failed", "only_stale": 50 * SECOND}
        assert sorted(await desk.ids(**stale)) == ["b", "c"]
        assert (await desk.send(held.group(1, Kind.FAILED, lease=None, whole=fail))).outcome is not APPENDED
        assert (await desk.head(held)).row.owner == worker.id
        desk.clock.at += 1
        assert sorted(await desk.ids(**stale)) == ["a", "b", "c"]
        for pen in (held, released, free):
            await desk.land(pen, pen.group(1, Kind.FAILED, lease=None, whole=fail))
            assert (await desk.head(pen)).row.owner is None

    # Looking for them

    @on_a_desk
    async def test_sessions_are_found_by_who_holds_them(self, desk: Desk) -> None:
        """Those of one worker, of the dead and of nobody, with every other filter, in pages, and counted."""
        dead, alive = await desk.worker("dead"), await desk.worker("alive", ttl=100 * TTL)
        foreign = f"{desk.namespace}-foreign"
        for n, worker in enumerate((dead, alive, None) * 3):
            row: dict[str, Any] = {"created_at": 100 + n // 2, "agent_type": "coder" if n % 2 else "tester"}
            pen = await desk.create(f"s{n}", **row)
            far = await desk.create(f"f{n}", namespace=foreign, **row)
            for each in (pen, far) if worker is not None else ():
                await desk.land(each, each.take_over(worker))
        gone = await desk.held(dead, "gone")
        await desk.land(gone, gone.group(1, Kind.TOMBSTONE, lease=None, whole={"delete": True}))
        paused = await desk.held(dead, "paused", created_at=1)
        await desk.write(paused, 1, Kind.PAUSED, whole={"state": "paused"})
        desk.clock.go(TTL / SECOND)
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"owner": dead.id}, ["s6", "s3", "s0", "paused"]),
            ({"owner": alive.id}, ["s7", "s4", "s1"]),
            ({"owner": b"nobody".ljust(16)}, []),
            ({"unowned": True}, ["s8", "s5", "s2"]),
            ({"orphan_for": 0}, ["s6", "s3", "s0", "paused"]),
            ({"orphan_for": 1}, []),
            ({"orphan_for": 0, "state": "active"}, ["s6", "s3", "s0"]),
            ({"orphan_for": 0, "agent_type": "coder"}, ["s3"]),
            ({"orphan_for": 0, "owner": alive.id}, []),
            ({"orphan_for": 0, "unowned": True}, []),
            ({"owner": alive.id, "created_after": 100, "agent_type": "coder"}, ["s7"]),
        ]
        for query, expected in cases:
            asked = Query(namespace=desk.namespace, **query)
            seen: list[Row] = []
            while page := await desk.other.find(asked, (seen[-1].created_at, seen[-1].key) if seen else None, limit=2):
                seen += page
            assert [row.session_id for row in seen] == expected, query
            counts = await desk.other.count(asked)
            assert sum(counts.states.values()) == len(expected), query
            assert counts.held == sum(row.owner is not None for row in seen), query
            assert counts.orphaned == sum(row.owner == dead.id for row in seen), query
        counts = await desk.other.count(Query(namespace=desk.namespace))
        assert (counts.held, counts.orphaned) == (7, 4)


async def _beaten(store: Store, worker: Worker) -> list[int]:
    return await store.beat((), worker)
