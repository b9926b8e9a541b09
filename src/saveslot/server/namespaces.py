"""`/v1/namespaces`: list the namespaces, and erase one as a whole."""

from __future__ import annotations

from asyncio import gather
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from saveslot.errors import Conflict, Forbidden, InvalidInput
from saveslot.manager.erase import Removal
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.values.checks import RESERVED, as_name
from saveslot.values.log import Query

TAG = "Namespaces"


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[str, Meta(description="`next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Namespace(msgspec.Struct):
    name: str
    sessions: int


class Namespaces(msgspec.Struct):
    """A page of namespaces. `next` is the cursor of the next page (`after=`), null on the last one."""

    items: list[Namespace]
    next: str | None


class Removing(msgspec.Struct, forbid_unknown_fields=True):
    dry_run: Annotated[bool, Meta(description="Only count what is in it.")] = True
    sessions: Annotated[int | None, Meta(description="What the dry run counted: needed to erase them.")] = None


class Removed(Removal, frozen=True, kw_only=True):
    """What is in a namespace, or was until it was erased."""

    dry_run: bool


async def listed(call: Call, after: str, limit: int) -> list[str]:
    """Return the names of a page of the caller's namespaces that have sessions."""
    if call.caller.namespaces is None:
        return await call.manager.namespaces(after=after, limit=limit)
    names: list[str] = []
    for name in sorted(name for name in call.caller.namespaces if name > after):
        if len(names) == limit:
            break
        if await call.store.find(Query(namespace=name), None, 1):
            names.append(name)
    return names


async def ls(call: Call) -> Response:
    query: Listing = call.query
    names = await listed(call, query.after, query.limit + 1)
    names, more = names[: query.limit], names[query.limit :]
    counts = await gather(*(call.store.count(Query(namespace=name), totals="none") for name in names))
    items = [{"name": name, "sessions": sum(one.states.values())} for name, one in zip(names, counts, strict=True)]
    return call.json({"items": items, "next": names[-1] if more else None})


async def remove(call: Call) -> Response:
    query: Removing = call.query
    name = as_name(call.path["name"], "name")
    if name == RESERVED:
        raise Forbidden(f"namespace {RESERVED} is the server's own")
    sessions = call.manager.of(name)
    removal = await sessions.erase_all(dry_run=True)
    if not query.dry_run:
        if query.sessions is None:
            raise InvalidInput("sessions", "is needed to erase a namespace: the `sessions` of a dry run")
        if query.sessions != removal.sessions:
            raise Conflict(f"{name} has {removal.sessions} sessions now, not {query.sessions}; look at it again")
        removal = await sessions.erase_all()
    return call.json({**removal.to_dict(), "dry_run": query.dry_run})


ROUTES = [
    Route(
        "GET",
        "/v1/namespaces",
        "read",
        ls,
        "List the namespaces that have sessions.",
        gives=Namespaces,
        query=Listing,
        namespaced=False,
        tag=TAG,
        description="A token of some namespaces sees those.",
    ),
    Route(
        "DELETE",
        "/v1/namespaces/{name}",
        "admin",
        remove,
        "Destroy the content of all sessions of a namespace, deleted ones too, for good.",
        gives=Removed,
        query=Removing,
        namespaced=False,
        errors=("conflict",),
        long=True,
        tag=TAG,
        description="A dry run unless the request says otherwise. Entries stay, without content, as an audit trail.",
    ),
]
