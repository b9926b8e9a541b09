"""Two managers of one store, as two processes have them."""

from __future__ import annotations

import pytest

import saveslot


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, servers, tmp_path):
    """The URL of a store that several processes can share."""
    return servers.schema() if request.param == "postgres" else f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
async def sessions(database):
    async with saveslot.open(database) as sessions:
        yield sessions


@pytest.fixture
async def others(database, sessions):
    """Another process' manager."""
    await sessions.create_session("first")  # makes the tables
    async with saveslot.open(database) as others:
        yield others
