"""Lists and counts the sessions of a SQLite file: each query becomes one statement led by an index."""

from __future__ import annotations

from typing import Any, cast

import apsw

from saveslot.stores.sqlite.file import snapshot
from saveslot.stores.sqlite.reader import Work
from saveslot.stores.sqlite.rows import APART, ENTRIES, GONE, ROW, ROW_COLUMNS, SIZE, fetched, gone, to_row
from saveslot.stores.stored import shown_text
from saveslot.values.log import PROBED, Counts, Place, Query, Row, Totals, led, order, prefixed

# max() makes SQLite take the bare columns from the same row.
_WEIGHT = f"select cast(total({SIZE}) as integer), max(seq), cast(append_id as blob) from checkpoints where key = ?"  # noqa: S608
# Any one worker holds few sessions, and few workers are dead.
_BY_OWNER = "sessions indexed by sessions_by_owner"
_BY_TIME = "sessions indexed by sessions_by_time"
# CROSS JOIN: the label index leads, in page order.
_BY_LABEL = (
    "labels cross join sessions indexed by sqlite_autoindex_sessions_1 on sessions.key = session and made = created_at"
)
# Ids in the order of their bytes, which is that of code points.
_BY_PREFIX = "sessions indexed by sessions_by_id"
_PREFIX_COUNT = f"""select count(*) from (
    select 1 from {_BY_PREFIX} where namespace = ? and {{}} and deleted_at is null limit {PROBED})"""  # noqa: S608
_LABEL_COUNT = f"""select count(*) from (
    select 1 from labels where space = ? and label = ? and value = ? limit {PROBED})"""  # noqa: S608
# The same for a label of entries; of a session's entries with it the newest counts.
_BY_ENTRY = """entry_labels e cross join sessions indexed by sqlite_autoindex_sessions_1
    on sessions.key = e.session and e.made = created_at"""
_ENTRY_LABELLED = "{0}.space = ? and {0}.label = ? and {0}.value = ?"
_ALSO_LABELLED = """exists (select 1 from entry_labels m where m.space = ? and m.label = ? and m.value = ?
    and m.made = {0}.made and m.session = {0}.session and m.seq = {0}.seq)"""
_NEWEST_LABELLED = """e.seq = (select l.seq from entry_labels l where {} and l.made = e.made and l.session = e.session
    order by l.seq desc limit 1)"""
# When a session's newest entry was written, pins and retention marks (19 to 21) aside.
_CHANGED = """coalesce((select cast(c.at as integer) from checkpoints c
    where c.key = sessions.key and c.kind not in (19, 20, 21) order by c.seq desc limit 1), 0)"""
_BY_LABELS = {_BY_LABEL, _BY_ENTRY}
# {}: the sessions. CROSS JOIN: they lead.
_MATCHING = f"""
select count(*), total({SIZE} + length(recipe) + octet_length(name))
from ({{}}) s cross join checkpoints c indexed by checkpoints_by_seq on c.key = s.key"""  # noqa: S608
_MARKS = """
select total(octet_length(label) + octet_length(value))
from ({}) s cross join entry_labels indexed by entry_labels_by_session on session = s.key"""
# Each found by the index; ?1: after this one, ?2: how many at most.
_NAMESPACES = f"""
with recursive known (name, n) as (
  select (select min(namespace) from {_BY_TIME} where deleted_at is null and namespace > ?1), 1
  union all
  select (select min(namespace) from {_BY_TIME} where deleted_at is null and namespace > name), n + 1
  from known where name is not null and n < ?2
)
select cast(name as blob) from known where name is not null"""  # noqa: S608
_LABELLED = """exists (select 1 from labels l where l.space = namespace and l.label = ? and l.value = ?
    and l.made = created_at and l.session = sessions.key)"""
_ONCE_LABELLED = "exists (select 1 from json_each(sessions.labels) l where l.key = ? and l.value = ?)"


def listed(query: Query, after: Place | None, limit: int, now: int, uptime: tuple[str, int]) -> Work[list[Row]]:
    """Return a function that reads a page, as `Store.find` describes it."""

    def work(connection: apsw.Connection) -> list[Row]:
        with snapshot(connection):
            return _listed(connection, *_led(connection, query), after, limit, now, uptime)

    return work


def _listed(
    connection: apsw.Connection,
    query: Query,
    by_prefix: bool,  # noqa: FBT001
    after: Place | None,
    limit: int,
    now: int,
    uptime: tuple[str, int],
) -> list[Row]:
    source = _source(query, by_prefix=by_prefix)
    where, values = _where(query, source, now, uptime)
    column, newest_first = order(query)
    by_change = column == "changed_at"
    way, compare = ("desc", "<") if newest_first else ("asc", ">")
    column, key = _place(source, column)
    if after is not None:
        where += f" and ({column}, {key}) {compare} (?, ?)"
        values += after
    weighed = query.ended_for is not None or query.deleted_for is not None
    select = ROW.replace("\nfrom", f", {_CHANGED} as changed_at\nfrom") if by_change else ROW
    sql = f"{select.format(source)} where {where} order by {column} {way}, {key} {way} limit ?"
    fetched_rows = fetched(connection, sql, (*uptime, *values, limit))
    rows = [to_row(row[:ROW_COLUMNS], now) for row in fetched_rows]
    for row, columns in zip(rows, fetched_rows, strict=True):
        row.changed_at = columns[-1] if by_change else 0
    for row in rows if weighed else ():
        weight, length, last = connection.execute(_WEIGHT, (row.key,)).get
        if row.locked is None:
            row.weight, row.length, row.last = weight, length or 0, last or b""
    return rows


def _led(connection: apsw.Connection, query: Query) -> tuple[Query, bool]:
    """The query with its rarest label first, and whether its prefix is rarer than that."""
    prefixes = bool(query.prefix) and query.deleted_for is None
    if not prefixes and len(query.labels) < 2:  # noqa: PLR2004  (nothing to choose from)
        return query, False
    by_label = [connection.execute(_LABEL_COUNT, (query.namespace, *label)).get for label in query.labels.items()]
    range_, bounds = _within(query.prefix or "")
    count = _PREFIX_COUNT.format(range_)
    return led(query, by_label, connection.execute(count, (query.namespace, *bounds)).get if prefixes else None)


def _within(prefix: str) -> tuple[str, list[str]]:
    """The condition on ids that begin so, and its values."""
    first, end = prefixed(prefix)
    return ("id >= ? and id < ?", [first, end]) if end else ("id >= ?", [first])


def namespaces(after: str, limit: int) -> Work[list[str]]:
    """Return a function that lists namespaces, as `Store.namespaces` describes it."""

    def work(connection: apsw.Connection) -> list[str]:
        return [shown_text(name) for (name,) in connection.execute(_NAMESPACES, (after, limit))]

    return work


def counted(query: Query, totals: Totals, now: int, uptime: tuple[str, int]) -> Work[Counts]:
    """Return a function that counts, as `Store.count` describes it."""

    def work(connection: apsw.Connection) -> Counts:
        with snapshot(connection):
            ordered, by_prefix = _led(connection, query)
            every = bool(query.prefix) and not query.labels and query.deleted_for is None  # all have to be counted
            return _counted(connection, ordered, by_prefix or every, totals, now, uptime)

    return work


def _counted(
    connection: apsw.Connection,
    query: Query,
    by_prefix: bool,  # noqa: FBT001
    totals: Totals,
    now: int,
    uptime: tuple[str, int],
) -> Counts:
    source = _source(query, by_prefix=by_prefix)
    where, values = _where(query, source, now, uptime)
    by_state = f"select cast(state as blob), count(*) from {source} where {where} group by state"  # noqa: S608
    by_type = f"select cast(agent_type as blob), count(*) from {source} where {where} group by agent_type"  # noqa: S608
    owners = source if source in _BY_LABELS | {_BY_PREFIX} else _BY_OWNER
    owned = f"""
            select count(*), total({GONE}) from {owners} join workers on worker = owner
            where {where} and owner is not null and deleted_at is null"""  # noqa: S608
    held, orphaned = cast("list[Any]", connection.execute(owned, (*gone(uptime, 0), *values)).get)
    counts = Counts(
        states=_counts(connection, by_state, values),
        agent_types=_counts(connection, by_type, values),
        held=held,
        orphaned=int(orphaned),
    )
    if totals == "store":
        counts.entries, counts.stored_bytes = connection.execute(ENTRIES).get, _bytes(connection)
    elif totals == "matching":
        chosen = f"select sessions.key as key from {source} where {where}"  # noqa: S608
        bodies = f"select total(length(body)) from {source} where {where}"  # noqa: S608
        counts.entries, stored = cast("list[Any]", connection.execute(_MATCHING.format(chosen), values).get)
        marks = connection.execute(_MARKS.format(chosen), values).get
        counts.stored_bytes = int(stored + marks + connection.execute(bodies, values).get)
    return counts


def _bytes(connection: apsw.Connection) -> int:
    in_memory = not connection.filename  # before the first write: nothing is stored
    return 0 if in_memory else connection.pragma("page_count") * connection.pragma("page_size")


def _counts(connection: apsw.Connection, sql: str, values: list[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, number in connection.execute(sql, values):
        counts[shown_text(name)] = counts.get(shown_text(name), 0) + number
    return counts


def _source(query: Query, *, by_prefix: bool) -> str:
    """The table or index that leads a query. The indexes by owner and label exclude deleted sessions."""
    if query.entry:
        return _BY_ENTRY
    if query.deleted_for is None and (query.owner is not None or query.orphan_for is not None):
        return _BY_OWNER
    if by_prefix:
        return _BY_PREFIX
    by_label = query.labels and query.user_id is None  # a user has fewer sessions than most labels
    return _BY_LABEL if by_label and order(query)[0] == "created_at" else "sessions"


def _place(source: str, column: str) -> tuple[str, str]:
    """The columns that order the rows of a source, as the leading index names them."""
    by_time = column == "created_at" and source in _BY_LABELS
    return ("made", "session") if by_time else (column, "key")


def _where(query: Query, source: str, now: int, uptime: tuple[str, int]) -> tuple[str, list[Any]]:
    # A key that is not bytes is damage, and no page could begin after it: `saveslot doctor` names such rows.
    parts, values = ["namespace = ? and typeof(sessions.key) = 'blob'"], list[Any]([query.namespace])

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
        if not n and source == _BY_LABEL:
            add("space = ? and label = ? and value = ?", query.namespace, name, value)
        else:
            add(_LABELLED if query.deleted_for is None else _ONCE_LABELLED, name, value)
    if query.entry:
        for alias, whole in (("e", "{}"), ("l", _NEWEST_LABELLED)):
            also = [_ALSO_LABELLED.format(alias)] * (len(query.entry) - 1)
            pairs = [value for label in query.entry.items() for value in (query.namespace, *label)]
            add(whole.format(" and ".join([_ENTRY_LABELLED.format(alias), *also])), *pairs)
    if query.request is not None:
        add("substr(request, 1, 16) = ? and request is not null", query.request)
    if query.created_after is not None:
        add("created_at > ?", query.created_after)
    if query.created_before is not None:
        add("created_at < ?", query.created_before)
    if query.prefix is not None:
        if source == _BY_PREFIX:
            within, bounds = _within(query.prefix)
            add(within, *bounds)
        else:  # too many to be found by it: in page order they come soon
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
        add(f"owner in (select worker from workers where {GONE})", *gone(uptime, query.orphan_for))  # noqa: S608
    if query.owner is not None:
        add("owner = ?", query.owner)
    if query.unowned:
        add("owner is null")
    return " and ".join(parts), values
