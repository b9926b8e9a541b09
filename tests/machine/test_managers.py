"""Two managers on one store do what the plain model does, on every backend."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from saveslot import Corrupt
from saveslot.slot import Slot
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing.managers import ManagerMachine

QUICK = settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=5000, stateful_step_count=100)


@pytest.fixture(params=["memory", "sqlite"])
def machine(request, tmp_path) -> type[ManagerMachine]:
    return ManagerMachine if request.param == "memory" else on_sqlite(tmp_path)


def on_sqlite(folder: Path) -> type[ManagerMachine]:
    fresh = count()

    class OnSqlite(ManagerMachine):
        async def open_stores(self):
            path = str(folder / f"{next(fresh)}.db")
            return await SqliteStore.open(path), await SqliteStore.open(path)

    return OnSqlite


def test_managers_follow_the_model(machine):
    """Whatever two managers and their callers do, in any order, every entry is what the model says."""
    run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.long
def test_managers_follow_the_model_for_long(machine):
    """The same, over many more histories."""
    run_state_machine_as_test(machine, settings=LONG)


def test_the_machine_sees_a_rollback_that_prolongs_the_wrong_range(monkeypatch):
    """A planted fault in how a state goes on after a cold read is caught."""
    cold = Slot._cold  # noqa: SLF001  (the place to plant it)

    async def wrong(self, seq, kinds):
        state, frames = await cold(self, seq, kinds)
        state.tip = state.recipe.ranges[-1][1] if state.recipe.ranges else 0
        return state, frames

    monkeypatch.setattr(Slot, "_cold", wrong)
    with pytest.raises((Corrupt, AssertionError)):
        run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=500, phases=[Phase.generate]))
