"""Valkey as the store: expiry of sessions, and a full, flushed, damaged or silent server."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio

import saveslot
from saveslot import Corrupt, InvalidInput, SessionManager, Unauthorized, Unavailable
from saveslot.stack import Valkey
from saveslot.stores import open_store, valkey as stored
from saveslot.stores.valkey import ValkeyStore
from saveslot.stores.valkey.connection import FORMAT, PREFIX
from saveslot.testing import Pen
from saveslot.values.kinds import Kind
from saveslot.values.log import Outcome, Query, Wanted, Worker

APPENDED, ALREADY, MISSING = Outcome.APPENDED, Outcome.ALREADY, Outcome.MISSING
Client = valkey.asyncio.Valkey
HOUR = 3600


@pytest.fixture(scope="module")
def running() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
async def client(running: Valkey) -> AsyncGenerator[Client]:
    async with Client.from_url(running.url) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def store(running: Valkey, client: Client) -> AsyncGenerator[ValkeyStore]:
    store = await ValkeyStore.open(running.url, HOUR)
    yield store
    await store.close()


async def begun(store: ValkeyStore, session_id: str = "a", count: int = 1, **row: Any) -> Pen:
    pen = Pen("ns", session_id)
    await landed(store, pen, pen.begin(count, **row))
    return pen


async def landed(store: ValkeyStore, pen: Pen, group: Any) -> None:
    [verdict] = await store.append([group])
    assert verdict.outcome is APPENDED
    pen.saw(group)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    while not await condition():  # noqa: ASYNC110  (another process does it)
        await asyncio.sleep(0.02)


def name(pen: Pen) -> bytes:
    return PREFIX + b":session:" + pen.key.hex().encode()


async def dump(client: Client) -> str:
    """Return every key, member and field on the server."""
    answer: list[Any] = []
    for key in await client.keys():
        kind = await client.type(key)
        answer += [key, await client.hgetall(key) if kind == b"hash" else await client.zrange(key, 0, -1)]
    return str(answer)


# How sessions end


async def test_session_expires_as_a_whole(client: Client, store: ValkeyStore) -> None:
    """After its TTL no part of it is in any answer, its id is free, and the next writer clears it from every index."""
    _, cursor = await store.events("ns", None)
    keeps, pen = await begun(store, "keeps"), await begun(store, "ends", 5)
    worker = Worker(b"w" * 16, "w", 10**9, first=True)
    await store.beat((), worker)
    await landed(store, pen, pen.take_over(worker))
    await client.pexpire(name(pen), 1)
    await client.zadd(PREFIX + b":expiry", {pen.key.hex(): await client.pexpiretime(name(keeps)) - HOUR * 1000})

    async def ended() -> bool:
        return await store.heads([pen.key]) == [None]

    await until(ended)
    assert await store.entries(pen.key) == []
    assert await store.heads([("ns", "ends")]) == [None]
    assert [row.session_id for row in await store.find(Query(namespace="ns"))] == ["keeps"]
    assert await store.find(Query(namespace="ns", owner=worker.id)) == []
    assert await store.beat([(pen.key, pen.lease)]) == [0]
    assert [event.session_id for event in (await store.events("ns", cursor))[0]] == ["keeps"]
    assert (await store.append([pen.group()]))[0].outcome is MISSING
    await landed(store, keeps, keeps.group())
    assert pen.key.hex() not in await dump(client)
    assert "ends" not in await dump(client)
    counts = await store.count(Query(namespace="ns"))
    assert (counts.states, counts.entries) == ({"active": 1}, 2)
    assert counts.stored_bytes == int(await client.hget(name(keeps), "bytes"))
    await begun(store, "ends")


async def test_sessions_expire_without_any_call(running: Valkey, client: Client, store: ValkeyStore) -> None:
    """They expire by themselves; the next count clears their last index entries."""
    short = await ValkeyStore.open(running.url, 0.1)
    pens = [await begun(short, f"s{n}", 3) for n in range(20)]
    await begun(store, "keeps")

    async def ended() -> bool:
        return await store.heads([pen.key for pen in pens]) == [None] * 20

    await until(ended)
    counts = await store.count(Query(namespace="ns"))
    assert (counts.states, counts.entries) == ({"active": 1}, 1)
    answer = await dump(client)
    assert not any(pen.key.hex() in answer for pen in pens)
    await short.close()


async def test_expired_id_is_free_at_once(client: Client, store: ValkeyStore) -> None:
    """It is free even before the index is cleared, because the session it names no longer exists."""
    pen = await begun(store)
    await client.delete(name(pen))
    again = await begun(store)
    [head] = await store.heads([("ns", "a")])
    assert head is not None
    assert head.row.key == again.key
    await client.zadd(PREFIX + b":expiry", {pen.key.hex(): 1})
    await landed(store, again, again.group())  # clears what was left of the first, and nothing of the second
    assert pen.key.hex() not in await dump(client)
    [head] = await store.heads([("ns", "a")])
    assert head is not None
    assert head.last.seq == 2


async def test_every_use_renews_the_ttl(running: Valkey, client: Client, store: ValkeyStore) -> None:
    """An entry, a heartbeat, and its worker's heartbeat, through any handle, renew the TTL set at creation."""
    other = await ValkeyStore.open(running.url, 60)
    pen = await begun(store)
    worker = Worker(b"w" * 16, "w", 10**9, first=True)
    await other.beat((), worker)

    async def write() -> None:
        await landed(other, pen, pen.group())

    async def take() -> None:
        await landed(other, pen, pen.take_over(worker))

    async def sign() -> None:
        assert await other.beat([(pen.key, pen.lease)]) != [0]

    async def work() -> None:
        assert await other.beat((), worker) != [0]

    for use in (write, take, sign, work):
        await client.pexpire(name(pen), HOUR * 100)
        await use()
        assert HOUR * 900 < await client.pttl(name(pen)) <= HOUR * 1000, use
    for key in await client.keys():  # no index ends before what it names, and none stays forever
        assert await client.pttl(key) >= await client.pttl(name(pen)), key
    await other.close()


async def test_history_that_expires_during_a_read_is_gone(
    client: Client, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read never returns half: neither the earlier entries alone nor headers without frames."""
    monkeypatch.setattr(stored, "BUDGET", 100)
    monkeypatch.setattr(stored, "BACK", 4)
    for how in ({}, {"kinds": frozenset({Kind.CHECKPOINT})}, {"name": "step", "newest": 15}):
        pen = await begun(store, f"s{how}", 20)
        whole = await store.entries(pen.key, Wanted(**how))
        assert len(whole) == (20 if not how else 19 if "kinds" in how else 15)
        assert None not in [entry.frame for entry in whole]
        run, verbs = store._run, list[str]()  # noqa: SLF001  (no other client can run between two calls of one answer)

        async def cut(flags: str, verb: str, arguments: Any, run: Any = run, pen: Pen = pen, verbs: Any = verbs) -> Any:
            if verbs:
                await client.delete(name(pen))
            verbs.append(verb)
            return await run(flags, verb, arguments)

        monkeypatch.setattr(store, "_run", cut)
        assert await store.entries(pen.key, Wanted(**how)) == []
        assert len(verbs) > 1
        monkeypatch.setattr(store, "_run", run)


async def test_session_ttl_hours_sets_ttl(running: Valkey, client: Client) -> None:
    """`session_ttl_hours` is the TTL of the sessions created by that manager."""
    async with saveslot.open(running.url, session_ttl_hours=2) as sessions:
        await sessions.create_session("tutor")
    [key] = await client.keys(PREFIX + b":session:*")
    assert HOUR * 1000 < await client.pttl(key) <= 2 * HOUR * 1000
    for ttl in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="session_ttl_hours"):
            await saveslot.open(running.url, session_ttl_hours=ttl)


# What may happen to a server


async def test_full_server_loses_nothing(client: Client, store: ValkeyStore) -> None:
    """New entries are refused whole; reads, heartbeats, deletes and purges still work; once there is
    room, writes land.
    """
    pens = [await begun(store, session_id, 3) for session_id in "ab"]
    worker = Worker(b"w" * 16, "w", 10**9, first=True)
    await client.config_set("maxmemory", "1mb")
    try:
        before = await dump(client)
        group, new = pens[0].group(50), Pen("ns", "new")
        for refused in (group, new.begin(50)):
            with pytest.raises(Unavailable, match="full"):
                await store.append([refused])
        assert await dump(client) == before
        assert len(await store.entries(pens[0].key)) == 3
        assert len(await store.find(Query(namespace="ns"))) == 2
        assert 0 not in await store.beat([(pens[0].key, None)], worker)
        assert await store.empty(pens[0].key, [2]) == 1
        await landed(store, pens[1], pens[1].delete())
        assert await store.purge([pens[1].key]) == [4]
    finally:
        await client.config_set("maxmemory", "0")
    await landed(store, pens[0], group)
    assert [entry.seq for entry in await store.entries(pens[0].key)] == [*range(1, 54)]


async def test_script_is_sent_again_after_script_flush(client: Client, store: ValkeyStore) -> None:
    """Calls succeed after a restart, a failover or SCRIPT FLUSH: the script is sent again."""
    pen = await begun(store)
    await client.script_flush()
    await landed(store, pen, pen.group())
    await client.script_flush()
    assert len(await store.entries(pen.key)) == 2


async def test_cursors_survive_flushall(client: Client, store: ValkeyStore) -> None:
    """Later appends come after every cursor, even when the server has lost its position."""
    await begun(store, "before", 9)
    _, cursor = await store.events("ns", None)
    await client.flushall()
    pen = await begun(store, "after")
    events, cursor = await store.events("ns", cursor)
    assert [event.session_id for event in events] == ["after"]
    await landed(store, pen, pen.group())
    assert [event.seq for event in (await store.events("ns", cursor))[0]] == [2]


async def test_damage_is_confined_to_its_session(client: Client, store: ValkeyStore) -> None:
    """A wrong type under a session's key, or overwritten entries, are reported; other sessions are unaffected."""
    good, wrong, torn = [await begun(store, session_id, 2) for session_id in "abc"]
    await client.set(name(wrong), "no hash")
    await client.hset(name(torn), "e2", "no entry")
    groups = [pen.group() for pen in (wrong, good, torn)]
    with pytest.raises(Corrupt):
        await store.append(groups)
    good.saw(groups[1])  # it landed beside them
    for head in await store.heads([wrong.key, torn.key]):
        assert head is not None
        assert isinstance(head.row.locked, Corrupt)
    for pen in (wrong, torn):
        with pytest.raises(Corrupt):
            await store.entries(pen.key)
    await client.hset(PREFIX + b":workers", "00" * 16, "no worker")
    assert await store.beat((), Worker(bytes(16), "w", 1)) == [0]  # it counts as dead
    await landed(store, good, good.group())


async def test_any_text_is_a_valid_name(store: ValkeyStore) -> None:
    """Braces, spaces and separators work in ids, names and namespaces, as in any name; other types are refused."""
    for text in ("{x}", " 9 9 - 1 ", "a\u2028b\x80", "\u200d"):
        pen = Pen(text, text)
        await landed(store, pen, pen.begin(2, agent_type=text, user_id=text, labels={text: text}))
        await landed(store, pen, pen.take_over(Worker(pen.key, text, 1)))
        await store.beat((), Worker(pen.key[::-1], text, 10**9, first=True))
        for query in (
            {"agent_type": text},
            {"user_id": text},
            {"labels": {text: text}},
            {"text": text},
            {"prefix": text},
        ):
            [row] = await store.find(Query(namespace=text, **query))
            assert (row.key, row.session_id, row.labels) == (pen.key, text, {text: text})
        [head] = await store.heads([(text, text)])
        assert head is not None
        await landed(store, pen, pen.delete())
        assert await store.purge([pen.key]) == [4]
    with pytest.raises(InvalidInput):
        await store.heads([("ns", "\ud800")])


async def test_silent_server_is_unavailable(
    running: Valkey, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No await hangs, and each call made meanwhile lands at most once."""
    pen = await begun(store)
    group = pen.group()
    monkeypatch.setattr("saveslot.stores.valkey.connection.PATIENCE", 0.5)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGSTOP)
    try:
        calls = (store.append([group]), store.heads([pen.key]), store.events("ns", None, wait=9999), store.beat(()))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable] * 4
    finally:
        os.kill(running.pid, signal.SIGCONT)
    monkeypatch.undo()
    [verdict] = await store.append([group])
    assert verdict.outcome in {APPENDED, ALREADY}
    assert len(await store.entries(pen.key)) == 2


class Lossy:
    """A connection that may lose the next answer and then breaks."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lost = 0
        self.lose = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)

        async def forward(source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool) -> None:
            while data := await source.read(1 << 16):
                if answers and self.lose:
                    self.lose, self.lost = False, self.lost + 1
                    break
                to.write(data)
            writer.close()
            back.close()

        await asyncio.gather(forward(reader, back, answers=False), forward(there, writer, answers=True))


async def test_lost_answer_is_retried(running: Valkey, client: Client) -> None:
    """The entry had landed: the retry says so, and it is stored once."""
    await client.flushall()
    way = Lossy(running.port)
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = await ValkeyStore.open(f"valkey://127.0.0.1:{port}", HOUR)
    pen = await begun(store)
    for _ in range(3):
        group, way.lose = pen.group(2), True
        [verdict] = await store.append([group])
        assert (verdict.outcome, len(verdict.times)) == (ALREADY, 2)
        pen.saw(group)
    assert way.lost == 3
    assert [entry.seq for entry in await store.entries(pen.key)] == [*range(1, 8)]
    await store.close()
    server.close()


async def test_other_handles_appends_wake_a_watcher(
    running: Valkey, client: Client, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server notifies it long before it would poll again."""
    monkeypatch.setattr(stored, "LAZY", 600)
    other = await ValkeyStore.open(running.url, HOUR)
    pen = await begun(other)
    _, cursor = await store.events("ns", None)
    watching = asyncio.create_task(store.events("ns", cursor, wait=600))

    async def listens() -> bool:
        return bool(await client.pubsub_numsub(PREFIX + b":news") != [(PREFIX + b":news", 0)])

    await until(listens)
    await landed(other, pen, pen.group())
    events, _ = await watching
    assert [event.seq for event in events] == [2]
    await other.close()


# Doors


@pytest.mark.parametrize("library", [valkey.asyncio.Valkey, redis.asyncio.Redis])
@pytest.mark.parametrize("decode_responses", [False, True])
async def test_manager_uses_the_callers_client(running: Valkey, library: Any, decode_responses: bool) -> None:  # noqa: FBT001
    """Without a database the client is the store. Held sessions renew through it, and it is never closed."""
    async with library(port=running.port, decode_responses=decode_responses) as client:
        await client.flushall()
        async with SessionManager(client, worker_beat=0.05, worker_ttl=60, session_ttl_hours=2) as sessions:
            session = await sessions.create_session("tutor", user_id="anna", context={"topic": "fractions"})
            async with sessions.hold(session) as held:
                await held.checkpoint("asked", {"messages": ["½"]})

                async def beaten() -> list[Any]:
                    return [await client.hvals("saveslot:{store}:workers")]

                first = await beaten()

                async def again() -> bool:
                    return await beaten() != first

                await until(again)
                assert not held.lost.is_set()
                await held.complete({"grade": "A"})
        async with SessionManager(redis_client=client) as other:
            loaded = await other.get_session(session.session_id)
            assert loaded is not None
            assert (loaded.state, loaded.context["topic"]) == ("completed", "fractions")
            assert await other.get_data(session.session_id) == {"messages": ["½"]}
        assert await client.ping()


@pytest.mark.parametrize(
    "url",
    [
        "valkey://host:port",
        "valkey://host/zero",
        "valkey://host/0?nonsense=1",
        "redis://host:99999",
        "valkey://anna:hush-7/more@host/0",
        "valkey://anna:more/hush-7@host",
        "valkey://anna:hush-7[@host",
        "valkey:host",
        "valkey",
    ],
)
async def test_invalid_url_is_refused(url: str) -> None:
    """It is InvalidInput at once, and the password is not shown."""
    with pytest.raises(InvalidInput) as error:
        await open_store(url)
    assert "hush-7" not in str(error.value)


@pytest.mark.parametrize("scheme", ["valkey", "redis", "valkeys", "rediss", "unix"])
async def test_missing_server_is_unavailable(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scheme raises at the latest after the patience, with the real reason, not a timeout."""
    monkeypatch.setattr("saveslot.stores.valkey.connection.PATIENCE", 0.4)  # ends within the longest of the fourth naps
    monkeypatch.setattr("saveslot.stores.valkey.connection.random.uniform", lambda _, longest: longest)
    with pytest.raises(Unavailable, match=r"does not answer \(Error \d+ connecting to"):
        await open_store("unix:///nowhere.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:1")


async def test_url_selects_database_and_credentials(running: Valkey, client: Client) -> None:
    """Another database number is another store; a wrong password is refused, and not shown."""
    store = await open_store(f"redis://127.0.0.1:{running.port}/3")
    pen = Pen("ns", "a")
    await store.append([pen.begin()])
    assert await client.keys() == []
    await store.close()
    with pytest.raises(Unauthorized) as error:
        await open_store(f"valkey://anna:hush-7@127.0.0.1:{running.port}/0")
    assert "hush-7" not in str(error.value)
    with pytest.raises(InvalidInput, match="has no such database"):
        await open_store(f"valkey://127.0.0.1:{running.port}/99")


async def test_newer_store_is_refused(running: Valkey, client: Client, store: ValkeyStore) -> None:
    """The store is unchanged, and the message says what to do."""
    await begun(store)
    await client.hset(PREFIX + b":counters", "format", FORMAT + 1)
    with pytest.raises(InvalidInput, match="upgrade it"):
        await open_store(running.url)


async def test_missing_driver_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is not a bare ImportError."""
    monkeypatch.setitem(sys.modules, "valkey.asyncio", None)
    with pytest.raises(InvalidInput, match=r"pip install 'saveslot\[valkey\]'"):
        await open_store("valkey://127.0.0.1:1")


async def test_stored_keys_are_documented(client: Client, store: ValkeyStore) -> None:
    """FORMAT.md names every key and every field of a session."""
    pen = await begun(store)
    worker = Worker(b"w" * 16, "w", 10**9, first=True)
    await store.beat((), worker)
    await landed(store, pen, pen.take_over(worker))
    text = (Path(__file__).parents[3] / "FORMAT.md").read_text().partition("## Valkey")[2]
    for key in await client.keys():
        assert f"`saveslot:{{store}}:{key.decode().split(':')[2]}" in text, key
    for field in await client.hkeys(name(pen)):
        assert f"`{field.decode().rstrip('12')}" in text, field


async def test_blocking_clients_are_refused(running: Valkey) -> None:
    """A blocking client would stop the event loop."""
    with valkey.Valkey.from_url(running.url) as blocking, pytest.raises(InvalidInput, match="asyncio"):
        SessionManager(redis_client=blocking)


@pytest.fixture
def cluster() -> Iterator[Valkey]:
    """A one-node cluster with every slot: it refuses a script whose keys span slots."""
    with Valkey(options={"cluster-enabled": "yes"}) as node:
        with valkey.Valkey(port=node.port) as asking:
            asking.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while asking.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                time.sleep(0.02)
        yield node


async def test_cluster_stores_sessions(cluster: Valkey) -> None:
    """Both packages' cluster clients work: all keys are in one slot."""
    for library in (valkey.asyncio.ValkeyCluster, redis.asyncio.RedisCluster):
        client = library(host="127.0.0.1", port=cluster.port)
        async with SessionManager(redis_client=client) as sessions:
            session = await sessions.create_session("tutor")
            async with sessions.hold(session) as held:
                await held.checkpoint("asked", {"messages": [1]})
            assert await sessions.get_data(session.session_id) == {"messages": [1]}
            assert session.session_id in [session.session_id for session in await sessions.find()]
        await client.aclose()
