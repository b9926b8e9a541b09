"""What a person names as a source, and what is in it: looked at, never guessed from its name."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from saveslot.codec import Keyring
from saveslot.errors import InvalidInput
from saveslot.moving import langgraph_sqlite, lines, openai_agents, records, sqlite_source, valkey_source, yaml_folder
from saveslot.moving.parcel import Parcel, Problem
from saveslot.stores import sqlite_path
from saveslot.transfer import read_json

_LIST = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]"
)  # of objects, or of nothing; a byte order mark may stand before it
VALKEY = ("valkey://", "valkeys://", "redis://", "rediss://")
POSTGRES = ("postgresql://", "postgres://")


class Source(NamedTuple):
    what: str  # as people call it
    total: int | None  # sessions, if that is known beforehand
    found: AsyncIterator[Parcel | Problem]


class Ask(NamedTuple):
    """How sessions are to be brought in."""

    namespace: str
    new_id: str | None = None
    hot: str | None = None  # Valkey beside an agent_sessions table
    prefix: str = "default"
    keyring: Keyring | None = None  # for exports that are sealed


@asynccontextmanager
async def opened(name: str, ask: Ask) -> AsyncGenerator[list[Source]]:
    """What is there, open for reading as long as the block lasts."""
    if name.startswith(POSTGRES):
        async with _postgres(name, ask) as found:
            yield found
    elif name.startswith(VALKEY):
        async with valkey_source.opened(name, ask.prefix) as hot:
            yield [Source("sessions in Valkey", None, hot.parcels(ask.namespace))]
    else:
        path = Path(sqlite_path(name)) if name.startswith("sqlite:") else Path(name)
        if path.is_dir():
            yield [_folder(path, ask)]
        elif _begins(path, sqlite_source.is_sqlite):
            with sqlite_source.opened(path) as (connection, tables):
                yield [_sqlite(path, connection, tables, ask)]
        else:
            yield [_json(path, ask)]


def is_foreign(name: str) -> bool:
    """False for what `saveslot export` wrote: one session in one text."""
    if name == "-":
        return False
    path = Path(name)
    return "://" in name or path.is_dir() or name.startswith("sqlite:") or _begins(path, _no_export)


def _no_export(beginning: bytes) -> bool:
    return sqlite_source.is_sqlite(beginning) or _LIST.match(beginning) is not None


def _begins(path: Path, test: Callable[[bytes], bool]) -> bool:
    try:
        with path.open("rb") as file:
            return test(file.read(100))
    except OSError:
        return False


def _folder(path: Path, ask: Ask) -> Source:
    try:
        if lines.is_export(path):
            return Source("an export", lines.count(path), lines.parcels(path, ask.namespace, ask.keyring))
        found = yaml_folder.names(path)
    except OSError as exc:
        raise InvalidInput(str(path), f"cannot be read ({exc.strerror})") from None
    if not found:
        raise InvalidInput(str(path), "holds neither an export (manifest.jsonl) nor checkpoint files (*.yaml)")
    return Source("checkpoint files", len(found), _going(yaml_folder.parcels(path, ask.namespace)))


def _sqlite(path: Path, connection: sqlite_source.apsw.Connection, tables: sqlite_source.Tables, ask: Ask) -> Source:
    if langgraph_sqlite.is_one(tables):
        found = langgraph_sqlite.parcels(connection, tables, ask.namespace)
        return Source("LangGraph threads", langgraph_sqlite.count(connection), _going(found))
    if openai_agents.messages_table(tables) is not None:
        found = openai_agents.parcels(connection, tables, ask.namespace)
        return Source("OpenAI Agents sessions", openai_agents.count(connection, tables), _going(found))
    held = ", ".join(sorted(tables)) or "nothing"
    raise InvalidInput(str(path), f"holds no tables of a known format (LangGraph, OpenAI Agents), but {held}")


def _json(path: Path, ask: Ask) -> Source:
    try:
        items = read_json(path.read_bytes().decode("utf-8-sig"))
    except OSError as exc:
        raise InvalidInput(str(path), f"cannot be read ({exc.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidInput(str(path), "is not UTF-8 text") from None
    if not isinstance(items, list):
        raise InvalidInput(str(path), "is no list of checkpoints")
    told = cast("list[Any]", items)
    return Source("checkpoints", None, _going(records.checkpoints(told, ask.namespace, path.stem, ask.new_id)))


@asynccontextmanager
async def _postgres(url: str, ask: Ask) -> AsyncGenerator[list[Source]]:
    try:
        from saveslot.moving import postgres_source
    except ModuleNotFoundError:
        raise InvalidInput("url", "PostgreSQL needs a driver: pip install 'saveslot[postgres]'") from None
    async with postgres_source.opened(url) as (connection, columns):
        held = postgres_source.holds(columns)
        if not held:
            raise postgres_source.refuse(url, columns)
        found: list[Source] = []
        if "langgraph" in held:
            total = await postgres_source.count(connection, "langgraph")
            threads = postgres_source.threads(connection, columns, ask.namespace)
            found.append(Source("LangGraph threads", total, threads))
        if "agent_sessions" not in held:
            yield found
            return
        total = await postgres_source.count(connection, "agent_sessions")
        if ask.hot is None:
            rows = postgres_source.sessions(connection, columns, ask.namespace, None)
            yield [*found, Source("agent_sessions", total, rows)]
            return
        async with valkey_source.opened(ask.hot, ask.prefix) as hot:
            rows = postgres_source.sessions(connection, columns, ask.namespace, hot)
            yield [*found, Source("agent_sessions", total, rows)]


async def _going(found: Iterable[Parcel | Problem]) -> AsyncIterator[Parcel | Problem]:
    for item in found:
        yield item
