"""The values in answers: their fields, for OpenAPI, and how a session or a checkpoint is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from saveslot.manager.failures import End
from saveslot.manager.outlook import Outlook
from saveslot.manager.rows import Newest as Checkpointed, Row
from saveslot.server.call import JSON, Call, encoded
from saveslot.server.v1 import conditions
from saveslot.session.model import AgentSession, Checkpoint, DamagedSession, SessionCheckpoint, text_of
from saveslot.values.checks import Data
from saveslot.values.lifecycle import SessionState

T = TypeVar("T")

# Bytes of a page: it ends with the checkpoint that passes them.
ROOM = 4 << 20

Time = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
Value = Annotated[Any, Meta(description="Any JSON value; datetime, bytes and UUID stand in their tagged form.")]
Object = Annotated[
    dict[str, Any], Meta(description="A JSON object; datetime, bytes and UUID stand in their tagged form.")
]
Version = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,18}-[0-9a-f]{16}$",
        description="Names the newest entry: the session's ETag, for If-Match.",
        examples=["17-9f86d081884c7d65"],
    ),
]


class Page(Struct, Generic[T]):
    """A page of a list. `next` is the cursor of the next page (`after=`), null on the last one."""

    items: list[T]
    next: str | None


class Owner(Struct):
    """The worker that holds a session. `left`: seconds until others may take it, 0 if they may."""

    worker: str
    left: float
    fence: int
    since: Time | None
    left_s: Annotated[float, Meta(description="In lists: the same as `left`.")] | UnsetType = UNSET
    silent_since: Annotated[Time | None, Meta(description="In lists: its last heartbeat.")] | UnsetType = UNSET
    late: Annotated[bool, Meta(description="In lists: silent for more than half of its TTL.")] | UnsetType = UNSET


class Session(Struct):
    """A session. `context` and `metadata` are null if they are damaged, and empty while it is `locked`."""

    session_id: str
    agent_type: str
    user_id: str
    state: SessionState
    created_at: Time
    last_heartbeat: Time
    context: Object | None
    metadata: Object | None
    labels: dict[str, str]
    version: Version
    owner: Owner | None
    orphaned: Annotated[bool, Meta(description="Its worker died, or left by an error: it can be claimed.")]
    locked: Annotated[bool, Meta(description="Sealed with a key that this server lacks.")]
    checkpoints: Annotated[list[SavedCheckpoint], Meta(description="Only with `history`.")] | UnsetType = UNSET
    damage: Annotated[str, Meta(description="Why context and metadata cannot be read.")] | UnsetType = UNSET


class SessionHead(Struct):
    """A session's newest entry, records, pins and retention marks aside."""

    session_id: str
    seq: int
    version: Version
    state: SessionState
    name: str
    kind: str
    timestamp: Time
    metadata: Object
    owner: Owner | None
    agent_type: str
    user_id: str
    labels: dict[str, str]


class ListedSession(Session, kw_only=True):
    """A session in a list. `head` is its newest entry, null if that cannot be read; `newest` its newest checkpoint."""

    head: SessionHead | None
    entries: Annotated[int, Meta(description="In its log, all kinds.")]
    forked_from: str | None
    newest: Checkpointed | None
    failure: End | None
    outlook: Outlook | None


class SavedCheckpoint(Struct):
    """A checkpoint, rollback or lifecycle entry. `data` is null once it was thinned."""

    id: Annotated[str, Meta(description="`<session_id>:<seq>`")]
    seq: int
    name: str
    timestamp: Time
    metadata: Object
    version: Version
    data: Object | UnsetType | None = UNSET


class Operation(Struct):
    """An operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Value | UnsetType = UNSET
    old: Annotated[Value, Meta(description="With `old`: what was there before.")] | UnsetType = UNSET


def session(value: AgentSession) -> Data:
    """The fields of a session; its checkpoints only if they were loaded."""
    if not value.loaded:
        value.checkpoints = []  # decoding and copying their states takes seconds after an import
    fields = value.readable() if isinstance(value, DamagedSession) else value.to_dict()
    if not value.loaded:
        del fields["checkpoints"]
    owner = value.owner
    fields |= {
        "version": value.version,
        "owner": None if owner is None else owner.to_dict(),
        "orphaned": owner is not None and not owner.left,
        "locked": value.locked,
    }
    return fields


def listed(value: AgentSession, row: Row) -> Data:
    fields, more = session(value), row.to_dict()
    owner = None if more["owner"] is None else {**more["owner"], **fields["owner"]}
    head = None if value.head is None else value.head.to_dict()
    return {**more, **fields, "owner": owner, "head": head}


def saved(checkpoint: SessionCheckpoint) -> Data:
    """The fields of a checkpoint but for its data."""
    return {
        "id": checkpoint.id,
        "name": checkpoint.name,
        "seq": int(checkpoint.id.rpartition(":")[2]),
        "timestamp": checkpoint.timestamp.isoformat(),
        "version": checkpoint.version,
        "metadata": checkpoint.metadata,
    }


def spliced(fields: Data, name: str, text: bytes) -> bytes:
    """Return an object as JSON with one more member, whose text is known."""
    return b'%b,"%b":%b}' % (encoded(fields)[:-1], name.encode(), text)


async def fitting(items: Iterable[SessionCheckpoint], *, data: bool = True) -> list[bytes]:
    """Return the first of these checkpoints as JSON, up to and with the one that passes `ROOM` bytes.

    Their data is not decoded: it comes as it is stored.
    """
    texts: list[bytes] = []
    size = 0
    for item in items:
        fields = saved(item)
        texts.append(spliced(fields, "data", text_of(item)) if data else encoded(fields))
        size += len(texts[-1])
        if size > ROOM:
            break
        await asyncio.sleep(0)  # other requests come between two large ones
    return texts


def paged(items: Iterable[bytes], following: str | None) -> Response:
    """Return a page whose items are JSON already."""
    return Response(b'{"items":[%b],"next":%b}' % (b",".join(items), encoded(following)), media_type=JSON)


def one(call: Call, value: AgentSession, status: int | None = None) -> Response:
    """Answer with a session."""
    headers = conditions.etag(value.version)
    if (call.route.status if status is None else status) == 201:  # noqa: PLR2004
        headers["location"] = f"/v1/sessions/{quote(value.session_id, safe='')}"
    return call.json(session(value), status, headers)


def checkpoint(call: Call, value: Checkpoint, data: Data | None = None) -> Response:
    """Answer with a checkpoint that was just written, or with one that was asked for. `data`: its data, if at hand."""
    headers = conditions.etag(value.version)
    if call.route.status == 201:  # noqa: PLR2004
        session_id, _, seq = value.id.rpartition(":")
        headers["location"] = f"/v1/sessions/{quote(session_id, safe='')}/checkpoints/{seq}"
    if conditions.minimal(call):
        return call.json(saved(value), None, headers)
    text = spliced(saved(value), "data", text_of(value) if data is None else encoded(data))
    return Response(text, call.route.status, headers, JSON)
