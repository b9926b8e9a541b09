"""Each statement keeps to its index and to the partition that it needs, whatever PostgreSQL knows about the tables.

Twelve partitions of months and the default one; sessions of 5,000 entries among short ones. Nothing is timed: the pages
that a statement looks at are counted, in the plan for its arguments and in the one for all arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from saveslot.stack import Postgres
from saveslot.stores.postgres import PostgresStore, partitions
from saveslot.testing import Pen
from saveslot.testing.pen import SECOND
from saveslot.values.kinds import Kind
from saveslot.values.log import Head, Query, Wanted, Worker
from tests.harness.servers import make_tables

from .explaining import Explaining

SESSIONS = """
    insert into {s}.sessions
      (key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, labels, body)
    select substring(int8send(ms << 16) from 1 for 6) || substring(decode(md5($1 || n), 'hex') from 1 for 10),
      'ns', $1 || n, 'a' || n % 5, 'u' || n % 50, case when n % 10 = 0 then 'active' else 'completed' end,
      ms * 1000, ms * 1000, 0, jsonb_build_object('team', 't' || n % 5, 'rare', (n % 2000 = 7)::text), ''
    from (select n, $3::int8 + n * ($4::int8 - $3::int8) / $2::int as ms from generate_series(1, $2::int) n) n"""
LABELS = """
    insert into {s}.labels select namespace, l.key, l.value, created_at, s.key
    from {s}.sessions s cross join jsonb_each_text(s.labels) l where s.id like $1 || '%'"""
MARKS = """
    insert into {s}.entry_labels select namespace, l.*, created_at, s.key, seq
    from {s}.sessions s, (values ('run', 'busy'), ('step', '7')) l(label, value), generate_series(2, 3) seq
    where s.id like 'short-%'"""
ENTRIES = """
    insert into {s}.checkpoints
      (key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe, digest, base, frame)
    select key, seq, decode(md5(s.id || seq), 'hex'), 1, 'turn', created_at, created_at, 0, seq, 1, '', '',
      greatest(0, seq - 1000), '\\x01'
    from {s}.sessions s, generate_series(1, $2::int8) seq where s.id like $1 || '%'"""


async def create(connection: Any, url: str, schema: str) -> None:
    """The three months that are made ahead, and nine before."""
    await make_tables(f"{url}&schema={schema}")
    month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(9):
        month = (month - timedelta(days=1)).replace(day=1)
        await partitions.add(connection, schema, month)
    assert len((await partitions.look(connection, schema)).months) == 12


async def filled(connection: Any, schema: str, sort: str, sessions: int, each: int) -> None:
    """Sessions of the last nine months."""
    now = round(datetime.now(UTC).timestamp() * 1000)
    await connection.execute(SESSIONS.format(s=schema), sort, sessions, now - 270 * 86_400_000, now)
    await connection.execute(LABELS.format(s=schema), sort)
    if sort == "short-":
        await connection.execute(MARKS.format(s=schema))
    await connection.execute(ENTRIES.format(s=schema), sort, each)


async def analysed(connection: Any, schema: str) -> None:
    tables = """
        select oid::regclass::text from pg_class
        where relnamespace = $1::text::regnamespace and relkind in ('r', 'p')"""
    for (table,) in await connection.fetch(tables, schema):
        await connection.execute(f"analyze {table}")


async def prepared(url: str) -> None:
    connection = await asyncpg.connect(url)
    for schema in ("never", "tiny"):
        await create(connection, url, schema)
        if schema == "tiny":
            await filled(connection, schema, "tiny-", 24, 1)
            await analysed(connection, schema)
        await filled(connection, schema, "long-", 3, 5000)
        await filled(connection, schema, "short-", 20_000, 2)
    await connection.close()


async def prepared_large(url: str) -> None:
    connection = await asyncpg.connect(url)
    await create(connection, url, "large")
    await filled(connection, "large", "long-", 100, 5000)
    await filled(connection, "large", "short-", 50_000, 10)
    await analysed(connection, "large")
    await connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Only the test runs ANALYZE."""
    with Postgres(options={"autovacuum": "off", "fsync": "off", "shared_buffers": "256MB"}) as server:
        yield server


class Looking:
    def __init__(self, schema: str, explaining: Explaining, empty: set[str]) -> None:
        self.store = PostgresStore.on(explaining, schema)
        self._statements, self._empty = explaining.statements, empty

    @asynccontextmanager
    async def at_most(self, pages: int, partitions: int = 13) -> AsyncGenerator[None]:
        """What is asked in the block looks at no more, and reads no table from end to end that has something in it."""
        self._statements.clear()
        yield
        assert self._statements
        for answer in self._statements:
            where = f"{answer.mode}: {answer.statement}\n{answer.outline}"
            assert not answer.scanned - self._empty - {"workers", "format"}, where
            assert len(answer.partitions) <= partitions, where
            assert answer.buffers <= pages, where

    async def pens(self, keys: list[bytes]) -> list[Pen]:
        return [pen(head) for head in await self.store.heads(keys) if head is not None]


def pen(head: Head) -> Pen:
    row = head.row
    return Pen(row.namespace, row.session_id, row.key, head.last.seq, head.last.append_id, row.fence, row.lease)


@asynccontextmanager
async def looking(url: str, schema: str) -> AsyncGenerator[tuple[Looking, bytes, list[bytes]]]:
    """With the key of a long session, and those of some short ones."""
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        empty = "select relname from pg_class where relnamespace = $1::text::regnamespace and pg_relation_size(oid) = 0"
        look = Looking(schema, Explaining(pool), {name for (name,) in await pool.fetch(empty, schema)})
        keys = f"select key from {schema}.sessions where id like $1 order by id limit 300"  # noqa: S608
        [(long,)], short = await pool.fetch(keys, "long-2"), await pool.fetch(keys, "short-%7")
        yield look, long, [key for (key,) in short]


async def keeps_to_its_indexes(url: str, schema: str) -> None:
    async with looking(url, schema) as (look, long, short):
        await appends(look, long, short)
        await reads(look, long, short)
        await finds(look, short)
        await owners(look, short)
        await watches(look, short)
        await goes(look, short)


async def appends(look: Looking, long: bytes, short: list[bytes]) -> None:
    store = look.store
    [one] = await look.pens([long])
    many = await look.pens(short[:256])
    async with look.at_most(50, partitions=1):
        await store.append([one.group()])
    async with look.at_most(256 * 30):
        await store.append([each.group() for each in many])
    async with look.at_most(10 * 30):  # each conflicts: the second statement says why
        await store.append([each.group() for each in many[:10]])
    [one] = await look.pens([long])
    async with look.at_most(80, partitions=1):
        await store.append([one.group(kind=Kind.PAUSED, whole={"state": "paused", "heartbeat": True})])
    # More pages than they need: a full page of an index is first cleared of rows that were undone, which are looked up.
    new = Pen("ns", "new")
    async with look.at_most(400):
        await store.append([group := new.begin(labels={"team": "t1"})])
    new.saw(group)
    async with look.at_most(400):
        await store.append([group := new.group(kind=Kind.UPDATED, whole={"labels": {"team": "t2", "rare": "true"}})])
    new.saw(group)
    async with look.at_most(400):
        await store.append([group := new.group(2, labels={"run": "r1"}, request=b"")])
    new.saw(group)
    asked, others = new.group(labels={"run": "r2", "step": "1"}, request=b"R" * 32), await look.pens(short[256:266])
    made = Pen("ns", "made").begin(request=b"M" * 32, labels={"team": "t1"})
    groups = [asked, made, *(each.group(request=b"R" * 32) for each in others)]
    async with look.at_most(12 * 60):
        verdicts = await store.append(groups, together=True)
    assert {verdict.outcome for verdict in verdicts} == {"appended"}
    new.saw(asked)
    async with look.at_most(100, partitions=3):
        assert (await store.append([new.group(request=b"R" * 32)]))[0].outcome == "conflict"
    async with look.at_most(20):
        assert len(await store.find(Query(namespace="ns", request=b"M" * 16), None, 10)) == 1
    async with look.at_most(400):
        assert (await store.append([new.delete()]))[0].outcome == "appended"
    async with look.at_most(100, partitions=1):
        await store.empty(long, [5, 6, 7])


async def reads(look: Looking, long: bytes, short: list[bytes]) -> None:
    store = look.store
    async with look.at_most(16, partitions=1):
        await store.heads([long])
    async with look.at_most(16, partitions=1):
        assert await store.heads([("ns", "long-2")])
    async with look.at_most(256 * 12):
        await store.heads(short[:256])
    async with look.at_most(8, partitions=1):
        assert len(await store.entries(long, Wanted([(4000, 4001)]))) == 2
    async with look.at_most(80, partitions=1):
        assert len(await store.entries(long, Wanted([(1, 1), (4000, 4016), (4500, 4510)]))) == 29
    for wanted in ({"newest": 20}, {"newest": 1, "name": "turn"}, {"newest": 10, "kinds": frozenset({1})}):
        async with look.at_most(10, partitions=1):
            assert await store.entries(long, Wanted(frames=False, **wanted))
    async with look.at_most(5 * 25, partitions=1):  # a range and four bases, each at most as above
        assert len(await store.entries(long, Wanted([(4990, 4999)], chain=4000))) == 10 + 4
    async with look.at_most(10, partitions=1):
        assert await store.entries(long, Wanted(request=bytes(16))) == []


async def finds(look: Looking, short: list[bytes]) -> None:
    store = look.store
    page = await store.find(Query(namespace="ns"), None, 50)
    after = (page[-1].created_at, page[-1].key)
    for query in (
        Query(namespace="ns"),
        Query(namespace="ns", state="active"),
        Query(namespace="ns", agent_type="a1"),
        Query(namespace="ns", user_id="u7"),
    ):
        async with look.at_most(200):
            assert len(await store.find(query, after, 50)) == 50
    for name, value, least, pages in (
        ("team", "t1", 50, 50 * 6),
        ("rare", "true", 5, 50 * 6),
        ("rare", "nobody has it", 0, 10),
        ("nobody has it", "t1", 0, 10),
    ):
        async with look.at_most(pages):
            assert least <= len(await store.find(Query(namespace="ns", labels={name: value}), after, 50)) <= 50
    # The rarer one leads, after both were counted up to 1,000: a label that one in 2,000 has, or ids that begin so.
    for labels, most in (({"team": "t2", "rare": "true"}, 50), ({"team": "t1", "rare": "nobody has it"}, 0)):
        async with look.at_most(700):
            assert len(await store.find(Query(namespace="ns", labels=labels), None, 50)) <= most
    rare = [
        (prefix, None, known) for prefix, known in (("short-1234", {11}), ("long-", {3, 50}), ("nobody has it", {0}))
    ]
    for prefix, place, known in (*rare, ("sh", after, {50})):
        async with look.at_most(700):
            assert len(await store.find(Query(namespace="ns", prefix=prefix), place, 50)) in known
    async with look.at_most(1500):
        assert len(await store.find(Query(namespace="ns", labels={"team": "t1"}, prefix="short-1234"), None, 50)) >= 1
    for entry, pages in (({"run": "busy"}, 50 * 15), ({"run": "busy", "step": "7"}, 50 * 25), ({"run": "no"}, 10)):
        async with look.at_most(pages):
            assert len(await store.find(Query(namespace="ns", entry=entry), after, 50)) == (50 if pages > 10 else 0)
    async with look.at_most(100 * 6):  # the user's, of which every tenth or more has the label
        assert await store.find(Query(namespace="ns", labels={"team": "t2"}, user_id="u7"), None, 10)
    async with look.at_most(200 * 10):
        assert len(await store.find(Query(namespace="ns", state="active", stale_for=3600 * SECOND), None, 200)) == 200
    async with look.at_most(100 * 15):
        await store.beat([(key, None) for key in short[:100]])


async def owners(look: Looking, short: list[bytes]) -> None:
    store = look.store
    dead, living = Worker(b"d" * 16, "dead", 0, first=True), Worker(b"l" * 16, "living", 60 * SECOND, first=True)
    await store.beat([], dead)
    await store.beat([], living)
    pens = await look.pens(short[256:276])
    groups = [each.take_over(dead) for each in pens]
    async with look.at_most(20 * 40):
        await store.append(groups)
    for each, group in zip(pens, groups, strict=True):
        each.saw(group)
    async with look.at_most(200):
        assert len(await store.find(Query(namespace="ns", owner=dead.id), None, 20)) == 20
    # Where nothing is known of the owners every session of the namespace may be looked at, by an index all the same.
    async with look.at_most(1500):
        assert len(await store.find(Query(namespace="ns", orphan_for=0), None, 20)) == 20
    async with look.at_most(20 * 60):
        verdicts = await store.append([each.take_over(living, orphan=0) for each in pens])
    assert {verdict.outcome for verdict in verdicts} == {"appended"}
    pens = await look.pens(short[280:290])
    async with look.at_most(10 * 60):
        await store.append(
            [each.group(kind=Kind.FAILED, whole={"state": "failed", "only_stale": SECOND}) for each in pens]
        )


async def watches(look: Looking, short: list[bytes]) -> None:
    store = look.store
    _, cursor = await store.events("ns", None)
    async with look.at_most(13 * 5):
        assert not (await store.events("ns", cursor))[0]
    await store.append([each.group() for each in await look.pens(short[200:230])])
    async with look.at_most(30 * 12):
        assert len((await store.events("ns", cursor))[0]) == 30
    async with look.at_most(100 * 10):
        assert len((await store.events("ns", "0", limit=100))[0]) == 100
    # One session's, by its key, wherever the cursor came from; without a look at the feed.
    [pen] = await look.pens(short[210:211])
    async with look.at_most(20):
        _, own = await store.events("ns", None, pen.key)
    async with look.at_most(20):
        assert not (await store.events("ns", own, pen.key))[0]
    async with look.at_most(40):
        assert len((await store.events("ns", "@1", pen.key))[0]) == pen.seq - 1
    async with look.at_most(13 * 6):  # of a cursor from elsewhere the entry is looked for, once
        assert len((await store.events("ns", cursor, pen.key))[0]) == 1


async def goes(look: Looking, short: list[bytes]) -> None:
    """As `gc` finds and removes: ended sessions page by page, then deleted ones."""
    store = look.store
    ended = Query(namespace="ns", state="completed", ended_for=1000 * SECOND)
    page = await store.find(ended, None, 50)
    after = (page[-1].heartbeat, page[-1].key)
    async with look.at_most(100 * 40):
        rows = await store.find(ended, after, 100)
    assert len(rows) == 100
    keys, seen = [row.key for row in rows], [row.last for row in rows]
    async with look.at_most(100 * 60, partitions=3):
        assert await store.purge(keys, seen) == [row.length for row in rows]
    pens = await look.pens([key for key in short[:40] if key not in keys])
    await store.append([each.delete() for each in pens])
    async with look.at_most(40 * 80):
        rows = await store.find(Query(namespace="ns", deleted_for=0), None, 40)
    async with look.at_most(40 * 60):
        assert all(await store.purge([row.key for row in rows]))


@pytest.fixture(scope="module")
def filled_server(server: Postgres) -> Postgres:
    asyncio.run(prepared(server.url))
    return server


@pytest.mark.parametrize("schema", ["never", "tiny"])
async def test_without_good_statistics(filled_server: Postgres, schema: str) -> None:
    """Plans of tables that were never analysed, or were analysed when there were 24 sessions."""
    await keeps_to_its_indexes(filled_server.url, schema)


async def test_two_claims_of_one_dead_worker(filled_server: Postgres) -> None:
    """Both wait for its row, and both land: who waited looks at it again, and finds it as dead as before."""
    stores = [await PostgresStore.open(f"{filled_server.url}&schema=never") for _ in range(2)]
    dead, living = Worker(b"D" * 16, "dead", 0, first=True), Worker(b"L" * 16, "living", 60 * SECOND, first=True)
    connection = await asyncpg.connect(filled_server.url)
    keys = await connection.fetch("select key from never.sessions where id like 'short-%3' order by id limit 20")
    pens = [pen(head) for head in await stores[0].heads([key for (key,) in keys]) if head is not None]
    await stores[0].append(groups := [each.take_over(dead) for each in pens])
    for each, group in zip(pens, groups, strict=True):
        each.saw(group)
    claims = [each.take_over(living, orphan=0) for each in pens]
    async with connection.transaction():
        await connection.execute("select from never.workers where worker = $1 for update", dead.id)
        claiming = asyncio.gather(stores[0].append(claims[:10]), stores[1].append(claims[10:]))
        async with asyncio.timeout(60):
            while await connection.fetchval("select count(*) from pg_locks where not granted") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    outcomes = {verdict.outcome for verdicts in await claiming for verdict in verdicts}
    assert outcomes == {"appended"}
    for one in (connection, *stores):
        await one.close()


@pytest.mark.faults  # it takes its time to be filled
async def test_a_million_entries(server: Postgres) -> None:
    """Of tables that are large, and known to be."""
    await prepared_large(server.url)
    await keeps_to_its_indexes(server.url, "large")


async def test_plans_made_for_a_tiny_table_are_not_kept(server: Postgres) -> None:
    """A process that begins with an empty, analysed database does not read all of it for each append later on."""
    connection = await asyncpg.connect(server.url)
    store = await PostgresStore.open(f"{server.url}&schema=growing")
    one = Pen("ns", "one")
    await store.append([first := one.begin()])
    one.saw(first)
    await analysed(connection, "growing")

    async def save() -> None:
        for _ in range(100):
            await store.append([group := one.group()])
            one.saw(group)
            await store.heads([one.key])

    await save()
    await store.append([Pen("ns", f"s{n}").begin() for n in range(3000)])
    await save()
    await store.close()
    read = "select sum(seq_tup_read)::int8 from pg_stat_user_tables where schemaname = 'growing'"
    assert await settled(connection, read) < 3000 * 20
    await connection.close()


async def settled(connection: Any, question: str) -> int:
    """Return the answer once it stops changing: each process reports its statistics when it ends."""
    result = before = -1
    while result != before or result < 0:
        before = result
        await asyncio.sleep(0.5)
        result = await connection.fetchval(question)
    return result
