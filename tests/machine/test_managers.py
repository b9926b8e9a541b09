"""Two managers on one store do what the plain model does, on every backend."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from saveslot import Conflict, NotFound, SaveslotError, slot
from saveslot.slot import Draft, Slot, Turns
from saveslot.stores.sqlite import SqliteStore
from saveslot.testing.managers import ManagerMachine

QUICK = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],  # shrinking may take longer than a test may: the blob leads there
    print_blob=True,
)
LONG = settings(QUICK, max_examples=1500, stateful_step_count=100)


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


class Lost(Turns):
    """A cancelled waiter counts until it has heard of that: who comes in between waits for ever."""

    def give(self):
        self.wanted -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def __aenter__(self):
        self.wanted += 1
        if self.wanted > 1:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self.wanted -= 1
                else:
                    self.give()
                raise


class Kept(Turns):
    """One who is cancelled when the turn is its own already does not hand it on."""

    async def __aenter__(self):
        self.wanted += 1
        if self.wanted > 1:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self.wanted -= 1
                raise


appended = Slot.append


async def ahead(self, draft):
    """Who leaves takes its write for landed: the slot moves on."""
    try:
        return await appended(self, draft)
    except asyncio.CancelledError:
        self.at, self._pending = draft.at, None
        raise


async def forgotten(self, draft):
    """A write whose sender left is not remembered."""
    try:
        return await appended(self, draft)
    except asyncio.CancelledError:
        self._pending = None
        raise


AT_ONCE = {
    "a turn lost with a cancelled waiter": (slot, "Turns", Lost),
    "a turn that a cancelled waiter keeps": (slot, "Turns", Kept),
    "a state ahead of the log": (Slot, "append", ahead),
    "a write that left no doubt": (Slot, "append", forgotten),
}


@pytest.mark.parametrize("fault", AT_ONCE)
def test_the_machine_sees_what_goes_wrong_between_callers(fault, monkeypatch):
    """Faults that need several callers at once, of whom some leave at the wrong moment, are met as well."""
    monkeypatch.setattr(*AT_ONCE[fault])
    monkeypatch.setattr(ManagerMachine, "patience", 1.0)
    with pytest.raises((AssertionError, SaveslotError)):
        crowded()


def crowded() -> None:
    for first in range(0, 1000, 40):
        machine = ManagerMachine()
        try:
            machine.create(0, "a", {})
            for seed in range(first, first + 40):
                machine.together(0, Random(seed), seed % 4)
        finally:
            machine.runner.close()
