"""Groups as the script takes them, and the verdicts that it returns."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from saveslot.errors import Corrupt
from saveslot.stores.valkey.rows import hexed, to_entry
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import ID, Entry, Group, Outcome, Verdict


class Refused(Verdict):
    """For a group whose session contains bytes that Saveslot did not write."""

    why: str = ""


def as_string(data: bytes) -> msgspec.Raw:
    """As a string: the server's MessagePack has no type for bytes, and its strings are bytes."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def _labels(labels: dict[str, str]) -> msgspec.Raw:
    return as_string(msgspec.json.encode(labels))


def packed(group: Group, ttl: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key": group.key.hex(),
        "prev": hexed(group.prev),
        "state": group.state,
        "body": None if group.body is None else as_string(group.body),
        "labels": None if group.labels is None else _labels(group.labels),
        "heartbeat": group.heartbeat,
        "delete": group.delete,
        "owner": None if group.owner is None else group.owner.hex(),
        "only_stale": group.only_stale,
        "only_orphan": group.only_orphan,
        "entries": [_packed(entry) for entry in group.entries],
    }
    if (row := group.create) is not None:
        fields["create"] = {
            "ns": row.namespace,
            "id": row.session_id,
            "type": row.agent_type,
            "user": row.user_id,
            "state": row.state,
            "made": row.created_at,
            "beat": row.heartbeat,
            "body": as_string(row.body),
            "labels": _labels(row.labels),
            "request": row.request.hex(),
            "ttl": ttl,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _packed(entry: Entry) -> dict[str, Any]:
    rest = (
        *(entry.seq, int(entry.kind), entry.name, entry.fence, entry.lease, entry.data_seq, entry.about_seq),
        *(entry.recipe, entry.digest, entry.note, entry.request, entry.base),
    )
    fields: dict[str, Any] = {
        "seq": entry.seq,
        "id": entry.append_id.hex(),
        "at": entry.at,
        "sign": entry.sign,
        "fence": entry.fence,
        "lease": hexed(entry.lease),
        "weight": len(entry.frame or b"") + len(entry.note or b""),
        "ends": entry.kind in {Kind.COMPLETED, Kind.FAILED},
        "takes": entry.kind in TAKING_KINDS,
        "rest": as_string(msgspec.msgpack.encode(rest)),
    }
    if entry.request:
        fields["request"] = entry.request[:ID].hex()
    if entry.labels:
        fields["labels"] = entry.labels
    if entry.frame is not None:
        fields["frame"] = as_string(entry.frame)
    return fields


def to_verdict(answer: Any, key: str) -> Verdict:
    outcome, heartbeat, header, size, *times = answer
    if outcome == b"damaged":
        return Refused(Outcome.CONFLICT, why=header.decode(errors="replace"))
    verdict = Verdict(Outcome(outcome.decode()), times, None, heartbeat)
    if header is not None:
        with suppress(Corrupt):  # the verdict counts; what the newest entry is, the next read says
            verdict.head = to_entry(header, size, None, key)
    return verdict
