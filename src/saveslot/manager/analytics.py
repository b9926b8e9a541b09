"""Statistics over many sessions: checkpoint names, times and sizes, from a sample of the newest sessions."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from saveslot.errors import Corrupt, InvalidInput
from saveslot.manager.reading import counted, query
from saveslot.session.engine import Space
from saveslot.session.timeline import note_of
from saveslot.session.vault import Vault
from saveslot.values.checks import Data, Span, as_count, as_span
from saveslot.values.kinds import SHOWN_KINDS, Kind
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Entry, Query, Row, Wanted, moment

CHECKPOINTS = frozenset({Kind.CHECKPOINT, Kind.THINNED})
ENDS: dict[int, str] = {Kind.COMPLETED: "completed", Kind.FAILED: "failed"}
# Default bucket widths in seconds; the shortest that needs at most 60 buckets: a line on a terminal, a plot on a page.
BUCKETS, PIECES = (60, 300, 3600, 6 * 3600, 86_400, 7 * 86_400), 60
# Maximum buckets: more is a caller's mistake, and megabytes of zeros.
MOST_PIECES = 10_000
SECOND = 1_000_000
# Weekday of the first day of 1970, Monday being 0.
THURSDAY = 3
# Names in a funnel; buckets of a histogram per doubling.
STAGES, FINE = 50, 3
# Maximum entries in a sample, per session of its maximum.
PER_SESSION = 10
# Failed sessions whose reasons are read.
FAILURES = 1_000
# Logs read concurrently, and entries of each in that read; longer logs are then read on one by one. Fast on SQLite.
TOGETHER, BEGINNING = 100, 64
LAST_FAILURE = Wanted(kinds=frozenset({Kind.FAILED}), newest=1, frames=False)


# Newest sessions that `analytics` reads by default: as many as a person will wait for.
SAMPLE = 2_500


async def analytics(
    sessions: Space,
    *,
    agent_type: str | None = None,
    user_id: str | None = None,
    state: SessionState | str | None = None,
    labels: dict[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    text: str | None = None,
    between: tuple[str, str] | None = None,
    bucket: Span | None = None,
    sample: int = SAMPLE,
) -> Data:
    """Return statistics of these sessions. Counts by state and agent type cover all; entries are a sample.

    The sample is the newest `sample` sessions, up to ten entries each on average; `looked_at` says how many sessions
    and entries, and since when. `between` two names: seconds from each entry of the first name to the next of the
    second. `bucket`: the interval that `rate` counts in. `failures` covers the newest 1,000 failed sessions.
    """
    sample = as_count(sample, "sample", 1)
    if between is not None and (isinstance(between, str) or len(between) != 2):  # noqa: PLR2004
        raise InvalidInput("between", f"must be two names, not {between!r}")
    wanted = query(sessions, agent_type, user_id, state, labels, created_after, created_before, text, None, False)  # noqa: FBT003
    counts = await sessions.engine.vault.count(wanted)
    newest = await sampled(sessions.engine.vault, wanted, sample)
    reasons = Counter(
        "(sealed)" if sessions.engine.vault.is_locked(key) else _reason(entry, key) for key, entry in newest.failures
    )
    return {
        **counted(counts),
        **analysed(newest, between, bucket),
        "failures": {
            "read": len(newest.failures),
            "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        },
    }


def _reason(entry: Entry, key: bytes) -> str:
    """Return the error that the session was failed with."""
    try:
        note = note_of(entry, f"{key.hex()}:{entry.seq}")
    except Corrupt:
        return "(damaged)"
    return str(note.get("error", ""))


class Sampled(msgspec.Struct):
    state: str
    created_at: int
    log: list[Entry]


class Sample(msgspec.Struct):
    """The newest sessions with their logs, and the last failures by session key, newest first."""

    sessions: list[Sampled] = []
    failures: list[tuple[bytes, Entry]] = []


async def sampled(store: Vault, query: Query, count: int) -> Sample:
    """Read the newest `count` sessions, until the sample holds `count * PER_SESSION` entries.

    Entries are headers as stored, so sizes are those in the store; failures are unsealed.
    """
    rows = await store.find(query, None, count)
    logs = await _logs(store, rows, count * PER_SESSION)
    failed = [row.key for row in rows if row.state == "failed"][:FAILURES]
    unread = [key for key in failed if key not in logs]
    ends = {key: [entry for entry in log if entry.kind is Kind.FAILED] for key, log in logs.items()}
    for start in range(0, len(unread), TOGETHER):
        part = unread[start : start + TOGETHER]
        failures_of = await asyncio.gather(*(store.stored.entries(key, LAST_FAILURE) for key in part))
        ends.update(zip(part, failures_of, strict=True))
    failures = [(key, ends[key][-1]) for key in failed if ends[key]]
    await store.unseal(failures)
    return Sample([Sampled(row.state, row.created_at, logs[row.key]) for row in rows if row.key in logs], failures)


async def _logs(store: Vault, rows: list[Row], limit: int) -> dict[bytes, list[Entry]]:
    """Read logs until there are `limit` entries; the log that reaches the limit is left out, unless it is the first."""
    logs: dict[bytes, list[Entry]] = {}
    left = limit
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        beginning = Wanted([(1, BEGINNING)], frames=False)
        beginnings = await asyncio.gather(*(store.stored.entries(row.key, beginning) for row in part))
        for row, log in zip(part, beginnings, strict=True):
            if len(log) == BEGINNING:
                log.extend(await store.stored.entries(row.key, Wanted([(BEGINNING + 1, left)], frames=False)))
            del log[left:]
            left -= len(log)
            if log and (left > 0 or not logs):
                logs[row.key] = log
            if left <= 0:
                return logs
    return logs


def analysed(sample: Sample, between: tuple[str, str] | None, bucket: Span | None) -> Data:
    """Analyse all checkpoints that these sessions ever saved, including thinned ones, and how the sessions ended."""
    sessions = sample.sessions
    saved = [(entry.name, entry.at) for session in sessions for entry in session.log if entry.kind in CHECKPOINTS]
    names = Counter(name for name, _ in saved)
    weights = [sum(entry.size for entry in session.log) for session in sessions]
    spans = [span for session in sessions for span in _between(session.log, *between)] if between is not None else []
    durations: dict[str, list[int]] = {state: [] for state in ENDS.values()}
    for session in sessions:
        # The last end counts, if the session was reopened.
        ended = [entry.at for entry in session.log if ENDS.get(entry.kind, "") == session.state]
        if ended:
            durations[session.state].append(ended[-1] - session.created_at)
    since = min((session.created_at for session in sessions), default=None)
    return {
        "looked_at": {
            "sessions": len(sessions),
            "entries": sum(len(session.log) for session in sessions),
            "since": None if since is None else moment(since).isoformat(),
        },
        "checkpoints": len(saved),
        "by_name": dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))),
        "bytes": {"total": sum(weights), "per_session": _spread(weights)},
        "durations": {state: _spread(times, SECOND) for state, times in durations.items()},
        "between": None if between is None else {"from": between[0], "to": between[1], **_spread(spans, SECOND)},
        "rate": _rate([at for _, at in saved], bucket),
        "heatmap": _heatmap(at for _, at in saved),
        "funnel": _funnel(sessions),
        "histograms": {
            "bytes_per_session": _histogram(weights),
            "between": _histogram(spans, SECOND),
            **{f"until_{state}": _histogram(times, SECOND) for state, times in durations.items()},
        },
    }


def _heatmap(times: Iterable[int]) -> list[list[int]]:
    """Count checkpoints by weekday, Monday first, and hour, UTC."""
    hours = [[0] * 24 for _ in range(7)]
    for at in times:
        hour = at // (3600 * SECOND)
        hours[(hour // 24 + THURSDAY) % 7][hour % 24] += 1
    return hours


def _funnel(sessions: Sequence[Sampled]) -> list[Data]:
    """Count the sessions that reached each name, and those that failed at the name before; the most reached first.

    Names that as many sessions reached are in the order in which these reached them.
    """
    reached: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    order: Counter[str] = Counter()
    for session in sessions:
        names = list(dict.fromkeys(entry.name for entry in session.log if entry.kind in CHECKPOINTS))
        reached.update(names)
        order.update({name: place for place, name in enumerate(names)})
        if session.state == "failed" and names:
            lost[names[-1]] += 1
    ordered = sorted(reached, key=lambda name: (-reached[name], order[name] / reached[name]))[:STAGES]
    return [{"name": name, "reached": reached[name], "failed_after": lost[name]} for name in ordered]


def _histogram(values: list[int], unit: int = 1) -> list[Data]:
    """Count values in buckets of a third of an octave, from the smallest to the largest; 0 and less in the first."""
    if not values:
        return []
    counts = Counter(math.floor(math.log2(max(value, 1)) * FINE) for value in values)
    first, last = min(counts), max(counts)
    edge = [2 ** (n / FINE) / unit for n in range(first, last + 2)]
    return [{"from": edge[n], "to": edge[n + 1], "count": counts[first + n]} for n in range(last - first + 1)]


def _between(log: list[Entry], first: str, then: str) -> Iterator[int]:
    """Yield the time from each `first` to the next `then`; of several `first` in a row, the last one counts."""
    start: int | None = None
    for entry in log:
        if entry.kind in SHOWN_KINDS:
            if entry.name == then and start is not None:
                yield entry.at - start
                start = None
            if entry.name == first:
                start = entry.at


def _spread(values: list[int], unit: int = 1) -> Data:
    """Return count, max and nearest-rank p50, p90 and p99."""
    ordered = sorted(values)
    spread: Data = {"count": len(ordered), "p50": None, "p90": None, "p99": None, "max": None}
    for percent in (50, 90, 99, 100) if ordered else ():
        value = ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
        spread["max" if percent == 100 else f"p{percent}"] = value if unit == 1 else value / unit  # noqa: PLR2004
    return spread


def _rate(times: list[int], bucket: Span | None) -> Data:
    """Count checkpoints per bucket, from the first checkpoint to the last."""
    first, last = min(times, default=0), max(times, default=0)
    width = _width(last - first) if bucket is None else int(as_span(bucket, "bucket"))
    if width < 1:
        raise InvalidInput("bucket", "must be a second or more")
    step = width * SECOND
    start, count = first // step, last // step - first // step + 1 if times else 0
    if count > MOST_PIECES:
        raise InvalidInput("bucket", f"needs {count:,} buckets, but the maximum is {MOST_PIECES:,}; pass a longer one")
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
