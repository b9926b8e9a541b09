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


class Branch:
    """The routes whose paths begin alike."""

    def __init__(self) -> None:
        self.fixed: dict[str, Branch] = {}  # by their next segment
        self.any: Branch | None = None  # those whose next segment is {name}
        self.methods: dict[str, tuple[Route, list[str]]] = {}  # of the path that ends here, with the names in it


class Routes:
    """Finds the route of a request by the segments of its path as sent: an id may contain %2F."""

    def __init__(self, table: Sequence[Route]) -> None:
        self.table = table
        self._root = Branch()
        for route in table:
            branch, names = self._root, list[str]()
            for part in route.path.split("/"):
                if part.startswith("{"):
                    names.append(part[1:-1])
                    branch.any = branch.any or Branch()
                    branch = branch.any
                else:
                    branch = branch.fixed.setdefault(part, Branch())
            branch.methods[route.method] = route, names

    def find(self, path: str) -> dict[str, tuple[Route, dict[str, str]]]:
        """Return the routes of a path by method, each with the values of its segments; none if it is unknown.

        A method that /sessions/facets lacks is that of /sessions/{id}. Fixed segments are compared as they are written,
        so /sessions/%66acets is the session "facets".
        """
        ways: list[tuple[Branch, list[str]]] = [(self._root, [])]  # those with fixed segments first
        for segment in path.split("/"):
            further: list[tuple[Branch, list[str]]] = []
            for branch, values in ways:
                if (fixed := branch.fixed.get(segment)) is not None:
                    further.append((fixed, values))
                if segment and branch.any is not None:
                    further.append((branch.any, [*values, unquote(segment, errors="strict")]))
            ways = further
        routes: dict[str, tuple[Route, dict[str, str]]] = {}
        for branch, values in ways:
            for method, (route, names) in branch.methods.items():
                routes.setdefault(method, (route, dict(zip(names, values, strict=True))))
        return routes


def table() -> list[Route]:
    """Every route of the server. A door adds its module here."""
    from saveslot.server import (
        docs,
        health,
        me,
        metrics,
        namespaces,
        openapi,
        page,
        quota_routes,
        store_door,
        token_routes,
        v1,
        views,
    )

    doors = (docs, health, me, metrics, namespaces, openapi, page, quota_routes, store_door, token_routes, v1, views)
    return [route for door in doors for route in door.ROUTES]
