"""The kit's faults, around any store, fail the conformance suite and differ from memory."""

from pathlib import Path

import pytest
from hypothesis.errors import Flaky

from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.testing import Clock, StoreConformance, behaves_like_memory, first_failure
from saveslot.testing.faults import FAULTS, ShowsAnotherNamespace
from tests.stores.test_conformance import TestMemory as OnMemory, TestSqlite as OnSqlite


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("sound", [OnMemory, OnSqlite])
def test_the_suite_catches(fault: type[PassingStore], sound: type[StoreConformance], tmp_path: Path) -> None:
    """A store that passes the suite fails it inside this wrapper."""

    class Broken(sound):
        async def open(self, folder: Path, clock: Clock) -> Store:
            return fault(await super().open(folder, clock))

    assert first_failure(Broken, tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_machine_catches(fault: type[PassingStore], tmp_path: Path) -> None:
    """A store inside this wrapper differs from memory within 1,000 examples."""

    async def open_two(clock: Clock) -> tuple[Store, Store]:
        sound = OnMemory()
        sound.setup_method()
        return fault(await sound.open(tmp_path, clock)), fault(await sound.open(tmp_path, clock))

    # Flaky: what one example left spoils the next when all namespaces are one.
    with pytest.raises((AssertionError, Flaky) if fault is ShowsAnotherNamespace else AssertionError):
        behaves_like_memory(open_two, examples=1000, repeatable=True)


def test_a_sound_store_fails_no_test(tmp_path: Path) -> None:
    """`first_failure` finds nothing wrong with a store that has no fault."""
    assert first_failure(OnSqlite, tmp_path) is None
