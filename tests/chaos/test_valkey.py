"""A Valkey that syncs always dies and comes back under load: latency, never an acknowledged entry."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import saveslot
from saveslot.stack import Valkey
from saveslot.stores.valkey import ValkeyStore
from tests.harness import history

KILLS = 10
AGENTS = 8
# Checkpoints acknowledged between two kills, so that each kill comes at a busy moment.
BUSY = 60

pytestmark = pytest.mark.faults


def digest(data: Any) -> str:
    return sha256(repr(data).encode()).hexdigest()[:16]


async def test_killed_servers_lose_nothing_acknowledged(tmp_path: Path) -> None:
    """Agents save and others read through kills and restarts; every history is legal, and each entry is there once."""
    over, saved = asyncio.Event(), [0]
    record = history.Recorder(tmp_path / "calls.jsonl", "agents")

    with Valkey(options={"appendonly": "yes", "appendfsync": "always"}) as server:

        async def work(sessions: saveslot.SessionManager, session_id: str) -> None:
            number = 0
            while not over.is_set():
                number += 1
                data = {"session": session_id, "number": number}
                with record.call("write", session_id, digest=digest(data)) as call:
                    while True:
                        try:
                            checkpoint = await sessions.checkpoint(session_id, "turn", data)
                            break
                        except saveslot.Unavailable:
                            continue  # the same again: it is stored once
                    call.ok(seq=checkpoint.seq)
                saved[0] += 1

        async def look(store: ValkeyStore, session_id: str) -> None:
            while not over.is_set():
                with record.call("read", session_id) as call:
                    [head] = await store.heads([("default", session_id)])
                    call.ok(seq=0 if head is None else head.last.seq)
                await asyncio.sleep(0.005)

        async with saveslot.open(server.url) as sessions:
            store = await ValkeyStore.open(server.url)
            ids: list[str] = []
            for number in range(AGENTS):
                with record.call("create", f"s{number}") as call:
                    ids.append((await sessions.create_session("agent", session_id=f"s{number}")).session_id)
                    call.ok(seq=1)
            tasks = [asyncio.create_task(work(sessions, name)) for name in ids]
            tasks += [asyncio.create_task(look(store, name)) for name in ids]
            for _ in range(KILLS):
                enough = saved[0] + BUSY
                while saved[0] < enough and not any(task.done() for task in tasks):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            over.set()
            await asyncio.gather(*tasks)
            logs: dict[str, list[history.Logged]] = {}
            for name in ids:
                by_key = {
                    checkpoint.seq: digest(checkpoint.data) for checkpoint in await sessions.history(name, name="turn")
                }
                [head] = await store.heads([("default", name)])
                assert head is not None
                entries = await store.entries(head.row.key)
                logs[name] = [history.logged(entry, by_key.get(entry.seq, "")) for entry in entries]
            await store.close()
    record.close()
    operations = history.read([tmp_path / "calls.jsonl"])
    assert sum(op.op == "write" and op.acknowledged for op in operations) >= KILLS * BUSY
    assert not history.check(operations, logs)
