"""Fixtures that several folders share: managers and stores on every backend."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import saveslot
from saveslot import AgentSession, SessionManager
from saveslot.stores import Store
from saveslot.stores.http import HttpStore
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore

pytest.register_assert_rewrite("tests.harness")
from tests.harness.served import Serving  # noqa: E402  (after the line above, or asserts say little)

# Processes that tests start, such as multiprocessing's fork server, import this src and tests.harness too.
SOURCE, ROOT = Path(saveslot.__file__).parents[1], Path(__file__).parents[1]
pytest_plugins = ["tests.harness.servers"]
os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{ROOT}"

# A busy machine is not a failure: no property test has a deadline.
settings.register_profile("saveslot", deadline=None)
settings.load_profile("saveslot")

# A shell starts background jobs with SIGINT ignored, and the processes that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Python up to 3.12 marks the failing part of a traceback's line with the help of `ast.parse`. When the garbage
# collector logs a traceback while Hypothesis parses a source, that is a SystemError.
if hasattr(traceback, "_extract_caret_anchors_from_line_segment"):
    traceback._extract_caret_anchors_from_line_segment = lambda _segment: None  # noqa: SLF001


# What these test happens above any store. A test costs about 0.2 s of CPU on PostgreSQL, so there they run in
# `make test-long` only.
ABOVE_THE_STORE = {"test_bad_arguments.py", "test_export.py", "test_steps.py", "test_retries.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        costly = "[postgres" in item.name or "[http" in item.name
        if costly and (
            item.path.name in ABOVE_THE_STORE or ("[http" in item.name and item.path.parent.name != "manager")
        ):
            item.add_marker(pytest.mark.long)


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


@pytest.fixture(scope="session")
def serving() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


@pytest.fixture(params=["memory", "sqlite", "postgres", "http"])
async def place(request, tmp_path) -> AsyncIterator[str]:
    """The URL of an empty store."""
    if request.param == "postgres":
        yield await request.getfixturevalue("servers").emptied()
    elif request.param == "http":
        serving: Serving = request.getfixturevalue("serving")
        yield serving.serve(lambda: SqliteStore.open(str(tmp_path / "s.db")))
        serving.stop()
    else:
        yield "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
async def stores(request, place, tmp_path, clock) -> AsyncIterator[list[Store]]:
    """Two handles on one store; all but memory's with connections of their own, as two processes have; over HTTP, at
    two servers.
    """
    if place == "memory:":
        opened: list[Store] = [MemoryStore(clock)] * 2
    elif place.startswith("sqlite:"):
        opened = [await SqliteStore.open(str(tmp_path / "s.db"), clock) for _ in range(2)]
    elif place.startswith("http:"):
        serving: Serving = request.getfixturevalue("serving")
        urls = [serving.serve(lambda: SqliteStore.open(str(tmp_path / "s.db"), clock)) for _ in range(2)]
        opened = [await HttpStore.open(url) for url in urls]
    else:
        opened = [await PostgresStore.open(place, clock) for _ in range(2)]
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


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, servers, tmp_path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 's.db'}"
    return servers.schema()


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "s.db"


class Opener:
    """`async with opener(encryption_key=…) as sessions`: each time a manager that knows nothing yet, on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._memory = _Kept()

    def __call__(self, **options):
        if self.url == "memory:":
            return SessionManager(store=self._memory, **options)
        return saveslot.open(self.url, **options)


class _Kept(MemoryStore):
    """Stays open for the next manager."""

    async def close(self) -> None: ...


@pytest.fixture
def opened(url) -> Opener:
    return Opener(url)
