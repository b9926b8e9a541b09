"""From one store to another, log by log: entries as they are, with their numbers, ids, frames and recipes.

A session keeps its key, so that copying it again finds it, and copying it back finds the original.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from saveslot.log import Place, Query, Row
from saveslot.moving.landing import Landing, Report, Step
from saveslot.moving.parcel import Problem, Stored
from saveslot.stores import Store

PAGE = 200


async def parcels(store: Store, namespace: str) -> AsyncIterator[Stored | Problem]:
    """Every session of a namespace, newest first; one whose log is gone is told."""
    after: Place | None = None
    while rows := await store.find(Query(namespace=namespace), after, PAGE):
        after = (rows[-1].created_at, rows[-1].key)
        for row, head in zip(rows, await store.heads([row.key for row in rows]), strict=True):
            if head is not None:
                yield Stored(store, head)
            elif await _listed(store, row):
                yield Problem(f"session {row.session_id}", "has no entries any more; nothing was copied")


async def _listed(store: Store, row: Row) -> bool:
    """False for one that was deleted meanwhile."""
    found = await store.find(Query(namespace=row.namespace, prefix=row.session_id), (row.created_at + 1, b""), PAGE)
    return row.key in {one.key for one in found} and (await store.heads([row.key]))[0] is None


async def count(store: Store, namespace: str) -> int:
    return sum((await store.count(Query(namespace=namespace))).states.values())


async def copied(source: Store, target: Store, namespace: str, step: Step | None = None) -> Report:
    """All sessions of a namespace, verified; deleted ones stay behind. Run again it brings what is new since."""
    report = Report()
    await Landing(target, report, verify=True, step=step).take(parcels(source, namespace))
    return report
