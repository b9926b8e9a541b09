"""Two owners, manual clocks, lost answers: each session has one owner, and nothing is doubled."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from saveslot import SaveslotError
from saveslot.session import draft
from saveslot.session.change import Passerby
from saveslot.session.draft import Draft
from saveslot.session.held import Held
from saveslot.session.log import Log
from saveslot.session.retries import Calls
from saveslot.session.steps import Journal
from saveslot.stores.sqlite import SqliteStore
from saveslot.values.kinds import Kind
from tests.harness.owners import Boom, OwnersMachine

QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],  # shrinking may take longer than a test may: the blob leads there
    print_blob=True,
)
LONG = settings(QUICK, max_examples=1500, stateful_step_count=100)


def on_sqlite(folder: Path) -> type[OwnersMachine]:
    fresh = count()

    class OnSqlite(OwnersMachine):
        async def open_stores(self, clock):
            path = str(folder / f"{next(fresh)}.db")
            uptime = lambda: ("this boot", clock.uptime())  # noqa: E731
            return [await SqliteStore.open(path, clock, uptime=uptime) for _ in range(2)]

    return OnSqlite


def test_owners_follow_the_model():
    """Through holds, claims, deaths, returns and outside changes, each session has one owner and matches the model."""
    run_state_machine_as_test(OwnersMachine, settings=QUICK)


def test_owners_follow_the_model_on_sqlite(tmp_path):
    """The same on two handles of one file."""
    run_state_machine_as_test(on_sqlite(tmp_path), settings=settings(QUICK, max_examples=20))


@pytest.mark.long
def test_owners_follow_the_model_for_long(tmp_path):
    """The same, over many more histories."""
    run_state_machine_as_test(OwnersMachine, settings=LONG)
    run_state_machine_as_test(on_sqlite(tmp_path), settings=settings(LONG, max_examples=300))


async def nothing(*_):
    return None


def released(self, note=None, *, release=Draft.release):
    release(self, None)


PLANTED = {
    "errors that are forgotten": (Draft, "release", released),
    "cancellations that are forgotten": (Held, "heard", nothing),
    "fences that do not rise": (Draft, "raise_fence", lambda _: None),
    "a lease kept after the end": (draft, "ENDING_KINDS", frozenset({Kind.TOMBSTONE})),
    "others save in what is held": (Passerby, "_free", nothing),
    "writes in doubt that are forgotten": (Log, "settle", nothing),
    "creations in doubt that are forgotten": (Calls, "take", lambda *_: None),
    "steps that are forgotten": (Journal, "find", Journal.new),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_machine_catches(fault, monkeypatch):
    """A planted fault is caught within a few hundred histories."""
    monkeypatch.setattr(*PLANTED[fault])
    quick = settings(QUICK, max_examples=500, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises((AssertionError, SaveslotError, Boom)):
        run_state_machine_as_test(OwnersMachine, settings=quick)


def test_machine_catches_a_write_after_a_release(monkeypatch):
    """A planted fault, a call queued after a release that still writes, is caught by concurrent callers."""
    monkeypatch.setattr(Held, "meet", nothing)
    with pytest.raises(AssertionError):
        crowded(300)


def test_concurrent_callers_of_a_holder():
    """Whichever is cancelled, and when, all get an answer, each write lands once, and none after a release."""
    crowded(100)


def crowded(times: int) -> None:
    machine = OwnersMachine()
    try:
        machine.begin(Random(0))
        for seed in range(times):
            if all(grip.over for grip in machine.grips):
                machine.hold(0, Random(seed))
            machine.grips = [grip for grip in machine.grips if not grip.over]
            machine.together(Random(seed))
    finally:
        machine.teardown()
