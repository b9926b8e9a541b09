"""A session for a test, and a second server on its store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.conftest import Served, serving


@pytest.fixture
def session(served, request) -> str:
    name = request.node.name
    body = {"agent_type": name, "session_id": name, "data": {"items": []}}
    assert served.request("POST", "/v1/sessions", body).status == 201
    return name


@pytest.fixture
def other(served) -> Iterator[Served]:
    """A second server on the same store."""
    with serving(served.store) as other:
        yield other
