"""`/healthz`: this process answers. `/readyz`: so does its store."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from starlette.responses import Response

from saveslot.errors import SaveslotError, Unavailable
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.stores import Store
from saveslot.stores.wire.loops import running
from saveslot.values.log import ID

# Seconds that the store gets to answer; a request that it does not answer takes 10.
PATIENCE = 5.0


async def healthz(call: Call) -> Response:
    return call.json({"status": "ok"})


# The check that is under way, of each store: probes that come meanwhile wait for its outcome, however many they are.
_checks: WeakKeyDictionary[Store, asyncio.Task[Unavailable | None]] = WeakKeyDictionary()


async def readyz(call: Call) -> Response:
    if call.room.draining.is_set():
        raise Unavailable("the server is ending; use another one")
    check = _checks.get(call.store)
    if check is None or check.done():
        check = _checks[call.store] = running().create_task(_checked(call.store))
    if (problem := await asyncio.shield(check)) is not None:  # a probe that leaves does not end the check
        raise Unavailable(str(problem))
    return call.json({"status": "ready"})


async def _checked(store: Store) -> Unavailable | None:
    """Reading a session that cannot exist takes the way of every request: connection, tables, format."""
    try:
        async with asyncio.timeout(PATIENCE):
            await store.heads([bytes(ID)])
    except TimeoutError:
        return Unavailable(f"the store did not answer within {PATIENCE:g} s; retry")
    except SaveslotError as exc:  # whatever it is: requests would meet it, too
        return Unavailable(f"the store cannot be used now ({exc.code}); the server's log, and doctor, say why")
    return None


ROUTES = [
    Route(
        "GET", "/healthz", "open", healthz, "The process answers.", gives=dict[str, str], namespaced=False, always=True
    ),
    Route("GET", "/readyz", "open", readyz, "The store answers.", gives=dict[str, str], namespaced=False, always=True),
]
