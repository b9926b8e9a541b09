"""Times, sizes and texts as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
# Anything that a terminal would act upon or hide instead of showing it; an agent's text may hold what it read anywhere.
# Joiners (U+200C, U+200D) stay: Persian and families of emoji are written with them.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def duration(text: str) -> timedelta:
    """`30d`, `12h`, `45m`, `10s`, `2w`; anything else is a ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration: a number and s, m, h, d or w, such as 30d or 12h")
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def span(seconds: float) -> str:
    """The largest unit that fits, such as 42s, 5m, 3h, 12d."""
    seconds = max(0, int(seconds))
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def age(at: datetime, now: datetime | None = None) -> str:
    return span(((now or datetime.now(UTC)) - at).total_seconds())


def ago(at: datetime) -> str:
    told = age(at)
    return "just now" if told == "0s" else f"{told} ago"


def local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


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


def clean(text: str) -> str:
    """The text with everything made visible that would move the cursor, ring, recolour or reverse a terminal."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped(json: str) -> str:
    """The same JSON, with all of that escaped in its strings."""
    return _UNFIT.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def flat(text: str, width: int) -> str:
    """One line of at most so many characters."""
    line = clean(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 1] + "…"


def bar(share: float, width: int) -> str:
    """A bar of eighths: 0.5 of 4 is `██`."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths or (1 if share > 0 else 0), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def sparkline(values: Sequence[float]) -> str:
    top = max(values, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(value / top * 7.99))] if top else "▁" for value in values)
