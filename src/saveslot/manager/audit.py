"""Audit trail: a session's log without content, also after the session was deleted or erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import msgspec

from saveslot.errors import Corrupt, NotFound
from saveslot.manager.erase import of_session
from saveslot.session.engine import Space
from saveslot.session.links import split
from saveslot.session.timeline import note_of
from saveslot.session.verify import Damage, broken_links
from saveslot.values.checks import Data
from saveslot.values.ids import STAMP
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import Entry, Row, Wanted, moment


class AuditLine(msgspec.Struct, frozen=True):
    """One entry: what happened, and which worker held the session."""

    seq: int
    kind: str
    name: str
    timestamp: datetime
    held_by: str  # a worker, or empty
    fence: int
    link: str  # vouches for this entry and all before it
    token: str = ""  # what a server let it in by; empty if it was written in the store itself, or brought by an import

    def to_dict(self) -> Data:
        return {**msgspec.structs.asdict(self), "timestamp": self.timestamp.isoformat()}


class Audit(msgspec.Struct, frozen=True):
    """A session's trail. `misfit` is the first entry that does not match its link, and `wrong` says why."""

    session_id: str
    state: str  # active, paused, completed, failed, deleted or erased
    lines: list[AuditLine]
    misfit: int | None = None
    wrong: str = ""
    unlinked: int = 0  # entries without a link, written by an older Saveslot

    @property
    def head(self) -> str:
        """The newest link. Kept elsewhere, it proves later that nothing up to here was changed."""
        return next((line.link for line in reversed(self.lines) if line.link), "")

    def to_dict(self) -> Data:
        """Return its fields, and `head`."""
        return {**msgspec.structs.asdict(self), "lines": [line.to_dict() for line in self.lines], "head": self.head}


async def audit(sessions: Space, id: str, *, link: str | None = None) -> Audit:
    """Return the audit trail of the newest session with that id, even if deleted or erased: events without content.

    The trail is verified: `misfit` is the first entry that was changed, removed, inserted or moved in the store.
    `link` is the `head` of an earlier audit, kept elsewhere, which must still be in the log.
    """
    try:
        head = await sessions.reader.head(id)
    except Corrupt:  # the trail names an entry that does not fit; a damaged column leaves none
        [head] = await sessions.engine.vault.stored.stored.heads([(sessions.namespace, id)])
        if head is None or head.row.locked is not None:
            raise
    rows = [head.row] if head is not None else await of_session(sessions.engine.vault, sessions.namespace, id)
    if not rows:
        raise _nothing(id, sessions.namespace)
    entries = await sessions.engine.vault.stored.stored.entries(rows[0].key, Wanted(frames=False))
    tokens = await sessions.engine.vault.token_names({entry.append_id[-STAMP:] for entry in entries})
    return trail(rows[0], entries, link, tokens)


def trail(
    row: Row, entries: Sequence[Entry], link: str | None = None, tokens: Mapping[bytes, str] = MappingProxyType({})
) -> Audit:
    """Build the trail from all entries of a log, as stored. `link`, if passed, must be one of theirs; `tokens`: names
    by stamp.
    """
    holders: dict[int, str] = {}  # by fence: each hold has its own, and links cover it
    lines: list[AuditLine] = []
    for entry in entries:
        kind = Kind(entry.kind)
        if kind in TAKING_KINDS:
            holders[entry.fence] = _worker(entry)
        holder = holders.get(entry.fence, "") if entry.lease is not None or kind in TAKING_KINDS else ""
        own = split(entry.digest)[1].hex()
        token = tokens.get(entry.append_id[-STAMP:], "")
        lines.append(AuditLine(entry.seq, kind.label, entry.name, moment(entry.at), holder, entry.fence, own, token))
    wrong = next(broken_links(row.key, entries), None)
    if wrong is None and link is not None and link not in {line.link for line in lines}:
        wrong = Damage(
            len(lines) + 1, "is missing, or the whole log was rewritten: no entry has the link that was passed"
        )
    state = row.state
    if entries and entries[-1].kind is Kind.TOMBSTONE:
        state = "deleted" if row.body else "erased"
    unlinked = sum(not line.link for line in lines)
    return Audit(row.session_id, state, lines, *(wrong or (None, "")), unlinked)


def _worker(entry: Entry) -> str:
    try:
        return str(note_of(entry, entry.name).get("worker", ""))
    except Corrupt:  # the links show the damage
        return ""


def _nothing(session_id: str, namespace: str) -> NotFound:
    return NotFound(f"no trail of session {session_id} in namespace {namespace}: it never existed, or was purged")
