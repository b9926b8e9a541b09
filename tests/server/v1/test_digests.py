"""`/v1/events?digest=`: what happened in a second, and `owners=`: when a worker falls silent."""

from __future__ import annotations

import pytest

import saveslot
from saveslot import SessionManager
from saveslot.manager.outlook import is_late
from saveslot.server.digests import Digest
from saveslot.values.log import Row
from tests.server.v1.test_events import made, saved, watch  # noqa: F401  (a fixture)


def test_a_digest_counts_and_names(served, watch):  # noqa: F811
    """Counts by kind, where all sessions stand, and what was touched; each event in one digest."""
    made(served, "digested")
    stream = watch("/v1/events?digest=0.5s&session_id=digested")
    blocks = stream.blocks()
    kind, first = next(blocks)
    assert kind == "digest"
    assert first["by_state"]["active"] >= 1
    assert (first["counts_by_kind"], first["touched"], first["more"]) == ({}, [], 0)
    for n in range(10):
        saved(served, "digested", f"n{n}")
    count, last = 0, None
    while count < 10:
        kind, data = next(blocks)
        assert (kind, len(data["touched"])) == ("digest", 1)
        count += data["counts_by_kind"]["checkpoint"]
        [last] = data["touched"]
    assert (count, last["id"], last["seq"], last["name"], last["state"]) == (10, "digested", 11, "n9", "active")
    [newest] = served.request("GET", "/v1/sessions/digested/log?limit=1").json["items"]
    assert (last["timestamp"], last["bytes"]) == (newest["at"], newest["bytes"])
    saved(served, "digested", "later")
    again = watch("/v1/events?digest=1s&session_id=digested", last_event_id=stream.last)
    assert next(again.blocks())[1]["counts_by_kind"] == {"checkpoint": 1}


def test_silent_owners_are_told_of(served, watch):  # noqa: F811
    """A worker that leaves makes an orphan, and a claim ends that; a stream that did not ask gets entries only."""
    made(served, "silent")
    stream = watch("/v1/events?owners=1&session_id=silent")
    blocks = stream.blocks()
    with saveslot.blocking.open(served.store, worker_beat=0.3, worker_ttl=2) as sessions:
        sessions.take("silent")
        assert next(blocks)[1]["kind"] == "taken"
    kind, data = next(blocks)
    assert (kind, data["session_id"], data["on"]) == ("orphaned", "silent", True)
    assert data["owner"]
    with saveslot.blocking.open(served.store) as sessions:
        [held] = [held for held in sessions.claim(limit=100) if held.session.session_id == "silent"]
        with held:
            found = [next(blocks) for _ in range(2)]
            assert {kind for kind, _ in found} == {"entry", "orphaned"}
            assert [data["on"] for kind, data in found if kind == "orphaned"] == [False]
    plain = watch("/v1/events?session_id=silent&name=after")
    saved(served, "silent", "after")
    assert [event["name"] for event in plain.take(1)] == ["after"]


def test_an_interval_is_checked(served):
    """Not too short, not too long, and a number."""
    for text in ("0", "61s", "x", "nan"):
        assert served.request("GET", f"/v1/events?digest={text}").status == 422


def test_half_of_a_ttl_in_silence_is_late():
    """By the store's own clock: what is left of the TTL, and how long ago the last heartbeat was."""
    row = Row(b"k" * 16, "default", "s", owner=b"w" * 16, now=100, beaten=89, left=10)
    assert is_late(row)
    assert not is_late(Row(b"k" * 16, "default", "s", owner=b"w" * 16, now=100, beaten=91, left=11))
    assert not is_late(Row(b"k" * 16, "default", "s", owner=b"w" * 16, now=100, beaten=50, left=0))


async def test_a_digest_names_at_most_200(monkeypatch):
    """The sessions that changed last; `more` counts the others."""
    from saveslot.server.digests import standing
    from saveslot.server.feeds import Feed

    sessions = SessionManager()
    feed, digest = Feed(sessions), Digest(0.5)
    _, cursor = await sessions.engine.vault.events("default", None)
    for n in range(205):
        await sessions.create_session("tutor", session_id=f"s{n}")
    events, _ = await sessions.engine.vault.events("default", cursor)
    digest.add(await feed.news(events))
    [text] = digest.text(await standing(sessions, 0))
    assert b'"more":5' in text
    assert b'"id":"s204"' in text
    assert b'"id":"s4"' not in text
    assert digest.text(await standing(sessions, 0)) == []
    await sessions.close()


pytestmark = pytest.mark.timeout(120)
