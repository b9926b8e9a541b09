"""Sessions and checkpoints as plain values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from saveslot import AgentSession, Checkpoint, InvalidInput, SessionCheckpoint, SessionState


def test_lifecycle_calls_leave_the_parity_checkpoints():
    """Each lifecycle call leaves one checkpoint with the name and data that users of the old modules know."""
    session = AgentSession(agent_type="tutor")
    session.pause()
    session.resume()
    session.resume()
    session.complete({"grade": "A"})
    assert [(c.name, c.data) for c in session.checkpoints] == [
        ("session_paused", {"previous_state": "active"}),
        ("session_resumed", {}),
        ("session_completed", {"result": {"grade": "A"}}),
    ]
    quiet, failed = AgentSession(), AgentSession()
    quiet.complete()
    failed.fail("out of memory")
    assert quiet.checkpoints[-1].data == {"result": {}}
    assert failed.checkpoints[-1].data == {"error": "out of memory", "details": {}}


def test_resume_is_a_heartbeat():
    """Resuming moves the heartbeat; so does heartbeat()."""
    session = AgentSession(state=SessionState.PAUSED)
    before = session.last_heartbeat
    session.resume()
    assert session.last_heartbeat > before
    between = session.last_heartbeat
    session.heartbeat()
    assert session.last_heartbeat > between


def test_last_checkpoint_is_the_newest_of_its_name():
    """get_last_checkpoint returns the newest, the newest of a name, or None."""
    session = AgentSession()
    assert session.get_last_checkpoint() is None
    session.checkpoint("a", {"n": 1})
    session.checkpoint("b", {"n": 2})
    session.checkpoint("a", {"n": 3})
    assert session.get_last_checkpoint().data == {"n": 3}
    assert session.get_last_checkpoint("b").data == {"n": 2}
    assert session.get_last_checkpoint("c") is None


def test_duration_runs_until_the_session_ended():
    """A running session's duration grows; an ended one's stops at its last checkpoint."""
    session = AgentSession(created_at=datetime.now(UTC) - timedelta(hours=2))
    assert session.get_duration() >= timedelta(hours=2)
    session.complete()
    assert session.get_duration() == session.checkpoints[-1].timestamp - session.created_at


def test_session_dict_round_trips():
    """to_dict and from_dict are exact inverses, with ISO times and the state by value."""
    session = AgentSession(agent_type="tutor", user_id="anna", context={"a": [1, {"b": None}]}, metadata={"k": "v"})
    session.checkpoint("one", {"x": 1.5})
    session.pause()
    document = session.to_dict()
    assert document["state"] == "paused"
    assert datetime.fromisoformat(document["created_at"]) == session.created_at
    assert AgentSession.from_dict(document) == session
    assert AgentSession.from_dict(document).to_dict() == document


def test_missing_parts_read_as_empty_and_naive_times_as_utc():
    """An old dict without context, checkpoints or metadata is accepted, and so is a naive time."""
    session = AgentSession.from_dict({"session_id": "s", "created_at": "2026-01-02T03:04:05"})
    assert (session.context, session.checkpoints, session.metadata) == ({}, [], {})
    assert session.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_callers_dicts_are_copied():
    """Inputs are copied, and so are outputs."""
    context, data = {"list": [1]}, {"inner": {"n": 1}}
    session = AgentSession(context=context)
    checkpoint = session.checkpoint("x", data)
    context["list"].append(2)
    data["inner"]["n"] = 2
    assert session.context == {"list": [1]}
    assert checkpoint.data == {"inner": {"n": 1}}
    raw, listed = bytearray(b"a"), [checkpoint]
    assert AgentSession(context={"raw": raw}).context == {"raw": b"a"}
    holding = AgentSession(context={"raw": raw}, checkpoints=listed)
    raw[0] = 0
    holding.checkpoint("y")
    assert (holding.context, listed) == ({"raw": b"a"}, [checkpoint])
    document = session.to_dict()
    document["context"]["list"].append(3)
    document["checkpoints"][0]["data"]["inner"]["n"] = 3
    assert session.context == {"list": [1]}
    assert checkpoint.data == {"inner": {"n": 1}}


def test_checkpoint_dicts_round_trip():
    """SessionCheckpoint and Checkpoint round-trip with exactly the fields that parity names."""
    plain = SessionCheckpoint("a", data={"n": 1})
    assert set(plain.to_dict()) == {"name", "timestamp", "data"}
    assert SessionCheckpoint.from_dict(plain.to_dict()) == plain
    full = Checkpoint("s:3", "a", data={"n": 1}, metadata={"by": "me"})
    assert set(full.to_dict()) == {"id", "name", "timestamp", "data", "metadata"}
    assert Checkpoint.from_dict(full.to_dict()) == full
    assert full.seq == 3


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: AgentSession(session_id=""), "session_id"),
        (lambda: AgentSession(session_id="x" * 1000), "session_id"),
        (lambda: AgentSession(session_id="a\nb"), "session_id"),
        (lambda: AgentSession(session_id="\ud800"), "session_id"),
        (lambda: AgentSession(context=[1]), "context"),
        (lambda: AgentSession(state="sleeping"), "state"),
        (lambda: AgentSession().checkpoint("", {}), "name"),
        (lambda: AgentSession().checkpoint("x", [1]), "data"),
        (lambda: AgentSession.from_dict({}), "session.session_id"),
        (lambda: AgentSession.from_dict({"session_id": "s", "created_at": "yesterday"}), "session.created_at"),
        (lambda: AgentSession.from_dict([]), "session"),
        (lambda: Checkpoint.from_dict({"name": "x"}), "checkpoint.id"),
        (lambda: Checkpoint("x", "x").seq, "checkpoint.id"),
        (lambda: Checkpoint("s:²", "x").seq, "checkpoint.id"),
    ],
)
def test_bad_values_are_refused_by_name(make, path):
    """An invalid value raises InvalidInput that names it."""
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.path == path


def test_self_containing_dict_is_refused():
    """A self-referencing dict raises InvalidInput instead of recursing endlessly."""
    loop: dict = {}
    loop["self"] = loop
    with pytest.raises(InvalidInput):
        AgentSession().checkpoint("x", loop)


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        (lambda session, odd: session.checkpoint("x", {"a": [odd]}), "data.a[0]"),
        (lambda session, odd: session.complete({"a": odd}), "data.result.a"),
        (lambda session, odd: session.fail(odd), "data.error"),
        (lambda session, odd: session.fail("x", {"a": odd}), "data.details.a"),
    ],
    ids=["checkpoint", "complete", "error", "details"],
)
def test_unstorable_data_is_refused_when_staged(verb, path):
    """The call raises with the path and stages nothing."""
    for odd in (float("nan"), ValueError("x"), {1: 2}):
        session = AgentSession()
        with pytest.raises(InvalidInput) as caught:
            verb(session, odd)
        assert caught.value.path.startswith(path)
        assert (session.state, session.checkpoints, session.staged) == (SessionState.ACTIVE, [], [])


def test_refused_call_changes_no_state():
    """A result that contains itself does not end the session."""
    loop: dict = {}
    loop["self"] = loop
    session = AgentSession()
    for verb in (session.complete, lambda loop: session.fail("x", loop)):
        with pytest.raises(InvalidInput):
            verb(loop)
    assert (session.state, session.staged) == (SessionState.ACTIVE, [])
