"""Where output goes. Data on stdout, everything else on stderr; a terminal gets colours, a pipe plain aligned text.

What is shown is made of spans, (text, style), so that one description serves both; rich is imported for terminals only.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import combining, east_asian_width

import msgspec

from saveslot import codec
from saveslot.cli.words import clean, escaped
from saveslot.stores import shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

Span = tuple[str, str]
Spans = tuple[Span, ...]

# A terminal this wide shows everything we have; beyond it lines are only harder to follow.
WIDEST = 160
# A name longer than this is cut where room is scarce.
WIDEST_CELL = 36
# Between two columns; and what a wide one needs to be of any use.
GAP, LEAST = 2, 8


class Line(NamedTuple):
    """A line of output. Where it must wrap, it goes on under its body, behind `hang`."""

    lead: Spans = ()
    body: Spans = ()
    hang: Spans | None = None  # None: blanks as wide as `lead`


class Column(NamedTuple):
    title: str
    right: bool = False
    wide: bool = False  # takes the room that is left, and is cut there on a terminal
    name: bool = False  # somebody chose it, as long as they liked: cut first where room is scarce


Cell = str | Span


class Screen:
    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.terminal = sys.stdout.isatty() and not json
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        if self._console is None:
            self._console = console(sys.stdout)
        return self._console

    @property
    def width(self) -> int:
        return min(WIDEST, self.console.width)

    def data(self, value: Any) -> None:
        """A value as JSON; what JSON does not know is tagged as in an export."""
        text, _ = codec.encode(value, "output", 1 << 40)
        write_json(msgspec.json.format(text, indent=2) + b"\n")

    def say(self, *body: Span) -> None:
        self.lines([Line(body=body)])

    def lines(self, lines: Iterable[Line]) -> None:
        if not self.terminal:
            for line in lines:
                print(clean("".join(text for text, _ in (*line.lead, *line.body))).rstrip())
            return
        for line in lines:
            for piece in self._wrapped(line):
                self.console.print(piece, soft_wrap=True)

    def _wrapped(self, line: Line) -> Iterable[Text]:
        lead, body = _text(line.lead), _text(line.body)
        hang = _text(((" " * lead.cell_len, ""),) if line.hang is None else line.hang)
        room = max(20, self.width - max(lead.cell_len, hang.cell_len))
        pieces = body.wrap(self.console, room, tab_size=4) or [body]
        for n, piece in enumerate(pieces):
            piece.rstrip()
            yield (hang if n else lead) + piece

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
        spans = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
        if self.terminal:
            self.console.print(rich_table(columns, spans, self.console.width))
            return
        texts = [[column.title for column in columns], *([clean(text) for text, _ in row] for row in spans)]
        widths = [max(map(cells, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            gaps = [" " * (width - cells(text)) for text, width in zip(row, widths, strict=True)]
            padded = zip(columns, row, gaps, strict=True)
            print("  ".join(gap + text if column.right else text + gap for column, text, gap in padded).rstrip())


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], width: int) -> RenderableType:
    """One line each: a cell is cut, never wrapped. Names give way first; the wide column takes what is left."""
    from rich.cells import cell_len
    from rich.table import Table

    needs = [max(len(c.title), *(cell_len(clean(row[n][0])) for row in rows), 0) for n, c in enumerate(columns)]
    if sum(need + GAP for need in needs) > width:
        needs = [min(need, WIDEST_CELL) for need in needs]
        _give_way(needs, columns, width)
    left = width - sum(need + GAP for need, column in zip(needs, columns, strict=True) if not column.wide)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    shown = [n for n, column in enumerate(columns) if not column.wide or left >= LEAST]
    for n in shown:
        column, justify = columns[n], "right" if columns[n].right else "left"
        most = left if column.wide else needs[n]
        least = None if column.wide or left < 0 else most
        table.add_column(
            column.title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least, max_width=most
        )
    for row in rows:
        table.add_row(*(_text((row[n],)) for n in shown))
    return table


def _give_way(needs: list[int], columns: Sequence[Column], width: int) -> None:
    """Names are cut before states, numbers and times are, always the longest of them, until the rest has room."""
    names = [n for n, column in enumerate(columns) if column.name]
    room = width - sum(GAP + need for need, column in zip(needs, columns, strict=True) if not column.wide)
    while names and room < 0 and needs[longest := max(names, key=needs.__getitem__)] > LEAST:
        needs[longest] -= 1
        room += 1


def _text(spans: Spans) -> Text:
    from rich.text import Text

    # Never markup: what an agent wrote is shown, not obeyed.
    return Text.assemble(*((clean(text), style) for text, style in spans))


def cells(text: str) -> int:
    """How many columns a terminal takes for it: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in {"W", "F"} else 0 if combining(c) else 1 for c in text)


def console(stream: Any) -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:  # rich itself would end us with 1
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    plain = "NO_COLOR" in os.environ and os.environ["NO_COLOR"] != ""
    return Piped(file=stream, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def note(text: str) -> None:
    """A line for the person at the terminal; never part of the data, and never with a password."""
    print(clean(shown(text)), file=sys.stderr, flush=True)


def write(data: bytes) -> None:
    """Bytes to stdout as they are: data is UTF-8 whatever the terminal speaks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json(data: bytes) -> None:
    """JSON to stdout: as it is, but on a terminal with everything escaped that it would act upon."""
    write(escaped(data.decode()).encode() if sys.stdout.isatty() else data)


def progress() -> Progress:
    """A bar on stderr, gone when the work is done; nothing at all when nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
