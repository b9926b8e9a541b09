"""PostgreSQL dies and comes back under load: latency, never an acknowledged entry."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import saveslot
from saveslot import SessionManager
from saveslot.stack import Postgres
from saveslot.stores.postgres import PostgresStore
from tests.harness import history
from tests.harness.killing import digest

AGENTS = 16

pytestmark = pytest.mark.faults


@pytest.fixture
def server() -> Iterator[Postgres]:
    # After a crash it syncs its folder by one call, not file by file.
    with Postgres(options={"recovery_init_sync_method": "syncfs"}) as server:
        yield server


class Load:
    """Agents that save, a reader beside them in another manager, and a record of the answers that each got."""

    def __init__(self, record: history.Recorder, writer: SessionManager, reader: SessionManager) -> None:
        self.acknowledged = 0
        self._record, self._writer, self._reader = record, writer, reader
        self._over = asyncio.Event()

    async def run(self) -> None:
        agents = [self._agent(f"s{n}") for n in range(AGENTS)]
        async with asyncio.TaskGroup() as group:
            for work in [*agents, self._look()]:
                group.create_task(work)

    def end(self) -> None:
        self._over.set()

    async def further(self, by: int, working: asyncio.Task[None]) -> None:
        """Wait until that many more writes were acknowledged."""
        goal = self.acknowledged + by
        while True:
            if self.acknowledged >= goal or working.done():
                return
            await asyncio.sleep(0.01)

    async def _agent(self, session_id: str) -> None:
        with self._record.call("create", session_id) as call:
            session = await patiently(lambda: self._writer.create_session("agent", session_id=session_id))
            call.ok(seq=session.seen.seq)
        number = 0
        while not self._over.is_set():
            number += 1
            data = {"session": session_id, "number": number}
            with self._record.call("write", session_id, digest=digest(data)) as call:
                checkpoint = await patiently(lambda data=data: self._writer.checkpoint(session_id, "turn", data))
                call.ok(seq=checkpoint.seq)
            self.acknowledged += 1

    async def _look(self) -> None:
        while not self._over.is_set():
            session_id = f"s{random.randrange(AGENTS)}"
            with self._record.call("read", session_id) as call:
                session = await patiently(lambda name=session_id: self._reader.get_session(name, history=1))
                if session is None:
                    call.ok(seq=0)
                else:
                    newest = session.checkpoints[-1]
                    answer = digest(newest.data) if newest.name == "turn" else ""
                    call.ok(seq=session.seen.seq, digest=answer)


async def patiently(ask):
    """Again until it is answered: the same call is stored once."""
    while True:
        try:
            return await ask()
        except saveslot.Unavailable:
            continue


@pytest.mark.parametrize(
    ("end", "times"),
    [
        (Postgres.kill, 20),
        (Postgres.stop, 5),
        pytest.param(Postgres.kill, 500, marks=pytest.mark.long),
    ],
    ids=["20 kills", "5 restarts", "500 kills"],
)
async def test_server_kills_lose_nothing_acknowledged(
    server: Postgres, tmp_path: Path, end: Callable[[Postgres], None], times: int
) -> None:
    """Through kills and restarts under load: nothing acknowledged lost, nothing doubled, no gap, no stale read."""
    with history.Recorder(tmp_path / "all.jsonl", "all") as record:
        async with saveslot.open(server.url) as writer, saveslot.open(server.url) as reader:
            load = Load(record, writer, reader)
            working = asyncio.create_task(load.run())
            for _ in range(times):
                await load.further(2 * AGENTS, working)
                await asyncio.sleep(random.uniform(0, 0.1))
                await asyncio.to_thread(end, server)
                await asyncio.to_thread(server.start)
            load.end()
            async with asyncio.timeout(120):
                await working
    wrong = await violations(server, tmp_path / "all.jsonl")
    assert not wrong, "\n".join(map(str, wrong[:20]))


async def violations(server: Postgres, path: Path) -> list[history.Violation]:
    logs: dict[str, list[history.Logged]] = {}
    store = await PostgresStore.open(server.url)
    async with SessionManager(store=store) as sessions:
        for session_id in (f"s{n}" for n in range(AGENTS)):
            [head] = await store.heads([("default", session_id)])
            assert head is not None
            turns = {
                checkpoint.seq: digest(checkpoint.data)
                for checkpoint in await sessions.history(session_id, name="turn")
            }
            log = await store.entries(head.row.key)
            logs[session_id] = [history.logged(entry, turns.get(entry.seq, "")) for entry in log]
    operations = history.read([path])
    assert sum(op.op == "write" and op.acknowledged for op in operations) > AGENTS
    return history.check(operations, logs)


async def test_server_outage_is_unavailable(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """No await hangs: after the patience every call raises Unavailable, and works once the server is back."""
    monkeypatch.setattr("saveslot.stores.postgres.connection.PATIENCE", 1.0)
    async with saveslot.open(server.url) as sessions:
        session = await sessions.create_session("agent")
        server.kill()
        with pytest.raises(saveslot.Unavailable):
            await sessions.checkpoint(session, "turn", {"number": 1})
        with pytest.raises(saveslot.Unavailable):
            await sessions.get_session(session.session_id)
        server.start()
        await sessions.checkpoint(session, "turn", {"number": 1})
        [checkpoint] = await sessions.history(session.session_id, name="turn")
        assert checkpoint.data == {"number": 1}


async def test_orphan_is_claimed_by_another_manager(server: Postgres) -> None:
    """A session that one manager held and abandoned is claimed by the other, from its last checkpoint."""
    one = await saveslot.open(server.url, worker_beat=0.2, worker_ttl=1)
    async with saveslot.open(server.url, worker_beat=0.2, worker_ttl=1) as two:
        session = await one.create_session("agent")
        held = await one.take(session)
        await held.checkpoint("turn", {"number": 1})
        with pytest.raises(saveslot.LeaseHeld):
            await two.take(session)
        await one.close()
        [claimed] = await two.claim()
        async with claimed:
            assert claimed.data == {"number": 1}
            await claimed.complete()
