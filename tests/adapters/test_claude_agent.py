"""Transcripts of the Claude Agent SDK, with the real package: its conformance suite, and what several processes see."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

import claude_agent_sdk as sdk
from claude_agent_sdk.testing import run_session_store_conformance

from saveslot import SessionState
from saveslot.adapters.claude_agent import SaveslotSessionStore

ROOT = Path(__file__).parents[2]
KEY = {"project_key": "-home-anna-parser", "session_id": "11111111-1111-4111-8111-111111111111"}


def entry(n, **more):
    return {
        "type": "user",
        "uuid": str(uuid.UUID(int=n)),
        "timestamp": f"2026-11-19T10:00:{n % 60:02}.000Z",
        "n": n,
        **more,
    }


async def test_conformance(sessions):
    """All contracts of the SDK's own suite hold, those of its optional methods, too."""
    made = []

    def store():
        made.append(SaveslotSessionStore(sessions=sessions, namespace=f"n{len(made)}"))
        return made[-1]

    await run_session_store_conformance(store)
    assert len(made) == 15  # one for each contract, and the first


async def test_entries_are_stored_once(sessions, others):
    """An entry with a uuid is stored once: within a batch, in a repeated one, and from another process."""
    store, other = SaveslotSessionStore(sessions=sessions), SaveslotSessionStore(sessions=others)
    await store.append(KEY, [entry(1), entry(1), {"type": "title"}])
    await store.append(KEY, [entry(1), entry(2)])
    await other.append(KEY, [entry(2), entry(3), {"type": "title"}])
    await store.append(KEY, [entry(3), entry(4)])
    for each in (store, other, SaveslotSessionStore(sessions=others)):
        assert [item.get("n", item["type"]) for item in await each.load(KEY)] == [1, "title", 2, 3, "title", 4]


async def test_processes_at_once(sessions, others):
    """Two processes that append at once lose nothing, tear no batch, and keep each other's summary."""
    pair = [SaveslotSessionStore(sessions=sessions), SaveslotSessionStore(sessions=others)]
    batches = [[entry(2 * n + 1), entry(2 * n + 2)] for n in range(20)]
    await asyncio.gather(*(pair[n % 2].append(KEY, batch) for n, batch in enumerate(batches)))
    numbers = [item["n"] for item in await pair[0].load(KEY)]
    assert sorted(numbers) == list(range(1, 41))
    assert all(second == first + 1 for first, second in zip(numbers[::2], numbers[1::2], strict=True))
    await pair[0].append(KEY, [{"type": "custom-title", "customTitle": "Parser", "timestamp": "2026-11-19T11:00:00Z"}])
    await pair[1].append(KEY, [entry(50)])
    [ours], [theirs] = [await store.list_session_summaries(KEY["project_key"]) for store in pair]
    assert ours == theirs
    assert "Parser" in str(ours["data"])


async def test_summaries_outlive_other_entries(sessions):
    """A summary is found after the session was labelled, held or paused, too."""
    store = SaveslotSessionStore(sessions=sessions)
    await store.append(KEY, [entry(1)])
    [before] = await store.list_session_summaries(KEY["project_key"])
    [session] = await sessions.find(agent_type="claude-agent")
    assert session.state is SessionState.PAUSED
    async with sessions.hold(session.session_id):
        pass
    [after] = await store.list_session_summaries(KEY["project_key"])
    assert after["data"] == before["data"]
    [listed] = await store.list_sessions(KEY["project_key"])
    assert after["mtime"] >= listed["mtime"]


async def test_long_keys_and_slashes(sessions):
    """Keys of any length and with slashes stay apart."""
    store = SaveslotSessionStore(sessions=sessions)
    keys = [{"project_key": "p" * 300 + end, "session_id": "s"} for end in "ab"]
    keys += [{"project_key": "a/b", "session_id": "c"}, {"project_key": "a", "session_id": "b/c"}]
    keys += [{"project_key": "a", "session_id": "b", "subpath": "c"}]
    for n, key in enumerate(keys, 1):
        await store.append(key, [entry(n)])
    assert [[item["n"] for item in await store.load(key)] for key in keys] == [[1], [2], [3], [4], [5]]
    assert await store.list_subkeys({"project_key": "a", "session_id": "b"}) == ["c"]
    assert [item["session_id"] for item in await store.list_sessions("a/b")] == ["c"]


async def test_the_sdks_own_functions(sessions):
    """The SDK lists, reads, renames and deletes sessions of the store by its own functions."""
    store, directory = SaveslotSessionStore(sessions=sessions), "/home/anna/parser"
    turn = {"role": "user", "content": "Write a parser"}
    first = entry(1, message=turn, sessionId=KEY["session_id"], cwd=directory, parentUuid=None, isSidechain=False)
    key = {**KEY, "project_key": sdk.project_key_for_directory(directory)}
    await store.append(key, [first])
    [listed] = await sdk.list_sessions_from_store(store, directory=directory)
    assert (listed.session_id, listed.first_prompt) == (KEY["session_id"], "Write a parser")
    [message] = await sdk.get_session_messages_from_store(store, KEY["session_id"], directory=directory)
    assert message.message == turn
    await sdk.rename_session_via_store(store, KEY["session_id"], "The parser", directory=directory)
    [listed] = await sdk.list_sessions_from_store(store, directory=directory)
    assert listed.custom_title == "The parser"
    await sdk.delete_session_via_store(store, KEY["session_id"], directory=directory)
    assert await sdk.list_sessions_from_store(store, directory=directory) == []


WRITER = """
import asyncio, sys
from saveslot.adapters.claude_agent import SaveslotSessionStore
async def main():
    store, key = SaveslotSessionStore(sys.argv[1]), {"project_key": "p", "session_id": "s"}
    for n in range(100_000):
        await store.append(key, [{"type": "x", "uuid": f"{n}-{part}"} for part in "ab"])
        print(n, flush=True)
asyncio.run(main())
"""


async def test_what_was_appended_survives_a_kill(database):
    """After kill -9 in the middle of appends, each acknowledged batch is there, whole, and another process goes on."""
    command = [sys.executable, "-c", WRITER, database]
    writer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    acknowledged = -1
    for _ in range(20):
        acknowledged = int(await writer.stdout.readline())
    writer.kill()
    acknowledged = max([acknowledged, *map(int, (await writer.communicate())[0].split()[:-1])])
    store, key = SaveslotSessionStore(database), {"project_key": "p", "session_id": "s"}
    uuids = [item["uuid"] for item in await store.load(key)]
    assert uuids == [f"{n}-{part}" for n in range(len(uuids) // 2) for part in "ab"]
    assert len(uuids) // 2 > acknowledged
    await store.append(key, [{"type": "x", "uuid": uuids[-1]}, {"type": "x", "uuid": "after"}])
    assert [item["uuid"] for item in await store.load(key)] == [*uuids, "after"]
    await store.close()


def test_versions():
    """The extra allows the versions that the adapter is tested with; another one is refused with what to install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["claude"] == ["claude-agent-sdk>=0.2.182,<0.3"]
    program = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "0.3.0" if name == "claude-agent-sdk" else real(name)
import saveslot.adapters.claude_agent
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "works with claude-agent-sdk 0.2.182 up to, but not including, 0.3; 0.3.0 is installed" in done.stderr
