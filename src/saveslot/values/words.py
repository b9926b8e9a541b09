"""Counts, sizes and spans of time as people read them."""

from __future__ import annotations


def span(seconds: float) -> str:
    """The largest unit that fits, such as 42s, 5m, 3h, 12d."""
    seconds = max(0, int(seconds))
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: float) -> str:
    """1.49 KB and the like, by thousands, with three digits."""
    if count < 1000:  # noqa: PLR2004
        return f"{int(count)} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 999.5:  # noqa: PLR2004
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def many(count: int, thing: str) -> str:
    """`1 entry`, `2 entries`, `3 messages`."""
    several = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else several}"
