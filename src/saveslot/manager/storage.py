"""Storage: what the bytes are for, by sort, agent type and day. Totals are the store's; the rest is of a sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from saveslot import codec
from saveslot.errors import Corrupt
from saveslot.manager.activity import LookedAt, Sampled, sampled
from saveslot.session.engine import Space
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import Data
from saveslot.values.kinds import DATA_KINDS, STEP_KINDS
from saveslot.values.log import Entry, Query, moment

DAY = 86_400 * 1_000_000
# Days of what was written.
DAYS = 30
# Milliseconds of the 99th percentile over which a tier counts as slow, and calls from which on it does: of fewer, that
# percentile is the slowest call.
SLOW, ENOUGH = 50.0, 100
# What a part of the store's metrics is.
ROLES = {"memory": "this process's cache", "hot": "hot tier: copies", "database": "store: the truth"}


class Sorts(Answer, frozen=True):
    """Bytes in the sample: of keyframes, of patches, of steps and their results, and of all other entries."""

    keyframes: int
    patches: int
    steps: int
    rows: int


class AgentType(Answer, frozen=True):
    agent_type: str
    sessions: int  # exact
    stored_bytes: int  # in the sample, as all figures below
    per_session_p50: int
    per_session_p99: int
    ratio: float | None  # whole copies of all its checkpoints, to what they take


class DayOf(Answer, frozen=True):
    start: Time
    bytes: int


class Tier(Answer, frozen=True):
    """A part of the store, as this process sees it since it was opened."""

    name: str
    role: str
    status: Literal["healthy", "slow", "failing"]
    calls: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    hit_rate: float | None
    details: dict[str, Any]


class Storage(Answer, frozen=True):
    stored_bytes: int  # of the whole store, all namespaces
    entries: int  # of the whole store
    sessions: int  # of this namespace
    checkpoint_bytes: int  # of the sample's checkpoints
    whole_bytes: int  # of the sample's checkpoints, if each were a whole copy of its state
    ratio: float | None  # whole_bytes to checkpoint_bytes
    bytes_per_checkpoint: float | None
    state_bytes: float | None  # of a checkpoint, on average
    by_sort: Sorts
    by_agent_type: list[AgentType]
    written_per_day: list[DayOf]  # of what is still stored, oldest first
    tiers: list[Tier]
    looked_at: LookedAt
    as_of: Time | None


async def storage(sessions: Space, metrics: Mapping[str, Any]) -> Storage:
    """Return where the bytes are. `metrics` are those of the manager."""
    counts = await sessions.engine.vault.count(Query(namespace=sessions.namespace))
    sample = await sampled(sessions)
    entries = [entry for item in sample.sessions for entry in item.log]
    data = [entry for entry in entries if entry.kind in DATA_KINDS]
    stored, whole = _sizes(data)
    return Storage(
        counts.stored_bytes,
        counts.entries,
        sum(counts.states.values()),
        stored,
        whole,
        whole / stored if stored else None,
        stored / len(data) if data else None,
        whole / len(data) if data else None,
        _sorts(entries),
        _agent_types(sample.sessions, counts.agent_types),
        _days(entries, sample.now),
        _tiers(metrics),
        sample.looked_at,
        moment(sample.now) if sample.now else None,
    )


def _sizes(entries: Sequence[Entry]) -> tuple[int, int]:
    """Return the bytes of these entries, and of the whole states as of each."""
    return sum(entry.size for entry in entries), sum(map(_weight, entries))


def _weight(entry: Entry) -> int:
    try:
        return codec.Recipe.unpack(entry.recipe, entry.seq).size
    except Corrupt:
        return 0


def _sorts(entries: Sequence[Entry]) -> Sorts:
    sums = Counter[str]()
    for entry in entries:
        if entry.kind in STEP_KINDS:
            sums["steps"] += entry.size
        elif entry.kind in DATA_KINDS and entry.recipe:
            sums["patches" if entry.base else "keyframes"] += entry.size
        else:
            sums["rows"] += entry.size
    return Sorts(sums["keyframes"], sums["patches"], sums["steps"], sums["rows"])


def _agent_types(sample: Sequence[Sampled], counts: Mapping[str, int]) -> list[AgentType]:
    logs: defaultdict[str, list[list[Entry]]] = defaultdict(list)
    for item in sample:
        logs[item.row.agent_type].append(item.log)
    lines: list[AgentType] = []
    for name, sessions in counts.items():
        sizes = sorted(sum(entry.size for entry in log) for log in logs[name])
        stored, whole = _sizes([entry for log in logs[name] for entry in log if entry.kind in DATA_KINDS])
        middle, most = (sizes[len(sizes) * share // 100] if sizes else 0 for share in (50, 99))
        lines.append(AgentType(name, sessions, sum(sizes), middle, most, whole / stored if stored else None))
    return sorted(lines, key=lambda line: -line.stored_bytes)


def _days(entries: Sequence[Entry], now: int) -> list[DayOf]:
    if not now:
        return []
    last = now // DAY
    written = Counter[int]()
    for entry in entries:
        written[entry.at // DAY] += entry.size
    return [DayOf(moment(day * DAY), written[day]) for day in range(last - DAYS + 1, last + 1)]


def _tiers(metrics: Mapping[str, Any]) -> list[Tier]:
    return [_tier(name, cast("Data", part)) for name, part in metrics.items() if name in ROLES]


def _tier(name: str, part: Data) -> Tier:
    verbs = [cast("Data", verb) for verb in part.values() if isinstance(verb, dict) and "ms" in verb]
    calls, errors = sum(verb["calls"] for verb in verbs), sum(verb["errors"] for verb in verbs)
    usual: Data = max(verbs, key=lambda verb: verb["calls"]) if calls else {"calls": 0, "ms": {}}
    p50, p99 = usual["ms"].get("p50"), usual["ms"].get("p99")
    lookups = int(part.get("hits", 0)) + int(part.get("misses", 0))
    slow = p99 is not None and p99 > SLOW and usual["calls"] >= ENOUGH
    status = "failing" if errors * 10 > calls else "slow" if slow else "healthy"
    plain = {key: value for key, value in part.items() if not isinstance(value, dict)}
    hit_rate = int(part.get("hits", 0)) / lookups if lookups else None
    return Tier(name, ROLES[name], status, calls, errors, p50, p99, hit_rate, plain)
