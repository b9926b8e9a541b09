"""One damaged session must not keep anybody from the others."""

from __future__ import annotations

from datetime import timedelta

import apsw
import pytest

from saveslot import Corrupt, SessionManager
from saveslot.stores.memory import MemoryStore


@pytest.fixture
async def damaged(stores, sessions, tmp_path) -> SessionManager:
    """Three sessions; a bit of what the second one's row holds has flipped."""
    for name in ("first", "second", "third"):
        await sessions.create_session("tutor", context={"topic": name}, labels={"team": "red"}, session_id=name)
        await sessions.checkpoint(name, "started", {"n": 1})
    if isinstance(stores[0], MemoryStore):
        [row] = [row for row in stores[0]._rows.values() if row.session_id == "second"]  # noqa: SLF001
        row.body = row.body[:-1] + bytes([row.body[-1] ^ 1])
        return sessions
    connection = apsw.Connection(str(tmp_path / "s.db"))
    body = connection.execute("select body from sessions where id = 'second'").get
    connection.execute("update sessions set body = ? where id = 'second'", (body[:-1] + bytes([body[-1] ^ 1]),))
    connection.close()
    return sessions


async def test_a_damaged_session_is_listed_and_says_so_when_looked_at(damaged):
    """Lists show it with its state, labels and times; its context and metadata raise `Corrupt` and name it."""
    page = await damaged.find(labels={"team": "red"})
    assert [session.session_id for session in page] == ["third", "second", "first"]
    assert page[0].context == {"topic": "third"}
    bad = page[1]
    assert (bad.state, bad.agent_type, bad.labels) == ("active", "tutor", {"team": "red"})
    assert "second" in repr(bad)
    for look in (lambda: bad.context, lambda: bad.metadata, bad.to_dict):
        with pytest.raises(Corrupt, match="session second"):
            look()
    assert not hasattr(bad, "unheard_of")
    assert await damaged.count() == 3


async def test_a_damaged_session_is_never_written_over_by_accident(damaged):
    """An update of one raises `Corrupt`; given a new context and metadata it stores these, and is whole again."""
    bad = await damaged.get_session("second")
    assert [checkpoint.name for checkpoint in bad.checkpoints] == ["session_created", "started"]
    with pytest.raises(Corrupt):
        await damaged.update_session(bad)
    bad.context, bad.metadata = {"topic": "anew"}, {}
    await damaged.update_session(bad)
    assert (await damaged.get_session("second")).context == {"topic": "anew"}


async def test_a_damaged_session_can_be_claimed(damaged):
    """A claim takes it with the others: the agent's data is all there."""
    claimed = await damaged.claim(released=True)
    assert sorted(held.session.session_id for held in claimed) == ["first", "second", "third"]
    for held in claimed:
        async with held:
            assert held.data == {"n": 1}


async def test_a_damaged_session_does_not_stop_a_sweep(damaged, clock):
    """Stale sessions end together with it, and it keeps what it has."""
    clock.pass_hours(3)
    assert await damaged.cleanup_stale_sessions(timedelta(hours=1)) == 3
    page = await damaged.find(state="failed")
    assert len(page) == 3
    assert page[0].context["failure_reason"] == "heartbeat_timeout"
    with pytest.raises(Corrupt):
        _ = page[1].context
    assert (await damaged.get_checkpoint("second", "session_failed")).data["error"] == "heartbeat_timeout"
