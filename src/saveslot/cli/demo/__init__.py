"""`saveslot demo`: three agents, one is killed, one is stopped for too long, and every booking is made once.

Real processes on one SQLite file; only the model and the travel agency are played. The agent is in agent.py: what you
would write. What is shown is read from the store and from the agency's ledger, and the claims of the last lines are
counted there.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import TERMINATED, Misuse, until_terminated
from saveslot.cli.screen import Line, Screen
from saveslot.cli.state import DIM
from saveslot.model import Data
from saveslot.opening import open as open_sessions
from saveslot.settings import sqlite_url

if TYPE_CHECKING:
    from saveslot.cli.demo.story import Claim

AGENT = Path(__file__).with_name("agent.py")


async def demo(*, common: Common = COMMON) -> None:
    if os.name != "posix":
        raise Misuse("demo: it stops and wakes processes by signals, which this system does not have")
    with tempfile.TemporaryDirectory(prefix="saveslot-demo-") as folder:
        url, file = _store(common, Path(folder))
        if await until_terminated(_shown(common, url, file, Path(folder))):
            raise SystemExit(TERMINATED)
    if not common.json:
        hint = f"look around: saveslot ls --store {common.store}"
        hint = hint if common.store else "keep it and look around: saveslot demo --store sqlite:///demo.db"
        common.screen.lines([Line(body=((hint, DIM),)), Line(body=((f"the agent's code: {AGENT}", DIM),))])


def _store(common: Common, folder: Path) -> tuple[str, Path]:
    """A file of its own: the agents take whatever nobody holds."""
    if common.store is None:
        return sqlite_url(folder / "demo.db"), folder / "demo.db"
    if common.file is None:
        raise Misuse(f"demo: several processes share a SQLite file; {common.store} is none")
    if common.file.exists():
        raise Misuse(f"demo: {common.file} is there already; name a new file, it is the agents' own")
    return common.store, common.file


async def _shown(common: Common, url: str, file: Path, folder: Path) -> None:
    from saveslot.cli.demo import picture, story
    from saveslot.cli.demo.stage import Stage

    screen, namespace = common.screen, common.settings["namespace"].value
    async with open_sessions(url, namespace=namespace) as sessions:
        with picture.picture(screen) as draw:
            stage = Stage(sessions, url, file, file.with_name(f"{file.name}.ledger"), draw)
            ending = await story.play(stage, folder)
        seconds = time.time() - stage.began
    claims = list(story.claims(stage, ending))
    good = all(claim.true for claim in claims)
    if screen.json:
        told: Data = {"ok": good, "seconds": round(seconds, 3)}
        for claim in claims:
            told |= claim.numbers
        screen.data(told)
    else:
        trip = stage.trips[ending.doubtful.trip]
        screen.lines([Line(), Line(body=((f"the log of {trip.id}, with its owners", "bold"),))])
        screen.table(*picture.timeline(stage, trip, ending.doubtful.key))
        _told(screen, claims, good=good, seconds=seconds)
    if not good:
        raise SystemExit(1)


def _told(screen: Screen, claims: list[Claim], *, good: bool, seconds: float) -> None:
    screen.lines([Line()])
    for claim in claims:
        mark = ("✓ ", "bold green") if claim.true else ("✗ ", "bold red")
        screen.lines([Line((mark,), ((claim.told, ""),))])
    end = ("nothing lost, nothing done twice", "bold green") if good else ("this must not happen", "bold red")
    screen.lines([Line(), Line(body=(end, (f", in {seconds:.0f} s", "")))])
