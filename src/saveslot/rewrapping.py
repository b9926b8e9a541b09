"""Another key for sealed sessions: only the wrap in front of a row's body changes, never a payload, never the log.

So whoever holds a session notices nothing: no entry is written, and a body that its holder changed meanwhile is left as
it is and looked at again. A session is done or not; killed half-way, the next call goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from saveslot.codec.cipher import Body
from saveslot.errors import Corrupt, InvalidInput, KeyMissing
from saveslot.log import Query, Row, order
from saveslot.model import Data
from saveslot.sealing import SealedStore
from saveslot.stores import Store

BATCH = 500
# Deleted whenever that was, also by a clock that was set back since.
EVER = -(1 << 50)
# Bodies that change while they are wrapped anew are looked at again so often.
TRIES = 10


async def rotate(store: SealedStore, namespace: str) -> Data:
    """Wrap every session's key by the newest one. What was done, and which sessions are sealed with keys not given."""
    if store.keyring is None:
        raise InvalidInput("encryption_key", "name the keys: the new one first, then those that are in use")
    told: Data = {"rotated": 0, "changed_meanwhile": 0, "locked": {}}
    for _ in range(TRIES):
        told["changed_meanwhile"], told["locked"] = 0, {}
        async for row in every(store, Query(namespace=namespace)):
            try:
                body = store.rewrapped(row)
            except (KeyMissing, Corrupt) as exc:
                key_id = exc.key_id if isinstance(exc, KeyMissing) else "damaged"
                told["locked"][key_id] = told["locked"].get(key_id, 0) + 1
                continue
            if body is not None:
                done = await store.empty(row.key, (), body=(row.body, body))
                told["rotated"] += done
                told["changed_meanwhile"] += not done
        if not told["changed_meanwhile"]:
            break
    return told


async def in_use(store: Store, namespace: str) -> dict[str, int]:
    """How many sessions each key wraps, deleted ones too; under "" those that are not sealed."""
    counts: dict[str, int] = {}
    async for row in every(store, Query(namespace=namespace)):
        try:
            body = Body.unpack(row.body)
            key_id = "" if body is None else body.key_id
        except Corrupt:
            key_id = "damaged"
        if row.body:  # else erased: nothing is left to be sealed
            counts[key_id] = counts.get(key_id, 0) + 1
    return counts


async def every(store: Store, query: Query) -> AsyncIterator[Row]:
    """All rows that a query finds, those of deleted sessions behind them: one that is deleted meanwhile comes twice."""
    for part in (query, replace(query, deleted_for=EVER)):
        column, after = order(part)[0], None
        while rows := await store.find(part, after, BATCH):
            after = (getattr(rows[-1], column), rows[-1].key)
            for row in rows:
                yield row
