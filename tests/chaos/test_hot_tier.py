"""Whatever happens to Valkey, every read is as new as its level requires, and no write fails."""

import asyncio
import gc
import logging
import os
import random
import signal
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio

import saveslot
from saveslot import SessionManager
from saveslot.stack import Postgres, Valkey

pytestmark = pytest.mark.faults

AGENTS, READERS = 4, 4
MAX_AGE = 0.3


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def place() -> Iterator["Place"]:
    place = Place()
    try:
        place.server.start()
        yield place
    finally:
        place.server.remove()


async def until(true: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110  (counters are no events)
            await asyncio.sleep(0.01)


# A primary that sends its replica all it has at once, instead of waiting for more replicas.
READY = {"repl-diskless-sync-delay": "0"}


class Place:
    """Where a Valkey is reached, whichever process is the primary just now."""

    def __init__(self) -> None:
        self.server = Valkey(options=READY)
        self.port = self.server.port
        self.url = self.server.url

    @asynccontextmanager
    async def client(self) -> AsyncIterator[valkey.asyncio.Valkey]:
        async with valkey.asyncio.Valkey.from_url(self.url) as client:
            yield client

    async def stopped(self, seconds: float) -> None:
        """Killed, and started again empty."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.server.start)

    async def stalled(self, seconds: float) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(self.server.pid, signal.SIGCONT)

    async def flushed(self, seconds: float) -> None:
        async with self.client() as client:
            await asyncio.sleep(seconds)
            await client.flushall()

    async def full(self, seconds: float) -> None:
        async with self.client() as client:
            await client.config_set("maxmemory", 1)
            await asyncio.sleep(seconds)
            await client.config_set("maxmemory", 0)

    async def garbage(self, seconds: float) -> None:
        """Frames are noise, cut, empty or another entry's, and some keys are not hashes."""
        async with self.client() as client:
            for n, name in enumerate(await client.keys("saveslot:*")):
                held = await client.hgetall(name) if await client.type(name) == b"hash" else {}
                seqs = [field for field in held if field.isdigit()]
                if n % 9 == 8:
                    await client.set(name, os.urandom(40))
                elif seqs:
                    spoilt = {
                        seq: (held[random.choice(seqs)], os.urandom(40), held[seq][: len(held[seq]) // 2], b"")[n % 4]
                        for seq in seqs
                    }
                    await client.hset(name, mapping=spoilt)
            await asyncio.sleep(seconds)

    async def promoted(self, seconds: float) -> None:
        """A replica that heard nothing for a while becomes the primary."""
        replica = Valkey(options=READY)
        try:
            await asyncio.to_thread(replica.start)
            async with valkey.asyncio.Valkey.from_url(replica.url) as client:
                await client.replicaof("127.0.0.1", str(self.port))

                async def copied() -> bool:
                    return (await client.info("replication"))["master_link_status"] == "up"

                await until(copied)
                await client.replicaof("127.0.0.1", "1")  # where no server is: it misses every write from now on
                await asyncio.sleep(seconds)
                await asyncio.to_thread(self.server.kill)
                await client.replicaof("NO", "ONE")
                await client.config_set("port", self.port)
        except BaseException:
            replica.remove()
            raise
        self.server.remove()
        self.server, replica.port = replica, self.port


# How many of each: two hundred. Those for which a process must start are the fewest.
KINDS = {"stopped": 14, "stalled": 44, "flushed": 44, "full": 44, "garbage": 48, "promoted": 6}


def pad(session_id: str, turn: int) -> str:
    """Too much for a row of PostgreSQL, even compressed: this is what Valkey lends."""
    return random.Random(f"{session_id} {turn}").randbytes(3000).hex()


class Ledger:
    """What became of one session, in order: numbers of turns, `created`, `deleted`; and when each was acknowledged."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.begun: list[int | str] = ["deleted"]
        self.acknowledged: list[float] = [0.0]

    async def write(self, what: int | str, verb: Awaitable[object]) -> None:
        self.begun.append(what)
        await verb
        self.acknowledged.append(time.monotonic())

    def known(self, age: float) -> int:
        """The newest state that was acknowledged that long ago."""
        return bisect_right(self.acknowledged, time.monotonic() - age) - 1


class Agents:
    """They write through one manager and read through another. Every read is checked against what was acknowledged
    before it began, and what had begun before it ended.
    """

    def __init__(self, one: SessionManager, two: SessionManager) -> None:
        self.one, self.two = one, two
        self.ledgers = [Ledger(f"s{n}") for n in range(AGENTS)]
        self.reads = dict.fromkeys(("strong", "cached"), 0)
        self.turns = 0
        self.over = False
        work = [self._write(ledger) for ledger in self.ledgers] + [self._read() for _ in range(READERS)]
        self.tasks = [asyncio.create_task(each) for each in work]

    async def _write(self, ledger: Ledger) -> None:
        name = ledger.session_id
        while not self.over:
            await ledger.write("created", self.one.create_session("agent", session_id=name))
            for _ in range(random.randint(5, 40)):
                self.turns += 1
                turn = self.turns
                data = {"turn": turn, "pad": pad(name, turn)}
                await ledger.write(turn, self.one.checkpoint(name, "turn", data))
                assert (await self.one.get_data(name)) == data
                if self.over:
                    return
            await ledger.write("deleted", self.one.delete_session(name))

    async def _read(self) -> None:
        while not self.over:
            ledger, level = random.choice(self.ledgers), random.choice(list(self.reads))
            first = ledger.known(MAX_AGE if level == "cached" else 0)
            loaded = await self.two.get_session(ledger.session_id, history=1, level=level, max_age=MAX_AGE)
            assert newest_in(loaded) in ledger.begun[first:], (
                f"{level}: {newest_in(loaded)} is older than {ledger.begun[first]}"
            )
            firsts = [each.known(MAX_AGE if level == "cached" else 0) for each in self.ledgers]
            listed = {session.session_id for session in await self.two.find(level=level, max_age=MAX_AGE)}
            for each, first in zip(self.ledgers, firsts, strict=True):
                assert (each.session_id in listed) in {what != "deleted" for what in each.begun[first:]}, level
            await self._resume(random.choice(self.ledgers))
            self.reads[level] += 1

    async def _resume(self, ledger: Ledger) -> None:
        """The newest state, which Valkey may lend."""
        first = ledger.known(0)
        try:
            data = await self.two.get_data(ledger.session_id)
        except saveslot.NotFound:
            turn: int | str = "deleted"
        else:
            turn = data["turn"] if data else "created"
            assert not data or data["pad"] == pad(ledger.session_id, data["turn"])
        assert turn in ledger.begun[first:], f"{turn} is older than {ledger.begun[first]}"

    async def more(self, turns: int) -> None:
        aim, reads = self.turns + turns, sum(self.reads.values()) + turns

        async def done() -> bool:
            enough = self.turns >= aim and sum(self.reads.values()) >= reads
            return enough or any(task.done() for task in self.tasks)

        await until(done)

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self.tasks)


def newest_in(session: saveslot.AgentSession | None) -> int | str:
    if session is None:
        return "deleted"
    last = session.checkpoints[-1]
    if last.name == "session_created":
        return "created"
    assert last.data["pad"] == pad(session.session_id, last.data["turn"])
    return last.data["turn"]


async def hot(*managers: SessionManager) -> dict[str, int]:
    """Their counters, added up."""
    metrics = [(await manager.metrics())["hot"] for manager in managers]
    return {name: sum(each[name] for each in metrics) for name, value in metrics[0].items() if type(value) is int}


async def healed(one: SessionManager, two: SessionManager) -> None:
    """Copies are written and read again without any intervention."""
    before = await hot(one, two)
    session = await one.create_session("agent")
    turn = 0

    async def works() -> bool:
        nonlocal turn
        turn += 1
        await one.checkpoint(session.session_id, "turn", {"turn": turn, "pad": pad("", turn)})
        await asyncio.sleep(0.03)  # copies are gathered for 10 ms; a read before that asks the database
        assert (await two.get_data(session.session_id))["turn"] == turn
        now = await hot(one, two)
        metrics = [(await manager.metrics())["hot"] for manager in (one, two)]
        closed = metrics[0]["breaker"] == metrics[1]["breaker"] == "closed"
        return closed and all(now[name] > before[name] + 5 for name in ("hits", "fills"))

    await until(works)


@asynccontextmanager
async def managers(database: Postgres, place: Place) -> AsyncIterator[tuple[SessionManager, SessionManager]]:
    namespace = os.urandom(4).hex()
    opened = [saveslot.open(database.url, hot=place.url, namespace=namespace) for _ in range(2)]
    async with opened[0] as one, opened[1] as two:
        await healed(one, two)  # both have their clients
        yield one, two


async def test_two_hundred_faults(database: Postgres, place: Place) -> None:
    """With overlapping faults of all kinds, no read violates its level, no write fails, and metrics report them."""
    kinds = random.sample(list(KINDS), counts=KINDS.values(), k=sum(KINDS.values()))
    async with managers(database, place) as (one, two):
        agents = Agents(one, two)
        for kind in kinds:
            await agents.more(1)
            await getattr(place, kind)(random.uniform(0, 0.1))
        await agents.end()
        seen = await hot(one, two)
        # Not garbage: a write may mend a copy before anyone reads it. `test_one_fault` repeats it until it is counted.
        assert all(seen[name] > 0 for name in ("hits", "misses", "errors", "timeouts")), seen
        assert min(agents.reads.values()) > 0
        await healed(one, two)


async def test_long_stall_opens_the_breaker(database: Postgres, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """In ten seconds a few operations wait for their budget, then Valkey is skipped except for one probe a second."""
    async with managers(database, place) as (one, two):
        before = await hot(one, two)
        agents = Agents(one, two)
        with caplog.at_level(logging.INFO, "saveslot"):
            start = time.monotonic()
            os.kill(place.server.pid, signal.SIGSTOP)
            await agents.more(100)  # a hundred turns and a hundred reads, and Valkey has not said a word
            assert (await two.metrics())["hot"]["breaker"] != "closed"
            await asyncio.sleep(start + 10 - time.monotonic())
            await agents.end()
            stalled = time.monotonic() - start
            os.kill(place.server.pid, signal.SIGCONT)
            waited = (await hot(one, two))["timeouts"] - before["timeouts"]
            assert 0 < waited < 30 + 2 * stalled  # two breakers; what was under way before they opened
            await healed(one, two)
    said = [record.getMessage() for record in caplog.records if record.name == "saveslot"]
    assert any("Valkey failed 3 times" in line for line in said)
    assert any("Valkey works again" in line for line in said)


@pytest.mark.parametrize("kind", ["stopped", "full", "garbage", "promoted"])
async def test_one_fault(database: Postgres, place: Place, kind: str) -> None:
    """Agents continue during the fault, and metrics report it; afterwards the tier recovers by itself."""
    async with managers(database, place) as (one, two):
        agents = Agents(one, two)
        await agents.more(50)
        before = await hot(one, two)
        sign = {"stopped": "errors", "full": "errors", "garbage": "garbage", "promoted": "misses"}[kind]

        async def met() -> bool:  # on a busy machine there may have been no read meanwhile
            await getattr(place, kind)(0.5)
            await agents.more(50)
            return (await hot(one, two))[sign] > before[sign]

        await until(met)
        await agents.end()
        await healed(one, two)


# Cluster

SLOTS = 16384


class Cluster:
    """Three nodes, a third of the slots each."""

    def __init__(self, nodes: list[Valkey], clients: list[valkey.asyncio.Valkey]) -> None:
        self.nodes, self.clients = nodes, clients

    async def join(self) -> None:
        for n, client in enumerate(self.clients):
            await client.execute_command("CLUSTER ADDSLOTSRANGE", n * SLOTS // 3, (n + 1) * SLOTS // 3 - 1)
            await client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
        for node, client in zip(self.nodes[1:], self.clients[1:], strict=True):
            bus = (await client.config_get("cluster-port"))["cluster-port"]
            await self.clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
        self.ids = [(await client.execute_command("CLUSTER MYID")).decode() for client in self.clients]

        async def whole() -> bool:
            answers = [await client.execute_command("CLUSTER INFO") for client in self.clients]
            return all(each["cluster_state"] == "ok" and each["cluster_known_nodes"] == "3" for each in answers)

        await until(whole)

    async def move(self, slot: int, source: int, target: int, pause: Callable[[], Awaitable[None]]) -> None:
        """Key by key, as an operator's tool does; `pause` is called while the slot is on its way."""
        here, there = self.clients[source], self.clients[target]
        await there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.ids[source])
        await here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.ids[target])
        await pause()
        while names := await here.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            host = ("127.0.0.1", self.nodes[target].port, names[0], 0, 5000)
            await here.execute_command("MIGRATE", *host)
            await pause()
        for client in (there, here, *self.clients):
            await client.execute_command("CLUSTER SETSLOT", slot, "NODE", self.ids[target])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())
        nodes: list[Valkey] = []
        for _ in range(3):
            bus = str(Valkey().port)
            options = {"cluster-enabled": "yes", "cluster-port": bus}
            nodes.append(servers.enter_context(Valkey(options=options)))
        clients = [await stack.enter_async_context(valkey.asyncio.Valkey.from_url(node.url)) for node in nodes]
        cluster = Cluster(nodes, clients)
        await cluster.join()
        yield cluster


# The client drops nodes, with their connections, when slots move.
@pytest.mark.filterwarnings("ignore:unclosed Connection:ResourceWarning")
@pytest.mark.parametrize("library", ["valkey", "redis"])
async def test_cluster_with_moving_slots(database: Postgres, cluster: Cluster, library: str) -> None:
    """Copies are spread over three nodes and slots change hands key by key: every read is right, copies are read, and
    no node was sent a command across slots.
    """
    async with AsyncExitStack() as stack:
        where = {"host": "127.0.0.1", "port": cluster.nodes[0].port}
        result = valkey.asyncio.ValkeyCluster if library == "valkey" else redis.asyncio.RedisCluster
        client: Any = await stack.enter_async_context(result(**where))
        store = await saveslot.stores.open_store(database.url)
        namespace = os.urandom(4).hex()
        sessions = await stack.enter_async_context(SessionManager(client, store=store, namespace=namespace))
        ids = [(await sessions.create_session("agent")).session_id for _ in range(40)]  # of 12 a node may get none
        turn = 0
        saved: dict[str, Any] = {session_id: {} for session_id in ids}

        async def right() -> None:
            nonlocal turn
            turn += 1
            written = random.sample(ids, 4)
            for session_id in written:
                saved[session_id] = {"turn": turn, "pad": pad(session_id, turn)}
                await sessions.checkpoint(session_id, "turn", saved[session_id])
            # A copy follows its write a moment later: a read right after it has to come from the database.
            for session_id in {*written, *random.sample(ids, 4)}:
                assert await sessions.get_data(session_id) == saved[session_id]

        async def spread() -> bool:
            await right()
            return all([await each.dbsize() for each in cluster.clients])

        await until(spread)
        slots = {
            await cluster.clients[0].execute_command("CLUSTER KEYSLOT", name): n
            for n, each in enumerate(cluster.clients)
            for name in await each.keys("*")
        }
        for slot, source in slots.items():
            await cluster.move(slot, source, (source + 1) % 3, right)
        before = (await sessions.metrics())["hot"]["hits"]

        async def read() -> bool:
            await right()
            metrics = (await sessions.metrics())["hot"]
            return metrics["hits"] > before + 10 and metrics["breaker"] == "closed"

        await until(read)
        for each in cluster.clients:
            assert "errorstat_CROSSSLOT" not in await each.info("errorstats")
    gc.collect()  # while the warning is ignored
