"""Outlook of a session: where work would go on if its worker died now, what is open, and which verbs are allowed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from saveslot.errors import InvalidTransition
from saveslot.manager.failures import End, failed_heads, failure, is_orphan, loss
from saveslot.manager.log_pages import held_now, step_status
from saveslot.session import attempts
from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.steps import Journal
from saveslot.session.timeline import note_of
from saveslot.values.answers import Answer, Time
from saveslot.values.kinds import STEP_KINDS, TAKING_KINDS
from saveslot.values.lifecycle import SessionState, follow
from saveslot.values.log import NO_WORKER, Entry, Head, Query, Row, Wanted, micros, moment

# Newest step entries that are read. An older step that never ended is not seen; a session has few steps open.
STEPS = 1_000
# Microseconds: what `reason_today_count` counts.
TODAY = 24 * 3600 * 1_000_000

# Verbs that depend on the session's state, and others; and those that no caller may use while a worker holds it.
BY_STATE = ("pause", "resume", "complete", "fail", "cancel", "recover", "rollback", "checkpoint", "hold")
OTHERS = ("release", "pin", "unpin", "fork", "update", "delete")
ALONE = frozenset({"complete", "recover", "rollback", "checkpoint", "hold", "pin", "unpin"})


class Place(Answer, frozen=True):
    """The checkpoint or rollback whose data the next owner gets."""

    seq: int
    name: str
    at: Time


class OpenStep(Answer, frozen=True):
    """A step that began, and of which the journal does not say how it ended."""

    name: str
    key: str | None
    started_at: Time
    owner: str
    idempotency_key: str


class Steps(Answer, frozen=True):
    """How many steps ended how. `unknown` ones may or may not have happened: find out before the work goes on."""

    finished: int
    failed: int
    running: int
    retrying: int  # an attempt failed, another one follows
    unknown: list[OpenStep]


class OwnerNow(Answer, frozen=True):
    """The worker that holds the session. `left_s`: seconds until others may take over, 0 if they may now."""

    worker: str  # empty if it left by an exception
    left_s: float
    silent_since: Time | None  # its last heartbeat
    late: bool  # silent for more than half of its TTL


class Outlook(Answer, frozen=True):
    session_id: str
    state: str
    goes_on_from: Place | None
    steps: Steps
    owner: OwnerNow | None
    orphaned_since: Time | None  # the last heartbeat of a dead owner, or when it left by an exception
    failure: End | None
    reason_today_count: int | None  # sessions that failed for the same reason within 24 h, of those looked at
    attempts: int  # failed ones since the last new checkpoint or finished step
    next_attempt_at: Time | None  # `claim` leaves an orphan alone until then
    allowed: list[str]
    refused: dict[str, str]  # verb: why


@with_a_fresh_head
async def outlook(sessions: Space, id: str) -> Outlook:
    """Return what would happen next to a session. `KeyMissing` if it is sealed and its key is not here."""
    head = await sessions.reader.existing(id)
    if head.row.locked is not None:
        raise head.row.locked
    [outlook] = await outlooks(sessions, [head])
    return outlook


async def outlooks(sessions: Space, heads: Sequence[Head]) -> list[Outlook]:
    today = _Today(sessions)
    return [await _outlook(sessions, head, today) for head in heads]


class _Today:
    """Counts of today's failures by reason, read once if they are needed."""

    def __init__(self, sessions: Space) -> None:
        self._sessions = sessions
        self._ends: list[End] | None = None

    async def count(self, reason: str, now: int) -> int:
        if self._ends is None:
            heads = await failed_heads(self._sessions, Query(namespace=self._sessions.namespace))
            near = [head for head in heads if now - head.last.at <= TODAY]
            self._ends = await asyncio.gather(*(failure(self._sessions, head) for head in near))
        return sum(end.reason == reason and now - micros(end.at) <= TODAY for end in self._ends)


async def _outlook(sessions: Space, head: Head, today: _Today) -> Outlook:
    row, vault = head.row, sessions.engine.vault
    orphan, failed = is_orphan(head), row.state == SessionState.FAILED
    reach = Wanted([(head.last.data_seq, head.last.data_seq)], frames=False)
    data = await vault.entries(row.key, reach) if head.last.data_seq else []
    journal = await vault.entries(row.key, Wanted(kinds=STEP_KINDS, newest=STEPS, frames=False))
    past = await attempts.read(vault, head) if orphan else attempts.NONE
    end = await failure(sessions, head) if failed else await loss(sessions, head) if orphan else None
    allowed, refused = await verbs(sessions, head)
    return Outlook(
        row.session_id,
        row.state,
        Place(data[0].seq, data[0].name, moment(data[0].at)) if data else None,
        await _steps(sessions, head, journal),
        owner_now(head),
        end.at if orphan and end is not None else None,
        end,
        await today.count(end.reason, row.now) if failed and end is not None else None,
        past.failed,
        _next_attempt(past, sessions.engine.backoff),
        allowed,
        refused,
    )


def owner_now(head: Head) -> OwnerNow | None:
    row = head.row
    if row.lease is None:
        return None
    return OwnerNow(row.worker, row.left / 1_000_000, moment(row.beaten) if row.beaten else None, is_late(row))


def is_late(row: Row) -> bool:
    """True if the owner has been silent for more than half of its TTL, and may still come back."""
    return 0 < row.left <= row.now - row.beaten and row.beaten > 0


async def _steps(sessions: Space, head: Head, journal: Sequence[Entry]) -> Steps:
    """Count steps by their newest entry."""
    newest: dict[tuple[str, str | None], tuple[Entry, str]] = {}
    for entry in journal:
        note = note_of(entry, f"{head.row.session_id}:{entry.seq}")
        held = held_now(head) and entry.lease == head.row.lease
        newest[entry.name, note.get("key")] = entry, step_status(entry, note, held=held)
    counts = Counter(status for _, status in newest.values())
    ids = Journal(head.row.session_id, head.row.key)
    unknown = [
        OpenStep(
            name, key, moment(entry.at), await _owner_at(sessions, head, entry), ids.new(name, key).idempotency_key
        )
        for (name, key), (entry, status) in newest.items()
        if status == "unknown"
    ]
    return Steps(counts["finished"], counts["failed"], counts["running"], counts["retrying"], unknown)


async def _owner_at(sessions: Space, head: Head, entry: Entry) -> str:
    """Return the worker that held the session when that entry was written."""
    if entry.lease == head.row.lease and head.row.worker:
        return head.row.worker
    reach = Wanted([(1, entry.seq)], kinds=TAKING_KINDS, newest=1, frames=False)
    taken = await sessions.engine.vault.entries(head.row.key, reach)
    return str(note_of(taken[0], f"{head.row.session_id}:{taken[0].seq}").get("worker", "")) if taken else ""


def _next_attempt(past: attempts.Attempts, backoff: float) -> datetime | None:
    if past.released is None:
        return None
    pause = attempts.pause(past.failed, backoff, past.released.append_id)
    return moment(past.released.at + round(pause * 1_000_000))


async def verbs(sessions: Space, head: Head) -> tuple[list[str], dict[str, str]]:
    """Return the verbs that a caller without the lease may use now, and why it may not use the others."""
    state = SessionState(head.row.state)
    holder = None if head.row.lease is None or head.row.owner == NO_WORKER else str(await sessions.lookup.held(head))
    refused: dict[str, str] = {}
    for verb in (*BY_STATE, *OTHERS):
        if holder is not None and verb in ALONE and (verb != "hold" or head.row.left):
            refused[verb] = holder
        if verb in BY_STATE:
            try:
                follow(state, verb)
            except InvalidTransition as exc:
                refused[verb] = str(exc)
    if head.row.lease is None:
        refused["release"] = "no worker holds it"
    return [verb for verb in (*BY_STATE, *OTHERS) if verb not in refused], refused
