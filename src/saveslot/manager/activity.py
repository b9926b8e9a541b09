"""Activity: what is written, by time. Of one session, all of it; of a namespace, a sample that says what it is of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from saveslot.errors import Corrupt, InvalidInput, KeyMissing
from saveslot.manager.log_pages import ForkLine, Former, Notes, Owners, Target, forks_of, former_of, target_of
from saveslot.manager.outlook import is_late
from saveslot.session.engine import Space
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Span, as_count, as_span
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import FOREVER, Entry, Query, Row, Wanted, as_age, moment

SECOND = 1_000_000
# Entries of one session that are put into buckets, the newest; and buckets of one session.
LOG, PIECES = 100_000, 1_000
# A sample: the sessions created last and those that are held, the newest headers of each, and headers in all.
NEWEST, HELD, EACH, ENTRIES = 1_000, 1_000, 128, 30_000
# Logs read concurrently.
TOGETHER = 100
# Seconds for which figures of a sample are kept.
KEPT = 5.0
# Buckets of a namespace, at most.
MOST = 2_000
# Entries that an overview shows one by one: there are few.
TURNS = frozenset({
    Kind.TAKEN, Kind.CLAIMED, Kind.RELEASED, Kind.ROLLBACK, Kind.PAUSED, Kind.RESUMED, Kind.COMPLETED, Kind.FAILED,
    Kind.RECOVERED, Kind.CANCELLED,
})  # fmt: skip
SAVED = frozenset({Kind.CHECKPOINT, Kind.THINNED})
# Place of `created` in what a bucket counts.
CREATED = 3


class Piece(Answer, frozen=True):
    """Neighbouring entries of one session."""

    from_seq: int
    to_seq: int
    start: Time
    end: Time
    entries: int
    checkpoints: int
    bytes: int  # as stored
    failed_steps: int
    owner: str | None  # the worker that held the session for the most of them


class Turn(Answer, frozen=True):
    """An entry at which the session changed hands, direction or state."""

    seq: int
    kind: str
    at: Time
    owner: str | None
    to: Target | None
    former: Former | None


class Branch(Answer, frozen=True):
    """A fork, and the entry that it continues from."""

    seq: int
    fork: ForkLine


class Overview(Answer, frozen=True):
    """A whole log in a few pieces."""

    session_id: str
    items: list[Piece]
    next: None
    turns: list[Turn]
    forks: list[Branch]
    entries: int  # in the whole log
    from_seq: int  # the first entry that was looked at; more than 1 in a log of more than 100,000


async def overview(sessions: Space, id: str, *, n: int = 120) -> Overview:
    """Return a log in at most `n` pieces of equally many entries each, and the entries at which something turned."""
    n = min(as_count(n, "n", 1), PIECES)
    head = await sessions.reader.existing(id)
    vault, last = sessions.engine.vault, head.last.seq
    sealed = isinstance(head.row.locked, KeyMissing)
    first = max(1, last - LOG + 1)
    reading = (vault.stored if sealed else vault).entries(head.row.key, Wanted([(first, last)], frames=False))
    log, forks = await asyncio.gather(reading, forks_of(sessions, id))
    notes = Notes(id, sealed=sealed)
    owners, held = Owners([], notes), list[str | None]()
    turns: list[Turn] = []
    for entry in log:
        note: Any = notes.of(entry) if entry.kind in TURNS else {}
        owners.read(entry, note)
        held.append(owners.of(entry))
        if entry.kind in TURNS:
            to = target_of(entry, note, id)
            turns.append(
                Turn(entry.seq, Kind(entry.kind).label, moment(entry.at), held[-1], to, former_of(entry, note))
            )
    width = max(1, -(-len(log) // n))
    pieces = [_piece(log[at : at + width], held[at : at + width]) for at in range(0, len(log), width)]
    branches = [Branch(seq, fork) for seq, lines in sorted(forks.items()) for fork in lines]
    return Overview(id, pieces, None, turns, branches, last, first)


def _piece(log: Sequence[Entry], held: Sequence[str | None]) -> Piece:
    owner = max(held, key=held.count)
    failed = sum(entry.kind is Kind.STEP_FAILED for entry in log)
    saved = sum(entry.kind in DATA_KINDS for entry in log)
    weight, times = sum(entry.size for entry in log), (moment(log[0].at), moment(log[-1].at))
    return Piece(log[0].seq, log[-1].seq, *times, len(log), saved, weight, failed, owner)


class Sampled(NamedTuple):
    row: Row
    log: list[Entry]  # its newest headers, as stored


class LookedAt(Answer, frozen=True):
    """What figures rest on: sessions created last and those held, and the newest entries of each."""

    sessions: int
    entries: int
    since: Time | None  # when the oldest of these entries was written
    whole: bool  # all sessions, and all of their entries


class Sample(NamedTuple):
    sessions: list[Sampled]
    looked_at: LookedAt
    now: int  # by the store's clock


def held(namespace: str) -> Query:
    """The sessions that have an owner, dead or alive."""
    return Query(namespace=namespace, orphan_for=-FOREVER)


async def sampled(sessions: Space, agent_type: str | None = None) -> Sample:
    """Read the sessions created last and those held, until there are 30,000 entries; no frames."""
    vault, query = sessions.engine.vault, Query(namespace=sessions.namespace, agent_type=agent_type)
    owned = held(sessions.namespace)
    owned.agent_type = agent_type
    newest, kept = await asyncio.gather(vault.find(query, None, NEWEST), vault.find(owned, None, HELD))
    rows = list({row.key: row for row in (*kept, *newest)}.values())
    samples: list[Sampled] = []
    entries = 0
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        logs = await asyncio.gather(*(_newest(sessions, row) for row in part))
        samples += [Sampled(row, log) for row, log in zip(part, logs, strict=True) if log]
        entries += sum(map(len, logs))
        if entries >= ENTRIES:
            break
    since = min((item.log[0].at for item in samples), default=None)
    whole = len(newest) < NEWEST and len(samples) == len(rows) and all(item.log[0].seq == 1 for item in samples)
    looked_at = LookedAt(len(samples), entries, None if since is None else moment(since), whole)
    return Sample(samples, looked_at, max((row.now for row in rows), default=0))


async def _newest(sessions: Space, row: Row) -> list[Entry]:
    try:
        return await sessions.engine.vault.stored.entries(row.key, Wanted(newest=EACH, frames=False))
    except Corrupt:  # one damaged session must not hide the others
        return []


class Bucket(Answer, frozen=True):
    start: Time
    entries: int
    checkpoints: int
    bytes: int  # as stored
    created: int
    ended: int  # completed
    failed: int
    claimed: int  # sessions taken over from workers that died


class Buckets(Answer, frozen=True):
    bucket_s: int
    items: list[Bucket]  # oldest first, also empty ones
    next: None
    looked_at: LookedAt
    as_of: Time | None


async def buckets(sessions: Space, *, bucket: Span = 60, since: Span = 3600, agent_type: str | None = None) -> Buckets:
    """Count what was written within `since`, by time: of the sessions created last and those held."""
    width = int(as_span(bucket, "bucket"))
    if width < 1:
        raise InvalidInput("bucket", "must be a second or more")
    reach, step = as_age(since, "since"), width * SECOND
    if reach // step >= MOST:
        raise InvalidInput(
            "bucket", f"needs {reach // step + 1:,} buckets, but the maximum is {MOST:,}; pass a longer one"
        )
    question = ("buckets", sessions.namespace, width, reach, agent_type)
    return await sessions.engine.answers.answer(question, KEPT, lambda: _buckets(sessions, width, reach, agent_type))


async def _buckets(sessions: Space, width: int, reach: int, agent_type: str | None) -> Buckets:
    step = width * SECOND
    sample = await sampled(sessions, agent_type)
    counts: dict[int, list[int]] = {}
    if sample.now:
        counts = {place: [0] * 7 for place in range((sample.now - reach) // step, sample.now // step + 1)}
    for entry in entries_of(sample):
        if (count := counts.get(entry.at // step)) is not None:
            for n, value in enumerate(_worth(entry)):
                count[n] += value
    for item in sample.sessions:  # by its row: the first entry of a long session is not in the sample
        if (count := counts.get(item.row.created_at // step)) is not None:
            count[CREATED] += 1
    items = [Bucket(moment(place * step), *count) for place, count in counts.items()]
    return Buckets(width, items, None, sample.looked_at, moment(sample.now) if sample.now else None)


def entries_of(sample: Sample) -> Iterable[Entry]:
    return (entry for item in sample.sessions for entry in item.log)


def _worth(entry: Entry) -> tuple[int, ...]:
    kind = entry.kind
    saved, ended = kind in SAVED, kind is Kind.COMPLETED
    return 1, saved, entry.size, 0, ended, kind is Kind.FAILED, kind is Kind.CLAIMED


class WorkerLine(Answer, frozen=True):
    """A worker that holds sessions of this namespace."""

    name: str
    alive: bool
    late: bool  # silent for more than half of its TTL
    left_s: float
    silent_since: Time | None  # its last heartbeat
    held: int


class Rate(Answer, frozen=True):
    """Per second."""

    checkpoints: float
    bytes: float


class Pulse(Answer, frozen=True):
    """Who works now, and how fast."""

    late: int  # sessions whose owner is late
    workers: list[WorkerLine]  # silent ones first
    rates: dict[str, Rate]  # over 60s, 1h and 24h
    looked_at: LookedAt
    as_of: Time | None


SPANS = {"60s": 60, "1h": 3600, "24h": 86_400}


async def pulse(sessions: Space) -> Pulse:
    """Return workers and rates: of at most 1,000 held sessions, and of a sample, 5 s ago at most."""
    question = ("pulse", sessions.namespace)
    return await sessions.engine.answers.answer(question, KEPT, lambda: _pulse(sessions))


async def _pulse(sessions: Space) -> Pulse:
    rows, sample = await asyncio.gather(
        sessions.engine.vault.find(held(sessions.namespace), None, HELD), sampled(sessions)
    )
    workers = _workers(row for row in rows if row.worker)
    saved = [entry for entry in entries_of(sample) if entry.kind in SAVED]
    rates = {name: _rate(saved, sample.now - seconds * SECOND, seconds) for name, seconds in SPANS.items()}
    as_of = moment(sample.now) if sample.now else None
    return Pulse(sum(line.held for line in workers if line.late), workers, rates, sample.looked_at, as_of)


def _workers(rows: Iterable[Row]) -> list[WorkerLine]:
    by_worker: dict[bytes, list[Row]] = {}
    for row in rows:
        by_worker.setdefault(row.owner or b"", []).append(row)
    lines = [_worker(theirs[0], len(theirs)) for theirs in by_worker.values()]
    return sorted(lines, key=lambda line: (line.alive, not line.late, -line.held, line.name))


def _worker(row: Row, count: int) -> WorkerLine:
    seen = moment(row.beaten) if row.beaten else None
    return WorkerLine(row.worker, row.left > 0, is_late(row), row.left / SECOND, seen, count)


def _rate(saved: Sequence[Entry], since: int, seconds: int) -> Rate:
    recent = [entry.size for entry in saved if entry.at > since]
    return Rate(len(recent) / seconds, sum(recent) / seconds)
