"""`/v1/sessions/{id}/pause` and the other verbs that change a session's state, and its heartbeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.manager.lifecycle import recover as verb, repeated
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.answers import Object, Session, Time, Value, Version, one
from saveslot.server.v1.conditions import IF_MATCH, KEY, LEASE, follow, key, write_either
from saveslot.server.v1.sessions import existing
from saveslot.session.held import Held
from saveslot.session.model import AgentSession
from saveslot.session.transition import Transition
from saveslot.values.lifecycle import SessionState

TAG = "Lifecycle"


class Completion(Struct, forbid_unknown_fields=True, kw_only=True):
    result: Value = None


class Failure(Struct, forbid_unknown_fields=True, kw_only=True):
    error: Annotated[str, Meta(description="Why, in a few words.")]
    details: Object | None = None


class Reason(Struct, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=200, description="Why, for the log.")] = ""


class SessionStatus(Struct):
    session_id: str
    state: SessionState


class Release(Struct):
    session_id: str
    released: bool


class Heartbeat(Struct):
    """`version` is as before: a heartbeat is not an entry."""

    session_id: str
    last_heartbeat: Time
    version: Version


async def pause(call: Call) -> Response:
    return await _changed(
        call,
        Transition.pause(key(call)),
        lambda seen: call.sessions.pause(call.path["id"], seen=seen, idempotency_key=key(call)),
        lambda held, seen: held.pause(seen=seen, idempotency_key=key(call)),
    )


async def resume(call: Call) -> Response:
    return await _changed(
        call,
        Transition.resume(key(call)),
        lambda seen: call.sessions.resume(call.path["id"], seen=seen, idempotency_key=key(call)),
        lambda held, seen: held.resume(seen=seen, idempotency_key=key(call)),
    )


async def complete(call: Call) -> Response:
    content: Completion = call.content
    return await _changed(
        call,
        Transition.complete(content.result, key(call)),
        lambda seen: call.sessions.complete(call.path["id"], content.result, seen=seen, idempotency_key=key(call)),
        lambda held, seen: held.complete(content.result, seen=seen, idempotency_key=key(call)),
    )


async def fail(call: Call) -> Response:
    content: Failure = call.content
    return await _changed(
        call,
        Transition.fail(content.error, content.details, key(call)),
        lambda seen: call.sessions.fail(
            call.path["id"], content.error, content.details, seen=seen, idempotency_key=key(call)
        ),
        lambda held, seen: held.fail(content.error, content.details, seen=seen, idempotency_key=key(call)),
    )


async def recover(call: Call) -> Response:
    async def write(seen: str | None) -> AgentSession:
        return await verb(call.sessions, call.path["id"], seen=seen, idempotency_key=key(call))

    session = await follow(call, write)
    session.loaded = False  # a repeat that came at the same time loads its history
    return one(call, session)


async def _changed(
    call: Call,
    transition: Transition,
    free: Callable[[str | None], Awaitable[AgentSession]],
    write: Callable[[Held, str | None], Awaitable[None]],
) -> Response:
    async def held(held: Held, seen: str | None) -> AgentSession:
        await write(held, seen)
        return await existing(call)

    async def earlier() -> AgentSession | None:
        return await existing(call) if await repeated(call.sessions, call.path["id"], transition.request) else None

    return one(call, await write_either(call, free, held, earlier))


async def cancel(call: Call) -> Response:
    content: Reason = call.content
    state = await call.sessions.cancel(call.path["id"], content.reason, idempotency_key=key(call))
    return call.json({"session_id": call.path["id"], "state": state.value})


async def release(call: Call) -> Response:
    content: Reason = call.content
    released = await call.sessions.release(call.path["id"], content.reason, idempotency_key=key(call))
    return call.json({"session_id": call.path["id"], "released": released})


async def heartbeat(call: Call) -> Response:
    async def beat(_: str | None) -> AgentSession:
        session = await existing(call)
        session.heartbeat()
        return await call.sessions.update_session(session)

    async def held(held: Held, _: str | None) -> AgentSession:
        await held.heartbeat()
        return await existing(call)

    session = await write_either(call, beat, held)
    return call.json(
        {
            "session_id": session.session_id,
            "last_heartbeat": session.last_heartbeat.isoformat(),
            "version": session.version,
        }
    )


_CHANGES = ("conflict", "invalid_transition", "lease_lost", "cancelled")


def _verb(name: str, respond: Callable[[Call], Awaitable[Response]], summary: str, takes: type[Struct] | None) -> Route:
    return Route(
        "POST",
        f"/v1/sessions/{{id}}/{name}",
        "write",
        respond,
        summary,
        takes=takes,
        gives=Session,
        headers=(IF_MATCH, KEY) if name == "recover" else (IF_MATCH, KEY, LEASE),
        errors=(*_CHANGES, "lease_held") if name == "complete" else _CHANGES,
        tag=TAG,
    )


def _told(
    name: str,
    respond: Callable[[Call], Awaitable[Response]],
    summary: str,
    gives: type[Struct],
) -> Route:
    return Route(
        "POST",
        f"/v1/sessions/{{id}}/{name}",
        "write",
        respond,
        summary,
        takes=Reason,
        gives=gives,
        headers=(KEY,),
        errors=_CHANGES,
        tag=TAG,
    )


ROUTES = [
    _verb("pause", pause, "Pause an active session. A worker that holds it gets a conflict from its next verb.", None),
    _verb("resume", resume, "Make a paused session active.", None),
    _verb("complete", complete, "End it for good: only a fork can continue from here.", Completion),
    _verb("fail", fail, "End it as failed, until recover or a rollback reopens it.", Failure),
    _verb("recover", recover, "Reopen a failed session.", None),
    _told("cancel", cancel, "Tell its holder to stop; without a holder it fails.", SessionStatus),
    _told("release", release, "Take the lease away from its owner, which gets lease_lost.", Release),
    Route(
        "POST",
        "/v1/sessions/{id}/heartbeat",
        "write",
        heartbeat,
        "Record a heartbeat of a session; a lease is renewed by PUT.",
        gives=Heartbeat,
        headers=(LEASE,),
        errors=("conflict", "lease_lost"),
        tag=TAG,
    ),
]
