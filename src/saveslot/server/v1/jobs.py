"""`/v1/bulk` and `/v1/jobs/{id}`: one verb on many sessions, as a job that goes on when the request has ended.

A job is a session of the server's own namespace: any server of the store says how far it is. The server that took it
carries it out; if that one ends, the job is `interrupted`, and says which sessions are done and which were refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.errors import Conflict, InvalidInput, NotFound, SaveslotError
from saveslot.manager import SessionManager
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.sessions import Id, SessionFilter, merged
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.stores.wire.loops import running
from saveslot.values.advice import reworded
from saveslot.values.checks import Data, now
from saveslot.values.ids import fresh_id
from saveslot.values.lifecycle import COMPLETED

TAG = "Jobs"
AGENT = "saveslot.job"
# Sessions of one job; ids in one request; sessions per search, and changed at the same time.
MOST, IDS, PAGE, TOGETHER = 100_000, 10_000, 1000, 8
# Sessions between two reports of a job; and without one for so long, it is interrupted.
REPORT, SILENT = 64, timedelta(seconds=60)
# Refused sessions that a job names; the others are only counted.
NAMED = 1000
# Attempts per session, if other writers come in between.
ATTEMPTS = 5

Verb = Callable[[str], Awaitable[Any]]


class Bulk(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and with which sessions: either `ids` or `filter`."""

    verb: Literal["pause", "resume", "recover", "cancel", "fail", "complete", "delete", "label"]
    ids: Annotated[list[Id], Meta(max_length=IDS)] | None = None
    filter: SessionFilter | None = None
    reason: Annotated[str, Meta(max_length=200, description="Of cancel and fail.")] = ""
    labels: Annotated[dict[str, str | None] | None, Meta(description="Of label; null removes one.")] = None
    dry_run: Annotated[bool, Meta(description="Only count the sessions.")] = False


class Refusal(Struct):
    id: str
    code: str
    message: str


class Job(Struct):
    """How far a job is. `job_id` is null for a dry run; `refused` names the first thousand of `refused_count`."""

    job_id: str | None
    verb: str
    state: Literal["running", "finished", "interrupted", "dry_run"]
    of: int
    done: int
    refused: list[Refusal]
    refused_count: int


# Jobs that this process carries out.
_running: set[asyncio.Task[None]] = set()


async def bulk(call: Call) -> Response:
    content: Bulk = call.content
    if (content.ids is None) == (content.filter is None):
        raise InvalidInput("ids", "pass either ids or filter")
    if (content.verb == "label") != (content.labels is not None):
        raise InvalidInput("labels", "go with the verb label, and only with it")
    ids = list(dict.fromkeys(content.ids)) if content.ids is not None else await _found(call.sessions, content.filter)
    about: Data = {"verb": content.verb, "namespace": call.namespace, "of": len(ids), "by": call.caller.name}
    if content.dry_run:
        return call.json(_shown(None, about, {}, "dry_run"), 200)
    jobs, job_id = call.tokens.registry, fresh_id()
    await jobs.create_session(AGENT, context=about, session_id=job_id, data={"done": 0, "refused": [], "count": 0})
    task = running().create_task(_run(jobs, job_id, ids, _verb(call.sessions, content)))
    _running.add(task)
    task.add_done_callback(_running.discard)
    return call.json(_shown(job_id, about, {}, "running"), 202, {"location": f"/v1/jobs/{job_id}"})


async def show(call: Call) -> Response:
    jobs, job_id = call.tokens.registry, call.path["id"]
    session = await jobs.get_session(job_id, history=0)
    if session is None or session.agent_type != AGENT or session.context.get("namespace") != call.namespace:
        raise NotFound(f"there is no job {job_id} in namespace {call.namespace}")
    state = "finished" if session.state is COMPLETED else "running"
    if state == "running" and now() - session.last_heartbeat > SILENT:
        state = "interrupted"
    return call.json(_shown(job_id, session.context, await jobs.get_data(job_id), state))


def _shown(job_id: str | None, about: Data, data: Data, state: str) -> Data:
    return {
        "job_id": job_id,
        "verb": about["verb"],
        "state": state,
        "of": about["of"],
        "done": data.get("done", 0),
        "refused": data.get("refused", []),
        "refused_count": data.get("count", 0),
    }


async def _found(sessions: SessionManager, wanted: SessionFilter | None) -> list[str]:
    """Return the ids of all sessions that match, as of now."""
    ids: dict[str, None] = {}
    for query in (wanted or SessionFilter()).queries(sessions):
        after = None
        while rows := await sessions.engine.vault.find(query, after, PAGE):
            ids |= {row.session_id: None for row in rows}
            if len(ids) > MOST:
                raise InvalidInput("filter", f"matches more than {MOST:,} sessions; narrow it")
            after = (rows[-1].heartbeat if query.stale_for is not None else rows[-1].created_at, rows[-1].key)
    return list(ids)


async def _run(jobs: SessionManager, job_id: str, ids: list[str], verb: Verb) -> None:
    count = 0
    for start in range(0, len(ids), REPORT):
        part, refused = ids[start : start + REPORT], list[Data]()
        turns = asyncio.Semaphore(TOGETHER)

        async def one(session_id: str, turns: asyncio.Semaphore = turns, refused: list[Data] = refused) -> None:
            async with turns:
                try:
                    await verb(session_id)
                except SaveslotError as exc:
                    refused.append({"id": session_id, "code": exc.code, "message": reworded(str(exc), "request")})

        await asyncio.gather(*map(one, part))
        room = max(0, NAMED - count)
        count += len(refused)
        put = {"done": start + len(part) - count, "count": count}
        await jobs.checkpoint(job_id, "progress", put=put, append={"refused": refused[:room]})
    await jobs.complete(job_id)


def _verb(sessions: SessionManager, content: Bulk) -> Verb:
    async def changed(session_id: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await _once(sessions, content, session_id)
                return
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            await sessions.head(session_id)

    return changed


async def _once(sessions: SessionManager, content: Bulk, session_id: str) -> None:
    match content.verb:
        case "pause":
            await sessions.pause(session_id)
        case "resume":
            await sessions.resume(session_id)
        case "complete":
            await sessions.complete(session_id)
        case "fail":
            await sessions.fail(session_id, content.reason)
        case "cancel":
            await sessions.cancel(session_id, content.reason)
        case "delete":
            if not await sessions.delete_session(session_id):
                raise unknown(session_id, sessions.namespace)
        case "recover":
            session = await _existing(sessions, session_id)
            session.recover()
            await sessions.update_session(session)
        case "label":
            session = await _existing(sessions, session_id)
            session.labels = merged(session.labels, content.labels or {})
            await sessions.update_session(session)


async def _existing(sessions: SessionManager, session_id: str) -> AgentSession:
    session = await sessions.get_session(session_id, history=0)
    if session is None:
        raise unknown(session_id, sessions.namespace)
    return session


ROUTES = [
    Route(
        "POST",
        "/v1/bulk",
        "write",
        bulk,
        "Do one thing to many sessions, as a job.",
        takes=Bulk,
        gives=Job,
        status=202,
        or_status=200,
        tag=TAG,
        description="A dry run answers at once with the number of sessions.",
    ),
    Route(
        "GET",
        "/v1/jobs/{id}",
        "read",
        show,
        "Read how far a job is, and what was refused and why.",
        gives=Job,
        finds=False,
        tag=TAG,
    ),
]
