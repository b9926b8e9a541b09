from pathlib import Path

import pytest

from saveslot.stores.sqlite import SqliteStore
from saveslot.testing import Clock, behaves_like_memory


def sqlite(folder: Path):
    async def open_two(clock: Clock) -> tuple[SqliteStore, SqliteStore]:
        path, uptime = str(folder / "store.db"), lambda: ("this boot", clock.uptime())
        return await SqliteStore.open(path, clock, uptime=uptime), await SqliteStore.open(path, clock, uptime=uptime)

    return open_two


# Two halves, so that two cores share the work.
@pytest.mark.parametrize("half", [1, 2])
def test_sqlite_behaves_like_memory(half: int, tmp_path: Path) -> None:
    """Two handles on one SQLite file answer every sequence of steps as memory does."""
    behaves_like_memory(sqlite(tmp_path), examples=80, steps=50)


@pytest.mark.long
def test_sqlite_behaves_like_memory_for_long(tmp_path: Path) -> None:
    """The same for many more and longer sequences."""
    behaves_like_memory(sqlite(tmp_path), examples=3000, steps=100)
