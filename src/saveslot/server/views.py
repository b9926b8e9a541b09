"""What lists, tapes and charts show: `/v1/sessions/{id}/log`, outlooks, shapes. Each row calls one manager function."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.manager.failures import Failures, failures
from saveslot.manager.log_pages import MOST, PAGE, LogPage, log_page
from saveslot.manager.outlook import Outlook, outlook
from saveslot.manager.shapes import MOST as SHAPES, Shape, shapes
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.conditions import UNLESS, unchanged

TAG = "views"


class LogQuery(Struct, forbid_unknown_fields=True):
    around: Annotated[int, Meta(ge=0, description="Number of the entry in the middle of the page.")] | None = None
    before: Annotated[int, Meta(ge=0, description="Entries before this number.")] | None = None
    after: Annotated[int, Meta(ge=0, description="Entries after this number.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST)] = PAGE
    changed: Annotated[bool, Meta(description="Name short values that changed, too.")] = False


async def show_log(call: Call) -> Response:
    query: LogQuery = call.query
    page = await log_page(
        call.sessions,
        call.path["id"],
        around=query.around,
        before=query.before,
        after=query.after,
        limit=query.limit,
        changed=query.changed,
    )
    tag = f'"{page.etag}"'
    if unchanged(call, page.etag):
        return Response(status_code=304, headers={"etag": tag})
    return call.json(page.to_dict(), headers={"etag": tag})


async def show_outlook(call: Call) -> Response:
    return call.json((await outlook(call.sessions, call.path["id"])).to_dict())


class ShapesQuery(Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], Meta(max_length=SHAPES, description="Session ids, each as a parameter of its own.")]


class Shapes(Struct):
    items: list[Shape]
    next: None = None


async def show_shapes(call: Call) -> Response:
    items = await shapes(call.sessions, call.query.ids)
    return call.json({"items": [shape.to_dict() for shape in items], "next": None})


class FailuresQuery(Struct, forbid_unknown_fields=True):
    since: Annotated[float, Meta(ge=0, description="Seconds back; orphans come whatever their age.")] = 24 * 3600.0
    agent_type: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


async def show_failures(call: Call) -> Response:
    query: FailuresQuery = call.query
    found = await failures(call.sessions, since=query.since, agent_type=query.agent_type, limit=query.limit)
    return call.json(found.to_dict())


ROUTES = [
    Route(
        "GET",
        "/v1/sessions/{id}/log",
        "read",
        show_log,
        "A page of a session's whole log, without the states: the newest entries, or those around a number.",
        gives=LogPage,
        query=LogQuery,
        headers=(UNLESS,),
        errors=("not_found",),
        tag=TAG,
        description="`next` and `previous` are numbers to pass as `after` and `before`. The ETag changes with the "
        "log and with its owner's life.",
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/outlook",
        "read",
        show_outlook,
        "Where the session would go on, which steps are open, and which verbs are allowed now.",
        gives=Outlook,
        errors=("not_found", "key_missing"),
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/shapes",
        "read",
        show_shapes,
        "Sessions as small drawings: owners, and at most 64 marks each. At most 100 sessions.",
        gives=Shapes,
        query=ShapesQuery,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/failures",
        "read",
        show_failures,
        "Sessions that failed lately, and orphans: newest first, with reasons and last owners; counts by reason.",
        gives=Failures,
        query=FailuresQuery,
        tag=TAG,
    ),
]
