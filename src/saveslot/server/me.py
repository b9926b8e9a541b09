"""`/v1/me`: who the caller is; and signing in, which turns a token into a cookie that scripts cannot read.

A page's EventSource cannot send headers, so it needs a cookie. It holds the token itself: there is nothing to keep on
the server, and revoking the token ends it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from saveslot.errors import Unauthorized
from saveslot.server.call import Call
from saveslot.server.guard import COOKIE, require_same_origin
from saveslot.server.routes import Route, Scope
from saveslot.values.checks import now

# Seconds that a browser keeps the cookie of a token that does not expire.
KEPT = 30 * 24 * 3600


class Me(msgspec.Struct):
    name: str
    scope: Scope
    namespaces: list[str] | None


async def show(call: Call) -> Response:
    return call.json(call.caller.to_dict())


async def sign_in(call: Call) -> Response:
    given = call.headers.get("authorization", "")
    response = call.json(call.caller.to_dict())
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
    Route("GET", "/v1/me", "read", show, "Who calls: token, scope and namespaces.", gives=Me, namespaced=False),
    Route("POST", "/v1/me", "read", sign_in, "Sign in: turn the token into a cookie.", gives=Me, namespaced=False),
    Route("DELETE", "/v1/me", "open", sign_out, "Sign out: clear the cookie.", status=204, namespaced=False),
]
