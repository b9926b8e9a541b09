"""`/healthz`: this process answers."""

from __future__ import annotations

from starlette.responses import Response

from saveslot.server.call import Call
from saveslot.server.routes import Route


async def healthz(call: Call) -> Response:
    return call.json({"status": "ok"})


ROUTES = [
    Route("GET", "/healthz", "open", healthz, "The process answers.", gives=dict[str, str], namespaced=False),
]
