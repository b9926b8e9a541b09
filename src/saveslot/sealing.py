"""Where codec and store meet a key: what goes down is sealed, what comes up is open, and nobody above knows.

A session made by a manager with a key is sealed for its life: frames, notes, results of steps, context and metadata,
each bound to its row. The key of the session stands, wrapped, in front of its row's body. A session made without a key
stays as it is: both may lie in one store.

Not sealed: ids, names, agent types, users, labels, times, sizes, and who held the session (that note says which
worker, nothing of the agent's). Whoever has no key can list, delete and erase sessions, and read nothing of them.

A frame's digest is computed over what the codec wrote, before it is sealed: a rollback and a retry are recognised by
it. Open, it would let anyone try guesses at what was saved; so it is masked (docs/decisions/0024-sealed-below.md).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from types import CoroutineType
from typing import Any, NamedTuple

from msgspec.structs import replace

from saveslot.codec.cipher import KEY, Body, Cipher, Keyring, missing, place_of
from saveslot.codec.frame import SEAL, seal
from saveslot.errors import Corrupt, KeyMissing, SaveslotError
from saveslot.log import (
    Counts,
    Entry,
    Group,
    Head,
    Outcome,
    Query,
    Ref,
    Row,
    Verdict,
)
from saveslot.model import OWNER_KINDS, Kind
from saveslot.stores.chained import ChainedStore
from saveslot.stores.passing import PassingStore

# Their notes say nothing of what the agent does: which worker held the session, or nothing at all.
OPEN_KINDS = OWNER_KINDS | {Kind.TOMBSTONE, Kind.SKIPPED}
# Sessions of which is remembered whether and how they are sealed; one that was forgotten costs a question.
REMEMBERED = 100_000


class Opened(NamedTuple):
    """A sealed session whose key we have."""

    cipher: Cipher
    namespace: str
    key_id: str
    wrapped: bytes


class Locked(NamedTuple):
    """A sealed session that we cannot open, and why."""

    why: SaveslotError
    wrapped: bytes = b""


class Gone(NamedTuple):
    """A session that was deleted. The store says so, and needs nothing of what is written for that."""


class SealedStore(PassingStore):
    """Rows that `find` shows and bodies that `empty` takes are as stored; what a session is about is in its head."""

    def __init__(self, store: ChainedStore, keyring: Keyring | None = None) -> None:
        super().__init__(store)
        self._stored = store
        self._keyring = keyring
        self._known: dict[bytes, Opened | Locked | None] = {}  # None: not sealed

    @property
    def keyring(self) -> Keyring | None:
        return self._keyring

    @property
    def stored(self) -> ChainedStore:
        """The same as it lies there, sealed."""
        return self._stored

    def keyring_of(self, key: bytes) -> Keyring | None:
        """The keys that a session is sealed with; None for one that is not."""
        return None if self._known.get(key) is None else self._keyring

    def is_locked(self, key: bytes) -> bool:
        """True for a session that was found sealed, and cannot be opened."""
        return isinstance(self._known.get(key), Locked)

    # Down

    def append(self, groups: Sequence[Group]) -> CoroutineType[Any, Any, list[Verdict]]:
        known = self._known
        stored: list[Group] = []
        for group in groups:
            if group.key not in known:
                return self._append(groups)
            stored.append(self._sealed(group, known[group.key]))
        return self._stored.append(stored)

    async def _append(self, groups: Sequence[Group]) -> list[Verdict]:
        """The same with sessions that are new, or of which is not known how they are sealed."""
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
        verdicts = await self._stored.append([self._sealed(group, how[group.key]) for group in groups])
        for group, verdict in zip(groups, verdicts, strict=True):
            # A retry was sealed anew; what is stored is what was sealed the first time.
            if group.key in new and verdict.outcome is Outcome.APPENDED:
                self._remember(group.key, new[group.key])
        return verdicts

    def _sealed(self, group: Group, known: Opened | Locked | Gone | None) -> Group:
        """The group as it is stored: a copy, which whoever takes it may change."""
        made = replace(group, entries=list(map(replace, group.entries)))
        if known is None:
            return made
        if isinstance(known, Opened):
            for entry in made.entries:
                _seal(entry, known.cipher)
            if made.create is not None:
                made.create = replace(made.create, body=self._sealed_body(known, group.key, made.create.body))
            if made.body is not None:
                made.body = self._sealed_body(known, group.key, made.body)
        elif isinstance(known, Locked):
            if group.body is not None or not all(map(_is_open, group.entries)):
                raise _again(known.why)
        else:
            made.body = None
            for entry in made.entries:
                entry.frame = entry.note = None
        return made

    def _new(self, row: Row) -> Opened | None:
        """A key of its own for a new session, if it is to be sealed."""
        if self._keyring is None:
            return None
        key, place = os.urandom(KEY), place_of(row.namespace, row.key)
        return Opened(Cipher(key, place), row.namespace, *self._keyring.wrap(key, row.namespace, place))

    def _sealed_body(self, known: Opened, key: bytes, body: bytes) -> bytes:
        """Wrapped by the newest key: one that was replaced must not come back with a new context."""
        if self._keyring is not None and known.key_id != self._keyring.newest:
            place = place_of(known.namespace, key)
            key_id, wrapped = self._keyring.wrap(known.cipher.key, known.namespace, place)
            known = self._known[key] = known._replace(key_id=key_id, wrapped=wrapped)
        return Body(known.key_id, known.wrapped, known.cipher.seal(body[SEAL:], b"body")).pack()

    # Up

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        return [head and self._opened(head) for head in await self._inner.heads(refs)]

    def _opened(self, head: Head) -> Head:
        row = self.open_row(head.row)
        known = self._known.get(row.key)
        if row is head.row or row.locked is not None or not isinstance(known, Opened):
            return Head(row, head.last)
        return Head(row, _unsealed(replace(head.last), known.cipher))

    def open_row(self, row: Row) -> Row:
        """A row as it was before it was sealed, or `locked`; what it says is known for its entries from now on."""
        known, body = self._look(row)
        if known is None:
            return row
        if isinstance(known, Locked):
            return replace(row, locked=_again(known.why))
        plain = None if body is None else known.cipher.unseal(body.sealed, b"body")
        if plain is None:
            reason = "its context is sealed for another session, or was changed"
            return replace(row, locked=Corrupt(f"session {row.session_id}", reason))
        return replace(row, body=seal(plain))

    def _look(self, row: Row) -> tuple[Opened | Locked | None, Body | None]:
        """How this session is sealed, as its row says now."""
        where, place = f"session {row.session_id}", place_of(row.namespace, row.key)
        known = self._known.get(row.key)
        try:
            body = Body.unpack(row.body)
        except Corrupt as exc:
            return self._remember(row.key, Locked(Corrupt(where, exc.reason))), None
        if body is None:
            if isinstance(known, Opened):
                why = Corrupt(where, "was sealed and is not any more: somebody changed its row")
                return self._remember(row.key, Locked(why)), None
            return self._remember(row.key, None), None
        if known is not None and known.wrapped == body.wrapped:
            return known, body
        try:
            key = self._unwrapped(body, row.namespace, place, where)
        except KeyMissing as exc:
            if isinstance(known, Opened):  # wrapped anew by a key that we were not given: the session's own is the same
                return known, body
            return self._remember(row.key, Locked(exc, body.wrapped)), body
        return self._remember(row.key, Opened(Cipher(key, place), row.namespace, body.key_id, body.wrapped)), body

    def rewrapped(self, row: Row) -> bytes | None:
        """A row's body with its session's key wrapped by the newest key; None when there is nothing to do."""
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

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        found = await self._inner.entries(
            key, ranges, kinds=kinds, name=name, newest=newest, frames=frames, largest=largest
        )
        if found and key not in self._known:
            await self.heads([key])
        known = self._known.get(key)
        if isinstance(known, Locked) and not all(map(_is_open, found)):
            raise _again(known.why)
        return [_unsealed(entry, known.cipher) for entry in found] if isinstance(known, Opened) else found

    async def count(self, query: Query, sample: int = 0) -> Counts:
        """Failures in a sample are open; those of sessions whose key we have not stay shut."""
        counts = await self._inner.count(query, sample)
        failures = [] if counts.sample is None else counts.sample.failures
        unknown = [key for key, _ in failures if key not in self._known]
        if unknown:
            await self.heads(unknown)
        for key, entry in failures:
            if isinstance(known := self._known.get(key), Opened):
                _unsealed(entry, known.cipher)
        return counts


def _again(why: SaveslotError) -> SaveslotError:
    """The same error, to be raised once more."""
    if isinstance(why, KeyMissing):
        return type(why)(str(why), key_id=why.key_id)
    return Corrupt(why.where, why.reason) if isinstance(why, Corrupt) else why


def _is_open(entry: Entry) -> bool:
    """True when nothing of this entry is sealed."""
    return entry.frame is None and (entry.note is None or entry.kind in OPEN_KINDS)


# Which entry it is, in all seals of its own: kind and seq.
_part = Struct(">BQ").pack


def _seal(entry: Entry, cipher: Cipher) -> None:
    """In place. Each checkpoint pays for this."""
    part = _part(entry.kind, entry.seq)
    if entry.frame is not None:
        entry.frame = cipher.seal_frame(entry.frame, part + entry.digest)
    if entry.note is not None and entry.kind not in OPEN_KINDS:
        entry.note = cipher.seal_note(entry.note, part)
    entry.digest = cipher.masked(entry.digest, part)


def _unsealed(entry: Entry, cipher: Cipher) -> Entry:
    """In place. What does not open stays shut, so that only whoever looks at it is told."""
    part = _part(entry.kind, entry.seq)
    entry.digest = cipher.masked(entry.digest, part)
    if entry.frame is not None:
        entry.frame = cipher.unseal_frame(entry.frame, part + entry.digest)
    if entry.note is not None and entry.kind not in OPEN_KINDS:
        note = cipher.unseal_note(entry.note, part)
        entry.size -= len(entry.note) - len(note)  # what it has beside its note is its frame
        entry.note = note
    return entry
