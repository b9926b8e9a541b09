"""The measurements: every shape, all contenders in turn, several times, starting with another one each time."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

import saveslot
from bench import fresh, servers
from bench.contenders import APPEND, BARE, CONTENDERS, FLOOR, GROUPED, HOLD, LANGGRAPH, OPENAI, SAVESLOT, STANDARD
from bench.servers import rotated
from saveslot.cli.benchmark import QUICK, Series, Sizes, long_session, message

LONG = (SAVESLOT, APPEND, FLOOR, OPENAI, LANGGRAPH)
SMALL = (SAVESLOT, FLOOR, OPENAI, LANGGRAPH)
CROWD = (SAVESLOT, GROUPED, OPENAI, LANGGRAPH)
RESUMED = (SAVESLOT, HOLD, FLOOR, BARE, STANDARD, OPENAI, LANGGRAPH)
PEERS = {OPENAI, LANGGRAPH}
# B and C take a second, A half a minute: B and C are run more often.
ROUNDS = 5
# Resumes in a fresh process: Saveslot's and the raw ones, then a peer's, whose imports take seconds.
FRESH_RESUMES, PEER_RESUMES = 5, 1
# Pairs of short turns with and without a key, at most half a minute; fewer in a quick run.
PAIRS, FEW_PAIRS = 101, 11


@dataclass
class Walk:
    checkpoints: int
    turn_bytes: int
    looked_at: int  # the data of every n-th checkpoint
    peak_mb: float
    seconds: float


@dataclass
class Results:
    """The runs of each contender, in the same order: the n-th runs of all were made in turn."""

    long: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # bytes per checkpoint
    small: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    crowd: dict[str, list[Series]] = field(default_factory=lambda: defaultdict(list))
    resumed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms, fresh process
    reopened: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms, same process
    imports: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms
    sealing: dict[str, float] = field(default_factory=dict[str, float])
    walks: list[Walk] = field(default_factory=list[Walk])
    owning: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    servers: servers.Results = field(default_factory=servers.Results)
    many: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])  # ms by store and question
    forgetting: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])  # by store


def run(folder: Path, sizes: Sizes, repeats: int, walk: int, say: Callable[[str], None]) -> Results:
    results = Results()
    say("imports and a first small run of every contender")
    for name in ("saveslot", "saveslot.opening", "asyncio") * 10:
        results.imports[name].append(fresh.import_ms(name))
    warm_up(folder)
    for repeat in range(repeats):
        say(f"repeat {repeat + 1} of {repeats}: small checkpoints")
        for turn in range(ROUNDS):
            small(folder, sizes, results, repeat + turn)
        say(f"repeat {repeat + 1} of {repeats}: long sessions and resume")
        long(folder, sizes, results, repeat)
    say("small checkpoints with and without encryption")
    results.sealing = fresh.printed("-m", "bench.sealing", "pairs", str(FEW_PAIRS if sizes == QUICK else PAIRS))
    for repeat in range(repeats):
        say(f"repeat {repeat + 1} of {repeats}: {walk:,} sessions held and taken over")
        with database(folder) as path:
            results.owning.append(fresh.printed("-m", "bench.owning", path, str(walk)))
    results.servers = servers.run(sizes, repeats, say)
    for store in ("sqlite", "postgres"):
        say(f"lists, sweeps and analytics of {walk * 100:,} sessions, {store}")
        results.many[store] = fresh.printed("-m", "bench.many", store, str(walk * 100))
    for store in ("sqlite", "postgres"):
        say(f"thinning {walk:,} checkpoints, removing {walk * 10:,} sessions while others write, {store}")
        counts = ("--checkpoints", str(walk), "--sessions", str(walk * 10))
        results.forgetting[store] = fresh.printed("-m", "bench.forgetting", store, *counts)
    for size, every in ((100, 1), (sizes.turn_bytes, 100)):
        say(f"walking through {walk:,} checkpoints, each {size} bytes longer")
        results.walks.append(walked(folder, walk, size, every))
    return results


def warm_up(folder: Path) -> None:
    for name in dict.fromkeys(LONG + RESUMED):
        with database(folder) as path:
            asyncio.run(a_long_session(name, path, QUICK))
    # The peers' imports leave a million objects; keep them out of every contender's garbage collections.
    gc.collect()
    gc.freeze()


def small(folder: Path, sizes: Sizes, results: Results, first: int) -> None:
    for name in rotated(SMALL, first):
        with database(folder) as path:
            results.small[name].append(fresh.series("small", name, path, sizes))
    fewer = msgspec.structs.replace(sizes, each=max(10, sizes.each // 4))  # a peer takes as long for a quarter
    for name in rotated(CROWD, first):
        with database(folder) as path:
            results.crowd[name].append(fresh.series("crowd", name, path, fewer if name in PEERS else sizes))


def long(folder: Path, sizes: Sizes, results: Results, first: int) -> None:
    with databases(folder, [*LONG, BARE, STANDARD]) as paths:
        paths[HOLD] = paths[SAVESLOT]
        for name in rotated(LONG, first):
            results.long[name].append(asyncio.run(a_long_session(name, paths[name], sizes)))
            results.stored[name].append(stored(paths[name]) / sizes.turns)
        for name in (BARE, STANDARD):
            asyncio.run(one_blob(name, paths[name], sizes))
        os.sync()  # a hold waits for the disk, but should not wait for the others' writes
        for turn in range(sizes.resumes):
            for name in rotated(RESUMED, turn):
                if turn < (PEER_RESUMES if name in PEERS else FRESH_RESUMES):
                    results.resumed[name].append(fresh.ask("resume", name, paths[name]))
                results.reopened[name].append(asyncio.run(fresh.timed_resume(CONTENDERS[name], paths[name])))


async def a_long_session(name: str, path: str, sizes: Sizes) -> Series:
    async with CONTENDERS[name](path, 1) as book:
        return await long_session(book.save, sizes, fresh.quiet)


async def one_blob(name: str, path: str, sizes: Sizes) -> None:
    state = {"messages": [message(n, sizes.turn_bytes) for n in range(sizes.turns)]}
    async with CONTENDERS[name](path, 1) as book:
        await book.save(0, state["messages"][-1], state)


def walked(folder: Path, checkpoints: int, size: int, every: int) -> Walk:
    async def write(path: str) -> None:
        async with saveslot.open(f"sqlite:///{path}") as manager:
            await manager.create_session("benchmark", session_id="0")
            for n in range(checkpoints):
                await manager.checkpoint("0", "turn", append={"messages": [message(n, size)]})

    with database(folder) as path:
        asyncio.run(write(path))
        peak, seconds, _ = fresh.ask("walk", path, str(every))
        return Walk(checkpoints, size, every, peak, seconds)


# Files


@contextmanager
def databases(folder: Path, names: list[str]) -> Iterator[dict[str, str]]:
    """Yield a new file for each name; delete them afterwards, with SQLite's files beside them."""
    paths = {name: folder / f"{n}.db" for n, name in enumerate(names)}
    try:
        yield {name: str(path) for name, path in paths.items()}
    finally:
        for path in paths.values():
            for file in beside(path):
                file.unlink()


@contextmanager
def database(folder: Path) -> Iterator[str]:
    with databases(folder, ["one"]) as paths:
        yield paths["one"]


def beside(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{path.name}*")


def stored(path: str) -> int:
    return sum(file.stat().st_size for file in beside(Path(path)))


def ratios(mine: list[Series], theirs: list[Series]) -> float:
    """Return the median of the ratios of their rates, run by run."""
    return median(a.per_second / b.per_second for a, b in zip(mine, theirs, strict=True))
