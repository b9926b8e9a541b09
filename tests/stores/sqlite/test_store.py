"""What only SQLite can get wrong: several processes, foreign files, query plans."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.stores import open_store, sqlite
from saveslot.stores.sqlite import SqliteStore, file as sqlite_file, reader as sqlite_reader, reading as sqlite_reading
from saveslot.stores.sqlite.file import APPLICATION_ID, connect, migrations
from saveslot.stores.sqlite.writer import Writer
from saveslot.testing import Clock, Pen
from saveslot.testing.conformance.desk import Desk
from saveslot.values.kinds import Kind
from saveslot.values.log import Group, Outcome, Query, Wanted, Worker
from tests.stores.sqlite.conftest import Start, heard, tell

HOUR = 3_600_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


async def created(store: SqliteStore, session_id: str = "a", count: int = 1) -> Pen:
    pen = Pen("ns", session_id)
    group = pen.begin(count)
    assert (await store.append([group]))[0].outcome is Outcome.APPENDED
    pen.saw(group)
    return pen


def written(path: str, data: bytes) -> bytes:
    Path(path).write_bytes(data)
    return data


def content(path: str) -> bytes:
    return Path(path).read_bytes()


# Several processes


def test_eight_processes_open_a_new_file(another: Start, tmp_path: Path) -> None:
    """The first process to open a new file migrates it; all eight succeed and write, file after file."""
    paths = [str(tmp_path / f"new-{n}.db") for n in range(12)]
    processes = [another("open", *paths) for _ in range(8)]
    assert [heard(process) for process in processes] == ["ready"] * 8
    for path in paths:
        for process in processes:
            tell(process)
        assert [heard(process) for process in processes] == ["appended"] * 8
        connection = connect(path, None)
        assert connection.pragma("journal_mode") == "wal"
        assert connection.execute("select count(*) from sessions").get == 8
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


async def test_file_migrated_during_open_is_accepted(path: str) -> None:
    """A new file whose tables another process creates during the check is not taken for a foreign database."""
    connection = apsw.Connection(path)
    connection.pragma("journal_mode", "wal")
    others: list[str] = []

    def meanwhile(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if "sqlite_schema" in sql and not others:
            others.append(path)
            sqlite_file.created(path, None).close()  # the other process, up to its first write
        return True

    def listen(connection: apsw.Connection) -> None:
        connection.exec_trace = meanwhile

    apsw.connection_hooks.append(listen)
    try:
        store = await SqliteStore.open(path)
    finally:
        apsw.connection_hooks.remove(listen)
    assert others
    await created(store)
    await store.close()
    connection.close()


async def test_closing_writer_finishes_submitted_jobs(path: str) -> None:
    """A writer closed in the same turn as its last job was submitted still does that job."""
    connection = apsw.Connection(path)
    connection.execute("create table done (x)")
    writer = Writer(
        lambda: connection, lambda: None, lambda connection, works: [connection.execute(sql).get for sql in works]
    )
    answer = writer.submit("insert into done values (1) returning x")
    await writer.close()
    async with asyncio.timeout(60):
        assert await answer == 1


async def test_concurrent_processes_never_see_a_locked_database(another: Start, store: SqliteStore, path: str) -> None:
    """Two processes writing the same sessions land, conflict or retry, and never see "database is locked" or a torn
    group.
    """
    pens = {name: await created(store, name) for name in "abc"}
    processes = [another("append", path, "ns", 150) for _ in range(2)]
    assert [heard(process) for process in processes] == ["ready"] * 2
    for process in processes:
        tell(process)
    reports = [msgspec.json.decode(await asyncio.to_thread(heard, process)) for process in processes]
    landed: dict[str, dict[int, str]] = {name: {} for name in pens}
    for report in reports:
        assert set(report["seen"]) <= {Outcome.APPENDED, Outcome.CONFLICT, Outcome.ALREADY}
        assert report["seen"][Outcome.APPENDED] == report["seen"][Outcome.ALREADY]
        for name, seq, append_id in report["landed"]:
            assert seq not in landed[name]
            landed[name][seq] = append_id
    for name, pen in pens.items():
        log = await store.entries(pen.key)
        assert {entry.seq: entry.append_id.hex() for entry in log[1:]} == landed[name]
        assert [entry.seq for entry in log] == [*range(1, len(log) + 1)]


async def test_open_read_never_blocks_a_writer(store: SqliteStore, path: str) -> None:
    """A read transaction left open in another connection keeps its snapshot; writers continue, past many
    checkpoints.
    """
    pen = await created(store)
    reader = connect(path, None)
    reader.execute("begin")
    assert reader.execute("select count(*) from checkpoints").get == 1
    for _ in range(30):
        group = pen.group(2, frame=b"x" * 200_000)  # 3,000 pages in all: the WAL is copied back now and then
        assert (await store.append([group]))[0].outcome is Outcome.APPENDED
        pen.saw(group)
    assert reader.execute("select count(*) from checkpoints").get == 1
    reader.execute("commit")
    assert reader.execute("select count(*) from checkpoints").get == 61
    reader.close()


async def test_resume_runs_without_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An up-to-date file is opened, and a head and its frames are read, directly in the calling thread."""
    monkeypatch.setattr(sqlite_reader, "QUICK", 1000)  # whatever else this machine does just now
    store = await SqliteStore.open(path)
    pen = await created(store, count=20)
    await store.close()
    before = set(threading.enumerate())

    def readers() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before]

    store = await SqliteStore.open(path)
    for _ in range(3):
        [head] = await store.heads([("ns", "a")])
        assert head is not None
        assert len(await store.entries(pen.key, Wanted([(1, 20)]))) == head.last.seq == 20
    assert readers() == []
    for _ in range(20):
        assert await store.find(Query(namespace="ns"))  # how long that takes is unknown
    assert readers() == ["saveslot-reader"]  # a second read at once needs no other thread
    await store.close()


async def test_event_loop_never_waits_for_a_lock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another program locks the file a thread waits; the call is answered when the lock is free."""
    loop, met, waited = asyncio.get_running_loop(), asyncio.Event(), set[int]()

    def wait(tries: int) -> bool:
        waited.add(threading.get_ident())
        loop.call_soon_threadsafe(met.set)
        return sqlite_file.wait(tries)

    monkeypatch.setattr(sqlite_reader, "wait", wait)
    sqlite_file.created(path, None).close()
    other = connect(path, None)
    other.pragma("locking_mode", "exclusive")
    other.execute("begin immediate; commit")
    opening = asyncio.create_task(SqliteStore.open(path))
    await met.wait()
    assert not opening.done()
    other.close()
    store = await opening
    assert threading.get_ident() not in waited
    await created(store)
    assert await store.heads([("ns", "a")]) != [None]
    await store.close()


async def test_reads_yield_to_other_tasks(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive reads in the event loop do not starve other tasks."""
    monkeypatch.setattr(sqlite_reader, "QUICK", 1000)
    await created(store)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    for _ in range(1_000):
        await store.heads([("ns", "a")])
    counting.cancel()
    assert turns


async def test_large_frames_round_trip(store: SqliteStore) -> None:
    """Frames around the size from which they are read separately come back byte by byte, with their entries."""
    pen = await created(store)
    for size in (sqlite_reading.WHOLE, sqlite_reading.WHOLE + 1, 2 * sqlite_reading.FEW_BYTES, 10):
        group = pen.group(1)
        group.entries[0].frame = os.urandom(size)
        assert (await store.append([group]))[0].outcome is Outcome.APPENDED
        pen.saw(group)
        for ranges in ([(1, 2**62)], [(group.entries[0].seq, group.entries[0].seq)]):
            assert (await store.entries(pen.key, Wanted(ranges)))[-1].frame == group.entries[0].frame
    last = group.entries[0].seq
    assert await store.empty(pen.key, [last - 1]) == 1
    assert [entry.frame is None for entry in await store.entries(pen.key, Wanted([(last - 2, last)]))] == [
        False,
        True,
        False,
    ]


async def test_ranges_share_statements(store: SqliteStore) -> None:
    """More ranges than one statement accepts are all returned, once and in order, including their newest entries."""
    pen = await created(store, count=2 * sqlite_reading.TOGETHER + 3)
    odd = [(seq, seq) for seq in range(1, pen.seq + 1, 2)]
    assert len(odd) > sqlite_reading.TOGETHER
    for ranges in (odd, odd[:2], odd[:1], [(1, 3), (7, 9)]):
        seqs = [seq for first, last in ranges for seq in range(first, last + 1)]
        assert [entry.seq for entry in await store.entries(pen.key, Wanted(ranges))] == seqs
        assert [entry.seq for entry in await store.entries(pen.key, Wanted(ranges, newest=2, frames=False))] == seqs[
            -2:
        ]
    assert await store.entries(pen.key, Wanted([])) == []


async def test_read_connections_cannot_write(store: SqliteStore) -> None:
    """Connections used for reads refuse to change anything."""

    def change(connection: apsw.Connection) -> None:
        connection.execute("delete from checkpoints")

    await created(store)
    with pytest.raises(Unavailable):
        await store._read(change)  # noqa: SLF001  (no public call would try)
    assert (await store.count(Query(namespace="ns"))).entries == 1


async def test_own_appends_wake_a_watcher_without_polling(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append itself wakes a watcher of the same store; polling is for other processes' appends."""
    monkeypatch.setattr(sqlite, "POLL", 600)
    pen = await created(store)
    _, cursor = await store.events("ns", None)
    async with asyncio.timeout(60):
        for _ in range(50):
            watching = asyncio.create_task(store.events("ns", cursor, wait=600))
            group = pen.group()
            await store.append([group])
            pen.saw(group)
            events, cursor = await watching
            assert [event.seq for event in events] == [pen.seq]


async def test_failed_call_affects_no_other(store: SqliteStore) -> None:
    """A value that SQLite cannot store fails alone; calls that shared its transaction land."""
    pens = [await created(store, f"s{n}") for n in range(9)]
    groups = [pen.group(2) for pen in pens]
    for group in groups[::3]:
        group.entries[1].name = "\ud800"  # no UTF-8
    answers = await asyncio.gather(*(store.append([group]) for group in groups), return_exceptions=True)
    for n, answer in enumerate(answers):
        assert isinstance(answer, InvalidInput) if n % 3 == 0 else answer[0].outcome is Outcome.APPENDED  # type: ignore[index]
    assert [len(await store.entries(pen.key)) for pen in pens] == [1, 3, 3] * 3


async def test_group_never_lands_around_a_gap(store: SqliteStore, path: str) -> None:
    """In a damaged log, where a later number exists, a group lands whole or is refused with an error."""
    pen = await created(store)
    connection = connect(path, None)
    columns = "kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest"
    copied = f"select key, 3, zeroblob(16), {columns} from checkpoints"  # noqa: S608
    connection.execute(f"insert into checkpoints (key, seq, append_id, {columns}) {copied}")
    connection.close()
    with pytest.raises(Corrupt):
        await store.append([pen.group(3, Kind.PAUSED, whole={"state": "paused"})])
    assert [entry.seq for entry in await store.entries(pen.key)] == [1, 3]
    (head,) = await store.heads([pen.key])
    assert head is not None
    assert head.row.state == "active"


# Files that are not ours


async def test_non_database_file_is_refused(path: str) -> None:
    """It is InvalidInput, and the file is unchanged."""
    before = written(path, b"not a database, but long enough to look at" * 100)
    with pytest.raises(InvalidInput, match="not a SQLite database"):
        await SqliteStore.open(path)
    assert content(path) == before


@pytest.mark.parametrize("version", [0, 1, len(migrations()), 99])
async def test_foreign_database_is_refused(path: str, version: int) -> None:
    """It is refused whatever its version, and unchanged."""
    connection = apsw.Connection(path)
    connection.execute("create table theirs (x); insert into theirs values (1)")
    connection.pragma("user_version", version)
    connection.close()
    before = content(path)
    with pytest.raises(InvalidInput, match="another program's"):
        await SqliteStore.open(path)
    assert content(path) == before


async def test_newer_database_is_refused(path: str) -> None:
    """The error names both versions, and the data stays."""
    store = await SqliteStore.open(path)
    await created(store)
    await store.close()
    connection = connect(path, None)
    connection.pragma("user_version", len(migrations()) + 1)
    with pytest.raises(InvalidInput, match=rf"format {len(migrations()) + 1}.*reads only up to {len(migrations())}"):
        await SqliteStore.open(path)
    assert connection.execute("select count(*) from checkpoints").get == 1
    connection.pragma("user_version", len(migrations()))
    connection.close()
    store = await SqliteStore.open(path)
    assert (await store.count(Query(namespace="ns"))).entries == 1
    await store.close()


async def test_unwritable_path_is_unavailable() -> None:
    """A path in /proc is Unavailable, with the path and what to do."""
    store = await SqliteStore.open("/proc/saveslot/store.db")
    with pytest.raises(Unavailable, match=r"store\.db .*writable"):
        await created(store)
    await store.close()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file/store.db", "file is a file, not a folder"),
        ("file/deeper/store.db", "file is a file, not a folder"),
        ("folder", "folder is a folder, not a file"),
    ],
)
async def test_impossible_path_is_invalid_input(tmp_path: Path, place: str, says: str) -> None:
    """A path below a file, or of a folder, can never work: it is InvalidInput that says what is there."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=f"^url: .*{says}; name another file"):
        await SqliteStore.open(str(tmp_path / place))


async def test_empty_file_becomes_a_database(path: str) -> None:
    """An empty file, as from touch, becomes a database; missing folders are created."""
    written(path, b"")
    for place in (path, f"{path}-folder/deep/er.db"):
        store = await SqliteStore.open(place)
        await created(store)
        await store.close()
    connection = connect(path, None)
    assert connection.pragma("application_id") == APPLICATION_ID
    connection.close()


async def test_url_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative, four absolute, percent signs decoded; a URL without a file is refused."""
    monkeypatch.chdir(tmp_path)
    for url, name in [
        ("sqlite:///a.db", "a.db"),
        (f"sqlite:///{tmp_path}/b.db", "b.db"),
        ("sqlite:///c%20c.db", "c c.db"),
    ]:
        store = await open_store(url)
        await created(store)
        await store.close()
        assert (tmp_path / name).exists()
    for url in (
        "sqlite://host/a.db",
        "sqlite:///",
        "sqlite:///a.db?mode=ro",
        "sqlite:///:memory:",
        "sqlite:///a%00b",
        "nosuch:x",
        "sqlite:a.db",
        "a",
    ):
        with pytest.raises(InvalidInput):
            await open_store(url)


# Plans


@pytest.mark.parametrize("size", ["new", "tiny and analysed", "large and analysed"])
async def test_hot_statements_use_indexes(path: str, size: str) -> None:
    """No statement of an append, a take, a claim, a resume, a page, a beat or a watch walks through all checkpoints or
    sessions; of workers there are few, and so there are of sessions that one of them holds.
    """
    ran: dict[str, Any] = {}

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        ran.setdefault(sql, bindings)
        return True

    def listen(connection: apsw.Connection) -> None:
        connection.exec_trace = note

    await prepared(path, {"new": 0, "tiny and analysed": 2, "large and analysed": 3_000}[size])
    apsw.connection_hooks.append(listen)
    try:
        store = await SqliteStore.open(path)
        await everything_hot(store)
        await store.close()
    finally:
        apsw.connection_hooks.remove(listen)
    connection = sqlite_file.connect(path, None)  # as the store does: plans depend on that
    looked_at = 0
    for sql, bindings in ran.items():
        if sql.split()[0] not in {"select", "insert", "update", "delete", "with"} or "sqlite_schema" in sql:
            continue
        looked_at += 1
        steps = [row[3] for row in connection.execute(f"explain query plan {sql}", bindings)]
        for step in steps:
            # given, chain: with the statement; file: one row
            few = step in {"SCAN workers", "SCAN given", "SCAN chain", "SCAN file"}
            few = few or any(answer in step for answer in ("VIRTUAL TABLE", "VALUES CLAUSE", "CONSTANT ROW"))
            newest = "order by feed desc limit" in sql
            counted = sql.split()[1].startswith("count(*)") and "values" not in sql
            counted = counted or step == "SCAN s"  # all of them; a page of sessions
            assert few or newest or counted or not step.startswith("SCAN"), (sql, steps)
            few = any(
                index in steps[0] for index in ("sessions_by_owner (owner=?)", "sessions_by_id (namespace=? AND id>")
            )
            assert few or "TEMP B-TREE FOR ORDER" not in step, (sql, steps)
    connection.close()
    assert looked_at > 40


async def prepared(path: str, sessions: int) -> None:
    store = await SqliteStore.open(path)
    pens = [Pen(f"ns{n % 3}", f"s{n}") for n in range(sessions)]
    begun = [pen.begin(8) for pen in pens]
    await store.append(begun)
    workers = [await working(store, f"w{n}") for n in range(sessions // 100 + 1)]
    for pen, group in zip(pens, begun, strict=True):
        pen.saw(group)
    await store.append([pen.take_over(workers[n % len(workers)]) for n, pen in enumerate(pens) if n % 2])
    await store.close()
    if sessions:
        connection = connect(path, None)
        connection.execute("analyze")
        connection.close()


async def working(store: SqliteStore, name: str, ttl: int = HOUR) -> Worker:
    worker = Worker(os.urandom(16), name, ttl, first=True)
    assert all(await store.beat((), worker))
    worker.first = False
    return worker


async def everything_hot(store: SqliteStore) -> None:
    pen = await created(store, "hot", 3)
    owner, claimer = await working(store, "owner", 1), await working(store, "claimer")
    for worker, orphan in ((owner, None), (claimer, 0)):
        group = pen.take_over(worker, orphan=orphan)
        assert (await store.append([group]))[0].outcome is Outcome.APPENDED
        await store.append([group])
        pen.saw(group)
    assert (await store.append([pen.take_over(owner, orphan=0)]))[0].outcome is Outcome.FENCED
    assert all(await store.beat([(pen.key, pen.lease)], claimer))
    assert await store.beat((), owner) == [0]
    stale, dead = pen.copy(), await created(store, "dead")
    groups: list[Group] = [
        *(pen.group(2), stale.group(), dead.delete(), Pen("ns", "hot").begin()),
        stale.group(kind=Kind.FAILED, whole={"only_stale": HOUR, "state": "failed", "heartbeat": True}),
    ]
    await store.append(groups)
    await store.append([groups[0]])
    pen.saw(groups[0])
    many = [pen.group(), (await created(store, "warm")).group(), stale.group()]
    await asyncio.gather(*(store.append([group]) for group in many))
    idle = [await created(store, f"idle {n}") for n in range(3)]
    fail = {"only_stale": -HOUR, "state": "failed", "body": b"", "labels": {}}
    verdicts = await store.append([each.group(2, Kind.FAILED, whole=fail) for each in idle])
    assert {verdict.outcome for verdict in verdicts} == {Outcome.APPENDED}
    await store.heads([pen.key, idle[0].key, ("ns", "hot")])
    await store.entries(pen.key)
    await store.entries(pen.key, Wanted([(2, 3)], frames=False))
    await store.entries(pen.key, Wanted([(2, 3), (5, 5)], chain=4))
    request = os.urandom(32)
    pen, other = await created(store, "asked"), await created(store, "beside")
    told = [pen.group(2, request=request, labels={"run": "r1"}), other.group(2, Kind.COMPLETED)]
    told[0].entries[1].request = b""
    assert {verdict.outcome for verdict in await store.append(told, together=True)} == {Outcome.APPENDED}
    pen.saw(told[0])
    await store.append([pen.group(request=request, labels={"run": "r1"})])
    for how in ({}, {"ranges": [(2, 3), (6, 99)]}, {"newest": 1}):
        await store.entries(pen.key, Wanted(request=request[:16], **how))
    await store.append([Pen("ns", "call").begin(request=request)])
    await store.append([Pen("ns", "again").begin(request=request)])
    for query in (
        Query(namespace="ns", request=request[:16]),
        Query(namespace="ns", prefix="as"),
        Query(namespace="ns", prefix="\U0010ffff"),
        Query(namespace="ns", labels={"a": "1", "b": "2"}),
        Query(namespace="ns", entry={"run": "r1", "step": "1"}),
        Query(namespace="ns", entry={"run": "r1"}, state="active", labels={"a": "1"}),
    ):
        await store.find(query)
        await store.find(query, (5, b"key"), 3)
    await store.entries(pen.key, Wanted(kinds=frozenset({Kind.CHECKPOINT}), name="step", newest=1))
    await store.beat([(pen.key, None)])
    await store.empty(pen.key, [2])
    filters: list[dict[str, Any]] = [
        {}, {"state": "active"}, {"agent_type": "x"}, {"user_id": "u"}, {"labels": {"a": "b"}}, {"text": "h"},
        {"prefix": "h"}, {"created_after": 1, "created_before": 2}, {"stale_for": HOUR, "state": "active"},
        {"owner": claimer.id}, {"orphan_for": HOUR}, {"orphan_for": 0, "state": "active", "agent_type": "x"},
        {"unowned": True}, {"unowned": True, "state": "active"}, {"labels": {"a": "b", "c": "d"}, "state": "active"},
        {"text": "h", "agent_type": "x"}, {"owner": claimer.id, "labels": {"a": "b"}},
        {"user_id": "u", "labels": {"a": "b"}},
    ]  # fmt: skip
    relabelled = (await created(store, "labelled")).group(kind=Kind.UPDATED, whole={"labels": {"a": "b"}, "body": b""})
    await store.append([relabelled])
    await store.count(Query(namespace="ns", labels={"a": "b"}))
    await store.count(Query(namespace="ns"))
    for query in filters:
        await store.find(Query(namespace="ns", **query))
        await store.find(Query(namespace="ns", **query), (5, pen.key))
    _, cursor = await store.events("ns", None)
    await store.events("ns", "0")
    await store.events("ns", cursor, pen.key)
    await store.purge([dead.key])


# Workers


async def test_worker_of_an_earlier_boot_is_dead(path: str) -> None:
    """After a reboot old times are not compared with the new clock: held sessions are orphans."""
    clock = [("first", 10**12)]
    store = await SqliteStore.open(path, uptime=lambda: clock[0])
    worker = await working(store, "w")
    pen = await created(store)
    group = pen.take_over(worker)
    await store.append([group])
    pen.saw(group)
    clock[0] = ("second", 5)
    (head,) = await store.heads([pen.key])
    assert head is not None
    assert (head.row.worker, head.row.left) == ("w", 0)
    page = await store.find(Query(namespace="ns", orphan_for=1 << 60))
    assert [row.session_id for row in page] == ["a"]
    assert (await store.count(Query(namespace="ns"))).orphaned == 1
    claimer = await working(store, "c")
    assert (await store.append([pen.take_over(claimer, orphan=1 << 60)]))[0].outcome is Outcome.APPENDED
    await store.close()


async def test_rows_of_dead_workers_are_removed(path: str) -> None:
    """The next worker removes rows of workers that died long ago and own nothing; owners' rows stay."""
    now = [10**12]
    store = await SqliteStore.open(path, uptime=lambda: ("boot", now[0]))
    idle, owner = await working(store, "idle", 1), await working(store, "owner", 1)
    pen = await created(store)
    await store.append([pen.take_over(owner)])
    now[0] += HOUR
    living = await working(store, "living")
    connection = connect(path, None)
    names = "select name from workers order by name"
    assert [name for (name,) in connection.execute(names)] == ["idle", "living", "owner"]
    now[0] += 2
    await working(store, "next")
    assert [name for (name,) in connection.execute(names)] == ["living", "next", "owner"]
    connection.close()
    assert await store.beat((), idle) == [0]
    assert all(await store.beat((), living))
    assert all(await store.beat((), owner))  # no worker declared it dead
    await store.close()


async def test_close_waits_for_submitted_writes(path: str) -> None:
    """Writes submitted before close are stored, even if close is called twice at once."""
    store = await SqliteStore.open(path)
    pens = [Pen("ns", f"s{n}") for n in range(50)]
    calls = [asyncio.create_task(store.append([pen.begin()])) for pen in pens]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    with suppress(Unavailable):
        await asyncio.gather(*calls)
    store = await SqliteStore.open(path)
    assert (await store.count(Query(namespace="ns"))).entries == 50
    await store.close()


async def test_large_writes_go_to_the_thread(path: str) -> None:
    """Many entries or a large frame are not written in the event loop, even when it is idle."""
    threads: list[int] = []

    def clock() -> int:
        threads.append(threading.get_ident())
        return 1_000_000 + len(threads)

    store = await SqliteStore.open(path, clock)
    pen = await created(store)
    for count, frame in ((1, b"x" * 2_000_000), (500, b"x")):
        for _ in range(20):  # quick ones, so that the next may run in the loop
            group = pen.group()
            await store.append([group])
            pen.saw(group)
        threads.clear()
        group = pen.group(count, frame=frame)
        assert (await store.append([group]))[0].outcome is Outcome.APPENDED
        pen.saw(group)
        assert threading.get_ident() not in threads
    await store.close()


def test_closed_loop_does_not_block_others(path: str) -> None:
    """A write that shares its commit with one from a closed event loop is still answered."""
    store = asyncio.run(SqliteStore.open(path))
    pens = [asyncio.run(created(store, name)) for name in "abc"]
    other = connect(path, None)
    other.execute("begin immediate")

    async def write(pen: Pen, seconds: float) -> Outcome:
        return (await asyncio.wait_for(store.append([pen.group()]), seconds))[0].outcome

    for pen in pens[:2]:  # one is being committed, one waits, and both callers give up
        with pytest.raises(TimeoutError):
            asyncio.run(write(pen, 0.1))
    threading.Timer(0.3, other.execute, ("commit",)).start()
    assert asyncio.run(write(pens[2], 20)) is Outcome.APPENDED
    asyncio.run(store.close())
    other.close()


async def test_purged_numbers_are_not_counted(store: SqliteStore, path: str) -> None:
    """However often the newest entries are purged, a watcher misses nothing, and no leftover is counted."""
    await created(store, "kept")
    for n in range(3):
        gone = await created(store, f"gone-{n}", 4)
        _, cursor = await store.events("ns", None)
        assert await store.purge([gone.key], [gone.prev]) == [4]
        await created(store, f"new-{n}")
        events, _ = await store.events("ns", cursor)
        assert [event.session_id for event in events] == [f"new-{n}"]
    assert (await store.count(Query(namespace="ns"))).entries == 4
    connection = connect(path, None)
    assert connection.execute("select count(*) from checkpoints").get <= 5
    connection.close()


async def test_file_shrinks_when_mostly_free(tmp_path: Path) -> None:
    """Emptied and purged space returns to the disk, a bit with each call, until little of the file is free."""
    store = await SqliteStore.open(str(tmp_path / "s.db"))
    desk = Desk(store, store, Clock())
    kept = await desk.create("kept", count=3)
    pens = [await desk.create(f"s{n}") for n in range(20)]
    for pen in pens:
        await desk.write(pen, 4, frame=os.urandom(100_000))
        await desk.delete(pen)

    async def size() -> int:
        return (await store.count(Query(namespace=desk.namespace))).stored_bytes

    full = await size()
    assert await store.purge([pens[0].key]) == [6]
    assert await size() == full
    assert await store.empty(pens[1].key, range(1, 6)) == 5
    assert await store.purge([pen.key for pen in pens[1:]]) == [6] * 19
    while (before := await size()) > 1_000_000:
        await store.empty(kept.key, [])
        assert await size() < before
    assert len(await desk.log(kept)) == 3
    await store.close()
