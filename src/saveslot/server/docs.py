"""`/docs`: the description of the API for people, by the Swagger UI of the PyPI package swagger-ui-bundle.

Its version 4 knows OpenAPI up to 3.0, so it gets the same description in that form. It loads nothing from elsewhere.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, cast

import msgspec
from starlette.responses import Response

from saveslot.errors import NotFound
from saveslot.server.call import JSON, Call
from saveslot.server.openapi import document
from saveslot.server.routes import Route, table
from saveslot.values.checks import Data

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Saveslot API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="/docs/favicon-32x32.png">
<body>
<div id="ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
"""
START = """SwaggerUIBundle({
  url: "/docs/openapi.json",
  dom_id: "#ui",
  deepLinking: true,
  validatorUrl: null,
  syntaxHighlight: { activate: false },
})
"""
# Of the package: content types by name.
FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
# Its style sheet has its icons as data: URLs.
POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
DAY = "public, max-age=86400"


def as_3_0(schema: Any) -> Any:
    """Return an OpenAPI 3.1 document as 3.0: null is a property of a type, and an example is one."""
    if isinstance(schema, list):
        return [as_3_0(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {name: as_3_0(value) for name, value in cast("Data", schema).items()}
    kinds = fields.get("anyOf")
    if isinstance(kinds, list) and {"type": "null"} in kinds:
        some = [kind for kind in cast("list[Data]", kinds) if kind != {"type": "null"}]
        del fields["anyOf"]
        fields = {**fields, **(some[0] if len(some) == 1 else {"anyOf": some}), "nullable": True}
    if isinstance(examples := fields.get("examples"), list):
        del fields["examples"]
        fields["example"] = cast("list[Any]", examples)[0]
    return fields


@cache
def text() -> bytes:
    return msgspec.json.encode({**as_3_0(document(table())), "openapi": "3.0.3"})


@cache
def packaged(name: str) -> bytes:
    folder = next((resources.files("swagger_ui_bundle") / "vendor").iterdir())
    return (folder / name).read_bytes()


async def page(_: Call) -> Response:
    return Response(PAGE, media_type="text/html", headers={"content-security-policy": POLICY})


async def file(call: Call) -> Response:
    name = call.path["name"]
    if name == "start.js":
        return Response(START, media_type="text/javascript")
    if name == "openapi.json":
        return Response(text(), media_type=JSON)
    if name not in FILES:
        raise NotFound(f"there is no /docs/{name}")
    return Response(packaged(name), media_type=FILES[name], headers={"cache-control": DAY})


ROUTES = [
    Route("GET", "/docs", "open", page, "The API for people.", namespaced=False),
    Route("GET", "/docs/{name}", "open", file, "A file of that page.", namespaced=False),
]
