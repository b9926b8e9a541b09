"""Facets: how many sessions there would be with one condition more or another one instead.

Each facet counts under all *other* conditions, so that a chosen value does not hide its alternatives. States, agent
types and orphans are counted exactly. Labels, last heartbeats and the histogram come from the 1,000 sessions created
last, and `looked_at` says so: no index counts them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from saveslot.manager.rows import each
from saveslot.session.engine import Space
from saveslot.stores.around.cached import Level, Questions
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Span
from saveslot.values.lifecycle import FAILED, SessionState
from saveslot.values.log import Counts, Head, Query, Row, moment

# Sessions that a sample has.
SAMPLE = 1_000
# Sessions of one read: a page of `find`, and heads.
TOGETHER = 500
# Values of one label that are named, and labels: those of the most sessions.
VALUES, LABELS = 20, 20
# Widths of the histogram's buckets in seconds; the shortest that needs at most 60.
WIDTHS, BUCKETS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400), 60
SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
# Seconds that an answer may be old by default.
FRESH = 2.0


class Bucket(Answer, frozen=True):
    start: Time
    all: int
    failed: int


class Created(Answer, frozen=True):
    """Sessions by the time they were created."""

    bucket_s: int
    buckets: list[Bucket]


class LookedAt(Answer, frozen=True):
    """The sample that labels, last heartbeats and the histogram come from: the sessions created last."""

    sessions: int
    of: int
    since: Time | None


class Facets(Answer, frozen=True):
    sessions: int
    by_state: dict[str, int]
    orphaned: int
    by_agent_type: dict[str, int]
    by_label: dict[str, dict[str, int]]
    by_seen: dict[str, int]  # under_1m, under_1h, older
    created: Created
    looked_at: LookedAt
    as_of: Time | None


async def facets(
    sessions: Space,
    query: Query,
    *,
    states: Sequence[SessionState] = (),
    agent_types: Sequence[str] = (),
    level: Level = "cached",
    max_age: Span = FRESH,
) -> Facets:
    """Count the sessions of a query by what they have in common. `states` and `agent_types`: any of these."""
    store = sessions.engine.answers.at(level, max_age)
    either = each(query, states, agent_types)
    counted = (
        either,
        each(query, (), agent_types),
        each(query, states, ()),
        each(replace(query, orphan_for=None), states, agent_types),
    )
    unlabelled = [replace(one, labels={}) for one in either] if query.labels else []
    counts, rows, labelled = await asyncio.gather(
        _counts(store, counted), _sample(store, either), _sample(store, unlabelled)
    )
    total, by_state, by_agent_type, orphaned = counts
    sample = await _heads(store, rows)
    of = sum(total.states.values())
    now = max((head.row.now for head in sample), default=0)
    since = min((head.row.created_at for head in sample), default=None)
    return Facets(
        of,
        {state.value: by_state.states.get(state.value, 0) for state in SessionState},
        orphaned.orphaned,
        dict(sorted(by_agent_type.agent_types.items(), key=lambda item: (-item[1], item[0]))),
        _by_label(labelled if query.labels else rows),
        _by_seen(sample, now),
        histogram([head.row for head in sample], now),
        LookedAt(len(sample), of, None if since is None else moment(since)),
        moment(now) if now else None,
    )


async def _counts(store: Questions, wanted: Sequence[Sequence[Query]]) -> list[Counts]:
    """Add up, for each list of queries without a session in common, their counts. The same query is sent once."""
    questions = {msgspec.json.encode(query): query for queries in wanted for query in queries}
    answers = dict(zip(questions, await asyncio.gather(*map(store.count, questions.values())), strict=True))
    return [_sum(answers[msgspec.json.encode(query)] for query in queries) for queries in wanted]


def _sum(parts: Iterable[Counts]) -> Counts:
    states: Counter[str] = Counter()
    agent_types: Counter[str] = Counter()
    orphaned = 0
    for part in parts:
        states.update(part.states)
        agent_types.update(part.agent_types)
        orphaned += part.orphaned
    return Counts(dict(states), dict(agent_types), orphaned=orphaned)


async def _sample(store: Questions, queries: Iterable[Query]) -> list[Row]:
    """Return the sessions created last."""
    parts = await asyncio.gather(*(_newest(store, query) for query in queries))
    return sorted((row for part in parts for row in part), key=lambda row: row.created_at, reverse=True)[:SAMPLE]


async def _heads(store: Questions, rows: Sequence[Row]) -> list[Head]:
    keys = [row.key for row in rows]
    pieces = [keys[start : start + TOGETHER] for start in range(0, len(keys), TOGETHER)]
    heads = await asyncio.gather(*map(store.heads, pieces))
    return [head for piece in heads for head in piece if head is not None]


async def _newest(store: Questions, query: Query) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < SAMPLE:
        after = (rows[-1].created_at, rows[-1].key) if rows else None
        page = await store.find(query, after, TOGETHER)
        rows += page
        if len(page) < TOGETHER:
            break
    return rows


def _by_label(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name, value in row.labels.items():
            counts[name][value] += 1
    most = sorted(counts, key=lambda name: (-counts[name].total(), name))[:LABELS]
    return {name: dict(counts[name].most_common(VALUES)) for name in most}


def seen_at(head: Head) -> int:
    """The last heartbeat: the session's own, its newest entry's or its owner's."""
    return max(head.row.heartbeat, head.last.alive, head.row.beaten)


def _by_seen(heads: Iterable[Head], now: int) -> dict[str, int]:
    counts = {"under_1m": 0, "under_1h": 0, "older": 0}
    for head in heads:
        age = now - seen_at(head)
        counts["under_1m" if age < MINUTE else "under_1h" if age < HOUR else "older"] += 1
    return counts


def histogram(rows: Sequence[Row], now: int) -> Created:
    """Count sessions by when they were created, from the first one until now."""
    first = min((row.created_at for row in rows), default=now)
    width = next((seconds for seconds in WIDTHS if (now - first) // (seconds * SECOND) < BUCKETS - 1), WIDTHS[-1])
    step = width * SECOND
    counts: Mapping[int, int] = Counter(row.created_at // step for row in rows)
    failed: Mapping[int, int] = Counter(row.created_at // step for row in rows if row.state == FAILED)
    places = range(max(first // step, now // step - BUCKETS), now // step + 1) if rows else ()
    return Created(width, [Bucket(moment(n * step), counts.get(n, 0), failed.get(n, 0)) for n in places])
