"""The table of all routes. Guard, OpenAPI, metrics and tests walk it, so nothing is served that is not in it.

A door is a module with a list of `Route`; `TABLE` joins them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from msgspec import Struct
from starlette.responses import Response

from saveslot.server.tokens import SCOPES, Scope

__all__ = ["BODY", "SCOPES", "Route", "Routes", "Scope", "table"]

if TYPE_CHECKING:
    from saveslot.server.call import Call

# Bytes of a request body, after decompression, unless the route says otherwise.
BODY = 16 << 20


class Header(NamedTuple):
    """A request header that a route reads, for OpenAPI."""

    name: str
    description: str
    required: bool = False


class Route(NamedTuple):
    method: str
    path: str  # "/v1/sessions/{id}": {id} is one segment, unquoted, so it may contain a quoted slash
    scope: Scope
    respond: Callable[[Call], Awaitable[Response]]
    summary: str
    takes: Any = None  # the type of the JSON body, decoded into `call.content`; None: the responder reads `body()`
    gives: Any = None  # the type of the JSON answer
    query: type[Struct] | None = None  # its parameters, decoded into `call.query`
    status: int = 200  # of a successful answer
    or_status: int | None = None  # of another successful answer, of the same type
    # Works in one namespace, which the caller's token must allow; else in all, and scope admin needs a token for all.
    namespaced: bool = True
    always: bool = False  # answers also when the server is full
    long: bool = False  # a job that may take minutes
    streams: bool = False  # no deadline: the answer goes on until either side ends it
    sends: Mapping[str, Any] = MappingProxyType({})  # of server-sent events: the type of the data, by event
    headers: Sequence[Header] = ()  # of the request, that it reads
    finds: bool = True  # with {id} in its path: the session has to exist
    errors: Sequence[str] = ()  # error codes beside those of every route, for OpenAPI
    uploads: bool = False  # without `takes`: the body is a JSON object that the responder reads
    largest: int = BODY
    tag: str = ""  # section in OpenAPI
    description: str = ""


class Routes:
    """Finds the route of a request by the segments of its path as sent: an id may contain %2F."""

    def __init__(self, table: Sequence[Route]) -> None:
        self.table = table
        self._by_length: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in table:
            segments = route.path.split("/")
            alike = self._by_length.setdefault(len(segments), [])
            for known, methods in alike:
                if [_fixed(part) for part in known] == [_fixed(part) for part in segments]:
                    methods[route.method] = route
                    break
            else:
                alike.append((segments, {route.method: route}))
        for alike in self._by_length.values():  # /sessions/facets goes before /sessions/{id}
            alike.sort(key=lambda item: [_fixed(part) is None for part in item[0]])

    def find(self, path: str) -> dict[str, tuple[Route, dict[str, str]]]:
        """Return the routes of a path by method, each with the values of its segments; none if it is unknown.

        A method that /sessions/facets lacks is that of /sessions/{id}. Fixed segments are compared as they are written,
        so /sessions/%66acets is the session "facets".
        """
        segments = path.split("/")
        routes: dict[str, tuple[Route, dict[str, str]]] = {}
        for known, methods in self._by_length.get(len(segments), ()):
            values: dict[str, str] = {}
            for part, segment in zip(known, segments, strict=True):
                if _fixed(part) is None:
                    if not segment:
                        break
                    values[part[1:-1]] = unquote(segment, errors="strict")
                elif part != segment:
                    break
            else:
                for method, route in methods.items():
                    routes.setdefault(method, (route, values))
        return routes


def _fixed(part: str) -> str | None:
    """A segment that stands for itself; None for {name}."""
    return None if part.startswith("{") else part


def table() -> list[Route]:
    """Every route of the server. A door adds its module here."""
    from saveslot.server import docs, health, me, openapi, page, store_door, token_routes, v1, views

    doors = (docs, health, me, openapi, page, store_door, token_routes, v1, views)
    return [route for door in doors for route in door.ROUTES]
