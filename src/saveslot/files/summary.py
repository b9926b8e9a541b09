"""What a checkpoint file says, in a few lines: what a resumed agent reads first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from saveslot.files.document import Document

LIMIT = 4000
# One item of a list, and one line of anything.
LONGEST = 300
# What matters most to go on comes first; of the steps the newest.
SECTIONS = (
    ("blocked", "Blocked by"),
    ("unresolved", "Unresolved"),
    ("decisions", "Decided"),
    ("state", "State"),
)


def summarized(session_id: str, document: Document, limit: int = LIMIT) -> str:
    """At most `limit` characters: task and status, what blocks, what was decided, the state, the newest steps."""
    lines = [f"Session {session_id}, {_line(document.get('status') or 'status unknown')}"]
    if document.get("task"):
        lines.append(f"Task: {_line(document['task'])}")
    if document.get("updated"):
        lines.append(f"Updated: {_line(document['updated'])}")
    for key, title in SECTIONS:
        if told := document.get(key):
            lines += [f"{title}:", *(f"  - {line}" for line in _items(told))]
    return _fitted(lines, list(_items(document.get("progress") or [])), limit)


def _fitted(lines: list[str], steps: list[str], limit: int) -> str:
    text = "\n".join(lines)
    if steps:
        kept: list[str] = []
        room = limit - len(text) - len("\nProgress:\n  (and 99999 earlier steps)")
        while steps and room >= len(steps[-1]) + len("\n  - "):
            room -= len(steps[-1]) + len("\n  - ")
            kept.insert(0, f"  - {steps.pop()}")
        earlier = [f"  (and {len(steps)} earlier steps)"] if steps else []
        text = "\n".join([text, "Progress:", *earlier, *kept])
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"[:limit]


def _items(told: Any) -> Iterator[str]:
    """One line each: a list's items, a dict's entries, or the value itself."""
    if isinstance(told, list):
        for item in cast("list[Any]", told):
            yield _line(item)
    elif isinstance(told, dict):
        for key, item in cast("Document", told).items():
            yield _line({key: item})
    else:
        yield _line(told)


def _line(told: Any) -> str:
    if isinstance(told, dict):
        parts = (f"{key}: {_line(item)}" for key, item in cast("Document", told).items() if item not in (None, "", []))
        text = "; ".join(parts)
    elif isinstance(told, list):
        text = ", ".join(map(_line, cast("list[Any]", told)))
    else:
        text = str(told)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
