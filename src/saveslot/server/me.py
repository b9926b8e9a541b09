"""`/v1/me`: who the caller is; and signing in, which turns a token into a cookie that scripts cannot read.

A page's EventSource cannot send headers, so it needs a cookie. It holds the token itself: there is nothing to keep on
the server, and revoking the token ends it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from saveslot import __version__
from saveslot.errors import Unauthorized
from saveslot.server.call import Call
from saveslot.server.guard import COOKIE, require_same_origin
from saveslot.server.routes import BODY, Route, Scope
from saveslot.values.checks import Data, now

# Seconds that a browser keeps the cookie of a token that does not expire.
KEPT = 30 * 24 * 3600


class Limits(msgspec.Struct):
    """Of this server process: a request that exceeds one is answered with 413 or 503."""

    requests: int  # at a time
    streams: int  # at a time
    body_bytes: int
    state_bytes: int


class Me(msgspec.Struct):
    """Who calls, and what serves it."""

    name: str
    scope: Scope
    namespaces: list[str] | None
    version: str  # of Saveslot
    store: str  # how the store's URL begins, such as `sqlite` or `postgresql`
    hot: bool  # a hot tier holds copies
    worker_ttl: float  # seconds of silence after which a worker of this server counts as dead
    streams: int  # open now
    limits: Limits


def _me(call: Call) -> Data:
    engine = call.manager.engine
    return {
        **call.caller.to_dict(),
        "version": __version__,
        "store": call.url.partition(":")[0],
        "hot": "hot" in engine.metered.metrics(),
        "worker_ttl": engine.timing["ttl"],
        "streams": call.room.open[True],
        "limits": {
            "requests": call.room.most[False],
            "streams": call.room.most[True],
            "body_bytes": BODY,
            "state_bytes": engine.limit,
        },
    }


async def show(call: Call) -> Response:
    return call.json(_me(call))


async def sign_in(call: Call) -> Response:
    given = call.headers.get("authorization", "")
    response = call.json(_me(call))
    if not call.caller.token:  # on loopback without tokens there is nothing to keep
        return response
    if not given:
        raise Unauthorized("sign in with `Authorization: Bearer TOKEN`")
    until = call.tokens.valid_until(call.caller)
    kept = KEPT if until is None else max(0, int((until - now()).total_seconds()))
    response.set_cookie(COOKIE, given.partition(" ")[2].strip(), **_cookie(call, min(kept, KEPT)))
    return response


async def sign_out(call: Call) -> Response:
    if COOKIE in call.request.cookies:
        require_same_origin(call)
    response = Response(status_code=204)
    response.set_cookie(COOKIE, "", **_cookie(call, 0))
    return response


def _cookie(call: Call, seconds: int) -> dict[str, Any]:
    secure = call.request.url.scheme == "https"
    return {"max_age": seconds, "path": "/", "httponly": True, "samesite": "strict", "secure": secure}


ROUTES = [
    Route(
        "GET",
        "/v1/me",
        "read",
        show,
        "Who calls: token, scope and namespaces; and what this server is.",
        gives=Me,
        namespaced=False,
    ),
    Route("POST", "/v1/me", "read", sign_in, "Sign in: turn the token into a cookie.", gives=Me, namespaced=False),
    Route("DELETE", "/v1/me", "open", sign_out, "Sign out: clear the cookie.", status=204, namespaced=False),
]
