"""One engine per store: namespaces are views of it."""

from __future__ import annotations

import asyncio
import threading

import pytest

import saveslot
from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.log import Query


class Counted(PassingStore):
    """Counts worker rows, and round trips: calls that start while no other is running."""

    def __init__(self, store):
        super().__init__(store)
        self.workers, self.rounds, self._under_way = set(), 0, 0

    async def beat(self, signs, worker=None):
        if worker is not None:
            self.workers.add(worker.id)
        return await super().beat(signs, worker)

    async def _call(self, call):
        self.rounds += not self._under_way
        self._under_way += 1
        try:
            await asyncio.sleep(0.01)  # as over a network: calls that can overlap do
            return await call
        finally:
            self._under_way -= 1

    async def heads(self, refs, *, state=False):
        return await self._call(super().heads(refs, state=state))

    async def entries(self, key, *wanted):
        return await self._call(super().entries(key, *wanted))

    async def append(self, groups, **how):
        return await self._call(super().append(groups, **how))


async def test_namespaces_need_no_thread_store_or_worker_row(stores):
    """A thousand namespaces need no thread, store or worker row each; every namespace has its own sessions."""
    store = Counted(stores[0])
    sessions = saveslot.SessionManager(store=store)
    await sessions.create_session("tutor", session_id="s")
    held = await sessions.take("s")
    threads = threading.active_count()
    for n in range(1000):
        view = sessions.of(f"tenant-{n}")
        assert (view.namespace, view.engine) == (f"tenant-{n}", sessions.engine)
        if n % 100 == 0:
            await view.create_session("tutor", session_id="s")
            async with view.hold("s") as theirs:
                await theirs.checkpoint("one", {"n": n})
            assert await view.get_data("s") == {"n": n}
        await view.close()
    assert threading.active_count() <= threads + 1  # a reading thread may have started
    assert len(store.workers) == 1
    await held.checkpoint("still mine", {})
    await held.release()
    assert [row.session_id for row in await store.find(Query(namespace="tenant-900"))] == ["s"]
    await sessions.engine.worker.leave()


async def test_keepers_are_per_namespace_and_end_with_the_engine(stores):
    """A view's keeper continues after the view is gone, and stops when the manager is closed."""
    sessions = saveslot.SessionManager(store=stores[0])
    await sessions.of("a").keeper.start()
    assert sessions.of("a").keeper.stats["running"]
    assert not sessions.of("b").keeper.stats["running"]
    await sessions.of("a").close()
    assert sessions.of("a").keeper.stats["running"]
    await sessions.of("a").keeper.stop()


def test_blocking_manager_has_views():
    """Synchronous callers have `of` too."""
    with saveslot.blocking.open("memory:") as sessions:
        school = sessions.of("school-7")
        school.create_session("tutor", session_id="s")
        with school.hold("s") as held:
            held.checkpoint("one", {"n": 1})
        school.close()
        assert (school.get_data("s"), sessions.find()) == ({"n": 1}, [])
        assert [checkpoint.name for checkpoint in school.walk("s")] == ["session_created", "one"]


@pytest.mark.parametrize("turns", [1, 40])
async def test_get_session_and_hold_take_two_round_trips(stores, turns):
    """Headers and frames are read together, and hold reads a session's state while it acquires it."""
    plain = saveslot.SessionManager(store=stores[0])
    await plain.create_session("tutor", session_id="s")
    for n in range(turns):
        await plain.checkpoint("s", "turn", append={"messages": [f"message {n} " * 10]})
    store = Counted(stores[0])
    sessions = saveslot.SessionManager(store=store)
    session = await sessions.get_session("s")
    assert len(session.checkpoints[-1].data["messages"]) == turns
    assert store.rounds <= 2
    store.rounds = 0
    held = await sessions.take("s")
    assert len(held.data["messages"]) == turns
    assert store.rounds <= 2
    await held.release()
    await sessions.engine.worker.leave()
