"""Conversations of ADK's own services go on here: those of DatabaseSessionService and of SqliteSessionService."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from saveslot.cli import main
from tests.adapters.adk.chats import CHAT, called, said, texts, turn, tutor, user


@pytest.fixture(params=["database on SQLite", "database on PostgreSQL", "SQLite service"])
def place(request, servers, tmp_path):
    """ADK's service, as a function that makes it, and where `saveslot import` finds its tables."""
    path = str(tmp_path / "adk.db")
    match request.param:
        case "database on SQLite":
            return lambda: DatabaseSessionService(f"sqlite+aiosqlite:///{path}"), path
        case "SQLite service":
            return lambda: SqliteSessionService(path), path
        case _:
            where = servers.database().url
            return lambda: DatabaseSessionService(where.replace("postgresql://", "postgresql+asyncpg://")), where


@pytest.fixture
async def theirs(place):
    make, where = place
    service = make()
    yield service, where
    await service.close()


def imported(database, where, capsys):
    capsys.readouterr()
    code = main(["--store", database, "import", where])
    return code, capsys.readouterr().err


async def test_half_there_half_here(theirs, database, service, other, sessions, capsys):
    """A conversation that began in ADK's own tables goes on here: its model hears both halves, with all state."""
    before, where = theirs
    await before.create_session(
        **CHAT, state={"level": 1, "app:course": "fractions", "user:name": "Anna", "n": {"a": None}}
    )
    agent = tutor(called("add", a=1, b=2), said("three"), tools=[add], output_key="answer")
    assert await turn(before, agent, "1 + 2?") == ["three"]
    old = await before.get_session(**CHAT)
    code, printed = await asyncio.to_thread(imported, database, where, capsys)
    assert (code, printed.startswith("3 sessions, ")) == (0, True)
    here = await service.get_session(**CHAT)
    assert (here.events, here.state) == (old.events, old.state)
    assert here.last_update_time == pytest.approx(old.last_update_time, rel=0, abs=2e-6)  # theirs is a microsecond off
    assert here.state == {
        "level": 1,
        "n": {"a": None},
        "answer": "three",
        "app:course": "fractions",
        "user:name": "Anna",
    }
    second = tutor(said("yes, three"))
    assert await turn(other, second, "sure?") == ["yes, three"]
    assert texts_of(second.model.heard[-1]) == ["1 + 2?", "three", "sure?"]
    log = [line.name for line in await sessions.log("tutor/anna/chat")]
    assert log[2:] == ["created", "user", "tutor: add", "tutor", "tutor", "user", "tutor"]


async def test_import_again(theirs, database, service, sessions, capsys):
    """A second import adds what is new there; one of a conversation that went on here leaves it as it is."""
    before, where = theirs
    chat = await before.create_session(**CHAT, state={"n": 0, "app:k": 1})
    await before.append_event(chat, event("a", k=1))
    for text, delta in (("b", {}), ("c", {"n": 1, "k": 2, "app:k": 2})):
        assert (await asyncio.to_thread(imported, database, where, capsys))[0] == 0
        await before.append_event(chat, event(text, **delta))
    code, printed = await asyncio.to_thread(imported, database, where, capsys)
    assert (code, printed.startswith("2 sessions, 2 entries from ")) == (0, True)
    code, printed = await asyncio.to_thread(imported, database, where, capsys)
    assert (code, printed.startswith("0 sessions, 0 entries from ")) == (0, True)
    here = await service.get_session(**CHAT)
    assert (texts(here.events), here.state) == (["a", "b", "c"], {"n": 1, "k": 2, "app:k": 2})
    await service.append_event(here, event("here"))
    await before.append_event(chat, event("there"))
    code, printed = await asyncio.to_thread(imported, database, where, capsys)
    assert code == 1
    assert "session tutor/anna/chat: is already here with another history; it was left unchanged" in printed
    assert texts((await service.get_session(**CHAT)).events) == ["a", "b", "c", "here"]


def event(text, **delta):
    return Event(author="user", content=user(text), actions=EventActions(state_delta=delta))


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def texts_of(contents):
    return [part.text for content in contents for part in content.parts if part.text]
