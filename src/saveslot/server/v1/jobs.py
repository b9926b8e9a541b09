"""`/v1/bulk` and `/v1/jobs/{id}`: one verb on many sessions, as a job that goes on when the request has ended.

A job is a session of the server's own namespace, and the server that carries it out holds it. If that server ends, any
server of the store takes the job over and goes on where it was: at once, or 20 s after a server was killed. What was
done to a session carries a key of the job, and is not done to it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from saveslot.errors import Conflict, InvalidInput, NotFound, SaveslotError, Unavailable
from saveslot.manager import SessionManager
from saveslot.manager.lifecycle import recover
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.conditions import KEY, key
from saveslot.server.v1.sessions import Id, SessionFilter, merged
from saveslot.session.held import Held
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.requests import PATH, USED, request
from saveslot.session.worker import jittered
from saveslot.stores.wire.loops import running, stopped
from saveslot.values.advice import reworded
from saveslot.values.checks import Data
from saveslot.values.ids import fresh_id, stamping
from saveslot.values.lifecycle import ACTIVE, COMPLETED, FAILED
from saveslot.values.log import ID, Query

log = logging.getLogger("saveslot.server")

TAG = "Jobs"
AGENT = "saveslot.bulk"
# Sessions of one job; ids in one request; sessions per search, and changed at the same time.
MOST, IDS, PAGE, TOGETHER = 100_000, 10_000, 1000, 8
# The checkpoint that names the sessions; and sessions between two reports of a job.
LIST, REPORT = "sessions", 64
# Seconds between two looks for jobs of servers that have ended; how many are taken over at a time; and seconds that
# those under way get to leave when this server ends.
LOOK, LIMIT, LEAVING = 5.0, 4, 5.0
# Jobs of a namespace that are kept; of older ones, those that are over are purged. They are not in the namespace
# itself, so no quota counts them.
KEPT = 100
# Refused sessions that a job names; the others are only counted.
NAMED = 1000
# Attempts per session, if other writers come in between.
ATTEMPTS = 5
ACCEPTED = 202
INTERRUPTED = (
    "several servers in turn ended while they carried this job out, so no other one does; POST the same request with "
    "the same Idempotency-Key to go on, or see which sessions are left, and POST a request for those"
)

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


class Interruption(Struct):
    """Why no server carries a job out any more, and what to do."""

    code: Literal["unavailable"]
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
    error: Annotated[Interruption | None, Meta(description="Of an interrupted job.")] = None


async def bulk(call: Call) -> Response:
    content: Bulk = call.content
    if (content.ids is None) == (content.filter is None):
        raise InvalidInput("ids", "pass either ids or filter")
    if (content.verb == "label") != (content.labels is not None):
        raise InvalidInput("labels", "go with the verb label, and only with it")
    given = key(call)
    job_id = fresh_id() if given is None else _job_id(call.namespace, given)
    call_id = request(given, "bulk", msgspec.to_builtins(content)).hex()
    if given is not None and not content.dry_run and (earlier := await _known(call, job_id)) is not None:
        if earlier.context.get("request") != call_id:
            raise InvalidInput(PATH, USED)
        if _state(earlier) == "interrupted":
            earlier = await recover(call.tokens.registry, job_id)
            call.jobs.begin(job_id)
        return await _answer(call, earlier, 202)
    if content.ids is not None:
        ids = list(dict.fromkeys(content.ids))
    else:
        ids = await _matching(call.sessions, content.filter)
    about: Data = {"verb": content.verb, "namespace": call.namespace, "of": len(ids), "by": call.caller.name}
    if content.dry_run:
        return call.json(_shown(None, about, {}, "dry_run"), 200)
    jobs = call.tokens.registry
    about |= {"request": call_id, "reason": content.reason, "labels": content.labels, "stamp": call.caller.stamp.hex()}
    start: Data = {"ids": ids, "done": 0, "count": 0, "refused": []}
    await _forget(jobs, labels := {"namespace": call.namespace})
    try:
        await jobs.create_session(AGENT, context=about, session_id=job_id, data=start, name=LIST, labels=labels)
    except Conflict:  # the same request is being answered by another server, or was just now
        return await _answer(call, await _existing(jobs, job_id), 202)
    call.jobs.begin(job_id)
    return call.json(_shown(job_id, about, {}, "running"), 202, {"location": f"/v1/jobs/{job_id}"})


async def show(call: Call) -> Response:
    job_id = call.path["id"]
    session = await _known(call, job_id)
    if session is None or session.context.get("namespace") != call.namespace:
        raise NotFound(f"there is no job {job_id} in namespace {call.namespace}")
    return await _answer(call, session)


def _job_id(namespace: str, given: str) -> str:
    """The job of a request with a key: that of the same request at any server."""
    return request(given, "job", {}, scope=namespace.encode() + b"\0")[:ID].hex()


async def _known(call: Call, job_id: str) -> AgentSession | None:
    session = await call.tokens.registry.get_session(job_id, history=0)
    return session if session is not None and session.agent_type == AGENT else None


def _state(session: AgentSession) -> Literal["running", "finished", "interrupted"]:
    return "finished" if session.state is COMPLETED else "interrupted" if session.state is FAILED else "running"


async def _answer(call: Call, session: AgentSession, status: int = 200) -> Response:
    job_id = session.session_id
    data = await call.tokens.registry.get_data(job_id, keys=["done", "count", "refused"])
    shown = _shown(job_id, session.context, data, _state(session))
    return call.json(shown, status, {"location": f"/v1/jobs/{job_id}"} if status == ACCEPTED else {})


def _shown(job_id: str | None, about: Data, data: Data, state: str) -> Data:
    return {
        "job_id": job_id,
        "verb": about["verb"],
        "state": state,
        "of": about["of"],
        "done": data.get("done", 0),
        "refused": data.get("refused", []),
        "refused_count": data.get("count", 0),
        "error": {"code": Unavailable.code, "message": INTERRUPTED} if state == "interrupted" else None,
    }


async def _forget(jobs: SessionManager, labels: dict[str, str]) -> None:
    vault, query = jobs.engine.vault, Query(namespace=jobs.namespace, agent_type=AGENT, labels=labels)
    rows = await vault.find(query, None, KEPT - 1)
    if len(rows) < KEPT - 1:
        return
    old = await vault.find(query, (rows[-1].created_at, rows[-1].key), KEPT)
    heads = [head for head in await vault.heads([row.key for row in old]) if head is not None]
    over = [one for one in heads if one.row.state in {COMPLETED, FAILED}]
    await vault.purge([one.row.key for one in over], [one.last.append_id for one in over])


async def _matching(sessions: SessionManager, wanted: SessionFilter | None) -> list[str]:
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


class Jobs:
    """The jobs that a server carries out: those that it was asked for, and those of servers that have ended."""

    def __init__(self, sessions: SessionManager, jobs: SessionManager) -> None:
        self._sessions = sessions
        self._jobs = jobs
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for jobs that no server carries out."""
        self._looking = running().create_task(self._look())

    async def stop(self) -> None:
        """Leave the jobs to other servers."""
        await stopped(self._looking)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVING)

    def begin(self, job_id: str) -> None:
        self._run(self._begun(job_id))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = running().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begun(self, job_id: str) -> None:
        try:
            held = await self._jobs.take(job_id)
        except SaveslotError as exc:  # another server was quicker, or one takes it up later
            log.info("job %s was not begun here: %s", job_id, exc)
        else:
            await self._carry_out(held, again=False)

    async def _look(self) -> None:
        vault, jobs = self._jobs.engine.vault, self._jobs
        active = Query(namespace=jobs.namespace, agent_type=AGENT, state=ACTIVE.value)
        queries = (replace(active, orphan_for=0), replace(active, unowned=True))
        while True:
            try:
                # A claim writes a row about this server, so it has to be worth it.
                if any([await vault.find(query, None, 1) for query in queries]):
                    for held in await jobs.claim(AGENT, LIMIT, released=True):
                        self._run(self._carry_out(held, again=True))
            except SaveslotError as exc:  # the store may be back at the next look
                log.warning("no look at the jobs of other servers: %s", exc)
            await asyncio.sleep(jittered(LOOK))

    async def _carry_out(self, held: Held, *, again: bool) -> None:
        """Carry a job out, `again` if another server may have begun it. If this raises, another server goes on."""
        try:
            async with held:
                await self._work(held, again=again)
        except SaveslotError as exc:
            log.warning("job %s is left to the next server: %s", held.id, exc)

    async def _work(self, held: Held, *, again: bool) -> None:
        about, known = held.session.context, held.data
        stamping.set(bytes.fromhex(about["stamp"]))
        ids: list[str] = (await self._jobs.get_data(held.id, LIST, keys=["ids"]))["ids"]
        content = Bulk(verb=about["verb"], reason=about["reason"], labels=about["labels"])
        verb = _verb(self._sessions.of(about["namespace"]), content, held.id, again=again)
        count: int = known["count"]
        for start in range(known["done"] + count, len(ids), REPORT):
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
            await held.checkpoint(
                "progress",
                drop=["ids"] if "ids" in held.data else None,
                put={"done": start + len(part) - count, "count": count},
                append={"refused": refused[:room]},
            )
        await held.complete()


def _verb(sessions: SessionManager, content: Bulk, job_id: str, *, again: bool) -> Verb:
    async def changed(session_id: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await _once(sessions, content, session_id, job_id, again=again)
                return
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            await sessions.head(session_id)

    return changed


async def _once(sessions: SessionManager, content: Bulk, session_id: str, job_id: str, *, again: bool) -> None:
    """Do it to one session, once in all attempts of the job."""
    match content.verb:
        case "pause":
            await sessions.pause(session_id, idempotency_key=job_id)
        case "resume":
            await sessions.resume(session_id, idempotency_key=job_id)
        case "complete":
            await sessions.complete(session_id, idempotency_key=job_id)
        case "fail":
            await sessions.fail(session_id, content.reason, idempotency_key=job_id)
        case "cancel":
            await sessions.cancel(session_id, content.reason, idempotency_key=job_id)
        case "delete":
            if not await sessions.delete_session(session_id) and not again:
                raise unknown(session_id, sessions.namespace)
        case "recover":
            await recover(sessions, session_id, idempotency_key=job_id)
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
        headers=(KEY,),
        tag=TAG,
        description="A dry run answers at once with the number of sessions. The same request with the same "
        "Idempotency-Key gets the same job. If a server ends, another one of the store goes on with its jobs.",
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
