"""The contenders. Each saves as its own documentation shows, with its own default durability.

All of them set WAL and keep SQLite's synchronous=FULL: what they acknowledge is synced. Peers are imported when they
are opened, so that a fresh process that measures one does not pay for the others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter
from typing import Any, Protocol

import apsw
import msgspec

import saveslot
from saveslot.cli.benchmark import POOL, Message, Series, Sizes, State, message


class Book(Protocol):
    """An open file of one contender. It uses the new message or the whole state, as its API does."""

    async def save(self, session: int, new: Message, state: State) -> object: ...

    async def load(self, session: int) -> Any:
        """The newest state of a session, decoded."""
        ...


Open = Callable[[str, int], AbstractAsyncContextManager[Book]]  # a file and how many sessions it has


# Saveslot


class SaveslotBook:
    def __init__(self, manager: saveslot.SessionManager) -> None:
        self.manager = manager

    async def save(self, session: int, _new: Message, state: State) -> object:
        return await self.manager.checkpoint(str(session), "turn", state)

    async def load(self, session: int) -> Any:
        return (await self.manager.get_checkpoint(str(session))).data

    async def leave(self) -> None:
        """Do nothing: no session is held."""


class AppendingBook(SaveslotBook):
    async def save(self, session: int, new: Message, _state: State) -> object:
        return await self.manager.checkpoint(str(session), "turn", append={"messages": [new]})


class HoldingBook(SaveslotBook):
    """Resumes to continue: takes the session, which is a durable write; releases it when the book is closed."""

    held: saveslot.Held | None = None

    async def load(self, session: int) -> Any:
        self.held = await self.manager.take(str(session))
        return self.held.data

    async def leave(self) -> None:
        if self.held is not None:
            await self.held.release()


def saveslot_as(book: type[SaveslotBook]) -> Open:
    @asynccontextmanager
    async def opened(path: str, sessions: int) -> AsyncGenerator[Book]:
        async with saveslot.open(f"sqlite:///{path}") as manager:
            for n in range(sessions):
                await manager.create_session("benchmark", session_id=str(n))
            opened_book = book(manager)
            yield opened_book
            await opened_book.leave()

    return opened


# The floor: nothing but SQLite


class FloorBook:
    """The new message only, one row and one commit: no versions, no sessions, no checks."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def save(self, session: int, new: Message, _state: State) -> object:
        row = (session, msgspec.json.encode(new))
        return self.connection.execute("insert into rows (session, body) values (?, ?)", row)

    async def load(self, session: int) -> Any:
        result = self.connection.execute("select body from rows where session = ? order by id", (session,))
        return [json.loads(body) for (body,) in result]


class BareBook(FloorBook):
    """The whole state as JSON bytes in one blob, decoded by what Saveslot decodes with."""

    decode: Callable[[bytes], Any] = staticmethod(msgspec.json.decode)

    async def save(self, session: int, _new: Message, state: State) -> object:
        row = (session, msgspec.json.encode(state))
        return self.connection.execute("insert into rows (session, body) values (?, ?)", row)

    async def load(self, session: int) -> Any:
        sql = "select body from rows where session = ? order by id desc limit 1"
        return self.decode(self.connection.execute(sql, (session,)).get)


class StandardBook(BareBook):
    """The same, decoded by Python's own json."""

    decode = staticmethod(json.loads)


def raw(book: type[FloorBook]) -> Open:
    @asynccontextmanager
    async def opened(path: str, _sessions: int) -> AsyncGenerator[Book]:
        connection = apsw.Connection(path)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.execute("create table if not exists rows (id integer primary key, session integer, body blob)")
        yield book(connection)
        connection.close()

    return opened


def grouped(connection: apsw.Connection, sizes: Sizes) -> Series:
    """Measure SQLite when 64 callers share a commit."""
    pool = [message(n, sizes.small_bytes) for n in range(POOL)]
    ms: list[float] = []
    for n in range(sizes.each):
        start = perf_counter()
        with connection:
            for session in range(sizes.sessions):
                row = (session, msgspec.json.encode(pool[(session + n) % POOL]))
                connection.execute("insert into rows (session, body) values (?, ?)", row)
        ms += [(perf_counter() - start) * 1000] * sizes.sessions
    return Series(ms, sum(ms) / sizes.sessions / 1000)


# Peers


class OpenAIBook:
    """OpenAI Agents' SQLiteSession: a session is a list of items, and a turn adds one."""

    def __init__(self, sessions: list[Any]) -> None:
        self.sessions = sessions

    async def save(self, session: int, new: Message, _state: State) -> object:
        return await self.sessions[session].add_items([new])

    async def load(self, session: int) -> Any:
        return await self.sessions[session].get_items()


@asynccontextmanager
async def openai_agents(path: str, sessions: int) -> AsyncGenerator[Book]:
    from agents import SQLiteSession

    items = [SQLiteSession(str(n), path) for n in range(max(1, sessions))]
    yield OpenAIBook(items)
    for session in items:
        session.close()


class LangGraphBook:
    """LangGraph's AsyncSqliteSaver, called as its loop calls it: a checkpoint is the whole state."""

    def __init__(self, saver: Any, empty: Callable[[], Any]) -> None:
        self.saver = saver
        self.empty = empty
        self.configs: dict[int, Any] = {}

    async def save(self, session: int, _new: Message, state: State) -> object:
        version = str(len(state["messages"]))
        checkpoint = {**self.empty(), "channel_values": state, "channel_versions": {"messages": version}}
        metadata = {"source": "loop", "step": len(state["messages"]), "parents": {}}
        config = self.configs.get(session) or _config(session)
        self.configs[session] = await self.saver.aput(config, checkpoint, metadata, {"messages": version})
        return None

    async def load(self, session: int) -> Any:
        return (await self.saver.aget_tuple(_config(session))).checkpoint["channel_values"]


def _config(session: int) -> Any:
    return {"configurable": {"thread_id": str(session), "checkpoint_ns": ""}}


@asynccontextmanager
async def langgraph(path: str, _sessions: int) -> AsyncGenerator[Book]:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        yield LangGraphBook(saver, empty_checkpoint)


SAVESLOT, APPEND, HOLD = "Saveslot", "Saveslot append=", "Saveslot, taken (`hold`)"
FLOOR, GROUPED = "raw apsw loop", "raw apsw loop, 64 rows a commit"
BARE, STANDARD = "bare JSON blob, msgspec", "bare JSON blob, json.loads"
OPENAI, LANGGRAPH = "OpenAI Agents SQLiteSession", "LangGraph AsyncSqliteSaver"

CONTENDERS: dict[str, Open] = {
    SAVESLOT: saveslot_as(SaveslotBook),
    APPEND: saveslot_as(AppendingBook),
    HOLD: saveslot_as(HoldingBook),
    FLOOR: raw(FloorBook),
    GROUPED: raw(FloorBook),
    BARE: raw(BareBook),
    STANDARD: raw(StandardBook),
    OPENAI: openai_agents,
    LANGGRAPH: langgraph,
}
