"""Between a client and its server: lost answers, cut and mute connections, a server that is not there."""

from __future__ import annotations

import asyncio

import pytest

import saveslot
from saveslot import Unavailable
from saveslot.stores.http import HttpStore, wire
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing.pen import Pen
from saveslot.values.log import Outcome, Wanted
from tests.harness.proxy import Proxy


@pytest.fixture
def way(serving, tmp_path):
    """A proxy to a server."""
    with Proxy(serving.serve(lambda: SqliteStore.open(str(tmp_path / "s.db")))) as way:
        yield way
    serving.stop()


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (the proxy counts in another thread)
            await asyncio.sleep(0.01)


async def test_a_write_whose_answer_was_lost_is_stored_once(way):
    """The client sends the same entries again, and the store recognises them."""
    store = await HttpStore.open(way.url)
    pen = Pen("default", "a")
    way.lose_answers()
    writing = asyncio.ensure_future(store.append([pen.begin()]))
    await until(lambda: way.lost)
    way.heal()
    way.cut()
    [verdict] = await writing
    assert verdict.outcome is Outcome.ALREADY
    assert len(await store.entries(pen.key, Wanted())) == 1
    await store.close()


async def test_work_goes_on_over_cut_connections(way):
    """Checkpoints and a watch that are cut again and again are all there once, in order."""
    seen: list[int] = []

    async def watch(sessions: saveslot.SessionManager) -> None:
        async for event in sessions.watch("s", after=0):
            seen.append(event.seq)  # noqa: PERF401  (it never ends)

    async with saveslot.open(way.url) as sessions:
        await sessions.create_session("agent", session_id="s")
        watching = asyncio.ensure_future(watch(sessions))
        for n in range(30):
            if n % 3 == 0:
                way.cut()
            await sessions.checkpoint("s", "turn", {"n": n})
        await until(lambda: len(seen) == 31)
        watching.cancel()
        assert seen == list(range(1, 32))
        assert [checkpoint.data for checkpoint in await sessions.history("s", name="turn")] == [
            {"n": n} for n in range(30)
        ]


async def test_a_server_that_is_not_there_is_named():
    """A command gives up at once, says where it looked, and what to do."""
    with pytest.raises(Unavailable, match="saveslot serve"):
        await HttpStore.open("http://127.0.0.1:9", patient=False)


@pytest.mark.faults
async def test_a_mute_connection_is_given_up(way):
    """A connection on which nothing arrives any more is replaced, within the client's patience."""
    store = await HttpStore.open(way.url)
    pen = Pen("default", "a")
    way.drop()
    writing = asyncio.ensure_future(store.append([pen.begin()]))
    await until(lambda: way.lost)
    way.heal()
    [verdict] = await writing
    assert verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}
    await store.close()


@pytest.mark.parametrize("order", ["created", "changed"])
async def test_a_list_longer_than_a_request_is_whole(way, monkeypatch, order):
    """The client asks for page after page, whatever the order."""
    monkeypatch.setattr(wire, "PAGE", 3)
    async with saveslot.open(way.url) as sessions:
        ids = [(await sessions.create_session("agent")).session_id for _ in range(8)]
        for limit in (6, 7, 8, 2**70):
            page = await sessions.find(limit=limit, order=order)
            assert [session.session_id for session in page] == ids[::-1][:limit]
