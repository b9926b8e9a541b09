"""Exported sessions import equal anywhere; a forged or contradictory import is refused."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

import saveslot
from saveslot import AlreadyExists, InvalidInput
from saveslot.moving import jsonl

HUGE = 10**15


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


async def test_export_imports_equal_anywhere(sessions, others):
    """Imported elsewhere or under another id, a session has the same entries, data, times and state."""
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


async def test_import_never_overwrites(sessions):
    """An import to an existing id is refused, and that session is unchanged."""
    session = await busy_session(sessions)
    text = await sessions.export(session.session_id)
    with pytest.raises(AlreadyExists):
        await sessions.import_session(text)
    assert await sessions.count() == 1


async def test_imported_session_accepts_writes(sessions):
    """After an import the session accepts checkpoints, rollbacks and appends like any other."""
    session = await busy_session(sessions)
    text = await sessions.export(session.session_id)
    loaded = await sessions.import_session(text, session_id="copy")
    assert loaded.checkpoints[-1].name == "session_failed"
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
async def test_bad_import_says_where_and_stores_nothing(sessions, spoil, says):
    """A broken, foreign or newer export is refused with the place, and nothing of it is kept."""
    session = await busy_session(sessions)
    text = spoil(await sessions.export(session.session_id))
    with pytest.raises(InvalidInput, match=says):
        await sessions.import_session(text, session_id="copy")
    assert await sessions.get_session("copy") is None


async def test_import_returns_every_checkpoints_data(sessions, others):
    """The value import_session returns holds every checkpoint's data, including rollbacks and later checkpoints."""
    sid = (await sessions.create_session("tutor")).session_id
    await sessions.checkpoint(sid, "base", {"messages": ["m" * 50] * 40})
    for n in range(4):
        await sessions.checkpoint(sid, f"b{n}", append={"messages": [n]})
    await sessions.rollback(sid, "b1")
    await sessions.checkpoint(sid, "c", append={"messages": ["c"]})
    session = await others.import_session(await sessions.export(sid), session_id="copy")
    assert [c.data for c in session.checkpoints] == [c.data for c in await sessions.history(sid)]
    await others.update_session(session)
    assert len(await others.history("copy", all=True)) == len(session.checkpoints)
    assert (await others.checkpoint(session, "d", append={"messages": ["d"]})).data["messages"][-3:] == [1, "c", "d"]


async def test_deepest_state_round_trips(sessions, others):
    """A state nested to the limit is exported and imported, as a keyframe and as a patch."""
    deep = 1
    for _ in range(98):
        deep = [deep]
    sid = (await sessions.create_session("tutor", context={"c": deep[0]})).session_id
    await sessions.checkpoint(sid, "one", {"k": [deep]}, {"m": deep})
    await sessions.checkpoint(sid, "two", {"k": [deep, deep], "other": [deep]})
    await others.import_session(await sessions.export(sid), session_id="copy")
    assert (await others.get_checkpoint("copy")).data == {"k": [deep, deep], "other": [deep]}


async def test_import_and_export_yield_to_the_loop(sessions, session):
    """A long import or export yields regularly to other tasks of the event loop."""
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
        answer = json.loads(text)
        answer["entries"][number].update(fields)
        return json.dumps(answer)

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
async def test_forged_import_is_invalid_input(sessions, spoil):
    """Content that no export contains is InvalidInput, and nothing of it is kept."""
    session = await busy_session(sessions)
    text = spoil(await sessions.export(session.session_id))
    with pytest.raises(InvalidInput):
        await sessions.import_session(text, session_id="copy")
    assert await sessions.get_session("copy") is None


def header(**fields):
    def change(document):
        document["session"].update(fields)

    return change


def entry(number, **fields):
    def change(document):
        document["entries"][number].update(fields)

    return change


def more(*kinds, **fields):
    """Append entries after the last one, and update the header to match."""

    def change(document):
        for kind in kinds:
            seq, at = len(document["entries"]) + 1, document["entries"][-1]["at"]
            document["entries"].append({"seq": seq, "kind": kind, "name": kind, "at": at, "patch": [], "data": {}})
        document["session"].update(fields)

    return change


FORGED = [
    (header(state="completed"), "session.state", "is completed, but the entries lead to failed"),
    (header(state="active"), "session.state", "is active, but the entries lead to failed"),
    (header(context={"lie": 1}), "session.context", "does not match the entries"),
    (header(context={}), "session.context", "does not match the entries"),
    (header(metadata={"lie": 1}), "session.metadata", "does not match the entries"),
    (header(labels={}), "session.labels", "does not match the entries"),
    (header(created_at="1960-01-01T00:00:00+00:00"), "session.created_at", "later than the start of 1970"),
    (header(last_heartbeat="1969-12-31T23:59:59+00:00"), "session.last_heartbeat", "later than the start of 1970"),
    (entry(2, at="1960-01-01T00:00:00+00:00"), "entries[2].at", "later than the start of 1970"),
    (entry(0, at="1960-01-01T00:00:00+01:00"), "entries[0].at", "later than the start of 1970"),
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
async def test_contradictory_import_is_refused(sessions, forge, path, says):
    """Entries that cannot follow each other, or that do not lead to the header's state, are refused with the place;
    none is kept.
    """
    session = await busy_session(sessions)
    answer = json.loads(await sessions.export(session.session_id))
    forge(answer)
    with pytest.raises(InvalidInput, match=says) as refused:
        await sessions.import_session(json.dumps(answer), session_id="copy")
    assert refused.value.path == f"import.{path}"
    assert await sessions.get_session("copy") is None
    with pytest.raises(InvalidInput, match=says):  # a folder of exports comes in by the same check
        jsonl.parcel(json.dumps(answer), "default")


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
async def test_every_legal_transition_is_imported(sessions, kinds, state):
    """The transition table is the same as for every call; ownership, retention entries and gaps in numbers change no
    state.
    """
    session = await busy_session(sessions)
    answer = json.loads(await sessions.export(session.session_id))
    more(*kinds, state=state)(answer)
    assert (await sessions.import_session(json.dumps(answer), session_id="copy")).state == state
    assert (await sessions.get_session("copy")).state == state


async def test_imported_value_follows_the_log(sessions):
    """Where header and log are only equal in Python (1 and True), both take the log's value."""
    sid = (await sessions.create_session("tutor", context={"c": True})).session_id
    answer = json.loads(await sessions.export(sid))
    answer["session"]["context"] = {"c": 1}
    session = await sessions.import_session(json.dumps(answer), session_id="copy")
    assert session.context["c"] is (await sessions.get_session("copy")).context["c"] is True


async def test_export_during_writes_is_consistent(sessions, others):
    """Every export taken while a session changes can be imported."""
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
    assert count
    assert (await others.import_session(await others.export(sid), session_id="last")).context == {"n": 59, "back": 58}


async def test_swept_forked_and_new_sessions_round_trip(sessions, others):
    """Swept, forked and just created sessions come back as they are."""
    await sessions.create_session("tutor", session_id="fresh")
    session = await sessions.create_session("tutor", context={"c": 1}, session_id="swept")
    await sessions.checkpoint(session, "one", {"n": 1})
    await sessions.fork("swept", session_id="fork")
    assert await sessions.cleanup_stale_sessions(timedelta(0)) == 3
    await sessions.rollback("fork", "one")
    for sid, state in (("swept", "failed"), ("fork", "active"), ("fresh", "failed")):
        loaded = await others.import_session(await sessions.export(sid), session_id=f"{sid} copy")
        assert (loaded.state, loaded.context) == (state, (await sessions.get_session(sid)).context)


@pytest.mark.parametrize("kind", ["created", "paused"])
async def test_hides_of_a_kind_that_hides_nothing_is_refused(sessions, kind):
    """Before any work: a range of a million billion entries would never end."""
    session = await busy_session(sessions)
    export = json.loads(await sessions.export(session.session_id))
    entry = next(entry for entry in export["entries"] if entry["kind"] == kind)
    entry["hides"] = [[1, HUGE]]
    with pytest.raises(InvalidInput, match="hides"):
        await sessions.import_session(json.dumps(export), session_id="copy")


async def test_hides_of_newer_entries_is_refused(sessions):
    """An entry can hide only older ones, however many ranges name them."""
    session = await busy_session(sessions)
    export = json.loads(await sessions.export(session.session_id))
    entry = next(entry for entry in export["entries"] if entry["kind"] == "checkpoint")
    for hides in ([[1, HUGE]], [[0, 1]], [[entry["seq"], entry["seq"]]], [[2, 1]]):
        entry["hides"] = hides
        with pytest.raises(InvalidInput, match="hides"):
            await sessions.import_session(json.dumps(export), session_id="copy")


async def test_key_order_survives_an_export(sessions, others):
    """Keys of a state stay in their order, at the top and inside, also where a patch cannot say so."""
    states = (
        {"b": 1, "a": {"y": 1, "x": [{"q": 1, "p": 2}]}, "c~/": {"n": 1, "m": 2}},
        {"a": {"y": 1, "x": [{"q": 1, "p": 2}]}, "b": 1, "c~/": {"n": 1, "m": 2}},
        {"a": {"x": [{"p": 2, "q": 1}, {"z": 1, "a": 2}], "y": 1}, "b": 1, "c~/": {"m": 2, "n": 1}, "0": 0},
        {"0": 0, "d": 1, "b": 1, "a": {"x": [{"p": 2, "q": 1}, {"z": 1, "a": 2}], "y": 2}},
        {"0": 0, "d": 1, "b": 1, "a": {"x": [{"p": 2, "q": 1}, {"z": 1, "a": 2}, {"b": 1, "a": 1}], "y": 2}},
    )
    session = await sessions.create_session("tutor", session_id="s")
    for state in states:
        await sessions.checkpoint(session, "one", state)
    text = await sessions.export("s")
    await others.import_session(text, session_id="t")
    history = await others.history("t", name="one")
    assert [json.dumps(one.data) for one in history] == [json.dumps(state) for state in states]
    entries = json.loads(text)["entries"]
    assert ["order" in entry for entry in entries] == [False, False, True, False, True, False]
    entries[2]["order"] = ["a", "b"]
    with pytest.raises(InvalidInput, match=r"entries\[2\]\.order"):
        await others.import_session(json.dumps({**json.loads(text), "entries": entries}), session_id="u")


@pytest.mark.parametrize("wrong", ["", "zz" * 32, "00" * 31, 5, None, "the same"])
async def test_forged_request_is_refused(sessions, wrong):
    """What identifies a call with an idempotency key is 32 bytes, and no other entry's."""
    await sessions.create_session("tutor", session_id="s", data={})
    for n in range(2):
        await sessions.checkpoint("s", "one", {"n": n}, idempotency_key=f"k{n}")
    document = json.loads(await sessions.export("s"))
    document["entries"][-1]["request"] = document["entries"][-2]["request"] if wrong == "the same" else wrong
    with pytest.raises(InvalidInput, match=r"import\.entries\[3\]"):
        await sessions.import_session(json.dumps(document), session_id="t")
