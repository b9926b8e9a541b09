"""Ownership: which worker holds a session, and which may take it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec

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
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import Kind
from saveslot.values.log import NO_WORKER, Group, Outcome, Query, Row, Worker


class Owning(Suite):
    # Its lease

    @on_a_desk
    async def test_a_takeover_fences_the_former_owner(self, desk: Desk) -> None:
        """A takeover is an entry with a new lease; the former owner's next group gets FENCED and does not land."""
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
    async def test_another_lease_with_the_same_fence_is_fenced(self, desk: Desk) -> None:
        """After a failover two leases may have the same fence; their random ids differ."""
        first = await desk.create()
        second = first.copy()
        await desk.land(first, first.take_over())
        second.fence, second.lease = first.fence, b"other lease".ljust(16)
        verdict = await desk.send(second.group())
        assert verdict.outcome is FENCED

    @on_a_desk
    async def test_an_owner_ahead_of_the_row_is_lost(self, desk: Desk) -> None:
        """A row whose fence is lower than the owner's went back in time: the owner gets LOST, not FENCED."""
        pen = await desk.create()
        owner = pen.copy()
        owner.saw(owner.take_over())  # acknowledged, and not there any more
        assert (await desk.send(owner.group())).outcome is LOST

    @on_a_desk
    async def test_an_owner_that_missed_an_entry_conflicts(self, desk: Desk) -> None:
        """An owner that still holds the session gets CONFLICT, not FENCED."""
        holder = await desk.create()
        await desk.land(holder, holder.take_over())
        someone = holder.copy()
        await desk.land(someone, someone.group(kind=Kind.PAUSED, whole={"state": "paused"}))
        assert (await desk.send(holder.group())).outcome is CONFLICT

    @on_a_desk
    async def test_release_clears_the_lease(self, desk: Desk) -> None:
        """An entry without a lease, anywhere in its group, frees the session; the fence stays."""
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
    async def test_the_owner_is_set_and_cleared_with_the_lease(self, desk: Desk) -> None:
        """A worker owns the session from its takeover to the next entry without a lease; heads return its name."""
        ann, bob = await desk.worker("ann"), await desk.worker("bob", on=desk.other)
        pen = await desk.create()
        for worker in (ann, bob):
            for end in (Kind.RELEASED, Kind.COMPLETED, Kind.FAILED):
                await desk.land(pen, pen.take_over(worker))
                for kind in (Kind.CHECKPOINT, Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.UPDATED, Kind.PAUSED):
                    await desk.write(pen, 2, kind, whole={"state": "paused" if kind is Kind.PAUSED else "active"})
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
    async def test_an_owner_without_a_worker_row_is_dead(self, desk: Desk) -> None:
        """A session taken by a worker that never beat, or whose row is gone, is an orphan at once."""
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
    async def test_a_release_by_an_error_leaves_an_orphan(self, desk: Desk) -> None:
        """Handed to the worker that no process is, a session is an orphan at once: the same lease, claimed by one."""
        holder = await desk.worker()
        pen = await desk.held(holder)
        former, lease = pen.copy(), pen.lease
        await desk.land(pen, pen.release(orphaned=True))
        row = (await desk.head(pen)).row
        assert (row.owner, row.worker, row.left, row.lease) == (NO_WORKER, "", 0, lease)
        assert await desk.ids(orphan_for=1 << 60) == await desk.ids(owner=NO_WORKER) == ["a"]
        counts = await desk.other.count(Query(namespace=desk.namespace))
        assert (counts.held, counts.orphaned) == (1, 1)
        assert (await desk.send(former.group())).outcome is Outcome.CONFLICT
        await desk.land(pen, pen.take_over(holder, orphan=1 << 60))
        assert (await desk.send(former.group())).outcome is FENCED
        assert await desk.ids(orphan_for=0) == []
        desk.clock.go(7200)
        await desk.worker("new")  # removes rows of dead workers that own nothing
        await desk.land(pen, pen.release(orphaned=True))
        assert await desk.ids(orphan_for=1 << 60) == ["a"]

    @on_a_desk
    async def test_leases_ignore_jumps_of_the_wall_clock(self, desk: Desk) -> None:
        """A jump of the wall clock neither shortens nor extends a lease."""
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
    async def test_a_claim_before_the_lease_expires_is_refused(self, desk: Desk) -> None:
        """Up to the last microsecond; the verdict has the newest entry, and nothing changes."""
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
    async def test_a_claim_after_the_lease_expired_lands(self, desk: Desk) -> None:
        """From that microsecond on; the former owner is then dead, and no beat revives it."""
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
    async def test_a_late_beat_revives_a_worker_not_declared_dead(self, desk: Desk) -> None:
        """An expired worker that beats before any claim is alive again."""
        owner, claimer = await desk.worker("owner"), await desk.worker("claimer", ttl=100 * TTL)
        pen = await desk.held(owner)
        desk.clock.go(3 * TTL / SECOND)
        assert await desk.ids(orphan_for=0) == ["a"]
        assert await desk.beat(owner)
        assert await desk.ids(orphan_for=0) == []
        assert (await desk.send(pen.take_over(claimer, orphan=0))).outcome is FENCED
        assert (await desk.head(pen)).row.left == TTL

    @on_a_desk
    async def test_only_orphan_waits_its_patience(self, desk: Desk) -> None:
        """A claim with patience lands only that long after the lease expired, to the microsecond."""
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
    async def test_row_shows_the_owners_last_heartbeat(self, desk: Desk) -> None:
        """Of a living worker, and of one that died or left since; 0 without an owner or a heartbeat."""
        worker, began = await desk.worker(), desk.clock()
        pen, free, unheard = await desk.held(worker), await desk.create("b"), await desk.create("c")
        await desk.land(unheard, unheard.group(1, Kind.TAKEN, fence=1, lease=b"L" * 16, whole={"owner": b"U" * 16}))
        assert [(await desk.head(one)).row.beaten for one in (pen, free, unheard)] == [began, 0, 0]
        desk.clock.go(5)
        assert await desk.beat(worker)
        desk.clock.go(2 * TTL / SECOND)
        assert (await desk.head(pen)).row.beaten == began + 5 * SECOND
        [row] = await desk.other.find(Query(namespace=desk.namespace, orphan_for=0, agent_type="", owner=worker.id))
        assert row.beaten == began + 5 * SECOND
        await desk.land(pen, pen.release(orphaned=True))
        assert (await desk.head(pen)).row.beaten == 0

    @on_a_desk
    async def test_a_session_without_an_owner_is_not_an_orphan(self, desk: Desk) -> None:
        """Claims of sessions that were never taken, were released or have ended are refused."""
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
    async def test_a_refused_claim_declares_no_worker_dead(self, desk: Desk) -> None:
        """If the entry does not land, whatever the reason, the owner can beat again."""
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
    async def test_a_retried_claim_is_already_stored(self, desk: Desk) -> None:
        """Also after the claimer's own lease expired: it does not declare itself dead."""
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
        """Many claimers at once, in batches, through two handles: each orphan goes to one of them."""
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
    async def test_every_pipelined_entry_of_a_former_owner_is_fenced(self, desk: Desk) -> None:
        """No entry that the former owner sent lands after the claim or after later entries."""
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
    async def test_a_first_beat_can_be_repeated(self, desk: Desk) -> None:
        """A first beat whose answer was lost can be sent again; other beats of an unknown worker return 0."""
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
        """A beat with a TTL of 0 orphans the worker's sessions at once and is its last."""
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
    async def test_workers_are_independent(self, desk: Desk) -> None:
        """Beats, leaving or death of one worker do not change another, even with the same name."""
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
        """A beat from another event loop succeeds while the store's own loop is blocked."""
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
    async def test_beat_needs_the_lease_of_a_held_session(self, desk: Desk) -> None:
        """Only the owner's lease moves the heartbeat of a held session, and only no lease that of a free one."""
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
    async def test_an_owners_beat_keeps_its_sessions_from_going_stale(self, desk: Desk) -> None:
        """A beating worker's sessions are not stale, even without entries; after a release its beats do not count."""
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
    async def test_find_by_owner(self, desk: Desk) -> None:
        """Sessions of one worker, of dead workers and of no worker, with every other filter, in pages and counted."""
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
            request = Query(namespace=desk.namespace, **query)
            seen: list[Row] = []
            while page := await desk.other.find(
                request, (seen[-1].created_at, seen[-1].key) if seen else None, limit=2
            ):
                seen += page
            assert [row.session_id for row in seen] == expected, query
            counts = await desk.other.count(request)
            assert sum(counts.states.values()) == len(expected), query
            assert counts.held == sum(row.owner is not None for row in seen), query
            assert counts.orphaned == sum(row.owner == dead.id for row in seen), query
        counts = await desk.other.count(Query(namespace=desk.namespace))
        assert (counts.held, counts.orphaned) == (7, 4)


async def _beaten(store: Store, worker: Worker) -> list[int]:
    return await store.beat((), worker)
