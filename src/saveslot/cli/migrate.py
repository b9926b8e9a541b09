"""`saveslot migrate`: the format of a store's tables."""

from __future__ import annotations

from typing import Annotated

from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag
from saveslot.cli.screen import line
from saveslot.errors import InvalidInput, NotFound
from saveslot.stores.findings import Checkup, checkup


async def migrate(
    *,
    apply: Annotated[bool, Flag("Bring the tables up to date; default is a dry run.")] = False,
    common: Common = COMMON,
) -> None:
    place = common.place
    store = checkup(common.url)
    if store is None or not store.TABLES:
        raise InvalidInput("--store", f"{place} has no tables to migrate")
    if apply:
        async with common.sessions(create=True) as sessions:  # opening migrates, under a lock
            await sessions.keeper.tend()
    current, known = await _formats(common, store)
    value = {"store": place, "format": current, "known": known, "pending": max(0, known - current)}
    if current > known and not common.json:
        raise InvalidInput(
            "url", f"{place} has format {current}, but this Saveslot reads only up to {known}; upgrade it"
        )
    due = f"{known - current} to apply; pass --apply" if current < known else "up to date"
    common.screen.answer(value, [line((f"{place}  ", "bold"), (f"format {current} of {known}, {due}", ""))])


async def _formats(common: Common, store: Checkup) -> tuple[int, int]:
    """The store's format, and the newest that this Saveslot knows."""
    common.require_file("--apply creates it")
    current, known = await store.formats(common.url)
    if not current and common.file is None:
        raise NotFound(f"there are no tables in {common.place} ({common.source}); --apply creates them")
    return current, known
