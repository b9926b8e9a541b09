"""The machine that was measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import timeit
from contextlib import closing
from importlib.metadata import requires, version
from pathlib import Path
from statistics import median
from time import perf_counter

import apsw


def load() -> str:
    """Return the load average of the last minute: how many processes wanted a core."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def facts(folder: Path, load_before: str) -> list[tuple[str, str]]:
    return [
        ("cores", f"{os.cpu_count()} ({platform.machine()}); load {load_before} before the run, {load()} after"),
        ("system", f"{platform.system()} {platform.release().split('-')[0]}"),
        ("fdatasync of 4 KB", f"{sync_ms(folder):.2f} ms (median of 200)"),
        ("Python", f"{platform.python_version()}; {loop_ms():.0f} ms for a loop of a million additions"),
        ("SQLite", f"{apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (Python's own, for the peers)"),
        ("the peers' durability", f"WAL, synchronous={peers_synchronous(folder)}: SQLite's default, which they keep"),
        ("packages", ", ".join(f"{name} {version(name)}" for name in PACKAGES)),
    ]


PACKAGES = (
    *("saveslot", "apsw", "msgspec"),
    *("openai-agents", "langgraph", "langgraph-checkpoint-sqlite", "aiosqlite"),
)


def peers_synchronous(folder: Path) -> str:
    """The peers set WAL and nothing else, so the rest is what Python's SQLite was built with."""
    with closing(sqlite3.connect(folder / "default.db")) as connection:
        connection.execute("pragma journal_mode=wal")
        return ("OFF", "NORMAL", "FULL", "EXTRA")[connection.execute("pragma synchronous").fetchone()[0]]


def sync_ms(folder: Path, times: int = 200) -> float:
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    ms: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            start = perf_counter()
            sync(file.fileno())
            ms.append((perf_counter() - start) * 1000)
    return median(ms)


def loop_ms() -> float:
    """Return this Python's best speed on this machine: builds of the same version differ, and so do machines."""
    return min(timeit.repeat("n += 1", "n = 0", number=1_000_000, repeat=20)) * 1000


def core_packages() -> list[str]:
    """Return the packages that `pip install saveslot` installs on this Python."""
    from packaging.requirements import Requirement

    items = [Requirement(text) for text in requires("saveslot") or []]
    return [one.name for one in items if one.marker is None or one.marker.evaluate({"extra": ""})]
