"""Emptying, purging, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from saveslot.errors import InvalidInput, Unavailable
from saveslot.testing.conformance.desk import ALREADY, MISSING, PATIENCE, Desk, Suite, on_a_desk
from saveslot.values.ids import fresh_key
from saveslot.values.log import Query, Verdict


class Keeping(Suite):
    # Emptying and purging

    @on_a_desk
    async def test_empty_drops_frames_only(self, desk: Desk) -> None:
        """An emptied entry keeps its seq, append id and note; appends and retries still work."""
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
    async def test_empty_changes_one_session_only(self, desk: Desk) -> None:
        """The same seqs of another session keep their frames."""
        one, two = await desk.create("a", count=3), await desk.create("b", count=3)
        await desk.store.empty(one.key, [1, 2, 3])
        assert [entry.frame for entry in await desk.log(one)] == [None] * 3
        assert None not in [entry.frame for entry in await desk.log(two)]

    @on_a_desk
    async def test_empty_with_notes_keeps_their_checksums(self, desk: Desk) -> None:
        """With `notes` an entry keeps the first 16 bytes of its note; emptying it again changes nothing."""
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
        """No entry is written, so the next append does not conflict; a body that changed is left alone."""
        if not self.erases:
            with pytest.raises(InvalidInput):
                await desk.store.swap(fresh_key(), b"", b"")
            return
        pen = await desk.create()
        [head] = await desk.store.heads([pen.key])
        assert head is not None
        before = head.row.body
        assert not await desk.store.swap(pen.key, before + b"!", b"new")
        assert await desk.store.swap(pen.key, before, b"new")
        assert not await desk.other.swap(pen.key, before, b"newer")
        assert not await desk.store.swap(fresh_key(), before, b"new")
        [after] = await desk.other.heads([pen.key])
        assert after is not None
        head.row.body = b"new"
        assert after == head
        await desk.write(pen)

    @on_a_desk
    async def test_an_erased_row_has_no_user_and_labels(self, desk: Desk) -> None:
        """Only a deleted session's body can become b""; its user and labels go with it, its id stays."""
        if not self.erases:
            return
        row: dict[str, Any] = {"agent_type": "tutor", "user_id": "anna", "body": b"secret", "labels": {"env": "prod"}}
        pen = await desk.create("s", **row)
        assert not await desk.store.swap(pen.key, b"secret", b"")
        await desk.delete(pen)
        everyone = Query(namespace=desk.namespace, deleted_for=0)
        [session] = await desk.other.find(everyone)
        assert (session.body, session.user_id, session.labels) == (b"secret", "anna", {"env": "prod"})
        assert await desk.store.swap(pen.key, b"secret", b"")
        await desk.store.scrub()
        [session] = await desk.other.find(everyone)
        assert (session.session_id, session.agent_type) == ("s", "tutor")
        assert (session.body, session.user_id, session.labels) == (b"", "", {})
        assert await desk.store.find(Query(namespace=desk.namespace)) == []

    @on_a_desk
    async def test_purge_removes_deleted_sessions_only(self, desk: Desk) -> None:
        """All rows of a deleted session go; a session that is not deleted stays."""
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
    async def test_purge_with_seen_removes_unchanged_sessions_only(self, desk: Desk) -> None:
        """A session is removed if its newest entry is still the one in `seen`, deleted or not."""
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
    async def test_acknowledged_entries_survive_close(self, desk: Desk) -> None:
        """After the writing handle is closed the other one reads every entry."""
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
    async def test_a_closed_store_raises_unavailable(self, desk: Desk) -> None:
        """Every call raises; closing again does nothing; a waiting `events` call ends."""
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
            lambda: store.swap(pen.key, b"", b"new"),
            lambda: store.purge([pen.key]),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call()

    @on_a_desk
    async def test_empty_lists_return_empty_lists(self, desk: Desk) -> None:
        """Empty lists of groups and refs."""
        assert await desk.store.append([]) == []
        assert await desk.store.heads([]) == []
