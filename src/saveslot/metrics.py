"""What happened and how long it took, counted cheaply: plain integers, no lock, nothing kept of the calls themselves.

A counter is written by one thread at a time: what is counted in several has a counter for each.
"""

from __future__ import annotations

from typing import Any

# Eight buckets for each power of two: a percentile is at most an eighth above the truth.
BITS = 3
FINE = 1 << BITS
# Up to 2^42 ns, more than an hour; what is longer counts as that.
TOP = 42 * FINE - 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Spread:
    """How values are distributed: counts in buckets that grow with the value, from which percentiles are read."""

    __slots__ = ("buckets", "count", "largest")

    def __init__(self) -> None:
        self.buckets = [0] * (TOP + 1)
        self.count = 0
        self.largest = 0

    def add(self, value: int) -> None:
        self.count += 1
        if value > self.largest:  # noqa: PLR1730  (`max` and `min` would cost more than all the rest)
            self.largest = value
        #  0 … 15: each its own bucket;  16, 17: one;  …;  0b1xxx…: by the highest bit and the three that follow it
        shift = value.bit_length() - 1 - BITS
        if shift > 0:
            index = (shift << BITS) + (value >> shift)
            self.buckets[index if index < TOP else TOP] += 1  # noqa: FURB136
        else:
            self.buckets[value] += 1

    def percentiles(self, unit: float = 1) -> dict[str, float]:
        """p50, p90, p99 and the largest, in that unit; all 0 when nothing was counted."""
        told = dict.fromkeys(QUANTILES, 0.0)
        seen = 0
        wanted = [(name, share * self.count) for name, share in QUANTILES.items()] if self.count else []
        for index, many in enumerate(self.buckets):
            seen += many
            while wanted and many and seen >= wanted[0][1]:
                told[wanted.pop(0)[0]] = min(_most(index), self.largest) / unit
        return {**told, "max": self.largest / unit}


def _most(index: int) -> int:
    """The largest value of a bucket."""
    shift = (index >> BITS) - 1
    return index if shift <= 0 else ((index - (shift << BITS) + 1) << shift) - 1


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
