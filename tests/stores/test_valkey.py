"""Valkey alone behaves like every other store, on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from saveslot.log import Query
from saveslot.stack import Valkey
from saveslot.stores import Store
from saveslot.stores.valkey import ValkeyStore
from saveslot.stores.valkey_server import READS, scripts
from saveslot.testing import Clock, StoreConformance, behaves_like_memory


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(autouse=True)
def reached(server: Valkey) -> None:
    TestValkey.url = server.url


class TestValkey(StoreConformance):
    erases = False  # its sessions end by themselves
    url: ClassVar[str]

    async def open(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002  (a server has no folder)
        return await ValkeyStore.open(self.url, 3600, clock, clock.uptime)


def test_the_script_knows_every_filter() -> None:
    """A field that a query gains later is not passed over in silence."""
    script, _ = scripts()[READS]
    for name in Query.__struct_fields__:
        assert f"q.{name} ".encode() in script or f"q.{name})".encode() in script, name


def test_valkey_behaves_like_memory(server: Valkey) -> None:
    """Two handles on one server answer every sequence of steps as memory does."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        return (
            await ValkeyStore.open(server.url, 3600, clock, clock.uptime),
            await ValkeyStore.open(server.url, 3600, clock, clock.uptime),
        )

    behaves_like_memory(open_two, examples=30, steps=40)
