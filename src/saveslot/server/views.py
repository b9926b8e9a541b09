"""What lists, tapes and charts show: `/v1/sessions/{id}/log`, outlooks, shapes. Each row calls one manager function."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.errors import InvalidInput
from saveslot.manager.activity import PIECES, Buckets, Overview, Pulse, buckets, overview, pulse
from saveslot.manager.analytics import SAMPLE
from saveslot.manager.drops import LOOKED, SAMPLES, ThinPreview, thin_preview
from saveslot.manager.facets import FRESH
from saveslot.manager.failures import Failures, failures
from saveslot.manager.log_pages import MOST, PAGE, LogPage, log_page
from saveslot.manager.outlook import Outlook, outlook
from saveslot.manager.parts import OPERATIONS
from saveslot.manager.preview import RollbackPreview, rollback_preview
from saveslot.manager.shapes import MOST as SHAPES, Shape, shapes
from saveslot.manager.storage import Storage, storage
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1 import steps
from saveslot.server.v1.conditions import UNLESS, etag, unchanged
from saveslot.server.v1.sessions import labelled
from saveslot.values.advice import reworded
from saveslot.values.answers import Time
from saveslot.values.lifecycle import SessionState

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
    view = (await outlook(call.sessions, call.path["id"])).to_dict()
    refused = {verb: reworded(why, "request") for verb, why in view["refused"].items()}
    return call.json({**view, "refused": refused})


class ShapesQuery(Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], Meta(max_length=SHAPES, description="Session ids, each as a parameter of its own.")]


class Shapes(Struct):
    items: list[Shape]
    next: None = None


async def show_shapes(call: Call) -> Response:
    items = await shapes(call.sessions, call.query.ids)
    return call.json({"items": [shape.to_dict() for shape in items], "next": None})


class PreviewQuery(Struct, forbid_unknown_fields=True):
    to: Annotated[str, Meta(description="The ref to go back to.")]
    limit: Annotated[int, Meta(ge=0, description="Operations of `diff`.")] = OPERATIONS


async def preview_rollback(call: Call) -> Response:
    query: PreviewQuery = call.query
    preview = await rollback_preview(call.sessions, call.path["id"], query.to, limit=query.limit)
    return call.json(preview.to_dict(), headers=etag(preview.version))


class ThinQuery(Struct, forbid_unknown_fields=True):
    looked: Annotated[int, Meta(ge=1, le=LOOKED, description="Sessions that are looked at.")] = LOOKED
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    samples: Annotated[int, Meta(ge=0, le=100, description="Sessions of which `drop` names the checkpoints.")] = SAMPLES


async def preview_thin(call: Call) -> Response:
    query: ThinQuery = call.query
    preview = await thin_preview(call.sessions, looked=query.looked, samples=query.samples, after=query.after)
    return call.json(preview.to_dict())


class FailuresQuery(Struct, forbid_unknown_fields=True):
    since: Annotated[float, Meta(ge=0, description="Seconds back; orphans come whatever their age.")] = 24 * 3600.0
    agent_type: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


async def show_failures(call: Call) -> Response:
    query: FailuresQuery = call.query
    page = await failures(call.sessions, since=query.since, agent_type=query.agent_type, limit=query.limit)
    return call.json(page.to_dict())


class OverviewQuery(Struct, forbid_unknown_fields=True):
    n: Annotated[int, Meta(ge=1, le=PIECES, description="Pieces, at most.")] = 120


async def show_overview(call: Call) -> Response:
    query: OverviewQuery = call.query
    return call.json((await overview(call.sessions, call.path["id"], n=query.n)).to_dict())


class Stats(Pulse, frozen=True):
    """A namespace in numbers. A token of some namespaces gets 0 for `entries` and `stored_bytes`, which are of the
    whole store, and null for `worker`.
    """

    sessions: int
    by_state: dict[str, int]
    by_agent_type: dict[str, int]
    held: int
    orphaned: int
    entries: int
    stored_bytes: int
    worker: dict[str, Any] | None  # of this server
    keeper: dict[str, Any]  # of this server


async def show_stats(call: Call) -> Response:
    known, now = await gather(call.sessions.stats(level="cached", max_age=FRESH), pulse(call.sessions))
    return call.json({**known, **now.to_dict(), **_hidden(call, entries=0, stored_bytes=0, worker=None)})


def _hidden(call: Call, **instead: Any) -> Mapping[str, Any]:
    """What a token of some namespaces gets in place of figures of the whole store: they tell what others do."""
    return {} if call.caller.namespaces is None else instead


class BucketsQuery(Struct, forbid_unknown_fields=True):
    bucket: Annotated[float, Meta(ge=1, description="Seconds of each.")] = 60
    since: Annotated[float, Meta(ge=0, description="Seconds back.")] = 3600
    agent_type: str | None = None


async def show_buckets(call: Call) -> Response:
    query: BucketsQuery = call.query
    answer = await buckets(call.sessions, bucket=query.bucket, since=query.since, agent_type=query.agent_type)
    return call.json(answer.to_dict())


async def show_storage(call: Call) -> Response:
    answer = await storage(call.sessions, await call.sessions.metrics())
    return call.json({**answer.to_dict(), **_hidden(call, stored_bytes=0, entries=0, tiers=[])})


class AnalyticsQuery(Struct, forbid_unknown_fields=True):
    agent_type: str | None = None
    user_id: str | None = None
    state: SessionState | None = None
    label: Annotated[list[str], Meta(description="NAME=VALUE, repeatable.")] = []
    text: str | None = None
    since: Annotated[Time | None, Meta(description="Sessions created after this.")] = None
    until: Annotated[Time | None, Meta(description="Sessions created before this.")] = None
    first: Annotated[str | None, Meta(description="With `then`: seconds from each entry of this name …")] = None
    then: Annotated[str | None, Meta(description="… to the next one of this name.")] = None
    bucket: Annotated[float, Meta(ge=1, description="Seconds that `rate` counts in.")] | None = None
    sample: Annotated[int, Meta(ge=1, le=SAMPLE, description="Newest sessions that are read.")] = SAMPLE


async def show_analytics(call: Call) -> Response:
    query: AnalyticsQuery = call.query
    if (query.first is None) != (query.then is None):
        raise InvalidInput("then", "goes with first: pass both names, or none")
    report = await call.sessions.analytics(
        agent_type=query.agent_type,
        user_id=query.user_id,
        state=query.state,
        labels=labelled(query.label, "label"),
        created_after=query.since,
        created_before=query.until,
        text=query.text,
        between=None if query.first is None or query.then is None else (query.first, query.then),
        bucket=query.bucket,
        sample=query.sample,
    )
    return call.json(report)


ROUTES = [
    *steps.ROUTES,
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
    Route(
        "GET",
        "/v1/sessions/{id}/buckets",
        "read",
        show_overview,
        "A session's whole log in a few pieces, and the entries at which it changed hands, direction or state.",
        gives=Overview,
        query=OverviewQuery,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/stats",
        "read",
        show_stats,
        "Sessions by state and agent type, workers, rates; a few seconds old at most.",
        gives=Stats,
        tag=TAG,
        description="Rates are of the sessions created last and those held, as `looked_at` says.",
    ),
    Route(
        "GET",
        "/v1/stats/buckets",
        "read",
        show_buckets,
        "What was written, by time: checkpoints, bytes, sessions created, ended, failed and claimed.",
        gives=Buckets,
        query=BucketsQuery,
        tag=TAG,
        description="Of the sessions created last and those held, as `looked_at` says.",
    ),
    Route(
        "GET",
        "/v1/storage",
        "read",
        show_storage,
        "Where the bytes are: by sort, agent type and day; and the tiers of the store.",
        gives=Storage,
        long=True,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/analytics",
        "read",
        show_analytics,
        "Statistics over many sessions: names, times, sizes, rates, how far they get and why they fail.",
        gives=dict[str, Any],
        query=AnalyticsQuery,
        long=True,
        tag=TAG,
        description="Entries are of the newest sessions, as `looked_at` says.",
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/rollback",
        "read",
        preview_rollback,
        "What a rollback would do: the difference, steps that it does not undo, and who holds the session.",
        gives=RollbackPreview,
        query=PreviewQuery,
        tag=TAG,
        description="Nothing is written. Its ETag, as If-Match of the rollback, makes sure that nothing else happens.",
    ),
    Route(
        "GET",
        "/v1/thin",
        "read",
        preview_thin,
        "What retention would drop now of a page of sessions, with samples. Nothing is written.",
        gives=ThinPreview,
        query=ThinQuery,
        tag=TAG,
    ),
]
