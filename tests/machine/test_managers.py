"""Two managers on one store do what the plain model does, on every backend."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from saveslot import Conflict, NotFound
from saveslot.slot import Draft, Slot
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


def test_the_machine_sees_a_manager_that_trusts_what_it_knew(monkeypatch):
    """A planted fault, a slot that never follows what others wrote, is caught."""
    monkeypatch.setattr(Slot, "meet", lambda *_: None)
    with pytest.raises((Conflict, NotFound, AssertionError)):
        run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=500, phases=[Phase.generate]))


def test_the_machine_sees_data_that_is_not_the_newest(monkeypatch):
    """A planted fault, a rollback that restores nothing, is caught."""
    rollback = Draft.rollback

    def wrong(self, name, target, metadata):
        older = target and msgspec.structs.replace(target, recipe=b"", digest=b"")
        rollback(self, name, older, metadata)

    monkeypatch.setattr(Draft, "rollback", wrong)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=500, phases=[Phase.generate]))
