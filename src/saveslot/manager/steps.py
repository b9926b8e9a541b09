"""The steps of a session, seen and settled from outside: for an operator that knows what the agent could not find out.

Settling appends an entry like any other write. It needs no lease, so an orphan stays one; it is refused while a live
worker holds the session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from saveslot import codec
from saveslot.errors import InvalidInput, NotFound
from saveslot.session import requests, steps
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby
from saveslot.session.log import Log
from saveslot.session.steps import RETRY, Journal, Step
from saveslot.values import advice
from saveslot.values.checks import Data
from saveslot.values.kinds import STEP_KINDS, Kind
from saveslot.values.lifecycle import follow
from saveslot.values.log import Entry, Head, Wanted


class StepLine(NamedTuple):
    """A step as an operator sees it. `state`: finished, failed, running, unknown (started by a worker that is gone),
    retrying (an attempt failed, another one follows) or retry (the next call runs it again).
    """

    step: Step
    state: str
    attempts: int
    result: Any = None

    @property
    def label(self) -> str:
        """`NAME`, or `NAME:KEY`."""
        return self.step.name if self.step.key is None else f"{self.step.name}:{self.step.key}"

    def to_dict(self) -> Data:
        known = self.step.to_dict()
        return {**known, "state": self.state, "attempts": self.attempts, "result": self.result}


async def list_steps(sessions: Space, id: str) -> list[StepLine]:
    """Return the journaled steps with their results, oldest first. A rollback does not undo steps."""
    head = await sessions.lookup.existing(id)
    entries = await sessions.engine.vault.entries(head.row.key, Wanted(kinds=STEP_KINDS))
    frames = {entry.seq: entry.frame for entry in entries}
    attempts = _attempts(entries, id)
    return [
        StepLine(step, _state(step, head), attempts[step.name, step.key], _result(frames.get(step.seq)))
        for step in _journal(head, entries)
    ]


async def resolve_step(
    sessions: Space, id: str, name: str, result: Any, *, key: str | None = None, request: bytes = b""
) -> int:
    """Journal that a failed or unknown step happened, with this result; return the entry's number.

    `request` is that of a call with an idempotency key, as `settling` returns it.
    """
    frame, wrong = steps.stored(result, sessions.engine.limit)
    if wrong is not None:
        raise wrong
    return await _settle(sessions, id, name, key, Kind.STEP_FINISHED, {"resolved": True}, frame, request)


async def retry_step(sessions: Space, id: str, name: str, *, key: str | None = None, request: bytes = b"") -> int:
    """Let the next call of a failed or unknown step run it again, by the same idempotency key; return the entry's
    number.
    """
    return await _settle(sessions, id, name, key, Kind.STEP_FAILED, {RETRY: True}, None, request)


def settling(idempotency_key: str | None, name: str, key: str | None, **outcome: Any) -> bytes:
    """The request of a call that settles a step."""
    return requests.request(idempotency_key, "settle_step", {"name": name, "key": key, **outcome})


async def settled_before(sessions: Space, id: str, request: bytes) -> int | None:
    """The entry that the same call wrote before; `InvalidInput` if another call used its key."""
    if not request:
        return None
    head = await sessions.lookup.existing(id)
    entry = await requests.entry_of(sessions.engine.vault, head.row.key, request)
    return None if entry is None else entry.seq


async def _settle(
    sessions: Space, id: str, name: str, key: str | None, kind: Kind, note: Data, result: bytes | None, request: bytes
) -> int:
    author = passerby(sessions, id, fresh=True, blind=True)
    before = 0

    async def decide(log: Log) -> Draft | None:
        nonlocal before
        head = cast("Head", author.head)
        earlier = await requests.entry_of(sessions.engine.vault, log.key, request)
        if earlier is not None:
            before = earlier.seq
            return None
        if head.row.lease is not None and head.row.left:
            raise await sessions.lookup.held(head)
        follow(log.at.state, "checkpoint")
        entries = await sessions.engine.vault.entries(log.key, Wanted(kinds=STEP_KINDS, frames=False))
        step = _journal(head, entries).find(name, key)
        if not step.seq:
            raise NotFound(f"session {id} has no step {steps.label(step)}; {advice.STEPS}")
        if step.state == "finished":
            raise InvalidInput("name", f"step {steps.label(step)} finished at {step.at}; its result stays")
        fields = {} if key is None else {"key": key}
        if kind is Kind.STEP_FAILED:
            fields["error"] = step.error or "unknown whether it finished"
        draft = log.draft()
        draft.step(kind, name, {**fields, **note}, result, sign=False)
        draft.group.entries[-1].request = request
        return draft

    draft = await change(author, decide)
    return before if draft is None else draft.at.seq


def _journal(head: Head, entries: Iterable[Entry]) -> Journal:
    journal = Journal(head.row.session_id, head.row.key)
    journal.read(entries)
    return journal


def _state(step: Step, head: Head) -> str:
    match step.state:
        case "started":
            return "running" if head.row.lease is not None and head.row.left else "unknown"
        case "new":
            return "retry"
        case state:
            return state


def _attempts(entries: Iterable[Entry], id: str) -> dict[tuple[str, str | None], int]:
    """How often each step ran: an outcome ends the attempt that a start began; without a start it is one by itself."""
    counts: dict[tuple[str, str | None], int] = {}
    begun: set[tuple[str, str | None]] = set()
    for entry in entries:
        note = steps.note_of(entry, f"{id}:{entry.seq}")
        step = (entry.name, note.get("key"))
        settled = note.get("resolved") or note.get(RETRY)
        if entry.kind is Kind.STEP_STARTED:
            begun.add(step)
            counts[step] = counts.get(step, 0) + 1
        else:
            counts[step] = counts.get(step, 0) + (step not in begun and not settled)
            begun.discard(step)
    return counts


def _result(frame: bytes | None) -> Any:
    return None if frame is None else codec.read_note(frame)
