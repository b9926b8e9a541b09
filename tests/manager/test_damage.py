"""One damaged session does not affect the others."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from saveslot import Corrupt, SessionManager
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite.file import connect


@pytest.fixture
async def damaged(stores, sessions, place, tmp_path) -> SessionManager:
    """Three sessions; one bit of the second one's row has flipped."""
    for name in ("first", "second", "third"):
        await sessions.create_session("tutor", context={"topic": name}, labels={"team": "red"}, session_id=name)
        await sessions.checkpoint(name, "started", {"n": 1})
    if isinstance(stores[0], MemoryStore):
        [row] = [row for row in stores[0]._rows.values() if row.session_id == "second"]  # noqa: SLF001
        row.body = row.body[:-1] + bytes([row.body[-1] ^ 1])
        return sessions
    if place.startswith("postgresql:"):
        server, _, schema = place.partition("&schema=")
        other = await asyncpg.connect(server)
        changed = "set_byte(body, length(body) - 1, get_byte(body, length(body) - 1) # 1)"
        await other.execute(f"update {schema}.sessions set body = {changed} where id = 'second'")  # noqa: S608
        await other.close()
        return sessions
    connection = connect(str(tmp_path / "s.db"), None)
    body = connection.execute("select body from sessions where id = 'second'").get
    connection.execute("update sessions set body = ? where id = 'second'", (body[:-1] + bytes([body[-1] ^ 1]),))
    connection.close()
    return sessions


async def test_damaged_session_is_listed_and_raises_on_access(damaged):
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


async def test_update_never_overwrites_damage_by_accident(damaged):
    """Updating it raises `Corrupt`; with a new context and metadata the update stores them and repairs the session."""
    bad = await damaged.get_session("second")
    assert [checkpoint.name for checkpoint in bad.checkpoints] == ["session_created", "started"]
    with pytest.raises(Corrupt):
        await damaged.update_session(bad)
    bad.context, bad.metadata = {"topic": "anew"}, {}
    await damaged.update_session(bad)
    assert (await damaged.get_session("second")).context == {"topic": "anew"}


async def test_damaged_session_can_be_claimed(damaged):
    """A claim includes it: the agent's data is intact."""
    claimed = await damaged.claim(released=True)
    assert sorted(held.session.session_id for held in claimed) == ["first", "second", "third"]
    for held in claimed:
        async with held:
            assert held.data == {"n": 1}


async def test_damaged_session_does_not_stop_a_sweep(damaged, clock):
    """A sweep fails it together with the other stale sessions, and it keeps its contents."""
    clock.pass_hours(3)
    assert await damaged.cleanup_stale_sessions(timedelta(hours=1)) == 3
    page = await damaged.find(state="failed")
    assert len(page) == 3
    assert page[0].context["failure_reason"] == "heartbeat_timeout"
    with pytest.raises(Corrupt):
        _ = page[1].context
    assert (await damaged.get_checkpoint("second", "session_failed")).data["error"] == "heartbeat_timeout"
