"""Errors for refused writes."""

from __future__ import annotations

from saveslot.errors import Conflict, HistoryLost, LeaseLost, NotFound, SaveslotError
from saveslot.values import advice
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Head, Outcome, Verdict

ENDS = {Kind.COMPLETED: "completed", Kind.FAILED: "failed"}


def refusal(
    session_id: str, verdict: Verdict, seen: int, fence: int | None = None, reload: str = str(advice.RELOAD)
) -> SaveslotError:
    """Return the error for a verdict; `fence` is that of the caller's hold, None if it does not hold the session."""
    match verdict.outcome:
        case Outcome.MISSING:
            return NotFound(f"session {session_id} was deleted; {advice.CREATE_AGAIN}")
        case Outcome.FENCED if fence is not None and not _only_ended(verdict.head, fence):
            released = verdict.head is not None and verdict.head.kind is Kind.RELEASED
            what = "released by another caller" if released else "taken over by another worker"
            return LeaseLost(f"session {session_id} was {what}; stop working on it")
        case Outcome.LOST:
            return HistoryLost(
                f"session {session_id}: entry {seen}, which was acknowledged, is no longer in the database; "
                "it was restored from an older copy: compare it with your records before you continue"
            )
        case _:
            head = verdict.head
            newest = "" if head is None else f"; the newest is entry {head.seq} ({head.name})"
            what = "another writer appended"
            if head is not None and head.kind in ENDS:
                what, newest = f"it was {ENDS[head.kind]} (entry {head.seq}, {head.name})", ""
            return Conflict(
                f"session {session_id}: {what} after entry {seen}, which this write follows{newest}; "
                f"nothing was stored; {reload}, then decide again",
                seen=seen,
                head=0 if head is None else head.seq,
            )


def overtaken(session_id: str, head: Head | None, seen: int) -> SaveslotError:
    """Return the error for a caller whose newest known entry is no longer the newest."""
    outcome = Outcome.MISSING if head is None else Outcome.CONFLICT
    return refusal(session_id, Verdict(outcome, head=head and head.last), seen)


def recreated(session_id: str) -> NotFound:
    return NotFound(f"session {session_id} was deleted and recreated; {advice.RECREATED}")


def unknown(session_id: str, namespace: str) -> NotFound:
    return NotFound(f"no session {session_id} in namespace {namespace}; {advice.SESSIONS}")


def _only_ended(head: Entry | None, fence: int) -> bool:
    """True if the session was ended, which also ends the lease, and not taken over."""
    return head is not None and head.fence == fence and head.lease is None
