"""Shared by copy, `export --all` and import: opening a store, the keys, and the final report."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

from saveslot import codec
from saveslot.cli.common import Common
from saveslot.cli.screen import note
from saveslot.moving.loader import Report
from saveslot.moving.parcel import Problem
from saveslot.opening import encryption_keys
from saveslot.stores import Store, open_store
from saveslot.values.codes import FAILURE
from saveslot.values.words import many

# Problems listed; --json has all.
SHOWN = 50


def answer(common: Common, report: Report, how: str) -> None:
    """Print the report of a transfer; exit 1 if something was left out."""
    value = {
        "sessions": report.landed,
        "already": report.already,
        "replaced": report.replaced,
        "entries": report.entries,
        "problems": [problem._asdict() for problem in report.problems],
    }
    common.screen.answer(value, _summary(report, how))
    end(common, report.problems)


def _summary(report: Report, how: str) -> Iterator[str]:
    text = f"{many(len(report.landed), 'session')}, {many(report.entries, 'entry')} {how}"
    if report.already:
        text += f", {many(report.already, 'session')} {'was' if report.already == 1 else 'were'} already there"
    if report.replaced:
        text += f", {many(len(report.replaced), 'old copy')} deleted (the source deleted and recreated the session)"
    yield text


def end(common: Common, problems: list[Problem]) -> None:
    """List the problems and exit 1, if there are any."""
    if not problems:
        return
    if not common.json:
        for problem in problems[:SHOWN]:
            note(f"saveslot: {problem.what}: {problem.reason}")
        if len(problems) > SHOWN:
            note(f"saveslot: and {len(problems) - SHOWN:,} more; --json lists them all")
    raise SystemExit(FAILURE)


def keyring() -> codec.Keyring | None:
    """The keys from the environment or `saveslot.toml`."""
    keys = encryption_keys()
    return None if keys is None else codec.Keyring.of(keys)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    store = await open_store(url, patient=False)
    try:
        yield store
    finally:
        await store.close()
