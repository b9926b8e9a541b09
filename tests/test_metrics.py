"""What a manager did, by tier: counts that are right, percentiles that are nearly, and nothing of what was saved."""

import asyncio
import json
import logging
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from hypothesis import given, strategies as st

import saveslot
from saveslot import SessionManager, blocking
from saveslot.metrics import Spread
from saveslot.stack import Postgres, Valkey

PLANTED = "nobody-may-read-this"


@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=300))
def test_percentiles_are_at_most_an_eighth_above_the_truth(values: list[int]) -> None:
    """And never below it; the largest is exact."""
    spread = Spread()
    for value in values:
        spread.add(value)
    told = spread.percentiles()
    ranked = sorted(values)
    assert told["max"] == ranked[-1]
    assert spread.count == len(values)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        truth = ranked[max(0, -(-len(values) * round(share * 100) // 100) - 1)]
        if truth < 2**41:
            assert truth <= told[name] <= truth * 9 / 8


def test_nothing_counted_is_nothing_told() -> None:
    """All zeros, not an error."""
    assert Spread().percentiles() == {"p50": 0, "p90": 0, "p99": 0, "max": 0}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, Valkey]]:
    with Postgres() as database, Valkey() as hot:
        yield database, hot


@pytest.fixture(params=["memory", "sqlite", "postgres", "tiered"])
async def sessions(
    request: pytest.FixtureRequest, servers: tuple[Postgres, Valkey], tmp_path: Path
) -> AsyncIterator[SessionManager]:
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(request.param, servers[0].url)
    hot = servers[1].url if request.param == "tiered" else None
    async with saveslot.open(url, hot=hot, namespace=request.param) as sessions:
        yield sessions


async def test_every_store_tells_what_it_did(sessions: SessionManager) -> None:
    """Appends with their outcomes and bytes, reads, renewals, conflicts and watches are counted; the whole is JSON."""
    session = await sessions.create_session("tutor")
    name = session.session_id
    old = await sessions.get_session(name)
    assert old is not None
    for turn in range(10):
        await sessions.checkpoint(name, "turn", {"turn": turn, "noise": random.randbytes(100).hex()})
    old.checkpoint("late", {})
    with pytest.raises(saveslot.Conflict):
        await sessions.update_session(old)
    fresh = await sessions.get_session(name)
    assert fresh is not None
    await sessions.update_session(fresh)  # a heartbeat
    async with sessions.hold(name):
        pass
    with pytest.raises(saveslot.NotFound):
        await sessions.get_data("unknown")
    async for event in sessions.watch(name, after=0):
        assert event.seq == 1
        break
    await sessions.find()
    await sessions.count()
    told = await sessions.metrics()
    assert json.loads(json.dumps(told)) == told
    database = told["database"]
    assert database["appends"]["calls"] == database["appends"]["groups"] == 13  # created, ten turns, held, released
    assert database["appends"]["entries"] == 13
    assert database["appends"]["bytes"] > 10 * 100
    assert database["appends"]["outcomes"]["appended"] == 13
    assert database["appends"]["errors"] == 0
    assert 0 < database["appends"]["ms"]["p50"] <= database["appends"]["ms"]["p99"] <= database["appends"]["ms"]["max"]
    assert database["heads"]["calls"] > 0
    assert database["entries"]["calls"] > 0
    assert database["find"]["calls"] == database["count"]["calls"] == 1
    assert database["heartbeats"]["calls"] == 1
    assert database["renewals"]["calls"] >= 1
    assert database["watches"]["wakeups"] >= 1
    assert told["memory"]["sessions"] == 1
    assert told["memory"]["hits"] >= 10
    assert told["worker"]["beats"] >= 1
    assert ("hot" in told) == (sessions.namespace == "tiered")


async def test_conflicts_batches_and_retries(servers: tuple[Postgres, Valkey]) -> None:
    """Two managers write the same entry: one is told; many sessions at once share transactions; a broken connection
    is a retry.
    """
    async with (
        saveslot.open(servers[0].url, namespace="many") as one,
        saveslot.open(servers[0].url, namespace="many") as two,
    ):
        ids = [(await one.create_session("tutor")).session_id for _ in range(40)]
        await two.checkpoint(ids[0], "turn", {"by": 2})
        with pytest.raises(saveslot.Conflict):
            await one.checkpoint(ids[0], "turn", {"by": 1})
        assert (await one.metrics())["database"]["appends"]["outcomes"]["conflict"] == 1
        await asyncio.gather(*(two.checkpoint(name, "turn", {"by": 3}) for name in ids[2:]))
        batches = (await two.metrics())["database"]["batches"]
        assert batches["groups"]["max"] > 1
        assert batches["count"] < (await two.metrics())["database"]["appends"]["calls"]
        assert (await two.metrics())["database"]["retries"] == 0
        async with asyncpg.create_pool(servers[0].url, min_size=1, max_size=1) as pool, pool.acquire() as other:
            async with other.transaction():
                await other.execute("lock table saveslot.checkpoints in access exclusive mode")
                writing = asyncio.create_task(two.checkpoint(ids[5], "turn", {"by": 4}))
                stuck = "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'"
                while not await other.fetch(stuck):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await writing
        assert (await two.metrics())["database"]["retries"] > 0


def test_the_blocking_manager_has_them_too() -> None:
    """The same dict."""
    with blocking.open("memory:") as sessions:
        sessions.create_session("tutor")
        assert sessions.metrics()["database"]["appends"]["entries"] == 1


# What must not be told


def spoken(caplog: pytest.LogCaptureFixture, errors: list[BaseException]) -> str:
    """Everything that was logged, with tracebacks, and every error's own words."""
    formatter = logging.Formatter()
    lines = [formatter.format(record) + repr(record.args) for record in caplog.records]
    return "\n".join([*lines, *(str(exc) for exc in errors)])


async def test_no_log_and_no_error_tells_what_was_saved(
    sessions: SessionManager, servers: tuple[Postgres, Valkey], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A database that refuses a row, a takeover that fails, a Valkey that stalls: logs carry ids, never content."""
    caplog.set_level(logging.DEBUG, "saveslot")
    errors: list[BaseException] = []
    told = {"secret": PLANTED}
    await sessions.create_session("tutor", context=told, metadata=told, labels=told, session_id="plain-id")
    await sessions.checkpoint("plain-id", "turn", told, told)
    if sessions.namespace == "sqlite":
        with closing(sqlite3.connect(tmp_path / "a.db")) as file:
            file.execute("create trigger refuse before insert on checkpoints begin select raise(abort, 'refused'); end")
    elif sessions.namespace != "memory":
        async with asyncpg.create_pool(servers[0].url, min_size=1, max_size=1) as pool:
            await pool.execute("alter table saveslot.checkpoints add constraint refuse check (name = '') not valid")
            await pool.execute("alter table saveslot.sessions add constraint refuse check (state = '') not valid")
    try:
        for write in (
            sessions.checkpoint("plain-id", "turn", {"secret": PLANTED, "more": 1}, told),
            sessions.create_session("tutor", context=told, metadata=told, labels=told, session_id="plain-id"),
            sessions.create_session("tutor", context=told, labels=told),
            sessions.checkpoint("plain-id", "turn", {"secret": float("nan")}, told),
            sessions.rollback("plain-id", "nowhere"),
        ):
            try:
                await write
            except saveslot.SaveslotError as exc:
                errors.append(exc)
    finally:
        if sessions.namespace in {"postgres", "tiered"}:
            async with asyncpg.create_pool(servers[0].url, min_size=1, max_size=1) as pool:
                await pool.execute("alter table saveslot.checkpoints drop constraint refuse")
                await pool.execute("alter table saveslot.sessions drop constraint refuse")
    assert len(errors) >= 3

    async def takeover(held: saveslot.Held) -> None:
        raise ValueError(f"{held.data}")

    if sessions.namespace != "sqlite":
        await sessions.keeper.start(takeover=takeover, released=True)
        while not any("plain-id" in record.getMessage() for record in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await sessions.keeper.stop()
    assert PLANTED not in spoken(caplog, errors)
    assert PLANTED not in json.dumps(await sessions.metrics())
