"""`/v1/sessions/{id}/records`: values beside the state."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.manager.records import each
from saveslot.server.call import Call, encoded
from saveslot.server.routes import Route
from saveslot.server.v1.answers import ROOM, Page, Time, Value, paged
from saveslot.server.v1.conditions import IF_MATCH, KEY, LEASE, key, write_either
from saveslot.server.v1.sessions import Id
from saveslot.session.held import Held
from saveslot.session.records import NewRecord as Written

TAG = "Records"
# Records in a page, unless `limit` says otherwise, and at most.
PAGE, LONGEST = 100, 1000


class NewRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Id
    value: Value


class RecordNumber(Struct):
    seq: int


class Record(Struct):
    """A value beside the state, with the number of its entry and the key of the call that wrote it."""

    seq: int
    name: str
    value: Value
    key: str | None
    timestamp: Time


class RecordListing(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str | None = None
    after: Annotated[int, Meta(ge=0, description="Records after this number, or `next` of the page before.")] = 0
    limit: Annotated[int, Meta(ge=1, le=LONGEST)] = PAGE


async def add(call: Call) -> Response:
    new: NewRecord = call.content

    async def free(seen: str | None) -> int:
        return await call.sessions.record(call.path["id"], new.name, new.value, key=key(call), seen=seen)

    async def held(held: Held, seen: str | None) -> int:
        return await held.record(new.name, new.value, key=key(call), seen=seen)

    async def earlier() -> int | None:
        known = Written.of(new.name, new.value, key(call), call.sessions.engine.limit)
        head = await call.sessions.lookup.existing(call.path["id"])
        return await known.earlier(call.sessions.engine.vault, head.row.key)

    return call.json({"seq": await write_either(call, free, held, earlier)})


async def find(call: Call) -> Response:
    query: RecordListing = call.query
    texts: list[bytes] = []
    seq = size = 0
    more = False
    async for record in each(call.sessions, call.path["id"], name=query.name, after=query.after):
        if more := len(texts) == query.limit or size > ROOM:
            break
        texts.append(encoded(record.to_dict()))
        seq, size = record.seq, size + len(texts[-1])
    return paged(texts, str(seq) if more else None)


ROUTES = [
    Route(
        "POST",
        "/v1/sessions/{id}/records",
        "write",
        add,
        "Add a value beside the state, also while a worker holds the session and after it ended.",
        takes=NewRecord,
        gives=RecordNumber,
        status=201,
        headers=(IF_MATCH, KEY, LEASE),
        errors=("conflict", "lease_lost"),
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/records",
        "read",
        find,
        "List its records, oldest first.",
        gives=Page[Record],
        query=RecordListing,
        tag=TAG,
    ),
]
