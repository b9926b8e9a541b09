"""`/v1/me`: who the caller is, and what it may do."""

from __future__ import annotations

from starlette.responses import Response

from saveslot.server.call import Call, Caller
from saveslot.server.routes import Route


async def show(call: Call) -> Response:
    return call.json(call.caller.to_dict())


ROUTES = [
    Route("GET", "/v1/me", "read", show, "Who calls: token, scope and namespaces.", gives=Caller, namespaced=False),
]
