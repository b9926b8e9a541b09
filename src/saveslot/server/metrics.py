"""`/metrics`: what Prometheus collects.

A process counts for itself. With `--workers`, the one that a scrape reaches asks the others, and every sample says in
the label `worker` whose it is. What it says about sessions is of the store: one process reads it for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
from starlette.responses import Response

from saveslot import __version__
from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.server.call import Call
from saveslot.server.feeds import listeners
from saveslot.server.load import Room
from saveslot.server.routes import Route
from saveslot.server.seen import BOUNDS, Seen
from saveslot.stores.wire.metrics import Spread
from saveslot.values.log import Query

TEXT = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of the buckets of a store's times, in nanoseconds: 66 us to 8.6 s; and of the groups in a batch.
TIMES, GROUPS = [2**power for power in range(16, 34)], [2**power for power in range(9)]
# Larger bounds are powers of two, up to which a spread counts exactly if 2 less is asked of it.
EXACT = 1 << 10
# Namespaces whose sessions are counted, the first ones by name; seconds that a count may be old, and may take.
NAMESPACES, OLD, PATIENCE = 50, 15.0, 2.0
# Counts of the hot tier that are not gauges.
HOT = ("hits", "misses", "garbage", "fills", "dropped", "buried", "left", "errors", "timeouts", "hints")


class Family(msgspec.Struct):
    """A metric with its samples, each with the suffix of its name, its labels and its value."""

    name: str
    kind: str
    what: str
    samples: list[tuple[str, dict[str, str], float]]


async def metrics(call: Call) -> Response:
    families = await _served(call) if call.caller.namespaces is None else []  # the rest tells what all do
    families += await _sessions(call)
    return Response("".join(map(_text, families)), media_type=TEXT)


async def _served(call: Call) -> list[Family]:
    """What the processes of this server counted, of all namespaces."""
    families = await own(call.manager, call.room, call.seen)
    if (siblings := call.seen.siblings) is not None:
        known = {family.name: family for family in families}
        _mark(families, siblings.number)
        for number, answer in sorted((await siblings.others()).items()):
            theirs = msgspec.json.decode(answer, type=list[Family])
            _mark(theirs, number)
            for family in theirs:
                known[family.name].samples += family.samples
    return families


async def own(manager: SessionManager, room: Room, seen: Seen) -> list[Family]:
    """What this process counted. Asks nothing of the store."""
    counts = await manager.metrics()
    store, memory = manager.engine.metered, counts["memory"]
    database: dict[str, Any] = counts.get("database", {})
    appends: dict[str, Any] = database.get("appends", {})
    hot: dict[str, Any] = counts.get("hot", {})
    pool: dict[str, int] = database.get("pool", {})
    calls = store.calls()
    return [
        _family("info", "gauge", "Version of the server.", [({"version": __version__}, 1)]),
        Family("http_requests_total", "counter", "Answers by route and status.", list(_statuses(seen))),
        Family("http_request_seconds", "histogram", "Time until an answer was sent.", list(_times(seen))),
        _family("http_open", "gauge", "Requests and streams under way.", [
            ({"kind": "stream" if stream else "request"}, many) for stream, many in room.open.items()
        ]),
        _family("http_body_bytes", "gauge", "Bytes of requests in memory, and of answers.", [({}, room.held)]),
        _family("http_refused_total", "counter", "Requests refused for want of room.", [({}, room.refused)]),
        _family("http_received_bytes_total", "counter", "Bytes of request bodies.", [({}, seen.received)]),
        _family("http_sent_bytes_total", "counter", "Bytes of answers, but for streams.", [({}, seen.sent)]),
        _family("event_listeners", "gauge", "Streams of server-sent events.", [({}, listeners(manager))]),
        Family("store_seconds", "histogram", "Time of calls of the store.", [
            sample for (name, verb), one in calls.items()
            for sample in _histogram(one.took, TIMES, 1e-9, {"store": name, "verb": verb})
        ]),
        _family("store_errors_total", "counter", "Calls of the store that failed.", [
            ({"store": name, "verb": verb}, one.errors) for (name, verb), one in calls.items()
        ]),
        _family("store_outcomes_total", "counter", "Groups of entries by the store's verdict.", [
            ({"outcome": outcome}, many) for outcome, many in appends.get("outcomes", {}).items()
        ]),
        _family("store_entries_total", "counter", "Entries appended; `claimed` ones are takeovers.", [
            ({"kind": kind}, many) for kind, many in appends.get("kinds", {}).items()
        ]),
        _family("store_written_bytes_total", "counter", "Bytes of entries.", [({}, appends.get("bytes", 0))]),
        _family("store_read_bytes_total", "counter", "Bytes of frames.", [({}, database.get("bytes_read", 0))]),
        Family("store_batch_groups", "histogram", "Groups in a transaction that appended.", [
            *([] if store.counters is None else _histogram(store.counters.batches, GROUPS, 1, {}))
        ]),
        _family("store_retries_total", "counter", "Statements or requests that were repeated.", [
            ({}, database.get("retries", 0))
        ]),
        _family("store_pool_connections", "gauge", "Connections to the database.", [
            ({"state": state}, pool[state]) for state in ("used", "idle") if pool
        ]),
        _family("store_pool_limit", "gauge", "Connections that the pool opens at most.", [
            ({}, pool["most"])
        ] if pool else []),
        _family("store_pool_waits_total", "counter", "Calls that had to wait for a connection.", [
            ({}, pool["waits"])
        ] if pool else []),
        _family("hot_total", "counter", "What the hot tier did.", [
            ({"what": name}, hot[name]) for name in HOT if hot
        ]),
        _family("hot_up", "gauge", "The hot tier is in use: its circuit breaker is closed.", [
            ({}, int(hot["breaker"] == "closed"))
        ] if hot else []),
        _family("cache_sessions", "gauge", "Sessions in this process's memory.", [({}, memory["sessions"])]),
        _family("cache_bytes", "gauge", "Bytes of their states.", [({}, memory["bytes"])]),
        _family("cache_reads_total", "counter", "Sessions sought in memory for a write, and answers for a list.", [
            ({"what": what, "result": result}, memory[prefix + field])
            for what, prefix in (("session", ""), ("answer", "cached_"))
            for result, field in (("hit", "hits"), ("miss", "misses"))
        ]),
    ]  # fmt: skip


async def _sessions(call: Call) -> list[Family]:
    """Sessions by namespace, of those that the caller's token includes; nothing while the store does not answer."""
    try:
        async with asyncio.timeout(PATIENCE):
            names = await _namespaces(call)
            answers = call.manager.engine.answers.at("cached", OLD)
            known = await asyncio.gather(*(answers.count(Query(namespace=name), totals="none") for name in names))
    except (TimeoutError, SaveslotError):  # `/readyz` says so
        return []
    counts = dict(zip(names, known, strict=True))
    return [
        _family("sessions", "gauge", "Sessions by state.", [
            ({"namespace": name, "state": state}, many)
            for name, count in counts.items() for state, many in sorted(count.states.items())
        ]),
        _family("sessions_held", "gauge", "Sessions under a lease.", [
            ({"namespace": name}, count.held) for name, count in counts.items()
        ]),
        _family("sessions_orphaned", "gauge", "Sessions whose workers died, or left by an error.", [
            ({"namespace": name}, count.orphaned) for name, count in counts.items()
        ]),
    ]  # fmt: skip


async def _namespaces(call: Call) -> list[str]:
    allowed = call.caller.namespaces
    if allowed is not None:
        return sorted(allowed)[:NAMESPACES]
    return await call.manager.engine.answers.answer(
        "namespaces", OLD, lambda: call.manager.namespaces(limit=NAMESPACES)
    )


def _family(name: str, kind: str, what: str, samples: Iterable[tuple[dict[str, str], float]]) -> Family:
    return Family(name, kind, what, [("", labels, value) for labels, value in samples])


def _mark(families: list[Family], number: int) -> None:
    for family in families:
        for _, labels, _ in family.samples:
            labels["worker"] = str(number)


def _statuses(seen: Seen) -> Iterator[tuple[str, dict[str, str], float]]:
    for (method, route), timings in seen.routes.items():
        for status, many in timings.statuses.items():
            yield "", {"method": method, "route": route, "status": str(status)}, many


def _times(seen: Seen) -> Iterator[tuple[str, dict[str, str], float]]:
    for (method, route), timings in seen.routes.items():
        labels = {"method": method, "route": route}
        for bound, many in zip([*map(str, BOUNDS), "+Inf"], accumulate(timings.buckets), strict=True):
            yield "_bucket", {**labels, "le": bound}, many
        yield "_sum", dict(labels), round(timings.seconds, 6)
        yield "_count", dict(labels), sum(timings.buckets)


def _histogram(
    spread: Spread, bounds: list[int], unit: float, labels: dict[str, str]
) -> Iterator[tuple[str, dict[str, str], float]]:
    for bound in bounds:
        most = bound if bound < EXACT else bound - 2  # up to there the spread counts exactly
        yield "_bucket", {**labels, "le": f"{bound * unit:.9g}"}, spread.upto(most)
    yield "_bucket", {**labels, "le": "+Inf"}, spread.count
    yield "_sum", dict(labels), spread.total * unit
    yield "_count", dict(labels), spread.count


def _text(family: Family) -> str:
    name = f"saveslot_{family.name}"
    head = f"# HELP {name} {family.what}\n# TYPE {name} {family.kind}\n"
    return head + "".join(f"{name}{suffix}{_labels(labels)} {value!r}\n" for suffix, labels, value in family.samples)


def _labels(labels: dict[str, str]) -> str:
    quoted = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return f"{{{','.join(quoted)}}}" if quoted else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


ROUTES = [
    Route(
        "GET",
        "/metrics",
        "read",
        metrics,
        "Counts and times, for Prometheus.",
        namespaced=False,
        always=True,
    ),
]
