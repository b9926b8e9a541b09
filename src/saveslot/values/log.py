"""Values of the log. A session is one log, and a store accepts entry n+1 only from a writer that has seen entry n.

Stores take and return these values, and decide only the verdict. Times are microseconds since 1970, UTC; keys and ids
are 16 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal

import msgspec

from saveslot.errors import HistoryLost, InvalidInput, SaveslotError
from saveslot.values.checks import as_span
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.lifecycle import SessionState

# Bytes of a key, an append_id, a lease and a worker's id.
ID = 16
# The worker that owns a session released by an error. No process has this id, so every store counts its sessions as
# orphans.
NO_WORKER = b"left by an error"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


# Microseconds of the first and the last moment that a datetime can hold: the years 1 and 9999.
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999


def moment(at: int) -> datetime:
    """A damaged time, beyond what a datetime can hold, becomes the nearest one."""
    return EPOCH + timedelta(0, 0, min(max(at, EARLIEST), LATEST))


# Microseconds (36,500 years): beyond every stored time and age, and small enough for every database to subtract.
FOREVER = 1 << 60
# Beyond every seq of a log, and small enough for every database.
MAX_SEQ = 1 << 62


def as_age(value: Any, path: str) -> int:
    """A duration, as seconds or a timedelta, in microseconds, at most `FOREVER`; `InvalidInput` for anything else."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise InvalidInput(path, f"must be 0 or more, not {value!r}")
        return min(value // MICROSECOND, FOREVER)
    return round(as_span(value, path) * 1_000_000)


class Entry(msgspec.Struct, gc=False):
    """One numbered entry of a session's log."""

    seq: int
    append_id: bytes  # random id of the write, by which a retry recognises its own entry
    kind: Kind
    name: str
    at: int = 0  # displayed time; 0 or less: microseconds relative to the store's clock
    sign: bool = False  # asks the store to count this entry as a sign of life
    alive: int = 0  # the newest sign of life as of this entry, by the store's clock; the store fills it in
    fence: int = 0  # fencing token of the hold as of this entry; a checkpoint repeats that of the entry before
    lease: bytes | None = None
    data_seq: int = 0  # the newest entry, up to this one, that carries the agent's data
    about_seq: int = 0  # the same for context, metadata and labels
    recipe: bytes = b""  # the frames that rebuild this entry's state
    digest: bytes = b""  # of that state, chained over those frames
    note: bytes | None = None  # small data of its own: a lifecycle entry's, a checkpoint's metadata
    frame: bytes | None = None  # the change, as stored; None once thinned
    size: int = 0  # bytes of frame and note as stored, also when they were not read
    # Of a call with an idempotency key: 16 bytes that identify the call, 16 of its content. No two entries of a session
    # have the same first 16.
    request: bytes = b""
    labels: dict[str, str] = {}  # by which `find` finds this entry; read only if asked for (`Wanted.labelled`)
    base: int = 0  # of an entry with a state's frame: the long patch or keyframe that it stands on; 0: it is a keyframe

    def time(self, now: int) -> int:
        return self.at if self.at > 0 else now + self.at


class Row(msgspec.Struct):
    """A session's descriptor and the current state of its log."""

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
    worker: str = ""  # the owner's name; read only
    left: int = 0  # microseconds until other workers may take the session over, 0 if they may; read only
    beaten: int = 0  # the owner's last heartbeat, 0 if it never sent one; read only
    now: int = 0  # the store's clock when this was read; read only
    changed_at: int = 0  # time of the newest entry, pins and retention marks aside; read only, if ordered by it
    deleted_at: int = 0  # read only
    # Read only, and filled only by queries for ended or deleted sessions:
    weight: int = 0  # bytes of frames and notes
    length: int = 0  # number of entries
    last: bytes = b""  # append_id of the newest entry
    request: bytes = b""  # as an entry's, of the call that created it; its first half is unique in a namespace
    locked: SaveslotError | None = None  # why it cannot be used: sealed and the key is missing, or damaged; read only


class Worker(msgspec.Struct):
    """A process that holds sessions. It counts as alive while it renews its row in time."""

    id: bytes
    name: str
    ttl: int  # microseconds that one heartbeat lasts; 0: the worker leaves, and sessions it still holds are orphaned
    first: bool = False  # only the first heartbeat creates the row: a worker declared dead never comes back


class Head(msgspec.Struct):
    """A session's row and its newest entry; `data` and `frames` only if the caller requested the state too."""

    row: Row
    last: Entry  # without frame
    data: Entry | None = None  # entry `last.data_seq`, without frame; None if nothing was saved yet
    frames: list[Entry] | None = None  # the frames that rebuild it, if at hand: seq, kind, digest and frame of each
    before: tuple[bytes, int] | None = None  # digest and time of the entry before the newest, as stored


class Group(msgspec.Struct):
    """Entries of one session that land together or not at all. The first must follow `prev`, the others follow it."""

    key: bytes
    prev: bytes | None  # append_id of the entry before; None creates a session, with `create` as its row
    entries: list[Entry]
    create: Row | None = None
    state: str | None = None  # new value in the session's row, in the same transaction; None leaves it
    body: bytes | None = None
    labels: dict[str, str] | None = None
    heartbeat: bool = False
    delete: bool = False  # the last entry is the tombstone
    owner: bytes | None = None  # the worker that holds the session from now on; without a lease there is no owner
    only_stale: int = 0  # land only if there was no sign of life for this many microseconds
    only_orphan: int | None = None  # land only if the owner is overdue by this many microseconds; it is then dead


class Outcome(StrEnum):
    APPENDED = "appended"
    ALREADY = "already"  # it had landed before: this was a retry
    CONFLICT = "conflict"  # another writer wrote that entry, or created that session id
    FENCED = "fenced"  # the session is no longer held under that lease
    MISSING = "missing"  # no such session, or deleted
    LOST = "lost"  # the entry to follow is gone: the database went back in time
    SKIPPED = "skipped"  # a group that it had to land together with was refused


class Verdict(msgspec.Struct):
    """The store's answer to one group. Landed: `times`, the displayed ones, and `heartbeat` if the group renewed it (a
    retry gets the newest). Not landed: `head`, the newest entry, without frame.
    """

    outcome: Outcome
    times: list[int] = []
    head: Entry | None = None
    heartbeat: int = 0


class Wanted(msgspec.Struct, frozen=True):
    """Which entries of a log a reader wants, and how much of each."""

    ranges: Sequence[tuple[int, int]] = ((1, MAX_SEQ),)  # of seqs, both ends included
    kinds: frozenset[int] | None = None
    name: str | None = None
    newest: int | None = None  # only the last n of those
    frames: bool = True  # without frames `size` still counts their bytes
    room: int | None = None  # bytes of frames of one range and the chain, the newest first; older ones are left out
    request: bytes | None = None  # the first 16 bytes of the entry's
    # Also the entries from this seq on by `base`, wherever they stand. A base that is not an earlier entry ends it.
    chain: int = 0
    labelled: bool = False  # only entries that have labels, and these with them

    def with_chain(self, chain: Iterable[int]) -> list[tuple[int, int]]:
        """The ranges, and what the chain adds to them, oldest first; no entry stands in two of them."""
        ranges = [span for span in self.ranges if span[0] <= span[1]]
        added = [(seq, seq) for seq in chain if not any(first <= seq <= last for first, last in ranges)]
        return sorted([*ranges, *added])


ALL = Wanted()


def among(wanted: Wanted, seqs: Iterable[int]) -> Wanted:
    """The same entries, but of these seqs only; without its chain."""
    spans: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if not any(first <= seq <= last for first, last in wanted.ranges):
            continue
        begin = spans.pop()[0] if spans and spans[-1][1] == seq - 1 else seq
        spans.append((begin, seq))
    return msgspec.structs.replace(wanted, ranges=spans, chain=0, labelled=False)


class Query(msgspec.Struct, kw_only=True):
    """Conditions on sessions. Only `deleted_for` selects deleted sessions, and then no others."""

    namespace: str
    agent_type: str | None = None
    user_id: str | None = None
    state: str | None = None
    labels: dict[str, str] = {}
    entry: dict[str, str] = {}  # labels that one of its entries has, all of them
    request: bytes | None = None  # the first 16 bytes of the session's
    created_after: int | None = None  # exclusive
    created_before: int | None = None  # exclusive
    text: str | None = None  # part of the id, agent type, user id or a label; case of ASCII letters does not matter
    prefix: str | None = None  # of the id
    stale_for: int | None = None  # microseconds without a sign of life; pages are ordered by (heartbeat, key)
    orphan_for: int | None = None  # held by a worker overdue by this many microseconds
    owner: bytes | None = None  # held by this worker
    unowned: bool = False  # without an owner
    ended_for: int | None = None  # microseconds since it completed or failed; pages are ordered by (heartbeat, key)
    deleted_for: int | None = None  # microseconds since it was deleted; pages are ordered by (deleted_at, key)
    changed: bool = False  # pages are ordered by (changed_at, key), unless another condition orders them


# `deleted_for` that finds every deleted session, even if the clock was set back since.
EVER_DELETED = -(1 << 50)
# Of what `Store.count` adds up entries and bytes: the whole store, the sessions that match, or nothing.
Totals = Literal["store", "matching", "none"]


class Counts(msgspec.Struct):
    states: dict[str, int] = {}
    agent_types: dict[str, int] = {}
    held: int = 0  # sessions with an owner; deleted ones have none
    orphaned: int = 0  # held sessions whose worker is dead
    entries: int = 0  # of the whole store, or of the sessions that match
    # Of the whole store: as it takes room. Of the sessions that match: of frames and notes, and of what else callers
    # choose: recipes, names and labels of entries, bodies.
    stored_bytes: int = 0


class Event(msgspec.Struct, frozen=True):
    """An appended entry. Pass `cursor` as `after` to continue after it."""

    cursor: str
    session_id: str
    seq: int
    kind: str
    name: str
    timestamp: datetime

    def to_dict(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "timestamp": self.timestamp.isoformat()}


Labels = Mapping[int, Mapping[str, str]]  # of entries, by seq
Ref = bytes | tuple[str, str]  # a session by key, or by namespace and id
Sign = tuple[bytes, bytes | None]  # a heartbeat: a session's key, and the lease that it is held under
Place = tuple[int, bytes]  # where a page ended: (created_at, changed_at, heartbeat or deleted_at; key)


def order(query: Query) -> tuple[str, bool]:
    """The column that orders the pages of a query, before the key, and whether the newest comes first."""
    if query.deleted_for is not None:
        return "deleted_at", False
    if query.stale_for is not None or query.ended_for is not None:
        return "heartbeat", False
    return ("changed_at" if query.changed else "created_at"), True


def prefixed(prefix: str) -> tuple[str, str]:
    """The least text that begins so, and the least after all that do, in the order of code points.

    The second is "" if no text comes after them.
    """
    rest = prefix.rstrip("\U0010ffff")
    if not rest:
        return prefix, ""
    following = ord(rest[-1]) + 1
    return prefix, rest[:-1] + chr(0xE000 if following == 0xD800 else following)  # noqa: PLR2004  (surrogates between)


# Of a label or prefix that is to lead a query, at most this many matches are counted beforehand.
PROBED = 1000


def led(query: Query, by_label: Sequence[int], by_prefix: int | None) -> tuple[Query, bool]:
    """The query with its rarest label first, and whether its prefix is rarer. The counts end at `PROBED`."""
    labels = sorted(zip(by_label, query.labels.items(), strict=True), key=itemgetter(0))
    ordered = msgspec.structs.replace(query, labels=dict(label for _, label in labels))
    rarest = min([PROBED, *by_label])
    return ordered, by_prefix is not None and by_prefix < rarest


# Digits of a number that fits into every database.
LONGEST_NUMBER = 18


def seq_after(cursor: str) -> int | None:
    """The n of `@n`: after entry n of the session whose events are read. None for another cursor."""
    if not cursor.startswith("@"):
        return None
    return feed_number(cursor[1:])


def feed_number(cursor: str) -> int:
    """The number in a cursor of a feed that numbers its entries."""
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > LONGEST_NUMBER:
        raise foreign_cursor(cursor)
    return int(cursor)


def foreign_cursor(cursor: str) -> InvalidInput:
    return InvalidInput("after", f"{cursor!r} is not a cursor; pass one from an event")


def lost_place(cursor: str) -> HistoryLost:
    """For a cursor whose entry is not there any more, though no purge removed it."""
    return HistoryLost(
        f"the entry of cursor {cursor!r} is gone: the database went back, or is another one; compare with your own "
        'records, and watch again from now on or from the start (after="0")'
    )


def judged(group: Group, here: bytes | None, before: bytes | None, row: Row | None, *, deleted: bool) -> Outcome:
    """Why a group did not land. `here`, `before`: the stored append_ids at its first seq and at the one before."""
    first = group.entries[0]
    if here == first.append_id:
        return Outcome.ALREADY
    if row is None or deleted:
        return Outcome.MISSING
    # A row whose fence is below that of an owner's entry went back in time, and says nothing about the lease.
    back = row.fence < first.fence and first.kind not in TAKING_KINDS
    if first.lease is not None and not back and (row.fence > first.fence or row.lease != first.lease):
        return Outcome.FENCED
    if before is None or before != group.prev:
        return Outcome.LOST
    return Outcome.CONFLICT


# Lengths in bytes that a stored digest can have: none, that of frames, and each with the entry's link after it.
DIGESTS = frozenset({0, 16, 32, 48})
# Bytes. A recipe names ranges of entries, and at most some hundred frames: far below this.
LONGEST_RECIPE = 64 * 1024
_LENGTH = f"must be {ID} bytes"
# Bytes of a request, if there is one.
REQUEST = 32
_STATES = frozenset(SessionState)
_KINDS = frozenset(Kind)
_CREATED, _TOMBSTONE = Kind.CREATED, Kind.TOMBSTONE
_REQUESTS = frozenset({0, REQUEST})
_REQUEST_LENGTH = f"must be {REQUEST} bytes, or none"
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_DELETE = "must be set if and only if the last entry is a tombstone"
_ODD_TEXT = "contains a NUL or half of a surrogate pair, which databases refuse"


def checked(group: Group) -> Group:
    """Return the group if it is well formed; else raise `InvalidInput` with the path of what is wrong.

    This is the part of the log's rule that needs no store. Stores do not check on the hot path: their callers build
    groups from a `Draft`. The memory store does, and so does anything that takes groups from another process.
    """
    entries = group.entries
    if len(group.key) != ID:
        raise InvalidInput("key", _LENGTH)
    if not entries:
        raise InvalidInput("entries", "must not be empty")
    if group.create is not None:
        _check_creation(group, group.create)
    elif group.prev is None or len(group.prev) != ID:
        raise InvalidInput("prev", f"{_LENGTH}: the entry to follow")
    elif entries[0].seq <= 1:
        raise InvalidInput("entries[0].seq", "must be 2 or more: entry 1 creates the session")
    for n, entry in enumerate(entries):
        _check_entry(entry, n, first=group.create is not None)
    if len(entries) > 1:
        _check_order(entries)
    if (entries[-1].kind is _TOMBSTONE) != group.delete:
        raise InvalidInput("delete", _DELETE)
    if group.state is not None and group.state not in _STATES:
        raise InvalidInput("state", f"is not a state of a session: {group.state!r}")
    if group.owner is not None and len(group.owner) != ID:
        raise InvalidInput("owner", _LENGTH)
    if group.owner is not None and entries[-1].lease is None:
        raise InvalidInput("owner", "needs a lease in the last entry")
    if group.only_stale < 0:
        raise InvalidInput("only_stale", "must be 0 or more microseconds")
    if group.only_orphan is not None and group.only_orphan < 0:
        raise InvalidInput("only_orphan", "must be 0 or more microseconds")
    if group.labels:
        _check_labels(group.labels, "labels")
    return group


def checked_labels(labels: Labels) -> Labels:
    """Return labels by seq, as `Store.swap` takes them, if they are well formed; else raise `InvalidInput`."""
    for seq, named in labels.items():
        if not 1 <= seq <= MAX_SEQ:
            raise InvalidInput("labels", f"names entry {seq}; no log has one")
        _check_labels(named, f"labels[{seq}]")
    return labels


def checked_together(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups if they can land together: they must not depend on one another, or on a worker's silence."""
    created = [row for group in groups if (row := group.create) is not None]
    ids = [(row.namespace, row.session_id) for row in created]
    requests = [(row.namespace, row.request[:ID]) for row in created if row.request]
    for names, what in (([group.key for group in groups], "session"), (ids, "id"), (requests, "request")):
        if len({*names}) < len(names):
            raise InvalidInput("groups", f"must not name a {what} twice")
    if any(group.only_stale or group.only_orphan is not None for group in groups):
        raise InvalidInput("groups", "must not have only_stale or only_orphan")
    return groups


def _check_creation(group: Group, row: Row) -> None:
    for fine, path, reason in (
        (group.prev is None, "prev", "must be None: nothing comes before a session's first entry"),
        (group.entries[0].seq == 1, "entries[0].seq", "must be 1, the first of a session"),
        (row.key == group.key, "create.key", "is not the group's key"),
        (bool(row.namespace), "create.namespace", "must not be empty"),
        (bool(row.session_id), "create.session_id", "must not be empty"),
        (row.state in _STATES, "create.state", f"is not a state of a session: {row.state!r}"),
        (not group.only_stale, "only_stale", "must not be set when a session is created"),
        (group.only_orphan is None, "only_orphan", "must not be set when a session is created"),
        (len(row.request) in _REQUESTS, "create.request", _REQUEST_LENGTH),
    ):
        if not fine:
            raise InvalidInput(path, reason)
    texts = {"namespace": row.namespace, "session_id": row.session_id, "agent_type": row.agent_type}
    for name, text in {**texts, "user_id": row.user_id}.items():
        _check_text(text, f"create.{name}")
    _check_labels(row.labels, "create.labels")


def _check_entry(entry: Entry, n: int, *, first: bool) -> None:
    """Check entry `n` of a group by itself. `first`: the group creates the session."""
    seq = entry.seq
    if len(entry.append_id) != ID:
        raise _wrong(n, "append_id", _LENGTH)
    if entry.kind not in _KINDS:
        raise _wrong(n, "kind", f"is unknown: {entry.kind!r}")
    if entry.kind is _CREATED and not first:
        raise _wrong(n, "kind", "CREATED must be in the group that creates a session")
    if _UNSTORABLE.search(entry.name):
        raise _wrong(n, "name", _ODD_TEXT)
    if entry.fence < 0:
        raise _wrong(n, "fence", "must be 0 or more")
    if entry.lease is not None:
        if len(entry.lease) != ID:
            raise _wrong(n, "lease", _LENGTH)
        if not entry.fence:
            raise _wrong(n, "fence", "must be 1 or more under a lease")
    if not 0 <= entry.data_seq <= seq:
        raise _wrong(n, "data_seq", "names an entry after this one")
    if not 0 <= entry.about_seq <= seq:
        raise _wrong(n, "about_seq", "names an entry after this one")
    if not 0 <= entry.base < seq:
        raise _wrong(n, "base", "must be 0 or an earlier entry")
    if len(entry.request) not in _REQUESTS:
        raise _wrong(n, "request", _REQUEST_LENGTH)
    if entry.labels:
        _check_labels(entry.labels, f"entries[{n}].labels")
    if len(entry.digest) not in DIGESTS:
        raise _wrong(n, "digest", "must be 0, 16, 32 or 48 bytes")
    if len(entry.recipe) > LONGEST_RECIPE:
        raise _wrong(n, "recipe", f"must be at most {LONGEST_RECIPE:,} bytes")


def _check_order(entries: Sequence[Entry]) -> None:
    """Check the entries of a group against one another."""
    for n, (before, entry) in enumerate(pairwise(entries), 1):
        if entry.seq != before.seq + 1:
            raise _wrong(n, "seq", f"must be {before.seq + 1}, not {entry.seq}")
        if entry.append_id == before.append_id:
            raise _wrong(n, "append_id", "must differ from the entry's before it")
        if entry.fence < before.fence:
            raise _wrong(n, "fence", "must not fall")
        if entry.lease is not None and entry.lease != before.lease and entry.fence == before.fence:
            raise _wrong(n, "fence", "must rise with a new lease")
        if before.kind is _TOMBSTONE:
            raise InvalidInput("delete", _DELETE)
    requests = [entry.request[:ID] for entry in entries if entry.request]
    if len({*requests}) < len(requests):
        raise InvalidInput("entries", "must not repeat a request")


def _check_labels(labels: Mapping[str, str], path: str) -> None:
    for name, value in labels.items():
        _check_text(name, path)
        _check_text(value, f"{path}.{name}")


def _check_text(text: str, path: str) -> None:
    if _UNSTORABLE.search(text):
        raise InvalidInput(path, _ODD_TEXT)


def _wrong(n: int, field: str, reason: str) -> InvalidInput:
    return InvalidInput(f"entries[{n}].{field}", reason)
