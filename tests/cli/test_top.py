"""`saveslot top`: rates over the time that was watched, held apart from orphaned, `q` quits."""

from __future__ import annotations

import asyncio
import sys

import saveslot
from saveslot.cli.screen import Column, console, rich_table
from saveslot.cli.top import Activity, rate


class Clock:
    def __init__(self) -> None:
        self.now = 1000.5

    def __call__(self) -> float:
        return self.now


def test_rates_count_only_the_seconds_watched():
    """A steady 3 entries per second is shown as 3.0 from the first second on, and later over the last 20 s."""
    clock = Clock()
    activity = Activity(clock)
    assert rate(activity.drawn()) == 0
    for second in range(60):
        clock.now = 1000.5 + second
        assert rate(activity.drawn("a")) == (3 if second else 0)
        assert len(activity.drawn("a")) == min(second, 20)
        for _ in range(3):
            activity.count("a")
    assert rate(activity.drawn("b")) == 0


def test_a_narrow_sparkline_keeps_its_newest_end(capsys):
    """Where the column is too narrow, the oldest seconds are cut."""
    columns = [Column("ID"), Column("LAST 20 S", wide=True, newest_last=True)]
    console(sys.stdout).print(rich_table(columns, [[("a" * 60, ""), ("▁" * 19 + "█", "")]], 75))
    assert capsys.readouterr().out.splitlines()[1].rstrip().endswith("▁▁█")


def test_q_quits(terminal, samples):
    """The key q ends it with exit code 0, and leaves the terminal as it was."""
    view = terminal("top", "--every", "60")
    view.until("lesson-10")
    view.type("q")
    assert view.end() == 0
    assert view.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_sigterm_leaves_the_terminal_as_it_was(terminal, samples):
    """SIGTERM ends it with 143, on the usual screen."""
    view = terminal("top", "--every", "60")
    view.until("lesson-10")
    view.process.terminate()
    assert view.end() == 143
    assert view.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_held_does_not_count_orphans(terminal, samples):
    """A session of a dead worker is orphaned, not held."""

    async def leave() -> None:
        sessions = await saveslot.open(samples.url)
        await sessions.take("lesson-1")
        await sessions.close()

    asyncio.run(leave())
    view = terminal("top", "--every", "60", columns=160)
    view.until("0 held  1 orphaned")
    view.type("q")
    assert view.end() == 0
