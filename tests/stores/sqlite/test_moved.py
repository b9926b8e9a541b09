"""A file deleted, renamed or replaced while it is open: no write to it is acknowledged and then lost."""

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
from saveslot.stores.sqlite import SqliteStore, file as sqlite_file
from saveslot.stores.sqlite.reader import Reader
from saveslot.values.log import Worker

ENDS = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a writer check the file before each commit."""
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
    """As the next process finds it."""
    async with await saveslot.open(f"sqlite:///{path}") as manager:
        return [checkpoint.name for checkpoint in await manager.history("a")]


async def test_deleted_file_is_detected_within_a_second(path: Path) -> None:
    """A write to a deleted file raises: which file, that nothing is stored, and what to do."""
    manager = await opened(path)
    deleted(path)
    start = time.monotonic()

    async def write() -> None:
        began = start
        while began < start + 1.5:
            began = time.monotonic()
            await manager.checkpoint("a", "two", {"v": 2})

    with pytest.raises(Unavailable, match=f"{path} was .*deleted.* this write is not stored.* open the store"):
        await write()
    await manager.close()
    assert left(path.parent) == []


async def test_write_after_a_pause_checks_the_file_first(path: Path) -> None:
    """A write more than a second after the last one never lands in a deleted file."""
    manager = await opened(path)
    await asyncio.sleep(1.1)
    deleted(path, ("",))
    with pytest.raises(Unavailable):
        await manager.checkpoint("a", "two", {"v": 2})
    await manager.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ends", [("",), ("-wal",), ("-shm",), ENDS])
async def test_restored_file_accepts_writes_again(path: Path, tmp_path: Path, ends: tuple[str, ...]) -> None:
    """A renamed file refuses writes; put back, it accepts them, and refused writes land once when repeated."""
    manager = await opened(path)
    moved(path, tmp_path / "away.db", ends)
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"{path}{ends[0]} was moved"):
            await manager.checkpoint("a", "two", {"v": 2})
    answers = [manager.create_session("tutor", session_id=f"s{n}") for n in range(5)]
    assert {type(outcomes) for outcomes in await asyncio.gather(*answers, return_exceptions=True)} == {Unavailable}
    moved(tmp_path / "away.db", path, ends)
    assert (await manager.checkpoint("a", "two", {"v": 2})).seq == 3
    await manager.checkpoint("a", "three", {"v": 3})
    assert await manager.count() == 1
    await manager.close()
    assert await names(path) == ["session_created", "one", "two", "three"]


@pytest.mark.usefixtures("at_once")
async def test_replacement_file_is_not_touched(path: Path, tmp_path: Path) -> None:
    """A store never writes to another file than its own, and does not remove that file's log on close."""
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


async def test_first_write_never_goes_to_another_file(path: Path, tmp_path: Path) -> None:
    """A store's first write, and every further connection, goes to the file it opened, or fails."""
    await (await opened(path)).close()
    manager = await saveslot.open(f"sqlite:///{path}")
    assert await manager.get_session("a")
    moved(path, tmp_path / "away.db")
    with pytest.raises(Unavailable):
        await manager.checkpoint("a", "two", {"v": 2})
    assert path.name not in left(tmp_path)
    await manager.close()


async def both(reader: Reader) -> list[Any]:
    """What two concurrent reads return, each through its own connection."""
    one, other = threading.Event(), threading.Event()

    def looked(connection: apsw.Connection, mine: threading.Event, theirs: threading.Event) -> str:
        mine.set()
        theirs.wait(2)
        return connection.filename

    reads = (reader.read(lambda c: looked(c, one, other)), reader.read(lambda c: looked(c, other, one)))
    return await asyncio.gather(*reads, return_exceptions=True)


async def test_readers_never_switch_files(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reader opens the file that the first has open, whatever the working directory, or fails."""
    monkeypatch.chdir(tmp_path)
    sqlite_file.created(path.name, None).close()
    for gone in (False, True):
        reader = Reader(path.name, None)
        await reader.open()
        with monkeypatch.context() as patch:
            patch.chdir("/")
            if gone:
                moved(path, tmp_path / "away.db")
            first, second = sorted(await both(reader), key=lambda answer: isinstance(answer, Unavailable))
        assert first == str(path)
        assert isinstance(second, Unavailable) if gone else second == first
        reader.close()
    assert path.name not in left(tmp_path)


@pytest.mark.usefixtures("at_once")
async def test_relative_path_survives_chdir(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After chdir, before or after the first write, writes go to the file that was opened."""
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
async def test_heartbeat_to_a_deleted_file_is_refused(path: Path) -> None:
    """A heartbeat into a deleted file is refused like any other write."""
    store = await SqliteStore.open(str(path))
    worker = Worker(b"w" * 16, "w", 1_000_000, first=True)
    assert all(await store.beat((), worker))
    deleted(path)
    with pytest.raises(Unavailable, match="deleted"):
        await store.beat((), worker)
    await store.close()


async def test_file_is_checked_once_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many writes are made or refused, the paths are checked about once a second."""
    manager = await opened(path)
    items: list[str] = []
    lost = sqlite_file.Files.lost

    def counted(files: sqlite_file.Files) -> str:
        items.append("once")
        return lost(files)

    monkeypatch.setattr(sqlite_file.Files, "lost", counted)
    start = time.monotonic()
    while time.monotonic() < start + 1.2:
        await manager.checkpoint("a", "c", {"v": 1})
    assert 1 <= len(items) <= time.monotonic() - start + 1
    deleted(path)
    while time.monotonic() < start + 2.4:
        await asyncio.gather(*(manager.create_session("t") for _ in range(10)), return_exceptions=True)
    assert len(items) <= time.monotonic() - start + 2
    await manager.close()


@pytest.mark.usefixtures("at_once")
async def test_inaccessible_folder_is_not_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dropped its rights to the folder is not refused for that."""
    manager = await opened(path)

    def refused(_: object) -> os.stat_result:
        raise PermissionError

    with monkeypatch.context() as patch:  # root may look everywhere, so no folder is closed here
        patch.setattr(os, "stat", refused)
        await manager.checkpoint("a", "two", {"v": 2})
    await manager.close()
    assert await names(path) == ["session_created", "one", "two"]
