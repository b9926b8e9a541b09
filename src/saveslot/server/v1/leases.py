"""`/v1/sessions/{id}/lease`, `/v1/leases` and `/v1/claims`: hold sessions by requests.

A lease lasts 20 seconds from its last renewal, which any server of the store takes. Writes under it name it in the
header Saveslot-Lease.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from saveslot.manager.leases import Lease, Renewal, end_lease, lease, lease_orphans, renew, renew_one
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.v1.answers import Page
from saveslot.server.v1.conditions import KEY, key
from saveslot.server.v1.repeats import once
from saveslot.session.attempts import Limit
from saveslot.values.checks import Data

TAG = "Leases"
# Leases renewed by one request; sessions claimed by one.
MOST, CLAIMS = 1000, 100
# Seconds that a request may wait for a session.
WAIT = 5
Name = Annotated[str, Meta(max_length=200, description="The name of the worker, shown as the owner.")]
Wait = Annotated[float, Meta(ge=0, le=WAIT, description="Seconds to wait for a session.")]


class NewLease(Struct, forbid_unknown_fields=True, kw_only=True):
    worker: Name = ""
    wait: Wait = 0


class Held(Struct, forbid_unknown_fields=True, kw_only=True):
    session_id: Annotated[str, Meta(min_length=1, max_length=200)]
    lease_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class Leases(Struct, forbid_unknown_fields=True, kw_only=True):
    leases: Annotated[list[Held], Meta(max_length=MOST)]


class Claim(Struct, forbid_unknown_fields=True, kw_only=True):
    agent_type: str | None = None
    limit: Annotated[int, Meta(ge=1, le=CLAIMS)] = 10
    released: Annotated[bool, Meta(description="Also active sessions without an owner.")] = False
    wait: Wait = 0
    worker: Name = ""
    max_attempts: Annotated[int | None, Meta(description="Null: no limit.")] | UnsetType = UNSET


class Ending(Struct, forbid_unknown_fields=True, kw_only=True):
    error: (
        Annotated[str, Meta(max_length=200, description="Why the work stopped: other workers may claim the session.")]
        | None
    ) = None


def _worker(call: Call, given: str) -> str:
    return given or call.caller.name or "http"


async def take(call: Call) -> Response:
    new: NewLease = call.content
    name = _worker(call, new.worker)
    given = await lease(call.sessions, call.path["id"], name, wait=new.wait, idempotency_key=key(call))
    return call.json(given.to_dict())


async def renew_lease(call: Call) -> Response:
    given = await renew_one(call.sessions, call.path["id"], call.path["lease_id"])
    return call.json(given.to_dict())


async def end(call: Call) -> Response:
    ending: Ending = call.query
    await end_lease(call.sessions, call.path["id"], call.path["lease_id"], ending.error, idempotency_key=key(call))
    return Response(status_code=call.route.status)


async def renew_leases(call: Call) -> Response:
    content: Leases = call.content
    renewals = await renew(call.sessions, [(one.session_id, one.lease_id) for one in content.leases])
    return call.json({"items": [one.to_dict() for one in renewals], "next": None})


async def claim(call: Call) -> Response:
    return await once(call, "claim", lambda _: _claimed(call))


async def _claimed(call: Call) -> Data:
    content: Claim = call.content
    limit: Limit = ... if content.max_attempts is UNSET else content.max_attempts
    leases = await lease_orphans(
        call.sessions,
        _worker(call, content.worker),
        content.agent_type,
        content.limit,
        released=content.released,
        wait=content.wait,
        max_attempts=limit,
    )
    return {"items": [one.to_dict() for one in leases], "next": None}


_PATH = "/v1/sessions/{id}/lease"

ROUTES = [
    Route(
        "POST",
        _PATH,
        "write",
        take,
        "Take a session under a lease of 20 seconds.",
        takes=NewLease,
        gives=Lease,
        status=201,
        headers=(KEY,),
        errors=("lease_held", "lease_lost", "invalid_transition", "cancelled"),
        tag=TAG,
        description="The same call with the same Idempotency-Key gets the same lease, renewed; lease_lost if it ended.",
    ),
    Route(
        "PUT",
        _PATH + "/{lease_id}",
        "write",
        renew_lease,
        "Renew a lease.",
        gives=Lease,
        errors=("lease_lost",),
        tag=TAG,
        description="`cancelled` says that the session was cancelled: save what is needed, then end it or leave.",
    ),
    Route(
        "DELETE",
        _PATH + "/{lease_id}",
        "write",
        end,
        "Give up a lease; the session keeps its state.",
        query=Ending,
        status=204,
        headers=(KEY,),
        errors=("lease_lost",),
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/leases",
        "write",
        renew_leases,
        "Renew many leases.",
        takes=Leases,
        gives=Page[Renewal],
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/claims",
        "write",
        claim,
        "Take over sessions whose workers died or left by an error, each under a lease of its own.",
        takes=Claim,
        gives=Page[Lease],
        headers=(KEY,),
        tag=TAG,
        description="The same call with the same Idempotency-Key gets the same answer for an hour, and claims nothing "
        "more; it does not renew the leases.",
    ),
]
