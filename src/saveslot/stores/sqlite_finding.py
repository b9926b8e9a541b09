"""Lists and counts of the sessions of a SQLite file: a query becomes one statement that an index leads."""

from __future__ import annotations

from typing import Any, cast

import apsw

from saveslot.log import FAILURES, TRACED, Counts, Place, Query, Row, Sample, order
from saveslot.model import Kind
from saveslot.stores.sqlite_file import snapshot
from saveslot.stores.sqlite_reader import Work
from saveslot.stores.sqlite_rows import APART, ENTRIES, GONE, HEADER, ROW, SIZE, to_entry, to_row

# With max() the columns beside it are those of that row.
_WEIGHT = f"select cast(total({SIZE}) as integer), max(seq), append_id from checkpoints where key = ?"  # noqa: S608
# Few are held by any one worker, and few workers are dead.
_BY_OWNER = "sessions indexed by sessions_by_owner"
# CROSS: the label leads, in the order of the page.
_BY_LABEL = "labels cross join sessions indexed by sqlite_autoindex_sessions_1 on sessions.key = session"
_LABELLED = """exists (select 1 from labels l where l.space = namespace and l.label = ? and l.value = ?
    and l.made = created_at and l.session = sessions.key)"""
_ONCE_LABELLED = "exists (select 1 from json_each(sessions.labels) l where l.key = ? and l.value = ?)"


def listed(query: Query, after: Place | None, limit: int, now: int, uptime: tuple[str, int]) -> Work[list[Row]]:
    """What reads a page, as `Store.find` says."""
    source = _source(query)
    where, values = _where(query, now, uptime)
    column, newest_first = order(query)
    way, compare = ("desc", "<") if newest_first else ("asc", ">")
    column, key = _place(source, column)
    if after is not None:
        where += f" and ({column}, {key}) {compare} (?, ?)"
        values += after
    weighed = query.ended_for is not None or query.deleted_for is not None
    sql = f"{ROW.format(source)} where {where} order by {column} {way}, {key} {way} limit ?"

    def work(connection: apsw.Connection) -> list[Row]:
        with snapshot(connection):
            found = [to_row(row, now) for row in connection.execute(sql, (*uptime, *values, limit))]
            for row in found if weighed else ():
                weight, length, last = connection.execute(_WEIGHT, (row.key,)).get
                row.weight, row.length, row.last = weight, length or 0, last or b""
            return found

    return work


def counted(query: Query, sample: int, now: int, uptime: tuple[str, int]) -> Work[Counts]:
    """What counts, as `Store.count` says."""
    boot, up = uptime
    source = _source(query)
    where, values = _where(query, now, (boot, up))

    def work(connection: apsw.Connection) -> Counts:
        by_state = f"select state, count(*) from {source} where {where} group by state"  # noqa: S608
        by_type = f"select agent_type, count(*) from {source} where {where} group by agent_type"  # noqa: S608
        owners = source if source == _BY_LABEL else _BY_OWNER
        owned = f"""
            select count(*), total({GONE}) from {owners} join workers on worker = owner
            where {where} and owner is not null and deleted_at is null"""  # noqa: S608
        with snapshot(connection):
            held, orphaned = cast("list[Any]", connection.execute(owned, (boot, 0, up, *values)).get)
            return Counts(
                states=dict(connection.execute(by_state, values)),
                agent_types=dict(connection.execute(by_type, values)),
                held=held,
                orphaned=int(orphaned),
                entries=connection.execute(ENTRIES).get,
                stored_bytes=connection.pragma("page_count") * connection.pragma("page_size"),
                sample=_sample(connection, source, where, values, sample) if sample else None,
            )

    return work


def _sample(connection: apsw.Connection, source: str, where: str, values: list[Any], count: int) -> Sample:
    sample = Sample(count * TRACED)
    column, key = _place(source, "created_at")
    newest = f"""
        select sessions.key, state, created_at from {source} where {where}
        order by {column} desc, {key} desc limit ?"""  # noqa: S608
    for key, state, created_at in connection.execute(newest, (*values, count)):
        sample.sessions[key] = (state, created_at)
    # CROSS and INDEXED BY: the sessions lead, and each one's entries come together.
    traced = f"""
        select c.key, c.seq, c.kind, c.name, c.at, {SIZE}
        from ({newest}) s cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key limit ?"""  # noqa: S608
    sample.entries = list(connection.execute(traced, (*values, count, sample.limit)))
    last = f"""
        select {HEADER}, null, {SIZE} from checkpoints
        where key = ? and kind = {int(Kind.FAILED)} order by seq desc limit 1"""  # noqa: S608
    failed = [key for key, (state, _) in sample.sessions.items() if state == "failed"]
    for key in failed[:FAILURES]:
        sample.failures += [(key, to_entry(row)) for row in connection.execute(last, (key,))]
    return sample


def _source(query: Query) -> str:
    """Where the rows of a query come from. Of deleted sessions these indexes know nothing."""
    if query.deleted_for is None and (query.owner is not None or query.orphan_for is not None):
        return _BY_OWNER
    by_label = query.labels and query.user_id is None  # who names a user chooses fewer than most labels do
    return _BY_LABEL if by_label and order(query)[0] == "created_at" else "sessions"


def _place(source: str, column: str) -> tuple[str, str]:
    """What orders the rows of a source, in the words of the index that leads."""
    return ("made", "session") if source == _BY_LABEL else (column, "key")


def _where(query: Query, now: int, uptime: tuple[str, int]) -> tuple[str, list[Any]]:
    parts, values = ["namespace = ?"], list[Any]([query.namespace])

    def add(part: str, *more: Any) -> None:
        parts.append(part)
        values.extend(more)

    if query.deleted_for is None:
        add("deleted_at is null")
    else:
        add("deleted_at is not null and deleted_at <= ?", now - query.deleted_for)
    if query.agent_type is not None:
        add("agent_type = ?", query.agent_type)
    if query.user_id is not None:
        add("user_id = ?", query.user_id)
    if query.state is not None:
        add("state = ?", query.state)
    for n, (name, value) in enumerate(query.labels.items()):
        if not n and _source(query) == _BY_LABEL:
            add("space = ? and label = ? and value = ?", query.namespace, name, value)
        else:
            add(_LABELLED if query.deleted_for is None else _ONCE_LABELLED, name, value)
    if query.created_after is not None:
        add("created_at > ?", query.created_after)
    if query.created_before is not None:
        add("created_at < ?", query.created_before)
    if query.prefix is not None:
        add("substr(id, 1, length(?)) = ?", query.prefix, query.prefix)
    if query.text is not None:
        add("instr(search, lower(?))" if APART not in query.text else "instr('', ?)", query.text)
    if query.stale_for is not None:
        cutoff = now - query.stale_for
        last = "(select c.alive from checkpoints c where c.key = sessions.key order by c.seq desc limit 1)"
        owner = "coalesce((select beaten from workers where worker = owner), 0)"
        add(f"heartbeat < ? and {last} < ? and {owner} < ?", cutoff, cutoff, cutoff)
    if query.ended_for is not None:
        cutoff = now - query.ended_for
        ends = "from checkpoints c where c.key = sessions.key and c.kind in (5, 6) order by c.seq desc limit 1"
        ended = f"coalesce((select c.at {ends}), 0)"
        add(f"state in ('completed', 'failed') and heartbeat <= ? and {ended} <= ?", cutoff, cutoff)
    if query.orphan_for is not None:
        add(f"owner in (select worker from workers where {GONE})", uptime[0], query.orphan_for, uptime[1])  # noqa: S608
    if query.owner is not None:
        add("owner = ?", query.owner)
    if query.unowned:
        add("owner is null")
    return " and ".join(parts), values
