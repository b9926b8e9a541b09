"""A file that is deleted, renamed or replaced while a store has it open: nothing is acknowledged that nobody finds."""

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import saveslot
from saveslot import SessionManager, Unavailable
from saveslot.log import Worker
from saveslot.stores import sqlite_file
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite_reader import Reader

ENDS = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer looks before each commit."""
    monkeypatch.setattr(sqlite_file, "LOOK", 0.0)


async def opened(path: Path) -> SessionManager:
    manager = await saveslot.open(f"sqlite:///{path}")
    await manager.create_session("tutor", session_id="a")
    await manager.checkpoint("a", "one", {"v": 1})
    return manager


def moved(path: Path, to: Path, ends: tuple[str, ...] = ENDS) -> None:
    for end in ends:
        Path(f"{path}{end}").rename(f"{to}{end}")


def deleted(path: Path, ends: tuple[str, ...] = ENDS) -> None:
    for end in ends:
        Path(f"{path}{end}").unlink()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def names(path: Path) -> list[str]:
    """As whoever comes next finds it."""
    async with await saveslot.open(f"sqlite:///{path}") as manager:
        return [made.name for made in await manager.history("a")]


async def test_a_deleted_file_is_noticed_within_a_second(path: Path) -> None:
    """Who writes into a deleted file is told in time: which file, that nothing is stored, and what to do."""
    manager = await opened(path)
    deleted(path)
    start = time.monotonic()

    async def write() -> None:
        while time.monotonic() < start + 1.5:
            await manager.checkpoint("a", "two", {"v": 2})

    with pytest.raises(Unavailable, match=f"{path} was .*deleted.* nothing of this write is stored.* open the store"):
        await write()
    await manager.close()
    assert left(path.parent) == []


async def test_who_did_not_write_for_a_while_is_told_at_once(path: Path) -> None:
    """A write that comes more than a second after the last one never lands in a file that is gone."""
    manager = await opened(path)
    await asyncio.sleep(1.1)
    deleted(path, ("",))
    with pytest.raises(Unavailable):
        await manager.checkpoint("a", "two", {"v": 2})
    await manager.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ends", [("",), ("-wal",), ("-shm",), ENDS])
async def test_what_is_put_back_holds_everything_once(path: Path, tmp_path: Path, ends: tuple[str, ...]) -> None:
    """Renamed, a file refuses writes; put back, it takes them, and those that were refused land once when repeated."""
    manager = await opened(path)
    moved(path, tmp_path / "away.db", ends)
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"{path}{ends[0]} was moved"):
            await manager.checkpoint("a", "two", {"v": 2})
    answers = [manager.create_session("tutor", session_id=f"s{n}") for n in range(5)]
    assert {type(told) for told in await asyncio.gather(*answers, return_exceptions=True)} == {Unavailable}
    moved(tmp_path / "away.db", path, ends)
    assert (await manager.checkpoint("a", "two", {"v": 2})).seq == 3
    await manager.checkpoint("a", "three", {"v": 3})
    assert await manager.count() == 1
    await manager.close()
    assert await names(path) == ["session_created", "one", "two", "three"]


@pytest.mark.usefixtures("at_once")
async def test_the_file_that_took_its_place_is_left_alone(path: Path, tmp_path: Path) -> None:
    """A store never writes to another file than its own, nor does it take that one's log away when it closes."""
    manager = await opened(path)
    moved(path, tmp_path / "away.db")
    other = await opened(path)
    with pytest.raises(Unavailable, match="replaced"):
        await manager.checkpoint("a", "two", {"v": 2})
    await other.checkpoint("a", "theirs", {"v": 3})
    await manager.close()
    await other.checkpoint("a", "theirs too", {"v": 4})
    shutil.copy(path, tmp_path / "copy.db")
    shutil.copy(f"{path}-wal", tmp_path / "copy.db-wal")
    assert await names(tmp_path / "copy.db") == ["session_created", "one", "theirs", "theirs too"]
    await other.close()
    assert await names(tmp_path / "away.db") == ["session_created", "one"]


async def test_who_has_only_read_writes_to_no_other_file(path: Path, tmp_path: Path) -> None:
    """The first write of a store, and every further connection, is to the file that it was opened with, or to none."""
    await (await opened(path)).close()
    manager = await saveslot.open(f"sqlite:///{path}")
    assert await manager.get_session("a")
    moved(path, tmp_path / "away.db")
    with pytest.raises(Unavailable):
        await manager.checkpoint("a", "two", {"v": 2})
    assert path.name not in left(tmp_path)
    await manager.close()


async def both(reader: Reader) -> list[Any]:
    """What two reads at once find in the files that they read, each through a connection of its own."""
    one, other = threading.Event(), threading.Event()

    def looked(connection: apsw.Connection, mine: threading.Event, theirs: threading.Event) -> str:
        mine.set()
        theirs.wait(2)
        return connection.filename

    reads = (reader.read(lambda c: looked(c, one, other)), reader.read(lambda c: looked(c, other, one)))
    return await asyncio.gather(*reads, return_exceptions=True)


async def test_readers_never_read_another_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reader opens the file that the first one has open, wherever we are by now, or none."""
    monkeypatch.chdir(tmp_path)
    for gone in (False, True):
        reader = Reader(path.name, None)
        await reader.open()
        with monkeypatch.context() as patch:
            patch.chdir("/")
            if gone:
                moved(path, tmp_path / "away.db")
            first, second = sorted(await both(reader), key=lambda told: isinstance(told, Unavailable))
        assert first == str(path)
        assert isinstance(second, Unavailable) if gone else second == first
        reader.close()
    assert path.name not in left(tmp_path)


@pytest.mark.usefixtures("at_once")
async def test_a_relative_path_stays_where_it_was_opened(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who goes to another folder, before or after the first write, writes to the file that was opened."""
    (tmp_path / "elsewhere").mkdir()
    for first in ("read", "write"):
        monkeypatch.chdir(tmp_path)
        manager = await (opened(Path(path.name)) if first == "write" else saveslot.open(f"sqlite:///{path.name}"))
        monkeypatch.chdir(tmp_path / "elsewhere")
        await manager.create_session("tutor", session_id=first)
        await manager.checkpoint(first, "two", {"v": 2})
        await manager.close()
    assert left(tmp_path / "elsewhere") == []
    async with await saveslot.open(f"sqlite:///{path}") as manager:
        assert {session.session_id for session in await manager.find()} == {"a", "read", "write"}


@pytest.mark.usefixtures("at_once")
async def test_a_worker_whose_file_is_gone_cannot_say_that_it_lives(path: Path) -> None:
    """A heartbeat into a deleted file is refused like any other write."""
    store = await SqliteStore.open(str(path))
    worker = Worker(b"w" * 16, "w", 1_000_000, first=True)
    assert all(await store.beat((), worker))
    deleted(path)
    with pytest.raises(Unavailable, match="deleted"):
        await store.beat((), worker)
    await store.close()


async def test_the_file_is_asked_for_once_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is written, and refused, the paths are looked at about once a second."""
    manager = await opened(path)
    asked: list[str] = []
    lost = sqlite_file.Files.lost

    def counted(files: sqlite_file.Files) -> str:
        asked.append("once")
        return lost(files)

    monkeypatch.setattr(sqlite_file.Files, "lost", counted)
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        await manager.checkpoint("a", "c", {"v": 1})
    assert 1 <= len(asked) <= 2
    deleted(path)
    while time.monotonic() < end + 1.2:
        await asyncio.gather(*(manager.create_session("t") for _ in range(10)), return_exceptions=True)
    assert len(asked) <= 4
    await manager.close()


@pytest.mark.usefixtures("at_once")
async def test_a_folder_that_may_not_be_looked_into_says_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may no longer look where the file is (it gave up its rights) is not refused for that."""
    manager = await opened(path)

    def refused(_: object) -> os.stat_result:
        raise PermissionError

    with monkeypatch.context() as patch:  # root may look everywhere, so no folder is closed here
        patch.setattr(os, "stat", refused)
        await manager.checkpoint("a", "two", {"v": 2})
    await manager.close()
    assert await names(path) == ["session_created", "one", "two"]
