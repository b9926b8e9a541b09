"""`/v1/tokens`: create, list, rotate and revoke tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from starlette.responses import Response

from saveslot.server import tokens
from saveslot.server.call import Call
from saveslot.server.routes import Route


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    scope: Literal["read", "write", "admin"]
    namespaces: list[str] | None = None  # None: all
    expires_at: datetime | None = None


class Secret(msgspec.Struct):
    name: str
    token: str  # shown this once


class Listed(msgspec.Struct):
    name: str
    scope: Literal["read", "write", "admin"]
    namespaces: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    expired: bool


class Tokens(msgspec.Struct):
    items: list[Listed]
    next: None


async def ls(call: Call) -> Response:
    listed = await tokens.tokens_of(call.tokens.registry)
    return call.json({"items": [token.to_dict() for token in listed], "next": None})


async def create(call: Call) -> Response:
    new: NewToken = call.content
    text = await tokens.create(call.tokens.registry, new.name, new.scope, new.namespaces, new.expires_at)
    await call.tokens.reload()
    return call.json({"name": new.name, "token": text})


async def rotate(call: Call) -> Response:
    text = await tokens.rotate(call.tokens.registry, call.path["name"])
    await call.tokens.reload()
    return call.json({"name": call.path["name"], "token": text})


async def revoke(call: Call) -> Response:
    await tokens.revoke(call.tokens.registry, call.path["name"])
    await call.tokens.reload()
    return Response(status_code=204)


ROUTES = [
    Route("GET", "/v1/tokens", "admin", ls, "List the tokens, newest first.", gives=Tokens, namespaced=False),
    Route(
        "POST",
        "/v1/tokens",
        "admin",
        create,
        "Create a token; its text is shown this once.",
        takes=NewToken,
        gives=Secret,
        status=201,
        namespaced=False,
        errors=("already_exists",),
    ),
    Route(
        "POST",
        "/v1/tokens/{name}/rotate",
        "admin",
        rotate,
        "Replace a token's secret; the old one is refused from then on.",
        gives=Secret,
        namespaced=False,
        errors=("not_found",),
    ),
    Route(
        "DELETE",
        "/v1/tokens/{name}",
        "admin",
        revoke,
        "Revoke a token on every server, now.",
        status=204,
        namespaced=False,
        errors=("not_found",),
    ),
]
