"""Read levels: `strong` includes every acknowledged write, `cached` is at most `max_age` seconds old."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import saveslot
from saveslot import SessionManager

YEAR = 365 * 24 * 3600


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[SessionManager, SessionManager]]:
    url = f"sqlite:///{tmp_path}/a.db"
    async with saveslot.open(url) as one, saveslot.open(url) as two:
        yield one, two


async def seen(sessions: SessionManager, level: str, max_age: float) -> tuple[object, ...]:
    how = {"level": level, "max_age": max_age}
    session = await sessions.get_session("s", **how)
    return (
        session and len(session.checkpoints),
        len(await sessions.find(**how)),
        len(await sessions.get_active_sessions(**how)),
        await sessions.count(**how),
        (await sessions.stats(**how))["sessions"],
    )


async def test_only_cached_reads_may_be_stale(pair: tuple[SessionManager, SessionManager]) -> None:
    """Cached reads are at most `max_age` old; with a `max_age` of 0 they are as new as strong ones."""
    one, two = pair
    await one.create_session("tutor", session_id="s")
    before = (1, 1, 1, 1, 1)
    assert await seen(two, "cached", YEAR) == before
    await one.checkpoint("s", "turn", {"n": 1})
    await one.create_session("tutor", session_id="t")
    now = (2, 2, 2, 2, 2)
    assert await seen(two, "cached", YEAR) == before
    assert await seen(two, "strong", YEAR) == now
    assert await seen(two, "cached", 0) == now
    assert await seen(two, "cached", YEAR) == now
    await one.delete_session("s")
    await one.delete_session("t")
    assert await seen(two, "cached", YEAR) == now
    assert await seen(two, "strong", YEAR) == (None, 0, 0, 0, 0)


async def test_cached_sessions_are_not_shared(pair: tuple[SessionManager, SessionManager]) -> None:
    """One caller's changes to a value are not visible to another; a cached value can be saved like any other."""
    one, two = pair
    await one.create_session("tutor", session_id="s", context={"list": [1]})
    first = await two.get_session("s", level="cached", max_age=YEAR)
    second = await two.get_session("s", level="cached", max_age=YEAR)
    assert first is not None
    assert second is not None
    first.context["list"].append(2)
    assert second.context == {"list": [1]}
    await two.update_session(first)
    second.checkpoint("late", {})
    with pytest.raises(saveslot.Conflict):  # an old value is an old value, wherever it came from
        await two.update_session(second)


async def test_concurrent_cached_reads_share_one_query(pair: tuple[SessionManager, SessionManager]) -> None:
    """Fifty dashboards cause one query; a cancelled caller does not affect the others."""
    one, two = pair
    await one.create_session("tutor", session_id="s")
    asking = [asyncio.create_task(two.count(level="cached")) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert await asyncio.gather(*asking[1:]) == [1] * 49
    metrics = await two.metrics()
    assert metrics["database"]["count"]["calls"] == 1
    assert (metrics["memory"]["cached_hits"], metrics["memory"]["cached_misses"]) == (49, 1)


async def test_failed_reads_are_not_cached() -> None:
    """The next read queries the store again."""
    sessions = SessionManager()
    await sessions.close()
    for _ in range(2):
        with pytest.raises(saveslot.Unavailable):
            await sessions.count(level="cached", max_age=YEAR)
    assert (await sessions.metrics())["memory"]["cached_misses"] == 2


@pytest.mark.parametrize(("how", "path"), [({"level": "eventual"}, "level"), ({"max_age": -1}, "max_age")])
async def test_unknown_level_is_refused(how: dict[str, object], path: str) -> None:
    """A misspelt level is an error and does not fall back to another level."""
    async with SessionManager() as sessions:
        with pytest.raises(saveslot.InvalidInput, match=path):
            await sessions.find(**how)
