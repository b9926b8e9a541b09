"""README and docs: every example runs as it is, and prints what the page shows.

A page is run from top to bottom in an empty folder, as a reader would:

    ```python     a whole script, run as a file would be; a ```text block right after it is what it prints.
                  If its first line names a file, it is written there, and a command below runs it
    ```console    each `$` line is run by bash, on a terminal of 100 columns; the lines below it are its output.
                  One that ends with & runs until the end of the page. The port 7788 stands for a free one
    ```toml       a file, named in its first line
    ```sh         not run, but every `make` goal in it exists

An HTML comment on the line before a block says more about it:

    <!-- continues the script above -->    pasted at the end of the same file, so it has its names and imports
    <!-- continues the first script -->    the same, at the end of the page's first
    <!-- varies -->                        run, but its output is not compared
    <!-- examples/tutor.py -->             a part of that file, and of the script above if there is one

Times, ages, sizes, generated ids and the width of columns may differ. `...` matches anything.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import socket
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
# The reference's blocks are signatures; tests/adapters run those of pages that need a framework.
EXAMPLES = [page for page in PAGES if page != "docs/reference.md" and not page.startswith("docs/frameworks/")]
CONTINUES = {"continues the script above": -1, "continues the first script": 0}

BLOCK = re.compile(r"^(?:<!-- (?P<marks>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "text", "console", "toml", "sh", "json"}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# What differs from run to run, and what it is replaced by on both sides.
VARYING = [
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"just now|(?<!more than )\b\d+[smhd] ago", "AGO"),
    (r"\b\d+[sm]\b", "AGE"),  # minutes on a busy machine
    (r"\b[\d.]+ (B|KB|MB|GB|TB)\b", "SIZE"),
    (r"\b[\w.-]+:\d{2,7}\b", "WORKER"),
    (r"\b3\.\d+\.\d+\b", "VERSION"),
    (r"[ \t]+", " "),
]


class Block(NamedTuple):
    line: int
    kind: str
    marks: set[str]
    text: str
    follows: bool  # nothing is between it and the block before


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    items: list[Block] = []
    end = -1
    for match in BLOCK.finditer(text):
        marks = set((match["marks"] or "").split(", ")) - {""}
        follows = end >= 0 and not text[end : match.start()].strip()
        items.append(
            Block(
                text.count("\n", 0, match.start()) + 1,
                match["kind"],
                marks,
                match["text"],
                follows,
            )
        )
        end = match.end()
    return items


def plain(text: str) -> list[str]:
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines()]


def same(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in "\n".join(plain(shown)).split("..."))
    return re.fullmatch(pattern, "\n".join(plain(printed)), re.DOTALL) is not None


class Page:
    """A reader at work: one script at a time, one shell, one folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scripts: list[dict[str, object]] = []
        self.running: list[subprocess.Popen[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def run(self) -> None:
        try:
            self.blocks()
        finally:
            for process in self.running:
                process.kill()
                process.communicate()

    def blocks(self) -> None:
        result = blocks(self.name)
        for n, block in enumerate(result):
            where = f"{self.name}:{block.line}"
            assert block.kind in KINDS, f"{where}: what is ```{block.kind}?"
            if re.match(r"# [\w-]+\.(toml|py)\n", block.text):
                self.file(block)
            elif block.kind == "python":
                printed = self.python(block, where)
                after = result[n + 1] if n + 1 < len(result) else None
                shown = after.text if after and after.kind == "text" and after.follows else ""
                assert same(shown, printed) or "varies" in block.marks, f"{where} prints\n{printed}"
            elif block.kind == "console":
                self.console(block, where)
            elif block.kind == "sh":
                goals = set(re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE))
                assert goals <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)), where

    def python(self, block: Block, where: str) -> str:
        files = block.marks - {"varies", *CONTINUES}
        for file in files:
            source = (ROOT / file).read_text()
            assert block.text in source or textwrap.indent(block.text, "    ") in source, f"{where} is not in {file}"
        which = [place for mark, place in CONTINUES.items() if mark in block.marks]
        if not self.scripts or (not which and not files):
            self.scripts.append({"__name__": "__main__"})
        # As in a file: a top-level await is a syntax error, and this file's __future__ does not count.
        code = compile(block.text, where, "exec", dont_inherit=True)
        output = io.StringIO()
        with redirect_stdout(output):
            exec(code, self.scripts[which[0] if which else -1])  # noqa: S102  (our own pages)
        return output.getvalue()

    def file(self, block: Block) -> None:
        Path(block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)

    def console(self, block: Block, where: str) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            command = command.replace("7788", str(self.port))
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                os.environ[name] = value
                continue
            if command.endswith(" &"):
                printed = self.start(command.removesuffix(" &"))
                assert same(shown, printed), f"{where}: {command} prints\n{printed}"
                continue
            code, printed = typed(command)
            refused = any(line.startswith("saveslot: ") for line in shown.splitlines())
            assert (code != 0) == refused or "varies" in block.marks, f"{where}: {command} ends with {code}\n{printed}"
            assert same(shown, printed) or "varies" in block.marks, f"{where}: {command} prints\n{printed}"

    def start(self, command: str) -> str:
        """Start a command that goes on, and return the first line that it prints."""
        self.running.append(subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, text=True))
        return self.running[-1].stdout.readline()


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
    """An empty folder and nothing of this machine's settings; the examples are where a clone has them."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / "examples", work / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    monkeypatch.chdir(work)
    for name in ("SAVESLOT_URL", "SAVESLOT_HOT", "SAVESLOT_NAMESPACE", "FORCE_COLOR", "API"):
        monkeypatch.setenv(name, "")  # so that what a page exports is taken back
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return work


@pytest.mark.parametrize("page", EXAMPLES)
def test_every_example_runs_and_prints_what_is_shown(page, reader):
    """A reader who pastes a page's scripts and types its commands sees the output the page shows."""
    Page(page).run()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_resolves(page):
    """No page links to a missing file or heading."""
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
def test_comparison_detects_a_difference(shown, printed, verdict):
    """Only values that vary from run to run may differ."""
    assert same(shown, printed) is verdict
