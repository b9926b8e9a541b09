"""Builds the statements that list and count the sessions of a query in PostgreSQL."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from saveslot.stores.postgres import statements as sql
from saveslot.values.log import PROBED, Place, Query, order, prefixed


def weighed(query: Query) -> bool:
    """True when rows come with their log's bytes, length and newest append_id."""
    return query.ended_for is not None or query.deleted_for is not None


def by_change(query: Query) -> bool:
    """True when rows come with the time of their newest entry."""
    return order(query)[0] == "changed_at"


def probe(query: Query) -> tuple[str, list[Any]] | None:
    """A statement that counts, up to a limit, what could lead this query, and its values: each label, then the prefix.

    None if there is nothing to choose from.
    """
    prefixes = bool(query.prefix) and query.deleted_for is None
    if not prefixes and len(query.labels) < 2:  # noqa: PLR2004
        return None
    values: list[Any] = [query.namespace]
    counts: list[str] = []
    for label in query.labels.items():
        names = {"{label}": f"${len(values) + 1}", "{value}": f"${len(values) + 2}"}
        counts.append(_replaced(sql.LABEL_COUNT, names))
        values += label
    if prefixes:
        within, bounds = _within(query.prefix or "", len(values) + 1)
        counts.append(_replaced(sql.PREFIX_COUNT, {"{range}": within}))
        values += bounds
    return f"select {', '.join(counts)}", values


def _replaced(text: str, names: dict[str, str]) -> str:
    for name, value in {**names, "{probed}": str(PROBED)}.items():
        text = text.replace(name, value)
    return text


def _within(prefix: str, number: int) -> tuple[str, list[str]]:
    """The condition on ids that begin so, by the order of their bytes, and its values from parameter `number` on."""
    first, end = prefixed(prefix)
    if not end:
        return f"s.id ~>=~ ${number}", [first]
    return f"s.id ~>=~ ${number} and s.id ~<~ ${number + 1}", [first, end]


def page(query: Query, after: Place | None, limit: int, *, by_prefix: bool) -> tuple[str, list[Any]]:
    """The statement of a page as `Store.find` describes it, and its values after the clocks.

    `by_prefix`: the ids with the query's prefix are the fewest.
    """
    source = _source(query, by_prefix=by_prefix)
    where, values = _where(query, source, "c.ended" if weighed(query) else sql.ENDED)
    way, compare = ("desc", "<") if order(query)[1] else ("asc", ">")
    column, key = _order(query, source)
    if after is not None:
        where += f" and ({column}, {key}) {compare} (${len(values) + 2}, ${len(values) + 3})"
        values += after
    page = f"order by {column} {way}, {key} {way} limit ${len(values) + 2}"
    values.append(limit)
    if weighed(query):
        # In one statement, so that the newest entry is not one appended after the row was read.
        return f"{sql.ROW}, c.* from {source} cross join {sql.WEIGHED} where {where} {page}", values
    if by_change(query):
        return f"{sql.ROW}, c.changed_at from {source} cross join {sql.CHANGED} where {where} {page}", values
    if query.text is None or source != sql.OWNED:
        return f"{sql.ROW} from {source} where {where} {page}", values
    # The index alone answers a text search; only the page's rows are read. Owners are joined only if the query needs
    # them: PostgreSQL would read them even for a join that it removes.
    bare = "{s}.sessions s" if query.orphan_for is None else source
    keys = f"(select s.key from {bare} where {where} {page})"  # noqa: S608
    return f"{sql.ROW} from {sql.OWNED} join {keys} k on k.key = s.key {page}", values


def counting(query: Query, *, by_prefix: bool) -> tuple[str, str, str, list[Any]]:
    """The statements that count by state and agent type, by owner, and add up entries and bytes; their values.

    Owners are counted separately: few sessions are held, and the others need no look at workers.
    """
    source = _source(query, by_prefix=by_prefix)
    where, values = _where(query, source)
    by_state = f"""
        select s.state, s.agent_type, count(*) from {source} where {where} and $1::text is not null
        group by s.state, s.agent_type"""  # noqa: S608
    held = f"""
        select count(*), count(*) filter (where w.dead or w.expires <= {sql.UP})
        from {source} where {where} and s.owner is not null and s.deleted_at is null"""  # noqa: S608
    return by_state, held, _replaced(sql.MATCHING, {"{source}": source, "{where}": where}), values


# Characters that separate or quote label values in `search`, and could match there by accident; wildcards of LIKE.
_SHAPES = re.compile(r'[\x1f",\[\]\\]')
_WILD = re.compile(r"[%_]")


_PREFIXED = sql.PREFIXED.partition("{range}")[0]


def _by_label(query: Query) -> bool:
    """True when the label index leads: for sessions not deleted, if no other condition selects fewer rows."""
    chosen = query.user_id is None and query.owner is None and query.orphan_for is None and query.deleted_for is None
    return bool(query.labels) and not query.entry and chosen and order(query)[0] == "created_at"


def _source(query: Query, *, by_prefix: bool) -> str:
    if query.entry:
        return sql.ENTRY_LABELLED
    if query.request is not None and query.deleted_for is None:
        return sql.REQUESTING
    if by_prefix and query.owner is None and query.orphan_for is None:
        return sql.PREFIXED.replace("{range}", _within(query.prefix or "", 3)[0])
    return sql.LABELLED if _by_label(query) else sql.OWNED


def _order(query: Query, source: str) -> tuple[str, str]:
    """The columns that order the pages of a query, as the leading index names them."""
    column = order(query)[0]
    if column == "created_at" and source in {sql.LABELLED, sql.ENTRY_LABELLED}:
        return "l.made", "l.session"
    return f"{'c' if column == 'changed_at' else 's'}.{column}", "s.key"


def _where(query: Query, source: str, ended: str = sql.ENDED) -> tuple[str, list[Any]]:
    """The condition and its values; $1 is the clock. `ended`: expression for when a session ended."""
    by_prefix = source.startswith(_PREFIXED)
    parts, values = list[str](["s.namespace = $2"]), list[Any]([query.namespace])
    if source == sql.REQUESTING:  # from $3 on: what the source refers to, too
        values.append(query.request)
    elif by_prefix:
        values += _within(query.prefix or "", 3)[1]

    def add(part: str, value: Any) -> None:
        values.append(value)
        parts.append(part.replace("?", f"${len(values) + 1}"))

    if query.deleted_for is None:
        parts.append("s.deleted_at is null")
    else:
        add(f"s.deleted_at is not null and s.deleted_at <= (select {sql.NOW}) - ?::int8", query.deleted_for)
    if query.agent_type is not None:
        add("s.agent_type = ?", query.agent_type)
    if query.user_id is not None:
        add("s.user_id = ?", query.user_id)
    if query.state is not None:
        add("s.state = ?", query.state)
    labels, created_at = dict(query.labels), "s.created_at"
    if source == sql.LABELLED:
        label, created_at = next(iter(labels)), "l.made"
        add("l.space = $2 and l.label = ?", label)
        add("l.value = ?", labels.pop(label))
    if labels:
        add("s.labels @> ?::text::jsonb", msgspec.json.encode(labels).decode())
    if query.entry:
        parts.append(_entry_labelled(query.entry, values))
    if query.created_after is not None:
        add(f"{created_at} > ?", query.created_after)
    if query.created_before is not None:
        add(f"{created_at} < ?", query.created_before)
    if query.request is not None and source != sql.REQUESTING:
        add("substring(s.request from 1 for 16) = ? and s.request is not null", query.request)
    if query.prefix is not None and not by_prefix:
        # Too many to be found by it: in page order they come soon. CASE: PostgreSQL expects it of every second session.
        add("case when left(s.id, length(?)) = ? then true end", query.prefix)
    if query.text is not None:
        if _SHAPES.search(query.text) or not query.text.strip():
            texts = [_contains(f"s.{column}") for column in ("id", "agent_type", "user_id")]
            inside = f"exists (select 1 from jsonb_each_text({sql.LABELS_OF}) l where {_contains('l.value')})"  # noqa: S608
            add(f"({' or '.join([*texts, inside])})", query.text)
        else:
            pattern = _WILD.sub(r"\\\g<0>", query.text)
            # (select …): lowered once, not for each session.
            add('s.search like (select lower(?::text collate "C"))', f"%{pattern}%")
    if query.stale_for is not None:
        # (select …) of the clock: evaluated once, so that it bounds the index. Of the worker: the planner costs a join
        # condition at nothing, and evaluated it for every session before cutting the page.
        alive = """greatest(s.heartbeat, (select w.beaten from {s}.workers w where w.worker = s.owner), (
            select c.alive from {s}.checkpoints c where c.key = s.key order by c.seq desc limit 1))"""
        add(f"s.heartbeat < (select {sql.NOW}) - ?::int8 and {alive} < (select {sql.NOW}) - ?::int8", query.stale_for)
    if query.ended_for is not None:
        if query.state is None:
            parts.append("s.state in ('completed', 'failed')")
        elif query.state not in {"completed", "failed"}:
            parts.append("false")
        # (select …): evaluated once, so that it bounds the index.
        cutoff = f"(select {sql.NOW}) - ?::int8"
        add(f"s.heartbeat <= {cutoff} and {ended} <= {cutoff}", query.ended_for)
    if query.orphan_for is not None:
        add(f"s.owner is not null and (w.dead or w.expires <= {sql.UP} - ?::int8)", query.orphan_for)
    if query.owner is not None:
        add("s.owner = ?", query.owner)
    if query.unowned:
        parts.append("s.owner is null")
    return " and ".join(parts), values


def _entry_labelled(labels: dict[str, str], values: list[Any]) -> str:
    """The newest of the entries that have all these labels, one of each session."""
    pairs: list[str] = []
    for pair in labels.items():
        pairs.append(f"{{0}}.space = $2 and {{0}}.label = ${len(values) + 2} and {{0}}.value = ${len(values) + 3}")
        values += pair
    also = [
        f"exists (select from {{{{s}}}}.entry_labels o where {pair.format('o')} and o.made = {{0}}.made"
        " and o.session = {0}.session and o.seq = {0}.seq)"
        for pair in pairs[1:]
    ]
    newest = f"""(select m.seq from {{s}}.entry_labels m
        where {" and ".join([pairs[0], *also]).format("m").replace("{{s}}", "{s}")}
          and m.made = l.made and m.session = l.session
        order by m.seq desc limit 1)"""  # noqa: S608
    return f"{pairs[0].format('l')} and l.seq = {newest}"


def _contains(column: str) -> str:
    """A substring match that ignores the case of ASCII letters only, in any locale of the database."""
    return f'position(lower(? collate "C") in lower({column} collate "C")) > 0'
