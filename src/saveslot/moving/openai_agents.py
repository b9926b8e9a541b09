"""OpenAI Agents' SQLite sessions: each turn of a conversation becomes a checkpoint that adds its items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import apsw

from saveslot.errors import InvalidInput
from saveslot.moving.builder import Builder
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED, parsed
from saveslot.moving.sqlite_source import Tables, quoted, select, unknown
from saveslot.session.model import AgentSession

MESSAGES = {"id", "session_id", "message_data", "created_at"}
SESSIONS = {"session_id", "created_at", "updated_at"}


def messages_table(tables: Tables) -> str | None:
    """The name of the messages table, found by its columns."""
    return next((name for name, columns in tables.items() if columns >= {"id", "session_id", "message_data"}), None)


def count(connection: apsw.Connection, tables: Tables) -> int:
    return int(connection.execute(f"select count(*) from ({_ids(tables)})").get)  # noqa: S608  (names of tables)


def parcels(connection: apsw.Connection, tables: Tables, namespace: str) -> Iterator[MemoryParcel | Problem]:
    table = quoted(messages_table(tables) or "")
    yield from unknown(messages_table(tables) or "", tables[messages_table(tables) or ""], MESSAGES)
    for session_id, created in select(connection, ("session_id", "created"), f"from ({_ids(tables)})"):
        columns = ("id", "message_data", "created_at")
        # Read only after the id was checked.
        rows = select(connection, columns, f"from {table} where session_id = ? order by id", (session_id,))
        yield from _session(session_id, created, rows, namespace)


def _ids(tables: Tables) -> str:
    """Every session, including those without a row in the sessions table."""
    messages = quoted(messages_table(tables) or "")
    sql = f"select session_id, min(created_at) created from {messages} group by 1"  # noqa: S608
    rows = next(
        (name for name, columns in tables.items() if columns >= SESSIONS and "message_data" not in columns), None
    )
    if rows is not None:
        sql = f"select session_id, created_at created from {quoted(rows)} union all {sql}"  # noqa: S608
    return f"select session_id, min(created) created from ({sql}) group by 1 order by 1"  # noqa: S608


def _session(session_id: Any, created: Any, rows: Any, namespace: str) -> Iterator[MemoryParcel | Problem]:
    name = f"session {session_id}"
    try:
        builder = Builder(
            namespace, AgentSession(session_id=session_id, agent_type="openai-agents", created_at=created)
        )
        builder.created()
        builder.rest(created)
    except REFUSED as exc:
        yield Problem(name, str(exc))
        return
    # The items of a turn are stored by one call, so they have the same time.
    for at, turn in groupby(rows, key=lambda row: row[2]):
        items: list[Any] = []
        for number, text, _ in turn:
            try:
                items.append(_item(text))
            except REFUSED as exc:
                yield Problem(f"{name}, message {number}", str(exc))
        try:
            if items:
                builder.append("turn", {"items": items}, created if at is None else at)
        except REFUSED as exc:
            yield Problem(f"{name}, turn at {at}", str(exc))
    yield builder.parcel()


def _item(text: Any) -> Any:
    if not isinstance(text, str):
        raise InvalidInput("message_data", "is not JSON text")
    return parsed(text)
