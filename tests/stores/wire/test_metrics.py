"""Metrics per tier: exact counts, approximate percentiles, and no saved content."""

import asyncio
import json
import logging
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from hypothesis import given, strategies as st

import saveslot
from saveslot import SessionManager, blocking
from saveslot.stores.wire.metrics import Spread
from tests.harness.servers import Database

PLANTED = "nobody-may-read-this"


@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=300))
def test_percentiles_are_at_most_an_eighth_too_high(values: list[int]) -> None:
    """A percentile is never below the true value, and the maximum is exact."""
    spread = Spread()
    for value in values:
        spread.add(value)
    answer = spread.percentiles()
    ranked = sorted(values)
    assert answer["max"] == ranked[-1]
    assert spread.count == len(values)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        truth = ranked[max(0, -(-len(values) * round(share * 100) // 100) - 1)]
        if truth < 2**41:
            assert truth <= answer[name] <= truth * 9 / 8


def test_empty_metrics_are_zero() -> None:
    """Metrics of an unused store are all zeros, not an error."""
    assert Spread().percentiles() == {"p50": 0, "p90": 0, "p99": 0, "max": 0}


@pytest.fixture(params=["memory", "sqlite", "postgres", "tiered"])
async def sessions(
    request: pytest.FixtureRequest, database: Database, valkey_url: str, tmp_path: Path
) -> AsyncIterator[SessionManager]:
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(request.param, database.url)
    hot = valkey_url if request.param == "tiered" else None
    async with saveslot.open(url, hot=hot, namespace=request.param) as sessions:
        yield sessions


async def test_every_store_counts_its_operations(sessions: SessionManager) -> None:
    """Appends with outcomes and bytes, reads, renewals, conflicts and watches are counted; the result is JSON."""
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
    metrics = await sessions.metrics()
    assert json.loads(json.dumps(metrics)) == metrics
    database = metrics["database"]
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
    assert metrics["memory"]["sessions"] == 1
    assert metrics["memory"]["hits"] >= 10
    assert metrics["worker"]["beats"] >= 1
    assert ("hot" in metrics) == (sessions.namespace == "tiered")


async def test_metrics_count_conflicts_batches_and_retries(database: Database, valkey_url: str) -> None:
    """Two managers write the same entry: one gets a conflict; sessions that are written at once share transactions; a
    broken connection is a retry.
    """
    async with (
        saveslot.open(database.url, namespace="many") as one,
        saveslot.open(database.url, namespace="many") as two,
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
        async with asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool, pool.acquire() as other:
            async with other.transaction():
                await other.execute("lock table saveslot.checkpoints in access exclusive mode")
                writing = asyncio.create_task(two.checkpoint(ids[5], "turn", {"by": 4}))
                stuck = "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'"
                while not await other.fetch(stuck):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await writing
        assert (await two.metrics())["database"]["retries"] > 0


def test_blocking_manager_has_metrics() -> None:
    """It returns the same dict."""
    with blocking.open("memory:") as sessions:
        sessions.create_session("tutor")
        assert sessions.metrics()["database"]["appends"]["entries"] == 1


# What metrics must not contain


def spoken(caplog: pytest.LogCaptureFixture, errors: list[BaseException]) -> str:
    """Everything logged, with tracebacks, and every error's text."""
    formatter = logging.Formatter()
    lines = [formatter.format(record) + repr(record.args) for record in caplog.records]
    return "\n".join([*lines, *(str(exc) for exc in errors)])


async def test_logs_and_errors_contain_no_saved_content(
    sessions: SessionManager, database: Database, valkey_url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """When a database refuses a row, a takeover fails or Valkey stalls, logs contain ids, never content."""
    caplog.set_level(logging.DEBUG, "saveslot")
    errors: list[BaseException] = []
    answer = {"secret": PLANTED}
    await sessions.create_session("tutor", context=answer, metadata=answer, labels=answer, session_id="plain-id")
    await sessions.checkpoint("plain-id", "turn", answer, answer)
    if sessions.namespace == "sqlite":
        with closing(sqlite3.connect(tmp_path / "a.db")) as file:
            file.execute("create trigger refuse before insert on checkpoints begin select raise(abort, 'refused'); end")
    elif sessions.namespace != "memory":
        async with asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool:
            await pool.execute("alter table saveslot.checkpoints add constraint refuse check (name = '') not valid")
            await pool.execute("alter table saveslot.sessions add constraint refuse check (state = '') not valid")
    try:
        for write in (
            sessions.checkpoint("plain-id", "turn", {"secret": PLANTED, "more": 1}, answer),
            sessions.create_session("tutor", context=answer, metadata=answer, labels=answer, session_id="plain-id"),
            sessions.create_session("tutor", context=answer, labels=answer),
            sessions.checkpoint("plain-id", "turn", {"secret": float("nan")}, answer),
            sessions.rollback("plain-id", "nowhere"),
        ):
            try:
                await write
            except saveslot.SaveslotError as exc:
                errors.append(exc)
    finally:
        if sessions.namespace in {"postgres", "tiered"}:
            async with asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool:
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
