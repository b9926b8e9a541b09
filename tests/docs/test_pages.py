"""README and docs: every example runs, and prints what the page shows.

A page is run from top to bottom in an empty folder, as a reader would:

    ```python     run as in `python -m asyncio`, or as a program; a ```text block right behind it is what it prints
    ```console    each `$` line is run by bash, on a terminal of 100 columns; what stands below it is its output
    ```toml       a file, named in its first line
    ```sh         not run, but every `make` goal in it exists

Times, ages, sizes, generated ids and the width of columns may differ. `...` stands for anything. `<!-- varies -->` in
front of a block: it is run, and what it prints is not compared. `<!-- a/file -->`: the block is a part of that file.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if path.is_file()
)
PAGES = [page for page in PAGES if not page.startswith("docs/decisions/")]

BLOCK = re.compile(r"^(?:<!-- (?P<told>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "text", "console", "toml", "sh", "json"}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# What differs from run to run, and what it is replaced by on both sides.
VARYING = [
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"just now|\b\d+[smhd] ago", "AGO"),
    (r"\b\d+s\b", "AGE"),
    (r"\b[\d.]+ (B|KB|MB|GB|TB)\b", "SIZE"),
    (r"\b[\w.-]+:\d{2,7}\b", "WORKER"),
    (r"\b3\.\d+\.\d+\b", "VERSION"),
    (r"[ \t]+", " "),
]


class Block(NamedTuple):
    line: int
    kind: str
    told: str
    text: str
    follows: bool  # nothing stands between it and the block before


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found: list[Block] = []
    end = -1
    for match in BLOCK.finditer(text):
        follows = end >= 0 and not text[end : match.start()].strip()
        found.append(
            Block(text.count("\n", 0, match.start()) + 1, match["kind"], match["told"] or "", match["text"], follows)
        )
        end = match.end()
    return found


def plain(text: str) -> list[str]:
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines()]


def same(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in "\n".join(plain(shown)).split("..."))
    return re.fullmatch(pattern, "\n".join(plain(printed)), re.DOTALL) is not None


class Page:
    """A reader at work: one Python session, one shell, one folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: dict[str, object] = {"__name__": "__example__"}

    async def run(self) -> None:
        found = blocks(self.name)
        for n, block in enumerate(found):
            where = f"{self.name}:{block.line}"
            assert block.kind in KINDS, f"{where}: what is ```{block.kind}?"
            if block.kind == "python":
                printed = await self.python(block, where)
                after = found[n + 1] if n + 1 < len(found) else None
                shown = after.text if after and after.kind == "text" and after.follows else ""
                assert same(shown, printed) or block.told == "varies", f"{where} prints\n{printed}"
            elif block.kind == "console":
                self.console(block, where)
            elif block.kind == "sh":
                goals = set(re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE))
                assert goals <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)), where
            elif block.kind == "toml":
                self.file(block)

    async def python(self, block: Block, where: str) -> str:
        if block.told and block.told != "varies":
            source = (ROOT / block.told).read_text()
            assert block.text in source or textwrap.indent(block.text, "    ") in source, (
                f"{where} is not in {block.told}"
            )
        if "asyncio.run(" in block.text:
            return self.program(block)
        code = compile(block.text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        output = io.StringIO()
        with redirect_stdout(output):
            answer = eval(code, self.names)  # noqa: S307  (our own pages)
            if inspect.iscoroutine(answer):
                await answer
        return output.getvalue()

    def program(self, block: Block) -> str:
        command = [sys.executable, "-c", block.text]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def file(self, block: Block) -> None:
        Path(block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)

    def console(self, block: Block, where: str) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                os.environ[name] = value
                continue
            code, printed = typed(command)
            refused = any(line.startswith("saveslot: ") for line in shown.splitlines())
            assert (code != 0) == refused or block.told == "varies", f"{where}: {command} ends with {code}\n{printed}"
            assert same(shown, printed) or block.told == "varies", f"{where}: {command} prints\n{printed}"


def typed(command: str) -> tuple[int, str]:
    """Its exit code, what it writes on its terminal, and below that what it says on stderr."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE
    ) as process:
        os.close(slave)
        patience = threading.Timer(60, process.kill)
        patience.start()
        out = b"".join(iter(lambda: read(master), b""))
        err = process.communicate()[1]
        patience.cancel()
    os.close(master)
    return process.returncode, out.decode() + err.decode()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """An empty folder and nothing of this machine's settings; the examples lie where a clone has them."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / "examples", work / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    monkeypatch.chdir(work)
    for name in ("SAVESLOT_URL", "SAVESLOT_HOT", "SAVESLOT_NAMESPACE", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # so that what a page exports is taken back
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return work


@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs_and_prints_what_is_shown(page, reader):
    """A reader who types what a page says sees what the page shows."""
    asyncio.run(Page(page).run())


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    """No page points to a file or a heading that is not there."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        target, _, heading = "".join(link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if heading:
            assert heading in {slug(title) for title in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)}, link


def slug(title: str) -> str:
    """A heading as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize(
    ("shown", "printed", "verdict"),
    [
        ("3 answered 5s ago", "3  answered   2m ago", True),
        ("3 answered", "4 answered", False),
        ("first\n...\nlast", "first\nmore\nlast", True),
        ("first\n...\nlast", "first\nmore", False),
        ("", "anything", False),
    ],
)
def test_the_comparison_sees_a_difference(shown, printed, verdict):
    """Only what must differ from run to run may differ."""
    assert same(shown, printed) is verdict
