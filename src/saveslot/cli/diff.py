"""`saveslot diff`: what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import refs
from saveslot.cli.changes import changes, summary
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Full
from saveslot.cli.screen import Line, line
from saveslot.cli.sessions import short
from saveslot.cli.state import DIM, FULL, Fold
from saveslot.cli.words import ago
from saveslot.codec import difference


async def diff(
    a: Annotated[
        str, Parameter(name="FROM", completer=refs, help="From ID@REF. An ID alone: its last two checkpoints.")
    ],
    b: Annotated[
        str | None,
        Parameter(name="TO", completer=refs, help="To ID@REF, or @REF for the same session (default: the latest)."),
    ] = None,
    /,
    *,
    full: Full = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        first = await target.find(sessions, a)
        if b is None:
            start, end = (first.ref or "~1"), "latest"
            second = first
        elif b.startswith("@"):
            start, end, second = (first.ref or "latest"), b[1:], first
        else:
            second = await target.find(sessions, b)
            start, end = first.ref or "latest", second.ref or "latest"
        ends = [(first, start), (second, end)]
        marks = [await sessions.get_checkpoint(at.id, ref) for at, ref in ends]
        before, after = [await sessions.get_data(at.id, mark.seq) for (at, _), mark in zip(ends, marks, strict=True)]
    patch = difference.diff(before, after)
    titles = [f"{short(at.id, screen)}@{mark.seq} {mark.name}" for (at, _), mark in zip(ends, marks, strict=True)]
    fold = Fold() if screen.terminal and not full else FULL
    colour = screen.terminal and screen.console.color_system is not None

    def lines() -> Iterator[Line]:
        for word, title, mark in zip(("from  ", "to    "), titles, marks, strict=True):
            yield line((word, DIM), (title, "bold"), (f"  {ago(mark.timestamp)}", DIM))
        yield line((summary(patch), DIM))
        if patch:
            yield from (Line(), *changes(before, patch, fold, colour=colour))

    screen.answer(patch, lines())
