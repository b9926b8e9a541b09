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

from saveslot import Conflict, NotFound, SaveslotError
from saveslot.session import log
from saveslot.session.draft import Draft
from saveslot.session.log import Log
from saveslot.stores.sqlite import SqliteStore
from tests.harness.managers import ManagerMachine
from tests.harness.mutants import mutant

QUICK = settings(
    max_examples=90,
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
    """Whatever two managers and their callers do, in any order, every entry equals the model's."""
    run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.long
def test_managers_follow_the_model_for_long(machine):
    """The same, over many more histories."""
    run_state_machine_as_test(machine, settings=LONG)


def test_machine_catches_a_stale_log(monkeypatch):
    """A planted fault, a log that never follows other managers' writes, is caught."""
    monkeypatch.setattr(Log, "meet", lambda *_: None)
    with pytest.raises(
        (Conflict, NotFound, AssertionError, ValueError)
    ):  # its end may be before what it is asked to reach
        run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=500, phases=[Phase.generate]))


def test_machine_catches_a_rollback_that_restores_nothing(monkeypatch):
    """A planted fault, a rollback that restores nothing, is caught."""
    rollback = Draft.rollback

    def wrong(self, name, target, metadata):
        older = target and msgspec.structs.replace(target, recipe=b"", digest=b"")
        rollback(self, name, older, metadata)

    monkeypatch.setattr(Draft, "rollback", wrong)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=500, phases=[Phase.generate]))


# A cancelled waiter counts until its task has run: the next caller waits forever.
LOST = (
    ("                return\n            self.wanted -= 1", "                return\n            pass"),
    ("elif turn in self._waiting:\n                self._waiting.remove(turn)\n", "else:\n"),
)
# A waiter that is cancelled when the turn is already its own does not pass it on.
KEPT = (
    (
        "if not turn.cancelled():  # this waiter had its turn already\n                self.give()",
        "if not turn.cancelled():\n                self.wanted -= 1",
    ),
)

sent = Log.send


async def ahead(self, draft, *call):
    """A caller that leaves takes its write for landed: the log moves on."""
    try:
        return await sent(self, draft, *call)
    except asyncio.CancelledError:
        self.at, self._pending = draft.at, None
        raise


async def forgotten(self):
    """What was sent with an unknown outcome is not sent again."""
    self._pending = None


AT_ONCE = {
    "a turn lost with a cancelled waiter": LOST,
    "a turn that a cancelled waiter keeps": KEPT,
    "a state ahead of the log": (Log, "send", ahead),
    "a write in doubt that is forgotten": (Log, "settle", forgotten),
}


@pytest.mark.parametrize("fault", AT_ONCE)
def test_machine_catches_faults_between_callers(fault, monkeypatch, tmp_path):
    """Faults that need several concurrent callers, some of them cancelled at the wrong moment, are caught too."""
    if isinstance(AT_ONCE[fault][0], tuple):
        with mutant(tmp_path, "session/log.py", *AT_ONCE[fault]) as turns:
            monkeypatch.setattr(log, "Turns", turns.Turns)
    else:
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
