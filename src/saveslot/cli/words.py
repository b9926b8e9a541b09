"""Times and texts for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from saveslot.values.words import span

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
# Characters that a terminal interprets or hides; an agent's text may come from anywhere.
# Joiners (U+200C, U+200D) stay: Persian and emoji sequences need them.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def duration(text: str) -> timedelta:
    """`30d`, `12h`, `45m`, `10s`, `2w`; anything else is a ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and s, m, h, d or w, such as 30d or 12h")
    return timedelta(seconds=int(match[1]) * UNITS[match[2]])


def age(at: datetime, now: datetime | None = None) -> str:
    return span(((now or datetime.now(UTC)) - at).total_seconds())


def ago(at: datetime) -> str:
    text = age(at)
    return "just now" if text == "0s" else f"{text} ago"


def local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def clean(text: str) -> str:
    """The text with all characters escaped that would move the cursor, ring, recolour or reverse a terminal."""
    return _UNFIT.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped(json: str) -> str:
    """The same for the strings of a JSON text."""
    return _UNFIT.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def flat(text: str, width: int) -> str:
    """The text on one line of at most `width` characters."""
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
