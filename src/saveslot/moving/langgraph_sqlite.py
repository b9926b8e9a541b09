"""LangGraph's tables in a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from saveslot.moving.langgraph import CHECKPOINTS, WRITES, Found, Thread, Write, value
from saveslot.moving.parcel import MemoryParcel, Problem
from saveslot.moving.records import REFUSED
from saveslot.moving.sqlite_source import Tables, select, unknown
from saveslot.values.checks import as_text

THREADS = "select distinct thread_id from checkpoints"


def is_one(tables: Tables) -> bool:
    return tables.get("checkpoints", set()) >= {"thread_id", "checkpoint_ns", "checkpoint_id", "type", "checkpoint"}


def count(connection: apsw.Connection) -> int:
    return int(connection.execute(f"select count(*) from ({THREADS})").get)  # noqa: S608


def parcels(connection: apsw.Connection, tables: Tables, namespace: str) -> Iterator[MemoryParcel | Problem]:
    yield from unknown("checkpoints", tables["checkpoints"], CHECKPOINTS)
    yield from unknown("writes", tables.get("writes", set()), WRITES | {"value"})
    written = "writes" in tables
    if not written:
        yield Problem("table writes", "is missing; checkpoints are imported without pending writes")
    columns = ("checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata")
    there = [name if name in tables["checkpoints"] else "null" for name in columns]
    rest = "from checkpoints where thread_id = ? order by checkpoint_id, checkpoint_ns"
    for (thread_id,) in select(connection, ("thread_id",), f"from ({THREADS} order by 1)"):
        thread = Thread(thread_id, namespace)
        if (problem := thread.unfit()) is not None:
            yield problem
            continue
        for ns, checkpoint_id, parent, kind, data, metadata in select(connection, there, rest, (thread_id,)):
            opaque: list[str] = []
            try:
                key = (thread_id, ns, checkpoint_id)
                record = Found(
                    ns,
                    checkpoint_id,
                    parent,
                    value(kind, data, opaque, "checkpoint"),
                    {} if metadata is None else value("json", metadata, opaque, "metadata"),
                    list(_writes(connection, tables["writes"], key, opaque)) if written else [],
                    opaque,
                )
            except REFUSED as exc:
                yield Problem(thread.where(ns, checkpoint_id), str(exc))
                continue
            yield from thread.take(record)
        yield from thread.parcels()


def _writes(connection: apsw.Connection, columns: set[str], key: tuple[Any, ...], opaque: list[str]) -> Iterator[Write]:
    as_text(key[1], "checkpoint_ns")
    as_text(key[2], "checkpoint_id")
    path = "task_path" if "task_path" in columns else "''"
    rest = "from writes where thread_id = ? and checkpoint_ns = ? and checkpoint_id = ? order by task_id, idx"
    there = ("task_id", path, "idx", "channel", "type", "value")
    for task_id, task_path, idx, channel, kind, data in select(connection, there, rest, key):
        yield Write(task_id, task_path or "", idx, channel, value(kind, data, opaque, f"write to {channel}"))
