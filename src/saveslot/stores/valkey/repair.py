"""Rebuilds the indexes of a Valkey store from its sessions."""

from __future__ import annotations

from saveslot.stores.findings import Finding
from saveslot.stores.valkey import ValkeyStore
from saveslot.values.words import many


async def repair(url: str) -> Finding | None:
    """Add what is missing in the indexes. None if nothing is."""
    store = await ValkeyStore.open(url)
    try:
        wrong = await store.relist(await store.keys(), apply=True)
    finally:
        await store.close()
    return Finding("repair", f"{many(wrong, 'session')} listed again") if wrong else None
