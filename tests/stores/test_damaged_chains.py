"""A damaged `base` ends the chain that it is part of: no read runs in circles, whatever the store holds."""

from __future__ import annotations

import asyncio

import pytest

from saveslot import Corrupt
from saveslot.stores import open_store
from saveslot.values.log import Wanted
from tests.harness.damage import Plant, planted


@pytest.fixture(params=["sqlite", "postgres", "valkey"], scope="module")
def plant(request, tmp_path_factory) -> Plant:
    return planted(request, tmp_path_factory)


async def followed(url: str, seq: int) -> list[int]:
    store = await open_store(url)
    try:
        [head] = await store.heads([("default", "second")])
        assert head is not None
        async with asyncio.timeout(60):
            return [entry.seq for entry in await store.entries(head.row.key, Wanted([], chain=seq))]
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("bases", "expected"),
    [
        ({4: 3, 3: 2}, [2, 3, 4]),
        ({4: 4}, [4]),
        ({4: 3, 3: 4}, [3, 4]),
        ({4: 3, 3: 1 << 40}, [3, 4]),
        ({4: 3, 3: -1}, None),
    ],
    ids=["sound", "itself", "a circle", "beyond the end", "negative"],
)
def test_base_that_is_not_earlier_ends_a_chain(plant: Plant, bases: dict[int, int], expected: list[int] | None) -> None:
    """The entry with it still belongs to the chain; one that no entry can have is `Corrupt`."""
    plant.restore()
    table, column = ("entries", "rest.base") if plant.kind == "valkey" else ("checkpoints", "base")
    for seq, base in bases.items():
        assert plant.damage(table, column, base, seq)
    if expected is None:
        with pytest.raises(Corrupt, match="base"):
            asyncio.run(followed(plant.url, 4))
    else:
        assert asyncio.run(followed(plant.url, 4)) == expected
