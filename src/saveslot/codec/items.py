"""The last items of a list, found from the end of its JSON text, so that their cost does not grow with the list."""

from __future__ import annotations

import re

from saveslot.codec.patch import Text

# Bytes of the text's end that are looked at first; doubled until they hold the items.
WINDOW = 4096

_marks = re.compile(rb'[]["{},]').finditer


def tail(text: Text, count: int) -> tuple[int, int]:
    """Return where the last `count` items of a list's text start, and how many those are: fewer in a shorter list.

    In JSON a quote inside a string follows an odd number of backslashes, so the text can be read backwards.
    """
    end = len(text) - 1  # the closing bracket
    if not count or end == 1:
        return end, 0
    window = WINDOW
    while True:
        start = max(1, end - window)
        place = _starts(text, start, end, count, whole=start == 1)
        if place is not None:
            return place
        window *= 2


def _starts(text: Text, start: int, end: int, count: int, *, whole: bool) -> tuple[int, int] | None:
    """Look at one window; None if more of the text is needed."""
    depth, passed, quoted = 0, 0, False
    for match in reversed([*_marks(text, start, end)]):
        mark, at = text[match.start()], match.start()
        if mark == 0x22:  # noqa: PLR2004  (a quote)
            if not _escaped(text, at):
                quoted = not quoted
        elif quoted:
            continue
        elif mark in b"]}":
            depth += 1
        elif mark in b"[{":
            depth -= 1
        elif not depth:
            passed += 1
            if passed == count:
                return at + 1, count
    return (1, passed + 1) if whole else None


def _escaped(text: Text, at: int) -> bool:
    slash = at
    while slash and text[slash - 1] == 0x5C:  # noqa: PLR2004  (a backslash)
        slash -= 1
    return (at - slash) % 2 == 1
