"""Erasing: what a session held is gone from every tier, for good; that it was there, and what became of it, stays.

1. The tombstone `session_erased` is appended, and takes the body with it: context, metadata and, of a sealed session,
   its key. From here on nobody reads or writes the session; whoever holds it is told at the next verb.
2. Frames and notes are emptied, copies in Valkey buried, batch by batch. Rows stay, with their numbers, names, times,
   digests and the seals of their notes; so do the notes of who held it.
3. User and labels go from the row, and the store overwrites what it kept of all this in its own files.

Each step finds what is left to do by itself: killed anywhere, the next call goes on, and a second one changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from saveslot import codec
from saveslot.codec.frame import SEAL
from saveslot.errors import Corrupt
from saveslot.log import Entry, Outcome, Query, Row
from saveslot.model import OWNER_KINDS, Kind
from saveslot.rewrapping import every
from saveslot.sealing import SealedStore
from saveslot.slot import ABOUT, Draft, Point, refusal

# Entries that are emptied in one transaction.
BATCH = 500
NOTHING = codec.note({part: {} for part in ABOUT}, "session")


async def of_session(store: SealedStore, namespace: str, session_id: str) -> list[Row]:
    """Every incarnation of that id, the deleted ones too, newest first."""
    query = Query(namespace=namespace, prefix=session_id)
    found = {row.key: row async for row in every(store, query) if row.session_id == session_id}
    return sorted(found.values(), key=lambda row: (row.created_at, row.key), reverse=True)


async def of_user(store: SealedStore, namespace: str, user_id: str) -> list[Row]:
    """A user's sessions, and all that was forked from them, whoever's it is now: it carries the user's data.

    Which session was forked from which stands in its metadata, so every row of the namespace is looked at. Forks that
    are sealed with a key which was not given are found by their user alone.
    """
    rows: dict[bytes, Row] = {}
    forks: list[tuple[Row, str]] = []
    async for row in every(store, Query(namespace=namespace)):
        kept = Row(row.key, row.namespace, row.session_id, user_id=row.user_id, created_at=row.created_at)
        rows[row.key] = kept
        if origin := _origin(store.open_row(row)):
            forks.append((kept, origin))
    chosen = {row.key: row for row in rows.values() if row.user_id == user_id}
    named: dict[str, list[Row]] = {}  # incarnations by id, newest first
    for row in sorted(rows.values(), key=lambda row: (row.created_at, row.key), reverse=True):
        named.setdefault(row.session_id, []).append(row)
    parents = [(row, _parent(named.get(origin, ()), row)) for row, origin in forks]
    while more := [row for row, parent in parents if row.key not in chosen and parent in chosen]:
        chosen.update({row.key: row for row in more})
    return list(chosen.values())


def _origin(row: Row) -> str | None:
    """The id of the session that this one was forked from."""
    if row.locked is not None or not row.body:
        return None
    try:
        told = codec.read_note(row.body)["metadata"].get("forked_from")
    except Corrupt:
        return None
    if not isinstance(told, str):
        return None
    name, colon, seq = told.rpartition(":")
    return name if colon and seq.isdigit() else told


def _parent(incarnations: Iterable[Row], fork: Row) -> bytes | None:
    """Of the sessions that had that id the one that was there when the fork was made."""
    return next((row.key for row in incarnations if row.created_at <= fork.created_at), None)


async def able(store: SealedStore) -> None:
    """A store that cannot erase says so before anything is gone."""
    await store.empty(b"", (), notes=True)


async def erase(store: SealedStore, row: Row) -> int:
    """The whole of it, for one session; how many entries held something until now."""
    key = row.key
    await _buried(store, key)
    await _destroyed(store, row)
    emptied = 0
    async for entries in _batches(store, key):
        emptied += _holding(entries)
        # All of them, also those that are empty already: a copy in Valkey may have been out of reach then.
        await store.empty(key, [e.seq for e in entries], notes=True)
    await store.empty(key, (), body=(NOTHING, b""))
    return emptied


async def holding(store: SealedStore, row: Row) -> int:
    """How many entries `erase` would find that hold something. Nothing is changed, and no frame is read."""
    return sum([_holding(entries) async for entries in _batches(store, row.key)])


async def _batches(store: SealedStore, key: bytes) -> AsyncIterator[list[Entry]]:
    """All entries but those of who held it, which stay as they are."""
    first = 1
    while entries := await store.stored.entries(key, [(first, first + BATCH - 1)], frames=False):
        first = entries[-1].seq + 1
        yield [entry for entry in entries if entry.kind not in OWNER_KINDS]


def _holding(entries: Iterable[Entry]) -> int:
    """Of an emptied entry the seal of its note is left. A tombstone says nothing but that it is one."""
    return sum(entry.size > min(len(entry.note or b""), SEAL) for entry in entries if entry.kind is not Kind.TOMBSTONE)


async def scrubbed(store: SealedStore) -> None:
    """What was erased before, and is still in the store's files because somebody was reading then, goes now."""
    await store.empty(b"", (), body=(NOTHING, b""))


async def _buried(store: SealedStore, key: bytes) -> None:
    """Append the tombstone, whatever others write meanwhile."""
    while (head := (await store.stored.heads([key]))[0]) is not None:
        draft = Draft(key, Point.of(head), codec.MAX_STATE)
        draft.lifecycle(Kind.TOMBSTONE, "session_erased", {})
        draft.group.delete, draft.group.body, draft.group.labels = True, NOTHING, {}
        [verdict] = await store.stored.append([draft.group])
        if verdict.outcome is Outcome.LOST:
            raise refusal(head.row.session_id, verdict, head.last.seq)


async def _destroyed(store: SealedStore, row: Row) -> None:
    """A session that was only deleted has its body still, and in it its key."""
    for found in await of_session(store, row.namespace, row.session_id):
        body = found.body
        while found.key == row.key and body not in {NOTHING, b""}:
            await store.empty(row.key, (), body=(body, NOTHING))
            again = await of_session(store, row.namespace, row.session_id)  # its key may have been wrapped anew
            body = next((one.body for one in again if one.key == row.key), b"")
