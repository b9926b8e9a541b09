from pathlib import Path

from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing import Clock, StoreConformance


class TestMemory(StoreConformance):
    def setup_method(self) -> None:
        self.stores: dict[Path, Store] = {}

    async def open(self, folder: Path, clock: Clock) -> Store:
        return self.stores.setdefault(folder, MemoryStore(clock, clock.uptime))


class TestSqlite(StoreConformance):
    async def open(self, folder: Path, clock: Clock) -> Store:
        return await SqliteStore.open(str(folder / "store.db"), clock, uptime=lambda: ("this boot", clock.uptime()))
