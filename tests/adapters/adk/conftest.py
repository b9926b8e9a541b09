"""A service on each of two managers of one store, as two processes have them."""

from __future__ import annotations

import pytest

from saveslot.adapters.adk import SaveslotSessionService


@pytest.fixture
def service(sessions):
    return SaveslotSessionService(sessions=sessions)


@pytest.fixture
def other(others):
    return SaveslotSessionService(sessions=others)
