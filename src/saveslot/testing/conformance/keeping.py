"""Emptying, purging, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from saveslot.errors import Unavailable
from saveslot.log import Query, Verdict
from saveslot.model import fresh_key
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
