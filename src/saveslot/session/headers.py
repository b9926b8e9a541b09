"""Entries without the state that they lead to: the newest one of a session, and any of its log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from saveslot.session.model import Owner
from saveslot.session.timeline import note_of
from saveslot.values.checks import Data, copied
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Entry, Head as StoredHead, moment
from saveslot.values.versions import version


class Head(msgspec.Struct, frozen=True):
    """A session's newest entry, records, pins and retention marks aside, and what lists show of the session."""

    session_id: str
    seq: int
    version: str
    state: SessionState
    name: str
    kind: str
    timestamp: datetime
    metadata: Data  # of a checkpoint or rollback; any other entry's data
    owner: Owner | None
    agent_type: str
    user_id: str
    labels: dict[str, str]

    def to_dict(self) -> Data:
        return {**msgspec.structs.asdict(self), **_plain(self), "state": self.state.value, "labels": dict(self.labels)}


class EntryHeader(msgspec.Struct, frozen=True):
    """An entry of a log. `owner` is the worker that held the session when it was written."""

    seq: int
    version: str
    kind: str
    name: str
    timestamp: datetime
    metadata: Data  # of a checkpoint or rollback; any other entry's data
    size: int  # bytes as stored
    owner: Owner | None

    def to_dict(self) -> Data:
        return {**msgspec.structs.asdict(self), **_plain(self)}


def _plain(header: Head | EntryHeader) -> Data:
    return {
        "timestamp": header.timestamp.isoformat(),
        "metadata": copied(header.metadata),
        "owner": None if header.owner is None else header.owner.to_dict(),
    }


def head_of(head: StoredHead, newest: Entry, owner: Owner | None) -> Head:
    row = head.row
    return Head(
        row.session_id,
        newest.seq,
        version(newest.seq, newest.append_id),
        SessionState(row.state),
        newest.name,
        Kind(newest.kind).label,
        moment(newest.at),
        note_of(newest, f"{row.session_id}:{newest.seq}"),
        owner,
        row.agent_type,
        row.user_id,
        dict(row.labels),
    )


def header(entry: Entry, session_id: str, owners: dict[bytes, Owner]) -> EntryHeader:
    """`owners` are those of the leases that entries were written under."""
    return EntryHeader(
        entry.seq,
        version(entry.seq, entry.append_id),
        Kind(entry.kind).label,
        entry.name,
        moment(entry.at),
        note_of(entry, f"{session_id}:{entry.seq}"),
        entry.size,
        None if entry.lease is None else owners.get(entry.lease),
    )


def owners(entries: Iterable[Entry], session_id: str) -> dict[bytes, Owner]:
    """Return the owner that each entry about a taken session names, by its lease."""
    return {
        entry.lease: Owner(
            str(note_of(entry, f"{session_id}:{entry.seq}").get("worker", "")), 0.0, entry.fence, moment(entry.at)
        )
        for entry in entries
        if entry.kind in TAKING_KINDS and entry.lease is not None
    }
