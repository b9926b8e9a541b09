"""`saveslot demo`: three agents work; one is killed, one is stopped for too long, and every booking still happens once.

The processes are real, on one SQLite file, or with `--stack` on a PostgreSQL and a Valkey started for the demo; only
the model and the travel agency are simulated. agent.py is the code that you would write. The output comes from the
store and the agency's ledger, and so do the figures of the final claims.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import TERMINATED, Misuse, until_terminated
from saveslot.cli.options import Flag
from saveslot.cli.screen import Line, Part, Screen, Table, line
from saveslot.cli.state import DIM
from saveslot.opening import open as open_sessions
from saveslot.stores import sqlite_url
from saveslot.values.checks import Data

if TYPE_CHECKING:
    from saveslot.cli.demo.page import Page
    from saveslot.cli.demo.stage import Place, Stage, Tempo, Trip
    from saveslot.cli.demo.story import Claim

AGENT = Path(__file__).with_name("agent.py")


async def demo(
    *,
    stack: Annotated[bool, Flag("Run on a private PostgreSQL and Valkey, started from wheels.")] = False,
    fast: Annotated[bool, Flag("Play it in about 10 seconds.")] = False,
    page: Annotated[bool, Flag("Serve the web page beside it, until Ctrl-C.")] = False,
    common: Common = COMMON,
) -> None:
    from saveslot.cli.demo.page import INSTALL, installed
    from saveslot.cli.demo.stage import FAST, USUAL

    if os.name != "posix":
        raise Misuse("demo: it stops and continues processes by signals, which this system does not have")
    if stack and common.store is not None:
        raise Misuse("demo: --stack starts a store of its own; leave --store out")
    if page and common.json:
        raise Misuse("demo: --page serves until Ctrl-C; leave --json out")
    if page and not installed():
        raise Misuse(f"demo: --page needs the extra: {INSTALL}")
    with tempfile.TemporaryDirectory(prefix="saveslot-agents-") as folder:
        if await until_terminated(_played(common, Path(folder), FAST if fast else USUAL, stack=stack, paged=page)):
            raise SystemExit(TERMINATED)


async def _played(common: Common, folder: Path, tempo: Tempo, *, stack: bool, paged: bool) -> None:
    from saveslot.cli.demo.page import page

    async with AsyncExitStack() as ending:
        place = ending.enter_context(_servers(folder) if stack else _file(common))
        served: Page | None = None
        if paged:
            namespace = str(common.settings["namespace"].value)
            served = await ending.enter_async_context(page(place, namespace, folder))
            common.screen.lines([line(("watch it at ", ""), (served.url, "bold")), Line()])
            sys.stdout.flush()
        trip, good = await _shown(common, place, folder, tempo)
        if not common.json:
            _look_around(common, place, trip, served)
        if served is not None:
            await served.until_stopped()
    if not good:
        raise SystemExit(1)


def _look_around(common: Common, place: Place, trip: str, served: Page | None) -> None:
    """Print commands to look around, each on a line of its own however narrow the terminal: they are to be copied."""
    from saveslot.cli.demo.page import INSTALL, installed

    screen = common.screen
    screen.lines([Line()])
    if place.file is None:
        screen.lines([line(("on your own servers: saveslot.open('postgresql://…', hot='valkey://…')", DIM))])
    else:
        screen.lines([line((f"its store is {place.file}; look around:", ""))])
        store = ["--store", str(place.file.absolute())]
        at = store if common.namespace is None else [*store, "--namespace", common.namespace]
        for words in (["log", trip, "--all"], ["steps", trip], ["fork", f"{trip}@planned", "--as", f"{trip}-again"]):
            print(f"  {_program()} {shlex.join([*words, *at])}")
        screen.lines([line(("in a browser:" if installed() else f"in a browser ({INSTALL}):", ""))])
        print(f"  {_program()} {shlex.join(['serve', *store])}")
    screen.lines([line((f"the agent's code: {AGENT}", DIM))])
    if served is not None:
        screen.lines([line(("the page is at ", ""), (served.url, "bold"), (" until Ctrl-C", ""))])
        sys.stdout.flush()


def _program() -> str:
    """`saveslot` as this shell finds it: after `make demo`, or without an activated environment, by its path."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m saveslot"
    path = shutil.which("saveslot")
    if started.name != "saveslot" or (path is not None and Path(path).samefile(started)):
        return "saveslot"
    return shlex.quote(str(started))


@contextmanager
def _file(common: Common) -> Generator[Place]:
    """Yield a new file, since the agents claim every session without an owner. It is kept once the story has ended."""
    from saveslot.cli.demo.stage import Place

    named = common.file if common.store is not None else None
    if common.store is not None and named is None:
        raise Misuse(f"demo: the agents share a SQLite file; {common.place} is not one (--stack starts a PostgreSQL)")
    if named is not None and named.exists():
        raise Misuse(
            f"demo: {named} already exists; name a new file, such as {_free(named)}, since the agents claim every "
            "session in it (without --store, the demo makes a file of its own)"
        )
    folder = Path(tempfile.mkdtemp(prefix="saveslot-demo-")) if named is None else None
    file = named if folder is None else folder / "demo.db"
    assert file is not None  # noqa: S101  (one of them)
    try:
        yield Place(sqlite_url(file), "one SQLite file", file.with_name(f"{file.name}.ledger"), file=file)
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder)
        raise


def _free(file: Path) -> Path:
    """A name like this one that is not in use."""
    numbered = (file.with_stem(f"{file.stem}-{n}") for n in count(2))
    return next(name for name in numbered if not name.exists())


@contextmanager
def _servers(folder: Path) -> Generator[Place]:
    """Start private servers; stop them however the demo ends. The loop handles signals, so none interrupts a start."""
    from saveslot.cli.demo.stage import Place
    from saveslot.stack import Postgres, Valkey

    with ExitStack() as ending:
        started: list[Postgres | Valkey] = []
        for kind in (Postgres, Valkey):
            # Not inside `folder`, which only we can read: as root, the servers run as another user.
            own = ending.enter_context(tempfile.TemporaryDirectory(prefix="saveslot-demo-"))
            server = kind(Path(own))
            ending.callback(server.stop)
            server.start()
            started.append(server)
        postgres, valkey = started
        yield Place(postgres.url, "a private PostgreSQL, Valkey in front", folder / "ledger", hot=valkey.url)


async def _shown(common: Common, place: Place, folder: Path, tempo: Tempo) -> tuple[str, bool]:
    """Play the story; return the trip that is worth a look, and whether the claims are true."""
    from saveslot.cli.demo import picture, story
    from saveslot.cli.demo.keys import keys
    from saveslot.cli.demo.stage import Stage

    screen, namespace = Screen(json=common.json, paged=False), common.settings["namespace"].value
    async with open_sessions(place.url, hot=place.hot, namespace=namespace) as sessions:
        with keys() as typed, picture.picture(screen) as draw:
            stage = Stage(sessions, place, folder, draw, tempo, None if common.json else typed)
            ending = await story.play(stage)
        seconds = time.time() - stage.began
    claims = list(story.claims(stage, ending))
    good = all(claim.true for claim in claims)
    value: Data = {"ok": good, "seconds": round(seconds, 3)}
    for claim in claims:
        value |= claim.numbers
    trip, key = story.highlight(stage, ending)
    screen.answer(value, _ending(stage, trip, key, claims, good=good, seconds=seconds))
    return trip.id, good


def _ending(stage: Stage, trip: Trip, key: str, claims: list[Claim], *, good: bool, seconds: float) -> Iterator[Part]:
    from saveslot.cli.demo import picture

    yield Line()
    yield line((f"the log of {trip.id}, with its owners", "bold"))
    yield Table(*picture.timeline(stage, trip, key))
    yield Line()
    for claim in claims:
        mark = ("✓ ", "bold green") if claim.true else ("✗ ", "bold red")
        yield Line((mark,), ((claim.text, ""),))
    end = ("nothing lost, nothing done twice", "bold green") if good else ("this must not happen", "bold red")
    yield Line()
    yield line(end, (f", in {seconds:.0f} s", ""))
