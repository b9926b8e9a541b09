"""The commands that look after a store: doctor, migrate, bench, completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.findings import Finding, Progress
from saveslot.cli.screen import Column, Line, note, progress, write
from saveslot.cli.state import DIM
from saveslot.cli.words import size, sparkline
from saveslot.errors import InvalidInput, NotFound

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}
# Points of a curve.
POINTS = 24


async def doctor(
    *,
    hot: Annotated[
        str | None, Parameter(help="URL of the Valkey in front, to check it too. Else SAVESLOT_HOT, saveslot.toml.")
    ] = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    with progress() as bars:
        tasks: dict[str, Any] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        findings = [finding async for finding in _examined(common, step)]
        findings += [finding async for finding in _examined_hot(hot or common.hot)]
    wrong = sum(finding.state == "problem" for finding in findings)
    if screen.json:
        screen.data({"ok": not wrong, "findings": [msgspec.to_builtins(finding) for finding in findings]})
    else:
        screen.lines(line for finding in findings for line in _finding(finding, terminal=screen.terminal))
    if wrong:
        raise SystemExit(1)


def _examined(common: Common, step: Progress) -> AsyncGenerator[Finding]:
    if common.postgres:
        return _postgres().check(common.url, step)
    if common.valkey:
        from saveslot.cli import checkup_valkey_store

        return checkup_valkey_store.check(common.url, step)
    from saveslot.cli import checkup

    path = common.file
    if path is None:
        raise InvalidInput("--store", f"doctor looks at SQLite files, PostgreSQL and Valkey; {common.place} is none")
    if not path.exists():
        raise NotFound(f"there is no file {path} ({common.said_by}); nothing was saved there yet")
    return checkup.check(path, common.url, step)


async def _examined_hot(url: str | None) -> AsyncGenerator[Finding]:
    if url is not None:
        from saveslot.cli import checkup_valkey

        async for finding in checkup_valkey.check(url):
            yield finding


def _postgres() -> ModuleType:
    try:
        from saveslot.cli import checkup_postgres
    except ModuleNotFoundError:
        raise InvalidInput("url", "PostgreSQL needs a driver: pip install 'saveslot[postgres]'") from None
    return checkup_postgres


def _finding(finding: Finding, *, terminal: bool) -> Iterator[Line]:
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
    screen, place = common.screen, common.place
    if common.file is None and not common.postgres:
        raise InvalidInput("--store", f"{place} has no tables to migrate")
    if apply:
        async with common.sessions(create=True) as sessions:  # opening migrates, under a lock
            await sessions.keeper.tend()
    found, known = await _formats(common)
    if screen.json:
        screen.data({"store": place, "format": found, "known": known, "pending": max(0, known - found)})
        return
    if found > known:
        raise InvalidInput("url", f"{place} is of a newer Saveslot (format {found}, known {known}); upgrade saveslot")
    due = f"{known - found} to apply; --apply does it" if found < known else "up to date"
    screen.say((f"{place}  ", "bold"), (f"format {found} of {known}, {due}", ""))


async def _formats(common: Common) -> tuple[int, int]:
    """The store's format, and the newest that this Saveslot knows."""
    if common.file is None:
        found, known = await _postgres().formats(common.url)
        if not found:
            raise NotFound(f"there are no tables in {common.place} ({common.said_by}); --apply makes them")
        return found, known
    from saveslot.cli import checkup

    if not common.file.exists():
        raise NotFound(f"there is no file {common.file} ({common.said_by}); --apply makes it")
    return checkup.formats(common.file)


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

        note(f"measuring {common.place}")
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
