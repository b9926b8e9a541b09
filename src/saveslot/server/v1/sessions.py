"""`/v1/sessions`: create, list, read, change and delete sessions."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict
from starlette.responses import Response

from saveslot.errors import AlreadyExists, InvalidInput
from saveslot.manager.facets import Facets, facets
from saveslot.manager.reading import PAGE, WIDE_PAGE, query
from saveslot.manager.rows import each, rows
from saveslot.manager.update import update_as
from saveslot.server.call import JSON, Call
from saveslot.server.routes import Route
from saveslot.server.v1.answers import (
    ListedSession,
    Object,
    Page,
    Session,
    SessionHead,
    Time,
    fitting,
    listed,
    one,
    session as answer,
    spliced,
)
from saveslot.server.v1.conditions import IF_MATCH, KEY, MUST_MATCH, etag, follow, key, newest
from saveslot.session.attempts import Limit
from saveslot.session.engine import Space
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.requests import request
from saveslot.stores.around.cached import MAX_AGE
from saveslot.values.checks import Data, as_time, now
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Query, micros

TAG = "Sessions"
# Bytes of changes to context, metadata and labels in one request.
ABOUT = 4 << 20
Id = Annotated[str, Meta(min_length=1, max_length=200)]
Label = Annotated[str, Meta(max_length=200)]
Labels = dict[str, str]


class NewSession(Struct, forbid_unknown_fields=True, kw_only=True):
    """A session to create."""

    agent_type: Label
    user_id: Label = ""
    context: Object | None = None
    metadata: Object | None = None
    labels: Labels | None = None
    session_id: Annotated[Id | None, Meta(description="Generated if it is not given.")] = None
    data: Annotated[Object | None, Meta(description="A first checkpoint in the same write …")] = None
    name: Annotated[Id, Meta(description="… and its name.")] = "created"
    exist_ok: Annotated[bool, Meta(description="Answer 200 with the session of that id if there is one.")] = False
    max_attempts: (
        Annotated[int | None, Meta(description="Failed attempts after which it fails; null: no limit.")] | UnsetType
    ) = UNSET


class Cached(Struct, forbid_unknown_fields=True, kw_only=True):
    level: Annotated[
        Literal["strong", "cached"], Meta(description="`cached`: an answer that may be `max_age` seconds old.")
    ] = "strong"
    max_age: Annotated[float, Meta(ge=0)] = MAX_AGE


class SessionFilter(Cached, kw_only=True):
    """Conditions on sessions: all of them hold."""

    state: Annotated[list[SessionState], Meta(description="Repeatable: any of these.")] = []
    agent_type: Annotated[list[str], Meta(description="Repeatable: any of these.")] = []
    user_id: str | None = None
    label: Annotated[list[str], Meta(description="NAME=VALUE, repeatable.")] = []
    text: Annotated[str | None, Meta(description="Part of the id, agent type, user id or a label.")] = None
    prefix: Annotated[str | None, Meta(description="The beginning of the id.")] = None
    orphaned: Annotated[bool, Meta(description="Only those whose workers died, or left by an error.")] = False
    entry: Annotated[
        list[str], Meta(description="NAME=VALUE, repeatable: a label in the metadata of one of its checkpoints.")
    ] = []
    created_after: Time | None = None
    created_before: Time | None = None
    seen_before: Annotated[
        Time | None, Meta(description="Without a heartbeat since; the longest silent come first.")
    ] = None

    def condition(self, sessions: Space) -> Query:
        """The conditions but those on states and agent types."""
        wanted = query(
            sessions,
            None,
            self.user_id,
            None,
            labelled(self.label, "label"),
            self.created_after,
            self.created_before,
            self.text,
            self.prefix,
            self.orphaned,
        )
        wanted.entry = labelled(self.entry, "entry")
        if self.seen_before is not None:
            wanted.stale_for = max(1, micros(now()) - micros(as_time(self.seen_before, "seen_before")))
        return wanted

    def queries(self, sessions: Space) -> list[Query]:
        """Queries without a session in common, whose sessions together are those that match."""
        return each(self.condition(sessions), self.state, self.agent_type)


class SessionListing(SessionFilter, kw_only=True):
    sort: Literal["created", "changed"] = "created"
    limit: Annotated[int, Meta(ge=1, le=WIDE_PAGE)] = PAGE
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    outlook: Annotated[bool, Meta(description="Each with its outlook; at most 20.")] = False


class SessionReading(Cached, kw_only=True):
    history: Annotated[int, Meta(ge=0, le=WIDE_PAGE, description="So many of its newest checkpoints come with it.")] = 0


class SessionChanges(Struct, forbid_unknown_fields=True, kw_only=True):
    """JSON merge patches (RFC 7396): keys to set; null removes one."""

    context: Object | None = None
    metadata: Object | None = None
    labels: dict[str, str | None] | None = None


class Fork(Struct, forbid_unknown_fields=True, kw_only=True):
    at: Annotated[str | int, Meta(description="A ref: a name, a number, `latest` or `~2`.")] = "latest"
    session_id: Annotated[Id | None, Meta(description="Generated if it is not given.")] = None


class Copy(Struct, forbid_unknown_fields=True, kw_only=True):
    to: Annotated[Id, Meta(description="The id of the copy.")]
    upto: Annotated[str | int | None, Meta(description="The ref of the entry that the copy ends with.")] = None


class Count(Struct):
    count: int


def labelled(pairs: Sequence[str], path: str) -> Labels:
    labels: Labels = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise InvalidInput(path, f"{pair!r} is not NAME=VALUE")
        labels[name] = value
    return labels


async def create(call: Call) -> Response:
    new: NewSession = call.content
    limit: Limit = ... if new.max_attempts is UNSET else new.max_attempts
    while True:
        try:
            session = await call.sessions.create_session(
                new.agent_type,
                new.user_id,
                new.context,
                new.metadata,
                labels=new.labels,
                session_id=new.session_id,
                max_attempts=limit,
                data=new.data,
                name=new.name,
                idempotency_key=key(call),
            )
        except AlreadyExists:
            if not new.exist_ok or new.session_id is None:
                raise
            there = await call.sessions.get_session(new.session_id, history=0)
            if there is not None:  # else it was deleted just now
                return one(call, there, 200)
        else:
            session.loaded = False
            return one(call, session)


async def find(call: Call) -> Response:
    listing: SessionListing = call.query
    queries = listing.queries(call.sessions)
    for wanted in queries:
        wanted.changed = listing.sort == "changed"
    page = await rows(
        call.sessions,
        queries,
        limit=listing.limit,
        after=listing.after,
        outlook=listing.outlook,
        level=listing.level,
        max_age=listing.max_age,
    )
    return call.json({"items": [listed(*item) for item in page.items], "next": page.next})


async def count(call: Call) -> Response:
    wanted: SessionFilter = call.query
    store = call.sessions.engine.answers.at(wanted.level, wanted.max_age)
    counts = await gather(*map(store.count, wanted.queries(call.sessions)))
    return call.json({"count": sum(sum(part.states.values()) for part in counts)})


async def facet(call: Call) -> Response:
    wanted: SessionFilter = call.query
    counts = await facets(
        call.sessions,
        wanted.condition(call.sessions),
        states=wanted.state,
        agent_types=wanted.agent_type,
        level=wanted.level,
        max_age=wanted.max_age,
    )
    return call.json(counts.to_dict())


async def read(call: Call) -> Response:
    query: SessionReading = call.query
    session_id = call.path["id"]
    session = await call.sessions.get_session(
        session_id, history=query.history, level=query.level, max_age=query.max_age
    )
    if session is None:
        raise unknown(session_id, call.namespace)
    if not query.history:
        return one(call, session)
    newest = await fitting(reversed(session.checkpoints[-query.history :]))
    session.loaded = False
    text = spliced(answer(session), "checkpoints", b"[%b]" % b",".join(reversed(newest)))
    return Response(text, headers=etag(session.version), media_type=JSON)


async def head(call: Call) -> Response:
    value = await newest(call)
    return call.json(value.to_dict(), None, etag(value.version))


async def change(call: Call) -> Response:
    changes: SessionChanges = call.content
    call_id = request(key(call), "merge", asdict(changes))

    async def write(seen: str | None) -> AgentSession:
        session = await existing(call)
        for part in ("context", "metadata", "labels"):
            setattr(session, part, merged(getattr(session, part), getattr(changes, part) or {}))
        return await update_as(call.sessions, session, call_id, seen=seen)

    session = await follow(call, write)
    session.loaded = False  # a repeat loads its history
    return one(call, session)


async def label(call: Call) -> Response:
    call.content = SessionChanges(labels=call.content)
    return await change(call)


async def delete(call: Call) -> Response:
    session_id = call.path["id"]

    async def write(seen: str | None) -> bool:
        return await call.sessions.delete_session(session_id, seen=seen)

    if not await follow(call, write):
        raise unknown(session_id, call.namespace)
    return Response(status_code=call.route.status)


async def fork(call: Call) -> Response:
    fork: Fork = call.content

    async def write(seen: str | None) -> AgentSession:
        return await call.sessions.fork(call.path["id"], fork.at, fork.session_id, seen=seen, idempotency_key=key(call))

    session = await follow(call, write)
    session.loaded = False
    return one(call, session)


async def copy(call: Call) -> Response:
    copy: Copy = call.content
    session = await call.sessions.copy_session(call.path["id"], copy.to, upto=copy.upto, idempotency_key=key(call))
    session.loaded = False
    return one(call, session)


async def existing(call: Call) -> AgentSession:
    """Read the session in the path, without its history."""
    session = await call.sessions.get_session(call.path["id"], history=0)
    if session is None:
        raise unknown(call.path["id"], call.namespace)
    return session


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Data:
    """Apply a JSON merge patch (RFC 7396)."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            before: Any = result.get(name)
            result[name] = merged(cast("Data", before) if isinstance(before, dict) else {}, cast("Data", value))
        else:
            result[name] = value
    return result


_EXISTS = ("already_exists",)
_WRITES = ("conflict", "invalid_transition", "lease_held")

ROUTES = [
    Route(
        "POST",
        "/v1/sessions",
        "write",
        create,
        "Create a session.",
        takes=NewSession,
        gives=Session,
        status=201,
        or_status=200,
        headers=(KEY,),
        errors=_EXISTS,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/sessions",
        "read",
        find,
        "List sessions.",
        gives=Page[ListedSession],
        query=SessionListing,
        tag=TAG,
    ),
    Route("GET", "/v1/count", "read", count, "Count sessions.", gives=Count, query=SessionFilter, tag=TAG),
    Route(
        "GET",
        "/v1/sessions/facets",
        "read",
        facet,
        "Count sessions by state, agent type, label, last heartbeat and time of creation.",
        gives=Facets,
        query=SessionFilter,
        tag=TAG,
        description="Each facet counts under all other conditions. Labels, last heartbeats and the histogram come from "
        "the sessions created last, as `looked_at` says.",
    ),
    Route(
        "GET",
        "/v1/sessions/{id}",
        "read",
        read,
        "Read a session.",
        gives=Session,
        query=SessionReading,
        tag=TAG,
        description="The session with the id `facets` is `/v1/sessions/%66acets`.",
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/head",
        "read",
        head,
        "Read its newest entry.",
        gives=SessionHead,
        tag=TAG,
    ),
    Route(
        "PATCH",
        "/v1/sessions/{id}",
        "write",
        change,
        "Change its context, metadata and labels.",
        takes=SessionChanges,
        gives=Session,
        largest=ABOUT,
        headers=(MUST_MATCH, KEY),
        errors=_WRITES,
        tag=TAG,
    ),
    Route(
        "PATCH",
        "/v1/sessions/{id}/labels",
        "write",
        label,
        "Set labels; null removes one.",
        takes=dict[str, str | None],
        gives=Session,
        headers=(IF_MATCH, KEY),
        errors=_WRITES,
        tag=TAG,
    ),
    Route(
        "DELETE",
        "/v1/sessions/{id}",
        "write",
        delete,
        "Delete it. Its log stays as the audit trail until gc.",
        status=204,
        headers=(MUST_MATCH,),
        errors=("conflict",),
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/fork",
        "write",
        fork,
        "Create a session that continues from one of its checkpoints.",
        takes=Fork,
        gives=Session,
        status=201,
        headers=(IF_MATCH, KEY),
        errors=("conflict", *_EXISTS),
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/copy",
        "write",
        copy,
        "Copy it with its whole log, under another id.",
        takes=Copy,
        gives=Session,
        status=201,
        headers=(KEY,),
        errors=_EXISTS,
        long=True,
        tag=TAG,
    ),
]
