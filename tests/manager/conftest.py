"""Every truth about the manager is tried on every backend."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest

from saveslot import AgentSession, SessionManager
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore


class Clock:
    """A store's clock that a test can turn; a day ahead of ours, as another machine's may be."""

    def __init__(self) -> None:
        self.ahead = 24 * 3_600_000_000
        self.now = 0

    def __call__(self) -> int:
        self.now = max(self.now + 1, time.time_ns() // 1000 + self.ahead)
        return self.now

    def pass_hours(self, hours: float) -> None:
        self.ahead += int(hours * 3_600_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def stores(request, tmp_path, clock) -> AsyncIterator[list[Store]]:
    """Two handles on one store; on SQLite each with connections of its own, as two processes have."""
    if request.param == "memory":
        opened: list[Store] = [MemoryStore(clock)] * 2
    else:
        opened = [await SqliteStore.open(str(tmp_path / "s.db"), clock) for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
def fresh(stores) -> Callable[..., SessionManager]:
    """A manager that knows nothing yet, as a new process has."""
    return lambda **options: SessionManager(store=stores[0], **options)


@pytest.fixture
def sessions(stores) -> SessionManager:
    return SessionManager(store=stores[0])


@pytest.fixture
def others(stores) -> SessionManager:
    return SessionManager(store=stores[1])


@pytest.fixture
async def session(sessions) -> AgentSession:
    return await sessions.create_session("tutor", user_id="anna", context={"topic": "fractions"})
