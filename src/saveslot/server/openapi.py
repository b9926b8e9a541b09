"""`/v1/openapi.json`: OpenAPI 3.1, made from the route table and from the types that validate and answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

import saveslot
from saveslot.errors import BY_CODE
from saveslot.manager.log_pages import LogEntry
from saveslot.server.call import JSON, Call
from saveslot.server.problem import PROBLEM
from saveslot.server.routes import Route, table
from saveslot.values.checks import Data
from saveslot.values.codes import meaning

REF = "#/components/schemas/{name}"
EVENTS = "text/event-stream"
# Codes of errors that any answer of a route can have: of every route, with a namespace, with {id}, with a body.
ANY = ("unavailable",)
OF_CALLER = ("unauthorized", "forbidden")
OF_SESSION = ("not_found", "key_missing", "wrong_key", "history_lost", "corrupt")
OF_BODY = ("invalid_input", "too_large")
# What a status means beside its codes.
MEANING = {
    400: "The request is not well formed: broken JSON, or a path that is not percent-encoded UTF-8.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The token's scope or namespaces do not allow this.",
    404: "Not found.",
    409: "The session's state or another writer does not allow this; nothing was stored.",
    412: "If-Match names an older version; nothing was stored.",
    413: "Too large; nothing was stored.",
    415: "The content type is not JSON.",
    422: "A value is not valid; `path` names it.",
    428: "If-Match is required.",
    429: "Too many requests, or the namespace is at a limit of its quota; Retry-After says when to try again.",
    500: "Stored bytes are damaged; `where` names them.",
    503: "The store or the server is busy or out of reach; Retry-After says when to try again.",
}
ABOUT = """Durable sessions and checkpoints for AI agents.

- The namespace of a request is in the header `Saveslot-Namespace` (or the parameter `ns`); without one it is `default`.
- A session's `version` is its ETag. With `If-Match` a write follows that version (412 if another is newer); without,
  it follows whatever is newest. PATCH, DELETE and rollback require it; `*` matches any.
- `Idempotency-Key` makes a write safe to repeat: the same call with the same key gets its first answer.
- datetime, bytes and UUID in a state have a tagged form: `{"$saveslot": ["datetime", "2026-01-02T03:04:05+00:00"]}`.
- Errors are problem+json (RFC 9457) with a stable `code`.
"""


class Problem(Struct):
    """An error: `code` is stable, `message` says what to do; the fields after them depend on the code."""

    type: str
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(extra_json_schema={"enum": sorted(BY_CODE)})]
    message: str
    request_id: str | UnsetType = UNSET
    path: Annotated[str, Meta(description="invalid_input: the value that is not valid.")] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    seen: Annotated[int, Meta(description="conflict: the entry that the write follows.")] | UnsetType = UNSET
    head: Annotated[int, Meta(description="conflict: the newest entry.")] | UnsetType = UNSET
    version: Annotated[str, Meta(description="412: the version of the newest entry.")] | UnsetType = UNSET
    came: Annotated[list[LogEntry], Meta(description="412: the entries after yours.")] | UnsetType = UNSET
    owner: Annotated[str, Meta(description="lease_held: the worker that holds the session.")] | UnsetType = UNSET
    since: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    size: int | UnsetType = UNSET
    namespace: Annotated[str, Meta(description="quota_exceeded: the namespace at its limit.")] | UnsetType = UNSET
    quota: Annotated[str, Meta(description="quota_exceeded: which of its limits.")] | UnsetType = UNSET
    used: int | UnsetType = UNSET
    retry_after: Annotated[int, Meta(description="Seconds; 0: time alone does not help.")] | UnsetType = UNSET


def document(routes: Sequence[Route]) -> Data:
    """Return the description of these routes."""
    routes = sorted(filter(_is_described, routes), key=lambda route: (route.path, route.method))
    bodies = [kind for route in routes for kind in (route.takes, route.gives) if kind is not None]
    bodies += [kind for route in routes for kind in route.sends.values()]
    queries = [route.query for route in routes if route.query is not None]
    kinds = [*bodies, Problem, *queries]
    schemas, components = _renamed(msgspec.json.schema_components(kinds, ref_template=REF))
    of_kinds = dict(zip(map(id, kinds), schemas, strict=True))
    inputs = {id(kind): components[_name(of_kinds[id(kind)])] for kind in {id(q): q for q in queries}.values()}
    names = Counter(route.respond.__name__ for route in routes)
    paths: dict[str, Data] = {}
    for route in routes:
        operation = _operation(route, of_kinds, inputs.get(id(route.query)), names)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    described: Data = {
        "openapi": "3.1.0",
        "info": {"title": "Saveslot", "version": saveslot.__version__, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes if route.tag)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    written = msgspec.json.encode(described)
    for kind in queries:  # their fields stand with the parameters
        name = _name(of_kinds[id(kind)])
        if REF.format(name=name).encode() + b'"' not in written:
            described["components"]["schemas"].pop(name, None)
    return described


def _renamed(value: Any) -> Any:
    """Two types of one name have their modules in it: saveslot.manager.facets.LookedAt becomes FacetsLookedAt."""
    if isinstance(value, dict):
        fields = cast("Data", value)
        return {_short(name): _short(item) if name == "$ref" else _renamed(item) for name, item in fields.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item) for item in cast("list[Any]", value)]
    return value


def _short(name: str) -> str:
    lead, slash, name = name.rpartition("/")
    if name.startswith("saveslot."):
        module, _, own = name.rpartition(".")
        name = module.rpartition(".")[2].capitalize() + own
    return lead + slash + name


def _is_described(route: Route) -> bool:
    """True for the JSON door, and what operators ask; the page's files and the store door are not for other clients."""
    return route.path.startswith("/v1/") or bool(route.tag)


def _operation(route: Route, kinds: dict[int, Data], query: Data | None, names: Counter[str]) -> Data:
    function = route.respond.__name__.strip("_")
    module = route.respond.__module__.rpartition(".")[2]
    operation: Data = {
        "operationId": function if names[route.respond.__name__] == 1 else f"{module}_{function}",
        "summary": route.summary,
    }
    if route.description:
        operation["description"] = route.description
    if route.tag:
        operation["tags"] = [route.tag]
    operation["security"] = [] if route.scope == "open" else [{"token": [route.scope]}]
    operation["parameters"] = [*_parameters(route), *_asked(query)]
    if route.takes is not None:
        content = {JSON: {"schema": kinds[id(route.takes)]}}
        operation["requestBody"] = {"content": content, "required": _is_required(route.takes)}
    elif route.uploads:
        operation["requestBody"] = {"content": {JSON: {"schema": {"type": "object"}}}, "required": True}
    operation["responses"] = _responses(route, kinds)
    return operation


def _is_required(kind: Any) -> bool:
    """False if an empty body will do."""
    return not (isinstance(kind, type) and issubclass(kind, Struct)) or any(
        field.required for field in msgspec.structs.fields(kind)
    )


def _parameters(route: Route) -> Iterable[Data]:
    for part in route.path.split("/"):
        if part.startswith("{"):
            schema = {"type": "string", "minLength": 1}
            yield {"name": part[1:-1], "in": "path", "required": True, "schema": schema}
    if route.namespaced and route.scope != "open":
        name = {"type": "string", "minLength": 1, "maxLength": 200}
        yield {"name": "Saveslot-Namespace", "in": "header", "schema": {**name, "default": "default"}}
    for header in route.headers:
        yield {
            "name": header.name,
            "in": "header",
            "description": header.description,
            **({"required": True} if header.required else {}),
            "schema": {"type": "string"},
        }


def _asked(query: Data | None) -> Iterable[Data]:
    """The parameters of a query: its type's fields."""
    if query is None:
        return
    required = query.get("required", ())
    for name, known in cast("dict[str, Data]", query["properties"]).items():
        schema = dict(known)
        if "anyOf" in schema:  # a parameter is absent, not null
            [*some] = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
            schema |= some[0] if len(some) == 1 else {"anyOf": some}
        if schema.get("default", ...) in (None, []):
            del schema["default"]
        parameter: Data = {"name": name, "in": "query", "schema": schema}
        if (description := schema.pop("description", None)) is not None:
            parameter["description"] = description
        if name in required:
            parameter["required"] = True
        yield parameter


def _responses(route: Route, kinds: dict[int, Data]) -> Data:
    success: Data = {"description": HTTPStatus(route.status).phrase}
    if route.streams and route.gives is None:
        sent = {event: kinds[id(kind)] for event, kind in route.sends.items()}
        success["content"] = {EVENTS: {"schema": {"type": "string"}, "x-events": sent}}
    elif route.gives is not None:
        success["content"] = {JSON: {"schema": kinds[id(route.gives)]}}
    answers: dict[int, Data] = {route.status: success}
    if route.or_status is not None:
        answers[route.or_status] = {**success, "description": HTTPStatus(route.or_status).phrase}
    if any(header.name == "If-None-Match" for header in route.headers):
        answers[304] = {"description": HTTPStatus(304).phrase}
    codes: dict[int, list[str]] = {}
    for code in dict.fromkeys(_codes(route)):
        codes.setdefault(meaning(code).status, []).append(code)
    conditional = [header for header in route.headers if header.name == "If-Match"]
    for status, when in (
        (400, True),
        (429, route.scope != "open"),
        (422, True),
        (412, conditional),
        (428, any(header.required for header in conditional)),
        (415, route.takes is not None),
    ):
        if when:
            codes.setdefault(status, [])
    for status in sorted(codes):
        description = MEANING[status]
        if codes[status]:
            description = f"{description} Codes: {', '.join(codes[status])}."
        schema = kinds[id(Problem)]
        answers[status] = {"description": description, "content": {PROBLEM: {"schema": schema}}}
    return {str(status): answer for status, answer in answers.items()}


def _codes(route: Route) -> Iterable[str]:
    yield from ANY
    if route.scope != "open":
        yield from OF_CALLER
    if "{id}" in route.path:
        yield from OF_SESSION
    if route.takes is not None or route.uploads:
        yield from OF_BODY
    if route.namespaced and route.method != "GET" and route.scope != "open":
        yield "quota_exceeded"
    yield from route.errors


def _name(reference: Data) -> str:
    return reference["$ref"].rpartition("/")[2]


@cache
def text() -> bytes:
    return msgspec.json.encode(document(table()))


async def openapi(_: Call) -> Response:
    return Response(text(), media_type=JSON)


ROUTES = [
    Route("GET", "/v1/openapi.json", "open", openapi, "This description.", namespaced=False),
]
