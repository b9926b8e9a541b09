"""Google ADK's tables in a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from saveslot.moving.adk import SESSIONS, TABLES, Row, conversation, shared_state
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.sqlite_source import Tables, select, unknown

# Events of one time in the order in which they were stored.
EVENTS = "from events where app_name = ? and user_id = ? and session_id = ? order by timestamp, rowid"


def count(connection: apsw.Connection) -> int:
    return int(connection.execute("select count(*) from sessions").get)


def parcels(connection: apsw.Connection, tables: Tables, namespace: str) -> Iterator[MemoryParcel | Problem]:
    for table, columns in TABLES.items():
        yield from unknown(table, tables[table], columns)
    for app, state, at in select(connection, ("app_name", "state", "update_time"), "from app_states order by 1"):
        yield from shared_state(app, None, state, at, namespace)
    columns = ("app_name", "user_id", "state", "update_time")
    for app, user, state, at in select(connection, columns, "from user_states order by 1, 3"):
        yield from shared_state(app, user, state, at, namespace)
    for values in select(connection, SESSIONS, "from sessions order by create_time, app_name, user_id, id"):
        row = Row(*values)
        events = select(connection, ("id", "timestamp", "event_data"), EVENTS, row[:3])
        yield from conversation(row, events, namespace)
