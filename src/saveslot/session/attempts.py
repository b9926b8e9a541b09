"""Attempts: how often a session was taken and lost without getting anywhere, and when it may be claimed again.

An attempt fails when its owner leaves the session by an exception or dies. An owner that leaves by an exception hands
the session to `NO_WORKER`, which no process is: to every store it is an orphan, and its release says what happened.
That release, and the entry of each takeover, carry the number of failed attempts since the last new checkpoint or
finished step, so one entry is enough to read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import EllipsisType
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import Cancelled, Corrupt
from saveslot.session.draft import Draft, Point
from saveslot.session.lookup import about_of
from saveslot.session.timeline import note_of
from saveslot.stores import Store
from saveslot.values import advice
from saveslot.values.checks import Data, as_count
from saveslot.values.kinds import DATA_KINDS, OWNER_KINDS, TAKING_KINDS, Kind
from saveslot.values.lifecycle import FAILED
from saveslot.values.log import Entry, Head, Wanted

# Metadata key of a session's own limit, which is exported, imported and forked with the session.
OWN = "saveslot.max_attempts"
# Seconds between the second and the third attempt by default, doubled for each later one up to the longest pause (or
# `backoff`, if that is longer).
BACKOFF, LONGEST = 1.0, 300.0
# Attempts by default.
MAX_ATTEMPTS = 5
# Longest error text that a release keeps, in characters.
MAX_ERROR = 200
# Newest entries of a log that are read at first. Stores answer so short a range together with other sessions' ones.
NEAR = 128

# Entries that show that an attempt got somewhere.
PROGRESS_KINDS = DATA_KINDS | {Kind.STEP_FINISHED}

Limit = int | EllipsisType | None  # `...` if the caller did not say, None for no limit


def as_limit(value: Limit) -> Limit:
    return value if value is None or value is ... else as_count(value, "max_attempts", 1)


class Attempts(NamedTuple):
    """The past of an orphan."""

    failed: int = 0  # since the last new checkpoint or finished step
    error: str = ""  # of the last one
    released: Entry | None = None  # the release by an error; None if the owner died
    cancelled: str | None = None  # the reason, if the session was cancelled while it was held

    def due(self, now: int, backoff: float) -> bool:
        """True if the pause before the next attempt is over, by the store's clock (microseconds)."""
        if self.released is None:  # its owner's TTL was a pause already
            return True
        # The distance, not the difference: a clock that was set back must not block the session forever.
        age = abs(now - self.released.at)
        return age >= pause(self.failed, backoff, self.released.append_id) * 1_000_000


NONE = Attempts()


def pause(failed: int, backoff: float, append_id: bytes) -> float:
    """Seconds until the next attempt: none after the first failure. The jitter is the same for all claimers."""
    if failed < 2:  # noqa: PLR2004
        return 0.0
    return min(max(LONGEST, backoff), backoff * 2 ** min(failed - 2, 32)) * (0.75 + append_id[0] / 512)


async def read(store: Store, head: Head) -> Attempts:
    """Read the past of a session whose owner is dead or left it by an error."""
    last, key = head.last, head.row.key
    since = [last]
    if last.kind not in OWNER_KINDS:
        near = Wanted([(max(1, last.seq - NEAR + 1), last.seq)], frames=False)
        since = await _undamaged(store, key, near)
    progress, cancelled = False, None
    for entry in reversed(since):
        if entry.kind in OWNER_KINDS:
            return _past(entry, head, cancelled, progress=progress)
        progress = progress or entry.kind in PROGRESS_KINDS
        if entry.kind is Kind.CANCELLED and cancelled is None:
            cancelled = entry
    # It has been held for a long time. Assume that its work was saved meanwhile.
    owners = await _undamaged(store, key, Wanted(kinds=OWNER_KINDS, newest=1, frames=False))
    since = await _undamaged(store, key, Wanted(kinds=OWNER_KINDS | {Kind.CANCELLED}, newest=1, frames=False))
    mark = since[0] if since and since[0].kind is Kind.CANCELLED else None
    return _past(owners[0], head, mark, progress=True) if owners else NONE


async def _undamaged(store: Store, key: bytes, wanted: Wanted) -> list[Entry]:
    """Return these entries, or none if one of them is damaged: that must not keep the session from its claimers."""
    try:
        return await store.entries(key, wanted)
    except Corrupt:
        return []


def _past(owner: Entry, head: Head, mark: Entry | None, *, progress: bool) -> Attempts:
    where = f"{head.row.session_id}:{owner.seq}"
    note: Data = {}
    with suppress(Corrupt):  # a damaged note must not strand the session
        note = note_of(owner, where)
    failed, cancelled = (
        0 if progress else int(note.get("attempts", 0)),
        None if mark is None else reason_of(mark, where),
    )
    if owner.kind not in TAKING_KINDS:
        released = None if progress else owner
        return Attempts(failed, str(note.get("error", "")), released, cancelled)
    return Attempts(failed + 1, f"worker {note.get('worker', '')} died", None, cancelled)


def reason_of(mark: Entry, where: str) -> str:
    """The reason of a cancellation."""
    with suppress(Corrupt):
        return str(note_of(mark, where).get("reason", ""))
    return ""


def limit(head: Head, given: Limit, usual: int | None) -> int | None:
    """How often a session may fail: as the claimer says, else as the session itself, else as the manager does."""
    if given is not ...:
        return given
    with suppress(Corrupt, KeyError, TypeError):
        own = about_of(head.row, head.last)[0]["metadata"][OWN]
        return own if own is None else int(own)
    return usual


def error_text(exc: BaseException) -> str:
    """Return `TypeName: first line`, even if the exception's `__str__` raises; of a group, that of its first error."""
    errors = list(_leaves(exc))
    exc = errors[0]
    try:
        first = str(exc).strip().partition("\n")[0].rstrip()
    except Exception as unread:  # noqa: BLE001  (it is the caller's class)
        first = f"(unreadable: {type(unread).__name__})"
    text = f"{type(exc).__name__}: {first}" if first else type(exc).__name__
    if len(errors) > 1:
        text += f" (and {len(errors) - 1} more)"
    return text.encode(errors="backslashreplace").decode()[:MAX_ERROR]


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if not isinstance(exc, BaseExceptionGroup):
        yield exc
        return
    for one in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
        yield from _leaves(one)


def failure(store: Store, head: Head, reason: str, error: str, details: Data) -> Draft:
    """Draft the end of a session that no worker continues; `reason` is added to its context as `failure_reason`."""
    # No limit: a context without room for the reason must not keep the session alive.
    draft = Draft(head.row.key, replace(Point.of(head), about=codec.State()), codec.ANY_SIZE, store.traits.stamp)
    with suppress(Corrupt):  # a damaged context stays as it is; the session fails like any other
        about, _ = about_of(head.row, head.last)
        about["context"]["failure_reason"] = reason
        draft.about(about)
    draft.lifecycle(Kind.FAILED, "session_failed", {"error": error, "details": details})
    draft.become(FAILED)
    return draft


def cancellation(store: Store, head: Head, reason: str) -> Draft:
    """Draft the end of a cancelled session."""
    return failure(store, head, "cancelled", "cancelled", {"reason": reason} if reason else {})


def exhaustion(store: Store, head: Head, past: Attempts) -> Draft:
    """Draft the end of a session that failed too often."""
    return failure(store, head, "max_attempts", past.error, {"attempts": past.failed})


async def parting(store: Store, head: Head, note: Data | EllipsisType | None) -> Draft:
    """Draft the release of a session that the store says this worker holds, though no caller does.

    `note` is that of a release whose outcome was unknown; `...`: there was none. A claim that reached no caller is
    undone.
    """
    past = await read(store, head) if head.row.locked is None else NONE
    if past.cancelled is not None:
        return cancellation(store, head, past.cancelled)
    draft = Draft(head.row.key, Point.of(head), codec.ANY_SIZE, store.traits.stamp)
    if note is ...:
        note = {"attempts": past.failed - 1} if head.last.kind is Kind.CLAIMED else None
    draft.release(note)
    return draft


def stopped(session_id: str, reason: str) -> Cancelled:
    why = f": {reason}" if reason else ""
    return Cancelled(
        f"session {session_id} was cancelled{why}; {advice.STOP}",
        reason=reason,
    )


def as_own(value: Limit) -> dict[str, Any]:
    """The metadata that keeps a session's own limit."""
    checked = as_limit(value)
    return {} if checked is ... else {OWN: checked}
