"""Two servers on one store, and kill -9: clients go on at the other, and the history of all they saw is legal."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import saveslot
from tests.chaos.worker import digest
from tests.harness import history
from tests.server.conftest import serving

SESSIONS, SECONDS, KILLS = 8, 12.0, 3


@pytest.mark.faults
async def test_killed_servers_lose_and_double_nothing(servers, tmp_path: Path) -> None:
    """While clients save, read and watch through two servers on one PostgreSQL, one after another is killed with -9 and
    started again: nothing acknowledged is lost, nothing is doubled, and the watcher sees each entry once.
    """
    store = servers.schema()
    async with saveslot.open(store) as sessions:
        for n in range(SESSIONS):
            await sessions.create_session("agent", session_id=f"s{n}")
    records = [tmp_path / f"c{n}.jsonl" for n in range(2)]
    seen: list[tuple[str, int]] = []
    with ExitStack() as running:
        killed = [running.enter_context(serving(store)) for _ in range(2)]
        ports = [served.address for served in killed]
        ends = time.monotonic() + SECONDS
        clients = [
            asyncio.create_task(client(n, f"http://{','.join(ports[n:] + ports[:n])}", records[n], ends))
            for n in range(2)
        ]
        watcher = asyncio.create_task(watch(f"http://{','.join(ports)}", seen))
        for n in range(KILLS):
            await asyncio.sleep(SECONDS / (KILLS + 2))
            killed[n % 2].process.kill()
            await asyncio.to_thread(killed[n % 2].process.wait)
            port = ports[n % 2].rpartition(":")[2]
            killed[n % 2] = await asyncio.to_thread(running.enter_context, serving(store, port=port))
        counts = await asyncio.gather(*clients)
        assert min(counts) > SESSIONS
        async with saveslot.open(store) as sessions:
            logs = {}
            for n in range(SESSIONS):
                [head] = await sessions.engine.vault.heads([("default", f"s{n}")])
                entries = await sessions.engine.vault.entries(head.row.key)
                found = {entry.seq: "" for entry in entries}
                for checkpoint in await sessions.history(f"s{n}"):
                    if checkpoint.name == "turn":
                        found[int(checkpoint.id.rpartition(":")[2])] = digest(checkpoint.data)
                logs[f"s{n}"] = [history.logged(entry, found[entry.seq]) for entry in entries]
        written = {(name, entry.seq) for name, log in logs.items() for entry in log if entry.op == "write"}
        limit = time.monotonic() + 60
        while written - set(seen) and time.monotonic() < limit:  # noqa: ASYNC110  (the watcher appends to a list)
            await asyncio.sleep(0.05)
        watcher.cancel()
        assert len(seen) == len(set(seen))
        assert set(seen) == written
    assert history.check(history.read(records), logs) == []


async def client(n: int, url: str, path: Path, ends: float) -> int:
    """Save to all sessions and read them, by one manager; return how many saves were acknowledged."""
    saved = 0
    choice = random.Random(n)
    with history.Recorder(path, f"c{n}") as record:
        async with saveslot.open(url) as sessions:

            async def agent(session_id: str) -> None:
                nonlocal saved
                turn = 0
                while time.monotonic() < ends:
                    turn += 1
                    data = {"by": n, "turn": turn, "text": choice.randbytes(200).hex()}
                    with record.call("write", session_id, digest=digest(data)) as call:
                        try:
                            checkpoint = await sessions.checkpoint(session_id, "turn", data)
                        except saveslot.Conflict as exc:
                            call.fail(exc.code)
                            await sessions.head(session_id)
                            continue
                        call.ok(seq=int(checkpoint.id.rpartition(":")[2]))
                    saved += 1
                    other = f"s{choice.randrange(SESSIONS)}"
                    with record.call("read", other) as call:
                        head = await sessions.head(other)
                        call.ok(seq=head.seq)
                    await asyncio.sleep(0.01)

            await asyncio.gather(*(agent(f"s{k}") for k in range(n, SESSIONS, 2)))
    return saved


async def watch(url: str, seen: list[tuple[str, int]]) -> None:
    async with saveslot.open(url) as sessions:
        async for event in sessions.watch(after="0"):
            if event.kind == "checkpoint":
                seen.append((event.session_id, event.seq))  # noqa: PERF401  (it never ends)
