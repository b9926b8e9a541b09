"""Strands' storage of blobs, with the real package, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json

import pytest
from strands.session import SnapshotSessionManager
from strands.storage import InMemoryStorage, Storage
from strands.types.exceptions import StorageError

from saveslot.adapters.strands import SaveslotStorage
from tests.adapters.strands.chats import called, said, texts, tutor


@pytest.fixture
def storage(sessions):
    return SaveslotStorage(sessions=sessions)


@pytest.fixture
def other(others):
    return SaveslotStorage(sessions=others)


BLOBS = [
    b"",
    b"\xff\x00\xfe",
    b"[1, 2]",
    b'{"b": 1, "a": {"z": null, "y": [1.5, true]}, "u": "\xc3\xbc"}',
    b'{"a":1}',
    b'{"a": 1, "a": 2}',
    b'{"$keys": ["x"]}',
    b'{"n": 123456789012345678901234567890, "f": 1e+300}',
    b'{"n": NaN}',
    b'{"a": "\\ud800"}',
    (b'{"a": ' * 200) + b"1" + b"}" * 200,
    json.dumps({"long": "x" * 10_000}).encode(),
]


async def test_blobs_come_back(storage, other):
    """Any bytes come back as they were written, also after other ones under the same key, and in another process."""
    assert isinstance(storage, Storage)
    assert await storage.read("a/b") is None
    for blob in [*BLOBS, *reversed(BLOBS)]:
        await storage.write("a/b", blob)
        assert await storage.read("a/b") == await other.read("a/b") == blob


async def test_what_the_storage_in_memory_does(storage, other):
    """list, search, delete and namespaces answer as Strands' own storage in memory does."""
    reference = InMemoryStorage()
    keys = ["a", "a/b", "a/bc", "b/" + "long" * 60 + "/1", "b/" + "long" * 60 + "/2", "ü/x y"]
    for each in (reference, storage):
        for key in keys:
            await each.write(key, f"the key is {key}".encode())
    for query in ("", "a", "a/", "a/b", "b/" + "long" * 60, "nothing", "%", "_"):
        assert await other.list(query) == await reference.list(query)
    ours, theirs = [[(hit.key, hit.score) for hit in await each.search("key ü")] for each in (other, reference)]
    assert ours == theirs
    for each in (storage, reference):
        await each.delete("a/b")
        await each.delete("a/b")
    assert await other.list("a") == await reference.list("a") == ["a", "a/bc"]
    assert await other.read("a/b") is None


async def test_one_of_two_writers_wins(storage, other):
    """A write that another process overtook since the key was read is a StorageError until it is read again."""
    await storage.write("k", b"1")
    assert await other.read("k") == b"1"
    await storage.write("k", b"2")
    for _ in range(2):
        with pytest.raises(StorageError, match="session k: another caller changed it"):
            await other.write("k", b"3")
    assert await other.read("k") == b"2"
    await other.write("k", b"3")
    assert await storage.read("k") == b"3"
    assert await storage.read("new") is None
    await other.write("new", b"1")
    with pytest.raises(StorageError):
        await storage.write("new", b"2")


async def test_errors(storage):
    """What cannot be stored is a StorageError that says why."""
    for key in ("", "a\nb"):
        with pytest.raises(StorageError):
            await storage.write(key, b"")
    with pytest.raises(StorageError, match="16"):
        await storage.write("k", bytes(20 << 20))


async def test_writes_at_once(storage):
    """Writes of one object to one key, and to many, follow one another."""
    await asyncio.gather(*(storage.write("k", str(n).encode()) for n in range(10)))
    await asyncio.gather(*(storage.write(f"k{n}", b"x") for n in range(10)))
    assert int(await storage.read("k")) in range(10)
    assert len(await storage.list("k")) == 11


def test_snapshots(storage, other, sessions):
    """SnapshotSessionManager restores an agent in another process, and one that another process overtook is told."""
    agent = tutor(SnapshotSessionManager("chat", storage=storage, save_latest_on="message"), said("a"), said("late"))
    agent("one")
    agent.state.set("level", 2)
    late = tutor(SnapshotSessionManager("chat", storage=storage), said("x"))
    second = tutor(SnapshotSessionManager("chat", storage=other), said("b"))
    assert texts(second.messages) == ["one", "a"]
    second("two")
    assert texts(second.model.heard[0]) == ["one", "a", "two"]
    with pytest.raises(StorageError):
        late("three")
    third = tutor(SnapshotSessionManager("chat", storage=storage))
    assert texts(third.messages) == ["one", "a", "two", "b"]
    [found] = sessions.find(agent_type="strands-storage")
    assert found.session_id == "session/chat/scopes/agent/tutor/snapshots/snapshot_latest.json"
    assert sessions.get_data(found.session_id)["data"]["messages"][0]["content"] == [{"text": "one"}]


def test_checkpoints_of_agents(storage, other):
    """Immutable snapshots are listed in order and restored, in another process, too."""
    manager = SnapshotSessionManager("chat", storage=storage, snapshot_trigger=lambda **_: True)
    agent = tutor(manager, said("a"), said("b"))
    agent("one")
    agent("two")
    later = SnapshotSessionManager("chat", storage=other)
    again = tutor(later)
    first, _ = asyncio.run(later.list_snapshot_ids(again))
    assert asyncio.run(later.restore_snapshot(again, snapshot_id=first))
    assert texts(again.messages) == ["one", "a"]
    asyncio.run(later.delete_session())
    assert asyncio.run(storage.list("")) == []


def test_snapshots_store_what_changed(sessions, storage):
    """The snapshots of a conversation of 60 messages take less than four times the bytes of the last one."""
    agent = tutor(
        SnapshotSessionManager("chat", storage=storage, save_latest_on="message"),
        *[said(f"{n} " + " ".join(str(hash((n, k))) for k in range(40))) for n in range(30)],
    )
    for n in range(30):
        agent(f"question {n} " + " ".join(str(hash((k, n))) for k in range(40)))
    [found] = sessions.find(agent_type="strands-storage")
    entries = sessions.entries(found.session_id)
    whole = len(asyncio.run(storage.read(found.session_id)))
    assert len(entries) > 60
    assert sum(entry.size for entry in entries) < 4 * whole


async def test_any_loop(database):
    """A storage on a URL is used from any number of event loops, one after another, and closed once."""
    storage = SaveslotStorage(database)
    await asyncio.to_thread(asyncio.run, storage.write("a", b"1"))
    await asyncio.to_thread(asyncio.run, storage.write("b", b"2"))
    assert await storage.list("") == ["a", "b"]
    agent = tutor(SnapshotSessionManager("chat", storage=storage), called("none", "c1"), said("ok"))
    await agent.invoke_async("in a loop")
    await storage.close()
    assert await storage.read("a") == b"1"
    await storage.close()
