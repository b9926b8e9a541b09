"""Key rotation for sealed sessions: the wrapped key before a row's body changes, and the keyed hashes of its entries'
labels; never a payload or the log.

Owners are not disturbed: no entry is written, and a body that its owner changed meanwhile is left alone and retried.
Each session is rotated atomically; after a kill, the next call continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from saveslot import codec
from saveslot.codec.cipher import Body, is_sealed
from saveslot.errors import Corrupt, InvalidInput, KeyMissing
from saveslot.session.draft import labels_of
from saveslot.session.engine import Space
from saveslot.session.vault import Vault
from saveslot.stores import Store
from saveslot.values.checks import Data
from saveslot.values.kinds import Kind
from saveslot.values.log import EVER_DELETED, MAX_SEQ, Entry, Labels, Query, Row, Wanted, order

BATCH = 500
# Labelled entries whose labels are read and written at once.
LABELLED = 1000
# Maximum passes over bodies that change while they are rewrapped.
TRIES = 10


async def rotate_keys(sessions: Space) -> Data:
    """Rewrap the key of every sealed session of this namespace with the newest key. Owners are not disturbed.

    Labels of entries are hashed anew with it, so that `find(entry=…)` goes on finding them. After a kill, the next
    call continues. Remove an old key only when `key_ids` no longer lists it and all managers have the new one.
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
            done = await _rotate(store, row, body)
            result["rotated"] += done is True
            result["changed_meanwhile"] += done is False
        if not result["changed_meanwhile"]:
            break
    return result


async def _rotate(store: Vault, row: Row, body: bytes | None) -> bool | None:
    """Store the body, if it was rewrapped, and new hashes of labels; None if nothing was left to do.

    The body comes last: until then `key_ids` counts the session for its old key. False if it changed meanwhile.
    """
    end, changed = MAX_SEQ, False
    while True:
        page, labels = await _relabelled(store, row, end)
        last = len(page) < LABELLED
        after = body if last and body is not None else row.body
        if labels or after is not row.body:
            if not await store.swap(row.key, row.body, after, labels):
                return False
            changed = True
        if last:
            return changed or None
        end = page[0].seq - 1


async def _relabelled(store: Vault, row: Row, end: int) -> tuple[list[Entry], Labels]:
    """Read the newest labelled entries of a sealed session up to a seq, and hash those labels that an older key hid."""
    labels: dict[int, dict[str, str]] = {}
    if store.keyring is None or row.deleted_at or not is_sealed(row.body):
        return [], labels
    page = await store.entries(row.key, Wanted([(1, end)], newest=LABELLED, frames=False, labelled=True))
    for entry in page:
        try:
            metadata: Data = {}
            if entry.kind is Kind.CREATED:
                metadata = codec.read_note(store.open_row(row).body)["metadata"]
            named = labels_of(entry, row.session_id, metadata)
        except Corrupt:
            continue  # damaged: its labels stay as they are
        hidden = store.keyring.hidden(named, row.namespace)
        if named and hidden != entry.labels:
            labels[entry.seq] = hidden
    return page, labels


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
    for part in (query, replace(query, deleted_for=EVER_DELETED)):
        column, after = order(part)[0], None
        while rows := await store.find(part, after, BATCH):
            after = (getattr(rows[-1], column), rows[-1].key)
            for row in rows:
                yield row
