"""Import sources: which format a file, folder or URL contains, found by looking inside, not by its name."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from saveslot.codec import Keyring
from saveslot.errors import InvalidInput
from saveslot.manager.export import read_json
from saveslot.moving import (
    adk,
    adk_sqlite,
    jsonl,
    langgraph_sqlite,
    openai_agents,
    records,
    sqlite_source,
    valkey_source,
    yaml_folder,
)
from saveslot.moving.parcel import Parcel, Problem
from saveslot.stores import shown, sqlite_path

_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]")  # of objects, or empty; a byte order mark may come first
VALKEY = ("valkey://", "valkeys://", "redis://", "rediss://")
POSTGRES = ("postgresql://", "postgres://")


# Bytes of a JSON file or stdin; reading takes several times the memory.
MAX_FILE = 1 << 30


class Source(NamedTuple):
    what: str  # for people
    total: int | None  # sessions, if known in advance
    parcels: AsyncIterator[Parcel | Problem]


class Ask(NamedTuple):
    """Options of an import."""

    namespace: str
    new_id: str | None = None
    hot: str | None = None  # Valkey beside an agent_sessions table
    prefix: str = "default"
    keyring: Keyring | None = None  # for sealed exports


@asynccontextmanager
async def opened(name: str, ask: Ask) -> AsyncGenerator[list[Source]]:
    """The sources found there, open inside the block."""
    if name.startswith(POSTGRES):
        async with _postgres(name, ask) as contents:
            yield contents
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
    """False for the output of `saveslot export` of one session."""
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
        if jsonl.is_export(path):
            return Source("an export", jsonl.count(path), jsonl.parcels(path, ask.namespace, ask.keyring))
        names = yaml_folder.names(path)
    except OSError as exc:
        raise InvalidInput(str(path), f"cannot be read ({exc.strerror})") from None
    if not names:
        raise InvalidInput(str(path), "contains neither an export (manifest.jsonl) nor checkpoint files (*.yaml)")
    return Source("checkpoint files", len(names), _going(yaml_folder.parcels(path, ask.namespace)))


def _sqlite(path: Path, connection: sqlite_source.apsw.Connection, tables: sqlite_source.Tables, ask: Ask) -> Source:
    if langgraph_sqlite.is_one(tables):
        parcels = langgraph_sqlite.parcels(connection, tables, ask.namespace)
        return Source("LangGraph threads", langgraph_sqlite.count(connection), _going(parcels))
    if openai_agents.messages_table(tables) is not None:
        parcels = openai_agents.parcels(connection, tables, ask.namespace)
        return Source("OpenAI Agents sessions", openai_agents.count(connection, tables), _going(parcels))
    if adk.is_one(tables):
        adk.check(tables, str(path))
        parcels = adk_sqlite.parcels(connection, tables, ask.namespace)
        return Source("Google ADK sessions", adk_sqlite.count(connection), _going(parcels))
    held = ", ".join(sorted(tables)) or "nothing"
    raise InvalidInput(
        str(path), f"has no tables of a known format (LangGraph, OpenAI Agents, Google ADK); it has {held}"
    )


def read_text(file: IO[bytes], name: str) -> str:
    """The text of a file, without a byte order mark; `name` is for errors. Stops at `MAX_FILE` bytes."""
    try:
        data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise InvalidInput(name, f"is longer than {MAX_FILE:,} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(name, "is not UTF-8 text") from None


def _json(path: Path, ask: Ask) -> Source:
    try:
        with path.open("rb") as file:
            items = read_json(read_text(file, str(path)))
    except OSError as exc:
        raise InvalidInput(str(path), f"cannot be read ({exc.strerror})") from None
    if not isinstance(items, list):
        raise InvalidInput(str(path), "is not a list of checkpoints")
    result = cast("list[Any]", items)
    return Source("checkpoints", None, _going(records.checkpoints(result, ask.namespace, path.stem, ask.new_id)))


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
        matches: list[Source] = []
        if "langgraph" in held:
            total = await postgres_source.count(connection, "langgraph")
            threads = postgres_source.threads(connection, columns, ask.namespace)
            matches.append(Source("LangGraph threads", total, threads))
        if "adk" in held:
            adk.check(columns, shown(url))
            total = await postgres_source.count(connection, "adk")
            conversations = postgres_source.conversations(connection, columns, ask.namespace)
            matches.append(Source("Google ADK sessions", total, conversations))
        if "agent_sessions" not in held:
            yield matches
            return
        total = await postgres_source.count(connection, "agent_sessions")
        if ask.hot is None:
            rows = postgres_source.sessions(connection, columns, ask.namespace, None)
            yield [*matches, Source("agent_sessions", total, rows)]
            return
        async with valkey_source.opened(ask.hot, ask.prefix) as hot:
            rows = postgres_source.sessions(connection, columns, ask.namespace, hot)
            yield [*matches, Source("agent_sessions", total, rows)]


async def _going(parcels: Iterable[Parcel | Problem]) -> AsyncIterator[Parcel | Problem]:
    for item in parcels:
        yield item
