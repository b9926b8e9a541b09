"""Owners wrongly declared dead: none of their writes land, and the log alone ensures that."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

import saveslot
from saveslot import SessionManager
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite.file import connect
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Group, Outcome

TTL, BEAT = 1.0, 0.2
SCRIPT = Path(__file__).with_name("holder.py")


class Zombie:
    """The process of `holder.py`."""

    def __init__(self, url: str, how: str, tasks: int) -> None:
        command = [sys.executable, str(SCRIPT), url, "s", str(TTL), str(BEAT), how, str(tasks)]
        environment = {**os.environ, "PYTHONPATH": str(Path(saveslot.__file__).parents[1])}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment)
        assert self.line() == ["holds"]

    def line(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> list[list[str]]:
        """What it still has to say."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        output = self._process.stdout.read()  # communicate() would drop lines that `line` read ahead
        assert self._process.wait() == 0
        return [line.split() for line in output.splitlines()]

    def kill(self) -> None:
        with self._process:  # closes its pipes
            self._process.kill()


@pytest.fixture
def started() -> Iterator[list[Zombie]]:
    zombies: list[Zombie] = []
    yield zombies
    for zombie in zombies:
        zombie.kill()


async def claimed(sessions: SessionManager) -> saveslot.Held:
    """The session of a worker that is silent, as soon as others may have it."""
    async with asyncio.timeout(60):
        while True:
            for held in await sessions.claim():
                return await held.__aenter__()
            await asyncio.sleep(0.05)


async def created(url: str) -> None:
    async with saveslot.open(url) as sessions:
        await sessions.create_session("agent", session_id="s")


@pytest.mark.faults
@pytest.mark.parametrize("how", ["careful", "blind"])
async def test_zombie_cannot_write(tmp_path, started, how):
    """An owner stopped for 2 TTL gets LeaseLost, and the log holds only the new owner's writes."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    await created(url)
    started.append(zombie := await asyncio.to_thread(Zombie, url, how, 1))
    zombie.stop()
    await asyncio.sleep(2 * TTL)
    async with saveslot.open(url, worker_ttl=TTL, worker_beat=BEAT) as sessions:
        held = await claimed(sessions)
        await held.checkpoint("mine", {"by": "me", "n": 1})
        zombie.go_on()
        zombie.go()
        said = await asyncio.to_thread(zombie.end)
        assert said == [["lease_lost", "1"], ["lost"]]
        await held.checkpoint("mine", {"by": "me", "n": 2})
        history = await sessions.history("s")
        assert [c.data for c in history[1:]] == [{"by": "me", "n": 1}, {"by": "me", "n": 2}]
        await held.complete()


@pytest.mark.faults
@pytest.mark.parametrize("how", ["careful", "blind"])
async def test_zombie_with_appends_in_flight_cannot_write(tmp_path, started, how):
    """For an owner stopped while it saves, acknowledged entries come before the claim, and none lands after it."""
    path = tmp_path / "s.db"
    url = f"sqlite:///{path}"
    await created(url)
    started.append(zombie := await asyncio.to_thread(Zombie, url, how, 8))
    zombie.go()
    said = [await asyncio.to_thread(zombie.line)]
    await asyncio.sleep(random.uniform(0.1, 0.3))
    zombie.stop()
    while locked(path):  # inside a commit: no process can write or claim
        zombie.go_on()
        await asyncio.sleep(random.uniform(0, 0.01))
        zombie.stop()
    await asyncio.sleep(2 * TTL)
    async with saveslot.open(url, worker_ttl=TTL, worker_beat=BEAT) as sessions:
        held = await claimed(sessions)
        mine = await held.checkpoint("mine", {"by": "me"})
        zombie.go_on()
        said += await asyncio.to_thread(zombie.end)
        await held.checkpoint("mine", {"by": "me"})
        history = await sessions.history("s")
    *said, last = said
    assert last == ["lost"]
    by_key = {int(line[1]): int(line[2]) for line in said if line[0] == "ok"}
    refused = [int(line[1]) for line in said if line[0] != "ok"]
    assert [line[0] for line in said if line[0] != "ok"] == ["lease_lost"] * 8
    stored = {c.data["n"]: c.seq for c in history if c.data.get("by") == "zombie"}
    assert by_key
    assert by_key.items() <= stored.items()
    assert max(stored.values()) < mine.seq - 1
    # At most one was committed before the stop whose answer the zombie had not read; it gets the error that stops it.
    assert len(stored.keys() - by_key.keys()) <= 1
    assert stored.keys() - by_key.keys() <= set(refused)
    assert [c.data for c in history if c.seq >= mine.seq] == [{"by": "me"}, {"by": "me"}]


def locked(path: Path) -> bool:
    """True while another process is inside a write transaction."""
    connection = connect(str(path), None)
    try:
        connection.execute("begin immediate; rollback")
    except apsw.BusyError:
        return True
    finally:
        connection.close()
    return False


class Mute:
    """A store whose worker is not heard any more once it is `mute`."""

    def __init__(self, store: saveslot.stores.Store) -> None:
        self._store = store
        self.mute = False

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def beat(self, signs, worker=None):
        if self.mute:
            raise saveslot.Unavailable("not heard")
        return await self._store.beat(signs, worker)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_log_alone_fences_a_dead_owner(tmp_path, backend):
    """Bypassing the manager's checks, any write with the dead owner's lease and last seen entry gets `fenced`."""
    store = MemoryStore() if backend == "memory" else await SqliteStore.open(str(tmp_path / "s.db"))
    timing = {"worker_ttl": 0.4, "worker_beat": 0.1}
    silent = Mute(store)
    first, second = SessionManager(store=silent, **timing), SessionManager(store=store, **timing)
    await first.create_session("agent", session_id="s")
    await (await first.take("s")).checkpoint("first", {"by": "first"})
    [seen] = await store.heads([("default", "s")])
    silent.mute = True
    held = await claimed(second)

    def entry(seq: int, kind: Kind = Kind.CHECKPOINT) -> Entry:
        return Entry(seq, os.urandom(16), kind, "late", fence=seen.row.fence, lease=seen.row.lease)

    async def tried() -> list[Outcome]:
        """Three entries in flight, each after the one before, and one of each other kind that an owner writes."""
        late, prev = [], seen.last.append_id
        for seq in range(seen.last.seq + 1, seen.last.seq + 4):
            late.append(Group(seen.row.key, prev, [entry(seq)]))
            prev = late[-1].entries[0].append_id
        late += [
            Group(seen.row.key, seen.last.append_id, [entry(seen.last.seq + 1, kind)], state="paused")
            for kind in (Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.PAUSED, Kind.ROLLBACK)
        ]
        late.append(Group(seen.row.key, seen.last.append_id, [entry(seen.last.seq + 1), entry(seen.last.seq + 2)]))
        # Also each alone, as from other connections, and once more, as after a lost acknowledgement.
        verdicts = [*await store.append(late), *[(await store.append([group]))[0] for group in late]]
        return [verdict.outcome for verdict in verdicts]

    assert set(await tried()) == {Outcome.FENCED}  # behind the claim alone …
    for n in range(3):
        await held.checkpoint("second", {"by": "second", "n": n})
    assert set(await tried()) == {Outcome.FENCED}  # … and behind what the new owner wrote
    await held.release()
    assert set(await tried()) == {Outcome.FENCED}  # … and when nobody holds the session
    [head] = await store.heads([("default", "s")])
    kinds = [entry.kind for entry in await store.entries(head.row.key)]
    assert kinds[seen.last.seq :] == [Kind.CLAIMED, *[Kind.CHECKPOINT] * 3, Kind.RELEASED]
    assert head.row.state == "active"
    [*_, last] = await second.history("s")
    assert last.data == {"by": "second", "n": 2}
    silent.mute = False
    await first.close()
    with suppress(saveslot.Unavailable):  # in memory both have the same store, which is closed by now
        await second.close()


@pytest.mark.faults
async def test_worker_stopped_in_a_commit_costs_no_session(tmp_path):
    """While it blocks all writes no worker can renew: that outage ends with the stop, and no worker is
    declared dead.
    """
    path = str(tmp_path / "s.db")
    names = [f"s{n}" for n in range(6)]

    async def opened() -> SessionManager:
        return SessionManager(store=await SqliteStore.open(path), worker_ttl=2, worker_beat=0.4)

    workers = [await opened() for _ in names]
    held: list[saveslot.Held] = []
    for worker, name in zip(workers, names, strict=True):
        await worker.create_session("agent", session_id=name)
        held.append(await worker.take(name))
        await asyncio.sleep(0.4 / len(names))  # so that they do not beat at the same moment
    claims: list[saveslot.Held] = []

    async def claiming(worker: SessionManager) -> None:
        while True:
            with suppress(saveslot.Unavailable):
                claims.extend(await worker.claim())
            await asyncio.sleep(random.uniform(0, 0.02))

    tasks = [asyncio.create_task(claiming(worker)) for worker in workers]
    await asyncio.sleep(2.5)  # by now each has seen the store up for one TTL
    stopped = connect(path, None)
    stopped.execute("begin immediate")
    await asyncio.sleep(1)
    workers.append(await opened())  # one that comes when it has begun already
    tasks.append(asyncio.create_task(claiming(workers[-1])))
    await asyncio.sleep(2)
    stopped.execute("rollback")
    await asyncio.sleep(2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stopped.close()
    assert not claims
    for mine in held:
        await mine.checkpoint("after", {})
        assert not mine.lost.is_set()
    for worker in workers:
        await worker.close()
