"""OpenAI Agents' SQLite sessions: each turn of a conversation becomes a checkpoint that adds its items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import apsw

from saveslot.errors import InvalidInput
from saveslot.model import AgentSession
from saveslot.moving.drafting import Making
from saveslot.moving.parcel import Kept, Problem
from saveslot.moving.records import REFUSED, parsed
from saveslot.moving.sqlite_source import Tables, quoted, unknown

MESSAGES = {"id", "session_id", "message_data", "created_at"}
SESSIONS = {"session_id", "created_at", "updated_at"}


def messages_table(tables: Tables) -> str | None:
    """The table of messages, whatever it is called."""
    return next((name for name, columns in tables.items() if columns >= {"id", "session_id", "message_data"}), None)


def count(connection: apsw.Connection, tables: Tables) -> int:
    return int(connection.execute(f"select count(*) from ({_ids(tables)})").get)  # noqa: S608  (names of tables)


def parcels(connection: apsw.Connection, tables: Tables, namespace: str) -> Iterator[Kept | Problem]:
    table = quoted(messages_table(tables) or "")
    yield from unknown(messages_table(tables) or "", tables[messages_table(tables) or ""], MESSAGES)
    for session_id, created in connection.execute(_ids(tables)):
        sql = f"select id, message_data, created_at from {table} where session_id = ? order by id"  # noqa: S608
        yield from _session(session_id, created, connection.execute(sql, (session_id,)), namespace)


def _ids(tables: Tables) -> str:
    """Every session, also one whose row in the other table was never written."""
    messages = quoted(messages_table(tables) or "")
    found = f"select session_id, min(created_at) created from {messages} group by 1"  # noqa: S608
    rows = next(
        (name for name, columns in tables.items() if columns >= SESSIONS and "message_data" not in columns), None
    )
    if rows is not None:
        found = f"select session_id, created_at created from {quoted(rows)} union all {found}"  # noqa: S608
    return f"select session_id, min(created) from ({found}) group by 1 order by 1"  # noqa: S608


def _session(session_id: Any, created: Any, rows: Any, namespace: str) -> Iterator[Kept | Problem]:
    name = f"session {session_id}"
    try:
        made = Making(namespace, AgentSession(session_id=session_id, agent_type="openai-agents", created_at=created))
        made.created()
        made.rest(created)
    except REFUSED as exc:
        yield Problem(name, str(exc))
        return
    # One call stores a turn's items with one time.
    for at, turn in groupby(rows, key=lambda row: row[2]):
        items: list[Any] = []
        for number, text, _ in turn:
            try:
                items.append(_item(text))
            except REFUSED as exc:
                yield Problem(f"{name}, message {number}", str(exc))
        try:
            if items:
                made.append("turn", {"items": items}, created if at is None else at)
        except REFUSED as exc:
            yield Problem(f"{name}, turn at {at}", str(exc))
    yield made.parcel()


def _item(text: Any) -> Any:
    if not isinstance(text, str):
        raise InvalidInput("message_data", "is no JSON text")
    return parsed(text)
