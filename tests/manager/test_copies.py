"""Copies of whole sessions."""

from __future__ import annotations

from datetime import timedelta

import pytest

from saveslot import AlreadyExists, NotFound, Retention, SessionState

KEY = bytes(range(32))


async def lived(sessions) -> None:
    """A session with every kind of entry that a live one has."""
    await sessions.create_session("tutor", "anna", {"a": 1}, {"m": 1}, labels={"class": "7b"}, session_id="s")
    async with sessions.hold("s") as held:
        for n in range(40):
            await held.checkpoint(f"c{n}", append={"list": [{"n": n, "text": "x" * 50}]})
        await held.step("ask", lambda: {"answer": 5})
        await held.rollback("c7")
        await held.checkpoint("branch", put={"b": b"\x00"})
        await held.update_context(a=2)
        await held.pause()
    await sessions.record("s", "thought", [1], key="k")
    await sessions.pin("s", "c3")
    await sessions.thin("s", Retention(keep_last=20), grace=timedelta(0))
    await sessions.thin("s", Retention(), grace=timedelta(0))
    await sessions.fail("s", "stop")


def lines(history):
    return [(c.seq, c.name, c.timestamp, c.metadata) for c in history]


@pytest.mark.parametrize("key", [None, KEY])
async def test_copy_equals_its_source(opened, key):
    """Numbers, names, times, states, records, pins, lifecycle, context, links; it has no owner."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        await lived(sessions)
        copy = await sessions.copy_session("s", "copy")
        source = await others.get_session("s", history="all")
        assert (copy.session_id, copy.owner, copy.state) == ("copy", None, SessionState.FAILED)
        for part in ("agent_type", "user_id", "context", "metadata", "labels", "created_at", "last_heartbeat"):
            assert getattr(copy, part) == getattr(source, part)
        ours, theirs = await others.history("s"), await others.history("copy")
        assert lines(theirs) == lines(ours)
        assert [c.data for c in theirs] == [c.data for c in ours]
        assert [(e.seq, e.kind, e.name) for e in await others.entries("copy")] == [
            (e.seq, e.kind, e.name) for e in await others.entries("s")
        ]
        assert await others.records("copy") == await others.records("s")
        assert await others.pins("copy") == await others.pins("s")
        trail = await others.audit("copy")
        assert (trail.misfit, trail.unlinked) == (None, 0)
        assert copy.version != source.version
        with pytest.raises(AlreadyExists):
            await others.copy_session("s", "copy")
        with pytest.raises(NotFound):
            await others.copy_session("nobody", "new")


async def test_copy_goes_on_by_itself(sessions, others):
    """It can be written to, thinned and rolled back, and its source purged, without one changing the other."""
    await lived(sessions)
    await sessions.copy_session("s", "copy")
    await others.rollback("copy", "latest")
    async with others.hold("copy") as held:
        await held.checkpoint("own", append={"list": [1]})
        assert await held.step("ask", lambda: pytest.fail("a copy repeats no effect")) == {"answer": 5}
    await sessions.delete_session("s")
    await sessions.erase("s")
    assert len((await others.get_data("copy"))["list"]) == 9
    assert len((await others.get_data("copy", "c30"))["list"]) == 31


async def test_copy_up_to_a_ref(sessions, others):
    """It ends with that entry: its state, context and lifecycle are those of then."""
    await lived(sessions)
    for ref in ("c39", "branch", "c3", 5):
        target = f"copy {ref}"
        copy = await sessions.copy_session("s", target, upto=ref)
        entry = await sessions.get_checkpoint("s", ref)
        assert (copy.state, copy.context, copy.labels) == (SessionState.ACTIVE, {"a": 1}, {"class": "7b"})
        assert await others.get_data(target) == entry.data
        assert lines(await others.history(target)) == [
            line for line in lines(await others.history("s")) if line[0] <= entry.seq
        ]
        await others.checkpoint(target, "own", append={"list": [1]})
        assert (await others.get_data(target))["list"] == [*entry.data["list"], 1]
    paused = await sessions.copy_session("s", "paused", upto="session_paused")
    assert (paused.state, paused.context) == (SessionState.PAUSED, {"a": 2})
    with pytest.raises(NotFound):
        await sessions.copy_session("s", "none", upto="nonsense")


async def test_copy_of_an_empty_and_of_a_held_session(sessions, others):
    """The first entry alone is a session; a held one is copied without its owner."""
    await sessions.create_session("tutor", session_id="s")
    async with sessions.hold("s") as held:
        await held.checkpoint("one", {"n": 1})
        await others.copy_session("s", "held")
        await others.copy_session("s", "bare", upto=1)
        await held.checkpoint("two", {"n": 2})
    assert await others.get_data("bare") == {}
    async with others.hold("held") as held:
        assert (held.data, held.fence) == ({"n": 1}, 2)
