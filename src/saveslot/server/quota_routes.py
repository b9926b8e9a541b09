"""`/v1/quotas`: set, list and lift quotas. `/v1/quota`: what a namespace has used of its own."""

from __future__ import annotations

from asyncio import gather
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from saveslot.server import quotas
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.values.answers import Time
from saveslot.values.checks import Data

TAG = "Namespaces"
# Quotas in a list of which it says what is used, the first ones by name: each may cost a count.
COUNTED = 50
NOTHING: Data = dict.fromkeys(quotas.LIMITS)
Number = Annotated[int, Meta(ge=0)]


class NewQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Limits in place of those that the namespace has; null: no limit."""

    sessions: Number | None = None
    bytes: Number | None = None
    checkpoints_per_minute: Number | None = None


class Used(msgspec.Struct):
    """What is used of each limit; null: not limited, not counted yet, or one of many quotas."""

    sessions: int | None
    bytes: int | None
    checkpoints_per_minute: int | None


class Quota(msgspec.Struct):
    namespace: str
    sessions: int | None
    bytes: int | None
    checkpoints_per_minute: int | None
    set_at: Time
    used: Used


class Quotas(msgspec.Struct):
    items: list[Quota]
    next: None


class Use(msgspec.Struct):
    """A limit, and how much of it is used; null: not limited, or not counted yet."""

    limit: int | None
    used: int | None


class Usage(msgspec.Struct):
    """What a namespace has used of its quota. `age`: seconds since sessions and bytes were counted in the store."""

    namespace: str
    sessions: Use
    bytes: Use
    checkpoints_per_minute: Use
    age: float | None


async def ls(call: Call) -> Response:
    listed = await quotas.quotas_of(call.tokens.registry)
    used = await gather(*(_used(call, quota.namespace) for quota in listed[:COUNTED]))
    used += [NOTHING] * (len(listed) - len(used))
    items = [{**quota.to_dict(), "used": one} for quota, one in zip(listed, used, strict=True)]
    return call.json({"items": items, "next": None})


async def _used(call: Call, namespace: str) -> Data:
    account = call.tokens.limits.account(namespace)
    if account is None:  # set at another server just now
        return NOTHING
    sessions, size, entries, _ = await account.usage()
    limits = account.quota
    return {
        "sessions": None if limits.sessions is None else sessions,
        "bytes": None if limits.bytes is None else size,
        "checkpoints_per_minute": entries,
    }


async def put(call: Call) -> Response:
    await quotas.put(call.tokens.registry, call.path["name"], **msgspec.structs.asdict(call.content))
    await call.tokens.reload()
    return Response(status_code=204)


async def remove(call: Call) -> Response:
    await quotas.remove(call.tokens.registry, call.path["name"])
    await call.tokens.reload()
    return Response(status_code=204)


async def show(call: Call) -> Response:
    account = call.tokens.limits.account(call.namespace)
    limits = quotas.Quota(call.namespace) if account is None else account.quota
    sessions, size, entries, age = (None, None, None, None) if account is None else await account.usage()
    return call.json({
        "namespace": call.namespace,
        "sessions": {"limit": limits.sessions, "used": sessions},
        "bytes": {"limit": limits.bytes, "used": None if limits.bytes is None else size},
        "checkpoints_per_minute": {"limit": limits.checkpoints_per_minute, "used": entries},
        "age": age,
    })  # fmt: skip


ROUTES = [
    Route(
        "GET",
        "/v1/quotas",
        "admin",
        ls,
        "List the quotas, and what is used of them.",
        gives=Quotas,
        namespaced=False,
        tag=TAG,
    ),
    Route(
        "PUT",
        "/v1/quotas/{name}",
        "admin",
        put,
        "Set the quota of a namespace; it counts at every server within about 0.1 s.",
        takes=NewQuota,
        status=204,
        namespaced=False,
        tag=TAG,
        description="What it refuses is answered with 429 and the code quota_exceeded, and nothing is written.",
    ),
    Route(
        "DELETE",
        "/v1/quotas/{name}",
        "admin",
        remove,
        "Lift the quota of a namespace.",
        status=204,
        namespaced=False,
        errors=("not_found",),
        tag=TAG,
    ),
    Route("GET", "/v1/quota", "read", show, "What the namespace has used of its quota.", gives=Usage, tag=TAG),
]
