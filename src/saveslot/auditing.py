"""Who did what when: a session's log without content, also of one that was deleted or erased."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from saveslot.errors import Corrupt, NotFound
from saveslot.log import Entry, Row, moment
from saveslot.model import TAKING_KINDS, Kind
from saveslot.stores.chained import misfit, split
from saveslot.timeline import note_of


class AuditLine(msgspec.Struct, frozen=True):
    """One entry: what happened, and in whose hands the session was."""

    seq: int
    kind: str
    name: str
    timestamp: datetime
    held_by: str  # a worker, or empty
    fence: int
    link: str  # vouches for this entry and all before it


class Audit(msgspec.Struct, frozen=True):
    """A session's trail. `misfit` is the first entry that does not fit what stands before it, and `wrong` says how."""

    session_id: str
    state: str  # active, paused, completed, failed, deleted or erased
    lines: list[AuditLine]
    misfit: int | None = None
    wrong: str = ""
    unlinked: int = 0  # entries for which nothing vouches: an older Saveslot's

    @property
    def head(self) -> str:
        """The newest link. Noted elsewhere, it proves later that nothing up to here was changed."""
        return next((line.link for line in reversed(self.lines) if line.link), "")


def trail(row: Row, entries: Sequence[Entry], link: str | None = None) -> Audit:
    """From all entries of a log, as stored; with a link that was noted before, which must be among theirs."""
    holders: dict[int, str] = {}  # by fence: each taking has another, and links cover it
    lines: list[AuditLine] = []
    for entry in entries:
        kind = Kind(entry.kind)
        if kind in TAKING_KINDS:
            holders[entry.fence] = _worker(entry)
        who = holders.get(entry.fence, "") if entry.lease is not None or kind in TAKING_KINDS else ""
        own = split(entry.digest)[1].hex()
        lines.append(AuditLine(entry.seq, kind.label, entry.name, moment(entry.at), who, entry.fence, own))
    wrong = misfit(row.key, entries)
    if wrong is None and link is not None and link not in {line.link for line in lines}:
        wrong = len(lines) + 1, "is missing, or the whole log was written anew: no entry has the link that was noted"
    state = row.state
    if entries and entries[-1].kind is Kind.TOMBSTONE:
        state = "deleted" if row.body else "erased"
    unlinked = sum(not line.link for line in lines)
    return Audit(row.session_id, state, lines, *(wrong or (None, "")), unlinked)


def _worker(entry: Entry) -> str:
    try:
        return str(note_of(entry, entry.name).get("worker", ""))
    except Corrupt:  # the chain tells
        return ""


def nothing(session_id: str, namespace: str) -> NotFound:
    return NotFound(f"no trail of a session {session_id} in namespace {namespace}: it never was, or was purged")
