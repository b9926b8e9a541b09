"""A store behind a server does what every store does."""

from __future__ import annotations

from pathlib import Path

import pytest

from saveslot.stores import Store
from saveslot.stores.http import HttpStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing import Clock, StoreConformance


class TestHttp(StoreConformance):
    """Two servers on one SQLite file, and a client at each."""

    @pytest.fixture(autouse=True)
    def _served(self, serving):
        self.serving = serving
        yield
        serving.stop()

    async def open(self, folder: Path, clock: Clock) -> Store:
        def opened():
            return SqliteStore.open(str(folder / "store.db"), clock, uptime=lambda: ("this boot", clock.uptime()))

        return await HttpStore.open(self.serving.serve(opened))
