"""Output: data on stdout, everything else on stderr; colours on a terminal, plain aligned text in a pipe.

Lines consist of spans, (text, style), so one description serves both; rich is imported for terminals only.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unicodedata import combining, east_asian_width

import msgspec

from saveslot import codec
from saveslot.cli.pager import page
from saveslot.cli.words import clean, escaped
from saveslot.stores import shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

Span = tuple[str, str]
Spans = tuple[Span, ...]

# Columns used of a terminal; longer lines are hard to follow.
WIDEST = 160
# Columns of a cell, if the table is wider than the terminal.
WIDEST_CELL = 36
# Blanks between two columns; the least width of a column.
GAP, LEAST = 2, 8


class Line(NamedTuple):
    """A line of output. If it wraps, the next lines start with `hang`."""

    lead: Spans = ()
    body: Spans = ()
    hang: Spans | None = None  # None: blanks as wide as `lead`


class Column(NamedTuple):
    title: str
    right: bool = False
    wide: bool = False  # takes the width that is left, and is cut on a terminal
    name: bool = False  # chosen by users, of any length: cut if the table is too wide
    id: bool = False  # never cut, so that it can be copied: an id longer than WIDEST_CELL is folded
    spare: int = 0  # left out of a table that is too wide, the highest first; 0: never
    newest_last: bool = False  # cut at its beginning


Cell = str | Span


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]


Part = Line | Table | str  # of an answer; text goes to stderr, for the person at the terminal


def line(*body: Span) -> Line:
    return Line(body=body)


class Screen:
    def __init__(self, *, json: bool = False, paged: bool = True) -> None:
        self.json = json
        self.terminal = sys.stdout.isatty() and not json
        self._paged = paged and self.terminal
        self._coloured = not self.terminal and forced()  # colours are all that changes: scripts read the same text
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        if self._console is None:
            self._console = console(sys.stdout)
        return self._console

    @property
    def width(self) -> int:
        return min(WIDEST, self.console.width)

    def answer(self, value: Any, parts: Iterable[Part]) -> None:
        """`value` with --json, otherwise `parts`, which are made only then."""
        if self.json:
            self.data(value)
            return
        if not self._paged:
            for note_ in self._printed(parts):
                note(note_)
            return
        with self.console.capture() as printed:
            notes = list(self._printed(parts))
        page(printed.get())
        for text in notes:
            note(text)

    def _printed(self, parts: Iterable[Part]) -> Iterator[str]:
        """Print the parts; yield the notes among them."""
        for part in parts:
            match part:
                case str():
                    yield part
                case Table():
                    self.table(part)
                case Line():
                    self.lines([part])

    def event(self, value: Any, line: Line) -> None:
        """One answer of a stream, as a line of JSON or text, flushed at once."""
        if self.json:
            write_json(msgspec.json.encode(_plain(value)) + b"\n")
            return
        self.lines([line])
        write(b"")

    def data(self, value: Any) -> None:
        """A value as JSON; types that JSON lacks are tagged as in an export."""
        text, _ = codec.encode(_plain(value), "output", codec.ANY_SIZE)
        write_json(msgspec.json.format(text, indent=2) + b"\n")

    def lines(self, lines: Iterable[Line]) -> None:
        if not self.terminal:
            for line in lines:
                self._print((*line.lead, *line.body))
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

    def table(self, table: Table) -> None:
        columns, rows = table
        spans = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
        if self.terminal:
            self.console.print(rich_table(columns, spans, self.console.width))
            return
        texts = [[(column.title, "dim") for column in columns], *([(clean(t), s) for t, s in row] for row in spans)]
        widths = [max(cells(text) for text, _ in column) for column in zip(*texts, strict=True)]
        for row in texts:
            gaps = [" " * (width - cells(text)) for (text, _), width in zip(row, widths, strict=True)]
            padded = zip(columns, row, gaps, strict=True)
            parts = [((gap, ""), cell) if column.right else (cell, (gap, "")) for column, cell, gap in padded]
            self._print([span for part in parts for span in (*part, ("  ", ""))])

    def _print(self, spans: Sequence[Span]) -> None:
        """A line in a pipe, without blanks at its end."""
        if not self._coloured:
            print(clean("".join(text for text, _ in spans)).rstrip())
            return
        text = _text(tuple(spans))
        text.rstrip()
        self.console.print(text, soft_wrap=True)


def _plain(value: Any) -> Any:
    """Public values as their `to_dict`, also inside a list."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value.to_dict() if hasattr(value, "to_dict") else value


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], width: int) -> RenderableType:
    """A table with one line per row: cells are cut, never wrapped. The wide column takes the width that is left."""
    from rich.cells import cell_len
    from rich.table import Table

    needs = [max(len(c.title), *(cell_len(clean(row[n][0])) for row in rows), 0) for n, c in enumerate(columns)]
    if sum(need + GAP for need in needs) > width:
        needs = [min(need, WIDEST_CELL) for need in needs]
    kept, needs = _fitting(needs, columns, width)
    left = width - sum(needs[n] + GAP for n in kept if not columns[n].wide)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    for n in kept:
        column, justify = columns[n], "right" if columns[n].right else "left"
        most = left if column.wide else needs[n]
        least = None if column.wide or left < 0 else most
        overflow = "fold" if column.id else "ellipsis"
        table.add_column(
            column.title, justify=justify, no_wrap=not column.id, overflow=overflow, min_width=least, max_width=most
        )
    for row in rows:
        table.add_row(*(_text((_end(row[n], left) if columns[n].newest_last else row[n],)) for n in kept))
    return table


def _fitting(widths: Sequence[int], columns: Sequence[Column], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, by number, and all widths: names are shortened first, then columns left out.

    Ids, states, numbers and times are never shortened.
    """
    kept = list(range(len(columns)))
    while True:
        needs = list(widths)
        room = width - sum(GAP + needs[n] for n in kept if not columns[n].wide)
        if room < LEAST:
            kept = [n for n in kept if not columns[n].wide]
        names = [n for n in kept if columns[n].name]
        while names and room < 0 and needs[longest := max(names, key=needs.__getitem__)] > LEAST:
            needs[longest] -= 1
            room += 1
        spare = max(kept, key=lambda n: columns[n].spare)
        if room >= 0 or not columns[spare].spare:
            return kept, needs
        kept.remove(spare)


def _end(cell: Span, width: int) -> Span:
    """The last `width` characters of a cell."""
    return cell[0][-width:], cell[1]


def _text(spans: Spans) -> Text:
    from rich.text import Text

    # Never markup: an agent's text is data.
    return Text.assemble(*((clean(text), style) for text, style in spans))


def cells(text: str) -> int:
    """The width of a text on a terminal: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in {"W", "F"} else 0 if combining(c) else 1 for c in text)


# Columns below which rich and cyclopts cannot lay out a page; with 0 or 1 they never return.
NARROWEST = 20


def console(stream: Any) -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:  # rich itself would exit with 1
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    system = None if os.environ.get("NO_COLOR") else "auto"
    # rich itself takes FORCE_COLOR=0 for yes.
    terminal = stream.isatty() or forced()
    screen = Piped(
        file=stream, highlight=False, markup=False, emoji=False, color_system=system, force_terminal=terminal
    )
    if screen.width < NARROWEST:  # noqa: PLR1730  (COLUMNS=0; a width that is set no longer follows the terminal)
        screen.width = NARROWEST
    return screen


def forced() -> bool:
    """True if the environment asks for colours in a pipe: FORCE_COLOR or CLICOLOR_FORCE, unless it is 0."""
    if os.environ.get("NO_COLOR"):
        return False
    return any(os.environ.get(name, "0") not in {"", "0"} for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))


def note(text: str) -> None:
    """Print a line for the user on stderr: never data, and never a password."""
    print(clean(shown(text)), file=sys.stderr, flush=True)


def write(data: bytes) -> None:
    """Write bytes to stdout unchanged: data is UTF-8, whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json(data: bytes) -> None:
    """Write JSON to stdout; on a terminal, control characters are escaped."""
    write(escaped(data.decode()).encode() if sys.stdout.isatty() else data)


def progress() -> Progress:
    """A progress bar on stderr that disappears when done; nothing without a terminal."""
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
