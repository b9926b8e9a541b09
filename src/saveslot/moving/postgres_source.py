"""Another program's PostgreSQL tables, read in one snapshot: `agent_sessions`, LangGraph's and Google ADK's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from saveslot.errors import InvalidInput, Unavailable
from saveslot.manager.export import read_json
from saveslot.moving import adk, records
from saveslot.moving.langgraph import CHECKPOINTS, WRITES, Found, Thread, Write, value
from saveslot.moving.langgraph_state import plain
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED
from saveslot.moving.valkey_source import Hot
from saveslot.stores import shown
from saveslot.stores.postgres.url import parse_url
from saveslot.values.checks import Data

Columns = dict[str, dict[str, str]]  # of each table, with their types
# Rows read at a time.
PAGE = 500
BLOBS = {"thread_id", "checkpoint_ns", "channel", "version", "type", "blob"}
THREADS = "select distinct thread_id from checkpoints"


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[tuple[Any, Columns]]:
    """A read-only connection, and the tables of its schema (`?schema=…`, default public)."""
    schema, dsn, cache = parse_url(url)
    schema = schema if "schema" in dict(parse_qsl(urlsplit(url).query)) else "public"
    settings = {"search_path": schema, "default_transaction_read_only": "on"}
    try:
        connect = cast("Any", asyncpg.connect)
        connection = await connect(dsn, statement_cache_size=cache, server_settings=settings)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield connection, await _columns(connection, schema)
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        raise Unavailable(f"{shown(url)} cannot be read ({exc})") from exc


async def _columns(connection: Any, schema: str) -> Columns:
    sql = "select table_name, column_name, data_type from information_schema.columns where table_schema = $1"
    by_table: Columns = {}
    for table, column, kind in await connection.fetch(sql, schema):
        by_table.setdefault(table, {})[column] = kind
    return by_table


def holds(columns: Columns) -> list[str]:
    """Which known formats are there."""
    names: list[str] = []
    if columns.get("agent_sessions", {}).keys() >= {"id", "state", "created_at"}:
        names.append("agent_sessions")
    if columns.get("checkpoints", {}).keys() >= {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint"}:
        names.append("langgraph")
    if adk.is_one(columns):
        names.append("adk")
    return names


async def count(connection: Any, what: str) -> int:
    rows = {"agent_sessions": "agent_sessions", "langgraph": f"({THREADS}) t", "adk": "sessions"}[what]
    return int(await connection.fetchval(f"select count(*) from {rows}"))  # noqa: S608


def _unknown(columns: Columns, table: str, known: set[str] | frozenset[str]) -> list[Problem]:
    unknown = sorted(columns.get(table, {}).keys() - known)
    return [Problem(f"column {table}.{name}", "is unknown and was left out") for name in unknown]


# agent_sessions


async def sessions(
    connection: Any, columns: Columns, namespace: str, hot: Hot | None
) -> AsyncIterator[MemoryParcel | Problem]:
    """Each row, or its newer copy in Valkey; then the sessions that only Valkey has."""
    there = columns["agent_sessions"]
    for problem in _unknown(columns, "agent_sessions", records.KNOWN):
        yield problem
    selected = [
        f'{name}::text as "{name}"' if name in {"id", "user_id"} else f'"{name}"'
        for name in there
        if name in records.KNOWN
    ]
    cursor = await connection.cursor(f"select {', '.join(selected)} from agent_sessions order by created_at, id")  # noqa: S608
    while rows := await cursor.fetch(PAGE):
        page: list[Data] = [dict(row) for row in rows]
        if hot is not None:
            page = await hot.newest(page)
        for record in page:
            if not records.deleted(record):
                for item in records.session(record, namespace):
                    yield item
    if hot is not None:
        async for item in _only_hot(connection, hot, namespace):
            yield item


async def _only_hot(connection: Any, hot: Hot, namespace: str) -> AsyncIterator[MemoryParcel | Problem]:
    async for page in hot.pages():
        sql = "select id::text from agent_sessions where id::text = any($1)"
        known = {row[0] for row in await connection.fetch(sql, list(page))}
        for session_id, record in page.items():
            if isinstance(record, Problem):
                yield record
            elif session_id not in known and not records.deleted(record):
                for item in records.session(record, namespace):
                    yield item


# LangGraph


async def threads(connection: Any, columns: Columns, namespace: str) -> AsyncIterator[MemoryParcel | Problem]:
    for table, known in (
        ("checkpoints", CHECKPOINTS),
        ("checkpoint_writes", WRITES | {"blob"}),
        ("checkpoint_blobs", BLOBS),
    ):
        for problem in _unknown(columns, table, known):
            yield problem
        if table not in columns:
            yield Problem(f"table {table}", "is missing; checkpoints are imported without its content")
    sql = """
        select checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint::text, metadata::text from checkpoints
        where thread_id = $1 order by checkpoint_id, checkpoint_ns"""
    for (thread_id,) in await connection.fetch(f"{THREADS} order by 1"):
        thread = Thread(thread_id, namespace)
        if (problem := thread.unfit()) is not None:
            yield problem
            continue
        blobs: dict[str, _Blobs] = {}
        cursor = await connection.cursor(sql, thread_id)
        while rows := await cursor.fetch(PAGE):
            for ns, checkpoint_id, parent, checkpoint, metadata in rows:
                try:
                    opaque: list[str] = []
                    data = read_json(checkpoint)
                    if ns not in blobs:
                        blobs[ns] = _Blobs(connection, (thread_id, ns), there="checkpoint_blobs" in columns)
                    values = await blobs[ns].values(data, opaque)
                    data = {**plain(data), "channel_values": values}
                    key = (thread_id, ns, checkpoint_id)
                    writes = await _writes(connection, columns.get("checkpoint_writes"), key, opaque)
                    record = Found(ns, checkpoint_id, parent, data, plain(read_json(metadata)), writes, opaque)
                except (*REFUSED, TypeError, AttributeError) as exc:
                    yield Problem(thread.where(ns, checkpoint_id), str(exc))
                    continue
                for problem in thread.take(record):
                    yield problem
        for item in thread.parcels():
            yield item


class _Blobs:
    """Values of a thread's channels by version. A checkpoint reads only those that the previous one did not have."""

    def __init__(self, connection: Any, key: tuple[str, str], *, there: bool) -> None:
        self._connection = connection
        self._key = key
        self._there = there
        self._known: dict[tuple[str, str], tuple[str, Any]] = {}

    async def values(self, checkpoint: Data, opaque: list[str]) -> Data:
        versions = cast("Data", checkpoint.get("channel_versions") or {})
        wanted = {(channel, str(version)) for channel, version in versions.items()}
        self._known = {pair: blob for pair, blob in self._known.items() if pair in wanted}
        missing = sorted(wanted - self._known.keys())
        if missing and self._there:
            sql = """
                select channel, version, b.type, b.blob from checkpoint_blobs b
                join unnest($3::text[], $4::text[]) as w (channel, version) using (channel, version)
                where thread_id = $1 and checkpoint_ns = $2"""
            names, numbers = [name for name, _ in missing], [number for _, number in missing]
            for channel, version, kind, data in await self._connection.fetch(sql, *self._key, names, numbers):
                self._known[channel, version] = (kind, data)
        state: Data = plain(checkpoint.get("channel_values") or {})
        for (channel, _), (kind, data) in sorted(self._known.items()):
            if kind != "empty":
                state[channel] = value(kind, data, opaque, f"channel {channel}")
        return state


async def _writes(
    connection: Any, columns: dict[str, str] | None, key: tuple[str, str, str], opaque: list[str]
) -> list[Write]:
    if columns is None:
        return []
    path = "task_path" if "task_path" in columns else "''"
    sql = f"""
        select task_id, {path}, idx, channel, type, blob from checkpoint_writes
        where thread_id = $1 and checkpoint_ns = $2 and checkpoint_id = $3 order by task_id, idx"""  # noqa: S608
    return [
        Write(task, path, idx, channel, value(kind, data, opaque, f"write to {channel}"))
        for task, path, idx, channel, kind, data in await connection.fetch(sql, *key)
    ]


# Google ADK


async def conversations(connection: Any, columns: Columns, namespace: str) -> AsyncIterator[MemoryParcel | Problem]:
    for table, known in adk.TABLES.items():
        for problem in _unknown(columns, table, known):
            yield problem
    apps = await connection.fetch("select app_name, null, state::text, update_time from app_states order by 1")
    users = await connection.fetch("select app_name, user_id, state::text, update_time from user_states order by 1, 2")
    for app, user, state, at in (*apps, *users):
        for item in adk.shared_state(app, user, state, at, namespace):
            yield item
    sql = """
        select app_name, user_id, id, state::text, create_time, update_time from sessions
        order by create_time, app_name, user_id, id"""
    events = """
        select id, timestamp, event_data::text from events where app_name = $1 and user_id = $2 and session_id = $3
        order by timestamp, id"""
    cursor = await connection.cursor(sql)
    while rows := await cursor.fetch(PAGE):
        for values in rows:
            row = adk.Row(*values)
            for item in adk.conversation(row, await connection.fetch(events, *row[:3]), namespace):
                yield item


def refuse(url: str, columns: Columns) -> InvalidInput:
    content = f"has {', '.join(sorted(columns))}" if columns else "is empty"
    return InvalidInput(shown(url), f"has no tables of a known format (the schema {content}); add ?schema=… to the URL")
