"""Erasing: a session's content is destroyed in every tier, for good; its log stays, without content.

1. Append the tombstone `session_erased`, which also clears the body: context, metadata and, if the session is sealed,
   its key. From here on the session cannot be read or written; its owner's next verb raises.
2. Empty frames and notes, and remove copies in Valkey, batch by batch. Rows stay, with their numbers, names, times,
   digests and the checksums of their notes; so do the notes that say which worker held the session.
3. Clear user and labels in the row; the store overwrites the freed bytes in its own files.

Each step finds its remaining work by itself: after a kill the next call continues, and a second call changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from saveslot import codec
from saveslot.codec.frame import CHECKSUM
from saveslot.errors import Corrupt, InvalidInput
from saveslot.manager.rotate import every
from saveslot.session.draft import ABOUT, Draft, Point
from saveslot.session.engine import Space
from saveslot.session.refusals import refusal, unknown
from saveslot.session.vault import Vault
from saveslot.values.answers import Answer
from saveslot.values.checks import Data, as_name
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import EVER_DELETED, Entry, Outcome, Query, Row, Wanted

# Entries emptied per transaction.
BATCH = 500
NOTHING = codec.note({part: {} for part in ABOUT}, "session")


async def erase(
    sessions: Space,
    session_id: str | None = None,
    user_id: str | None = None,
    *,
    dry_run: bool = False,
    rewrite: bool = False,
) -> Data:
    """Destroy the content of a session, or of a user's sessions and all their forks, in every tier, for good.

    This includes deleted sessions. Entries stay, without content: `audit` shows them. Held sessions are erased too, and
    their owners' next verb raises. The next call finishes an interrupted erase; after that it finds nothing. Returns
    the ids, and how many entries had content; with `dry_run`, what would be erased.

    PostgreSQL keeps old versions of rows in its data files; `rewrite` rewrites its tables without them (VACUUM FULL:
    it takes as long as the tables are large, and locks each meanwhile).
    """
    if (session_id is None) == (user_id is None):
        raise InvalidInput("erase", "pass either session_id or user_id")
    vault, namespace = sessions.engine.vault, sessions.namespace
    if session_id is not None:
        rows = await of_session(vault, namespace, as_name(session_id, "session_id"))
        if not rows:
            raise unknown(session_id, namespace)
    else:
        rows = await of_user(vault, namespace, as_name(user_id, "user_id"))
    if rows:  # otherwise nothing is written, and a missing file or table stays missing
        await able(vault)
    entries = 0
    for row in rows:
        if dry_run:
            entries += await holding(vault, row)
            continue
        entries += await _erase(vault, row)
        sessions.engine.cache.drop((namespace, row.session_id))
    if not dry_run:
        await vault.scrub(rewrite=rewrite)
    return {"sessions": sorted({row.session_id for row in rows}), "entries": entries}


class Removal(Answer, frozen=True):
    """What is in a namespace, deleted sessions too, or was until it was erased."""

    namespace: str
    sessions: int
    deleted: int  # sessions that were deleted before, and not yet purged
    entries: int
    bytes: int  # of frames, notes and bodies, and of what stays: names and recipes of entries


async def erase_all(sessions: Space, *, dry_run: bool = False, rewrite: bool = False) -> Removal:
    """Destroy the content of all sessions of this namespace, deleted ones too, as `erase` does it.

    Sessions that are created meanwhile may stay: revoke the tokens of the namespace first. Returns what was in it.
    """
    vault, namespace = sessions.engine.vault, sessions.namespace
    removal = await contents(vault, namespace)
    if dry_run or not removal.sessions + removal.deleted:
        return removal
    await able(vault)
    async for row in every(vault, Query(namespace=namespace)):
        if not row.body:  # erased before: of what was just erased, `every` yields the deleted session, too
            continue
        await _erase(vault, row)
        sessions.engine.cache.drop((namespace, row.session_id))
    await vault.scrub(rewrite=rewrite)
    return removal


async def contents(store: Vault, namespace: str) -> Removal:
    """Count what is in a namespace."""
    queries = (Query(namespace=namespace), Query(namespace=namespace, deleted_for=EVER_DELETED))
    living, deleted = [await store.count(query, totals="matching") for query in queries]
    return Removal(
        namespace,
        sum(living.states.values()),
        sum(deleted.states.values()),
        living.entries + deleted.entries,
        living.stored_bytes + deleted.stored_bytes,
    )


async def of_session(store: Vault, namespace: str, session_id: str) -> list[Row]:
    """Return every session that had that id, including deleted ones, newest first."""
    query = Query(namespace=namespace, prefix=session_id)
    rows = {row.key: row async for row in every(store, query) if row.session_id == session_id}
    return sorted(rows.values(), key=lambda row: (row.created_at, row.key), reverse=True)


async def of_user(store: Vault, namespace: str, user_id: str) -> list[Row]:
    """Return a user's sessions and all their forks, even if owned by another user: they carry the user's data.

    A fork's origin is in its metadata, so every row of the namespace is read. Forks sealed with a missing key are found
    only by their user.
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
    """Return the id of the session that this one was forked from."""
    if row.locked is not None or not row.body:
        return None
    try:
        origin = codec.read_note(row.body)["metadata"].get("forked_from")
    except Corrupt:
        return None
    if not isinstance(origin, str):
        return None
    name, colon, seq = origin.rpartition(":")
    return name if colon and seq.isdigit() else origin


def _parent(incarnations: Iterable[Row], fork: Row) -> bytes | None:
    """Return the session with that id that existed when the fork was made."""
    return next((row.key for row in incarnations if row.created_at <= fork.created_at), None)


async def able(store: Vault) -> None:
    """Raise if the store cannot erase, before anything is erased."""
    await store.empty(b"", (), notes=True)


async def _erase(store: Vault, row: Row) -> int:
    """Erase one session completely; return how many entries had content."""
    key = row.key
    await _buried(store, key)
    await _destroyed(store, row)
    emptied = 0
    async for entries in _batches(store, key):
        emptied += _holding(entries)
        # All of them, even empty ones: their copies in Valkey may have been unreachable when they were emptied.
        await store.empty(key, [e.seq for e in entries], notes=True)
    await store.swap(key, NOTHING, b"")
    return emptied


async def holding(store: Vault, row: Row) -> int:
    """Count the entries with content that `erase` would find. Changes nothing and reads no frame."""
    return sum([_holding(entries) async for entries in _batches(store, row.key)])


async def _batches(store: Vault, key: bytes) -> AsyncIterator[list[Entry]]:
    """Yield all entries in batches, except those that name an owner, which stay as they are."""
    first = 1
    while entries := await store.stored.entries(key, Wanted([(first, first + BATCH - 1)], frames=False)):
        first = entries[-1].seq + 1
        yield [entry for entry in entries if entry.kind not in TAKING_KINDS]


def _holding(entries: Iterable[Entry]) -> int:
    """Count entries with content. An emptied entry keeps only its note's checksum; a tombstone has no content."""
    return sum(
        entry.size > min(len(entry.note or b""), CHECKSUM) for entry in entries if entry.kind is not Kind.TOMBSTONE
    )


async def _buried(store: Vault, key: bytes) -> None:
    """Append the tombstone, retrying after other callers' writes."""
    while (head := (await store.stored.heads([key]))[0]) is not None:
        draft = Draft(key, Point.of(head), codec.MAX_STATE, store.traits.stamp)
        draft.lifecycle(Kind.TOMBSTONE, "session_erased", {})
        draft.group.delete, draft.group.body, draft.group.labels = True, NOTHING, {}
        [verdict] = await store.stored.append([draft.group])
        if verdict.outcome is Outcome.LOST:
            raise refusal(head.row.session_id, verdict, head.last.seq)


async def _destroyed(store: Vault, row: Row) -> None:
    """Clear the body of a session that was only deleted: it still has its context and key."""
    for incarnation in await of_session(store, row.namespace, row.session_id):
        body = incarnation.body
        while incarnation.key == row.key and body not in {NOTHING, b""}:
            await store.swap(row.key, body, NOTHING)
            again = await of_session(store, row.namespace, row.session_id)  # its key may have been rewrapped
            body = next((one.body for one in again if one.key == row.key), b"")
