"""Checkpoints: save, find by ref, walk, roll back, fork and diff."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest

import saveslot
from saveslot import Conflict, InvalidInput, NotFound, SessionState, TooLarge

TRICKY = {
    "nul": "a\0b",
    "emoji": "😀",
    "big": 2**200,
    "negative": -(2**70),
    "float": 0.1,
    "zero": -0.0,
    "none": None,
    "when": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "naive": datetime(2026, 1, 2),  # noqa: DTZ001
    "bytes": bytes(range(256)),
    "uuid": uuid4(),
    "tag": {"$saveslot": ["datetime", "no"]},
    "": {"": [[], {}, ""]},
    "nested": [{"a": [1, True, 1.0, "1"]}],
}


def exact(value):
    """Equality that distinguishes 1, True and 1.0, and key order."""
    if isinstance(value, dict):
        return [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [exact(item) for item in value]
    return (type(value).__name__, repr(value))


async def test_states_round_trip_exactly(sessions, others, session):
    """A state of every storable kind is read back exactly, with types and key order; tuples come back as lists."""
    await sessions.checkpoint(session.session_id, "one", {**TRICKY, "tuple": (1, (2,))})
    read = await others.get_checkpoint(session.session_id)
    assert exact(read.data) == exact({**TRICKY, "tuple": [1, [2]]})
    changed = {**TRICKY, "nul": "\0", "when": datetime(2027, 1, 1, tzinfo=UTC), "new": [uuid4()]}
    del changed["float"]
    await sessions.checkpoint(session.session_id, "two", changed, {"by": b"me"})
    read = await others.get_checkpoint(session.session_id)
    assert exact(read.data) == exact(changed)
    assert read.metadata == {"by": b"me"}


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"a": [1, float("nan")]}, r"data\.a\[1\]"),
        ({"a": float("inf")}, r"data\.a"),
        ({"a": {1: "x"}}, r"data\.a"),
        ({1: "x"}, "data"),
        ({"a": {"b": object()}}, r"data\.a\.b"),
        ({"a": "\ud800"}, r"data\.a"),
        ({"a": {"\ud800": 1}}, r"data\.a"),
        ({"a": {1, 2}}, r"data\.a"),
        ({"a": 10**5000}, r"data\.a"),
        ([1], "data"),
    ],
)
async def test_unstorable_values_are_refused_by_path(sessions, session, bad, path):
    """NaN, non-text keys, unknown types and lone surrogates are refused with their path, and nothing is stored."""
    await sessions.checkpoint(session.session_id, "good", {"n": 1})
    with pytest.raises(InvalidInput, match=path):
        await sessions.checkpoint(session.session_id, "bad", bad)
    assert [c.name for c in await sessions.history(session.session_id)] == ["session_created", "good"]
    await sessions.checkpoint(session.session_id, "next", {"n": 2})


async def test_oversized_and_deep_states_are_refused(sessions, session):
    """A state over the limit is TooLarge with both numbers; one nested too deep is refused by path."""
    with pytest.raises(TooLarge) as caught:
        await sessions.checkpoint(session.session_id, "big", {"x": "a" * (17 * 1024 * 1024)})
    assert caught.value.size > caught.value.limit == 16 * 1024 * 1024
    deep: list = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidInput, match="deep"):
        await sessions.checkpoint(session.session_id, "deep", {"x": deep})
    assert len(await sessions.history(session.session_id)) == 1


async def test_long_history_reads_back_at_every_entry(sessions, others, session, fresh):
    """Through patches, keyframes, rollbacks and restarts of the writer every checkpoint keeps its own data."""
    expected, data = [], {"messages": [], "turn": 0}
    writers = [sessions, others]
    for turn in range(400):
        data = {"messages": [*data["messages"], {"n": turn, "text": f"turn {turn} é " * 5}], "turn": turn}
        if turn % 97 == 50:
            back = expected[turn // 2]
            await writers[0].rollback(session.session_id, back[0])
            data = {"messages": list(back[1]["messages"]), "turn": back[1]["turn"]}
        if turn % 60 == 59:
            writers = [writers[1], fresh()]
            await writers[0].refresh(session)
        checkpoint = await writers[0].checkpoint(session.session_id, f"t{turn}", data)
        expected.append((checkpoint.seq, data))
    history = {c.seq: c for c in await others.history(session.session_id)}
    for seq, data in expected:
        assert history[seq].data == data
    assert (await sessions.get_session(session.session_id, history="all")).checkpoints[-1].data == expected[-1][1]


async def test_walk_equals_history(sessions, session):
    """A walk yields every checkpoint once, in order, with its own data, across all the chunks it reads."""
    for n in range(450):
        await sessions.checkpoint(session.session_id, f"c{n}", append={"list": [n]})
    walked = [(c.seq, c.name, c.data) async for c in sessions.walk(session.session_id)]
    assert walked == [(c.seq, c.name, c.data) for c in await sessions.history(session.session_id)]
    assert walked[-1][2] == {"list": list(range(450))}
    with pytest.raises(NotFound):
        await anext(sessions.walk("nobody"))


async def test_append_and_patch_build_the_same_state(sessions, others, session, fresh):
    """append= and patch= store the same state as saving it whole."""
    sid = session.session_id
    await sessions.checkpoint(sid, "empty", append={"messages": [{"n": 0}]})
    await sessions.checkpoint(sid, "more", append={"messages": ({"n": 1}, {"n": 2}), "other": []})
    await sessions.checkpoint(sid, "patch", patch=[{"op": "add", "path": "/messages/-", "value": {"n": 3}}])
    checkpoint = await sessions.checkpoint(
        sid,
        "edit",
        patch=[{"op": "replace", "path": "/messages/0/n", "value": "x"}, {"op": "add", "path": "/k", "value": 1}],
    )
    want = {"messages": [{"n": "x"}, {"n": 1}, {"n": 2}, {"n": 3}], "other": [], "k": 1}
    assert checkpoint.data == want
    assert (await others.get_checkpoint(sid)).data == want
    assert (await others.get_checkpoint(sid, "more")).data == {"messages": [{"n": 0}, {"n": 1}, {"n": 2}], "other": []}
    assert (await fresh().checkpoint(sid, "cold", append={"messages": [4]})).data["messages"][-1] == 4


async def test_returned_checkpoints_keep_their_own_data(sessions, session):
    """A checkpoint returned earlier still shows its own state after later appends changed the base in place."""
    sid = session.session_id
    checkpoints = [await sessions.checkpoint(sid, f"c{n}", append={"messages": [n]}) for n in range(30)]
    for n, checkpoint in enumerate(checkpoints):
        assert checkpoint.data == {"messages": list(range(n + 1))}


async def test_bad_append_or_patch_leaves_the_state_unchanged(sessions, session):
    """A wrong append or patch says where it is wrong; the next checkpoint builds on the unchanged state."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"messages": [1], "n": 1})
    for bad, path in (
        ({"append": {"n": [2]}}, "append.n"),
        ({"append": {"messages": "text"}}, "append.messages"),
        ({"append": {"messages": [float("nan")]}}, r"append.*\[0\]"),
        ({"patch": [{"op": "remove", "path": "/nothing"}]}, r"patch\[0\]"),
        ({"patch": [{"op": "add", "path": "/messages/-", "value": {1: 2}}]}, "key"),
        ({"data": {}, "append": {"messages": []}}, "only one of"),
    ):
        with pytest.raises(InvalidInput, match=path):
            await sessions.checkpoint(sid, "bad", **bad)
    checkpoint = await sessions.checkpoint(sid, "two", append={"messages": [2]})
    assert checkpoint.data == {"messages": [1, 2], "n": 1}
    assert checkpoint.seq == 3


async def test_refs_resolve_by_name_number_id_and_offset(sessions, session):
    """A ref is a name, a number, an id, latest or ~n; ~n counts data entries, numbers count everything."""
    sid = session.session_id
    session.checkpoint("a", {"n": 1})
    session.pause()
    session.checkpoint("a", {"n": 2})
    session.checkpoint("b", {"n": 3})
    await sessions.update_session(session)
    want = {"a": 4, "b": 5, 2: 2, "3": 3, f"{sid}:4": 4, "latest": 5, "~0": 5, "~1": 4, "~2": 2, "session_paused": 3}
    for ref, seq in want.items():
        assert (await sessions.get_checkpoint(sid, ref)).seq == seq, ref
    assert (await sessions.get_checkpoint(sid, 3)).data == {"previous_state": "active"}
    for ref in ("c", 99, 0, -1, "~3", "other:2", "99"):
        with pytest.raises(NotFound):
            await sessions.get_checkpoint(sid, ref)
    for ref in ("", None, 1.5, True):
        with pytest.raises(InvalidInput):
            await sessions.get_checkpoint(sid, ref)


async def test_history_filters(sessions, session, clock):
    """`since` is exclusive, `until` inclusive, `limit` keeps the newest, `name` selects, `all` shows everything."""
    sid = session.session_id
    checkpoints = [await sessions.checkpoint(sid, "odd" if n % 2 else "even", {"n": n}) for n in range(10)]
    await sessions.refresh(session)
    session.context["x"] = 1
    await sessions.update_session(session)
    shown = await sessions.history(sid)
    assert [c.seq for c in shown] == list(range(1, 12))
    assert [c.data["n"] for c in await sessions.history(sid, name="odd")] == [1, 3, 5, 7, 9]
    since, until = checkpoints[3].timestamp, checkpoints[6].timestamp
    assert [c.data["n"] for c in await sessions.history(sid, since=since, until=until)] == [4, 5, 6]
    assert [c.data["n"] for c in await sessions.history(sid, since=since, limit=2)] == [8, 9]
    seqs = [c.seq for c in shown]
    assert [c.seq for c in await sessions.history(sid, before=seqs[5], limit=2)] == seqs[3:5]
    assert [c.seq for c in await sessions.history(sid, before=seqs[-1] + 1)] == seqs
    assert [c.seq for c in await sessions.history(sid, before=seqs[5], all=True)] == seqs[:5]
    assert await sessions.history(sid, before=1) == await sessions.history(sid, before=0, all=True) == []
    assert await sessions.history(sid, limit=0) == []
    assert [c.name for c in await sessions.history(sid, all=True, limit=1)] == ["session_updated"]
    with pytest.raises(InvalidInput):
        await sessions.history(sid, limit=-1)


async def test_rollback_appends_and_loses_nothing(sessions, others, session):
    """A rollback is a new entry with the old data; the entries in between stay, and can be rolled forward to."""
    sid = session.session_id
    for n in range(5):
        await sessions.checkpoint(sid, f"c{n}", {"n": n, "list": list(range(n))})
    back = await sessions.rollback(sid, "c1")
    assert back.data == {"n": 1, "list": [0]}
    assert back.metadata == {"to": f"{sid}:3", "name": "c1"}
    assert (await others.get_checkpoint(sid)).data == {"n": 1, "list": [0]}
    assert (await others.get_checkpoint(sid, "c4")).data["n"] == 4
    await sessions.checkpoint(sid, "branch", append={"list": ["b"]})
    assert (await others.get_checkpoint(sid)).data == {"n": 1, "list": [0, "b"]}
    await others.rollback(sid, "c4")
    assert (await sessions.get_checkpoint(sid)).data == {"n": 4, "list": [0, 1, 2, 3]}
    await others.rollback(sid, 1)
    assert (await sessions.get_checkpoint(sid)).data == {}
    await others.checkpoint(sid, "anew", append={"list": [1]})
    assert (await sessions.get_checkpoint(sid)).data == {"list": [1]}
    assert [c.seq for c in await sessions.history(sid)] == list(range(1, 12))


async def test_rollback_reactivates_a_failed_session(sessions, session):
    """Rolling a failed session back makes it active; its failure stays in the history."""
    session.checkpoint("good", {"n": 1})
    session.fail("boom", {"at": "step 2"})
    await sessions.update_session(session)
    await sessions.rollback(session.session_id, "good")
    read = await sessions.get_session(session.session_id)
    assert read.state is SessionState.ACTIVE
    assert read.get_last_checkpoint("session_failed").data == {"error": "boom", "details": {"at": "step 2"}}
    await sessions.checkpoint(session.session_id, "next", {"n": 2})


async def test_fork_is_independent(sessions, others, session):
    """A fork starts from a checkpoint with the same context; neither session sees the other's later writes."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1}, {"why": "start"})
    await sessions.checkpoint(sid, "two", {"n": 2})
    await sessions.refresh(session)
    session.complete()
    await sessions.update_session(session)
    fork = await others.fork(sid, at="one")
    assert fork.state is SessionState.ACTIVE
    assert (fork.agent_type, fork.user_id, fork.context) == ("tutor", "anna", {"topic": "fractions"})
    assert fork.metadata["forked_from"] == f"{sid}:2"
    await others.checkpoint(fork.session_id, "own", {"n": 10})
    assert [c.data.get("n") for c in await sessions.history(fork.session_id)] == [None, 1, 10]
    assert (await sessions.get_checkpoint(fork.session_id, "one")).metadata == {
        "why": "start",
        "forked_from": f"{sid}:2",
    }
    assert (await sessions.get_checkpoint(sid)).data == {"n": 2}
    named = await others.fork(sid, session_id="named")
    assert (named.session_id, (await sessions.get_checkpoint("named")).data) == ("named", {"n": 2})
    empty = await sessions.fork((await sessions.create_session("tutor")).session_id)
    assert [c.name for c in empty.checkpoints] == ["session_created"]
    with pytest.raises(Conflict):
        await sessions.fork(sid, session_id="named")


async def test_diff_is_the_patch_between_two_checkpoints(sessions, session):
    """A diff is RFC 6902 operations, minimal for appended lists, also across sessions, including typed values."""
    sid = session.session_id
    when = datetime(2026, 1, 1, tzinfo=UTC)
    await sessions.checkpoint(sid, "a", {"messages": [{"t": "x"}] * 3, "n": 1, "flag": 1})
    await sessions.checkpoint(
        sid, "b", {"messages": [{"t": "x"}] * 3 + [{"t": "y"}], "n": 1, "flag": True, "when": when}
    )
    diff = await sessions.diff(sid, "a", "b")
    assert sorted(diff, key=lambda op: op["path"]) == [
        {"op": "replace", "path": "/flag", "value": True},
        {"op": "add", "path": "/messages/-", "value": {"t": "y"}},
        {"op": "add", "path": "/when", "value": when},
    ]
    assert await sessions.diff(sid, "b", "b") == []
    other = await sessions.fork(sid, "a")
    await sessions.checkpoint(other.session_id, "c", {"n": 2})
    assert await sessions.diff(sid, f"{other.session_id}:2", "a") == []
    assert {"op": "replace", "path": "/n", "value": 2} in await sessions.diff(sid, "a", f"{other.session_id}:3")
    assert await sessions.diff(sid, 1, "a") != []


async def test_unloaded_data_raises_with_how_to_load_it(sessions, session):
    """A history beyond the budget is listed but not loaded: its data raises with how to load it, never None."""
    sid = session.session_id
    for n in range(6):
        await sessions.checkpoint(sid, f"c{n}", {"blob": os.urandom(50_000)})
    few = await sessions.get_session(sid, history=2)
    assert [c.name for c in few.checkpoints][-2:] == ["c4", "c5"]
    assert len(few.checkpoints[-1].data["blob"]) == 50_000
    with pytest.raises(NotFound, match="history='all'"):
        _ = few.checkpoints[1].data
    everything = await sessions.get_session(sid, history="all")
    assert len(everything.checkpoints[1].data["blob"]) == 50_000
    big = await sessions.get_session(sid)
    for n in range(2):
        await sessions.checkpoint(sid, "huge", {"blob": os.urandom(6_000_000), "n": n})
    big = await sessions.get_session(sid)
    assert big.checkpoints[-1].data["n"] == 1
    with pytest.raises(NotFound):
        _ = big.checkpoints[1].data


async def test_checkpoint_by_value_conflicts_when_stale(sessions, others, session):
    """With a value the manager uses the head that value saw: it advances with each write and conflicts when stale."""
    await sessions.checkpoint(session, "one", {"n": 1})
    await sessions.checkpoint(session, "two", {"n": 2})
    assert [c.name for c in session.checkpoints] == ["session_created", "one", "two"]
    stale = await others.get_session(session.session_id)
    await sessions.checkpoint(session, "three", {"n": 3})
    with pytest.raises(Conflict) as caught:
        await others.checkpoint(stale, "late", {"n": 0})
    assert (caught.value.seen, caught.value.head) == (3, 4)
    await others.refresh(stale)
    await others.checkpoint(stale, "now", {"n": 4})
    assert stale.checkpoints[-1].data == {"n": 4}


async def test_rollback_by_value_advances_it(sessions, others, session):
    """Rollback accepts a value: a stale one is refused, a current one then has the new entry and its state."""
    await sessions.checkpoint(session, "one", {"n": 1})
    stale = await others.get_session(session.session_id)
    session.fail("boom")
    await sessions.update_session(session)
    with pytest.raises(Conflict):
        await others.rollback(stale, "one")
    checkpoint = await sessions.rollback(session, "one")
    assert session.checkpoints[-1] == checkpoint
    assert session.state is SessionState.ACTIVE
    await sessions.checkpoint(session, "two", {"n": 2})
    session.complete()
    await sessions.update_session(session)
    assert await others.get_session(session.session_id) == session


@pytest.mark.parametrize("wrong", [None, 7, {}, [], b"x"])
async def test_non_session_arguments_are_refused(sessions, wrong):
    """Where a session or its id is expected, anything else raises InvalidInput."""
    for call in (
        sessions.checkpoint(wrong, "x", {}),
        sessions.rollback(wrong, "x"),
        sessions.fork(wrong),
        sessions.history(wrong),
        sessions.delete_session(wrong),
    ):
        with pytest.raises(InvalidInput, match=r"^(session|id): "):
            await call


async def test_bad_metadata_leaves_the_state_unchanged(sessions, session):
    """An append refused for its metadata does not change the state that the next one builds on."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"messages": [1]})
    for bad in ({"x": object()}, {"x": "a" * (17 * 1024 * 1024)}, [1]):
        with pytest.raises((InvalidInput, TooLarge)):
            await sessions.checkpoint(sid, "bad", append={"messages": [2]}, metadata=bad)
    checkpoint = await sessions.checkpoint(sid, "two", append={"messages": [3]})
    assert checkpoint.data == {"messages": [1, 3]}
    assert (await sessions.get_checkpoint(sid)).data == {"messages": [1, 3]}


async def test_impossible_refs_and_numbers_raise_typed_errors(sessions, session):
    """A ref beyond any log is NotFound; a limit, cursor or text that no database accepts is never a raw error."""
    sid = session.session_id
    await sessions.checkpoint(sid, "one", {"n": 1})
    huge = "9" * 30
    for ref in (10**30, -(10**30), huge, huge * 200, f"~{huge}", f"~{huge * 200}", f"{sid}:{huge}", f"x:{huge * 200}"):
        with pytest.raises(NotFound):
            await sessions.get_checkpoint(sid, ref)
        with pytest.raises(NotFound):
            await sessions.diff(sid, ref, "latest")
    for call in (
        lambda: sessions.get_checkpoint(sid, "\ud800"),
        lambda: sessions.history(sid, name="\ud800"),
        lambda: sessions.history(sid, limit=10**30),
        lambda: sessions.history(sid, since=datetime.max.replace(tzinfo=timezone(timedelta(hours=-9)))),
        lambda: sessions.find(limit=10**30),
        lambda: sessions.find(text="\ud800"),
        lambda: sessions.find(after=f"{'f' * 40}.00"),
        lambda: sessions.cleanup_stale_sessions(timedelta.max),
    ):
        try:
            await call()
        except (InvalidInput, NotFound):
            continue


async def test_raised_max_state_bytes_applies_to_appends(stores):
    """Where max_state_bytes allows more than 16 MB, an append may be as large, and its error names that limit."""
    sessions = saveslot.SessionManager(store=stores[0], max_state_bytes=40_000_000)
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "one", append={"parts": ["x" * 18_000_000]})
    with pytest.raises(TooLarge, match="40,000,000"):
        await sessions.checkpoint(sid, "two", append={"parts": ["y" * 30_000_000]})
    assert len((await sessions.get_checkpoint(sid)).data["parts"]) == 1


async def test_stale_value_rollback_is_a_conflict(sessions, others, session):
    """Rolling back by value is a Conflict if another process wrote since, even if this manager already knows of it."""
    await sessions.checkpoint(session, "one", {"n": 1})
    await others.checkpoint(session.session_id, "theirs", {"n": 2})
    with pytest.raises(Conflict):
        await sessions.rollback(session, "one")
    assert [c.name for c in await others.history(session.session_id)] == ["session_created", "one", "theirs"]


async def test_value_has_not_seen_writes_after_its_rollback(sessions, session, monkeypatch):
    """Writes by others right after a value's rollback are new to that value."""
    sid = session.session_id
    await sessions.checkpoint(session, "one", {"n": 1})
    read = sessions.get_checkpoint

    async def slowly(*args):
        await asyncio.sleep(0.1)
        return await read(*args)

    monkeypatch.setattr(sessions, "get_checkpoint", slowly)
    rolling = asyncio.ensure_future(sessions.rollback(session, "one"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # now it is at work, and the next one waits for it
    await asyncio.gather(rolling, sessions.checkpoint(sid, "behind", {"n": 2}))
    with pytest.raises(Conflict):
        await sessions.checkpoint(session, "two", {"n": 3})


@pytest.mark.parametrize("beside", [None, b"tagged", "7" * 5000], ids=["plain", "tagged", "digits"])
async def test_longest_integers_are_read_back_and_longer_ones_refused(fresh, session, beside):
    """4,300 digits, or 4,299 and a sign, in data, appended items, metadata and context."""
    sessions, sid = fresh(), session.session_id
    for n in (10**4300 - 1, 1 - 10**4299):
        await sessions.checkpoint(sid, "n", {"n": n, "list": [n], "beside": beside}, metadata={"n": n})
        await sessions.checkpoint(sid, "more", append={"list": [n]})
        result = await fresh().get_data(sid)
        assert result == {"n": n, "list": [n, n], "beside": beside}
        assert (await fresh().get_checkpoint(sid, "n")).metadata == {"n": n}
    for n in (10**4300, -(10**4299), -(10**4300)):
        for call in ({"data": {"n": n, "b": beside}}, {"append": {"list": [n, beside]}}, {"patch": [
            {"op": "replace", "path": "/n", "value": n}]}, {"data": {}, "metadata": {"n": [n, beside]}}):  # fmt: skip
            with pytest.raises(InvalidInput, match="integer of more than 4,"):
                await sessions.checkpoint(sid, "refused", **call)
        with pytest.raises(InvalidInput, match="integer of more than 4,"):
            await sessions.create_session("tutor", context={"n": n, "b": beside})
    assert await fresh().get_data(sid) == result


async def test_the_newest_state_takes_few_reads(sessions, others, place):
    """One look at the head and one at the frames give the newest state; a server answers with both at once."""
    await others.create_session("tutor", session_id="s", data={"n": 1})
    for n in (1, 2):
        await others.checkpoint("s", "more", put={"m": n})

    async def trips() -> list[int]:
        counts = (await sessions.metrics())["database"]
        return [counts["heads"]["calls"], counts["entries"]["calls"]]

    for read in (sessions.get_data, sessions.get_checkpoint):
        before = await trips()
        result = await read("s")
        assert (result if read == sessions.get_data else result.data) == {"n": 1, "m": 2}
        after = await trips()
        assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0 if place[:4] == "http" else 1]
