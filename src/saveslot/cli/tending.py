"""The commands that look after a store: doctor, migrate, bench, completion."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.screen import Column, Line, note, progress, write
from saveslot.cli.state import DIM
from saveslot.cli.words import size, sparkline
from saveslot.errors import InvalidInput, NotFound

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}
# Points of a curve.
POINTS = 24


async def doctor(*, common: Common = COMMON) -> None:
    from saveslot.cli import checkup

    screen, path = common.screen, common.file
    if path is None:
        raise InvalidInput("--store", f"doctor looks at SQLite files; {common.url} is none")
    if not path.exists():
        raise NotFound(f"there is no file {path} ({common.said_by}); nothing was saved there yet")
    with progress() as bars:
        tasks: dict[str, Any] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        findings = [finding async for finding in checkup.check(path, common.url, step)]
    wrong = sum(finding.state == "problem" for finding in findings)
    if screen.json:
        screen.data({"ok": not wrong, "findings": [msgspec.to_builtins(finding) for finding in findings]})
    else:
        screen.lines(line for finding in findings for line in _finding(finding, terminal=screen.terminal))
    if wrong:
        raise SystemExit(1)


def _finding(finding: Any, *, terminal: bool) -> Iterator[Line]:
    mark, style = MARKS[finding.state]
    mark = f"{mark} " if terminal else f"{finding.state:<8}"
    yield Line(((mark, style), (f"{finding.what:<12}  ", "bold")), ((finding.told, ""),))
    below = (((" " * (len(mark) + 14)), ""),)
    for detail in finding.details:
        yield Line(below, ((detail, DIM),))
    for advice in finding.advice:
        yield Line((*below, ("→ ", style)), ((advice, style),))


async def migrate(
    *,
    apply: Annotated[
        bool, Parameter(negative="", show_default=False, help="Bring the tables up to date; else only say what is due.")
    ] = False,
    common: Common = COMMON,
) -> None:
    from saveslot.cli.checkup import formats

    screen, path = common.screen, common.file
    if path is None:
        raise InvalidInput("--store", f"{common.url} has no tables to migrate")
    if apply:
        async with common.sessions(create=True):
            pass  # opening migrates, under a lock
    if not path.exists():
        raise NotFound(f"there is no file {path} ({common.said_by}); --apply makes it")
    found, known = formats(path)
    if screen.json:
        screen.data({"file": str(path), "format": found, "known": known, "pending": max(0, known - found)})
        return
    if found > known:
        raise InvalidInput("url", f"{path} is of a newer Saveslot (format {found}, known {known}); upgrade saveslot")
    due = f"{known - found} to apply; --apply does it" if found < known else "up to date"
    screen.say((f"{path}  ", "bold"), (f"format {found} of {known}, {due}", ""))


async def bench(
    *,
    quick: Annotated[
        bool, Parameter(negative="", show_default=False, help="A tenth of the work, for a first impression.")
    ] = False,
    common: Common = COMMON,
) -> None:
    from saveslot import benchmark

    screen = common.screen
    with progress() as bars:
        tasks: dict[str, Any] = {}

        def step(shape: str, done: int, total: int) -> None:
            if shape not in tasks:
                tasks[shape] = bars.add_task(SHAPES.get(shape, shape), total=total)
            bars.update(tasks[shape], completed=done)

        note(f"measuring {common.file or common.url}")
        report = await benchmark.measure(common.url, benchmark.QUICK if quick else None, step)
    runs = [
        ("A", report.whole, report.whole_bytes),
        ("A'", report.appended, report.appended_bytes),
        ("B", report.single, None),
        ("C", report.crowd, None),
        ("D", report.resume, None),
    ]
    if screen.json:
        screen.data([_measured(shape, series, stored) for shape, series, stored in runs])
        return
    columns = [
        *(Column(""), Column("SHAPE"), Column("PER SECOND", right=True), Column("P50 MS", right=True)),
        *(Column("P99 MS", right=True), Column("BYTES EACH", right=True), Column("MS, FIRST TO LAST")),
    ]
    rows = [
        [
            (shape, "bold"),
            SHAPES[shape],
            (f"{series.per_second:,.0f}", "green"),
            f"{series.p50:.2f}",
            f"{series.p99:.2f}",
            "" if stored is None else size(stored),
            (_curve(series.ms), "cyan"),
        ]
        for shape, series, stored in runs
    ]
    screen.table(columns, rows)


SHAPES = {
    "A": "long session, whole state each time",
    "A'": "long session, append=",
    "B": "small checkpoints, one session",
    "C": "small checkpoints, 64 sessions at once",
    "D": "resume the long session",
}


def _measured(shape: str, series: Any, stored: float | None) -> dict[str, Any]:
    told = {
        "shape": shape,
        "what": SHAPES[shape],
        "count": len(series.ms),
        "per_second": series.per_second,
        "p50_ms": series.p50,
        "p99_ms": series.p99,
    }
    return told if stored is None else {**told, "bytes_each": stored}


def _curve(ms: list[float]) -> str:
    """Medians of equal stretches: a flat line costs the same at the end as at the beginning."""
    count = min(POINTS, len(ms))
    cuts = [round(n * len(ms) / count) for n in range(count + 1)]
    parts = [sorted(ms[a:b]) for a, b in pairwise(cuts)]
    return sparkline([part[len(part) // 2] for part in parts])


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], Parameter(help="bash, in ~/.bashrc: source <(saveslot completion bash).")
    ],
    /,
) -> None:
    from saveslot.cli.app import app

    write(app.generate_completion(shell=shell).encode())
