"""Valkey in front of a store: every store behaves as it does alone, whatever happens to Valkey."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest
import redis.asyncio
import valkey
from valkey.asyncio import Valkey as Client

import saveslot
from saveslot import InvalidInput, SessionManager, Unavailable
from saveslot.log import Entry, Head, Ref
from saveslot.metrics import Counters
from saveslot.stack import Postgres, Valkey
from saveslot.stores import Store, hot, tiered
from saveslot.stores.joining import LANES, Joining
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.tiered import TieredStore
from saveslot.testing import Clock, Pen, StoreConformance, behaves_like_memory
from saveslot.testing.conformance.desk import Desk, on_a_desk

# Longer than any log of the suites: whoever asks for a whole log asks for this much of it, so that Valkey is asked too.
WHOLE = 1000


class Bounded(TieredStore):
    """With a client from the beginning, where others make it when they first need one."""

    @classmethod
    def at(cls, durable: Store, url: str, ttl: float = 90) -> "Bounded":
        return cls(durable, hot.connect(url), ttl, own=True)

    async def entries(self, key: bytes, ranges: Sequence[tuple[int, int]] = ((1, WHOLE),), **how: Any) -> list[Entry]:
        return await super().entries(key, ranges, **how)


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suites write small frames, and Valkey is to lend them all the same, also on a machine that is slow."""
    monkeypatch.setattr(tiered, "SMALL", 0)
    if request.node.get_closest_marker("faults") is None:
        monkeypatch.setattr(hot, "BUDGET", 10)


def breaker(store: TieredStore, verb: str) -> str:
    return store.metrics()["hot"][verb]["breaker"]


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
async def client(server: Valkey) -> AsyncIterator[Client]:
    async with Client.from_url(server.url) as client:
        await client.flushall()
        yield client


@pytest.fixture(autouse=True)
def reached(server: Valkey) -> None:
    TestOverMemory.url = TestOverSqlite.url = TestOverPostgres.url = server.url


class TestOverMemory(StoreConformance):
    url: ClassVar[str]

    def setup_method(self) -> None:
        self.stores: dict[Path, Store] = {}

    async def open(self, folder: Path, clock: Clock) -> Store:
        if folder not in self.stores:
            self.stores[folder] = Bounded.at(MemoryStore(clock, clock.uptime), self.url)
        return self.stores[folder]


async def sqlite(folder: Path, clock: Clock | None = None) -> Store:
    clock = clock or Clock()
    return await SqliteStore.open(str(folder / "store.db"), clock, uptime=lambda: ("this boot", clock.uptime()))


class TestOverSqlite(StoreConformance):
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:
        return Bounded.at(await sqlite(folder, clock), self.url)


class TestOverPostgres(StoreConformance):
    url: ClassVar[str]
    database: ClassVar[str]

    @pytest.fixture(autouse=True)
    def behind(self, database: Postgres) -> None:
        type(self).database = database.url

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return Bounded.at(await PostgresStore.open(self.database, clock, clock.uptime), self.url)


class TestWithoutValkey(TestOverSqlite):
    """Nobody listens there."""

    @pytest.fixture(autouse=True)
    def nowhere(self, reached: None) -> None:  # noqa: ARG002  (after that one)
        type(self).url = "valkey://127.0.0.1:1"

    @on_a_desk
    async def test_notes_are_emptied_to_their_seals(self, desk: Desk) -> None:
        """The database has dropped them; whoever erases is told that copies may be left."""
        pen = await desk.create()
        await desk.land(pen, pen.group(2, note=b"0123456789abcdef and more"))
        with pytest.raises(Unavailable, match="erase again"):
            await desk.store.empty(pen.key, [2], notes=True)
        assert [(entry.frame, entry.note) for entry in await desk.log(pen)][1] == (None, b"0123456789abcdef")


def test_sqlite_and_valkey_behave_like_memory(server: Valkey, tmp_path: Path) -> None:
    """Two handles on one SQLite file and one Valkey answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        one, two = await sqlite(tmp_path, clock), await sqlite(tmp_path, clock)
        return Bounded.at(one, server.url), Bounded.at(two, server.url)

    behaves_like_memory(open_two, examples=60, steps=40)


# Copies


@pytest.fixture
async def store(client: Client, tmp_path: Path) -> AsyncIterator[Bounded]:
    store = Bounded(await sqlite(tmp_path), client)
    yield store
    await store.close()


async def written(store: Store, count: int = 5, session_id: str = "a") -> Pen:
    pen = Pen("ns", session_id)
    group = pen.begin(count)
    await store.append([group])
    pen.saw(group)
    return pen


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  (counters are no events)
            await asyncio.sleep(0.01)


async def copied(store: TieredStore, count: int) -> None:
    await until(lambda: store.counts.fills >= count)


async def alone(folder: Path, pen: Pen) -> list[Entry]:
    """What the database says."""
    durable = await sqlite(folder)
    found = await durable.entries(pen.key)
    await durable.close()
    return found


async def values(client: Client) -> dict[bytes, bytes]:
    return {name: await client.get(name) for name in sorted(await client.keys("saveslot:*"))}


async def test_what_was_appended_is_read_from_valkey(store: Bounded, tmp_path: Path) -> None:
    """Copies are made after the commit, and equal what the database has."""
    pen = await written(store)
    await copied(store, 5)
    assert await store.entries(pen.key) == await alone(tmp_path, pen)
    assert (store.counts.hits, store.counts.misses) == (5, 0)


async def test_what_valkey_lost_is_read_from_the_database_and_copied_again(
    store: Bounded, client: Client, tmp_path: Path
) -> None:
    """One or all: the answer is the same, and the next reader finds them."""
    pen = await written(store)
    await copied(store, 5)
    await client.delete(f"saveslot:{{{pen.key.hex()}}}:3")
    assert await store.entries(pen.key) == await alone(tmp_path, pen)
    assert (store.counts.hits, store.counts.misses) == (4, 1)
    await copied(store, 6)
    await client.flushall()
    assert await store.entries(pen.key) == await alone(tmp_path, pen)
    await copied(store, 11)
    assert await store.entries(pen.key) == await alone(tmp_path, pen)
    assert (store.counts.hits, store.counts.misses, store.counts.garbage) == (9, 6, 0)


async def test_copies_end(client: Client, tmp_path: Path) -> None:
    """Every key has a time to live; a session's keys share one slot, whatever its session."""
    store = Bounded(await sqlite(tmp_path), client, ttl=90)
    pen = await written(store)
    await copied(store, 5)
    await store.empty(pen.key, [2])
    names = await client.keys("*")
    assert len(names) == 5
    assert all([0 < await client.ttl(name) <= hot.GRAVE for name in names])
    assert sorted([await client.ttl(name) > 90 for name in names]) == [False] * 4 + [True]
    assert len({await client.execute_command("CLUSTER KEYSLOT", name) for name in names}) == 1
    await store.close()


async def test_garbage_never_leaves_the_tier(store: Bounded, client: Client, tmp_path: Path) -> None:
    """Noise, a cut or scribbled copy, another entry's or session's copy: the database's answer, then a good copy."""
    pen, other = await written(store, 8), await written(store, 8, "b")
    await copied(store, 16)
    truth = await alone(tmp_path, pen)
    good = await values(client)

    def name(seq: int, of: Pen = pen) -> bytes:
        return b"saveslot:{%b}:%d" % (of.key.hex().encode(), seq)

    spoilt = [
        *(b"x", os.urandom(100), good[name(3)][:-1], good[name(4)][:-1] + b"!", good[name(1)]),
        *(good[name(6, other)], b"", good[name(8)] + b"!"),
    ]
    for seq, value in enumerate(spoilt, 1):
        await client.set(name(seq), value)
    assert await store.entries(pen.key) == truth
    assert store.counts.garbage == 8
    await copied(store, 24)
    assert await values(client) == good
    assert await store.entries(pen.key) == truth
    assert (store.counts.hits, store.counts.garbage) == (8, 8)
    await client.delete(name(5))
    await client.hset(name(5), "not", "a string")
    assert await store.entries(pen.key) == truth


async def test_what_was_emptied_stays_empty(store: Bounded, client: Client, tmp_path: Path) -> None:
    """A copy that is still there (Valkey was away, an old replica took over) is not believed."""
    pen = await written(store)
    await copied(store, 5)
    before = await values(client)
    await store.empty(pen.key, [2, 4])
    truth = await alone(tmp_path, pen)
    assert [entry.frame is None for entry in truth] == [False, True, False, True, False]
    assert await store.entries(pen.key) == truth
    assert [len(value) for value in (await values(client)).values()].count(0) == 2
    await client.mset(before)
    assert await store.entries(pen.key) == truth
    assert await store.entries(pen.key, [(2, 2)]) == truth[1:2]
    assert store.counts.buried == 2


async def test_what_was_purged_stays_away(store: Bounded, client: Client) -> None:
    """The same for a whole session."""
    pen = await written(store)
    await copied(store, 5)
    before = await values(client)
    group = pen.delete()
    await store.append([group])
    assert await store.purge([pen.key]) == [6]
    assert set((await values(client)).values()) == {b""}
    await client.mset(before)
    assert await store.entries(pen.key) == []
    assert await store.heads([pen.key]) == [None]


async def test_a_late_copy_finds_its_place_taken(client: Client, tmp_path: Path) -> None:
    """A copy under way while its entry is emptied or its session purged does not bring the bytes back to Valkey."""
    store, late = Bounded(await sqlite(tmp_path), client), hot.HotTier(client, 90)
    pen = await written(store)
    await copied(store, 5)
    entries = await store.entries(pen.key)
    await store.empty(pen.key, [1, 2, 3, 4, 5])
    late.fill(pen.key, entries)
    await late.close()
    assert set((await values(client)).values()) == {b""}
    assert (late.counts.fills, late.counts.dropped) == (0, 0)
    await store.close()


async def test_a_retry_copies_nothing(store: Bounded, client: Client) -> None:
    """What it brings along may have been emptied since it landed."""
    group = Pen("ns", "a").begin(5)
    await store.append([group])
    await copied(store, 5)
    await store.empty(group.key, [1, 2, 3, 4, 5])
    await client.flushall()
    [verdict] = await store.append([group])
    assert verdict.outcome == "already"
    await written(store, 1, "b")
    await copied(store, 6)
    assert len(await client.keys("*")) == 1


async def test_a_database_that_went_back_in_time_is_believed(client: Client) -> None:
    """What another history wrote under the same numbers is not mixed into this one."""
    restored = MemoryStore()
    one, two = Bounded(MemoryStore(), client), Bounded(restored, client)
    pen = await written(one)
    await copied(one, 5)
    other = Pen("ns", "a", key=pen.key)
    await restored.append([other.begin(5)])
    assert await two.entries(pen.key) == await restored.entries(pen.key)
    assert (two.counts.hits, two.counts.garbage) == (0, 5)
    await one.close()
    await two.close()


async def test_a_full_valkey_gives_up_what_was_emptied(store: Bounded, client: Client, tmp_path: Path) -> None:
    """There is no room for a grave then, nor for a copy that comes late."""
    pen = await written(store)
    await copied(store, 5)
    await client.config_set("maxmemory", 1)
    try:
        await store.empty(pen.key, [1, 2, 3])
        assert len(await client.keys("saveslot:*")) == 2
        assert await store.entries(pen.key) == await alone(tmp_path, pen)
        assert (store.counts.buried, store.counts.left, store.counts.errors) == (3, 0, 1)
    finally:
        await client.config_set("maxmemory", 0)


async def test_a_client_that_turns_replies_into_text(server: Valkey, client: Client, tmp_path: Path) -> None:
    """Copies are bytes all the same."""
    async with Client.from_url(server.url, decode_responses=True) as decoding:
        store = Bounded(await sqlite(tmp_path), decoding)
        pen = await written(store)
        await copied(store, 5)
        assert await store.entries(pen.key) == await alone(tmp_path, pen)
        assert (store.counts.hits, store.counts.errors) == (5, 0)
        await store.close()


class Odd:
    """A client that answers whatever it likes."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    async def execute_command(self, *_: object, **__: object) -> Any:
        answer = random.choice(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def pipeline(self, **_: object) -> Any:
        raise RuntimeError("no pipelines today")


async def test_an_odd_client_harms_nobody(tmp_path: Path) -> None:
    """Whatever it raises or answers, also a cancellation of its own, callers get what the database says."""
    answers = (
        None,
        "text",
        7,
        [],
        [None],
        [b"x"] * 5,
        ["text"] * 5,
        {},
        OSError(),
        asyncio.CancelledError(),
        KeyError(),
    )
    store = Bounded(await sqlite(tmp_path), Odd(*answers))
    for n in range(100):
        pen = await written(store, 5, f"s{n}")
        await store.empty(pen.key, [3])
        assert await store.entries(pen.key, [(1, 5)]) == await store.entries(pen.key, newest=5)
    assert store.counts.hits == 0
    assert store.counts.errors > 0
    assert store.counts.left + store.counts.buried == 100
    await store.close()


async def test_large_frames_are_not_copied(store: Bounded, client: Client) -> None:
    """They would not come within the budget; the database has them."""
    pen = Pen("ns", "a")
    group = pen.begin(2)
    group.entries[0].frame = bytes(hot.LARGE + 1)
    await store.append([group])
    await copied(store, 1)
    assert len(await client.keys("saveslot:*")) == 1
    assert [len(entry.frame or b"") > hot.LARGE for entry in await store.entries(pen.key)] == [True, False]


def test_one_tries_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few failures in a row open the breaker; after the pause one may try, and what becomes of it holds for all."""
    breaker = hot.Breaker()
    for good in (False, False, True, False, False):
        breaker.record(good=good)
    assert (breaker.state, breaker.admits()) == ("closed", True)
    breaker.record(good=False)
    assert (breaker.state, breaker.admits()) == ("open", False)
    monkeypatch.setattr(hot, "PAUSE", 0)
    breaker.record(good=False)
    assert breaker.state == "half-open"
    monkeypatch.setattr(hot, "PAUSE", 600)
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.record(good=False)
    assert not breaker.admits()
    breaker.record(good=True)
    assert (breaker.state, breaker.admits()) == ("closed", True)


# Heads


class Slow:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[Ref], asyncio.Future[None]]] = []

    async def __call__(self, refs: Sequence[Ref]) -> list[Head | None]:
        told = asyncio.get_running_loop().create_future()
        self.asked.append((refs, told))
        await told
        if b"bad" in refs:
            raise InvalidInput("ref", "bad")
        return [None for _ in refs]

    def answer(self) -> None:
        for _, told in self.asked:
            if not told.done():
                told.set_result(None)


async def asking(joining: Joining, *refs: bytes) -> asyncio.Task[list[Head | None]]:
    task = asyncio.create_task(joining.heads(refs))
    await asyncio.sleep(0)
    return task


async def test_heads_share_a_question_that_is_forming() -> None:
    """Who comes later than a question was sent is in a later one; each gets the answers to what it asked."""
    slow, counters = Slow(), Counters()
    joining = Joining(slow, counters)
    first = [await asking(joining, b"%d" % n) for n in range(LANES)]
    later = [await asking(joining, b"a"), await asking(joining, b"b", b"c"), await asking(joining)]
    assert [refs for refs, _ in slow.asked] == [(b"%d" % n,) for n in range(LANES)]
    slow.answer()
    assert [len(await task) for task in first] == [1] * LANES
    await until(lambda: len(slow.asked) == LANES + 1)
    last = await asking(joining, b"d")
    assert slow.asked[LANES][0] == [b"a", b"b", b"c"]
    slow.answer()
    assert [len(await task) for task in later] == [1, 2, 0]
    await until(lambda: slow.asked[-1][0] in ([b"d"], (b"d",)))
    slow.answer()
    await last
    assert counters.shared == 2


async def test_a_bad_question_fails_alone() -> None:
    """Others that share it get their answers; one who has gone is not missed."""
    slow = Slow()
    joining = Joining(slow, Counters())
    first = [await asking(joining, b"x") for _ in range(LANES)]
    good, bad, gone = [await asking(joining, ref) for ref in (b"a", b"bad", b"c")]
    gone.cancel()
    while not (good.done() and bad.done()):
        slow.answer()
        await asyncio.sleep(0)
    assert await good == [None]
    with pytest.raises(InvalidInput):
        await bad
    await asyncio.gather(*first)
    await asyncio.sleep(0)
    again = await asking(joining, b"y")
    slow.answer()
    assert await again == [None]


async def test_many_readers_ask_few_questions(database: Postgres, client: Client) -> None:
    """PostgreSQL is asked for many heads at once, and each reader sees its own session."""
    store = TieredStore(await PostgresStore.open(database.url), client)
    pens = [await written(store, 1, f"s{n}") for n in range(50)]
    heads = await asyncio.gather(*(store.heads([pen.key]) for pen in pens))
    assert [head.row.session_id for [head] in heads if head is not None] == [pen.session_id for pen in pens]
    told = store.metrics()["database"]
    assert (told["heads"]["calls"], told["shared_heads"]) == (50, 50 - LANES - 1)
    await store.close()


# Through the manager


async def hits(client: Client) -> int:
    return (await client.info("stats"))["keyspace_hits"]


async def test_managers_in_front_of_both(server: Valkey, client: Client, tmp_path: Path) -> None:
    """`hot=` puts Valkey in front; a second manager resumes from it and sees everything at once."""
    before = await hits(client)
    url = f"sqlite:///{tmp_path}/a.db"
    async with saveslot.open(url, hot=server.url) as one, saveslot.open(url, hot=server.url) as two:
        session = await one.create_session("tutor", metadata={"course": 7})
        for turn in range(10):
            await one.checkpoint(session.session_id, "turn", {"turns": list(range(turn))})
        assert await two.get_data(session.session_id) == {"turns": list(range(9))}
        found = await two.get_session(session.session_id)
        assert found is not None
        assert found.metadata == {"course": 7}
        assert found.checkpoints[-1].data == {"turns": list(range(9))}
        while await hits(client) == before:  # its client is made behind its first reads
            assert await two.get_data(session.session_id) == {"turns": list(range(9))}
        assert await one.delete_session(session.session_id)
        assert await two.get_session(session.session_id) is None


async def test_clients_of_the_callers(database: Postgres, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pool and their client are used, and neither is closed."""
    closing: list[str] = []

    async def aclose() -> None:
        closing.append("now")

    monkeypatch.setattr(client, "aclose", aclose)
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        async with SessionManager(redis_client=client, db_pool=pool, namespace="own") as sessions:
            session = await sessions.create_session("tutor")
            await sessions.checkpoint(session, "asked", {"messages": [1]})
        before = await hits(client)
        async with SessionManager(redis_client=client, db_pool=pool, namespace="own") as other:
            assert await other.get_data(session.session_id) == {"messages": [1]}
        assert await hits(client) == before + 1
        assert closing == []
        assert await pool.fetchval("select 1") == 1
    monkeypatch.undo()  # the fixture closes it


def test_what_cannot_be_a_hot_tier_says_so(server: Valkey) -> None:
    """A client that blocks, a time to live of nothing."""
    with valkey.Valkey.from_url(server.url) as blocking, pytest.raises(InvalidInput, match="asyncio"):
        SessionManager(redis_client=blocking, store=MemoryStore())
    with pytest.raises(InvalidInput, match="session_ttl_hours"):
        SessionManager(redis_client=Client(), store=MemoryStore(), session_ttl_hours=0)


async def test_other_processes_appends_wake_a_watcher(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey tells it, long before it would ask the database again."""
    monkeypatch.setattr(tiered, "LAZY", 600)
    one, two = Bounded(await sqlite(tmp_path), client), Bounded(await sqlite(tmp_path), client)
    pen = await written(one)
    _, cursor = await two.events("ns", None)
    watching = asyncio.create_task(two.events("ns", cursor, wait=600))
    await until(lambda: two.counts.hints > 0)
    await asyncio.sleep(4 * tiered.QUICK)  # the watcher has lain down by now
    await one.append([pen.group()])
    async with asyncio.timeout(20):
        found, _ = await watching
    assert [event.seq for event in found] == [6]
    await one.close()
    await two.close()


@pytest.fixture(params=["valkey", "redis"])
async def theirs(request: pytest.FixtureRequest, server: Valkey) -> AsyncIterator[Any]:
    """A client of the caller's, of either library."""
    library = {"valkey": Client, "redis": redis.asyncio.Redis}[request.param]
    async with library.from_url(server.url.replace("valkey://", f"{request.param}://")) as client:
        await client.flushall()
        yield client


async def test_two_managers_in_front_of_postgresql(database: Postgres, theirs: Any) -> None:
    """What one creates, updates, deletes or sweeps the other sees at once, metadata and all."""
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        one = SessionManager(theirs, pool, namespace="two")
        two = SessionManager(theirs, pool, namespace="two")
        async with one, two:
            session = await one.create_session("tutor", "anna", {"topic": "fractions"}, {"course": 7})
            name = session.session_id
            found = await two.get_session(name)
            assert found is not None
            assert (found.metadata, found.context) == ({"course": 7}, {"topic": "fractions"})
            found.metadata["course"] = 8
            found.checkpoint("asked", {"messages": ["1/2 + 1/3?"]})
            await two.update_session(found)
            again = await one.get_session(name)
            assert again is not None
            assert again.metadata == {"course": 8}
            assert await one.get_data(name) == await two.get_data(name) == {"messages": ["1/2 + 1/3?"]}
            assert await one.cleanup_stale_sessions(timedelta(0)) == 1
            swept = await two.get_session(name)
            assert swept is not None
            assert (swept.state, swept.context["failure_reason"]) == ("failed", "heartbeat_timeout")
            assert await two.get_active_sessions() == []
            assert await two.delete_session(name)
            assert await one.get_session(name) is None
            assert not await one.delete_session(name)
            metrics = [await manager.metrics() for manager in (one, two)]
            assert sum(told["hot"]["hits"] + told["hot"]["misses"] for told in metrics) > 0
            assert sum(told["hot"]["errors"] for told in metrics) == 0


async def test_a_watcher_on_another_machine(database: Postgres, server: Valkey) -> None:
    """Everything another manager appends is seen once, in order, before and after it hears hints."""
    namespace = f"watch-{random.random()}"
    async with (
        saveslot.open(database.url, hot=server.url, namespace=namespace) as one,
        saveslot.open(database.url, hot=server.url, namespace=namespace) as two,
    ):
        seen: list[tuple[str, int]] = []

        async def watch() -> None:
            async for event in two.watch(after=start):
                seen.append((event.session_id, event.seq))  # noqa: PERF401  (looked at meanwhile)

        session = await one.create_session("tutor", session_id="s")
        start = (await anext(two.watch("s", after=0))).cursor
        watching = asyncio.create_task(watch())
        listening = asyncio.create_task(heard(two))
        for n in range(100):
            await one.checkpoint(session.session_id, "turn", {"n": n})
            if n == 30:
                await listening
        await until(lambda: len(seen) >= 100 or watching.done())
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert seen == [("s", 2 + n) for n in range(100)]


async def heard(sessions: SessionManager) -> None:
    async with asyncio.timeout(60):
        while not (await sessions.metrics())["hot"]["hints"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Faults


class Weather:
    """What happens to a Valkey, for about so many seconds."""

    def __init__(self, server: Valkey, client: Client, seconds: float) -> None:
        self.server, self.client, self.seconds = server, client, seconds

    async def stopped(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(self.seconds)
        await asyncio.to_thread(self.server.start)  # empty

    async def stalled(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)
        await asyncio.sleep(self.seconds)
        os.kill(self.server.pid, signal.SIGCONT)

    async def flushed(self) -> None:
        await asyncio.sleep(self.seconds)
        await self.client.flushall()

    async def full(self) -> None:
        await self.client.config_set("maxmemory", 1)
        await asyncio.sleep(self.seconds)
        await self.client.config_set("maxmemory", 0)

    async def scribbled(self) -> None:
        names = await self.client.keys("saveslot:*")
        held = await self.client.mget(names) if names else []
        random.shuffle(held)  # another's copy, also of the same length
        for n, (name, value) in enumerate(zip(names, held, strict=True)):
            await self.client.set(name, ((value, os.urandom(40), value[:-1], b"")[n % 4]) if value else b"x")
        await asyncio.sleep(self.seconds)

    async def old(self) -> None:
        """A replica that was behind takes over."""
        before = {name: value for name, value in (await values(self.client)).items() if value is not None}
        await asyncio.sleep(self.seconds)
        await self.client.flushall()
        await self.client.mset({"saveslot:x": b"", **before})


FAULTS = ["stopped", "stalled", "flushed", "full", "scribbled", "old"]


class Agents:
    """Four that append and empty through one store and read through both: each append lands, each read equals what
    was acknowledged, what was emptied stays away.
    """

    def __init__(self, one: Store, two: Store) -> None:
        self.one, self.two = one, two
        self.turns = 0
        self.over = False
        self.tasks = [asyncio.create_task(self._work(f"s{n}")) for n in range(4)]

    async def _work(self, name: str) -> None:
        while not self.over:
            pen, frames = Pen("ns", f"{name}-{self.turns}"), list[bytes | None]()
            group = pen.begin()
            while len(frames) < 60 and not self.over:
                [verdict] = await self.one.append([group])
                assert verdict.outcome == "appended"
                pen.saw(group)
                frames += [entry.frame for entry in group.entries]
                if len(frames) % 5 == 0:
                    gone = random.randrange(len(frames))
                    await self.one.empty(pen.key, [gone + 1])
                    frames[gone] = None
                await self._read(pen, frames)
                self.turns += 1
                group = pen.group(1 + self.turns % 3)
            await self.one.append([pen.delete()])
            await self.one.purge([pen.key])
            for store in (self.two, self.one):
                assert await store.heads([pen.key]) == [None]
                assert await store.entries(pen.key) == []

    async def _read(self, pen: Pen, frames: list[bytes | None]) -> None:
        for store in (self.two, self.one):
            [head] = await store.heads([pen.key])
            assert head is not None
            assert head.last.append_id == pen.prev
            assert [entry.frame for entry in await store.entries(pen.key)] == frames

    async def more(self, turns: int) -> None:
        aim = self.turns + turns
        await until(lambda: self.turns >= aim or any(task.done() for task in self.tasks))

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self.tasks)


@pytest.fixture
def own() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
async def pair(own: Valkey, tmp_path: Path) -> AsyncIterator[tuple[Bounded, Bounded]]:
    one, two = Bounded.at(await sqlite(tmp_path), own.url), Bounded.at(await sqlite(tmp_path), own.url)
    yield one, two
    await one.close()
    await two.close()


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
async def test_nobody_notices(fault: str, own: Valkey, pair: tuple[Bounded, Bounded]) -> None:
    """Whatever happens to Valkey, agents go on as before; afterwards copies are made and read again; metrics tell."""
    one, two = pair
    agents = Agents(one, two)
    async with Client.from_url(own.url) as client:
        await agents.more(20)
        await getattr(Weather(own, client, 0.5), fault)()
        await agents.more(20)
        await agents.end()
    told = [two.counts, one.counts]
    seen = {"stopped": "errors", "full": "errors", "stalled": "timeouts", "scribbled": "garbage"}.get(fault, "misses")
    assert sum(getattr(metrics, seen) for metrics in told) > 0
    await healed(one, two)


async def healed(one: Bounded, two: Bounded) -> None:
    hits, fills = two.counts.hits, one.counts.fills
    async with asyncio.timeout(20):
        while two.counts.hits <= hits or one.counts.fills <= fills:
            pen = await written(one, 3, f"after-{random.random()}")
            await asyncio.sleep(0.05)
            assert len(await two.entries(pen.key)) == 3
    assert (breaker(one, "fill"), breaker(two, "read")) == ("closed", "closed")


@pytest.mark.faults
async def test_a_stalled_valkey_is_left_alone(own: Valkey, tmp_path: Path) -> None:
    """A few readers wait for their budget, then none does until one tries again; after the stall all is well."""
    store = Bounded.at(await sqlite(tmp_path), own.url)
    pen = await written(store)
    await copied(store, 5)
    os.kill(own.pid, signal.SIGSTOP)
    for _ in range(100):
        assert len(await store.entries(pen.key)) == 5
    assert breaker(store, "read") == "open"
    assert store.counts.timeouts <= 2 * hot.FAILURES
    os.kill(own.pid, signal.SIGCONT)
    await until(lambda: breaker(store, "read") == "half-open")
    assert len(await store.entries(pen.key)) == 5
    assert breaker(store, "read") == "closed"
    assert store.counts.hits == 5
    await store.close()
