"""A store behind a server does what every store does."""

from __future__ import annotations

from pathlib import Path

import pytest

from saveslot.stores import Store
from saveslot.stores.http import HttpStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing import Clock, StoreConformance, behaves_like_memory


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


@pytest.mark.long
class TestHttpOnPostgres(StoreConformance):
    """The same on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def _served(self, serving, database):
        self.serving, self.url = serving, database.url
        yield
        serving.stop()

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await HttpStore.open(self.serving.serve(lambda: PostgresStore.open(self.url, clock, clock.uptime)))


@pytest.mark.long
def test_http_behaves_like_memory(serving, tmp_path):
    """Two clients at two servers on one SQLite file answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        serving.stop()  # those of the example before
        path = str(tmp_path / "store.db")

        def opened():
            return SqliteStore.open(path, clock, uptime=lambda: ("this boot", clock.uptime()))

        return await HttpStore.open(serving.serve(opened)), await HttpStore.open(serving.serve(opened))

    behaves_like_memory(open_two, examples=40, steps=40)
