"""`/v1/openapi.json` describes all that `/v1` does, and what `/v1` does is as described."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from saveslot.server.openapi import document
from saveslot.server.routes import table
from tests.server.conftest import Served, serving

METHODS = {"get", "post", "put", "patch", "delete"}
REFS = ["latest", "~1", "1", "2", "begun", "nothing"]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from [item] if name == "$ref" else references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_described():
    """Each route of /v1 is an operation with its own id, and each type that it names is there."""
    described = document(table())
    assert described["openapi"] == "3.1.0"
    operations = {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    expected = {(route.method, route.path) for route in table() if route.path.startswith("/v1/")}
    assert expected <= operations.keys()
    ids = [operation["operationId"] for operation in operations.values()]
    assert len(set(ids)) == len(ids)
    schemas = described["components"]["schemas"]
    assert {name.rpartition("/")[2] for name in references(described)} <= schemas.keys()
    assert all(re.fullmatch(r"[A-Za-z_]+", name) and "saveslot" not in name for name in schemas)
    for (method, path), operation in operations.items():
        named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), path
        assert operation["summary"].endswith("."), (method, path)


def test_docs_load_nothing_from_elsewhere(served):
    """The page for people has its scripts and styles from this server, and its policy lets it load no others."""
    page = served.request("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert "unsafe" not in policy
    text = page.body.decode()
    assert "://" not in text
    files = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(files) == 4
    for file in [*files, "/docs/openapi.json"]:
        assert served.request("GET", file).status == 200, file
    assert served.request("GET", "/docs/openapi.json").json["openapi"] == "3.0.3"
    assert served.request("GET", "/docs/index.html").status == 404


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> Iterator[Any]:
    """The described API of a server whose store has some sessions, most requests being about one of them."""
    store = str(tmp_path_factory.mktemp("fuzzed") / "agents.db")
    command = [sys.executable, "-m", "saveslot", "token", "create", "own", "--scope", "admin", "--store", store]
    token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    with serving(store, "--token-required") as served:
        headers = {"Authorization": f"Bearer {token}"}
        yield prepared(served, headers), headers


def prepared(served: Served, headers: dict[str, str]) -> Any:
    schema = schemathesis.openapi.from_url(f"{served.url}/v1/openapi.json")
    turn, used = count(), count()

    def existing() -> str:
        """A session's id; some requests end or delete it, so there is a new one for every fourth."""
        number, rest = divmod(next(used), 4)
        if not rest:
            body = {"agent_type": "a", "session_id": f"s{number}", "data": {"items": [1], "text": "x"}, "name": "begun"}
            assert served.request("POST", "/v1/sessions", body, **headers).status == 201
        return f"s{number}"

    @schema.hook
    def map_path_parameters(_context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        if parameters and next(turn) % 5:
            if "id" in parameters:
                parameters["id"] = existing()
            if "ref" in parameters:
                parameters["ref"] = REFS[next(turn) % len(REFS)]
        return parameters

    @schema.hook
    def map_headers(_context: Any, given: Any) -> Any:
        if given is not None and next(turn) % 5:
            given.pop("Saveslot-Namespace", None)
            if "If-Match" in given:
                given["If-Match"] = "*"
        return given

    return schema


# What schemathesis must not find. A request that its description does not allow may be answered all the same.
FINDS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    unsupported_method,
]
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate], "database": None}
OPERATIONS = [(route.method, route.path) for route in table() if route.path.startswith("/v1/") and not route.streams]


def check(api: Any, method: str, path: str, requests: int) -> None:
    schema, headers = api

    @settings(max_examples=requests, **QUIET)
    @given(case=schema[path][method].as_strategy())
    def one(case: Any) -> None:
        case.call_and_validate(checks=FINDS, headers=headers)

    one()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_it_does_what_it_describes(api, method, path):
    """No request makes the server fail, and no answer has a status, type or field that is not described."""
    check(api, method, path, 5)


@pytest.mark.long
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_it_does_what_it_describes_for_long(api, method, path):
    """The same, at least 20,000 requests in all."""
    check(api, method, path, 20_000 // len(OPERATIONS) + 1)
