"""The log as stores keep it. A session is one log, and entry n+1 is accepted only from someone who has seen entry n.

A store takes these values in and gives them out; it decides nothing but the verdict. Times are microseconds since 1970,
UTC; keys and ids are 16 bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from saveslot.errors import InvalidInput, SaveslotError
from saveslot.model import Kind

TAKING_KINDS = frozenset({Kind.TAKEN, Kind.CLAIMED})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def moment(at: int) -> datetime:
    return EPOCH + timedelta(0, 0, at)


# Longer ago than any time that can be stored, and every database can still subtract it.
LONGEST = 1 << 60


def as_age(value: Any, path: str) -> int:
    """A span of time in microseconds."""
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise InvalidInput(path, f"must be a timedelta of 0 or more, not {value!r}")
    return min(value // MICROSECOND, LONGEST)


class Entry(msgspec.Struct, gc=False):
    """One numbered entry of a session's log."""

    seq: int
    append_id: bytes  # who wrote it: random, so a retry recognises its own entry
    kind: Kind
    name: str
    at: int = 0  # shown time; 0 or less: so long ago, by the store's clock
    sign: bool = False  # asks the store to count this entry as a sign of life
    alive: int = 0  # the newest sign of life as of this entry, by the store's clock; the store fills it in
    fence: int = 0  # who holds the session as of this entry; a checkpoint carries on what it follows
    lease: bytes | None = None
    data_seq: int = 0  # the newest entry, up to this one, that carries the agent's data
    about_seq: int = 0  # the same for context, metadata and labels
    recipe: bytes = b""  # the frames that rebuild what this entry holds
    digest: bytes = b""  # of that, chained over those frames
    note: bytes | None = None  # small data of its own: a lifecycle entry's, a checkpoint's metadata
    frame: bytes | None = None  # what changed; gone once thinned
    size: int = 0  # bytes of frame and note as stored, also when they were not read

    def time(self, now: int) -> int:
        return self.at if self.at > 0 else now + self.at


class Row(msgspec.Struct):
    """A session's descriptor, and what its log adds up to."""

    key: bytes
    namespace: str
    session_id: str
    agent_type: str = ""
    user_id: str = ""
    state: str = "active"
    created_at: int = 0
    heartbeat: int = 0
    fence: int = 0
    lease: bytes | None = None
    body: bytes = b""  # context, metadata and labels, encoded
    labels: dict[str, str] = {}
    owner: bytes | None = None  # the worker that holds it
    worker: str = ""  # that one's name; read only
    left: int = 0  # microseconds until others may take the session from it, 0 when they may; read only
    now: int = 0  # the store's clock when this was read; read only
    deleted_at: int = 0  # read only
    # Read only, and only where ended or deleted ones were asked for:
    weight: int = 0  # bytes of its frames and notes
    length: int = 0  # how many entries it has
    last: bytes = b""  # the append_id of the newest
    locked: SaveslotError | None = None  # why its body is sealed and cannot be read; read only


class Worker(msgspec.Struct):
    """One process, as others see it: whoever is alive says so in time."""

    id: bytes
    name: str
    ttl: int  # microseconds that one beat is good for; 0: it leaves, and what it still holds is orphaned
    first: bool = False  # only the first beat makes the row: one that others declared dead never comes back


class Head(msgspec.Struct):
    row: Row
    last: Entry  # without frame


class Group(msgspec.Struct):
    """Entries of one session that land together or not at all. The first must follow `prev`, the others follow it."""

    key: bytes
    prev: bytes | None  # append_id of the entry before; None begins a session, and `create` is its row
    entries: list[Entry]
    create: Row | None = None
    state: str | None = None  # what the session's row becomes, in the same transaction; None leaves it
    body: bytes | None = None
    labels: dict[str, str] | None = None
    heartbeat: bool = False
    delete: bool = False  # the last entry is the tombstone
    owner: bytes | None = None  # the worker that holds the session from now on; no lease, no owner
    only_stale: int = 0  # land only if nobody gave a sign of life for so many microseconds
    only_orphan: int | None = None  # land only if the owner's time ran out so many microseconds ago; it is dead then


class Outcome(StrEnum):
    APPENDED = "appended"
    ALREADY = "already"  # it had landed before: this was a retry
    CONFLICT = "conflict"  # someone else wrote that entry, or took that session id
    FENCED = "fenced"  # the session is no longer held under that lease
    MISSING = "missing"  # no such session, or deleted
    LOST = "lost"  # the entry to follow is gone: the database went back in time


class Verdict(msgspec.Struct):
    """What became of one group. Landed: `times`, the shown ones, and `heartbeat` if it moved that (a retry is told the
    newest). Not landed: `head`, the newest entry, without frame.
    """

    outcome: Outcome
    times: list[int] = []
    head: Entry | None = None
    heartbeat: int = 0


class Query(msgspec.Struct, kw_only=True):
    """Which sessions. Deleted ones are among them only where they are asked for, and then alone."""

    namespace: str
    agent_type: str | None = None
    user_id: str | None = None
    state: str | None = None
    labels: dict[str, str] = {}
    created_after: int | None = None  # exclusive
    created_before: int | None = None  # exclusive
    text: str | None = None  # part of the id, agent type, user id or a label; case of ASCII letters does not matter
    prefix: str | None = None  # of the id
    stale_for: int | None = None  # microseconds without a sign of life; such pages run by (heartbeat, key)
    orphan_for: int | None = None  # held by a worker whose time ran out so many microseconds ago
    owner: bytes | None = None  # held by this worker
    unowned: bool = False  # held by nobody
    ended_for: int | None = None  # completed or failed so many microseconds ago; pages run by (heartbeat, key)
    deleted_for: int | None = None  # deleted so many microseconds ago; pages run by (deleted_at, key)


# An entry without what it holds: its session's key, seq, kind, name, time and size as stored.
Traced = tuple[bytes, int, int, str, int, int]
# A sample reads so many entries for each session that it may hold; and so many of the failures among them.
TRACED, FAILURES = 10, 1_000


class Sample(msgspec.Struct):
    """The newest of some sessions, and their entries, session by session, each in order; at most `limit` of them."""

    limit: int
    sessions: dict[bytes, tuple[str, int]] = {}  # state and created_at by key, newest first
    entries: list[Traced] = []
    failures: list[tuple[bytes, Entry]] = []  # the last failure of each session that is failed now, newest first


class Counts(msgspec.Struct):
    states: dict[str, int] = {}
    agent_types: dict[str, int] = {}
    held: int = 0  # deleted ones are held by nobody
    orphaned: int = 0  # of those held: by workers that are dead
    entries: int = 0  # of the whole store
    stored_bytes: int = 0  # of the whole store
    sample: Sample | None = None


class Event(msgspec.Struct, frozen=True):
    """Something was appended somewhere. Hand `cursor` back as `after` to go on behind it."""

    cursor: str
    session_id: str
    seq: int
    kind: str
    name: str
    timestamp: datetime


Ref = bytes | tuple[str, str]  # a session by key, or by namespace and id
Sign = tuple[bytes, bytes | None]  # of life: a session by key, and the lease that it is held under
Place = tuple[int, bytes]  # where a page ended: (created_at, heartbeat or deleted_at, key)


def order(query: Query) -> tuple[str, bool]:
    """What the pages of a query run by, beside the key, and whether the newest comes first."""
    if query.deleted_for is not None:
        return "deleted_at", False
    if query.stale_for is not None or query.ended_for is not None:
        return "heartbeat", False
    return "created_at", True


# Digits of a number that every database takes.
LONGEST_NUMBER = 18


def feed_number(cursor: str) -> int:
    """Where a cursor points in a feed that numbers its entries."""
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > LONGEST_NUMBER:
        raise foreign_cursor(cursor)
    return int(cursor)


def foreign_cursor(cursor: str) -> InvalidInput:
    return InvalidInput("after", f"{cursor!r} is no cursor; hand back one that an event carried")


def judged(group: Group, here: bytes | None, before: bytes | None, row: Row | None, *, deleted: bool) -> Outcome:
    """Why a group did not land: `here` and `before` are the append_ids found at its first seq and at the one before."""
    first = group.entries[0]
    if here == first.append_id:
        return Outcome.ALREADY
    if row is None or deleted:
        return Outcome.MISSING
    # A row that has not seen the fence of an owner's entry went back in time, and says nothing about the lease.
    back = row.fence < first.fence and first.kind not in TAKING_KINDS
    if first.lease is not None and not back and (row.fence > first.fence or row.lease != first.lease):
        return Outcome.FENCED
    if before is None or before != group.prev:
        return Outcome.LOST
    return Outcome.CONFLICT
