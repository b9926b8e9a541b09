"""Valkey in front of a store: every store behaves as it does alone, whatever happens to Valkey."""

import asyncio
import os
import random
import re
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
from saveslot.stack import Postgres, Valkey
from saveslot.stores import Store, hot
from saveslot.stores.hot import TieredStore, connection, copies, news
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.wire.joining import LANES, Joining
from saveslot.stores.wire.metrics import Counters
from saveslot.testing import Clock, Pen, StoreConformance, behaves_like_memory
from saveslot.testing.conformance.desk import Desk, on_a_desk
from saveslot.testing.conformance.states import facts, saved
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import Head, Query, Ref, Wanted
from saveslot.values.recipe import Recipe


class Tiered(TieredStore):
    """With a client from the start, where others create it when they first need one."""

    @classmethod
    def at(cls, durable: Store, url: str, ttl: float = 90) -> "Tiered":
        return cls(durable, connection.connect(url), ttl, own=True)


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Valkey enough budget on a slow machine."""
    if request.node.get_closest_marker("faults") is None:
        monkeypatch.setattr(connection, "BUDGET", 10)


def breaker(store: TieredStore) -> str:
    return store.metrics()["hot"]["breaker"]


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
            self.stores[folder] = Tiered.at(MemoryStore(clock, clock.uptime), self.url)
        return self.stores[folder]


async def sqlite(folder: Path, clock: Clock | None = None) -> Store:
    clock = clock or Clock()
    return await SqliteStore.open(str(folder / "store.db"), clock, uptime=lambda: ("this boot", clock.uptime()))


class TestOverSqlite(StoreConformance):
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:
        return Tiered.at(await sqlite(folder, clock), self.url)


class TestOverPostgres(StoreConformance):
    url: ClassVar[str]
    database: ClassVar[str]

    @pytest.fixture(autouse=True)
    def behind(self, database: Postgres) -> None:
        type(self).database = database.url

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return Tiered.at(await PostgresStore.open(self.database, clock, clock.uptime), self.url)


class TestWithoutValkey(TestOverSqlite):
    """No server listens at that address."""

    @pytest.fixture(autouse=True)
    def nowhere(self, reached: None) -> None:  # noqa: ARG002  (after that one)
        type(self).url = "valkey://127.0.0.1:1"

    @on_a_desk
    async def test_empty_with_notes_keeps_their_checksums(self, desk: Desk) -> None:
        """The database has dropped them; the caller learns that a copy may be left."""
        pen = await desk.create()
        await desk.land(pen, pen.group(2, note=b"0123456789abcdef and more"))
        with pytest.raises(Unavailable, match="erase it again"):
            await desk.store.empty(pen.key, [2], notes=True)
        assert [(entry.frame, entry.note) for entry in await desk.log(pen)][1] == (None, b"0123456789abcdef")


def test_sqlite_and_valkey_behave_like_memory(server: Valkey, tmp_path: Path) -> None:
    """Two handles on one SQLite file and one Valkey answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        one, two = await sqlite(tmp_path, clock), await sqlite(tmp_path, clock)
        return Tiered.at(one, server.url), Tiered.at(two, server.url)

    behaves_like_memory(open_two, examples=60, steps=40)


# Copies


@pytest.fixture
async def store(client: Client, tmp_path: Path) -> AsyncIterator[Tiered]:
    store = Tiered(await sqlite(tmp_path), client)
    yield store
    await store.close()


async def written(store: Store, count: int = 4, session_id: str = "a", namespace: str = "ns") -> Pen:
    """A session whose newest state is rebuilt from the frames of its entries 2 to 1 + `count`."""
    pen = Pen(namespace, session_id)
    for n in range(1 + count):
        group = saved(pen, 2) if n else pen.begin()
        await store.append([group])
        pen.saw(group)
    return pen


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  (counters are no events)
            await asyncio.sleep(0.01)


async def copied(store: TieredStore, count: int) -> None:
    await until(lambda: store.counts.fills >= count)


async def state(store: Store, pen: Pen) -> list[tuple[int, Kind, bytes, bytes | None]]:
    """The frames of the newest state as this store gives them; read with `entries` if they did not come along."""
    [head] = await store.heads([(pen.namespace, pen.session_id)], state=True)
    if head is None or head.data is None:
        return []
    if head.frames is not None:
        return facts(head.frames)
    recipe = Recipe.unpack(head.data.recipe, head.data.seq)
    return facts(await store.entries(head.row.key, Wanted(recipe.ranges, kinds=DATA_KINDS, chain=recipe.base)))


async def alone(folder: Path, pen: Pen) -> list[tuple[int, Kind, bytes, bytes | None]]:
    """What the database says."""
    durable = await sqlite(folder)
    result = await state(durable, pen)
    await durable.close()
    return result


def tally(store: TieredStore) -> tuple[int, int, int]:
    return store.counts.hits, store.counts.misses, store.counts.garbage


def name(pen: Pen) -> str:
    return f"saveslot:{pen.namespace}:{{{pen.session_id}}}"


async def test_state_comes_from_valkey(store: Tiered, tmp_path: Path) -> None:
    """The copy follows each append, equals what the database has, and the database sends no frames."""
    pen = await written(store)
    await copied(store, 5)
    assert await state(store, pen) == await alone(tmp_path, pen)
    assert tally(store) == (1, 0, 0)
    assert store.metrics()["database"]["entries"]["calls"] == 0
    await store.append([pen.group(kind=Kind.STEP_FINISHED, data_seq=5)])
    await copied(store, 6)
    assert len(await state(store, pen)) == 4
    assert tally(store) == (2, 0, 0)


async def test_missing_copy_is_read_from_the_database_and_rebuilt(
    store: Tiered, client: Client, tmp_path: Path
) -> None:
    """Whether one frame or all are gone, the answer is the same, and the next reader has a copy."""
    pen = await written(store)
    await copied(store, 5)
    for n, lose in enumerate((lambda: client.hdel(name(pen), "3"), client.flushall)):
        await lose()
        assert await state(store, pen) == await alone(tmp_path, pen)
        await copied(store, 6 + n)
        assert await state(store, pen) == await alone(tmp_path, pen)
    assert tally(store) == (2, 2, 0)


async def test_old_copy_is_not_used(store: Tiered, client: Client, tmp_path: Path) -> None:
    """A copy that missed an append keeps its head: later appends skip it, and a reader replaces it."""
    pen = await written(store)
    await copied(store, 5)
    durable = await sqlite(tmp_path)
    for through in (durable, store):
        group = saved(pen, 2)
        await through.append([group])
        pen.saw(group)
    await durable.close()
    before = await client.hgetall(name(pen))
    assert await state(store, pen) == await alone(tmp_path, pen)
    assert len(before) == 2 + 4
    await copied(store, 6)
    assert await state(store, pen) == await alone(tmp_path, pen)
    assert tally(store) == (1, 1, 0)


async def test_copies_expire(client: Client, tmp_path: Path) -> None:
    """Every key has a TTL, counted from the last entry, and so has a grave."""
    store = Tiered(await sqlite(tmp_path), client, ttl=90)
    pen, other = await written(store), await written(store, session_id="b")
    await copied(store, 10)
    assert [0 < await client.ttl(name(each)) <= 90 for each in (pen, other)] == [True, True]
    await store.append([pen.delete()])
    await store.purge([pen.key])
    assert 90 < await client.ttl(name(pen)) <= copies.GRAVE
    await store.close()


async def test_copy_holds_little_more_than_the_state(store: Tiered, client: Client, tmp_path: Path) -> None:
    """Frames that the newest state does not need are removed as the log grows."""
    pen = await written(store, 0)
    keyframe = 2
    for turn in range(200):
        keyframe = pen.seq + 1 if turn % 10 == 0 else keyframe
        group = saved(pen, keyframe)
        await store.append([group])
        pen.saw(group)
    await copied(store, 201)
    assert await client.hlen(name(pen)) < 50
    assert await state(store, pen) == await alone(tmp_path, pen)
    assert tally(store) == (1, 0, 0)


async def test_garbage_never_leaves_the_tier(store: Tiered, client: Client, tmp_path: Path) -> None:
    """Noise, a cut or scribbled frame, another entry's or session's, another type: the database answers, then a good
    copy takes its place.
    """
    pen, other = await written(store, 8), await written(store, 8, "b")
    await copied(store, 18)
    truth = await alone(tmp_path, pen)
    good, foreign = await client.hgetall(name(pen)), await client.hgetall(name(other))
    spoilt = [
        *(b"x", b"", os.urandom(100), good[b"3"][:-1], good[b"3"][:-1] + b"!", good[b"4"], foreign[b"3"]),
        good[b"3"] + b"!",
    ]
    for n, value in enumerate(spoilt, 1):
        await client.hset(name(pen), "3", value)
        assert await state(store, pen) == truth
        assert store.counts.garbage == n
        await copied(store, 18 + n)
        assert await client.hgetall(name(pen)) == good
    for n, head in enumerate((b"", b"x", foreign[b"head"]), 1):
        await client.hset(name(pen), "head", head)
        assert await state(store, pen) == truth
        await copied(store, 18 + len(spoilt) + n)
        assert await client.hgetall(name(pen)) == good
    for value in (b"", b"not a hash"):
        await client.set(name(pen), value)
        assert await state(store, pen) == truth
    assert store.counts.hits == 0
    assert await state(store, other) == await alone(tmp_path, other)
    assert store.counts.hits == 1


async def test_emptying_removes_the_copy(store: Tiered, client: Client, tmp_path: Path) -> None:
    """Thinning drops a session's copy; the next reader makes one that holds what is left."""
    pen = await written(store, 6)
    group = saved(pen, 8)
    await store.append([group])
    pen.saw(group)
    await copied(store, 8)
    await store.empty(pen.key, [2, 3])
    assert await client.keys("*") == []
    for _ in range(2):
        assert await state(store, pen) == await alone(tmp_path, pen)
        await copied(store, 9)
    assert sorted(await client.hkeys(name(pen))) == [b"b8", b"head", b"key"]
    assert (store.counts.buried, tally(store)) == (1, (1, 1, 0))


async def test_deleted_state_stays_away(store: Tiered, client: Client) -> None:
    """Deleted, erased and purged sessions are gone, also when a stale replica brings their copy back."""
    pen = await written(store)
    await copied(store, 5)
    before = await client.hgetall(name(pen))

    async def back() -> None:
        await client.delete(name(pen))
        await client.hset(name(pen), mapping=before)

    group = pen.delete()
    await store.append([group])
    await copied(store, 6)
    assert sorted(await client.hkeys(name(pen))) == [b"head", b"key"]
    await back()
    assert await state(store, pen) == []
    await store.empty(pen.key, [2, 3, 4, 5], notes=True)
    assert await client.hget(name(pen), "head") == b"gone"
    await back()
    assert await store.purge([pen.key]) == [6]
    assert await client.hget(name(pen), "head") == b"gone"
    await back()
    assert await state(store, pen) == []
    assert await store.heads([pen.key], state=True) == [None]


async def test_late_copy_meets_a_grave(client: Client, tmp_path: Path) -> None:
    """A copy under way while its session is erased does not bring the bytes back to Valkey; a new session with the
    same id is copied all the same, and the old one does not replace it.
    """
    store, late = Tiered(await sqlite(tmp_path), client), copies.Copies(line := connection.Connection(client), 90)
    pen = await written(store)
    await copied(store, 5)
    [head] = await store.heads([pen.key], state=True)
    assert head is not None
    assert head.frames
    await store.append([pen.delete()])
    await copied(store, 6)
    await store.empty(pen.key, [2, 3, 4, 5], notes=True)
    for seen in (b"", head.last.append_id):
        late.change((pen.namespace, pen.session_id), pen.key, seen, head.last, head.frames, anew=True)
    await until(lambda: line.metrics()["fill"]["calls"] > 0)
    assert await client.hkeys(name(pen)) == [b"key", b"head"]
    new = await written(store)
    await copied(store, 11)
    late.change((pen.namespace, pen.session_id), pen.key, b"", head.last, head.frames, anew=True)
    await late.close()
    assert await client.hget(name(new), "key") == new.key.hex().encode()
    assert line.counts.fills == 0
    await store.close()


async def test_erasing_finds_copies_of_sessions_deleted_elsewhere(client: Client, tmp_path: Path) -> None:
    """A process that never loaded a deleted session knows its name from listing it."""
    one, two = Tiered(await sqlite(tmp_path), client), Tiered(await sqlite(tmp_path), client)
    pen = await written(one)
    await copied(one, 5)
    before = await client.hgetall(name(pen))
    await one.append([pen.delete()])
    await copied(one, 6)
    await client.hset(name(pen), mapping=before)
    with pytest.raises(Unavailable, match="erase it again"):
        await two.empty(pen.key, [2, 3, 4, 5], notes=True)
    assert [row.key for row in await two.find(Query(namespace="ns", deleted_for=0))] == [pen.key]
    await two.empty(pen.key, [2, 3, 4, 5], notes=True)
    assert sorted(await client.hkeys(name(pen))) == [b"head", b"key"]
    await one.close()
    await two.close()


async def test_retry_copies_nothing(store: Tiered, client: Client) -> None:
    """The frames it carries may have been emptied since they landed."""
    group = Pen("ns", "a").begin()
    await store.append([group])
    await copied(store, 1)
    await client.flushall()
    [verdict] = await store.append([group])
    assert verdict.outcome == "already"
    await written(store, 1, "b")
    await copied(store, 3)
    assert await client.keys("*") == [b"saveslot:ns:{b}"]


async def test_restored_database_wins_over_copies(client: Client) -> None:
    """Frames written under the same numbers by another history are not mixed into this one."""
    restored = MemoryStore()
    one, two = Tiered(MemoryStore(), client), Tiered(restored, client)
    pen = await written(one)
    await copied(one, 5)
    other = Pen("ns", "a", key=pen.key)
    for n in range(4):
        group = saved(other, 2) if n else other.begin()
        await restored.append([group])
        other.saw(group)
    assert await state(two, pen) == await state(restored, pen)
    assert tally(two) == (0, 1, 0)
    await copied(two, 1)
    group = saved(other, 2)
    await two.append([group])
    await copied(two, 2)
    assert await state(two, pen) == await state(restored, pen)
    assert tally(two) == (1, 1, 0)
    await one.close()
    await two.close()


async def test_full_valkey_gives_up_erased_copies(store: Tiered, client: Client, tmp_path: Path) -> None:
    """It has no room for a grave or for a late copy; it still answers, and the breaker stays closed."""
    pen, other = await written(store), await written(store, session_id="b")
    await copied(store, 10)
    await client.config_set("maxmemory", 1)
    try:
        group = saved(other, 2)
        await store.append([group])
        await until(lambda: store.counts.errors > 0)
        await store.append([pen.delete()])
        await store.empty(pen.key, [2, 3, 4, 5], notes=True)
        assert (await client.hgetall(name(pen))).keys() <= {b"key", b"head"}
        assert await state(store, other) == await alone(tmp_path, other)
        assert (store.counts.buried, store.counts.left, breaker(store)) == (1, 0, "closed")
    finally:
        await client.config_set("maxmemory", 0)


async def test_client_that_decodes_replies(server: Valkey, client: Client, tmp_path: Path) -> None:
    """Copies are bytes all the same."""
    async with Client.from_url(server.url, decode_responses=True) as decoding:
        store = Tiered(await sqlite(tmp_path), decoding)
        pen = await written(store)
        await copied(store, 5)
        assert await state(store, pen) == await alone(tmp_path, pen)
        assert (store.counts.hits, store.counts.errors) == (1, 0)
        await store.close()


class Odd:
    """A client with arbitrary answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    async def execute_command(self, *_: object, **__: object) -> Any:
        answer = random.choice(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_misbehaving_client_harms_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises or returns, even a cancellation, callers get the database's answer."""
    monkeypatch.setattr(connection, "PAUSE", 0)
    answers = (
        *(None, "text", 7, [], [None], [b"x"] * 5, ["text"] * 5, {}, {"head": "text"}, {b"head": 7}, {b"1": b"x"}),
        *(OSError(), asyncio.CancelledError(), KeyError()),
    )
    store = Tiered(await sqlite(tmp_path), Odd(*answers))
    for n in range(100):
        pen = await written(store, 2, f"s{n}")
        assert await state(store, pen) == await alone(tmp_path, pen)
        await store.empty(pen.key, [1])
    assert store.counts.hits == 0
    assert store.counts.errors > 0
    assert store.counts.left + store.counts.buried == 100
    await store.close()


async def test_large_states_are_not_copied(store: Tiered, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep Valkey from answering others; reads get them from the database."""
    monkeypatch.setattr(copies, "LARGE", 1000)
    pen = await written(store)
    await copied(store, 5)
    group = saved(pen, 6)
    group.entries[0].frame = bytes(1000)
    await store.append([group])
    assert [len(frame or b"") for *_, frame in await state(store, pen)] == [1000]
    await written(store, 1, "b")
    await copied(store, 7)
    assert await client.hlen(name(pen)) == 2 + 4
    assert (store.counts.dropped, tally(store)) == (2, (0, 1, 0))


# Namespaces


def test_key_names_show_their_namespace() -> None:
    """Odd characters cannot make a name match another namespace, or escape an ACL pattern."""
    assert copies.place(("tenant-7", "lesson-1")) == "saveslot:tenant-7:{lesson-1}"
    odd = ("tenant-7:x", "tenant-*", "tenant-7?", "{tenant-7}", "tenant-7[a]", "tenant 7", "ténant", "a\\b", "%41")
    places = [copies.place((namespace, "a:{b}*")) for namespace in odd]
    assert len(set(places)) == len(odd)
    for place in places:
        assert re.fullmatch(r"saveslot:[\w.~%-]+:\{[\w.~%-]+\}", place), place
    assert news.channel("tenant-7:news") == "saveslot:tenant-7%3Anews:news"


@pytest.fixture
async def tenant(server: Valkey, client: Client) -> AsyncIterator[Client]:
    """A client of a Valkey user restricted to one namespace."""
    rights = ["~saveslot:tenant-7:*", "&saveslot:tenant-7:*", "-@all", "+@read", "+@write", "+@scripting", "+@pubsub"]
    await client.execute_command("ACL", "SETUSER", "tenant", "reset", "on", ">secret", *rights, "+@connection")
    async with Client.from_url(server.url.replace("://", "://tenant:secret@")) as limited:
        yield limited
    await client.execute_command("ACL", "DELUSER", "tenant")


async def test_acl_confines_a_tenant(tenant: Client, client: Client, tmp_path: Path) -> None:
    """A user allowed only `saveslot:tenant-7:*` has the whole tier in that namespace, and none of it elsewhere."""
    store = Tiered(await sqlite(tmp_path), tenant)
    pen = await written(store, namespace="tenant-7")
    await copied(store, 5)
    assert await state(store, pen) == await alone(tmp_path, pen)
    watching = asyncio.create_task(store.events("tenant-7", (await store.events("tenant-7", None))[1], wait=20))
    await until(lambda: store.counts.listening)
    group = saved(pen, 2)
    await store.append([group])
    pen.saw(group)
    assert [event.seq for event in (await watching)[0]] == [6]
    await store.empty(pen.key, [3])
    assert (store.counts.buried, store.counts.errors, tally(store)) == (1, 0, (1, 0, 0))
    for other in ("tenant-77", "tenant-7:*", "*", "tenant-8"):
        owner = Tiered(await sqlite(tmp_path), client)
        theirs = await written(owner, session_id=f"in {other}", namespace=other)
        await copied(owner, 5)
        place = copies.place((other, theirs.session_id))
        with pytest.raises(valkey.exceptions.NoPermissionError):
            await tenant.hgetall(place)
        copy, errors = await client.hgetall(place), store.counts.errors
        assert await state(store, theirs) == await alone(tmp_path, theirs)
        group = saved(theirs, 2)
        await store.append([group])
        await until(lambda errors=errors: store.counts.errors > errors + 1)
        assert await client.hgetall(place) == copy
        await owner.close()
    assert breaker(store) == "closed"
    await store.close()


def test_one_probe_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three failures in a row open the breaker; after the pause one operation probes, and its outcome holds for all."""
    breaker = connection.Breaker()
    for good in (False, False, True, False, False):
        breaker.record(good=good)
    assert (breaker.state, breaker.admits()) == ("closed", True)
    breaker.record(good=False)
    assert (breaker.state, breaker.admits()) == ("open", False)
    monkeypatch.setattr(connection, "PAUSE", 0)
    breaker.record(good=False)
    assert breaker.state == "half-open"
    monkeypatch.setattr(connection, "PAUSE", 600)
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.record(good=False)
    assert not breaker.admits()
    breaker.record(good=True)
    assert (breaker.state, breaker.admits()) == ("closed", True)


# Heads


class Slow:
    """Answers when released."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[Ref], asyncio.Future[None]]] = []

    async def __call__(self, refs: Sequence[Ref]) -> list[Head | None]:
        call = asyncio.get_running_loop().create_future()
        self.calls.append((refs, call))
        await call
        if b"bad" in refs:
            raise InvalidInput("ref", "bad")
        return [None for _ in refs]

    def answer(self) -> None:
        for _, outcome in self.calls:
            if not outcome.done():
                outcome.set_result(None)


async def asking(joining: Joining, *refs: bytes) -> asyncio.Task[list[Head | None]]:
    task = asyncio.create_task(joining.answers(refs))
    await asyncio.sleep(0)
    return task


async def test_concurrent_heads_share_a_query() -> None:
    """A caller that arrives after a query was sent joins a later one; each gets its own answers."""
    slow, counters = Slow(), Counters()
    joining = Joining(slow, counters)
    first = [await asking(joining, b"%d" % n) for n in range(LANES)]
    later = [await asking(joining, b"a"), await asking(joining, b"b", b"c"), await asking(joining)]
    assert [refs for refs, _ in slow.calls] == [(b"%d" % n,) for n in range(LANES)]
    slow.answer()
    assert [len(await task) for task in first] == [1] * LANES
    await until(lambda: len(slow.calls) == LANES + 1)
    last = await asking(joining, b"d")
    assert slow.calls[LANES][0] == [b"a", b"b", b"c"]
    slow.answer()
    assert [len(await task) for task in later] == [1, 2, 0]
    await until(lambda: slow.calls[-1][0] in ([b"d"], (b"d",)))
    slow.answer()
    await last
    assert counters.shared == 2


async def test_bad_query_fails_alone() -> None:
    """Callers that share its query get their answers; a cancelled one affects none."""
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


async def test_many_readers_share_few_queries(database: Postgres, client: Client) -> None:
    """PostgreSQL is asked for many heads at once, and each reader sees its own session."""
    store = TieredStore(await PostgresStore.open(database.url), client)
    pens = [await written(store, 1, f"s{n}") for n in range(50)]
    heads = await asyncio.gather(*(store.heads([pen.key]) for pen in pens))
    assert [head.row.session_id for [head] in heads if head is not None] == [pen.session_id for pen in pens]
    metrics = store.metrics()["database"]
    assert (metrics["heads"]["calls"], metrics["shared_heads"]) == (50, 50 - LANES - 1)
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
        loaded = await two.get_session(session.session_id)
        assert loaded is not None
        assert loaded.metadata == {"course": 7}
        assert loaded.checkpoints[-1].data == {"turns": list(range(9))}
        while await hits(client) == before:  # its client is created after its first reads
            assert await two.get_data(session.session_id) == {"turns": list(range(9))}
        assert await one.delete_session(session.session_id)
        assert await two.get_session(session.session_id) is None


async def test_callers_clients_are_not_closed(
    database: Postgres, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's pool and client are used, and neither is closed."""
    closing: list[str] = []

    async def aclose() -> None:
        closing.append("now")

    monkeypatch.setattr(client, "aclose", aclose)
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        async with SessionManager(redis_client=client, db_pool=pool, namespace="own") as sessions:
            session = await sessions.create_session("tutor")
            await sessions.checkpoint(session, "asked", {"messages": [1]})
        async with SessionManager(redis_client=client, db_pool=pool, namespace="own") as other:
            assert await other.get_data(session.session_id) == {"messages": [1]}
            assert (await other.metrics())["hot"]["hits"] == 1
        assert closing == []
        assert await pool.fetchval("select 1") == 1
    monkeypatch.undo()  # the fixture closes it


def test_invalid_hot_tier_is_refused(server: Valkey) -> None:
    """A blocking client and a TTL of 0 are refused."""
    with valkey.Valkey.from_url(server.url) as blocking, pytest.raises(InvalidInput, match="asyncio"):
        SessionManager(redis_client=blocking, store=MemoryStore())
    with pytest.raises(InvalidInput, match="session_ttl_hours"):
        SessionManager(redis_client=Client(), store=MemoryStore(), session_ttl_hours=0)


async def test_other_processes_appends_wake_a_watcher(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey notifies it long before it would poll the database again."""
    monkeypatch.setattr(hot, "LAZY", 600)
    one, two = Tiered(await sqlite(tmp_path), client), Tiered(await sqlite(tmp_path), client)
    pen = await written(one)
    await copied(one, 5)
    _, cursor = await two.events("ns", None)
    watching = asyncio.create_task(two.events("ns", cursor, wait=600))
    await until(lambda: two.counts.hints > 0)
    await asyncio.sleep(4 * hot.QUICK)  # the watcher has lain down by now
    await one.append([pen.group()])
    async with asyncio.timeout(60):
        events, _ = await watching
    assert [event.seq for event in events] == [6]
    await one.close()
    await two.close()


@pytest.fixture(params=["valkey", "redis"])
async def theirs(request: pytest.FixtureRequest, server: Valkey) -> AsyncIterator[Any]:
    """A caller's client, of either library."""
    library = {"valkey": Client, "redis": redis.asyncio.Redis}[request.param]
    async with library.from_url(server.url.replace("valkey://", f"{request.param}://")) as client:
        await client.flushall()
        yield client


async def test_two_managers_see_each_others_writes(database: Postgres, theirs: Any) -> None:
    """Whatever one creates, updates, deletes or sweeps, the other sees at once, including metadata."""
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        one = SessionManager(theirs, pool, namespace="two")
        two = SessionManager(theirs, pool, namespace="two")
        async with one, two:
            session = await one.create_session("tutor", "anna", {"topic": "fractions"}, {"course": 7})
            name = session.session_id
            loaded = await two.get_session(name)
            assert loaded is not None
            assert (loaded.metadata, loaded.context) == ({"course": 7}, {"topic": "fractions"})
            loaded.metadata["course"] = 8
            loaded.checkpoint("asked", {"messages": ["1/2 + 1/3?"]})
            await two.update_session(loaded)
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
            assert sum(answer["hot"]["hits"] + answer["hot"]["misses"] for answer in metrics) > 0
            assert sum(answer["hot"]["errors"] for answer in metrics) == 0


async def test_watcher_on_another_machine_sees_every_append(database: Postgres, server: Valkey) -> None:
    """It sees each of another manager's appends once, in order, before and after it receives hints."""
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
    """Faults of a Valkey, for about that many seconds."""

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
        """Frames of other entries, noise, cut frames, nothing; and keys of another type."""
        for _ in range(10):
            for n, place in enumerate(await self.client.keys("saveslot:*")):
                held = await self.client.hgetall(place) if await self.client.type(place) == b"hash" else {}
                seqs = [field for field in held if field.isdigit()]
                if random.random() < 0.1:
                    await self.client.set(place, b"x")
                elif seqs:
                    spoilt = {s: (held[random.choice(seqs)], os.urandom(40), held[s][:-1], b"")[n % 4] for s in seqs}
                    await self.client.hset(place, mapping=spoilt)
            await asyncio.sleep(self.seconds / 10)

    async def old(self) -> None:
        """A replica that was behind takes over."""
        before = {place: await self.client.dump(place) for place in await self.client.keys("saveslot:*")}
        await asyncio.sleep(self.seconds)
        await self.client.flushall()
        for place, value in before.items():
            if value is not None:
                await self.client.restore(place, 0, value, replace=True)


FAULTS = ["stopped", "stalled", "flushed", "full", "scribbled", "old"]


class Agents:
    """Four that append and empty through one store and read through both: each append lands, each state read is the
    one acknowledged last, deleted sessions stay away.
    """

    def __init__(self, one: Store, two: Store) -> None:
        self.one, self.two = one, two
        self.turns = 0
        self.over = False
        self.frames: dict[bytes, dict[int, bytes | None]] = {}
        self.tasks = [asyncio.create_task(self._work(f"s{n}")) for n in range(4)]

    async def _work(self, name: str) -> None:
        while not self.over:
            pen, keyframe = Pen("ns", name), 2
            group = pen.begin()
            while pen.seq < 60 and not self.over:
                [verdict] = await self.one.append([group])
                assert verdict.outcome == "appended"
                pen.saw(group)
                if pen.seq % 5 == 0 and keyframe > 2:
                    await self.one.empty(pen.key, [*range(2, keyframe)])
                await asyncio.sleep(random.choice((0, 0.05)))  # before the copy was made, or after
                await self._read(pen, keyframe)
                self.turns += 1
                long = pen.seq - keyframe > 25  # a recipe names at most 32 short patches
                keyframe = pen.seq + 1 if pen.seq > 1 and (long or random.random() < 0.2) else keyframe
                group = saved(pen, keyframe, 1 + self.turns % 3)
                self.frames[pen.key] = self.frames.get(pen.key, {}) | {e.seq: e.frame for e in group.entries}
            await self.one.append([pen.delete()])
            await self.one.purge([pen.key])
            for store in (self.two, self.one):
                assert await store.heads([pen.key], state=True) == [None]
                assert await state(store, pen) == []

    async def _read(self, pen: Pen, keyframe: int) -> None:
        for store in (self.two, self.one):
            [head] = await store.heads([pen.key])
            assert head is not None
            assert head.last.append_id == pen.prev
            kept = {seq: frame for seq, frame in self.frames.get(pen.key, {}).items() if seq >= keyframe}
            assert {seq: frame for seq, _, _, frame in await state(store, pen)} == kept

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
async def pair(own: Valkey, tmp_path: Path) -> AsyncIterator[tuple[Tiered, Tiered]]:
    one, two = Tiered.at(await sqlite(tmp_path), own.url), Tiered.at(await sqlite(tmp_path), own.url)
    yield one, two
    await one.close()
    await two.close()


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
async def test_valkey_faults_are_invisible_to_callers(fault: str, own: Valkey, pair: tuple[Tiered, Tiered]) -> None:
    """Whatever happens to Valkey, agents continue; afterwards copies are made and read again, and metrics report it."""
    one, two = pair
    agents = Agents(one, two)
    sign = {"stopped": "errors", "full": "errors", "stalled": "timeouts", "scribbled": "garbage"}.get(fault, "misses")
    async with asyncio.timeout(60), Client.from_url(own.url) as client:
        await agents.more(20)
        while not sum(getattr(store.counts, sign) for store in (one, two)):  # a busy machine may have been too slow
            await getattr(Weather(own, client, 0.5), fault)()
            await agents.more(20)
        await agents.end()
    await healed(one, two)


async def healed(one: Tiered, two: Tiered) -> None:
    hits, fills = two.counts.hits, one.counts.fills
    async with asyncio.timeout(60):
        while two.counts.hits <= hits or one.counts.fills <= fills:
            pen = await written(one, 3, f"after-{random.random()}")
            await asyncio.sleep(0.05)
            assert len(await state(two, pen)) == 3
    assert (breaker(one), breaker(two)) == ("closed", "closed")


@pytest.mark.faults
async def test_stalled_valkey_is_skipped(own: Valkey, tmp_path: Path) -> None:
    """A few readers wait for their budget, then none until one probes; after the stall copies are used again."""
    store = Tiered.at(await sqlite(tmp_path), own.url)
    pen = await written(store)
    await copied(store, 5)
    os.kill(own.pid, signal.SIGSTOP)
    for _ in range(100):
        assert len(await state(store, pen)) == 4
    assert breaker(store) == "open"
    assert store.counts.timeouts <= 2 * connection.FAILURES
    os.kill(own.pid, signal.SIGCONT)
    await until(lambda: breaker(store) == "half-open")
    assert len(await state(store, pen)) == 4
    assert breaker(store) == "closed"
    assert store.counts.hits == 1
    await store.close()
