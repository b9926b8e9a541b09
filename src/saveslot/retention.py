"""Which checkpoints of a history go. Pure: a log's headers in, numbers out; whoever asks does the dropping.

    Retention.parity()                  over 50: the first, the last 20, the newest of each name between; at most 100
    Retention(keep_last=5)              the first, the last 5, the newest of each name between
    Retention(max_age=timedelta(days=90), max_bytes=10_000_000)
    Retention()                         every one is kept

The newest checkpoint never goes, nor one that is pinned, nor an entry that tells what became of the session.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from itertools import accumulate
from typing import Any, Self, cast

from saveslot import codec
from saveslot.errors import InvalidInput
from saveslot.log import MICROSECOND, Entry
from saveslot.model import Data, Kind
from saveslot.timeline import needed

# Where a session keeps a rule of its own, in its metadata: it is exported, imported and forked with it.
OWN = "saveslot.retention"
# The rule for every agent type that a mapping does not name.
OTHERS = "*"


def _check(name: str, value: Any, kind: type, least: Any) -> None:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or value < least):
        raise InvalidInput(f"retention.{name}", f"must be {kind.__name__} of {least} or more, not {value!r}")


@dataclass(frozen=True)
class Retention:
    """A rule for what stays of a history. What is left out of it drops nothing."""

    keep_first: int = 1
    keep_last: int | None = None  # None: all
    keep_latest_per_name: bool = True  # of those between the first and the last
    compress_after: int = 0  # the three above apply to more than so many
    max_checkpoints: int | None = None
    max_age: timedelta | None = None
    max_bytes: int | None = None  # of all frames that are needed to rebuild what is kept
    after_end: timedelta | None = field(default=None, kw_only=True)  # only when the session ended so long ago

    def __post_init__(self) -> None:
        for name, least in (("keep_first", 0), ("keep_last", 0), ("compress_after", 0), ("max_checkpoints", 1)):
            _check(name, getattr(self, name), int, least)
        _check("max_bytes", self.max_bytes, int, 0)
        _check("max_age", self.max_age, timedelta, timedelta(0))
        _check("after_end", self.after_end, timedelta, timedelta(0))
        if self.keep_first is None or self.compress_after is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidInput("retention", "keep_first and compress_after are numbers; 0 is none")

    @classmethod
    def parity(cls, max_checkpoints: int = 100, compress_after: int = 50, after_end: timedelta | None = None) -> Self:
        """Over 50 keep the first, the last 20 and the newest of each name in between; never more than 100."""
        return cls(1, 20, True, compress_after, max_checkpoints, after_end=after_end)  # noqa: FBT003  (in its order)

    @property
    def keeps_all(self) -> bool:
        return self.keep_last is self.max_checkpoints is self.max_age is self.max_bytes is None

    @property
    def least(self) -> int:
        """A history of so many is left as it is, whatever its checkpoints are called, weigh and how old they are."""
        if self.max_age is not None or self.max_bytes is not None:
            return 1
        compress = 1 << 62 if self.keep_last is None else self.compress_after
        return min(compress, 1 << 62 if self.max_checkpoints is None else self.max_checkpoints)

    def drops(
        self,
        entries: Sequence[Entry],
        now: int,
        pinned: Collection[int] = (),
        sizes: Mapping[int, int] | None = None,
    ) -> list[int]:
        """The seqs that go of these: the entries with the agent's data that nothing hides yet, oldest first.

        `sizes` are those of the frames by seq, also of hidden ones; only `max_bytes` looks at them.
        """
        if not entries:
            return []
        newest = len(entries) - 1
        kept = self._chosen([entry.name for entry in entries])
        stays = {place for place, entry in enumerate(entries) if place == newest or entry.seq in pinned}
        if self.max_age is not None:
            cutoff = now - self.max_age // MICROSECOND
            kept = {place for place in kept if entries[place].time(now) >= cutoff}
        kept |= stays
        # Who goes first when there are too many: the oldest of the others, then those kept for being the first.
        order = sorted(kept - stays, key=lambda place: (place < self.keep_first, place))
        if self.max_checkpoints is not None and len(kept) > self.max_checkpoints:
            excess = len(kept) - self.max_checkpoints
            kept -= set(order[:excess])
            order = order[excess:]
        if self.max_bytes is not None:
            kept -= set(order[: _too_heavy(entries, kept, order, self.max_bytes, sizes or {})])
        return [entry.seq for place, entry in enumerate(entries) if place not in kept]

    def _chosen(self, names: Sequence[str]) -> set[int]:
        count = len(names)
        if self.keep_last is None or count <= self.compress_after:
            return set(range(count))
        start = min(self.keep_first, count)
        end = max(start, count - self.keep_last)
        newest = {names[place]: place for place in range(start, end)} if self.keep_latest_per_name else {}
        return {*range(start), *newest.values(), *range(end, count)}

    def to_dict(self) -> Data:
        """What differs from a rule that keeps all; spans of time in seconds."""
        told = {part.name: getattr(self, part.name) for part in fields(self)}
        told = {name: value for name, value in told.items() if value != getattr(_ALL, name)}
        return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in told.items()}

    @classmethod
    def from_dict(cls, told: Any) -> Self:
        if not isinstance(told, dict) or not asdict(_ALL).keys() >= cast("Data", told).keys():
            raise InvalidInput("retention", f"is no rule: {told!r}")
        found = dict(cast("Data", told))
        for name in ("max_age", "after_end"):
            if isinstance(found.get(name), int | float):
                found[name] = timedelta(seconds=found[name])
        return cls(**found)


_ALL = Retention()
# Every checkpoint is kept (they are small) until the session has been over for a month.
DEFAULT = Retention.parity(after_end=timedelta(days=30))

Rules = Retention | Mapping[str, Retention | None] | None


def as_rule(value: Any) -> Retention:
    if not isinstance(value, Retention):
        raise InvalidInput("retention", f"must be a Retention, not {type(value).__name__}")
    return value


def checked(rules: Any) -> Mapping[str, Retention]:
    """A manager's rules by agent type; None, also as one of them, keeps all."""
    if rules is None or isinstance(rules, Retention):
        return {OTHERS: rules or _ALL}
    if not isinstance(rules, Mapping) or any(
        not isinstance(rule, Retention | None) for rule in cast("Mapping[Any, Any]", rules).values()
    ):
        raise InvalidInput("retention", "must be a Retention, None, or a dict of these by agent type")
    named = cast("Mapping[str, Retention | None]", rules)
    return {OTHERS: DEFAULT, **{name: rule or _ALL for name, rule in named.items()}}


def rule_of(rules: Mapping[str, Retention], agent_type: str, metadata: Data) -> Retention:
    """The session's own rule, or its agent type's, or that of all others."""
    if OWN in metadata:
        return Retention.from_dict(metadata[OWN])
    return rules.get(agent_type) or rules[OTHERS]


def pins(entries: Iterable[Entry]) -> set[int]:
    """The seqs that are pinned as of the last of these."""
    pinned: set[int] = set()
    for entry in entries:
        if entry.kind in {Kind.PINNED, Kind.UNPINNED} and entry.note is not None:
            change = pinned.add if entry.kind is Kind.PINNED else pinned.discard
            change(codec.read_note(entry.note)["seq"])
    return pinned


def _too_heavy(
    entries: Sequence[Entry], kept: set[int], order: Sequence[int], most: int, sizes: Mapping[int, int]
) -> int:
    """How many of `order` must go until what the others need fits. Fewer never need more: so halve."""
    seqs = sorted(sizes)
    sums = [0, *accumulate(sizes[seq] for seq in seqs)]

    def weight(gone: int) -> int:
        left = kept.difference(order[:gone])
        ranges = needed(entries[place] for place in left)
        return sum(sums[bisect_right(seqs, last)] - sums[bisect_left(seqs, first)] for first, last in ranges)

    return bisect_left(range(len(order)), x=True, key=lambda gone: weight(gone) <= most)
