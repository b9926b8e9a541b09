"""From one store to another, log by log: entries as they are, with their numbers, ids, frames and recipes.

A session keeps its key, so that copying it again finds it, and copying it back finds the original.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from saveslot.log import Place, Query
from saveslot.moving.landing import Landing, Report, Step
from saveslot.moving.parcel import Stored
from saveslot.stores import Store

PAGE = 200


async def parcels(store: Store, namespace: str) -> AsyncIterator[Stored]:
    """Every session of a namespace, newest first."""
    after: Place | None = None
    while rows := await store.find(Query(namespace=namespace), after, PAGE):
        after = (rows[-1].created_at, rows[-1].key)
        for head in await store.heads([row.key for row in rows]):
            if head is not None:
                yield Stored(store, head)


async def count(store: Store, namespace: str) -> int:
    return sum((await store.count(Query(namespace=namespace))).states.values())


async def copied(source: Store, target: Store, namespace: str, step: Step | None = None) -> Report:
    """All sessions of a namespace, verified; deleted ones stay behind. Run again it brings what is new since."""
    report = Report()
    await Landing(target, report, verify=True, step=step).take(parcels(source, namespace))
    return report
