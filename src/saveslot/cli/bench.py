"""`saveslot bench`: how fast this store is on this machine."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from saveslot.cli import benchmark
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag
from saveslot.cli.screen import Column, Table, note, progress
from saveslot.cli.words import sparkline
from saveslot.values.words import size

# Characters of a sparkline.
POINTS = 24


async def bench(
    *,
    quick: Annotated[bool, Flag("A tenth of the work, for a first impression.")] = False,
    common: Common = COMMON,
) -> None:
    with progress() as bars:
        tasks: dict[str, Any] = {}

        def step(shape: str, done: int, total: int) -> None:
            if shape not in tasks:
                tasks[shape] = bars.add_task(SHAPES.get(shape, shape), total=total)
            bars.update(tasks[shape], completed=done)

        note(f"measuring {common.place}")
        report = await benchmark.measure(common.url, benchmark.QUICK if quick else None, step)
    runs = [
        ("whole", report.whole, report.whole_bytes),
        ("append", report.appended, report.appended_bytes),
        ("single", report.single, None),
        ("crowd", report.crowd, None),
        ("resume", report.resume, None),
    ]
    columns = [
        *(Column("SHAPE"), Column("WHAT"), Column("PER SECOND", right=True), Column("P50 MS", right=True)),
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
    common.screen.answer([_measured(*run) for run in runs], [Table(columns, rows)])


SHAPES = {
    "whole": "long session, whole state each time",
    "append": "long session, append=",
    "single": "small checkpoints, one session",
    "crowd": "small checkpoints, 64 sessions at once",
    "resume": "resume the long session",
}


def _measured(shape: str, series: Any, stored: float | None) -> dict[str, Any]:
    row = {
        "shape": shape,
        "what": SHAPES[shape],
        "count": len(series.ms),
        "per_second": series.per_second,
        "p50_ms": series.p50,
        "p99_ms": series.p99,
    }
    return row if stored is None else {**row, "bytes_each": stored}


def _curve(ms: list[float]) -> str:
    """A sparkline of medians over equal parts of the run: flat if the last calls take as long as the first."""
    count = min(POINTS, len(ms))
    cuts = [round(n * len(ms) / count) for n in range(count + 1)]
    parts = [sorted(ms[a:b]) for a, b in pairwise(cuts)]
    return sparkline([part[len(part) // 2] for part in parts])
