"""What the logs of many sessions add up to: names, times, sizes. Pure: entries in, plain JSON-able dicts out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from operator import itemgetter

from saveslot.errors import InvalidInput
from saveslot.log import Sample, Traced, moment
from saveslot.model import SHOWN_KINDS, Data, Kind

CHECKPOINTS = frozenset({Kind.CHECKPOINT, Kind.THINNED})
ENDS: dict[int, str] = {Kind.COMPLETED: "completed", Kind.FAILED: "failed"}
# The shortest of these (seconds) that shows a time in so many pieces or fewer: a line on a terminal, a plot on a page.
BUCKETS, PIECES = (60, 300, 3600, 6 * 3600, 86_400, 7 * 86_400), 60
# More than this is a slip of the caller's, and megabytes of zeros.
MOST_PIECES = 10_000
SECOND = 1_000_000


def analysed(sample: Sample, between: tuple[str, str] | None, bucket: timedelta | None) -> Data:
    """All checkpoints that these sessions ever saved, also those thinned since; and how the sessions ended."""
    logs = _logs(sample)
    saved = [(name, at) for log in logs.values() for _, _, kind, name, at, _ in log if kind in CHECKPOINTS]
    names = Counter(name for name, _ in saved)
    weights = [sum(map(itemgetter(-1), log)) for log in logs.values()]
    spans = [span for log in logs.values() for span in _between(log, *between)] if between is not None else []
    durations: dict[str, list[int]] = {state: [] for state in ENDS.values()}
    for key, log in logs.items():
        state, created_at = sample.sessions[key]
        # The last time, should it have been taken up again.
        ended = [at for _, _, kind, _, at, _ in log if ENDS.get(kind) == state] if state in durations else []
        if ended:
            durations[state].append(ended[-1] - created_at)
    since = min((sample.sessions[key][1] for key in logs), default=None)
    return {
        "looked_at": {
            "sessions": len(logs),
            "entries": sum(map(len, logs.values())),
            "since": None if since is None else moment(since).isoformat(),
        },
        "checkpoints": len(saved),
        "by_name": dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))),
        "bytes": {"total": sum(weights), "per_session": _spread(weights)},
        "durations": {state: _spread(times, SECOND) for state, times in durations.items()},
        "between": None if between is None else {"from": between[0], "to": between[1], **_spread(spans, SECOND)},
        "rate": _rate([at for _, at in saved], bucket),
    }


def _logs(sample: Sample) -> dict[bytes, list[Traced]]:
    """The entries of each session. Where the store stopped reading, the last one's may not be all, and it goes."""
    logs = {key: list(log) for key, log in groupby(sample.entries, itemgetter(0))}
    if len(sample.entries) >= sample.limit and len(logs) > 1:
        logs.popitem()
    return logs


def _between(log: list[Traced], first: str, then: str) -> Iterator[int]:
    """From each `first` to the next `then`; of several in a row the last one counts."""
    start: int | None = None
    for _, _, kind, name, at, _ in log:
        if kind in SHOWN_KINDS:
            if name == then and start is not None:
                yield at - start
                start = None
            if name == first:
                start = at


def _spread(values: list[int], unit: int = 1) -> Data:
    """How many there are, and the smallest that 50, 90 and 99 percent of them do not exceed."""
    ordered = sorted(values)
    told: Data = {"count": len(ordered), "p50": None, "p90": None, "p99": None, "max": None}
    for percent in (50, 90, 99, 100) if ordered else ():
        value = ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
        told["max" if percent == 100 else f"p{percent}"] = value if unit == 1 else value / unit  # noqa: PLR2004
    return told


def _rate(times: list[int], bucket: timedelta | None) -> Data:
    """How many checkpoints came in each piece of time, from the first to the last of them."""
    first, last = min(times, default=0), max(times, default=0)
    width = _width(last - first) if bucket is None else int(bucket.total_seconds())
    if width < 1:
        raise InvalidInput("bucket", "must be a second or more")
    step = width * SECOND
    start, count = first // step, last // step - first // step + 1 if times else 0
    if count > MOST_PIECES:
        raise InvalidInput("bucket", f"cuts the time into {count:,} pieces; at most {MOST_PIECES:,} are shown")
    counts = Counter(at // step - start for at in times)
    return {
        "bucket_seconds": width,
        "buckets": [
            {"start": moment((start + n) * step).isoformat(), "checkpoints": counts.get(n, 0)} for n in range(count)
        ],
    }


def _width(span: int) -> int:
    fitting = [seconds for seconds in BUCKETS if span // (seconds * SECOND) < PIECES - 1]
    return fitting[0] if fitting else BUCKETS[-1] * math.ceil(span / (BUCKETS[-1] * SECOND * (PIECES - 1)))
