"""Paused processes and failing disks: a typed error, a store that recovers, nothing lost, nothing doubled."""

import asyncio
import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from saveslot.errors import Unavailable
from saveslot.stores.sqlite import SqliteStore, writer
from saveslot.stores.sqlite.file import connect
from saveslot.testing import Pen
from saveslot.values.log import Group, Outcome
from tests.stores.sqlite.bad_disk import BadDisk
from tests.stores.sqlite.conftest import Start, heard, tell

pytestmark = pytest.mark.faults

LANDED = {Outcome.APPENDED, Outcome.ALREADY}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


async def began(store: SqliteStore, sessions: int) -> list[Pen]:
    pens = [Pen("ns", f"s{n}") for n in range(sessions)]
    groups = [pen.begin() for pen in pens]
    await store.append(groups)
    for pen, group in zip(pens, groups, strict=True):
        pen.saw(group)
    return pens


async def sent(store: SqliteStore, groups: list[Group]) -> list[Outcome | None]:
    """Send each in its own call, all at once; None where the store could not answer."""
    answers = await asyncio.gather(*(store.append([group]) for group in groups), return_exceptions=True)
    outcomes: list[Outcome | None] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            assert isinstance(answer, Unavailable), answer
            outcomes.append(None)
        else:
            outcomes.append(answer[0].outcome)
    return outcomes


async def holds_exactly(store: SqliteStore, groups: list[Group]) -> None:
    logs: dict[bytes, list[tuple[int, bytes, bytes | None]]] = {}
    for group in groups:
        logs.setdefault(group.key, []).extend((entry.seq, entry.append_id, entry.frame) for entry in group.entries)
    for key, expected in logs.items():
        entries = (await store.entries(key))[1:]
        assert [(entry.seq, entry.append_id, entry.frame) for entry in entries] == expected
        assert [seq for seq, _, _ in expected] == [*range(2, len(expected) + 2)]


def is_sound(path: str) -> None:
    connection = connect(path, None)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_stopped_reader_never_blocks_a_writer(another: Start, path: str) -> None:
    """A process stopped during a read blocks no writer; when it continues it still sees its snapshot."""
    store = await SqliteStore.open(path)
    (pen,) = await began(store, 1)
    reader = another("read", path)
    assert heard(reader) == "reading"
    os.kill(reader.pid, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, reader.pid, os.WSTOPPED)
    groups: list[Group] = []
    for _ in range(40):
        groups.append(pen.group(2, frame=os.urandom(100_000)))
        assert await sent(store, groups[-1:]) == [Outcome.APPENDED]
        pen.saw(groups[-1])
    os.kill(reader.pid, signal.SIGCONT)
    tell(reader)
    assert heard(reader) == "same"
    await holds_exactly(store, groups)
    await store.close()


async def test_killed_writer_leaves_whole_groups(another: Start, path: str) -> None:
    """A process killed during its commits leaves whole groups, and no other process waits for it."""
    store = await SqliteStore.open(path)
    pens = await began(store, 3)
    for pen, name in zip(pens, "abc", strict=True):
        await store.append([Pen("ns", name, key=pen.key[:-1] + b"x").begin()])
    for _ in range(5):
        process = another("append", path, "ns", 1_000_000)
        assert heard(process) == "ready"
        _, cursor = await store.events("ns", None)
        tell(process)
        events, _ = await store.events("ns", cursor, wait=30)
        assert events
        process.kill()
        await asyncio.to_thread(process.wait)
        groups = [pen.group(3) for pen in pens]
        assert await sent(store, groups) == [Outcome.APPENDED] * 3
        for pen, group in zip(pens, groups, strict=True):
            pen.saw(group)
    for name in "abc":
        (head,) = await store.heads([("ns", name)])
        assert head is not None
        assert [entry.seq for entry in await store.entries(head.row.key)] == [*range(1, head.last.seq + 1)]
    await store.close()
    is_sound(path)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize(("file", "action"), [("wal", "write"), ("wal", "sync"), ("main", "write"), ("main", "sync")])
async def test_disk_failure_is_unavailable_and_loses_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch, file: str, action: str, error: type[apsw.Error]
) -> None:
    """Wherever the disk fails, calls raise Unavailable, the store recovers, acknowledged writes are stored, and a re-
    send lands once.
    """
    monkeypatch.setattr(writer, "WAL_PAGES", 20)  # the main file is written often
    disk = BadDisk()
    store = await SqliteStore.open(path, vfs=disk.name)
    pens = await began(store, 6)
    chance = random.Random(f"{file} {action} {error}")
    groups: list[Group] = []
    unknown = 0
    for turn in range(60):
        now = [pen.group(chance.randint(1, 3), frame=os.urandom(chance.choice((10, 10_000)))) for pen in pens]
        now = now[: chance.choice((1, 6))]
        disk.fail(file, action, nth=chance.randint(1, 4), times=chance.choice((1, 1, 3, 1_000)), error=error)
        first = await sent(store, now)
        if file == "main":  # the thread copies the WAL after its answers: it takes a second job after that
            await store.purge([])
            await store.purge([])
        if turn % 10 == 0:
            await survives_a_crash(path, groups, now, first)
        disk.heal()
        again = await sent(store, now)
        unknown += first.count(None)
        for before, after in zip(first, again, strict=True):
            assert after is Outcome.ALREADY if before in LANDED else after in LANDED
        for group in now:
            next(pen for pen in pens if pen.key == group.key).saw(group)
        groups += now
        await holds_exactly(store, groups)
    assert disk.failed
    assert unknown if file == "wal" else not unknown  # copying the WAL back may fail: it holds everything
    await store.close()
    is_sound(path)
    store = await SqliteStore.open(path)
    await holds_exactly(store, groups)
    await store.close()


async def survives_a_crash(path: str, groups: list[Group], now: list[Group], answers: list[Outcome | None]) -> None:
    """After a crash here, acknowledged groups are stored, the others whole or absent; a re-send lands once."""
    copy = f"{path}-copy"
    for suffix in ("", "-wal"):
        shutil.copyfile(path + suffix, copy + suffix)
    store = await SqliteStore.open(copy)
    again = await sent(store, now)
    for before, after in zip(answers, again, strict=True):
        assert after is Outcome.ALREADY if before in LANDED else after in LANDED
    await holds_exactly(store, [*groups, *now])
    await store.close()
    is_sound(copy)


async def test_disk_failure_during_creation_is_unavailable(path: str) -> None:
    """The first write raises Unavailable wherever the disk fails, and the next one succeeds."""
    disk = BadDisk()
    store = await SqliteStore.open(f"{path}-first", vfs=disk.name)
    await store.tend()
    counted = {spot: number for spot, number in disk.counted.items() if spot[1] in {"write", "sync"}}
    await store.close()
    assert len(counted) > 3
    for (file, action), number in counted.items():
        for nth in range(1, number + 1):
            place = f"{path}-{file}-{action}-{nth}"
            disk.fail(file, action, nth, times=1_000)
            store = await SqliteStore.open(place, vfs=disk.name)
            with suppress(Unavailable):  # a failed copy of the WAL is not an error
                await store.tend()
            assert disk.failed
            disk.failed = 0
            disk.heal()
            (pen,) = await began(store, 1)
            assert await sent(store, [pen.group()]) == [Outcome.APPENDED]
            await store.close()
            is_sound(place)


async def test_disk_failure_during_close_keeps_the_wal(path: str) -> None:
    """Closing succeeds even if the WAL cannot be checkpointed: it stays, and holds everything."""
    for action in ("write", "sync"):
        disk = BadDisk()
        store = await SqliteStore.open(path + action, vfs=disk.name)
        (pen,) = await began(store, 1)
        group = pen.group(5)
        assert await sent(store, [group]) == [Outcome.APPENDED]
        disk.fail("main", action, times=1_000)
        await store.close()
        assert disk.failed
        disk.heal()
        store = await SqliteStore.open(path + action)
        await holds_exactly(store, [group])
        await store.close()


async def test_full_disk_refuses_writes_only(path: str) -> None:
    """While the disk is full, reads work and each write raises Unavailable with the reason; afterwards writes work
    again.
    """
    disk = BadDisk()
    store = await SqliteStore.open(path, vfs=disk.name)
    (pen,) = await began(store, 1)
    disk.fail("wal", "write", times=10**9, error=apsw.FullError)
    group = pen.group(2)
    for _ in range(3):
        with pytest.raises(Unavailable, match="disk is full"):
            await store.append([group])
        with pytest.raises(Unavailable, match="disk is full"):
            await store.beat([(pen.key, None)])
        assert len(await store.entries(pen.key)) == 1
    disk.heal()
    assert await sent(store, [group]) == [Outcome.APPENDED]
    await holds_exactly(store, [group])
    await store.close()
