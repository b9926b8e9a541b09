"""A short summary of a checkpoint file, for a resumed agent to read first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from saveslot.checkpoints.files.document import Document

# Characters of a summary.
LIMIT = 4000
# Characters of one list item or line.
LONGEST = 300
# What matters most for continuing comes first; the newest steps follow.
SECTIONS = (
    ("blocked", "Blocked by"),
    ("unresolved", "Unresolved"),
    ("decisions", "Decided"),
    ("state", "State"),
)


def summarized(session_id: str, document: Document, limit: int = LIMIT) -> str:
    """Return at most `limit` characters: status, task, blockers, open questions, decisions, state, the newest steps."""
    lines = [f"Session {session_id}, {_line(document.get('status') or 'status unknown')}"]
    if document.get("task"):
        lines.append(f"Task: {_line(document['task'])}")
    if document.get("updated"):
        lines.append(f"Updated: {_line(document['updated'])}")
    for key, title in SECTIONS:
        if value := document.get(key):
            lines += [f"{title}:", *(f"  - {line}" for line in _items(value))]
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


def _items(value: Any) -> Iterator[str]:
    """Yield one line per list item or dict entry, or one for any other value."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield _line(item)
    elif isinstance(value, dict):
        for key, item in cast("Document", value).items():
            yield _line({key: item})
    else:
        yield _line(value)


def _line(value: Any) -> str:
    if isinstance(value, dict):
        parts = (f"{key}: {_line(item)}" for key, item in cast("Document", value).items() if item not in (None, "", []))
        text = "; ".join(parts)
    elif isinstance(value, list):
        text = ", ".join(map(_line, cast("list[Any]", value)))
    else:
        text = str(value)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
