"""Counts and latencies at little cost: plain integers, no lock, nothing kept of the calls themselves.

A counter is written by one thread at a time; what several threads count has a counter for each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

# Buckets per power of two: a percentile is at most 10 % above the true value.
FINE = 8
# Up to 2^63, in nanoseconds 292 years.
BUCKETS = 63 * FINE + 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Spread:
    """A histogram with buckets that grow with the value, for percentiles."""

    __slots__ = ("buckets", "largest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.largest = 0
        self.total = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, value: int) -> None:
        self.buckets[int(log2(value + 1) * FINE)] += 1
        self.total += value
        if value > self.largest:  # noqa: PLR1730  (`max` would cost as much as all the rest)
            self.largest = value

    def upto(self, value: int) -> int:
        """Count the values up to this one, and some that are at most 10 % above it: none above 2^n - 2."""
        return sum(self.buckets[: int(log2(value + 1) * FINE) + 1])

    def percentiles(self, unit: float = 1) -> dict[str, float]:
        """p50, p90, p99 and max, in that unit; all 0 if nothing was counted."""
        percentiles = dict.fromkeys(QUANTILES, 0.0)
        seen, count = 0, self.count
        wanted = [(name, share * count) for name, share in QUANTILES.items()] if count else []
        for index, many in enumerate(self.buckets):
            seen += many
            while wanted and many and seen >= wanted[0][1]:
                percentiles[wanted.pop(0)[0]] = min(_most(index), self.largest) / unit
        return {**percentiles, "max": self.largest / unit}


def _most(index: int) -> int:
    """The largest value of a bucket."""
    return int(2 ** ((index + 1) / FINE)) - 1


class Calls:
    """Calls of one verb: count, errors and latency."""

    __slots__ = ("errors", "took")

    def __init__(self) -> None:
        self.errors = 0
        self.took = Spread()

    def to_dict(self) -> dict[str, Any]:
        return {"calls": self.took.count, "errors": self.errors, "ms": self.took.percentiles(1_000_000)}


class Counters:
    """Counts that only the store itself can take."""

    __slots__ = ("batches", "pool", "retries", "shared")

    def __init__(self) -> None:
        self.pool: Callable[[], dict[str, int]] | None = None  # of connections, once there is one
        self.batches = Spread()  # groups per transaction
        self.retries = 0  # statements repeated: a connection broke, or another process held the lock
        self.shared = 0  # calls for heads that shared another call's query
