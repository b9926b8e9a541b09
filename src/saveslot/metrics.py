"""What happened and how long it took, counted cheaply: plain integers, no lock, nothing kept of the calls themselves.

A counter is written by one thread at a time: what is counted in several has a counter for each.
"""

from __future__ import annotations

from math import log2
from typing import Any

# Eight buckets for each power of two: a percentile is at most a tenth above the truth.
FINE = 8
# Up to 2^63: as nanoseconds some centuries.
BUCKETS = 63 * FINE + 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Spread:
    """How values are distributed: counts in buckets that grow with the value, from which percentiles are read."""

    __slots__ = ("buckets", "largest")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.largest = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, value: int) -> None:
        self.buckets[int(log2(value + 1) * FINE)] += 1
        if value > self.largest:  # noqa: PLR1730  (`max` would cost as much as all the rest)
            self.largest = value

    def percentiles(self, unit: float = 1) -> dict[str, float]:
        """p50, p90, p99 and the largest, in that unit; all 0 when nothing was counted."""
        told = dict.fromkeys(QUANTILES, 0.0)
        seen, count = 0, self.count
        wanted = [(name, share * count) for name, share in QUANTILES.items()] if count else []
        for index, many in enumerate(self.buckets):
            seen += many
            while wanted and many and seen >= wanted[0][1]:
                told[wanted.pop(0)[0]] = min(_most(index), self.largest) / unit
        return {**told, "max": self.largest / unit}


def _most(index: int) -> int:
    """The largest value of a bucket."""
    return int(2 ** ((index + 1) / FINE)) - 1


class Calls:
    """One verb: how often, how often in vain, and how long it took."""

    __slots__ = ("errors", "took")

    def __init__(self) -> None:
        self.errors = 0
        self.took = Spread()

    def told(self) -> dict[str, Any]:
        return {"calls": self.took.count, "errors": self.errors, "ms": self.took.percentiles(1_000_000)}


class Counters:
    """What a store counts inside itself, beside what is seen from outside."""

    __slots__ = ("batches", "retries", "shared")

    def __init__(self) -> None:
        self.batches = Spread()  # how many groups went into each transaction
        self.retries = 0  # questions asked again: a connection broke, another process held the lock
        self.shared = 0  # of the calls for heads: those that joined another's question
