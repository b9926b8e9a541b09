"""Draw docs/demo.svg from what `saveslot demo` prints on a terminal: python docs/make_picture.py"""  # noqa: INP001

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parent / "demo.svg"
COLUMNS = 88
# Of one character, and around the whole.
WIDTH, HEIGHT, MARGIN = 8.0, 19.0, 14.0

GROUND, INK = (18, 22, 30), (214, 220, 230)
COLOURS = [(60, 66, 80), (240, 100, 100), (120, 200, 120), (225, 180, 90), (105, 165, 245), (195, 145, 235)]
THEME = TerminalTheme(GROUND, INK, [*COLOURS, (95, 195, 205), INK])


def printed() -> str:
    """The demo on a terminal of its own."""
    master, slave = pty.openpty()
    environ = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "saveslot.cli", "demo"]
    with subprocess.Popen(command, stdout=slave, env=environ) as demo:  # noqa: S603  (ourselves)
        os.close(slave)
        out = b"".join(iter(lambda: _read(master), b""))
    if demo.returncode:
        sys.exit(f"the demo ended with {demo.returncode}")
    # What stands there at the end, without the long log in the middle and the hints of this machine below.
    lines = screen(out.decode())
    log = next(n for n, line in enumerate(lines) if "the log of" in line)
    claims = next(n for n, line in enumerate(lines) if n > log and "✓" in line)
    end = next(n for n, line in enumerate(lines) if "nothing lost" in line)
    return "\n".join([*lines[:log], *lines[claims : end + 1]])


def screen(out: str) -> list[str]:
    """What a terminal shows after all of it: a picture that moves goes up, and writes its lines anew."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[\d*A|\x1b\[2K|\n|\x1b\[\?\w+|\r|[^\x1b\n\r]+|\x1b\[[\d;]*m", out):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b[?"):
            lines[row] += part
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def drawn(text: str) -> str:
    console = Console(width=COLUMNS)
    lines = console.render_lines(Text.from_ansi(text), pad=False)
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    spans: list[str] = []
    for n, line in enumerate(lines):
        y, column = MARGIN + (n + 0.75) * HEIGHT, 0
        for segment in line:
            words = segment.text.strip()
            if words:
                x = MARGIN + (column + cell_len(segment.text) - cell_len(segment.text.lstrip())) * WIDTH
                look = " ".join(_look(segment.style or Style()))
                size = f'x="{x:g}" y="{y:g}" textLength="{cell_len(words) * WIDTH:g}"'
                spans.append(f"<text {size} {look}>{escape(words)}</text>")
            column += cell_len(segment.text)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" xml:space="preserve">',
            "<title>saveslot demo: an agent is killed, others finish its work, nothing happens twice</title>",
            f'<rect width="{width:g}" height="{height:g}" rx="8" fill="rgb{GROUND}"/>',
            '<g font-size="13.3" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
            *spans,
            "</g></svg>\n",
        ]
    )


def _look(style: Style) -> Iterator[str]:
    colour = INK if style.color is None else tuple(style.color.get_truecolor(THEME))
    yield f'fill="rgb{colour}"'.replace(" ", "")
    if style.bold:
        yield 'font-weight="bold"'
    if style.dim:
        yield 'opacity="0.6"'


if __name__ == "__main__":
    PICTURE.write_text(drawn(printed()))
