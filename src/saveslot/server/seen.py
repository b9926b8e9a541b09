"""What the server counts of its requests, and how it logs them: never their content."""

from __future__ import annotations

import json
import logging
import sys
from bisect import bisect_left
from datetime import UTC, datetime
from typing import Any

from saveslot.server.call import Call
from saveslot.server.siblings import Siblings

# Upper bounds, in seconds, of the buckets of a request's time.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
requests = logging.getLogger("saveslot.server.requests")


class Timings:
    """Requests of one route."""

    __slots__ = ("buckets", "seconds", "statuses")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.statuses: dict[int, int] = {}

    def add(self, seconds: float, status: int) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
        self.statuses[status] = self.statuses.get(status, 0) + 1


class Seen:
    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Timings] = {}
        self.received = self.sent = 0  # bytes of bodies, as on the wire; those of streams are not counted
        self.siblings: Siblings | None = None  # with `--workers`

    def add(self, call: Call | None, method: str, status: int, seconds: float, request_id: str) -> None:
        """Count an answer, once it was sent. `call`: None if there is no such route."""
        place = ("", "") if call is None else (call.route.method, call.route.path)
        timings = self.routes.get(place)
        if timings is None:
            timings = self.routes[place] = Timings()
        timings.add(seconds, status)
        if requests.isEnabledFor(logging.INFO):
            fields: dict[str, Any] = {
                "request_id": request_id,
                "method": method,
                "route": place[1],
                "status": status,
                "ms": round(seconds * 1000, 2),
            }
            if call is not None:
                fields |= {"token": call.caller.name, "namespace": call.namespace, "session": call.path.get("id")}
            requests.info("request", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json() -> None:
    """Log to stderr as JSON: each request, and whatever else is logged from level INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
