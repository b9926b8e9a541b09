"""Retention rules: which checkpoints of a history to drop. Pure: headers in, seqs out; the caller drops them.

    Retention.parity()                  over 50: the first, the last 20, the newest of each name in between; at most 100
    Retention(keep_last=5)              the first, the last 5, the newest of each name in between
    Retention(max_age=timedelta(days=90), max_bytes=10_000_000)
    Retention()                         keeps all

The newest checkpoint, pinned checkpoints and lifecycle entries are never dropped.
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
from saveslot.session.timeline import needed
from saveslot.values.checks import Data, Span, as_span
from saveslot.values.kinds import Kind
from saveslot.values.log import MAX_SEQ, Entry, as_age

# Metadata key of a session's own rule, which is exported, imported and forked with the session.
OWN = "saveslot.retention"
# Key of the rule for agent types that a mapping does not name.
OTHERS = "*"


def _check(name: str, value: Any, kind: type, least: Any) -> None:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or value < least):
        raise InvalidInput(f"retention.{name}", f"must be {kind.__name__} of {least} or more, not {value!r}")


@dataclass(frozen=True)
class Retention:
    """A retention rule for a history. Limits that are not set drop nothing."""

    keep_first: int = 1
    keep_last: int | None = None  # None: all
    keep_latest_per_name: bool = True  # of the checkpoints between the first and the last ones
    compress_after: int = 0  # the three above apply to histories longer than this
    max_checkpoints: int | None = None
    max_age: Span | None = None
    max_bytes: int | None = None  # of all frames needed to rebuild the kept checkpoints
    after_end: Span | None = field(default=None, kw_only=True)  # apply only this long after the session ended

    def __post_init__(self) -> None:
        for name, least in (("keep_first", 0), ("keep_last", 0), ("compress_after", 0), ("max_checkpoints", 1)):
            _check(name, getattr(self, name), int, least)
        _check("max_bytes", self.max_bytes, int, 0)
        for name in ("max_age", "after_end"):
            if isinstance(value := getattr(self, name), int | float) and not isinstance(value, bool):
                object.__setattr__(self, name, timedelta(seconds=as_span(value, f"retention.{name}")))
            _check(name, getattr(self, name), timedelta, timedelta(0))
        if self.keep_first is None or self.compress_after is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidInput("retention", "keep_first and compress_after must be numbers; pass 0 for none")

    @classmethod
    def parity(cls, max_checkpoints: int = 100, compress_after: int = 50, after_end: Span | None = None) -> Self:
        """Return a rule that, over 50, keeps the first, the last 20 and the newest of each name; at most 100."""
        return cls(1, 20, True, compress_after, max_checkpoints, after_end=after_end)  # noqa: FBT003  (in its order)

    @property
    def keeps_all(self) -> bool:
        return self.keep_last is self.max_checkpoints is self.max_age is self.max_bytes is None

    @property
    def least(self) -> int:
        """Histories of up to this many checkpoints are kept whole, whatever their names, sizes and ages."""
        if self.max_age is not None or self.max_bytes is not None:
            return 1
        compress = MAX_SEQ if self.keep_last is None else self.compress_after
        return min(compress, MAX_SEQ if self.max_checkpoints is None else self.max_checkpoints)

    def drops(
        self,
        entries: Sequence[Entry],
        now: int,
        pinned: Collection[int] = (),
        sizes: Mapping[int, int] | None = None,
        bases: Mapping[int, int] | None = None,
    ) -> list[int]:
        """Return the seqs to drop. `entries` are the visible ones with the agent's data, oldest first.

        `sizes` maps seqs to frame sizes and `bases` to the bases that they stand on, including hidden entries; only
        `max_bytes` uses them.
        """
        if not entries:
            return []
        newest = len(entries) - 1
        kept = self._chosen([entry.name for entry in entries])
        stays = {place for place, entry in enumerate(entries) if place == newest or entry.seq in pinned}
        if self.max_age is not None:
            cutoff = now - as_age(self.max_age, "max_age")
            kept = {place for place in kept if entries[place].time(now) >= cutoff}
        kept |= stays
        # Dropped first if there are too many: the oldest, and those kept by `keep_first` only after all others.
        order = sorted(kept - stays, key=lambda place: (place < self.keep_first, place))
        if self.max_checkpoints is not None and len(kept) > self.max_checkpoints:
            excess = len(kept) - self.max_checkpoints
            kept -= set(order[:excess])
            order = order[excess:]
        if self.max_bytes is not None:
            kept -= set(order[: _too_heavy(entries, kept, order, self.max_bytes, sizes or {}, bases or {})])
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
        """Return the fields that differ from a rule that keeps all; time spans in seconds."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values = {name: value for name, value in values.items() if value != getattr(_ALL, name)}
        return {name: span.total_seconds() if isinstance(span, timedelta) else span for name, span in values.items()}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        if not isinstance(data, dict) or not asdict(_ALL).keys() >= cast("Data", data).keys():
            raise InvalidInput("retention", f"is not a retention rule: {data!r}")
        values = dict(cast("Data", data))
        return cls(**values)


_ALL = Retention()
# Keeps every checkpoint (they are small) until 30 days after the session's end.
DEFAULT = Retention.parity(after_end=timedelta(days=30))

Rules = Retention | Mapping[str, Retention | None] | None


def as_rule(value: Any) -> Retention:
    if not isinstance(value, Retention):
        raise InvalidInput("retention", f"must be a Retention, not {type(value).__name__}")
    return value


def checked(rules: Any) -> Mapping[str, Retention]:
    """Return a manager's rules by agent type. None keeps all, for the manager or for one type."""
    if rules is None or isinstance(rules, Retention):
        return {OTHERS: rules or _ALL}
    if not isinstance(rules, Mapping) or any(
        not isinstance(rule, Retention | None) for rule in cast("Mapping[Any, Any]", rules).values()
    ):
        raise InvalidInput("retention", "must be a Retention, None, or a dict of these by agent type")
    named = cast("Mapping[str, Retention | None]", rules)
    return {OTHERS: DEFAULT, **{name: rule or _ALL for name, rule in named.items()}}


def from_json(value: Any) -> dict[str, Retention | None]:
    """Return rules as `GET /v1/thin` shows them: an object of rules by agent type, null to keep all of a type."""
    if not isinstance(value, dict):
        raise InvalidInput("retention", f"must be an object of rules by agent type, not {value!r}")
    named = cast("Data", value)
    return {name: None if rule is None else Retention.from_dict(rule) for name, rule in named.items()}


def rule_of(rules: Mapping[str, Retention], agent_type: str, metadata: Data) -> Retention:
    """Return the session's own rule, else its agent type's, else the default."""
    if OWN in metadata:
        return Retention.from_dict(metadata[OWN])
    return rules.get(agent_type) or rules[OTHERS]


def pins(entries: Iterable[Entry]) -> set[int]:
    """Return the seqs pinned as of the last of these entries."""
    pinned: set[int] = set()
    for entry in entries:
        if entry.kind in {Kind.PINNED, Kind.UNPINNED} and entry.note is not None:
            change = pinned.add if entry.kind is Kind.PINNED else pinned.discard
            change(codec.read_note(entry.note)["seq"])
    return pinned


def _too_heavy(
    entries: Sequence[Entry],
    kept: set[int],
    order: Sequence[int],
    most: int,
    sizes: Mapping[int, int],
    bases: Mapping[int, int],
) -> int:
    """Return how many of `order` to drop until the rest fits. Fewer never need more bytes, so bisect."""
    seqs = sorted(sizes)
    sums = [0, *accumulate(sizes[seq] for seq in seqs)]

    def weight(gone: int) -> int:
        left = kept.difference(order[:gone])
        ranges = needed((entries[place] for place in left), bases)
        return sum(sums[bisect_right(seqs, last)] - sums[bisect_left(seqs, first)] for first, last in ranges)

    return bisect_left(range(len(order)), x=True, key=lambda gone: weight(gone) <= most)
