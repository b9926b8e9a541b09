"""Request headers: what the caller has seen (If-Match), the key of a call, and how much of an answer it wants.

A version is an ETag. A write with one follows that entry: 412 if another is newer. A write without one, or with `*`,
follows whatever is newest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from saveslot.errors import AlreadyExists, Conflict, InvalidInput
from saveslot.manager.leases import under
from saveslot.manager.log_pages import log_page
from saveslot.server.call import Call
from saveslot.server.problem import Problem
from saveslot.server.routes import Header
from saveslot.session.headers import Head
from saveslot.session.held import Held
from saveslot.session.refusals import unknown
from saveslot.session.worker import jittered
from saveslot.values.versions import as_version, is_version

R = TypeVar("R")

IF_MATCH = Header("If-Match", "The ETag (`version`) that you have seen, or `*`: 412 if the session has moved on.")
MUST_MATCH = IF_MATCH._replace(required=True)
KEY = Header("Idempotency-Key", "The same call with the same key gets its first answer, and changes nothing.")
PREFER = Header("Prefer", "`return=minimal` leaves `data` out of the answer.")
LEASE = Header("Saveslot-Lease", "The id of the lease that the session is held under: 409 lease_lost if it has ended.")
UNLESS = Header("If-None-Match", "An ETag: 304 without a body if the entry is still that one.")

# Attempts of a write that follows whatever is newest, and seconds between them: other writers may append in between.
ATTEMPTS, PAUSE = 10, 0.01

# Entries that a failed condition shows, the oldest of those that came.
CAME = 50

_TAGS = re.compile(r'(W/)?"([^"]*)"')


def key(call: Call) -> str | None:
    return call.headers.get("idempotency-key")


def minimal(call: Call) -> bool:
    return "return=minimal" in call.headers.get("prefer", "").replace(" ", "").lower()


def etag(version: str) -> dict[str, str]:
    return {"etag": f'"{version}"'}


def unchanged(call: Call, version: str) -> bool:
    """True if the caller has this version already."""
    return any(tag == version for _, tag in _TAGS.findall(call.headers.get("if-none-match", "")))


async def newest(call: Call) -> Head:
    """Read the newest entry of the session in the path."""
    session_id = call.path["id"]
    head = await call.sessions.head(session_id)
    if head is None:
        raise unknown(session_id, call.namespace)
    return head


async def seen(call: Call) -> str | None:
    """Return the version in If-Match; None if the write follows whatever is newest."""
    given = call.headers.get("if-match")
    if given is None:
        if MUST_MATCH not in call.route.headers:
            return None
        await newest(call)
        hint = 'is required: send the ETag of the session that you have seen, or "*" for any'
        raise Problem(428, InvalidInput("If-Match", hint))
    if given.strip() == "*":
        return None
    tags = [tag for weak, tag in _TAGS.findall(given) if not weak]
    if len(tags) == 1 and is_version(tags[0]):
        return tags[0]
    head = await newest(call)
    if head.version in tags:
        return head.version
    raise Conflict(f"If-Match: {given} is not the ETag of session {head.session_id}; reload it", head=head.seq)


async def follow(call: Call, write: Callable[[str | None], Awaitable[R]]) -> R:
    """Call `write` with the version in If-Match, or without one, again until it follows the newest entry."""
    version = await seen(call)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await write(version)
        except AlreadyExists:
            raise
        except Conflict as exc:
            if version is not None:
                raise await _failed(call, exc) from exc
            if attempt == ATTEMPTS:
                raise
        await asyncio.sleep(jittered(PAUSE) * (attempt - 1))
        await newest(call)  # from here on this server knows that entry
    raise AssertionError  # the last attempt returns or raises


async def write_either(
    call: Call,
    free: Callable[[str | None], Awaitable[R]],
    held: Callable[[Held, str | None], Awaitable[R]],
    earlier: Callable[[], Awaitable[R | None]] | None = None,
) -> R:
    """Write under the lease that the request names, or, without one, as a caller that does not hold the session.

    `earlier` returns the first answer of a call with this key, which counts also when the lease does not any more.
    """
    lease = call.headers.get("saveslot-lease")
    if lease is None:
        return await follow(call, free)
    if earlier is not None and (answer := await earlier()) is not None:
        return answer
    version = await seen(call)
    return await under(call.sessions, call.path["id"], lease, version, lambda one: held(one, version))


async def check(call: Call) -> None:
    """Raise what counts before the content of a request: the session is unknown, or its version another one."""
    if "id" not in call.path or not call.route.finds:
        return
    version = await seen(call)
    head = await newest(call)
    if version is not None and version != head.version:
        exc = Conflict(f"session {head.session_id} is at version {head.version}, not {version}", head=head.seq)
        raise await _failed(call, exc)


async def _failed(call: Call, why: Conflict) -> Problem:
    """Return the answer to a write whose If-Match names an older entry: the version of now, and what came since."""
    head = await newest(call)
    given = [tag for weak, tag in _TAGS.findall(call.headers.get("if-match", "")) if not weak]
    seen = as_version(given[0]) if given and is_version(given[0]) else None
    after = head.seq - 1 if seen is None else min(seen.seq, head.seq)
    page = await log_page(call.sessions, call.path["id"], after=after, limit=CAME)
    more = {"version": head.version, "came": page.to_dict()["items"], "seen": 0 if seen is None else seen.seq}
    return Problem(412, why, more={**more, "head": head.seq})
