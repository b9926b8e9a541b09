"""Watching what happens, and carrying a session elsewhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

import saveslot
from saveslot import AlreadyExists, InvalidInput, NotFound
from saveslot.moving import lines


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


async def test_an_imported_value_shows_its_data(sessions, others):
    """What import_session returns holds every checkpoint's data, rollbacks too, and so does what follows."""
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {"messages": ["m" * 50] * 40})
    for n in range(4):
        await sessions.checkpoint(sid, f"b{n}", append={"messages": [n]})
    await sessions.rollback(sid, "b1")
    await sessions.checkpoint(sid, "c", append={"messages": ["c"]})
    made = await others.import_session(await sessions.export(sid), session_id="copy")
    assert [c.data for c in made.checkpoints] == [c.data for c in await sessions.history(sid)]
    await others.update_session(made)
    assert len(await others.history("copy", all=True)) == len(made.checkpoints)
    assert (await others.checkpoint(made, "d", append={"messages": ["d"]})).data["messages"][-3:] == [1, "c", "d"]


async def test_the_deepest_state_is_exported(sessions, others):
    """A state nested as deep as is allowed is carried elsewhere, whole and as a change."""
    deep = 1
    for _ in range(98):
        deep = [deep]
    sid = (await sessions.create_session("tutor", context={"c": deep[0]})).session_id
    await sessions.checkpoint(sid, "one", {"k": [deep]}, {"m": deep})
    await sessions.checkpoint(sid, "two", {"k": [deep, deep], "other": [deep]})
    await others.import_session(await sessions.export(sid), session_id="copy")
    assert (await others.get_checkpoint("copy")).data == {"k": [deep, deep], "other": [deep]}


async def test_an_import_lets_others_run(sessions, session):
    """A long import or export gives way to the other tasks of the loop again and again."""
    sid = session.session_id
    for n in range(100):
        await sessions.checkpoint(sid, "c", {"n": n})
    turned = 0

    async def turn():
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(turn())
    text = await sessions.export(sid)
    assert turned >= 100
    turned = 0
    await sessions.import_session(text, session_id="copy")
    assert turned >= 100
    task.cancel()


def changed(number, **fields):
    def change(text):
        told = json.loads(text)
        told["entries"][number].update(fields)
        return json.dumps(told)

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        changed(2, kind=5),
        changed(2, kind="thinned"),
        changed(2, kind="tombstone"),
        changed(-1, kind="tombstone"),
        changed(0, data=[1]),
        changed(0, about={"context": {}, "metadata": {}, "labels": {"l": 5}}),
        changed(2, at="0001-01-01T00:00:00+14:00"),
        changed(2, at="1960-01-01T00:00:00+00:00"),
        changed(2, at="1970-01-01T00:00:00+00:00"),
        changed(2, state={"n": {"$saveslot": ["datetime", "soon"]}}),
        changed(2, state={"n": {"$saveslot": ["later"]}}),
        changed(2, state={"n": "\ud800"}),
        lambda text: text.replace('"created_at":"20', '"created_at":"0001-01-01T00:00:00+14:00","x":"20'),
    ],
)
async def test_a_forged_import_is_refused_in_words(sessions, spoil):
    """What no export holds is InvalidInput, and nothing of it is kept."""
    session = await busy_session(sessions)
    text = spoil(await sessions.export(session.session_id))
    with pytest.raises(InvalidInput):
        await sessions.import_session(text, session_id="copy")
    assert await sessions.get_session("copy") is None


def header(**fields):
    def change(told):
        told["session"].update(fields)

    return change


def entry(number, **fields):
    def change(told):
        told["entries"][number].update(fields)

    return change


def more(*kinds, **fields):
    """Entries behind the last one, and what the header says then."""

    def change(told):
        for kind in kinds:
            seq, at = len(told["entries"]) + 1, told["entries"][-1]["at"]
            told["entries"].append({"seq": seq, "kind": kind, "name": kind, "at": at, "patch": [], "data": {}})
        told["session"].update(fields)

    return change


FORGED = [
    (header(state="completed"), "session.state", "is completed, but the entries lead to failed"),
    (header(state="active"), "session.state", "is active, but the entries lead to failed"),
    (header(context={"lie": 1}), "session.context", "not what the entries lead to"),
    (header(context={}), "session.context", "not what the entries lead to"),
    (header(metadata={"lie": 1}), "session.metadata", "not what the entries lead to"),
    (header(labels={}), "session.labels", "not what the entries lead to"),
    (header(created_at="1960-01-01T00:00:00+00:00"), "session.created_at", "is before 1970"),
    (header(last_heartbeat="1969-12-31T23:59:59+00:00"), "session.last_heartbeat", "is before 1970"),
    (entry(2, at="1960-01-01T00:00:00+00:00"), "entries[2].at", "is before 1970"),
    (entry(0, at="1960-01-01T00:00:00+01:00"), "entries[0].at", "is before 1970"),
    (entry(3, kind="recovered"), "entries[3].kind", "'recovered' cannot follow: the entries before it lead to active"),
    (entry(3, kind="completed"), "entries[4].kind", "'resumed' cannot follow: the entries before it lead to completed"),
    (entry(4, kind="paused"), "entries[4].kind", "lead to paused"),
    (more("checkpoint"), "entries[9].kind", "'checkpoint' cannot follow: the entries before it lead to failed"),
    (more("resumed", state="active"), "entries[9].kind", "lead to failed"),
    (more("completed", state="completed"), "entries[9].kind", "lead to failed"),
    (more("recovered"), "session.state", "is failed, but the entries lead to active"),
    (more("rollback"), "session.state", "is failed, but the entries lead to active"),
    (more("recovered", "completed", state="active"), "session.state", "is active, but the entries lead to completed"),
    (more("recovered", "completed", "checkpoint", state="completed"), "entries[11].kind", "lead to completed"),
    (more("recovered", "completed", "rollback", state="active"), "entries[11].kind", "lead to completed"),
    (more("recovered", "completed", "recovered", state="active"), "entries[11].kind", "lead to completed"),
]


@pytest.mark.parametrize(("forge", "path", "says"), FORGED)
async def test_an_import_that_contradicts_itself_is_refused(sessions, forge, path, says):
    """Entries that cannot follow each other, or lead elsewhere than the header says: the place is told, none kept."""
    session = await busy_session(sessions)
    told = json.loads(await sessions.export(session.session_id))
    forge(told)
    with pytest.raises(InvalidInput, match=says) as refused:
        await sessions.import_session(json.dumps(told), session_id="copy")
    assert refused.value.path == f"import.{path}"
    assert await sessions.get_session("copy") is None
    with pytest.raises(InvalidInput, match=says):  # a folder of exports comes in by the same check
        lines.parcel(json.dumps(told), "default")


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (("recovered", "checkpoint", "completed"), "completed"),
        (("rollback", "paused", "checkpoint", "rollback"), "paused"),
        (("rollback", "paused", "resumed", "resumed"), "active"),
        (("taken", "released", "pinned", "skipped"), "failed"),
        (("recovered", "paused", "failed", "recovered"), "active"),
    ],
)
async def test_what_can_follow_is_imported(sessions, kinds, state):
    """The same table as for every verb; who owns a session, what is kept and numbers left out change no state."""
    session = await busy_session(sessions)
    told = json.loads(await sessions.export(session.session_id))
    more(*kinds, state=state)(told)
    assert (await sessions.import_session(json.dumps(told), session_id="copy")).state == state
    assert (await sessions.get_session("copy")).state == state


async def test_an_imported_value_is_what_was_stored(sessions):
    """Where the header and the log only look alike (1 and True), both hold what the log says."""
    sid = (await sessions.create_session("tutor", context={"c": True})).session_id
    told = json.loads(await sessions.export(sid))
    told["session"]["context"] = {"c": 1}
    made = await sessions.import_session(json.dumps(told), session_id="copy")
    assert made.context["c"] is (await sessions.get_session("copy")).context["c"] is True


async def test_what_is_exported_while_others_write_is_imported(sessions, others):
    """Whatever a session goes through meanwhile, each export of it holds together."""
    sid = (await sessions.create_session("tutor")).session_id
    done = False

    async def live():
        nonlocal done
        for n in range(60):
            session = await sessions.get_session(sid)
            session.context["n"] = n
            session.checkpoint("c", {"n": n})
            match n % 5:
                case 0:
                    session.pause()
                case 1:
                    session.resume()
                case 2:
                    session.fail("no")
                case 3:
                    session.context["back"] = n
            await sessions.update_session(session)
            if n % 5 == 2:
                await sessions.rollback(sid, "c")
            if n % 7 == 0:
                await sessions.thin(sid, saveslot.Retention(max_checkpoints=3))
        done = True

    living, count = asyncio.ensure_future(live()), 0
    while not done:
        assert (await others.import_session(await others.export(sid), session_id=f"copy-{count}")).checkpoints
        count += 1
    await living
    assert count > 5
    assert (await others.import_session(await others.export(sid), session_id="last")).context == {"n": 59, "back": 58}


async def test_swept_forked_and_fresh_sessions_are_imported(sessions, others):
    """What a sweep ends, what a fork begins and what was just created comes back as it is."""
    await sessions.create_session("tutor", session_id="fresh")
    session = await sessions.create_session("tutor", context={"c": 1}, session_id="swept")
    await sessions.checkpoint(session, "one", {"n": 1})
    await sessions.fork("swept", session_id="fork")
    assert await sessions.cleanup_stale_sessions(timedelta(0)) == 3
    await sessions.rollback("fork", "one")
    for sid, state in (("swept", "failed"), ("fork", "active"), ("fresh", "failed")):
        made = await others.import_session(await sessions.export(sid), session_id=f"{sid} copy")
        assert (made.state, made.context) == (state, (await sessions.get_session(sid)).context)
