"""In PostgreSQL a purge marks what it will remove, and waits for those who write: whoever they are, they come first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import pytest

from saveslot.ids import fresh_key
from saveslot.log import Group, Verdict, Worker
from saveslot.model import Kind
from saveslot.stack import Postgres
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore
from saveslot.testing import Pen


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    # After a crash it syncs what lies in its folder: by one call, not file by file.
    with Postgres(options={"recovery_init_sync_method": "syncfs"}) as server:
        yield server


@pytest.fixture
async def store(server: Postgres) -> AsyncGenerator[PostgresStore]:
    store = await PostgresStore.open(server.url)
    yield store
    await store.close()


@pytest.fixture
async def gc(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[PostgresStore]:
    """A second one that purges, and waits for others as long as it takes."""
    monkeypatch.setattr("saveslot.stores.postgres.DRAINED", 60)
    store = await PostgresStore.open(server.url)
    yield store
    await store.close()


async def begun(store: Store, count: int = 2) -> list[Pen]:
    """So many sessions of three entries, by their keys."""
    keys = [fresh_key() for _ in range(count)]
    pens = [Pen("purged", key.hex(), key) for key in keys]
    await store.append(groups := [pen.begin(3) for pen in pens])
    for pen, group in zip(pens, groups, strict=True):
        pen.saw(group)
    return sorted(pens, key=lambda pen: pen.key)


def purged(gc: Store, *pens: Pen) -> asyncio.Future[list[int]]:
    return asyncio.ensure_future(gc.purge([pen.key for pen in pens], [pen.prev or b"" for pen in pens]))


async def until(url: str, question: str, *values: object) -> None:
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        while not await connection.fetchval(question, *values):  # noqa: ASYNC110  (the database tells nobody)
            await asyncio.sleep(0.01)
    await connection.close()


async def marked(url: str, pen: Pen) -> None:
    await until(url, "select count(*) from saveslot.purging where $1 = any(keys)", pen.key)


async def waiting(url: str, pen: Pen) -> None:
    """Until the purge knows whom it waits for: who begins from now on is not among them."""
    await marked(url, pen)
    asked = "query like '%pg_locks%' and state = 'idle' and pid <> pg_backend_pid()"
    await until(url, f"select count(*) from pg_stat_activity where {asked}")  # noqa: S608


async def entries(store: Store, *pens: Pen) -> list[int]:
    return [len(await store.entries(pen.key)) for pen in pens]


@asynccontextmanager
async def in_the_way(url: str) -> AsyncGenerator[None]:
    """Somebody who began to write to the log before, and has not ended."""
    other = await asyncpg.connect(url)
    trying = other.transaction()
    await trying.start()
    await other.execute("lock table saveslot.checkpoints in row exclusive mode")
    try:
        yield
    finally:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):  # the server may have died meanwhile
            await trying.rollback()
        other.terminate()


@asynccontextmanager
async def held_up(url: str, store: Store, *pens: Pen) -> AsyncGenerator[asyncio.Future[list[Verdict]]]:
    """One statement writes to these sessions; it has looked at all, and waits for somebody who writes to the first.

    That one has the least key: entries are written in the order of their keys.
    """
    rival = await asyncpg.connect(url)
    taken = """
        insert into saveslot.checkpoints
          (key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe, digest)
        values ($1, $2, $1, 1, '', 1, 1, 0, 0, 0, '', '')"""
    trying = rival.transaction()
    await trying.start()
    try:
        await rival.execute(taken, pens[0].key, pens[0].seq + 1)
        appending = asyncio.ensure_future(store.append([pen.group() for pen in pens]))
        await until(url, "select count(*) from pg_locks where not granted")
        yield appending
    finally:
        await trying.rollback()
        await rival.close()


async def test_nothing_lands_behind_the_purge_of_a_deleted_session(
    server: Postgres, store: PostgresStore, gc: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who saw it before it was deleted, and writes afterwards, is told that it is gone; nothing is left of it."""
    monkeypatch.setattr("saveslot.stores.postgres.DRAINED", 0.1)
    first, second = await begun(store)
    async with held_up(server.url, store, first, second) as appending:
        await gc.append([second.delete()])
        assert await gc.purge([second.key]) == [0]  # not while somebody may write behind it
        assert not appending.done()
    assert [verdict.outcome for verdict in await appending] == ["appended", "missing"]
    assert await gc.purge([second.key]) == [4]
    assert await entries(store, first, second) == [4, 0]


async def test_nothing_lands_behind_a_purge(server: Postgres, store: PostgresStore, gc: PostgresStore) -> None:
    """Who saw a session before it was marked is waited for: its entry lands, and the session stays."""
    first, second = await begun(store)
    async with held_up(server.url, store, first, second) as appending:
        purging = purged(gc, second)
        await marked(server.url, second)
        assert not appending.done()
    assert [verdict.outcome for verdict in await appending] == ["appended", "appended"]
    assert await purging == [0]
    assert await entries(store, first, second) == [4, 4]


@pytest.mark.parametrize("alone", [True, False])
async def test_nothing_lands_behind_a_mark(
    server: Postgres, store: PostgresStore, gc: PostgresStore, *, alone: bool
) -> None:
    """Who looks at a session after it was marked, for whom the purge does not wait, has taken it out before."""
    first, second = await begun(store)
    writing = [second] if alone else [first, second]
    async with AsyncExitStack() as way:
        await way.enter_async_context(in_the_way(server.url))
        purging = purged(gc, second)
        await waiting(server.url, second)
        async with held_up(server.url, store, *writing) as appending:
            await way.aclose()
            assert await purging == [0]
            assert not appending.done()
    assert {verdict.outcome for verdict in await appending} == {"appended"}
    assert await entries(store, *writing) == [4] * len(writing)


DEAD = Worker(b"d" * 16, "dead", 0, first=True)
WRITING: dict[str, Callable[[Pen], Group]] = {
    "an entry": Pen.group,
    "a group": lambda pen: pen.group(2),
    "a change": lambda pen: pen.group(kind=Kind.RESUMED, whole={"state": "active", "heartbeat": True}),
    "a taking": lambda pen: pen.take_over(DEAD),
    "a sweep": lambda pen: pen.group(kind=Kind.FAILED, whole={"state": "failed", "only_stale": 1}),
    "a deletion": Pen.delete,
}


@pytest.mark.parametrize("sort", WRITING)
@pytest.mark.parametrize("others", [0, 1])
async def test_who_meets_a_mark_takes_it_away(
    server: Postgres, store: PostgresStore, gc: PostgresStore, sort: str, others: int
) -> None:
    """Alone or with others in one batch: it lands at once, the purge leaves that session, and takes the rest."""
    [chosen, *rest], unmarked = await begun(store, 3), await begun(store, others)
    async with in_the_way(server.url):
        purging = purged(gc, chosen, *rest)
        await marked(server.url, chosen)
        group = WRITING[sort](chosen)
        verdicts = await store.append([group, *(pen.group() for pen in unmarked)])
        assert {verdict.outcome for verdict in verdicts} == {"appended"}
        assert not purging.done()
    assert await purging == [0, 3, 3]
    assert await entries(store, chosen, *rest, *unmarked) == [3 + len(group.entries), 0, 0, *[4] * others]


async def test_who_comes_too_late_is_told_so(store: PostgresStore, gc: PostgresStore) -> None:
    """After the purge there is nothing to write to, and nothing of it is left."""
    first, second = await begun(store)
    assert await purged(gc, second) == [3]
    verdicts = await store.append([first.group(), second.group()])
    assert [verdict.outcome for verdict in verdicts] == ["appended", "missing"]
    assert await entries(store, first, second) == [4, 0]


async def test_a_mark_left_behind_keeps_nobody_out(server: Postgres, store: PostgresStore, gc: PostgresStore) -> None:
    """Of a purge that died: who writes does, and the next purge takes the rest of it."""
    first, second = await begun(store)
    async with in_the_way(server.url):
        purging = purged(gc, first, second)
        await marked(server.url, first)
        purging.cancel()
        await asyncio.wait([purging])
    [verdict] = await store.append([group := first.group()])
    assert verdict.outcome == "appended"
    first.saw(group)
    await marked(server.url, second)
    assert await purged(gc, first, second) == [4, 3]
    await until(server.url, "select count(*) = 0 from saveslot.purging")


async def test_a_purge_does_not_wait_for_ever(
    server: Postgres, store: PostgresStore, gc: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If somebody takes too long it takes its marks away, and the sessions are left for the next one."""
    monkeypatch.setattr("saveslot.stores.postgres.DRAINED", 0.1)
    [pen] = await begun(store, 1)
    async with in_the_way(server.url):
        assert await purged(gc, pen) == [0]
        await until(server.url, "select count(*) = 0 from saveslot.purging")
    assert await purged(gc, pen) == [3]


async def test_two_purges_of_one_session(server: Postgres, store: PostgresStore, gc: PostgresStore) -> None:
    """The second one's mark takes the place of the first one's, which then removes nothing."""
    [pen] = await begun(store, 1)
    async with AsyncExitStack() as way:
        await way.enter_async_context(in_the_way(server.url))
        before = purged(store, pen)
        await waiting(server.url, pen)
        async with in_the_way(server.url):  # of the second one alone
            own = "select own::text from saveslot.purging where $1 = any(keys)"
            connection = await asyncpg.connect(server.url)
            of_first = await connection.fetchval(own, pen.key)
            await connection.close()
            after = purged(gc, pen)
            await until(server.url, f"select ({own}) <> $2", pen.key, of_first)
            await way.aclose()
            assert await before == [0]
            assert not after.done()
    assert await after == [3]


async def test_a_crash_takes_the_marks_with_it(server: Postgres, store: PostgresStore, gc: PostgresStore) -> None:
    """The purge that made them removes nothing then; the next one does."""
    first, second = await begun(store)
    async with in_the_way(server.url):
        purging = purged(gc, first, second)
        await marked(server.url, first)
        server.kill()
        server.start()
    assert await purging == [0, 0]
    assert await entries(store, first, second) == [3, 3]
    assert await purged(gc, first, second) == [3, 3]
