"""Records beside the state, and checkpoints dropped by choice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from saveslot import Conflict, InvalidInput, LeaseHeld, NotFound, Retention

GRACE = timedelta(0)


@pytest.fixture
async def s(sessions) -> str:
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    return "s"


async def test_records_come_back_in_order(s, sessions, others):
    """Any JSON value, with its number, name and time; by name, and after a number."""
    values = [None, 0, "text", [1, {"a": b"\x00"}], {"at": datetime(2026, 1, 2, tzinfo=UTC)}, True]
    numbers = [await sessions.record(s, f"r{n % 2}", value) for n, value in enumerate(values)]
    found = await others.records(s)
    assert [(one.seq, one.name, one.value) for one in found] == [
        (number, f"r{n % 2}", value) for n, (number, value) in enumerate(zip(numbers, values, strict=True))
    ]
    assert [one.seq for one in await others.records(s, name="r1", after=numbers[1])] == [numbers[3], numbers[5]]
    assert await others.records(s, after=99) == []
    assert all(abs(one.timestamp - found[0].timestamp) < timedelta(minutes=5) for one in found)
    for value in (float("nan"), object(), {1: 2}):
        with pytest.raises(InvalidInput, match="value"):
            await sessions.record(s, "wrong", value)
    for manager in (sessions, others):
        with pytest.raises(NotFound):
            await manager.record("nobody", "r", 1)
        with pytest.raises(NotFound):
            await manager.records("nobody")


async def test_record_is_not_a_checkpoint(s, sessions):
    """`latest`, `~n`, history, retention, the state and the version are as if it were not there."""
    await sessions.checkpoint(s, "one", {"n": 1})
    version = (await sessions.head(s)).version
    number = await sessions.record(s, "one", {"n": 9})
    assert (await sessions.get_checkpoint(s)).seq == (await sessions.get_checkpoint(s, "one")).seq == number - 1
    assert (await sessions.get_checkpoint(s, "~1")).name == "created"
    assert [c.name for c in await sessions.history(s)] == ["session_created", "created", "one"]
    assert (await sessions.head(s)).version == (await sessions.get_session(s)).version == version
    assert await sessions.get_data(s) == {"n": 1}
    await sessions.thin(s, Retention(keep_first=0, keep_last=1, keep_latest_per_name=False), grace=GRACE)
    [line] = [line for line in await sessions.log(s, all=True) if line.kind == "record"]
    assert (line.name, line.metadata) == ("one", {"value": {"n": 9}})
    assert [one.value for one in await sessions.records(s)] == [{"n": 9}]


async def test_record_is_nobodys_conflict(s, sessions, others):
    """Another caller's records come between two writes by id, by value, with `seen` and of a holder."""
    value = await sessions.get_session(s)
    seen = value.version
    for n in range(40):
        await others.record(s, "r", n)
    await sessions.checkpoint(s, "by id", {"n": 1}, seen=seen)
    await others.record(s, "r", 40)
    await sessions.checkpoint(s, "by id", append={"list": [1]})
    await others.record(s, "r", 41)
    await sessions.refresh(value)
    await others.record(s, "r", 42)
    value.context["k"] = 1
    await sessions.update_session(value)
    async with sessions.hold(s) as held:
        await held.checkpoint("held", {"n": 2, "list": [0]})
        for n in range(3):
            await others.record(s, "r", n)
            await sessions.record(s, "r", n)
            await held.checkpoint("held", append={"list": [n]})
            await others.record(s, "r", n)
            assert await held.step("double", lambda n=n: 2 * n, key=str(n)) == 2 * n
        await others.record(s, "r", 9)
        await held.update_context(k=2)
        await held.record("mine", 1)
        await others.record(s, "r", 10)
        await held.complete()
    assert (await others.get_data(s)) == {"n": 2, "list": [0, 0, 1, 2]}
    assert await others.record(s, "late", 1) > 0


async def test_record_does_not_make_a_stale_writer_current(s, sessions, others):
    """A writer by id that adds a record is still refused: it has not read what came before."""
    await others.checkpoint(s, "theirs", {"n": 1})
    await sessions.record(s, "r", 1)
    with pytest.raises(Conflict):
        await sessions.checkpoint(s, "stale", {"n": 2})


async def test_record_with_seen(s, sessions, others):
    """It is refused once the state has moved on, and not because of other records."""
    seen = (await sessions.head(s)).version
    await others.record(s, "r", 1)
    await sessions.record(s, "r", 2, seen=seen)
    await others.checkpoint(s, "theirs", {"n": 1})
    with pytest.raises(Conflict):
        await sessions.record(s, "r", 3, seen=seen)


async def test_record_key_is_written_once(s, sessions, others):
    """The same key and content: the first number, by any process, while held, or stale; else refused."""
    seen = (await sessions.head(s)).version
    writers = [manager.record(s, "r", {"a": 1}, key="k") for manager in (sessions, others) * 5]
    [number] = set(await asyncio.gather(*writers))
    await others.checkpoint(s, "theirs", {"n": 1})
    assert await sessions.record(s, "r", {"a": 1}, key="k", seen=seen) == number
    async with sessions.hold(s) as held:
        assert {await held.record("r", {"a": 1}, key="k"), await sessions.record(s, "r", {"a": 1}, key="k")} == {number}
        for name, value in (("other", {"a": 1}), ("r", {"a": True}), ("r", {"a": 1.0})):
            for call in (held.record(name, value, key="k"), others.record(s, name, value, key="k")):
                with pytest.raises(InvalidInput, match="key"):
                    await call
    assert [(one.seq, one.key) for one in await sessions.records(s)] == [(number, "k")]


async def test_records_travel_with_an_export(s, sessions, others):
    """An import has them, with their numbers and keys; a fork has none."""
    await sessions.record(s, "r", {"a": b"\x01"}, key="k")
    await others.import_session(await sessions.export(s), session_id="copy")
    await others.fork(s, session_id="fork")
    assert await others.records("copy") == await sessions.records(s)
    assert await others.records("fork") == []


async def test_drop_hides_the_checkpoints_named(s, sessions, others):
    """By number, name, `~n` or id; their bytes are freed later, and what others are rebuilt from stays readable."""
    for n in range(1, 8):
        await sessions.checkpoint(s, f"c{n}", append={"list": [n]})
    version = (await sessions.head(s)).version
    assert await sessions.drop(s, ["c1", 4, "~2", f"{s}:6", "c4"]) == 4
    assert [c.name for c in await others.history(s)] == ["session_created", "created", "c3", "c6", "c7"]
    assert [entry.seq for entry in await others.entries(s, kinds=["checkpoint"])] == [2, 5, 8, 9]
    assert (await others.head(s)).version == version
    await others.thin(s, Retention(), grace=GRACE)
    assert (await others.get_data(s, "c3"))["list"] == [1, 2, 3]
    assert (await others.get_data(s))["list"] == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(NotFound):
        await sessions.drop(s, "c1")
    assert await sessions.drop(s, []) == 0
    assert await sessions.drop(s, 2) == 1


async def test_drop_refuses_what_has_to_stay(s, sessions, others):
    """The latest one, pinned ones and lifecycle entries are named, and then nothing is dropped."""
    for n in range(1, 4):
        await sessions.checkpoint(s, f"c{n}", {"n": n})
    await sessions.pin(s, "c1")
    for ref, why in (("latest", "latest"), ("c3", "latest"), ("c1", "pinned"), (1, "created")):
        with pytest.raises(InvalidInput, match=f"refs.*{why}"):
            await sessions.drop(s, ["c2", ref])
    for wrong in (None, {"c1": 1}, [True]):
        with pytest.raises(InvalidInput, match="ref"):
            await sessions.drop(s, wrong)
    seen = (await sessions.get_checkpoint(s, "c2")).version
    with pytest.raises(Conflict):
        await sessions.drop(s, "c2", seen=seen)
    async with sessions.hold(s) as held:
        with pytest.raises(LeaseHeld):
            await others.drop(s, "c2")
        assert await sessions.drop(s, "c2", seen=held.session.version) == 1
        await held.checkpoint("c4", {"n": 4})
    assert [c.name for c in await others.history(s)] == ["session_created", "created", "c1", "c3", "c4"]
