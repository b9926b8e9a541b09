"""Watching what happens, and carrying a session elsewhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

import saveslot
from saveslot import AlreadyExists, InvalidInput, NotFound


async def take(stream, count):
    events = []
    async with aclosing(stream) as running:
        async for event in running:
            events.append(event)
            if len(events) == count:
                return events
    return events


async def test_watch_shows_everything_once_and_in_order(sessions, others):
    """Events of racing writers come in commit order with no gap and no repeat, also when taken in pieces."""
    made = [await sessions.create_session("tutor") for _ in range(4)]
    watching = asyncio.ensure_future(take(others.watch(after=0), 4 + 4 * 30))

    async def write(manager, sid):
        for n in range(30):
            await manager.checkpoint(sid, f"c{n}", {"n": n})

    await asyncio.gather(*(write((sessions, others)[n % 2], s.session_id) for n, s in enumerate(made)))
    events = await asyncio.wait_for(watching, 10)
    for session in made:
        assert [e.seq for e in events if e.session_id == session.session_id] == list(range(1, 32))
    assert len({e.cursor for e in events}) == len(events)
    again = await take(others.watch(after=events[50].cursor), len(events) - 51)
    assert again == events[51:]


async def test_watch_wakes_for_a_new_entry_of_anyone(sessions, others, session):
    """A watcher sees its own manager's and another's entries as they come; one session's watch sees only its own."""
    everything = asyncio.ensure_future(take(sessions.watch(), 3))
    mine = asyncio.ensure_future(take(sessions.watch(session.session_id), 2))
    await asyncio.sleep(0.1)
    await sessions.checkpoint(session.session_id, "mine", {})
    await others.create_session("grader")
    await others.get_session(session.session_id)
    await others.checkpoint(session.session_id, "theirs", {})
    assert [e.name for e in await asyncio.wait_for(everything, 5)] == ["mine", "session_created", "theirs"]
    assert [(e.seq, e.kind) for e in await asyncio.wait_for(mine, 5)] == [(2, "checkpoint"), (3, "checkpoint")]
    assert [e.seq for e in await take(others.watch(session.session_id, after=1), 2)] == [2, 3]


async def test_watch_refuses_nonsense(sessions):
    """An unknown session is NotFound, a foreign cursor InvalidInput."""
    with pytest.raises(NotFound):
        await anext(sessions.watch("nobody"))
    with pytest.raises(InvalidInput):
        await anext(sessions.watch(after="x"))


async def busy_session(sessions):
    session = await sessions.create_session("tutor", "anna", {"c": 1}, {"m": b"\0"}, labels={"l": "x"})
    session.checkpoint(
        "one", {"messages": [{"role": "user", "content": "hi\0😀"}], "when": datetime(2026, 1, 1, tzinfo=UTC)}
    )
    session.context["c"] = 2
    session.pause()
    session.resume()
    await sessions.update_session(session)
    sid = session.session_id
    await sessions.checkpoint(
        sid, "two", append={"messages": [{"role": "assistant", "content": "ho"}]}, metadata={"k": 1}
    )
    await sessions.rollback(sid, "one")
    await sessions.checkpoint(sid, "three", {"other": 2**80})
    await sessions.refresh(session)
    session.fail("boom")
    await sessions.update_session(session)
    return session


async def test_an_export_comes_back_equal_anywhere(sessions, others):
    """Imported elsewhere or under another id a session is the same: entries, data, times, state."""
    session = await busy_session(sessions)
    text = await sessions.export(session.session_id)
    json.loads(text)
    elsewhere = saveslot.SessionManager()
    for manager, sid in ((elsewhere, session.session_id), (others, "copy")):
        await manager.import_session(text, session_id=sid)
        read = await manager.get_session(sid)
        assert (read.state, read.context, read.metadata, read.labels) == (
            session.state, session.context, session.metadata, session.labels
        )  # fmt: skip
        assert (read.created_at, read.last_heartbeat) == (session.created_at, session.last_heartbeat)
        ours = await sessions.history(session.session_id, all=True)
        theirs = await manager.history(sid, all=True)
        assert [(c.seq, c.name, c.timestamp, c.data, c.metadata) for c in theirs] == [
            (c.seq, c.name, c.timestamp, c.data, c.metadata) for c in ours
        ]
    again = await elsewhere.export(session.session_id)
    assert again == text


async def test_an_import_never_overwrites(sessions):
    """An id that is taken refuses the import and stays as it was."""
    session = await busy_session(sessions)
    text = await sessions.export(session.session_id)
    with pytest.raises(AlreadyExists):
        await sessions.import_session(text)
    assert await sessions.count() == 1


async def test_an_imported_session_goes_on(sessions):
    """After an import the session takes checkpoints, rollbacks and appends like any other."""
    session = await busy_session(sessions)
    text = await sessions.export(session.session_id)
    made = await sessions.import_session(text, session_id="copy")
    assert made.checkpoints[-1].name == "session_failed"
    await sessions.rollback("copy", "two")
    await sessions.checkpoint("copy", "more", append={"messages": ["new"]})
    messages = (await sessions.get_checkpoint("copy")).data["messages"]
    assert [message if message == "new" else message["role"] for message in messages] == ["user", "assistant", "new"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _: "", "not JSON"),
        (lambda t: t[: len(t) // 2], "not JSON"),
        (lambda _: "[1, 2]", "not an export"),
        (lambda t: t.replace('"saveslot": 1', '"saveslot": 99'), "upgrade"),
        (lambda t: t.replace('"seq":3', '"seq":7'), r"entries\[2\]"),
        (lambda t: t.replace('"kind":"paused"', '"kind":"asleep"'), r"entries\[\d\]"),
        (lambda t: t.replace('"name":"one"', '"name":""'), r"entries\[\d\].*name"),
        (lambda t: t.replace('"name":"one"', '"name":"one","name":"one"'), "twice"),
        (lambda t: t.replace('"context":{"c":2}', '"context":{"c":NaN}'), "NaN"),
        (lambda t: t.replace('"at":"', '"at":"x'), r"entries\[0\].*at"),
        (lambda t: t.replace('"op":"', '"op":"x'), r"entries\[\d\]"),
    ],
)
async def test_a_bad_import_says_where_and_stores_nothing(sessions, spoil, says):
    """A broken, foreign or newer export is refused with the place, and nothing of it is kept."""
    session = await busy_session(sessions)
    text = spoil(await sessions.export(session.session_id))
    with pytest.raises(InvalidInput, match=says):
        await sessions.import_session(text, session_id="copy")
    assert await sessions.get_session("copy") is None
