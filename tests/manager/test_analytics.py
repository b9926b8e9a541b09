"""Analytics equal what a full scan of every log counts."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings, strategies as st

import saveslot
from saveslot import InvalidInput, SessionManager
from saveslot.manager.log_lines import LogLine
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite.file import connect
from saveslot.testing import Clock

Opened = Callable[[Clock, Path], Awaitable[Store]]


@pytest.fixture(params=["memory", "sqlite", "postgres"], scope="module")
def opened(request) -> Opened:
    async def memory(clock: Clock, folder: Path) -> Store:
        return MemoryStore(clock, clock.uptime)

    async def sqlite(clock: Clock, folder: Path) -> Store:
        return await SqliteStore.open(str(folder / "s.db"), clock, uptime=lambda: ("this boot", clock.uptime()))

    url = request.getfixturevalue("database").url if request.param == "postgres" else ""

    async def postgres(clock: Clock, folder: Path) -> Store:
        return await PostgresStore.open(url, clock, clock.uptime)

    return {"memory": memory, "sqlite": sqlite, "postgres": postgres}[request.param]


@asynccontextmanager
async def managed(opened: Opened, clock: Clock):
    with tempfile.TemporaryDirectory() as folder:
        store = await opened(clock, Path(folder))
        async with SessionManager(store=store, namespace=uuid4().hex) as sessions:
            yield sessions


VERBS = (
    "asked",
    "planned",
    "answered",
    "asked",
    "answered",
    "pause",
    "complete",
    "fail",
    "recover",
    "rollback",
    "hold",
)
verbs = st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from([0, 1, 7, 90, 4000, 90_000])), max_size=6)
plans = st.lists(
    st.tuples(st.sampled_from(["tutor", "coder"]), st.sampled_from(["red", "blue"]), verbs, st.booleans()), max_size=4
)


async def live(sessions: SessionManager, plan: Any, clock: Clock) -> None:
    for n, (agent_type, team, acts, deleted) in enumerate(plan):
        name = f"s{n}"
        clock.go(5)
        await sessions.create_session(agent_type, labels={"team": team}, session_id=name)
        for number, (act, seconds) in enumerate(acts):
            clock.go(seconds)
            await done(sessions, name, act, number)
        if deleted and n % 3 == 0:
            await sessions.delete_session(name)


async def done(sessions: SessionManager, name: str, act: str, number: int) -> None:
    """Do what the state allows; skip the rest."""
    try:
        if act == "hold":
            async with sessions.hold(name) as held:
                await held.step("look", lambda: number)
        elif act == "rollback":
            await sessions.rollback(name, 1)
        elif act in {"asked", "planned", "answered"}:
            await sessions.checkpoint(await sessions.get_session(name), act, {"n": number})
        else:
            session = await sessions.get_session(name)
            getattr(session, act)(*([f"reason {number % 2}"] if act == "fail" else []))
            await sessions.update_session(session)
    except saveslot.InvalidTransition:
        return


def spread(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    by_key = {f"p{p}": ordered[math.ceil(len(ordered) * p / 100) - 1] if ordered else None for p in (50, 90, 99)}
    return {"count": len(ordered), **by_key, "max": ordered[-1] if ordered else None}


def seconds(a: datetime, b: datetime) -> float:
    return (b - a) // timedelta(microseconds=1) / 1_000_000


async def counted(sessions: SessionManager, **filters: Any) -> dict[str, Any]:
    """Count the same figures from every session's full log."""
    page = await sessions.find(**filters, limit=1000)
    logs: dict[str, list[LogLine]] = {s.session_id: await sessions.log(s.session_id, all=True) for s in page}
    lines = [line for log in logs.values() for line in log]
    saved = [line for line in lines if line.kind == "checkpoint"]
    spans: list[float] = []
    for log in logs.values():
        marks = [line for line in log if line.kind == "checkpoint" and line.name in {"asked", "answered"}]
        for before, after in pairwise(marks):
            if (before.name, after.name) == ("asked", "answered"):
                spans.append(seconds(before.timestamp, after.timestamp))
    ends = {
        state: [
            seconds(s.created_at, [line for line in logs[s.session_id] if line.kind == state][-1].timestamp)
            for s in page
            if s.state == state
        ]
        for state in ("completed", "failed")
    }
    reasons = [
        [line for line in logs[s.session_id] if line.kind == "failed"][-1].metadata["error"]
        for s in page
        if s.state == "failed"
    ]
    return {
        "sessions": len(page),
        "by_state": {state: sum(s.state == state for s in page) for state in saveslot.SessionState},
        "by_agent_type": dict(Counter(s.agent_type for s in page)),
        "looked_at": {
            "sessions": len(page),
            "entries": len(lines),
            "since": min(s.created_at for s in page).isoformat() if page else None,
        },
        "checkpoints": len(saved),
        "by_name": dict(Counter(line.name for line in saved)),
        "bytes": {
            "total": sum(line.bytes for line in lines),
            "per_session": spread([sum(line.bytes for line in log) for log in logs.values()]),
        },
        "durations": {state: spread(times) for state, times in ends.items()},
        "between": {"from": "asked", "to": "answered", **spread(spans)},
        "failures": {"read": len(reasons), "reasons": dict(Counter(reasons))},
        "saved": [line.timestamp for line in saved],
    }


@settings(max_examples=12, deadline=None)
@given(plan=plans)
def test_analytics_equal_a_full_scan_of_the_logs(opened, plan):
    """Counts, times, durations, reasons, bytes and rates equal those counted from every log, filtered or not."""

    async def main() -> None:
        clock = Clock()
        async with managed(opened, clock) as sessions:
            await live(sessions, plan, clock)
            middle = datetime.fromtimestamp(clock() / 1_000_000, UTC) - timedelta(hours=1)
            for filters in ({}, {"agent_type": "tutor"}, {"labels": {"team": "red"}}, {"created_before": middle}):
                expected = await counted(sessions, **filters)
                figures = await sessions.analytics(between=("asked", "answered"), **filters)
                saved = expected.pop("saved")
                assert {part: figures[part] for part in expected} == expected, filters
                rated(figures["rate"], saved)

    asyncio.run(main())


def rated(rate: dict[str, Any], saved: list[datetime]) -> None:
    """Each bucket counts the saves in it; the buckets add up to the total."""
    width = timedelta(seconds=rate["bucket_seconds"])
    starts = [datetime.fromisoformat(piece["start"]) for piece in rate["buckets"]]
    counts = [piece["checkpoints"] for piece in rate["buckets"]]
    assert counts == [sum(start <= at < start + width for at in saved) for start in starts]
    assert sum(counts) == len(saved)
    assert len(counts) <= 60
    assert not counts or (counts[0] and counts[-1])


async def test_sample_reads_newest_sessions_whole(opened):
    """`sample` limits how many sessions are read, and long logs lower that number; counts still cover all sessions."""
    clock = Clock()
    async with managed(opened, clock) as sessions:
        for n in range(6):
            clock.go(60)
            await sessions.create_session("tutor", session_id=f"s{n}")
            for _ in range(25 if n < 4 else 1):
                await sessions.checkpoint(f"s{n}", f"of {n}", {})
        figures = await sessions.analytics(sample=2)
        assert (figures["sessions"], figures["looked_at"]["sessions"]) == (6, 2)
        assert figures["by_name"] == {"of 4": 1, "of 5": 1}
        figures = await sessions.analytics(sample=4)  # 40 entries: 2, 2, 26, and not all of the next
        assert figures["by_name"] == {"of 3": 25, "of 4": 1, "of 5": 1}
        assert figures["looked_at"]["sessions"] == 3
        assert (await sessions.analytics(sample=1, created_before=told_time(clock, 180)))["by_name"] == {
            "of 1": 9
        }  # and its creation: ten


def told_time(clock: Clock, ago: float) -> datetime:
    return datetime.fromtimestamp(clock() / 1_000_000 - ago, UTC)


async def test_rate_uses_the_given_bucket():
    """`bucket` is used as given; one that splits a long period into too many buckets is refused."""
    clock = Clock()
    async with SessionManager(store=MemoryStore(clock, clock.uptime)) as sessions:
        assert (await sessions.analytics())["rate"]["buckets"] == []
        await sessions.create_session("tutor", session_id="s")
        for seconds in (0, 30, 100):
            clock.go(seconds)
            await sessions.checkpoint("s", "tick", {})
        rate = (await sessions.analytics(bucket=timedelta(seconds=50)))["rate"]
        assert [piece["checkpoints"] for piece in rate["buckets"]] == [2, 0, 1]
        clock.go(86_400 * 4000)
        await sessions.checkpoint("s", "tick", {})
        assert len((await sessions.analytics())["rate"]["buckets"]) <= 60
        for bad in (timedelta(seconds=1), timedelta(0), timedelta(seconds=-5)):
            with pytest.raises(InvalidInput, match="bucket"):
                await sessions.analytics(bucket=bad)
        with pytest.raises(InvalidInput, match="sample"):
            await sessions.analytics(sample=0)


async def test_damaged_failure_reason_is_counted(tmp_path):
    """An unreadable note does not affect the other counts."""
    async with saveslot.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        for name in ("a", "b"):
            session = await sessions.create_session("tutor", session_id=name)
            session.fail("timeout")
            await sessions.update_session(session)
        connection = connect(f"{tmp_path}/s.db", None)
        connection.execute(
            "update checkpoints set note = x'00' where kind = 6 and key = (select key from sessions where id = 'a')"
        )
        connection.close()
        assert (await sessions.analytics())["failures"] == {"read": 2, "reasons": {"(damaged)": 1, "timeout": 1}}
