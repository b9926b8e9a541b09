"""Pages of a session's whole log: what each entry is and did, from headers alone.

    … 10 step_started   11 checkpoint   12 claimed   13 rollback …       before=, after= or around= a number

A page costs its own headers and a few more: the 200 entries on either side of it, in which a step began or ended, and
the later entries that pin or hide checkpoints. So it is as fast in a log of 10,000 entries as in one of 100.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from saveslot import codec
from saveslot.errors import Corrupt, InvalidInput, KeyMissing, NotFound
from saveslot.manager.log_lines import glance
from saveslot.session.draft import FORKED
from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.retention import pins
from saveslot.session.steps import AGAIN, RETRY, Journal
from saveslot.session.timeline import note_of, visible
from saveslot.session.vault import OPEN_KINDS
from saveslot.stores import Store
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Data, as_count
from saveslot.values.kinds import (
    DATA_KINDS,
    ENDING_KINDS,
    HIDING_KINDS,
    OWNER_KINDS,
    STEP_KINDS,
    TAKING_KINDS,
    Kind,
)
from saveslot.values.log import NO_WORKER, Entry, Head, Query, Wanted, moment
from saveslot.values.refs import elsewhere
from saveslot.values.versions import version

# Entries on a page: by default, and at most.
PAGE, MOST = 100, 500
# Entries on either side of a page in which the other end of a step is looked for.
NEAR = 200
# Bytes of states, summed over a page, up to which `changed` compares them: some 5 ms. Beyond that, only keys are named.
COMPARED = 4 * 1024 * 1024
# Forks of one session that are listed, the newest first.
FORKS = 100

HIDING_OR_PINNING = HIDING_KINDS | {Kind.PINNED, Kind.UNPINNED}
PINNING = frozenset({Kind.PINNED, Kind.UNPINNED})

StepStatus = Literal["running", "unknown", "retrying", "retry", "finished", "failed"]
LeaseChange = Literal["taken", "claimed", "released"]


class ChangedCounts(Answer, frozen=True):
    """How many top-level keys a checkpoint added, removed and changed."""

    added: int
    removed: int
    changed: int


class StepMark(Answer, frozen=True):
    """The step that an entry is about. An entry that started one has the status of the step's outcome."""

    key: str | None
    mode: Literal["at_most_once", "idempotent"]
    status: StepStatus
    started_at: Time | None  # an idempotent step does not journal its start
    duration_s: float | None
    error: str
    attempt: int
    idempotency_key: str


class Target(Answer, frozen=True):
    """The entry that a rollback went back to."""

    seq: int
    name: str


class Former(Answer, frozen=True):
    """The worker that died, and its last heartbeat."""

    worker: str
    silent_since: Time | None


class ForkLine(Answer, frozen=True):
    """A session that continues from an entry of this one."""

    id: str
    state: str
    entries: int


class LogEntry(Answer, frozen=True):
    """An entry of a log, without the state that it leads to."""

    seq: int
    version: str
    kind: str
    name: str
    at: Time
    bytes: int  # as stored
    owner: str | None  # the worker that held the session when it was written
    fence: int
    lease_change: LeaseChange | None
    data_seq: int  # the entry with the agent's data as of this one; 0 before the first checkpoint
    metadata: Any  # of a checkpoint or rollback; any other entry's data
    changed: list[str]  # as in `saveslot log`: messages +2, +plan, -draft, ~notes
    changed_counts: ChangedCounts | None  # None if the entry does not say
    state_bytes: int | None  # of the state as JSON, if the entry carries one
    pinned: bool
    thinned: bool
    damaged: str  # what is wrong with it, if something is; with its state only where `changed` compared that
    step: StepMark | None
    to: Target | None
    former: Former | None = msgspec.field(name="from")
    forks: list[ForkLine]
    idempotency: str  # hash of the idempotency key that it was written with


class LogPage(Answer, frozen=True):
    """A page of a log, oldest first."""

    session_id: str
    items: list[LogEntry]
    next: int | None  # `after` of the page with later entries
    previous: int | None  # `before` of the page with earlier ones
    entries: int  # in the whole log
    etag: str  # the same as long as the whole log and its owner are
    sealed: bool  # its key is missing: no metadata, steps or changes are known


@with_a_fresh_head
async def log_page(
    sessions: Space,
    id: str,
    *,
    around: int | None = None,
    before: int | None = None,
    after: int | None = None,
    limit: int = PAGE,
    changed: bool = False,
) -> LogPage:
    """Return the entries before, after or around a number, else the newest ones: all kinds, also thinned ones.

    With `changed`, short values that changed are named too (`turn 3→4`) and damaged states are found, where the page's
    states weigh at most 4 MB in all. A session whose key is missing has its log, without what is sealed.
    """
    limit = min(as_count(limit, "limit", 1), MOST)
    if sum(value is not None for value in (around, before, after)) > 1:
        raise InvalidInput("around", "excludes before and after; pass one of the three")
    head = await sessions.reader.existing(id)
    first, last = _span(head.last.seq, around, before, after, limit)
    if first > last:
        return _page(head, [], first)
    parts = await Parts.read(sessions, head, first, last)
    forks = await forks_of(sessions, id)
    compared = await _compared(sessions, head, parts) if changed and not parts.sealed else Compared({}, {})
    return _page(head, list(_lines(parts, forks, compared)), first)


def _span(newest: int, around: int | None, before: int | None, after: int | None, limit: int) -> tuple[int, int]:
    """Return the numbers of the first and the last entry of a page."""
    if after is not None:
        first = as_count(after, "after") + 1
    elif around is not None:
        first = max(1, min(as_count(around, "around") - limit // 2, newest - limit + 1))
    else:
        last = newest if before is None else min(as_count(before, "before") - 1, newest)
        return max(1, last - limit + 1), last
    return first, min(first + limit - 1, newest)


def _page(head: Head, items: list[LogEntry], first: int) -> LogPage:
    newest = head.last.seq
    last = items[-1].seq if items else min(first - 1, newest)
    return LogPage(
        head.row.session_id,
        items,
        last if last < newest else None,
        first if 1 < first <= newest else None,
        newest,
        etag(head),
        isinstance(head.row.locked, KeyMissing),
    )


def etag(head: Head) -> str:
    """A version of everything that a log page shows: pins count, and an owner's death."""
    alive = head.row.lease is not None and head.row.left > 0
    return f"{version(head.last.seq, head.last.append_id)}{'+' if alive else ''}"


class Parts(NamedTuple):
    """What a page is made of."""

    head: Head
    sealed: bool
    entries: list[Entry]
    near: list[Entry]  # steps and owners shortly before the page, and steps shortly after it
    before: Entry | None  # the entry before the page
    hiding: list[Entry]  # of all entries from the page on: what pins or hides

    @classmethod
    async def read(cls, sessions: Space, head: Head, first: int, last: int) -> Parts:
        sealed = isinstance(head.row.locked, KeyMissing)
        vault, key, end = sessions.engine.vault, head.row.key, head.last.seq
        store: Store = vault.stored if sealed else vault
        reach = (max(1, first - NEAR), last)
        page, later, hiding = await asyncio.gather(
            store.entries(key, Wanted([reach], frames=False)),
            store.entries(key, Wanted([(last + 1, min(end, last + NEAR))], kinds=STEP_KINDS, frames=False)),
            store.entries(key, Wanted([(first, end)], kinds=HIDING_OR_PINNING, frames=False)),
        )
        earlier = [entry for entry in page if entry.seq < first]
        entries = [entry for entry in page if entry.seq >= first]
        before = earlier[-1] if earlier else None
        near = [entry for entry in earlier if entry.kind in STEP_KINDS | OWNER_KINDS]
        if before is not None and before.lease is not None and not any(e.kind in OWNER_KINDS for e in near):
            taken = Wanted([(1, first - 1)], kinds=OWNER_KINDS, newest=1, frames=False)
            near = await store.entries(key, taken) + near
        return cls(head, sealed, entries, near + later, before, hiding)


class Notes:
    """The notes of a page's entries; empty where they are sealed without a key, or damaged."""

    def __init__(self, session_id: str, *, sealed: bool) -> None:
        self._session_id, self._sealed = session_id, sealed
        self.damaged: dict[int, str] = {}

    def readable(self, entry: Entry) -> bool:
        return not self._sealed or entry.kind in OPEN_KINDS

    def of(self, entry: Entry) -> Any:
        if not self.readable(entry):
            return {}
        try:
            return note_of(entry, f"{self._session_id}:{entry.seq}")
        except Corrupt as exc:
            self.damaged[entry.seq] = exc.reason
            return {}

    def changes(self, entry: Entry) -> codec.Changed | None:
        if entry.kind not in DATA_KINDS or not self.readable(entry):
            return None
        try:
            return codec.read_changes(entry.note)
        except Corrupt as exc:
            self.damaged[entry.seq] = exc.reason
            return None


def _lines(parts: Parts, forks: Mapping[int, list[ForkLine]], compared: Compared) -> Iterable[LogEntry]:
    session_id = parts.head.row.session_id
    notes = Notes(session_id, sealed=parts.sealed)
    notes.damaged.update(compared.damaged)
    owners = Owners(parts.near, notes)
    marks = _step_marks(parts, notes)
    kept, pinned = _kept(parts)
    lease = None if parts.before is None else parts.before.lease
    for entry in parts.entries:
        note = notes.of(entry)
        changes = notes.changes(entry)
        owners.read(entry, note)
        yield LogEntry(
            entry.seq,
            version(entry.seq, entry.append_id),
            Kind(entry.kind).label,
            entry.name,
            moment(entry.at),
            entry.size,
            owners.of(entry),
            entry.fence,
            _lease_change(entry, lease),
            entry.data_seq,
            note,
            compared.changed.get(
                entry.seq, [] if changes is None else [_named(*change) for change in changes.keys.items()]
            ),
            None if changes is None else ChangedCounts(changes.added, changes.removed, changes.changed),
            _weight(entry, notes),
            entry.seq in pinned,
            entry.kind in DATA_KINDS and entry.seq not in kept,
            notes.damaged.get(entry.seq, ""),
            marks.get(entry.seq),
            target_of(entry, note, session_id),
            former_of(entry, note),
            forks.get(entry.seq, []),
            entry.request[:16].hex() if notes.readable(entry) else "",
        )
        lease = entry.lease


def _named(key: str, what: int | bool | None) -> str:  # noqa: FBT001  (as notes have it)
    match what:
        case None:
            return f"-{key}"
        case True:
            return f"+{key}"
        case 0:
            return f"~{key}"
        case items:
            return f"{key} {items:+}"


def _weight(entry: Entry, notes: Notes) -> int | None:
    """Return the bytes of the state as of an entry that carries one; None if its recipe, of format 1, does not say."""
    if entry.kind not in DATA_KINDS or not notes.readable(entry):
        return None
    try:
        recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
    except Corrupt as exc:
        notes.damaged[entry.seq] = exc.reason
        return None
    return None if recipe.old else recipe.size


def _lease_change(entry: Entry, before: bytes | None) -> LeaseChange | None:
    if entry.kind in TAKING_KINDS:
        return "claimed" if entry.kind is Kind.CLAIMED else "taken"
    ended = entry.kind in ENDING_KINDS and before is not None and entry.lease is None
    return "released" if ended or entry.kind is Kind.RELEASED else None


def target_of(entry: Entry, note: Any, session_id: str) -> Target | None:
    place = elsewhere(str(note.get("to", ""))) if entry.kind is Kind.ROLLBACK else None
    return None if place is None or place[0] != session_id else Target(place[1], str(note.get("name", "")))


def former_of(entry: Entry, note: Any) -> Former | None:
    if entry.kind is not Kind.CLAIMED:
        return None
    silent = note.get("silent_since")
    return Former(str(note.get("from", "")), None if silent is None else datetime.fromisoformat(silent))


def _kept(parts: Parts) -> tuple[frozenset[int], frozenset[int]]:
    """Return the numbers of the page's visible checkpoints, and of the pinned ones."""
    if parts.sealed:
        return frozenset(entry.seq for entry in parts.entries), frozenset()
    hiding = [entry for entry in parts.hiding if entry.kind in HIDING_KINDS]
    try:
        kept = visible(parts.entries, hiding, parts.head.row.session_id)
        return frozenset(e.seq for e in kept), frozenset(pins(e for e in parts.hiding if e.kind in PINNING))
    except Corrupt:  # a damaged mark hides nothing, and is shown as damaged where it stands
        return frozenset(entry.seq for entry in parts.entries), frozenset()


class Owners:
    """Workers by lease, as the entries read so far name them."""

    def __init__(self, entries: Iterable[Entry], notes: Notes) -> None:
        self._workers: dict[bytes, str] = {}
        for entry in entries:
            if entry.kind in OWNER_KINDS:
                self.read(entry, notes.of(entry))

    def read(self, entry: Entry, note: Any) -> None:
        if entry.lease is None:
            return
        if entry.kind in TAKING_KINDS:
            self._workers[entry.lease] = str(note.get("worker", ""))
        elif entry.kind is Kind.RELEASED:  # by an error: the lease stays, its owner is gone
            self._workers.pop(entry.lease, None)

    def of(self, entry: Entry) -> str | None:
        return None if entry.lease is None else self._workers.get(entry.lease)


def held_now(head: Head) -> bool:
    """True if a living worker holds the session."""
    return head.row.lease is not None and head.row.left > 0 and head.row.owner != NO_WORKER


def _step_marks(parts: Parts, notes: Notes) -> dict[int, StepMark]:
    """Return the steps that entries on the page are about, each with its start and its outcome."""
    journal = Journal(parts.head.row.session_id, parts.head.row.key)
    begun: dict[tuple[str, str | None], Entry] = {}
    marks: dict[int, StepMark] = {}
    seqs = {entry.seq for entry in parts.entries}
    around = sorted([*parts.near, *parts.entries], key=lambda entry: entry.seq)
    for entry in around:
        if entry.kind not in STEP_KINDS or not notes.readable(entry):
            continue
        note = notes.of(entry)
        name = (entry.name, note.get("key"))
        start = begun.pop(name, None)
        if entry.kind is Kind.STEP_STARTED:
            begun[name], start = entry, entry
        mark = _mark(journal, entry, note, start, parts.head)
        if entry.seq in seqs:
            marks[entry.seq] = mark
        if start is not None and start.seq in seqs:
            marks[start.seq] = mark
    return marks


def _mark(journal: Journal, entry: Entry, note: Data, start: Entry | None, head: Head) -> StepMark:
    ended = entry.kind is not Kind.STEP_STARTED
    return StepMark(
        note.get("key"),
        "idempotent" if start is None else "at_most_once",
        step_status(entry, note, held=held_now(head) and entry.lease == head.row.lease),
        None if start is None else moment(start.at),
        (entry.at - start.at) / 1_000_000 if start is not None and ended else None,
        str(note.get("error", "")),
        int(note.get("attempt", 1)),
        journal.new(entry.name, note.get("key")).idempotency_key,
    )


def step_status(entry: Entry, note: Data, *, held: bool) -> StepStatus:
    """The status of a step whose newest entry is this one. `held`: its owner still holds the session, and lives."""
    match entry.kind:
        case Kind.STEP_STARTED:
            return "running" if held else "unknown"
        case Kind.STEP_FINISHED:
            return "finished"
        case _:
            return "retry" if note.get(RETRY) else "retrying" if note.get(AGAIN) else "failed"


async def forks_of(sessions: Space, id: str) -> dict[int, list[ForkLine]]:
    """Return the newest forks of a session, by the entry that each continues from."""
    vault = sessions.engine.vault
    rows = await vault.find(Query(namespace=sessions.namespace, entry={FORKED: id}), None, FORKS)
    forks: dict[int, list[ForkLine]] = {}
    for head in await vault.heads([row.key for row in rows]) if rows else ():
        if head is None or head.row.locked is not None:
            continue
        place = elsewhere(str(sessions.lookup.session(head, locked=True).metadata.get("forked_from", "")))
        if place is not None and place[0] == id:
            line = ForkLine(head.row.session_id, head.row.state, head.last.seq)
            forks.setdefault(place[1], []).append(line)
    return forks


class Compared(NamedTuple):
    """What the states of a page tell, by number."""

    changed: dict[int, list[str]]
    damaged: dict[int, str]


async def _compared(sessions: Space, head: Head, parts: Parts) -> Compared:
    """Return what changed at the page's states, with short values, if they weigh little enough together."""
    compared = Compared({}, {})
    gone = frozenset(entry.seq for entry in parts.entries) - _kept(parts)[0]
    data = [entry for entry in parts.entries if entry.kind in DATA_KINDS and entry.seq not in gone]
    first = data[0].seq if data else 0
    try:
        weights = [codec.Recipe.unpack(entry.recipe, entry.seq).weight for entry in data]
        if not data or sum(weights) > COMPARED:
            return compared
        before = await sessions.lookup.visible(head, DATA_KINDS, within=(1, first - 1), newest=1) if first > 1 else []
        timeline = await sessions.lookup.timeline(head, [*before, *data])
    except Corrupt:  # the entry says so
        return compared
    old: Mapping[str, bytes] | None = {}
    for entry in (*before, *data):
        try:
            new = {key: bytes(text) for key, text in timeline.state(entry).texts.items()}
        except (Corrupt, NotFound) as exc:
            if isinstance(exc, Corrupt) and entry not in before:
                compared.damaged[entry.seq] = exc.reason
            old = None
            continue
        if old is not None and entry not in before:
            compared.changed[entry.seq] = glance(old, new)
        old = new
    return compared
