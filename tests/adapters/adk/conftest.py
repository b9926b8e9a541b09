"""Two managers of one store, as two processes have them."""

from __future__ import annotations

import pytest

import saveslot
from saveslot.adapters.adk import SaveslotSessionService


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, servers, tmp_path):
    return servers.schema() if request.param == "postgres" else f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
async def sessions(url):
    async with saveslot.open(url) as sessions:
        yield sessions


@pytest.fixture
async def others(url, sessions):
    """Another process' manager."""
    await sessions.create_session("first")  # makes the tables
    async with saveslot.open(url) as others:
        yield others


@pytest.fixture
def service(sessions):
    return SaveslotSessionService(sessions=sessions)


@pytest.fixture
def other(others):
    return SaveslotSessionService(sessions=others)
