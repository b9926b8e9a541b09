"""A WAL is made longer ahead of its commits, and what stands behind the last of them is nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from saveslot.log import Outcome
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite_room import Room
from saveslot.testing import Pen


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


def size(path: str) -> int:
    return Path(path + "-wal").stat().st_size


async def written(store: SqliteStore, pen: Pen, many: int, path: str) -> list[int]:
    """How long the WAL was after each of so many entries."""
    sizes: list[int] = []
    for _ in range(many):
        [verdict] = await store.append([group := pen.group()])
        assert verdict.outcome is Outcome.APPENDED
        pen.saw(group)
        sizes.append(size(path))
    return sizes


def ends_in_zeros(path: str) -> bool:
    return Path(path + "-wal").read_bytes().endswith(bytes(8 * 4096))


async def begun(store: SqliteStore) -> Pen:
    pen = Pen("ns", "a")
    await store.append([first := pen.begin()])
    pen.saw(first)
    return pen


async def test_most_commits_find_room(path: str) -> None:
    """The file grows with one commit in many, not with each."""
    store = await SqliteStore.open(path)
    sizes = await written(store, await begun(store), 200, path)
    await store.close()
    assert len(set(sizes[50:])) <= 10


async def test_what_was_laid_is_no_frame(path: str, tmp_path: Path) -> None:
    """The files as a crash would leave them, with zeros behind the last commit, hold every entry and nothing else."""
    store = await SqliteStore.open(path)
    pen = await begun(store)
    await written(store, pen, 60, path)
    for end in ("", "-wal"):
        shutil.copy(path + end, f"{tmp_path}/copy.db{end}")
    assert ends_in_zeros(f"{tmp_path}/copy.db")
    copy = await SqliteStore.open(f"{tmp_path}/copy.db")
    assert [entry.seq for entry in await copy.entries(pen.key)] == list(range(1, pen.seq + 1))
    await written(copy, Pen("ns", "a", pen.key, pen.seq, pen.prev), 60, f"{tmp_path}/copy.db")
    await copy.close()
    await store.close()
    assert apsw.Connection(f"{tmp_path}/copy.db").pragma("integrity_check") == "ok"


async def test_two_stores_of_one_file_lay_room_for_each_other(path: str) -> None:
    """Each writes where the other made room, turn by turn; nothing is overwritten, also behind a WAL that was cut."""
    one, two = await SqliteStore.open(path), await SqliteStore.open(path)
    pen = await begun(one)
    for store in (one, two, one, two):
        await written(store, pen, 40, path)
        apsw.Connection(path).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert [entry.seq for entry in await one.entries(pen.key)] == list(range(1, pen.seq + 1))
    await one.close()
    await two.close()
    assert apsw.Connection(path).pragma("integrity_check") == "ok"


def test_where_no_room_can_be_laid_none_is_asked_for() -> None:
    """A file that cannot be written to is SQLite's affair."""
    room = Room()
    assert room.enough < 16
    room.lay(apsw.Connection(":memory:"), 16)
    assert room.enough >= 1 << 40
