"""`saveslot demo`: three agents, one is killed, one is stopped for too long, and every booking is made once.

Real processes on one SQLite file, or with `--stack` on a PostgreSQL and a Valkey that are started for it; only the
model and the travel agency are played. The agent is in agent.py: what you would write. What is shown is read from the
store and from the agency's ledger, and the claims of the last lines are counted there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import TERMINATED, Misuse, until_terminated
from saveslot.cli.screen import Line, Screen
from saveslot.cli.state import DIM
from saveslot.model import Data
from saveslot.opening import open as open_sessions
from saveslot.settings import sqlite_url

if TYPE_CHECKING:
    from saveslot.cli.demo.stage import Place
    from saveslot.cli.demo.story import Claim

AGENT = Path(__file__).with_name("agent.py")


async def demo(
    *,
    stack: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="On a private PostgreSQL and Valkey, started for it from wheels."
        ),
    ] = False,
    common: Common = COMMON,
) -> None:
    if os.name != "posix":
        raise Misuse("demo: it stops and wakes processes by signals, which this system does not have")
    if stack and common.store is not None:
        raise Misuse("demo: --stack starts a store of its own; leave --store out")
    with tempfile.TemporaryDirectory(prefix="saveslot-demo-") as folder:
        if await until_terminated(_played(common, Path(folder), stack=stack)):
            raise SystemExit(TERMINATED)
    if not common.json:
        hint = "keep it and look around: saveslot demo --store sqlite:///demo.db"
        if stack:
            hint = "on your own servers: saveslot.open('postgresql://…', hot='valkey://…')"
        elif common.store is not None:
            hint = f"look around: saveslot ls --store {common.store}"
        common.screen.lines([Line(body=((hint, DIM),)), Line(body=((f"the agent's code: {AGENT}", DIM),))])


async def _played(common: Common, folder: Path, *, stack: bool) -> None:
    with _servers(folder) if stack else _file(common, folder) as place:
        await _shown(common, place, folder)


@contextmanager
def _file(common: Common, folder: Path) -> Generator[Place]:
    """A file of its own: the agents take whatever nobody holds."""
    from saveslot.cli.demo.stage import Place

    if common.store is not None and common.file is None:
        raise Misuse(f"demo: the agents share a SQLite file; {common.place} is none (--stack brings a PostgreSQL)")
    file = common.file if common.store is not None and common.file is not None else folder / "demo.db"
    if file.exists():
        raise Misuse(f"demo: {file} is there already; name a new file, it is the agents' own")
    ledger = file.with_name(f"{file.name}.ledger")
    yield Place(common.store or sqlite_url(file), "one SQLite file", ledger, file=file)


@contextmanager
def _servers(folder: Path) -> Generator[Place]:
    """Servers of its own, gone however it ends. Signals wait for the loop, so none falls into a start."""
    from saveslot.cli.demo.stage import Place
    from saveslot.stack import Postgres, Valkey

    with ExitStack() as ending:
        started: list[Postgres | Valkey] = []
        for kind in (Postgres, Valkey):
            # Not inside `folder`, which is ours alone: as root the servers run as somebody else.
            own = ending.enter_context(tempfile.TemporaryDirectory(prefix="saveslot-demo-"))
            server = kind(Path(own))
            ending.callback(server.stop)
            server.start()
            started.append(server)
        postgres, valkey = started
        yield Place(postgres.url, "a private PostgreSQL, Valkey in front", folder / "ledger", hot=valkey.url)


async def _shown(common: Common, place: Place, folder: Path) -> None:
    from saveslot.cli.demo import picture, story
    from saveslot.cli.demo.stage import Stage

    screen, namespace = common.screen, common.settings["namespace"].value
    async with open_sessions(place.url, hot=place.hot, namespace=namespace) as sessions:
        with picture.picture(screen) as draw:
            stage = Stage(sessions, place, draw)
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
