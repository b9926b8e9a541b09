"""Emptying, purging, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from saveslot.errors import InvalidInput, Unavailable
from saveslot.ids import fresh_key
from saveslot.log import Query, Verdict
from saveslot.testing.conformance.desk import ALREADY, MISSING, PATIENCE, Desk, Suite, on_a_desk


class Keeping(Suite):
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
    async def test_notes_are_emptied_to_their_seals(self, desk: Desk) -> None:
        """With `notes` an entry keeps 16 bytes of its note; a second time there is nothing left to empty."""
        if not self.erases:
            with pytest.raises(InvalidInput):
                await desk.store.empty(fresh_key(), (), notes=True)
            return
        pen = await desk.create()
        await desk.land(pen, pen.group(2, note=b"0123456789abcdef and more"))
        await desk.land(pen, pen.group(1, note=b"short"))
        assert await desk.store.empty(pen.key, [2, 4], notes=True) == 2
        assert await desk.other.empty(pen.key, [2, 4], notes=True) == 0
        assert [entry.note for entry in await desk.log(pen)][1:] == [
            b"0123456789abcdef",
            b"0123456789abcdef and more",
            b"short",
        ]
        assert [entry.frame is None for entry in await desk.log(pen)][1:] == [True, False, True]
        await desk.write(pen)

    @on_a_desk
    async def test_a_body_is_replaced_if_it_is_still_the_same(self, desk: Desk) -> None:
        """No entry is written, so whoever writes next collides with nothing; a body that changed is left alone."""
        if not self.erases:
            with pytest.raises(InvalidInput):
                await desk.store.empty(fresh_key(), (), body=(b"", b""))
            return
        pen = await desk.create()
        [head] = await desk.store.heads([pen.key])
        assert head is not None
        before = head.row.body
        assert await desk.store.empty(pen.key, (), body=(before + b"!", b"new")) == 0
        assert await desk.store.empty(pen.key, (), body=(before, b"new")) == 1
        assert await desk.other.empty(pen.key, (), body=(before, b"newer")) == 0
        assert await desk.store.empty(fresh_key(), (), body=(before, b"new")) == 0
        [after] = await desk.other.heads([pen.key])
        assert after is not None
        head.row.body = b"new"
        assert after == head
        await desk.write(pen)

    @on_a_desk
    async def test_an_erased_row_names_nobody(self, desk: Desk) -> None:
        """Only a deleted session's body can become nothing; its user and labels go with it, its id stays."""
        if not self.erases:
            return
        row: dict[str, Any] = {"agent_type": "tutor", "user_id": "anna", "body": b"secret", "labels": {"env": "prod"}}
        pen = await desk.create("s", **row)
        assert await desk.store.empty(pen.key, (), body=(b"secret", b"")) == 0
        await desk.delete(pen)
        everyone = Query(namespace=desk.namespace, deleted_for=0)
        [found] = await desk.other.find(everyone)
        assert (found.body, found.user_id, found.labels) == (b"secret", "anna", {"env": "prod"})
        assert await desk.store.empty(pen.key, (), body=(b"secret", b"")) == 1
        [found] = await desk.other.find(everyone)
        assert (found.session_id, found.agent_type) == ("s", "tutor")
        assert (found.body, found.user_id, found.labels) == (b"", "", {})
        assert await desk.store.find(Query(namespace=desk.namespace)) == []

    @on_a_desk
    async def test_only_the_deleted_are_purged(self, desk: Desk) -> None:
        """A purge removes every row of a deleted session and leaves a living one alone."""
        living, dead = await desk.create("a", count=3), await desk.create("b", count=3)
        await desk.delete(dead)
        before = await desk.store.count(Query(namespace=desk.namespace))
        assert await desk.store.purge([]) == []
        assert await desk.store.purge([living.key, fresh_key(), dead.key, dead.key]) == [0, 0, 4, 0]
        assert await desk.other.purge([dead.key]) == [0]
        assert await desk.log(dead) == []
        assert len(await desk.log(living)) == 3
        assert (await desk.other.count(Query(namespace=desk.namespace))).entries == before.entries - 4
        assert await desk.send(dead.group()) == Verdict(MISSING)
        await desk.write(living)
        await desk.create("b")

    @on_a_desk
    async def test_what_was_seen_is_purged(self, desk: Desk) -> None:
        """Told the newest entry, a purge takes a session that still ends there, living or not, and no other."""
        labels = {"env": "prod"}
        ended = await desk.create("a", count=3, labels=labels)
        moved, dead, kept = await desk.create("b", count=2), await desk.create("c"), await desk.create("d")
        seen = [pen.prev or b"" for pen in (ended, moved, dead, kept)]
        await desk.write(moved)
        await desk.delete(dead)
        before = await desk.store.count(Query(namespace=desk.namespace))
        keys = [ended.key, moved.key, dead.key, fresh_key(), ended.key]
        assert await desk.store.purge(keys, [*seen[:3], seen[0], seen[0]]) == [3, 0, 0, 0, 0]
        assert await desk.store.purge([dead.key], [dead.prev or b""]) == [2]
        assert await desk.log(ended) == []
        assert (await desk.other.count(Query(namespace=desk.namespace))).entries == before.entries - 5
        assert await desk.other.find(Query(namespace=desk.namespace, labels=labels)) == []
        assert await desk.other.find(Query(namespace=desk.namespace, deleted_for=0)) == []
        assert await desk.send(ended.group()) == Verdict(MISSING)
        assert sorted(await desk.ids()) == ["b", "d"]
        await desk.write(moved)
        await desk.create("a", labels=labels)
        assert len(await desk.other.find(Query(namespace=desk.namespace, labels=labels))) == 1

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
            lambda: store.purge([pen.key]),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call()

    @on_a_desk
    async def test_nothing_asked_nothing_done(self, desk: Desk) -> None:
        """Empty lists of groups and refs are answered with empty lists."""
        assert await desk.store.append([]) == []
        assert await desk.store.heads([]) == []
