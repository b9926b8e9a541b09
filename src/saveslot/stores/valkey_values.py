"""The log's values as the script in Valkey takes them and gives them. FORMAT.md shows what lies there.

Keys and ids are in hexadecimal, so that people can read them; frames and bodies are bytes as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from saveslot.log import Entry, Event, Group, Outcome, Query, Row, Verdict, moment
from saveslot.model import TAKING_KINDS, Kind


class Refused(Verdict):
    """A group that met bytes which are not Saveslot's."""

    why: str = ""


def hexed(value: bytes | None) -> str:
    return "" if value is None else value.hex()


def _unhex(value: bytes) -> bytes | None:
    return bytes.fromhex(value.decode()) if value else None


def _bytes(data: bytes) -> msgspec.Raw:
    """As the server's MessagePack knows them: it has strings of bytes, and none of text."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def _labels(labels: dict[str, str]) -> msgspec.Raw:
    return _bytes(msgspec.json.encode(labels))


def question(query: Query) -> dict[str, Any]:
    told = {name: value for name, value in msgspec.structs.asdict(query).items() if value is not None}
    return told if query.owner is None else told | {"owner": query.owner.hex()}


def group_told(group: Group, ttl: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "key": group.key.hex(),
        "prev": hexed(group.prev),
        "state": group.state,
        "body": None if group.body is None else _bytes(group.body),
        "labels": None if group.labels is None else _labels(group.labels),
        "heartbeat": group.heartbeat,
        "delete": group.delete,
        "owner": None if group.owner is None else group.owner.hex(),
        "only_stale": group.only_stale,
        "only_orphan": group.only_orphan,
        "entries": [_told(entry) for entry in group.entries],
    }
    if (row := group.create) is not None:
        told["create"] = {
            "ns": row.namespace,
            "id": row.session_id,
            "type": row.agent_type,
            "user": row.user_id,
            "state": row.state,
            "made": row.created_at,
            "beat": row.heartbeat,
            "body": _bytes(row.body),
            "labels": _labels(row.labels),
            "ttl": ttl,
        }
    return {name: value for name, value in told.items() if value is not None}


def _told(entry: Entry) -> dict[str, Any]:
    rest = (
        *(entry.seq, int(entry.kind), entry.name, entry.fence, entry.lease, entry.data_seq, entry.about_seq),
        *(entry.recipe, entry.digest, entry.note),
    )
    told: dict[str, Any] = {
        "seq": entry.seq,
        "id": entry.append_id.hex(),
        "at": entry.at,
        "sign": entry.sign,
        "fence": entry.fence,
        "lease": hexed(entry.lease),
        "weight": len(entry.frame or b"") + len(entry.note or b""),
        "ends": entry.kind in {Kind.COMPLETED, Kind.FAILED},
        "takes": entry.kind in TAKING_KINDS,
        "rest": _bytes(msgspec.msgpack.encode(rest)),
    }
    if entry.frame is not None:
        told["frame"] = _bytes(entry.frame)
    return told


_Rest = tuple[int, int, str, int, bytes | None, int, int, bytes, bytes, bytes | None]
_rest = msgspec.msgpack.Decoder(_Rest)


def to_entry(header: bytes, size: int) -> Entry:
    append_id, at, alive, rest = header.split(b" ", 3)
    seq, kind, name, fence, lease, data_seq, about_seq, recipe, digest, note = _rest.decode(rest)
    return Entry(
        *(seq, bytes.fromhex(append_id.decode()), Kind(kind), name, int(at), False, int(alive), fence, lease),
        *(data_seq, about_seq, recipe, digest, note, None, size + len(note or b"")),
    )


def to_row(told: Any, *, weighed: bool = False) -> Row:
    key, *names, made, beat, fence, lease, body, labels, owner, deleted, weight, worker, left, now = told[:18]
    namespace, session_id, agent_type, user_id, state = (name.decode() for name in names)
    row = Row(
        *(bytes.fromhex(key.decode()), namespace, session_id, agent_type, user_id, state),
        *(int(made), int(beat), int(fence), _unhex(lease), body),
        labels=msgspec.json.decode(labels, type=dict[str, str]),
        owner=_unhex(owner),
        worker=worker.decode(),
        left=left,
        now=now,
        deleted_at=int(deleted),
    )
    if weighed:
        last = to_entry(told[18], 0)
        row.weight, row.length, row.last = int(weight), last.seq, last.append_id
    return row


def to_verdict(answer: Any) -> Verdict:
    outcome, heartbeat, header, size, *times = answer
    if outcome == b"damaged":
        return Refused(Outcome.CONFLICT, why=header.decode(errors="replace"))
    return Verdict(Outcome(outcome.decode()), times, None if header is None else to_entry(header, size), heartbeat)


def to_event(place: bytes, session_id: bytes, seq: int, header: bytes) -> Event:
    entry = to_entry(header, 0)
    return Event(place.decode(), session_id.decode(), seq, entry.kind.label, entry.name, moment(entry.at))
