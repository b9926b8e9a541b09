"""`/v1/sessions/{id}/checkpoints`: save and read the agent's data, compare, go back; what retention keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from saveslot.codec.outline import Kind
from saveslot.errors import InvalidInput
from saveslot.manager import parts
from saveslot.manager.parts import CHILDREN, MOST, OPERATIONS
from saveslot.server.call import JSON, Call
from saveslot.server.load import APART
from saveslot.server.routes import Route
from saveslot.server.v1.answers import (
    Object,
    Operation,
    Owner,
    Page,
    SavedCheckpoint,
    Time,
    Value,
    Version,
    checkpoint,
    fitting,
    paged,
)
from saveslot.server.v1.conditions import (
    IF_MATCH,
    KEY,
    LEASE,
    MUST_MATCH,
    PREFER,
    UNLESS,
    etag,
    follow,
    key,
    unchanged,
    write_either,
)
from saveslot.server.v1.sessions import Id
from saveslot.session.answers import answered
from saveslot.session.draft import Save
from saveslot.session.held import Held
from saveslot.session.model import Checkpoint
from saveslot.session.requests import request
from saveslot.values.checks import Data
from saveslot.values.kinds import Kind as EntryKind

TAG = "Checkpoints"
Name = Annotated[str, Meta(description="A ref: a name (its newest), a number, an id, `latest` or `~2`.")]
Ref = Annotated[str | int, Meta(description="A ref: a name (its newest), a number, an id, `latest` or `~2`.")]
KINDS = ", ".join(dict.fromkeys(kind.label for kind in EntryKind))

# Checkpoints in a page, unless `limit` says otherwise, and at most.
PAGE, LONGEST = 50, 500
# Bytes of a request: a state of 16 MB, and what stands around it.
LARGEST = 17 << 20
# Operations of a JSON patch.
STEPS = 5000


class NewCheckpoint(Struct, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint. `data` is the whole state. `put`, `drop`, `append` and `cut` combine, and change single keys of the
    newest state. `patch` excludes all others. Without any of them the state stays as it is.
    """

    name: Id
    data: Object | None = None
    metadata: Object | None = None
    put: Annotated[Object | None, Meta(description="Values of keys.")] = None
    drop: Annotated[list[str] | None, Meta(description="Keys to remove.")] = None
    append: Annotated[dict[str, list[Any]] | None, Meta(description="Items to add to the ends of lists.")] = None
    cut: Annotated[dict[str, int] | None, Meta(description="How many items to take off the ends of lists.")] = None
    patch: Annotated[list[dict[str, Any]], Meta(max_length=STEPS, description="A JSON patch (RFC 6902).")] | None = None


class CheckpointListing(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str | None = None
    since: Annotated[Time | None, Meta(description="Later than this.")] = None
    until: Annotated[Time | None, Meta(description="Not later than this.")] = None
    limit: Annotated[int, Meta(ge=1, le=LONGEST)] = PAGE
    after: Annotated[str | None, Meta(description="`next` of the page before, which leads to older ones.")] = None
    all: Annotated[bool, Meta(description="Every entry of the log, those of owners and steps too.")] = False
    data: Annotated[bool, Meta(description="With the agent's data of each.")] = True


class Look(Struct, forbid_unknown_fields=True, kw_only=True):
    depth: Annotated[
        int | None, Meta(description='Containers below this depth stand as `{"…": kind, "size": …, "bytes": …}`.')
    ] = None
    path: Annotated[str | None, Meta(description="A JSON pointer: only what it names.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST, description="Children at the path; `next` leads on.")] = CHILDREN
    start: Annotated[int, Meta(ge=0, description="The first of them.")] = 0
    recipe: Annotated[bool, Meta(description="With the frames that the state is rebuilt from.")] = False


class Comparison(Struct, forbid_unknown_fields=True, kw_only=True):
    a: Name
    b: Name
    session_b: Annotated[str | None, Meta(description="The session of `b`, if it is another one.")] = None
    old: Annotated[bool, Meta(description="Old values beside operations that remove or replace.")] = False
    limit: Annotated[int, Meta(ge=0, description="Operations; `summary` counts all.")] = OPERATIONS


class DataReading(Struct, forbid_unknown_fields=True, kw_only=True):
    ref: Name = "latest"
    key: Annotated[list[str], Meta(description="Only these keys; repeatable.")] = []
    last: Annotated[list[str], Meta(description="KEY=N, repeatable: only the last N items of that list.")] = []


class EntryListing(Struct, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, description="Entries after this number.")] = 0
    before: Annotated[int, Meta(ge=0, description="Entries before this number.")] | None = None
    newest: Annotated[int, Meta(ge=1, le=LONGEST, description="The last so many of them.")] = LONGEST
    name: Annotated[list[str], Meta(description="Entries of these names; repeatable.")] = []
    kind: Annotated[list[str], Meta(description=f"Entries of these kinds; repeatable: {KINDS}.")] = []


class Rollback(Struct, forbid_unknown_fields=True, kw_only=True):
    to: Ref


class CheckpointRef(Struct, forbid_unknown_fields=True, kw_only=True):
    ref: Ref = "latest"


class DroppedCheckpoints(Struct):
    dropped: int


class CheckpointPart(SavedCheckpoint, kw_only=True):
    """An entry. `value` is part of the data as of it, with `depth` or `path`; `recipe` is how that is rebuilt."""

    data_seq: Annotated[int, Meta(description="The entry that carries the data.")] | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    size: Annotated[int, Meta(description="Members, items or characters at the path.")] | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    start: int | UnsetType = UNSET
    next: Annotated[int | None, Meta(description="`start` of the next children.")] | UnsetType = UNSET
    value: Value | UnsetType = UNSET
    recipe: parts.Making | UnsetType = UNSET


class Differences(Struct):
    """A comparison. `truncated`: there are more operations than `items`."""

    items: list[Operation]
    next: None
    summary: parts.Summary
    truncated: bool


class CheckpointRefs(Struct, forbid_unknown_fields=True, kw_only=True):
    refs: list[Ref]


class Pins(Struct):
    """`pinned` are the numbers of all pinned checkpoints."""

    id: str
    pinned: list[int]


class EntryHeader(Struct):
    """An entry of the log. `size` is in bytes as stored."""

    seq: int
    version: Version
    kind: str
    name: str
    timestamp: Time
    metadata: Object
    size: int
    owner: Owner | None


class Summary(Struct):
    """A session's history in numbers."""

    session_id: str
    state: str
    total_count: int
    unique_names: int
    names: dict[str, int]
    first_checkpoint: Object | None
    last_checkpoint: Object | None
    duration_seconds: float
    stored_bytes: int


async def save(call: Call) -> Response:
    new: NewCheckpoint = call.content
    more: Data = {part: getattr(new, part) for part in ("put", "drop", "append", "cut", "patch")}
    more["idempotency_key"] = key(call)

    async def free(seen: str | None) -> Checkpoint:
        return await call.sessions.checkpoint(call.path["id"], new.name, new.data, new.metadata, **more, seen=seen)

    async def held(held: Held, seen: str | None) -> Checkpoint:
        return await held.checkpoint(new.name, new.data, new.metadata, **more, seen=seen)

    async def earlier() -> Checkpoint | None:
        save = Save(**{part: getattr(new, part) for part in new.__struct_fields__}).checked().requested(key(call))
        return await answered(call.sessions, call.path["id"], save.request)

    written = await write_either(call, free, held, earlier)
    # What a first call without a lease has stored is what it brought: if short, it need not be rebuilt from the log.
    given = key(call) is None and "saveslot-lease" not in call.headers and call.held <= APART
    return checkpoint(call, written, new.data if given else None)


async def history(call: Call) -> Response:
    query: CheckpointListing = call.query
    before = None if query.after is None else _number(query.after, "after")
    page = await call.sessions.history(
        call.path["id"],
        name=query.name,
        since=query.since,
        until=query.until,
        before=before,
        limit=query.limit + 1,
        all=query.all,
    )
    items = await fitting(reversed(page[-query.limit :]), data=query.data)
    more = len(page) > len(items)
    return paged(reversed(items), str(page[-len(items)].seq) if more else None)


async def read(call: Call) -> Response:
    query: Look = call.query
    if query.depth is not None or query.path is not None or query.recipe:
        return await look(call, query)
    answer = await call.sessions.get_checkpoint(call.path["id"], call.path["ref"])
    if unchanged(call, answer.version):
        return Response(status_code=304, headers=etag(answer.version))
    return checkpoint(call, answer)


async def look(call: Call, query: Look) -> Response:
    """Answer with part of the agent's data as of an entry. The ETag is that of the data, which never changes."""
    session_id = call.path["id"]
    making = await parts.making(call.sessions, session_id, call.path["ref"])
    tag = f"{making.data_seq}-{making.digest}"
    headers = {**etag(tag), "cache-control": "private, no-cache"}
    if unchanged(call, tag):
        return Response(status_code=304, headers=headers)
    [entry] = await call.sessions.entries(session_id, after=making.seq - 1, before=making.seq + 1)
    fields = entry.to_dict()
    del fields["kind"], fields["size"], fields["owner"]
    fields |= {"id": f"{session_id}:{making.seq}", "data_seq": making.data_seq}
    if query.recipe:
        fields["recipe"] = making.to_dict()
    if query.depth is not None or query.path is not None:
        depth = parts.DEPTH if query.depth is None else query.depth
        part = await parts.part(
            call.sessions,
            session_id,
            making.seq,
            path=query.path or "",
            depth=depth,
            limit=query.limit,
            start=query.start,
        )
        fields |= part.to_dict()
    return call.json(fields, headers=headers)


async def data(call: Call) -> Response:
    query: DataReading = call.query
    session_id = call.path["id"]
    if not query.key and not query.last:
        return Response(await parts.text(call.sessions, session_id, query.ref), media_type=JSON)
    last: dict[str, int] = {}
    for pair in query.last:
        name, _, number = pair.rpartition("=")
        last[name] = _number(number, "last")
    value = await call.sessions.get_data(session_id, query.ref, keys=query.key or None, last=last or None)
    return call.json(value)


async def entries(call: Call) -> Response:
    query: EntryListing = call.query
    page = await call.sessions.entries(
        call.path["id"],
        after=query.after,
        before=query.before,
        newest=query.newest + 1,
        names=query.name or None,
        kinds=query.kind or None,
    )
    more, page = len(page) > query.newest, page[-query.newest :]
    return call.json({"items": [one.to_dict() for one in page], "next": str(page[0].seq) if more else None})


async def diff(call: Call) -> Response:
    query: Comparison = call.query
    compared = await parts.compare(
        call.sessions, call.path["id"], query.a, query.b, other=query.session_b, old=query.old, limit=query.limit
    )
    return call.json(compared.to_dict())


async def summary(call: Call) -> Response:
    return call.json(await call.sessions.summary(call.path["id"]))


async def rollback(call: Call) -> Response:
    content: Rollback = call.content

    async def free(seen: str | None) -> Checkpoint:
        return await call.sessions.rollback(call.path["id"], content.to, seen=seen, idempotency_key=key(call))

    async def held(held: Held, seen: str | None) -> Checkpoint:
        return await held.rollback(content.to, seen=seen, idempotency_key=key(call))

    async def earlier() -> Checkpoint | None:
        return await answered(call.sessions, call.path["id"], request(key(call), "rollback", {"to": content.to}))

    return checkpoint(call, await write_either(call, free, held, earlier))


async def drop(call: Call) -> Response:
    content: CheckpointRefs = call.content

    async def write(seen: str | None) -> int:
        return await call.sessions.drop(call.path["id"], content.refs, seen=seen, idempotency_key=key(call))

    return call.json({"dropped": await follow(call, write)})


async def pins(call: Call) -> Response:
    return call.json({"items": await call.sessions.pins(call.path["id"]), "next": None})


async def pin(call: Call) -> Response:
    return await _pinned(call, call.sessions.pin)


async def unpin(call: Call) -> Response:
    return await _pinned(call, call.sessions.unpin)


async def _pinned(call: Call, verb: Callable[..., Awaitable[Checkpoint]]) -> Response:
    content: CheckpointRef = call.content
    chosen = await verb(call.path["id"], content.ref, idempotency_key=key(call))
    return call.json({"id": chosen.id, "pinned": await call.sessions.pins(call.path["id"])})


def _number(text: str, path: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004  (digits that fit in 64 bits)
        raise InvalidInput(path, f"{text!r} is not a number")
    return int(text)


_CHANGES = ("conflict", "invalid_transition", "lease_held", "lease_lost", "cancelled")
_PATH = "/v1/sessions/{id}/"

ROUTES = [
    Route(
        "POST",
        _PATH + "checkpoints",
        "write",
        save,
        "Save a checkpoint: durable when the answer comes.",
        takes=NewCheckpoint,
        gives=SavedCheckpoint,
        status=201,
        headers=(IF_MATCH, KEY, PREFER, LEASE),
        errors=_CHANGES,
        largest=LARGEST,
        tag=TAG,
    ),
    Route(
        "GET",
        _PATH + "checkpoints",
        "read",
        history,
        "List its checkpoints, rollbacks and lifecycle entries: the newest, oldest first.",
        gives=Page[SavedCheckpoint],
        query=CheckpointListing,
        tag=TAG,
    ),
    Route(
        "GET",
        _PATH + "checkpoints/{ref}",
        "read",
        read,
        "Read the checkpoint that a ref names: a name (its newest), a number, latest or ~2.",
        gives=CheckpointPart,
        query=Look,
        headers=(UNLESS,),
        tag=TAG,
        description="With `depth`, `path` or `recipe`: part of the agent's data as of that entry, of any kind, and how "
        "it is rebuilt. Its ETag is that of the data.",
    ),
    Route(
        "GET",
        _PATH + "data",
        "read",
        data,
        "Read the agent's data.",
        gives=Object,
        query=DataReading,
        tag=TAG,
    ),
    Route(
        "GET",
        _PATH + "entries",
        "read",
        entries,
        "List the entries of its log, without the states.",
        gives=Page[EntryHeader],
        query=EntryListing,
        description="`next` leads to older entries: pass it as `before`.",
        tag=TAG,
    ),
    Route(
        "GET",
        _PATH + "diff",
        "read",
        diff,
        "Compare two checkpoints, of one session or of two.",
        gives=Differences,
        query=Comparison,
        tag=TAG,
        description="Items of lists are aligned by content: a message that stays is not an operation.",
    ),
    Route("GET", _PATH + "summary", "read", summary, "Sum up its history.", gives=Summary, tag=TAG),
    Route(
        "POST",
        _PATH + "rollback",
        "write",
        rollback,
        "Restore the state of an older entry by a new one: nothing is lost.",
        takes=Rollback,
        gives=SavedCheckpoint,
        headers=(MUST_MATCH, KEY, PREFER, LEASE),
        errors=_CHANGES,
        tag=TAG,
    ),
    Route(
        "POST",
        _PATH + "drop",
        "write",
        drop,
        "Drop checkpoints, as retention would.",
        takes=CheckpointRefs,
        gives=DroppedCheckpoints,
        headers=(IF_MATCH, KEY),
        errors=("conflict", "lease_held"),
        tag=TAG,
    ),
    Route("GET", _PATH + "pins", "read", pins, "List the numbers of its pinned checkpoints.", gives=Page[int], tag=TAG),
    Route(
        "POST",
        _PATH + "pin",
        "write",
        pin,
        "Exempt a checkpoint from retention.",
        takes=CheckpointRef,
        gives=Pins,
        headers=(KEY,),
        errors=("conflict", "lease_held"),
        tag=TAG,
    ),
    Route(
        "POST",
        _PATH + "unpin",
        "write",
        unpin,
        "Subject a checkpoint to retention again.",
        takes=CheckpointRef,
        gives=Pins,
        headers=(KEY,),
        errors=("conflict", "lease_held"),
        tag=TAG,
    ),
]
