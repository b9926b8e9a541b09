"""Two managers of one store, as two processes have them: Strands calls its stores synchronously."""

from __future__ import annotations

import pytest

from saveslot import blocking


@pytest.fixture
def sessions(database):
    with blocking.open(database) as sessions:
        yield sessions


@pytest.fixture
def others(database, sessions):
    """Another process' manager."""
    sessions.create_session("first")  # makes the tables
    with blocking.open(database) as others:
        yield others
