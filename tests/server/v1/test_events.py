"""`/v1/events`: streams of what is appended, over a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection

import msgspec
import pytest

import saveslot
from saveslot.server.feeds import ROOM, Filter, Listener, feed_of
from saveslot.server.v1.events import SENT
from tests.server.conftest import Served, serving


class Stream:
    """A client of server-sent events, which have the types that OpenAPI names."""

    def __init__(self, served: Served, path: str = "/v1/events", **headers: str) -> None:
        self._connection = HTTPConnection(served.address, timeout=60)
        self._connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.answer = self._connection.getresponse()
        self.last = ""

    def blocks(self):
        """Yield event type, id and data of each block that has data."""
        fields: dict[str, str] = {}
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if text:
                name, _, value = text.partition(":")
                fields[name] = value.strip()
                continue
            self.last = fields.get("id", self.last)
            if "data" in fields:
                data = json.loads(fields["data"])
                if fields["event"] in SENT:
                    sent = msgspec.convert(data, SENT[fields["event"]])
                    assert data.keys() == set(sent.__struct_fields__)
                yield fields["event"], data
            fields = {}

    def take(self, count: int) -> list[dict]:
        """The next so many entries."""
        found = []
        for kind, data in self.blocks():
            assert kind == "entry"
            found.append(data)
            if len(found) == count:
                return found
        raise AssertionError(f"the stream ended after {len(found)} of {count}")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def watch(served):
    streams: list[Stream] = []

    def opened(path: str = "/v1/events", **headers: str) -> Stream:
        streams.append(Stream(served, path, **headers))
        return streams[-1]

    yield opened
    for stream in streams:
        stream.close()


def made(served: Served, session_id: str, agent_type: str = "tutor") -> None:
    answer = served.request("POST", "/v1/sessions", {"agent_type": agent_type, "session_id": session_id})
    assert answer.status == 201


def saved(served: Served, session_id: str, name: str) -> None:
    assert served.request("POST", f"/v1/sessions/{session_id}/checkpoints", {"name": name, "data": {}}).status == 201


def test_a_stream_begins_now(served, watch):
    """Without a cursor, a stream shows what is appended after its answer began, by any process, and nothing older."""
    made(served, "now-1")
    stream = watch()
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    assert stream.answer.headers["cache-control"] == "no-store"
    saved(served, "now-1", "here")
    with saveslot.blocking.open(served.store) as sessions:
        sessions.checkpoint("now-1", "elsewhere", {})
    first, second = stream.take(2)
    assert [first["name"], second["name"]] == ["here", "elsewhere"]
    expected = {"session_id": "now-1", "seq": 2, "kind": "checkpoint", "agent_type": "tutor", "state": "active"}
    assert expected.items() <= first.items()
    assert (first["owner"], first["cursor"]) == (None, first["cursor"])
    assert second["bytes"] >= 0


def test_last_event_id(served, watch):
    """With the id of the last event that it got, a client gets all later ones, each once, while others are appended."""
    made(served, "again")
    stream = watch("/v1/events?session_id=again")
    for n in range(50):
        saved(served, "again", f"n{n}")
    got = [event["name"] for event in stream.take(20)]
    stream.close()
    stop = threading.Event()

    def write() -> None:
        n = 50
        while not stop.is_set():
            saved(served, "again", f"n{n}")
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        last = stream.last
        for _ in range(5):  # it loses its connection again and again
            again = watch("/v1/events?session_id=again", last_event_id=last)
            got += [event["name"] for event in again.take(40)]
            last = again.last
            again.close()
    finally:
        stop.set()
        writer.join()
    assert got == [f"n{n}" for n in range(220)]


def test_cursor_of_another_server_on_the_store(served, watch):
    """A cursor counts at any server of the store: a client that moves over misses nothing and gets nothing twice."""
    made(served, "moves")
    stream = watch("/v1/sessions/moves/events")
    for n in range(5):
        saved(served, "moves", f"n{n}")
    assert [event["name"] for event in stream.take(5)] == [f"n{n}" for n in range(5)]
    with serving(served.store) as other, closing(Stream(other, "/v1/events", last_event_id=stream.last)) as moved:
        for n in range(5, 10):
            saved(served, "moves", f"n{n}")
        assert [event["name"] for event in moved.take(5)] == [f"n{n}" for n in range(5, 10)]


def test_idle_stream_remembers_where_it_is(served, watch):
    """A client that got no event yet reconnects with the id that the stream began with, and misses nothing."""
    stream = watch("/v1/events?name=idle")
    threading.Timer(0.2, stream.close).start()
    while not stream.last:
        line = stream.answer.readline().decode()
        if line.startswith("id:"):
            stream.last = line.partition(":")[2].strip()
    made(served, "idle")
    saved(served, "idle", "idle")
    assert watch("/v1/events?name=idle", last_event_id=stream.last).take(1)[0]["session_id"] == "idle"


def test_filters(served, watch):
    """A stream has only the kinds, names, agent types and sessions that were asked for."""
    streams = {
        "kind": watch("/v1/events?kind=paused&kind=failed"),
        "name": watch("/v1/events?name=wanted"),
        "agent": watch("/v1/events?agent_type=coach"),
        "session": watch("/v1/events?session_id=f-2"),
    }
    for session_id, agent in (("f-1", "tutor"), ("f-2", "tutor"), ("f-3", "coach")):
        made(served, session_id, agent)
        saved(served, session_id, "other")
        saved(served, session_id, "wanted")
    served.request("POST", "/v1/sessions/f-1/pause")
    served.request("DELETE", "/v1/sessions/f-3", if_match="*")
    assert [(e["session_id"], e["name"]) for e in streams["kind"].take(1)] == [("f-1", "session_paused")]
    assert [e["session_id"] for e in streams["name"].take(3)] == ["f-1", "f-2", "f-3"]
    assert [e["name"] for e in streams["agent"].take(4)] == ["session_created", "other", "wanted", "session_deleted"]
    assert [e["name"] for e in streams["session"].take(3)] == ["session_created", "other", "wanted"]
    for wrong, status in (("kind=nothing", 422), ("max_rate=0", 422), ("after=x", 422), ("colour=red", 422)):
        assert served.request("GET", f"/v1/events?{wrong}").status == status, wrong
    assert served.request("GET", "/v1/sessions/nobody/events").status == 404


def test_max_rate(served, watch):
    """Above `max_rate`, events are left out and counted: shown and skipped together are all."""
    made(served, "fast")
    stream = watch("/v1/events?session_id=fast&max_rate=2")
    shown, skipped = 0, 0
    for n in range(60):
        saved(served, "fast", f"n{n}")
    for kind, data in stream.blocks():
        shown += kind == "entry"
        skipped += data["n"] if kind == "skipped" else 0
        if shown + skipped == 60:
            break
    assert skipped > 0


def test_gone_cursor_is_a_reset(served, watch, tmp_path):
    """A cursor of another database, or of one that went back, resets the stream, which goes on from now."""
    made(served, "s")
    stream = watch()
    saved(served, "s", "first")
    stream.take(1)
    with serving(str(tmp_path / "other.db")) as other, closing(Stream(other, last_event_id=stream.last)) as moved:
        kind, data = next(moved.blocks())
        assert (kind, list(data)) == ("reset", ["message"])
        made(other, "later")
        assert moved.take(1)[0]["session_id"] == "later"


def test_streams_end_with_their_token(tmp_path):
    """A stream ends once its token was revoked."""
    store = str(tmp_path / "agents.db")
    command = [sys.executable, "-m", "saveslot", "token", "--store", store]
    token = subprocess.run(
        [*command, "create", "viewer", "--scope", "read"], check=True, capture_output=True, text=True
    )
    with serving(store, "--token-required") as served:
        stream = Stream(served, authorization=f"Bearer {token.stdout.strip()}")
        assert stream.answer.status == 200
        subprocess.run([*command, "revoke", "viewer"], check=True, capture_output=True)
        assert list(stream.blocks()) == []
        stream.close()


def test_streams_end_when_the_server_does(tmp_path):
    """When the server is told to end, its streams end at once, so that clients reconnect elsewhere."""
    with serving(str(tmp_path / "agents.db")) as served:
        stream = Stream(served)
        began = time.monotonic()
        served.process.terminate()
        assert list(stream.blocks()) == []
        assert served.process.wait(60) == 0
        assert time.monotonic() - began < 9  # not after the ten seconds that open requests get
        stream.close()


async def test_slow_listeners_are_cut():
    """A listener that takes nothing is cut once too much waits for it, and holds up no other."""
    async with saveslot.open("memory:") as sessions:
        feed = feed_of(sessions)
        stuck, quick = (Listener(Filter(), lambda: True) for _ in range(2))
        await feed.join(stuck)
        await feed.join(quick)
        await sessions.create_session("tutor", session_id="s")
        got = 0
        for n in range(ROOM + 1):
            await sessions.record("s", "r", n)
            got += len(quick.waiting)
            quick.waiting.clear()
        while got < ROOM + 2:
            await quick.wake(60)
            got += len(quick.waiting)
            quick.waiting.clear()
        assert (stuck.closed, quick.closed, len(stuck.waiting)) == (True, False, 0)
        feed.leave(stuck)
        feed.leave(quick)


def test_many_listeners_share_one_watch(served):
    """200 listeners all get every event, in order."""
    made(served, "many")
    streams = [Stream(served, "/v1/events?session_id=many") for _ in range(200)]
    for n in range(5):
        saved(served, "many", f"n{n}")
    names = Counter(tuple(event["name"] for event in stream.take(5)) for stream in streams)
    for stream in streams:
        stream.close()
    assert names == {tuple(f"n{n}" for n in range(5)): 200}
