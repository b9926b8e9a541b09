"""What an agent that lost its context reads first: a state in at most 4,000 characters, the newest parts whole."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from saveslot.values.checks import Data

# Characters of a briefing.
LIMIT = 4000
# Characters of one value: a longer one is cut, unless it is the newest item of its list and there is room for it.
LONGEST = 800
# What matters most for going on comes first; other keys follow in their order.
FIRST = ("task", "status", "blocked", "unresolved", "decisions", "next", "state")
CUT = "…"


def briefing(title: str, data: Data, notes: list[str], limit: int = LIMIT) -> str:
    """Return the title, the values of the state, and of its lists and the notes as many of the newest items as fit."""
    keys = [key for key in FIRST if key in data] + [key for key in data if key not in FIRST]
    lists = {key: [_text(item) for item in cast("list[Any]", data[key])] for key in keys if isinstance(data[key], list)}
    if notes:
        lists["notes"] = [*lists.get("notes", []), *notes]
    values = [f"{key}: {_cut(_text(data[key]), LONGEST)}" for key in keys if key not in lists]
    lists = {key: items for key, items in lists.items() if items}
    room = limit - len(title) - sum(len(f"\n{key} (99999 earlier ones left out):") for key in lists)
    # At least half of the room is for the newest items.
    lines, room = _values(values, room, room // 2 if lists else 0)
    kept: dict[str, list[str]] = {key: [] for key in lists}
    waiting = list(lists)
    while waiting:
        for key in [*waiting]:
            items, taken = lists[key], kept[key]
            item = items[-1 - len(taken)]
            if len(item) + len("\n- ") > room:
                waiting.remove(key)
                if not taken and room > LONGEST // 4:
                    taken.append(_cut(item, room - len("\n- ")))
                    room = 0
                continue
            taken.insert(0, item)
            room -= len(item) + len("\n- ")
            if len(taken) == len(items):
                waiting.remove(key)
    for key, items in kept.items():
        earlier = len(lists[key]) - len(items)
        lines += [
            f"{key} ({earlier} earlier ones left out):" if earlier else f"{key}:",
            *(f"- {item}" for item in items),
        ]
    return _cut("\n".join([title, *lines]), limit)


def _values(values: list[str], room: int, reserved: int) -> tuple[list[str], int]:
    """Return those that fit, and the room that they leave."""
    lines: list[str] = []
    for n, value in enumerate(values):
        if len(value) + 1 > room - reserved:
            left = f"({len(values) - n} more values: read the session's resource)"
            return [*lines, left], room - len(left) - 1
        lines.append(value)
        room -= len(value) + 1
    return lines, room


def _text(value: Any) -> str:
    """A value on one line: text as it is, others as JSON."""
    return " ".join((value if isinstance(value, str) else msgspec.json.encode(value).decode()).split())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT
