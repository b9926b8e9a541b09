"""PostgreSQL behaves like every other store, on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from saveslot.stack import Postgres
from saveslot.stores import Store
from saveslot.stores.postgres import PostgresStore
from saveslot.testing import Clock, StoreConformance, behaves_like_memory


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(autouse=True)
def reached(server: Postgres) -> None:
    TestPostgres.url = server.url


class TestPostgres(StoreConformance):
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await PostgresStore.open(self.url, clock, clock.uptime)


def test_postgres_behaves_like_memory(server: Postgres) -> None:
    """Two handles on one database answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        return (
            await PostgresStore.open(server.url, clock, clock.uptime),
            await PostgresStore.open(server.url, clock, clock.uptime),
        )

    behaves_like_memory(open_two, examples=40, steps=40)
