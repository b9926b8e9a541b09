"""`/healthz`: this process answers. `/readyz`: so does its store. `/metrics`: what Prometheus collects.

Each process counts for itself; behind `--workers` a scrape reaches any one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, cast

from starlette.responses import Response

from saveslot import __version__
from saveslot.errors import SaveslotError, Unavailable
from saveslot.server.call import Call
from saveslot.server.routes import Route
from saveslot.server.seen import BOUNDS
from saveslot.values.log import ID

# Seconds that the store gets to answer; a request that it does not answer takes 10.
PATIENCE = 5.0
VERBS = ("appends", "heads", "entries", "find", "count", "heartbeats", "renewals", "empty", "swap", "purge")
TEXT = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, dict[str, str], float]  # suffix of the name, labels, value


async def healthz(call: Call) -> Response:
    return call.json({"status": "ok"})


async def readyz(call: Call) -> Response:
    """Reading a session that cannot exist takes the way of every request: connection, tables, format."""
    if call.room.draining.is_set():
        raise Unavailable("the server is ending; use another one")
    try:
        async with asyncio.timeout(PATIENCE):
            await call.store.heads([bytes(ID)])
    except TimeoutError:
        raise Unavailable(f"the store did not answer within {PATIENCE:g} s; retry") from None
    except SaveslotError as exc:  # whatever it is: requests would meet it, too
        raise Unavailable(f"the store cannot be used now ({exc.code}); the server's log, and doctor, say why") from exc
    return call.json({"status": "ready"})


async def metrics(call: Call) -> Response:
    lines: list[str] = []
    for name, kind, what, samples in await _families(call):
        lines += [f"# HELP saveslot_{name} {what}", f"# TYPE saveslot_{name} {kind}"]
        lines += [f"saveslot_{name}{suffix}{_labels(labels)} {value!r}" for suffix, labels, value in samples]
    return Response("\n".join(lines) + "\n", media_type=TEXT)


async def _families(call: Call) -> list[tuple[str, str, str, list[Sample]]]:
    counts = await call.manager.metrics()
    database: dict[str, Any] = counts.get("database", {})
    appends: dict[str, Any] = database.get("appends", {})
    verbs: dict[str, Any] = {name: database[name] for name in VERBS if name in database}
    room, memory, worker = call.room, counts["memory"], counts["worker"]
    return [
        ("info", "gauge", "Version of the server.", [("", {"version": __version__}, 1)]),
        ("http_requests_total", "counter", "Answers by route and status.", list(_statuses(call))),
        ("http_request_seconds", "histogram", "Time until an answer was sent.", list(_times(call))),
        ("http_open", "gauge", "Requests and streams under way.", [
            ("", {"kind": "stream" if stream else "request"}, many) for stream, many in room.open.items()
        ]),
        ("http_body_bytes", "gauge", "Bytes of request bodies in memory.", [("", {}, room.held)]),
        ("http_refused_total", "counter", "Requests refused for want of room.", [("", {}, room.refused)]),
        ("store_calls_total", "counter", "Calls of the store.", [
            ("", {"verb": verb}, value["calls"]) for verb, value in verbs.items()
        ]),
        ("store_errors_total", "counter", "Calls of the store that failed.", [
            ("", {"verb": verb}, value["errors"]) for verb, value in verbs.items()
        ]),
        ("store_seconds", "gauge", "Percentiles of the store's time since the start.", [
            ("", {"verb": verb, "quantile": name}, value["ms"][name] / 1000)
            for verb, value in verbs.items() for name in ("p50", "p90", "p99")
        ]),
        ("store_outcomes_total", "counter", "Groups of entries by the store's verdict.", [
            ("", {"outcome": outcome}, many) for outcome, many in appends.get("outcomes", {}).items()
        ]),
        ("store_entries_total", "counter", "Entries appended.", [("", {}, appends.get("entries", 0))]),
        ("store_written_bytes_total", "counter", "Bytes of entries appended.", [("", {}, appends.get("bytes", 0))]),
        ("store_read_bytes_total", "counter", "Bytes of frames read.", [("", {}, database.get("bytes_read", 0))]),
        ("store_batches_total", "counter", "Transactions that appended.", [
            ("", {}, database.get("batches", {}).get("count", 0))
        ]),
        ("store_retries_total", "counter", "Statements repeated after a lost connection.", [
            ("", {}, database.get("retries", 0))
        ]),
        ("hot", "gauge", "Counts of the hot tier.", list(_flat(counts.get("hot", {})))),
        ("memory", "gauge", "Sessions in this process's memory.", list(_flat(memory))),
        ("held_sessions", "gauge", "Sessions that this server holds.", [("", {}, (worker or {}).get("held", 0))]),
    ]  # fmt: skip


def _statuses(call: Call) -> Iterator[Sample]:
    for (method, route), timings in call.seen.routes.items():
        for status, many in timings.statuses.items():
            yield "", {"method": method, "route": route, "status": str(status)}, many


def _times(call: Call) -> Iterator[Sample]:
    for (method, route), timings in call.seen.routes.items():
        labels = {"method": method, "route": route}
        for bound, many in zip([*map(str, BOUNDS), "+Inf"], accumulate(timings.buckets), strict=True):
            yield "_bucket", {**labels, "le": bound}, many
        yield "_sum", labels, round(timings.seconds, 6)
        yield "_count", labels, sum(timings.buckets)


def _flat(counts: dict[str, Any], prefix: str = "") -> Iterator[Sample]:
    """The numbers of nested counts, each under its path."""
    for name, value in counts.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{path}.")
        elif isinstance(value, int | float):
            yield "", {"name": path}, float(value)


def _labels(labels: dict[str, str]) -> str:
    quoted = [f'{name}="{value}"' for name, value in labels.items()]  # words of ours: none needs escaping
    return f"{{{','.join(quoted)}}}" if quoted else ""


ROUTES = [
    Route(
        "GET", "/healthz", "open", healthz, "The process answers.", gives=dict[str, str], namespaced=False, always=True
    ),
    Route("GET", "/readyz", "open", readyz, "The store answers.", gives=dict[str, str], namespaced=False, always=True),
    Route("GET", "/metrics", "read", metrics, "Counts and times, for Prometheus.", namespaced=False, always=True),
]
