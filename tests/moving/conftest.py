"""Every backend by one fixture: a new store is one more line in `BACKENDS`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from saveslot import SessionManager
from saveslot.stores import Store, open_store
from saveslot.stores.sqlite import SqliteStore
from tests.harness.served import Serving

BACKENDS = ("memory", "sqlite", "postgres", "valkey")
_NUMBERS = count()


@pytest.fixture
def fresh_url(request, servers, tmp_path) -> Callable[[str], str]:
    """The URL of an empty store."""

    def url(backend: str) -> str:
        n = next(_NUMBERS)
        if backend == "sqlite":
            return f"sqlite:///{tmp_path}/store-{n}.db"
        if backend == "postgres":
            return servers.schema()
        if backend == "valkey":
            return servers.valkey()
        if backend == "http":
            serving: Serving = request.getfixturevalue("serving")
            request.addfinalizer(serving.stop)
            return serving.serve(lambda: SqliteStore.open(f"{tmp_path}/served-{n}.db"))
        return f"{backend}:"

    return url


@pytest.fixture
async def fresh(fresh_url) -> AsyncIterator[Callable[[str], Awaitable[Store]]]:
    """Opens an empty store of a backend; closed with the test."""
    async with AsyncExitStack() as opened:

        async def store(backend: str) -> Store:
            new_store = await open_store(fresh_url(backend))
            opened.push_async_callback(new_store.close)
            return new_store

        yield store


@pytest.fixture
def foreign() -> Path:
    return Path(__file__).with_name("foreign")


async def lived(store: Store, namespace: str = "default") -> None:
    """Sessions with every kind of entry: long, thinned, rolled back, forked, held, stepped, ended, deleted."""
    sessions = SessionManager(store=store, namespace=namespace)
    lesson = await sessions.create_session(
        "tutor", "anna", {"topic": "fractions"}, {"n": 1}, labels={"env": "prod"}, session_id="lesson"
    )
    messages: list[dict[str, object]] = []
    for n in range(60):
        messages.append({"role": "user", "content": f"question {n} " * 10})
        await sessions.checkpoint(lesson, f"turn-{n % 7}", {"messages": messages, "n": n}, {"model": "small"})
    await sessions.rollback("lesson", "~30")
    await sessions.checkpoint("lesson", "after", append={"messages": [{"role": "user", "content": "back"}]})
    await sessions.fork("lesson", "turn-3", "forked")
    done = await sessions.create_session("grader", session_id="done")
    done.checkpoint("read", {"essay": "x" * 5000, "bytes": b"\x00"})
    done.pause()
    done.resume()
    done.context["more"] = [1, 2]
    done.complete({"grade": "B+"})
    await sessions.update_session(done)
    async with sessions.hold("forked") as held:
        await held.step("charge", lambda: {"paid": True}, key="k-1")
        await held.checkpoint("paid", {"paid": True})
    held = await sessions.take("forked")
    await held.checkpoint("held", {"paid": True, "by": "nobody yet"})
    await sessions.create_session("tutor", session_id="gone")
    await sessions.delete_session("gone")
    for n in range(20):
        await sessions.create_session("crowd", session_id=f"crowd-{n}")


async def exports(store: Store, namespace: str = "default") -> dict[str, str]:
    """Everything that a namespace shows: each session's export, its whole log included."""
    sessions = SessionManager(store=store, namespace=namespace)
    page = await sessions.find(limit=1000)
    return {session.session_id: await sessions.export(session.session_id) for session in page}
