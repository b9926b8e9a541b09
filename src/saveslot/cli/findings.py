"""What an examination of a store finds, and says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

# Damaged entries that are named; behind them only their number.
NAMED = 10

Progress = Callable[[str, int, int], None]  # of what, how much is done, of how much


class Finding(msgspec.Struct):
    what: str
    told: str
    state: str = "ok"  # ok, warning or problem
    advice: list[str] = []  # what to do, one line each
    details: list[str] = []


def problem(what: str, told: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    return Finding(what, told, "problem", list(advice), list(details))


def warning(what: str, told: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    return Finding(what, told, "warning", list(advice), list(details))


def few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED:,} more"]
