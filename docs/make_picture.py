"""Draw docs/demo.svg from what `saveslot demo` prints on a terminal: python docs/make_picture.py

The picture moves by CSS alone. Each piece of text is visible while it stood there, and the whole run repeats. A reader
who prefers reduced motion, or whose viewer knows no animations, sees the end.
"""  # noqa: INP001

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parent / "demo.svg"
COLUMNS, LINES = 88, 46
# Of one character, and around the whole.
WIDTH, HEIGHT, MARGIN = 8.0, 19.0, 14.0
# Seconds between two frames, and for which the end stays.
STEP, HOLD = 0.25, 7.0
# Seconds without output after which the terminal shows a whole frame.
QUIET = 0.02

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
GROUND, INK = (18, 22, 30), (214, 220, 230)
COLOURS = [(60, 66, 80), (240, 100, 100), (120, 200, 120), (225, 180, 90), (105, 165, 245), (195, 145, 235)]
THEME = TerminalTheme(GROUND, INK, [*COLOURS, (95, 195, 205), INK])


class Frame(NamedTuple):
    at: float  # seconds since the first one
    lines: list[str]  # with their colours, as ANSI


class Piece(NamedTuple):
    """A text in one style somewhere on the screen."""

    row: int
    column: int
    text: str
    look: str


class Screen:
    """What a terminal shows: a moving picture moves the cursor up and rewrites its lines."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0

    def feed(self, out: str) -> None:
        for part in re.findall(r"\x1b\[\d*A|\x1b\[2K|\n|\x1b\[\?\w+|\r|[^\x1b\n\r]+|\x1b\[[\d;]*m", out):
            if part == "\n":
                self._row += 1
                self.lines += [""] * (self._row == len(self.lines))
            elif re.fullmatch(r"\x1b\[\d*A", part):
                self._row -= 1
            elif part == "\x1b[2K":
                self.lines[self._row] = ""
            elif part != "\r" and not part.startswith("\x1b[?"):
                self.lines[self._row] += part


def recorded(folder: str) -> list[Frame]:
    """The demo on a terminal of its own, as it looked over time; its store is in that folder."""
    master, slave = pty.openpty()
    environ = os.environ | {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color", "TMPDIR": folder}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "saveslot.cli", "demo"]
    screen, frames = Screen(), list[Frame]()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, env=environ) as demo:  # noqa: S603  (ourselves)
        os.close(slave)
        began, unread = time.monotonic(), b""
        while out := _read(master):
            unread += out
            if not select.select([master], [], [], QUIET)[0]:  # nothing more: the frame is whole
                screen.feed(unread.decode())
                frames.append(Frame(time.monotonic() - began, list(screen.lines)))
                unread = b""
    if demo.returncode:
        sys.exit(f"the demo ended with {demo.returncode}")
    screen.feed(unread.decode())
    playing = [*_sampled(frames)]
    return [*playing, Frame(playing[-1].at + STEP, _end(screen.lines))]


def _sampled(frames: list[Frame]) -> Iterator[Frame]:
    """The last frame of each step, while the demo plays; its clock shows whole seconds."""
    playing = [
        frame for frame in frames if len(frame.lines) > 1 and not any("the log of" in line for line in frame.lines)
    ]
    first = playing[0].at
    for _, group in groupby(playing, key=lambda frame: int((frame.at - first) / STEP)):
        *_, (at, lines) = group
        yield Frame(at - first, [re.sub(r"(\d+)\.\d s", r"\1 s", lines[0]), *lines[1:]])


def _end(lines: list[str]) -> list[str]:
    """The end without the long log in the middle, and without the hints of this machine below."""
    log = next(n for n, line in enumerate(lines) if "the log of" in line)
    claims = next(n for n, line in enumerate(lines) if n > log and "✓" in line)
    end = next(n for n, line in enumerate(lines) if "nothing lost" in line)
    return [*lines[:log], *lines[claims : end + 1]]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def drawn(frames: list[Frame]) -> str:
    length = frames[-1].at + HOLD
    windows: dict[tuple[int, int], int] = {}  # frames in which a piece is visible: first, and first without it
    texts: list[str] = []
    for piece, shown in _shown(frames):
        classes = ""
        if shown != (0, len(frames)):
            number = windows.setdefault(shown, len(windows))
            classes = f' class="w w{number}{"" if shown[1] == len(frames) else " h"}"'
        x, y = MARGIN + piece.column * WIDTH, MARGIN + (piece.row + 0.75) * HEIGHT
        size = f'x="{x:g}" y="{y:g}" textLength="{cell_len(piece.text) * WIDTH:g}"'
        texts.append(f"<text{classes} {size}{piece.look}>{escape(piece.text)}</text>")
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = max(len(frame.lines) for frame in frames) * HEIGHT + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" xml:space="preserve">',
            "<title>saveslot demo: an agent is killed, others finish its work, nothing happens twice</title>",
            "<style>.h{visibility:hidden}@media (prefers-reduced-motion:no-preference){",
            f".w{{animation:{length:.1f}s step-end infinite}}",
            *(_keyframes(number, *shown, frames, length) for shown, number in windows.items()),
            "}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="8" fill="rgb{GROUND}"/>',
            f'<g font-size="13.3" font-family="{FONT}" fill="{_hex(INK)}">',
            *texts,
            "</g></svg>\n",
        ]
    )


def _keyframes(number: int, first: int, end: int, frames: list[Frame], length: float) -> str:
    visible = f"{frames[first].at / length:.2%}{{visibility:visible}}"
    before = "0%{visibility:hidden}" if first else ""
    after = f"{frames[end].at / length:.2%}{{visibility:hidden}}" if end < len(frames) else ""
    return f".w{number}{{animation-name:k{number}}}@keyframes k{number}{{{before}{visible}{after}}}"


def _shown(frames: list[Frame]) -> Iterator[tuple[Piece, tuple[int, int]]]:
    """Each piece, and the frames in which it is to be seen."""
    began: dict[Piece, int] = {}
    for n, frame in enumerate(frames):
        pieces = dict.fromkeys(_pieces(frame.lines))
        for piece in [piece for piece in began if piece not in pieces]:
            yield piece, (began.pop(piece), n)
        for piece in pieces:
            began.setdefault(piece, n)
    yield from ((piece, (first, len(frames))) for piece, first in began.items())


def _pieces(lines: list[str]) -> Iterator[Piece]:
    console = Console(width=COLUMNS)
    for row, line in enumerate(console.render_lines(Text.from_ansi("\n".join(lines)), pad=False)):
        column = 0
        for segment in line:
            words = segment.text.strip()
            if words:
                start = column + cell_len(segment.text) - cell_len(segment.text.lstrip())
                yield Piece(row, start, words, "".join(_look(segment.style or Style())))
            column += cell_len(segment.text)


def _look(style: Style) -> Iterator[str]:
    colour = INK if style.color is None else tuple(style.color.get_truecolor(THEME))
    if colour != INK:
        yield f' fill="{_hex(colour)}"'
    if style.bold:
        yield ' font-weight="bold"'
    if style.dim:
        yield ' opacity="0.6"'


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        PICTURE.write_text(drawn(recorded(temporary)))
