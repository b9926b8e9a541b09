"""`watch` yields each entry once, in commit order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from saveslot import InvalidInput, NotFound


async def take(stream, count):
    events = []
    async with aclosing(stream) as running:
        async for event in running:
            events.append(event)
            if len(events) == count:
                return events
    return events


async def test_watch_yields_every_entry_once_in_order(sessions, others):
    """Events of racing writers arrive in commit order without gaps or repeats, also when resumed from a cursor."""
    created_sessions = [await sessions.create_session("tutor") for _ in range(4)]
    watching = asyncio.ensure_future(take(others.watch(after=0), 4 + 4 * 30))

    async def write(manager, sid):
        for n in range(30):
            await manager.checkpoint(sid, f"c{n}", {"n": n})

    await asyncio.gather(*(write((sessions, others)[n % 2], s.session_id) for n, s in enumerate(created_sessions)))
    events = await asyncio.wait_for(watching, 60)
    for session in created_sessions:
        assert [e.seq for e in events if e.session_id == session.session_id] == list(range(1, 32))
    assert len({e.cursor for e in events}) == len(events)
    again = await take(others.watch(after=events[50].cursor), len(events) - 51)
    assert again == events[51:]


async def test_watch_wakes_for_any_managers_entry(sessions, others, session):
    """A watcher sees its own manager's and another's entries as they land; a watch of one session sees only its own."""
    everything, mine = [], []

    async def collect(stream, events):
        async with aclosing(stream) as running:
            async for event in running:
                events.append((event.seq, event.name))
                if event.name == "theirs":
                    return

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(collect(sessions.watch(), everything))
        group.create_task(collect(sessions.watch(session.session_id), mine))
        first = 1
        while not (everything and mine):  # a watch begins some time after its task
            first = (await sessions.checkpoint(session.session_id, "begun", {})).seq
            await asyncio.sleep(0.05)
        await sessions.checkpoint(session.session_id, "mine", {})
        await others.create_session("grader")
        await others.get_session(session.session_id)
        await others.checkpoint(session.session_id, "theirs", {})
    expected = [(first + 1, "mine"), (1, "session_created"), (first + 2, "theirs")]
    assert [event for event in everything if event[1] != "begun"] == expected
    assert [event for event in mine if event[1] != "begun"] == [expected[0], expected[2]]
    assert len(set(everything)) == len(everything)
    assert [e.seq for e in await take(others.watch(session.session_id, after=first), 2)] == [first + 1, first + 2]


async def test_watch_refuses_bad_arguments(sessions):
    """An unknown session is NotFound, a foreign cursor InvalidInput."""
    with pytest.raises(NotFound):
        await anext(sessions.watch("nobody"))
    with pytest.raises(InvalidInput):
        await anext(sessions.watch(after="x"))


async def test_names_of_any_characters_are_shown_as_they_are(sessions):
    """Events and counts repeat ids, names and agent types letter by letter, also joined emoji and invisible spaces."""
    odd = "\N{FAMILY}\u200d\u3000\u202e"
    await sessions.create_session(odd, session_id=odd)
    await sessions.checkpoint(odd, odd, {})
    events = await take(sessions.watch(odd, after="0"), 2)
    assert [(event.session_id, event.name) for event in events] == [(odd, "session_created"), (odd, odd)]
    assert (await sessions.stats())["by_agent_type"] == {odd: 1}


async def test_cancelled_watcher_ends_also_at_the_moment_of_an_event(sessions, session):
    """A watcher that is cancelled while an event wakes it ends, however many steps of the event loop lie between."""
    for steps in range(12):
        watching = asyncio.ensure_future(take(sessions.watch(session.session_id), 1_000_000))
        await asyncio.sleep(0.05)
        appending = asyncio.ensure_future(sessions.checkpoint(session.session_id, "news", {"steps": steps}))
        await asyncio.wait([appending])
        for _ in range(steps):
            await asyncio.sleep(0)
        watching.cancel()
        done, _ = await asyncio.wait([watching], timeout=30)
        assert done, f"still watching, {steps} steps after the event"
