"""`/v1/sessions/{id}/export` and `/v1/imports`: whole sessions as JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from saveslot.codec import weight
from saveslot.errors import InvalidInput
from saveslot.server.call import JSON, Call
from saveslot.server.load import IMPORTED, apart
from saveslot.server.problem import Problem
from saveslot.server.routes import Route
from saveslot.server.v1.answers import Object, Session, one
from saveslot.server.v1.conditions import KEY, key

TAG = "Moving"
# Bytes of an export that one request imports; `saveslot import` takes larger ones.
LARGEST = 64 << 20


class Exporting(Struct, forbid_unknown_fields=True, kw_only=True):
    plain: Annotated[bool, Meta(description="Also the content of a sealed session in the clear.")] = False


class Importing(Struct, forbid_unknown_fields=True, kw_only=True):
    session_id: Annotated[str, Meta(max_length=200, description="Its id here, instead of its own.")] | None = None


async def export(call: Call) -> Response:
    query: Exporting = call.query
    parts = call.sessions.export_parts(call.path["id"], plain=query.plain)
    first = await anext(parts)  # raises before the answer begins if there is no such session
    return StreamingResponse(_all(call, first, parts), media_type=JSON)


async def _all(call: Call, first: str, parts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for part in parts:
        call.require_counting()
        yield part


async def load(call: Call) -> Response:
    query: Importing = call.query
    body = await call.body()
    call.load.limits.heaviest = IMPORTED
    await apart(len(body), weight.check, body, weight.REQUEST)
    async with call.room.importing:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise Problem(400, InvalidInput("body", "is not UTF-8")) from None
        session = await call.sessions.import_session(text, session_id=query.session_id, idempotency_key=key(call))
    session.loaded = False
    return one(call, session)


ROUTES = [
    Route(
        "GET",
        "/v1/sessions/{id}/export",
        "read",
        export,
        "Export a session as JSON: its first state, then the changes.",
        gives=Object,
        query=Exporting,
        streams=True,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/imports",
        "write",
        load,
        "Store a session from an export, with its numbers and times.",
        gives=Session,
        query=Importing,
        uploads=True,
        status=201,
        headers=(KEY,),
        errors=("already_exists", "too_large", "key_missing", "wrong_key"),
        largest=LARGEST,
        long=True,
        tag=TAG,
    ),
]
