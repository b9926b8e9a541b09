"""Retention, erasing and audit: `/v1/gc`, `/v1/thin`, `/v1/erase`, `/v1/sessions/{id}/thin` and `/audit`.

What cannot be undone is a dry run unless the request says otherwise; on many sessions it then takes the number of
sessions that the dry run showed, and does nothing if it is another one by now.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from saveslot.errors import Conflict, InvalidInput
from saveslot.manager.audit import AuditLine
from saveslot.manager.drops import LOOKED, apply, checkpoints, drops
from saveslot.manager.gc import AGE, TOMBSTONES
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.conditions import KEY, key
from saveslot.server.v1.repeats import Attempt, once
from saveslot.session.retention import Retention
from saveslot.values.advice import reworded
from saveslot.values.checks import Data
from saveslot.values.lifecycle import COMPLETED, FAILED

TAG = "Retention and privacy"
Seconds = Annotated[float, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0)]
DryRun = Annotated[bool, Meta(description="Only report what would be done.")]


class Collection(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which sessions to purge: ended or deleted at least so many seconds ago."""

    older_than: Annotated[Seconds | None, Meta(description="Since they ended; null: none of these.")] = (
        AGE.total_seconds()
    )
    states: Annotated[list[Literal["completed", "failed"]], Meta(description="Empty: both.")] = []
    grace: Annotated[Seconds, Meta(description="Since they were deleted.")] = TOMBSTONES.total_seconds()
    dry_run: DryRun = True
    count: Annotated[int | None, Meta(description="What the dry run counted: needed to purge.")] = None


class Purged(Struct):
    """Ids of ended sessions, and of those deleted before, that were or would be purged."""

    dry_run: bool
    sessions: list[str]
    tombstones: list[str]
    count: int
    bytes: int


class Thinning(Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule in place of the session's own, if any of its limits is given."""

    keep_first: Number = 1
    keep_last: Number | None = None
    keep_latest_per_name: bool = True
    max_checkpoints: Annotated[int, Meta(ge=1)] | None = None
    max_age: Annotated[Seconds | None, Meta(description="In seconds.")] = None
    max_bytes: Number | None = None
    dry_run: DryRun = True


class ThinnedSession(Struct):
    """Checkpoints dropped, frames emptied, and the bytes that this freed."""

    session_id: str
    dry_run: bool
    marked: int
    emptied: int
    freed_bytes: int


class ThinningAll(Struct, forbid_unknown_fields=True, kw_only=True):
    """Thin a page of sessions, those created last first, each by its own rule or that of its agent type."""

    looked: Annotated[int, Meta(ge=1, le=LOOKED, description="Sessions that are looked at.")] = LOOKED
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    dry_run: DryRun = True
    count: Annotated[int | None, Meta(description="The sessions that the dry run counted: needed to thin.")] = None


class Refused(Struct):
    """A session that was left as it is."""

    id: str
    code: str
    message: str


class ThinnedAll(Struct):
    """Ids of sessions that lose checkpoints, how many, and the bytes freed once their frames are emptied. `next` is the
    cursor of the next page, null on the last one.
    """

    dry_run: bool
    sessions: list[str]
    count: int
    checkpoints: int
    bytes: int
    refused: list[Refused]
    next: str | None


class Erasure(Struct, forbid_unknown_fields=True, kw_only=True):
    """A session, or a user's sessions and all their forks."""

    session_id: str | None = None
    user_id: str | None = None
    dry_run: DryRun = True


class Erased(Struct):
    """Ids of the sessions, and how many of their entries had content."""

    dry_run: bool
    sessions: list[str]
    entries: int


class Auditing(Struct, forbid_unknown_fields=True, kw_only=True):
    link: Annotated[str | None, Meta(description="The `head` of an earlier audit, which must still be there.")] = None


class Trail(Struct):
    """What happened to a session, without content. `misfit` is the first entry that was changed in the store, and
    `wrong` says why; `head` is the newest link.
    """

    session_id: str
    state: str
    lines: list[AuditLine]
    misfit: int | None
    wrong: str
    unlinked: int
    head: str


async def gc(call: Call) -> Response:
    return await once(call, "gc", lambda attempt: _collected(call, attempt))


async def _collected(call: Call, attempt: Attempt) -> Data:
    content: Collection = call.content
    states = content.states or (COMPLETED, FAILED)
    plan = await call.sessions.gc(content.older_than, states, grace=content.grace, dry_run=True)
    if content.dry_run:
        return plan.to_dict()
    _require_seen(content.count, plan.count, "would be purged", again=attempt.again)
    await attempt.begin()
    return (await call.sessions.gc(content.older_than, states, grace=content.grace)).to_dict()


async def thin(call: Call) -> Response:
    content: Thinning = call.content
    rule = Retention(
        content.keep_first,
        content.keep_last,
        content.keep_latest_per_name,
        max_checkpoints=content.max_checkpoints,
        max_age=content.max_age,
        max_bytes=content.max_bytes,
    )
    session_id = call.path["id"]
    done = await call.sessions.thin(
        session_id, None if rule.keeps_all else rule, dry_run=content.dry_run, idempotency_key=key(call)
    )
    return call.json({"session_id": session_id, "dry_run": content.dry_run, **done.to_dict()})


async def thin_all(call: Call) -> Response:
    return await once(call, "thin", lambda attempt: _thinned(call, attempt))


async def _thinned(call: Call, attempt: Attempt) -> Data:
    content: ThinningAll = call.content
    found = await drops(call.sessions, looked=content.looked, after=content.after)
    gone, refused = found.drops, list[Data]()
    if not content.dry_run:
        _require_seen(content.count, len(gone), "would lose checkpoints", again=attempt.again)
        await attempt.begin()
        done = await apply(call.sessions, found)
        gone = done.drops
        refused = [{"id": one, "code": why.code, "message": reworded(str(why), "request")} for one, why in done.refused]
    return {
        "dry_run": content.dry_run,
        "sessions": [drop.id for drop in gone],
        "count": len(gone),
        "checkpoints": checkpoints(gone),
        "bytes": sum(drop.bytes for drop in gone),
        "refused": refused,
        "next": found.next,
    }


def _require_seen(count: int | None, now: int, what: str, *, again: bool) -> None:
    """Raise unless the caller has seen in a dry run how many sessions this is about.

    `again`: an earlier attempt did a part of it, so there may be fewer.
    """
    if count is None:
        raise InvalidInput("count", "is needed: the `count` of a dry run")
    if now > count or (now < count and not again):
        raise Conflict(f"{now} sessions {what} now, not {count}; look at them again")


async def erase(call: Call) -> Response:
    content: Erasure = call.content

    async def work(_: Attempt) -> Data:
        erased = await call.sessions.erase(content.session_id, content.user_id, dry_run=content.dry_run)
        return {"dry_run": content.dry_run, **erased}

    return await once(call, "erase", work)


async def audit(call: Call) -> Response:
    query: Auditing = call.query
    return call.json((await call.sessions.audit(call.path["id"], link=query.link)).to_dict())


ROUTES = [
    Route(
        "POST",
        "/v1/gc",
        "admin",
        gc,
        "Purge sessions that ended long ago, and deleted ones after their grace.",
        takes=Collection,
        gives=Purged,
        headers=(KEY,),
        errors=("conflict",),
        long=True,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/thin",
        "write",
        thin,
        "Drop the checkpoints that the session's rule, or this one, does not keep.",
        takes=Thinning,
        gives=ThinnedSession,
        headers=(KEY,),
        errors=("conflict", "lease_held"),
        long=True,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/thin",
        "admin",
        thin_all,
        "Drop the checkpoints that retention does not keep, of a page of sessions.",
        takes=ThinningAll,
        gives=ThinnedAll,
        headers=(KEY,),
        errors=("conflict",),
        long=True,
        tag=TAG,
        description="`count` is that of the page: show a page, drop what it showed, and go on after `next`. Bytes of "
        "checkpoints that were dropped at least ten minutes ago are freed, too.",
    ),
    Route(
        "POST",
        "/v1/erase",
        "admin",
        erase,
        "Destroy the content of a session or of a user's sessions, for good.",
        takes=Erasure,
        gives=Erased,
        headers=(KEY,),
        errors=("not_found",),
        long=True,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/audit",
        "read",
        audit,
        "Verify a session's log and read what happened, also after it was deleted or erased.",
        gives=Trail,
        query=Auditing,
        finds=False,
        long=True,
        tag=TAG,
    ),
]
