"""What changed between two states as a person reads it: additions green, removals red, texts word by word.

    ~ plan.step       3 → 4
    + messages[12]    assistant  The answer is 3/4.
    ~ notes           Anna likes {+short +}examples

Without colours the words of a text that changed stand in [-brackets-] and {+braces+}, as in a word diff of git.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, cast

from saveslot.cli.screen import Line, Span, Spans
from saveslot.cli.state import DIM, FULL, KEY, Fold, branch, inline, is_message, message
from saveslot.codec import difference
from saveslot.values.words import many

SIGNS = {"+": "bold green", "-": "bold red", "~": "bold yellow"}
GONE, COME = "red", "green"

# Words of a text. A word diff compares every word with every other one; longer texts are shown before and after.
MAX_WORDS = 4000
# Unchanged words kept on either side of a change.
AROUND = 6

_WORDS = re.compile(r"\n|[^\S\n]+|\w+|[^\w\s]")


def changes(before: Any, patch: Sequence[Mapping[str, Any]], fold: Fold, *, colour: bool) -> Iterator[Line]:
    """The operations of a patch one by one, each with the value it replaces."""
    steps: list[tuple[str, str, Any, Any]] = []
    document = before
    for op in patch:
        path = cast("str", op["path"])
        name, old = _found(document, path)
        steps.append((str(op["op"]), name, old, op.get("value")))
        document = difference.patched(document, [op])
    width = min(28, max((len(name) for _, name, _, _ in steps), default=0))
    for kind, name, old, new in steps:
        match kind:
            case "add":
                yield from _whole("+", name.ljust(width), new, fold)
            case "remove":
                yield from _whole("-", name.ljust(width), old, fold)
            case _:
                yield from _replaced(name.ljust(width), old, new, fold, colour=colour)


def summary(patch: Sequence[Mapping[str, Any]]) -> str:
    words = {"add": "added", "remove": "removed", "replace": "changed"}
    counts = Counter(words[str(op["op"])] for op in patch)
    return ", ".join(f"{count:,} {word}" for word, count in counts.items()) or "no difference"


def _found(document: Any, path: str) -> tuple[str, Any]:
    """A path as people write it (`plan.todo[2]`), and the value there."""
    name, value = "", document
    for step in (part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]):
        if isinstance(value, list):
            held = cast("list[Any]", value)
            place = len(held) if step == "-" else int(step)
            name += f"[{place}]"
            value = held[place] if place < len(held) else None
        else:
            name += f".{step}" if name else step
            value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
    return name or "(all)", value


def _sign(sign: str) -> Span:
    return (f"{sign} ", SIGNS[sign])


def _whole(sign: str, name: str, value: Any, fold: Fold) -> Iterator[Line]:
    """A value that was added or removed."""
    lead, hang = (_sign(sign),), ((f"{sign} ", SIGNS[sign]),)
    if is_message(value):
        yield from message(f"{name} ", value, fold, lead)  # aligned with values that are not messages
        return
    # A removed value is only a reminder; an added one is shown as `show` does.
    for line in branch(name, value, fold if sign == "+" else Fold(3, 160, 2, 3) if fold != FULL else fold, lead, hang):
        body = tuple((text, style or (COME if sign == "+" else GONE)) for text, style in line.body)
        yield Line(line.lead, body, line.hang)


def _replaced(name: str, old: Any, new: Any, fold: Fold, *, colour: bool) -> Iterator[Line]:
    label: Spans = (_sign("~"), (f"{name}  ", KEY))
    one, other = inline(old), inline(new)
    if one is not None and other is not None:
        both = (*((text, GONE) for text, _ in one), (" → ", DIM), *((text, COME) for text, _ in other))
        yield Line(label, both)
        return
    if isinstance(old, str) and isinstance(new, str) and len(old) + len(new) < MAX_WORDS * 8:
        a, b = _WORDS.findall(old), _WORDS.findall(new)
        matcher = SequenceMatcher(None, a, b, autojunk=False)
        if max(len(a), len(b)) <= MAX_WORDS and matcher.quick_ratio() > 0.5:  # noqa: PLR2004  (else they share little)
            below = (("  ", ""), (" " * (len(name) + 2), ""))
            for n, line in enumerate(_broken(_words(matcher, a, b, fold, colour=colour))):
                yield Line(below if n else label, line, below)
            return
    yield from _whole("-", name, old, fold)
    yield from _whole("+", name, new, fold)


def _words(matcher: SequenceMatcher[str], a: list[str], b: list[str], fold: Fold, *, colour: bool) -> Iterator[Span]:
    """One text with removed and added words marked; unchanged parts are cut down to the words around a change."""
    keep = len(a) if fold == FULL else 2 * AROUND
    blocks = matcher.get_opcodes()
    for n, (tag, i, j, x, y) in enumerate(blocks):
        if tag == "equal":
            yield from _stayed(a[i:j], keep, first=n == 0, last=n == len(blocks) - 1)
            continue
        if i < j:
            yield _marked("".join(a[i:j]), "[-", "-]", GONE, colour=colour)
        if x < y:
            yield _marked("".join(b[x:y]), "{+", "+}", COME, colour=colour)


def _marked(text: str, left: str, right: str, style: str, *, colour: bool) -> Span:
    # Colour does not show on blanks, nor to everyone; strike-through and underline do.
    return (
        (text, f"{style} strike" if style == GONE else f"{style} underline")
        if colour
        else (
            f"{left}{text}{right}",
            style,
        )
    )


def _stayed(words: list[str], keep: int, *, first: bool, last: bool) -> Iterator[Span]:
    front, back = (0 if first else keep), (0 if last else keep)
    if len(words) <= front + back + keep:
        yield "".join(words), ""
        return
    hidden = words[front : len(words) - back]
    yield "".join(words[:front]), ""
    yield f" … {many(len(''.join(hidden)), 'character')} unchanged … ", DIM
    yield "".join(words[len(words) - back :]), ""


def _broken(spans: Iterator[Span]) -> Iterator[Spans]:
    """Spans split into lines at the newlines of their texts."""
    line: list[Span] = []
    for text, style in spans:
        first, *rest = text.split("\n")
        line.append((first, style))
        for piece in rest:
            yield tuple(line)
            line = [(piece, style)]
    yield tuple(line)
