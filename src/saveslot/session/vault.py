"""Encryption between codec and store: writes are sealed and reads opened, transparently to the layers above.

A session created by a manager with a key is sealed for its life: frames, notes, results of steps, context and metadata,
each bound to its row. The session's own key is stored, wrapped, before its row's body. A session created without a key
stays unsealed; one store may contain both.

Not sealed: ids, names, agent types, users, labels, times, sizes, and which worker took the session (notes that say
nothing about the agent). A caller without the key can list, delete and erase sessions, but not read them.

A frame's digest is computed over the codec's output, before sealing, so that rollbacks and retries can be recognised by
it. Unmasked, it would let a reader test guesses at the content; so it is masked
(docs/decisions/encryption-and-audit.md).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from struct import Struct
from types import CoroutineType
from typing import Any, NamedTuple

from msgspec.structs import replace

from saveslot.codec.blocks import Cut
from saveslot.codec.cipher import (
    KEY,
    Body,
    Cipher,
    Keyring,
    is_cut,
    is_sealed,
    is_sealed_frame,
    is_sealed_note,
    missing,
    place_of,
)
from saveslot.codec.frame import CHECKSUM, add_checksum
from saveslot.errors import Corrupt, KeyMissing, SaveslotError
from saveslot.session.links import LinkedStore
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import (
    ALL,
    Counts,
    Entry,
    Group,
    Head,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Totals,
    Verdict,
    Wanted,
    order,
)

# Kinds whose notes say nothing about the agent: at most which worker held the session.
OPEN_KINDS = TAKING_KINDS | {Kind.TOMBSTONE, Kind.SKIPPED}
# Sessions whose sealing is cached; a miss costs one read.
REMEMBERED = 100_000
FIRST = Wanted([(1, 1)])
# Rows per page when sessions with labels of entries are counted.
COUNTED = 1000


class Opened(NamedTuple):
    """A sealed session whose key this manager has."""

    cipher: Cipher
    namespace: str
    key_id: str
    wrapped: bytes


class Locked(NamedTuple):
    """A sealed session that cannot be opened, and why."""

    why: SaveslotError
    wrapped: bytes = b""


class Gone(NamedTuple):
    """A deleted session. The store will refuse the write, so its content is not sent."""


class Vault(PassingStore):
    """Store that seals and opens. Rows from `find` and bodies for `swap` are as stored; `heads` returns opened rows."""

    def __init__(self, store: Store, keyring: Keyring | None = None) -> None:
        self._stored = LinkedStore(store)
        super().__init__(self._stored)
        self._keyring = keyring
        self._known: dict[bytes, Opened | Locked | None] = {}  # None: not sealed, by its first entry if there is a key

    @property
    def keyring(self) -> Keyring | None:
        return self._keyring

    @property
    def stored(self) -> LinkedStore:
        """The store underneath, with entries as stored: sealed."""
        return self._stored

    def keyring_of(self, key: bytes) -> Keyring | None:
        """Return the keys if the session is sealed, else None."""
        return None if self._known.get(key) is None else self._keyring

    def is_locked(self, key: bytes) -> bool:
        """True if the session is known to be sealed and cannot be opened."""
        return isinstance(self._known.get(key), Locked)

    # Down

    def append(self, groups: Sequence[Group], *, together: bool = False) -> CoroutineType[Any, Any, list[Verdict]]:
        known = self._known
        stored: list[Group] = []
        for group in groups:
            if group.key not in known:
                return self._append(groups, together=together)
            stored.append(self._sealed(group, known[group.key]))
        return self._stored.append(stored, together=together)

    async def _append(self, groups: Sequence[Group], *, together: bool) -> list[Verdict]:
        """Append groups of which some sessions are new, or not known to be sealed or not."""
        known = self._known
        new = {group.key: self._new(group.create) for group in groups if group.create is not None}
        how: dict[bytes, Opened | Locked | Gone | None] = {
            **new,
            **{group.key: known[group.key] for group in groups if group.key in known},
        }
        unknown = [group.key for group in groups if group.key not in how]
        if unknown:
            heads = await self.heads(unknown)
            how |= {key: Gone() if head is None else known[key] for key, head in zip(unknown, heads, strict=True)}
        sealed = [self._sealed(group, how[group.key]) for group in groups]
        verdicts = await self._stored.append(sealed, together=together)
        for group, verdict in zip(groups, verdicts, strict=True):
            # A retry was sealed with a new key; the store has the first attempt's.
            if group.key in new and verdict.outcome is Outcome.APPENDED:
                self._remember(group.key, new[group.key])
        return verdicts

    def _sealed(self, group: Group, known: Opened | Locked | Gone | None) -> Group:
        """Return the group as stored: a copy, which the store may change."""
        stored = replace(group, entries=list(map(replace, group.entries)))
        if known is None:
            return stored
        if isinstance(known, Opened):
            for entry in stored.entries:
                _seal(entry, known.cipher)
                if entry.labels and self._keyring is not None:
                    entry.labels = self._keyring.hidden(entry.labels, known.namespace)
            if (row := stored.create) is not None:
                body, request = self._sealed_body(known, group.key, row.body), known.cipher.masked_request(row.request)
                stored.create = replace(row, body=body, request=request)
            if stored.body is not None:
                stored.body = self._sealed_body(known, group.key, stored.body)
        elif isinstance(known, Locked):
            if group.body is not None or not all(_is_open(entry, written=True) for entry in group.entries):
                raise _again(known.why)
        else:
            stored.body = None
            for entry in stored.entries:
                entry.frame = entry.note = None
                entry.labels = {}
        return stored

    def _new(self, row: Row) -> Opened | None:
        """Return a new session's own key, if this manager seals."""
        if self._keyring is None:
            return None
        key, place = os.urandom(KEY), place_of(row.namespace, row.key)
        return Opened(Cipher(key, place), row.namespace, *self._keyring.wrap(key, row.namespace, place))

    def _sealed_body(self, known: Opened, key: bytes, body: bytes) -> bytes:
        """Seal a body, wrapping its key with the newest key: a replaced key must not come back with a new context."""
        if self._keyring is not None and known.key_id != self._keyring.newest:
            place = place_of(known.namespace, key)
            key_id, wrapped = self._keyring.wrap(known.cipher.key, known.namespace, place)
            known = self._known[key] = known._replace(key_id=key_id, wrapped=wrapped)
        return Body(known.key_id, known.wrapped, known.cipher.seal(body[CHECKSUM:], b"body")).pack()

    # Up

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        heads = await self._inner.heads(refs, state=state)
        if self._keyring is not None:
            await asyncio.gather(*(self._doubt(head) for head in heads if head is not None and self._looks_plain(head)))
        return [head and self._opened(head) for head in heads]

    def _looks_plain(self, head: Head) -> bool:
        """True if only its row says that the session is not sealed: the row may have been changed."""
        row = head.row
        known = row.key in self._known and not isinstance(self._known[row.key], Locked)
        return not known and row.locked is None and bool(row.body) and not is_sealed(row.body)

    async def _doubt(self, head: Head) -> None:
        """Read from its first entry whether a session was sealed, once."""
        row = head.row
        try:
            first = await self._inner.entries(row.key, FIRST)
        except Corrupt as exc:
            self._remember(row.key, Locked(Corrupt(f"session {row.session_id}", exc.reason)))
        else:
            self._remember(row.key, Locked(_was_sealed(row)) if any(map(_is_sealed, first)) else None)

    def _opened(self, head: Head) -> Head:
        row = self.open_row(head.row)
        if head.row.locked is not None:
            return head
        known = self._known.get(row.key)
        if known is None and _is_sealed(head.last):
            why = _was_sealed(row)
            self._remember(row.key, Locked(why))
            return replace(head, row=replace(row, locked=_again(why)))
        if row is head.row or row.locked is not None or not isinstance(known, Opened):
            return replace(head, row=row)
        cipher = known.cipher
        frames = None if head.frames is None else [_unsealed(entry, cipher) for entry in head.frames]
        data = head.data and _unsealed(replace(head.data), cipher)
        return Head(row, _unsealed(replace(head.last), cipher), data, frames)

    def open_row(self, row: Row) -> Row:
        """Return the row unsealed, or with `locked` set. Its key is cached for the session's entries."""
        if row.locked is not None:  # damaged
            self._remember(row.key, Locked(row.locked))
            return row
        known, body = self._look(row)
        if known is None:
            return row
        if isinstance(known, Locked):
            return replace(row, locked=_again(known.why))
        plain = None if body is None else known.cipher.unseal(body.sealed, b"body")
        if plain is None:
            reason = "its context was changed, or sealed for another session"
            return replace(row, locked=Corrupt(f"session {row.session_id}", reason))
        return replace(row, body=add_checksum(plain), request=known.cipher.masked_request(row.request))

    def _look(self, row: Row) -> tuple[Opened | Locked | None, Body | None]:
        """Read from its row how this session is sealed."""
        where, place = f"session {row.session_id}", place_of(row.namespace, row.key)
        known = self._known.get(row.key)
        try:
            body = Body.unpack(row.body)
        except Corrupt as exc:
            return self._remember(row.key, Locked(Corrupt(where, exc.reason))), None
        if body is None:
            if isinstance(known, Opened):
                return self._remember(row.key, Locked(_was_sealed(row))), None
            if self._keyring is not None:
                return known, None  # `heads` asks the first entry
            return self._remember(row.key, None), None
        if known is not None and known.wrapped == body.wrapped:
            return known, body
        try:
            key = self._unwrapped(body, row.namespace, place, where)
        except KeyMissing as exc:
            if isinstance(known, Opened):  # rewrapped with a key we lack; the session's own key stays
                return known, body
            return self._remember(row.key, Locked(exc, body.wrapped)), body
        return self._remember(row.key, Opened(Cipher(key, place), row.namespace, body.key_id, body.wrapped)), body

    def rewrapped(self, row: Row) -> bytes | None:
        """Return a row's body with its session's key wrapped by the newest key; None if it is already."""
        body = Body.unpack(row.body)
        if body is None or self._keyring is None or body.key_id == self._keyring.newest:
            return None
        place = place_of(row.namespace, row.key)
        key = self._unwrapped(body, row.namespace, place, f"session {row.session_id}")
        return Body(*self._keyring.wrap(key, row.namespace, place), body.sealed).pack()

    def _unwrapped(self, body: Body, namespace: str, place: bytes, where: str) -> bytes:
        if self._keyring is None:
            raise missing(where, body.key_id, None)
        return self._keyring.unwrap(body.key_id, body.wrapped, namespace, place, where)

    def _remember(self, key: bytes, known: Opened | Locked | None) -> Opened | Locked | None:
        if len(self._known) >= REMEMBERED and key not in self._known:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        entries = await self._entries(key, wanted)
        known = self._known.get(key)
        return [_unsealed(entry, known.cipher) for entry in entries] if isinstance(known, Opened) else entries

    async def cut_entries(self, key: bytes, wanted: Wanted) -> list[tuple[Entry, bytes | Cut | None]]:
        """Return entries, each with its frame; of a sealed frame with blocks, these are opened when they are read."""
        entries = await self._entries(key, wanted)
        known = self._known.get(key)
        return [_cut(entry, known.cipher if isinstance(known, Opened) else None) for entry in entries]

    async def _entries(self, key: bytes, wanted: Wanted) -> list[Entry]:
        """Return entries as stored, of a session that can be opened."""
        try:
            entries = await self._inner.entries(key, wanted)
        except Corrupt as exc:  # the store knows the session by its key only
            [head] = await self._inner.heads([key])
            name = key.hex() if head is None else head.row.session_id
            raise Corrupt(exc.where.replace(key.hex(), name), exc.reason) from exc
        if entries and key not in self._known:
            await self.heads([key])
        known = self._known.get(key)
        if isinstance(known, Locked) and not all(map(_is_open, entries)):
            raise _again(known.why)
        return entries

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        """A page. Labels of entries are hidden by the key that was the newest when they were written, or by none."""
        if not query.entry or self._keyring is None:
            return await self._inner.find(query, after, limit)
        hidden = [self._keyring.hidden(query.entry, query.namespace, key_id) for key_id in self._keyring.ids]
        queries = [replace(query, entry=labels) for labels in (query.entry, *hidden)]
        pages = await asyncio.gather(*(self._inner.find(each, after, limit) for each in queries))
        column, newest_first = order(query)
        rows = {row.key: row for page in pages for row in page}.values()
        return sorted(rows, key=lambda row: (getattr(row, column), row.key), reverse=newest_first)[:limit]

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        if not query.entry or self._keyring is None:
            return await self._inner.count(query, totals=totals)
        # A session may have labels hidden by several keys, so the counts of the queries do not add up.
        whole, after = await self._inner.count(Query(namespace=query.namespace), totals=totals), None
        counts = Counts(entries=whole.entries, stored_bytes=whole.stored_bytes)
        while rows := await self.find(query, after, COUNTED):
            after = (getattr(rows[-1], order(query)[0]), rows[-1].key)
            for row in rows:
                counts.states[row.state] = counts.states.get(row.state, 0) + 1
                counts.agent_types[row.agent_type] = counts.agent_types.get(row.agent_type, 0) + 1
                counts.held += row.lease is not None
                counts.orphaned += row.lease is not None and not row.left
        return counts

    async def unseal(self, entries: Sequence[tuple[bytes, Entry]]) -> None:
        """Open stored entries in place, each with its session's key. Entries of locked sessions stay sealed."""
        unknown = [key for key, _ in entries if key not in self._known]
        if unknown:
            await self.heads(unknown)
        for key, entry in entries:
            if isinstance(known := self._known.get(key), Opened):
                _unsealed(entry, known.cipher)


def _again(why: SaveslotError) -> SaveslotError:
    """Copy an error, to raise it again."""
    if isinstance(why, KeyMissing):
        return type(why)(str(why), key_id=why.key_id)
    return Corrupt(why.where, why.reason) if isinstance(why, Corrupt) else why


def _is_open(entry: Entry, *, written: bool = False) -> bool:
    """True if no part of this entry is sealed; `written`: or would be, of what is only written or looked up."""
    if written and (entry.labels or (entry.request and entry.kind not in OPEN_KINDS)):
        return False
    return entry.frame is None and (entry.note is None or entry.kind in OPEN_KINDS)


def _is_sealed(entry: Entry) -> bool:
    if entry.frame is not None and is_sealed_frame(entry.frame):
        return True
    return entry.note is not None and entry.kind not in OPEN_KINDS and is_sealed_note(entry.note)


def _was_sealed(row: Row) -> Corrupt:
    return Corrupt(f"session {row.session_id}", "was sealed and is not any more: its row was changed")


# Binds sealed bytes to their entry: kind and seq.
_part = Struct(">BQ").pack


def _seal(entry: Entry, cipher: Cipher) -> None:
    """Seal in place. Hot path: runs for each checkpoint."""
    part = _part(entry.kind, entry.seq)
    if entry.frame is not None:
        entry.frame = cipher.seal_frame(entry.frame, part + entry.digest)
    if entry.note is not None and entry.kind not in OPEN_KINDS:
        entry.note = cipher.seal_note(entry.note, part)
    if entry.request and entry.kind not in OPEN_KINDS:
        entry.request = cipher.masked_request(entry.request)
    entry.digest = cipher.masked(entry.digest, part)


def _cut(entry: Entry, cipher: Cipher | None) -> tuple[Entry, bytes | Cut | None]:
    if cipher is None:
        return entry, entry.frame
    frame, entry.frame = entry.frame, None
    if frame is None or not is_cut(frame):
        entry.frame = frame
        return _unsealed(entry, cipher), entry.frame
    opened = _unsealed(entry, cipher)
    return opened, cipher.cut(frame, _part(entry.kind, entry.seq) + opened.digest)


def _unsealed(entry: Entry, cipher: Cipher) -> Entry:
    """Open in place. Bytes that do not open stay sealed, so that the error is raised only when they are read."""
    part = _part(entry.kind, entry.seq)
    entry.digest = cipher.masked(entry.digest, part)
    if entry.frame is not None:
        entry.frame = cipher.unseal_frame(entry.frame, part + entry.digest)
    if entry.note is not None and entry.kind not in OPEN_KINDS:
        note = cipher.unseal_note(entry.note, part)
        entry.size -= len(entry.note) - len(note)  # size = note + frame
        entry.note = note
    if entry.request and entry.kind not in OPEN_KINDS:
        entry.request = cipher.masked_request(entry.request)
    return entry
