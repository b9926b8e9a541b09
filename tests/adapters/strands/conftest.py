"""Two managers of one store, as two processes have them."""

from __future__ import annotations

import pytest

from saveslot import blocking


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, servers, tmp_path):
    return servers.schema() if request.param == "postgres" else f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
def sessions(url):
    with blocking.open(url) as sessions:
        yield sessions


@pytest.fixture
def others(url, sessions):
    """Another process' manager."""
    sessions.create_session("first")  # makes the tables
    with blocking.open(url) as others:
        yield others
