"""Copy sessions from one store to another, entry by entry, with their numbers, ids, frames and recipes.

A session keeps its key, so copying it again finds the copy, and copying it back finds the original.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from saveslot.moving.loader import Loader, Report, Step
from saveslot.moving.parcel import Problem, StoredParcel
from saveslot.stores import Store
from saveslot.values.log import Place, Query, Row

PAGE = 200


async def parcels(store: Store, namespace: str) -> AsyncIterator[StoredParcel | Problem]:
    """Every session of a namespace, newest first; a session whose log is gone is a problem."""
    after: Place | None = None
    while rows := await store.find(Query(namespace=namespace), after, PAGE):
        after = (rows[-1].created_at, rows[-1].key)
        for row, head in zip(rows, await store.heads([row.key for row in rows]), strict=True):
            if head is not None:
                yield StoredParcel(store, head)
            elif await _listed(store, row):
                yield Problem(f"session {row.session_id}", "has lost its entries; nothing was copied")


async def _listed(store: Store, row: Row) -> bool:
    """False if the session was deleted meanwhile."""
    rows = await store.find(Query(namespace=row.namespace, prefix=row.session_id), (row.created_at + 1, b""), PAGE)
    return row.key in {one.key for one in rows} and (await store.heads([row.key]))[0] is None


async def count_sessions(store: Store, namespace: str) -> int:
    return sum((await store.count(Query(namespace=namespace))).states.values())


async def copy_sessions(source: Store, target: Store, namespace: str, step: Step | None = None) -> Report:
    """Copy and verify all sessions of a namespace except deleted ones. A second run copies what is new since."""
    report = Report()
    await Loader(target, report, verify=True, step=step).load(parcels(source, namespace))
    return report
