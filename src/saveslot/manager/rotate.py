"""Key rotation for sealed sessions: only the wrapped key before a row's body changes, never a payload or the log.

Owners are not disturbed: no entry is written, and a body that its owner changed meanwhile is left alone and retried.
Each session is rotated atomically; after a kill, the next call continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from saveslot.codec.cipher import Body
from saveslot.errors import Corrupt, InvalidInput, KeyMissing
from saveslot.session.engine import Space
from saveslot.stores import Store
from saveslot.values.checks import Data
from saveslot.values.log import Query, Row, order

BATCH = 500
# `deleted_for` that finds every deleted session, even if the clock was set back since.
EVER = -(1 << 50)
# Maximum passes over bodies that change while they are rewrapped.
TRIES = 10


async def rotate_keys(sessions: Space) -> Data:
    """Rewrap the key of every sealed session of this namespace with the newest key. Owners are not disturbed.

    After a kill, the next call continues. Remove an old key only when `key_ids` no longer lists it and all managers
    have the new one.
    """
    store, namespace = sessions.engine.vault, sessions.namespace
    if store.keyring is None:
        raise InvalidInput("encryption_key", "is missing: pass the new key first, then the keys in use")
    result: Data = {"rotated": 0, "changed_meanwhile": 0, "locked": {}}
    for _ in range(TRIES):
        result["changed_meanwhile"], result["locked"] = 0, {}
        async for row in every(store, Query(namespace=namespace)):
            try:
                body = store.rewrapped(row)
            except (KeyMissing, Corrupt) as exc:
                key_id = exc.key_id if isinstance(exc, KeyMissing) else "damaged"
                result["locked"][key_id] = result["locked"].get(key_id, 0) + 1
                continue
            if body is not None:
                done = await store.swap(row.key, row.body, body)
                result["rotated"] += done
                result["changed_meanwhile"] += not done
        if not result["changed_meanwhile"]:
            break
    return result


async def key_ids(sessions: Space) -> dict[str, int]:
    """Count this namespace's sessions, including deleted ones, by key id; "" counts those not sealed."""
    counts: dict[str, int] = {}
    async for row in every(sessions.engine.vault, Query(namespace=sessions.namespace)):
        try:
            body = Body.unpack(row.body)
            key_id = "" if body is None else body.key_id
        except Corrupt:
            key_id = "damaged"
        if row.body:  # otherwise erased: no content is left
            counts[key_id] = counts.get(key_id, 0) + 1
    return counts


async def every(store: Store, query: Query) -> AsyncIterator[Row]:
    """Yield all rows that a query finds, then those of deleted sessions: one deleted meanwhile is yielded twice."""
    for part in (query, replace(query, deleted_for=EVER)):
        column, after = order(part)[0], None
        while rows := await store.find(part, after, BATCH):
            after = (getattr(rows[-1], column), rows[-1].key)
            for row in rows:
                yield row
