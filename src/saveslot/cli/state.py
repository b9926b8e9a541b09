"""An agent's state for people: a small tree, with lists of {role, content} as conversations and long parts folded.

    messages  14 messages
    │  … 8 earlier messages folded
    │ 12 user       What is 1/2 + 1/4?
    │ 13 assistant  Let me work it out.
    │               → add(a="1/2", b="1/4")
    plan
    ├ step  3
    └ todo  ["explain", "exercise"]

A fold says how much it hides; with `--full` and in a pipe nothing is folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from saveslot.cli.screen import Line, Span, Spans
from saveslot.cli.words import flat
from saveslot.values.words import many, size

# Characters of a value that is shown beside its key.
INLINE = 60
# Numbers shown of a long list.
NUMBERS = 6
# Width of the column of roles.
ROLE = 9

KEY, DIM, TEXT, NUMBER = "cyan", "dim", "", "yellow"
ROLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow", "system": "bold magenta"}
# Other names for these roles in frameworks.
SYNONYMS = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}


class Fold(NamedTuple):
    """Limits beyond which a value is folded."""

    lines: int = 8
    characters: int = 480
    messages: int = 6
    items: int = 10


FULL = Fold(1 << 60, 1 << 60, 1 << 60, 1 << 60)


def tree(data: Mapping[str, Any], fold: Fold) -> Iterator[Line]:
    """Every key of a state, one per line."""
    width = min(16, max(map(len, data), default=0))
    for key, value in data.items():
        yield from branch(key.ljust(width), value, fold, (), ())


def branch(key: str, value: Any, fold: Fold, lead: Spans, hang: Spans) -> Iterator[Line]:
    """A key with its value: beside it if short, otherwise below it."""
    label = (*lead, (f"{key}  ", KEY))
    short = inline(value)
    if short is not None:
        yield Line(label, short)
    elif isinstance(value, str):
        below = (*hang, (" " * (len(key) + 2), ""))
        for n, line in enumerate(text_lines(value, fold)):
            yield Line(below if n else label, line, below)
    elif isinstance(value, dict):
        yield Line((*lead, (key.rstrip(), KEY)))
        yield from members(cast("Mapping[str, Any]", value), fold, hang)
    elif is_conversation(value):
        yield Line(label, ((many(len(value), "message"), DIM),))
        yield from conversation(value, fold, (*hang, ("│ ", DIM)))
    else:
        yield Line(label, ((many(len(value), "item"), DIM),))
        yield from items(value, fold, hang)


def members(value: Mapping[str, Any], fold: Fold, hang: Spans) -> Iterator[Line]:
    width = min(16, max(map(len, value), default=0))
    for n, (key, item) in enumerate(value.items(), 1):
        lead, below = _guides(hang, last=n == len(value))
        yield from branch(key.ljust(width), item, fold, lead, below)


def items(value: Sequence[Any], fold: Fold, hang: Spans) -> Iterator[Line]:
    head, gap = _folded(len(value), fold.items)
    width = len(str(len(value) - 1))
    for n, item in enumerate(value):
        lead, below = _guides(hang, last=n == len(value) - 1)
        if n == head and gap:
            yield Line(lead, ((f"… {many(gap, 'item')} folded", DIM),))
        if n < head or n >= head + gap:
            yield from branch(f"{n:>{width}}", item, fold, lead, below)


def _guides(hang: Spans, *, last: bool) -> tuple[Spans, Spans]:
    return (*hang, ("└ " if last else "├ ", DIM)), (*hang, ("  " if last else "│ ", DIM))


def _folded(count: int, limit: int) -> tuple[int, int]:
    """How many items precede the fold, and how many are in it. Folding a single one saves nothing."""
    if count <= limit + 1:
        return count, 0
    return limit // 3, count - limit


# --- values -----------------------------------------------------------------------------------------------------------


def inline(value: Any) -> Spans | None:
    """The value on one short line, or None if it does not fit."""
    match value:
        case str():
            return ((value, TEXT),) if len(value) <= INLINE and "\n" not in value and value else _quoted(value)
        case bytes():
            return ((f"{size(len(value))} of bytes", NUMBER),)
        case None | bool() | int() | float() | datetime() | UUID():
            return ((_scalar(value), NUMBER),)
        case {} if not value:
            return (("{}", DIM),)
        case [] if not value:
            return (("[]", DIM),)
        case _:
            return _compact(value)


def _quoted(value: str) -> Spans | None:
    return None if value else (('""', DIM),)


def _scalar(value: Any) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case datetime():
            return value.isoformat(" ")
        case _:
            return str(value)


def _compact(value: Any) -> Spans | None:
    """A small list or object of plain values on one line, or a long list of numbers (a vector), shortened."""
    object_ = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    inner = [*object_.values()] if object_ is not None else cast("list[Any]", value)
    if object_ is None and len(inner) > NUMBERS and {int, float}.issuperset(map(type, inner)):
        first = ", ".join(map(_scalar, inner[:NUMBERS]))
        return ((first, NUMBER), (f", … {len(inner) - NUMBERS:,} more numbers", DIM))
    if len(inner) > INLINE // 3 or not all(isinstance(item, str | int | float | None) for item in inner):
        return None
    texts = [_json(item) if object_ is None else bare(item) for item in inner]
    names = ["" for _ in inner] if object_ is None else [f"{key}=" for key in object_]
    if sum(map(len, texts + names)) + 2 * len(inner) > INLINE or "\n" in "".join(texts):
        return None
    gap = ", " if object_ is None else "  "
    spans: list[Span] = []
    for n, (name, text, item) in enumerate(zip(names, texts, inner, strict=True)):
        spans += [(gap if n else "", DIM), (name, DIM), (text, TEXT if isinstance(item, str) else NUMBER)]
    return (("[", DIM), *spans, ("]", DIM)) if object_ is None else tuple(spans)


def text_lines(text: str, fold: Fold, style: str = TEXT) -> Iterator[Spans]:
    """A long text line by line, up to the fold."""
    beginning = text[: fold.characters]
    lines = beginning.splitlines()[: fold.lines] or [""]
    shown_length = sum(len(line) + 1 for line in lines)
    left = len(text) - shown_length
    if left <= fold.characters // 8 and len(lines) < fold.lines:  # a short rest is not worth a fold
        lines, left = text.splitlines()[: fold.lines], 0
    for line in lines:
        yield ((line, style),)
    if left > 0:
        yield ((f"… {left:,} more characters", DIM),)


# --- conversations ----------------------------------------------------------------------------------------------------


def is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    data = cast("dict[str, Any]", value)
    if isinstance(data.get("role"), str):
        return bool(data.keys() & {"content", "parts", "tool_calls"})
    kind = data.get("type")
    return kind in {"function_call", "function_call_output"} or (kind in {*SYNONYMS, *ROLES} and "content" in data)


def is_conversation(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(is_message, cast("list[Any]", value)))


def conversation(messages: Sequence[Mapping[str, Any]], fold: Fold, hang: Spans) -> Iterator[Line]:
    gap = max(0, len(messages) - fold.messages)
    gap = 0 if gap == 1 else gap
    if gap:
        yield Line(hang, ((f"… {many(gap, 'earlier message')} folded", DIM),))
    width = len(str(len(messages) - 1))
    for n, data in enumerate(messages[gap:], gap):
        yield from message(f"{n:>{width}}", data, fold, hang)


def message(number: str, data: Mapping[str, Any], fold: Fold, hang: Spans) -> Iterator[Line]:
    """The role, the text and the tool calls of a message."""
    role = _role(data)
    below = (*hang, (" " * (len(number) + 1 + max(ROLE, len(role)) + 2), ""))
    lead = (*hang, (f"{number} ", DIM), (f"{role:<{ROLE}}  ", ROLES.get(role, "bold")))
    lines = [*_content(data, fold)] or [(("(nothing)", DIM),)]
    for n, line in enumerate(lines):
        yield Line(below if n else lead, line, below)
    rest = _rest(data)
    if rest:
        yield Line(below, ((rest, DIM),), below)


def _role(data: Mapping[str, Any]) -> str:
    role = str(data.get("role") or data.get("type"))
    role = {"function_call": "assistant", "function_call_output": "tool"}.get(role, role)
    return SYNONYMS.get(role, role)


def _content(data: Mapping[str, Any], fold: Fold) -> Iterator[Spans]:
    content: Any = data.get("content", data.get("parts", data.get("output")))
    for part in cast("list[Any]", content) if isinstance(content, list) else [content]:
        yield from _part(part, fold)
    if data.get("type") == "function_call":
        yield _call(data.get("name"), data.get("arguments"))
    calls: Any = data.get("tool_calls")
    for call in cast("list[Any]", calls) if isinstance(calls, list) else []:
        yield from _tool_call(call)


def _tool_call(call: Any) -> Iterator[Spans]:
    if not isinstance(call, dict):
        yield ((f"→ {call}", "yellow"),)
        return
    data = cast("dict[str, Any]", call)
    function = cast("dict[str, Any]", data["function"]) if isinstance(data.get("function"), dict) else data
    yield _call(function.get("name"), function.get("arguments", function.get("args", function.get("input"))))


def _part(part: Any, fold: Fold) -> Iterator[Spans]:
    """One part of a message: text, a tool call, its result; anything else is only named."""
    match part:
        case None:
            return
        case str():
            yield from text_lines(part, fold) if part else ()
        case {"type": "tool_use", "name": name}:
            yield _call(name, cast("dict[str, Any]", part).get("input"))
        case {"type": "tool_result", "content": content}:
            yield (("← result", "yellow"),)
            for inner in cast("list[Any]", content) if isinstance(content, list) else [content]:
                yield from _part(inner, fold)
        case {"text": str(text)} | {"thinking": str(text)}:
            yield from text_lines(text, fold, DIM if "thinking" in part else TEXT)
        case {"type": str(kind)}:
            yield ((f"[{kind}, {size(len(_json(part)))}]", DIM),)
        case _:
            yield from text_lines(_json(part), fold)


def _call(name: Any, arguments: Any) -> Spans:
    """`→ add(a="1/2", b="1/4")`; arguments are often JSON in a string."""
    given = arguments
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            given = arguments
    if isinstance(given, dict):
        text = ", ".join(f"{key}={flat(_json(item), 48)}" for key, item in cast("dict[str, Any]", given).items())
    else:
        text = "" if given is None else flat(str(given), 96)
    return (("→ ", "yellow"), (f"{name}", "bold yellow"), (f"({text})", "yellow"))


def _rest(data: Mapping[str, Any]) -> str:
    """The other keys of a message, abbreviated."""
    known = {"role", "content", "parts", "tool_calls", "output"}
    known |= {"type", "name", "arguments"} if "function_call" in str(data.get("type")) else set()
    if "role" not in data:
        known.add("type")
    others = {key: value for key, value in data.items() if key not in known and value not in (None, "", [], {})}
    return "  ".join(f"{key}={flat(bare(value), 32)}" for key, value in others.items())


def bare(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return str(value)
