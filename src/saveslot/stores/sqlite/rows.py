"""Converts sessions and entries to rows of a SQLite file and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import apsw
import msgspec

from saveslot.stores import stored
from saveslot.values.log import Row

HEADER = "seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, request, base"
SIZE = "coalesce(length(frame), 0) + coalesce(length(note), 0)"
COLUMNS = (
    "key, namespace, id, agent_type, user_id, state, created_at, heartbeat, fence, lease, body, labels, owner, request"
)
# True if a worker renewed its row since the machine's boot. {0} and {1}: the boot id and the clock. On a machine
# without a boot id, `boot` is the worker's TTL: a row of this boot expires within that time from now.
_THIS_BOOT = "iif({0} = '', expires <= {1} + cast(boot as integer), boot = {0})"
# The microseconds that a worker has left, 0 if it is dead. ?1 and ?2: the machine's boot id and its clock.
LEFT = f"case when not dead and {_THIS_BOOT.format('?1', '?2')} then max(0, expires - ?2) else 0 end"
ROW = f"""
select {COLUMNS}, coalesce(name, ''), {LEFT}, coalesce(beaten, 0), coalesce(deleted_at, 0)
from {{}} left join workers on worker = owner"""  # noqa: S608
ROW_COLUMNS = 18  # an entry's columns may follow
# The row that keeps the feed's newest number is not an entry.
ENTRIES = "select count(*) - (select count(*) from checkpoints where key = x'') from checkpoints"
# The newest number of the feed.
NEWEST = "select coalesce(max(feed), 0) from checkpoints"
# Workers that may be declared dead; its values are `gone(…)`.
GONE = f"(dead or not {_THIS_BOOT.format('?', '?')} or expires + ? <= ?)"
# Separates the parts of the searched text; no name can contain it.
APART = "\x1f"

LABELS = msgspec.json.Decoder(dict[str, str])


def gone(uptime: tuple[str, int], overdue: int) -> tuple[Any, ...]:
    """The values of `GONE`: workers overdue by at least `overdue` microseconds, or of an earlier boot."""
    boot, up = uptime
    return boot, up, boot, overdue, up


def fetched(connection: apsw.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    """The rows of a select of `COLUMNS` or `HEADER`; if one has a text that is not UTF-8, all texts as bytes."""
    try:
        return cast("list[Any]", connection.execute(sql, values).fetchall())
    except UnicodeDecodeError:
        return cast("list[Any]", connection.execute(texts_as_bytes(sql), values).fetchall())


def texts_as_bytes(sql: str) -> str:
    """Such a select with its texts as bytes: apsw returns no row with a text that is not UTF-8."""
    for table, worker in (("", ""), ("s.", "w."), ("c.", "w.")):
        for columns in (COLUMNS, HEADER):
            names = [f"{table}{name}" for name in columns.split(", ")]
            sql = sql.replace(", ".join(names), ", ".join(map(_as_bytes, names)))
        for column in (f"coalesce({worker}name, '')", f"coalesce({worker}beaten, 0)"):
            sql = sql.replace(column, _as_bytes(column))
    return sql


def _as_bytes(text: str) -> str:
    return f"iif(typeof({text}) = 'text', cast({text} as blob), {text})"


def to_row(row: Sequence[Any], now: int) -> Row:
    *columns, deleted_at = row
    return stored.to_row((*columns, now, deleted_at))


def labels_text(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels).decode()


def label_rows(row: Row, created_at: int, labels: dict[str, str]) -> list[tuple[Any, ...]]:
    return [(row.namespace, name, value, created_at, row.key) for name, value in labels.items()]


def search_text(row: Row, labels: dict[str, str]) -> str:
    return APART.join((row.session_id, row.agent_type, row.user_id, *labels.values()))
