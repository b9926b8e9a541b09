"""Systems without the POSIX-only names of Python, and macOS, whose fsync leaves data in the drive's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saveslot
from saveslot.stores.sqlite.file import created

# Removes what only Unix has. Python's own modules and the dependencies are imported before, as they are Linux' here.
WITHOUT_POSIX = """
import asyncio, ctypes, importlib, os, pkgutil, signal, subprocess, sys, tempfile, time
import apsw, asyncpg, cryptography.fernet, cyclopts, hypothesis, msgspec, pytest, rich, valkey.asyncio, yaml
import rich.console, rich.live, rich.table

OS = '''O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY O_SYNC O_DSYNC fork forkpty register_at_fork killpg getpgid setsid
    geteuid getuid getegid getgid chown fchown lchown pread pwrite posix_fallocate statvfs uname WNOHANG mkfifo
    getloadavg sched_getaffinity sync fdatasync'''.split()
POSIX = {os: OS, time: [name for name in dir(time) if name.lower().startswith("clock_")] + ["tzset"]}
POSIX[signal] = [name for name in dir(signal) if name.startswith("SIG") and name not in
    ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN")]
for module, names in POSIX.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None

import saveslot

for module in pkgutil.walk_packages(saveslot.__path__, "saveslot."):
    # An adapter needs its framework; `make test-adapters` has them.
    if not module.name.endswith(".__main__") and not module.name.startswith("saveslot.adapters."):
        importlib.import_module(module.name)


async def main(url):
    async with saveslot.open(url) as sessions:
        await sessions.create_session("tutor", session_id="s")
        async with sessions.hold("s") as held:
            await held.checkpoint("asked", {"n": 1})
            await held.pause()
            await held.resume()
            assert await held.step("add", lambda: 3) == 3
    if url != "memory:":
        async with saveslot.open(url) as sessions, sessions.hold("s") as held:
            assert held.data == {"n": 1}
            await held.complete()


for url in ("memory:", sys.argv[1]):
    asyncio.run(main(url))
with saveslot.blocking.open(sys.argv[1]) as sessions:
    assert sessions.get_session("s").state == "completed"
print("done")
"""


def test_sessions_work_without_posix_names(tmp_path):
    """Every module can be imported where Python lacks its POSIX-only names, and sessions can be held there."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    ran = subprocess.run([sys.executable, "-c", WITHOUT_POSIX, url], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_sqlite_syncs_the_drive_on_macos(tmp_path, monkeypatch):
    """A commit on macOS reaches the disk, not only the drive's cache."""
    assert created(str(tmp_path / "linux.db"), None).pragma("fullfsync") == 0
    monkeypatch.setattr(sys, "platform", "darwin")
    assert created(str(tmp_path / "mac.db"), None).pragma("fullfsync") == 1


@pytest.mark.parametrize("supported", [True, False])
def test_yaml_files_sync_the_drive_on_macos(tmp_path, monkeypatch, supported):
    """A saved document on macOS is written through the drive's cache; where a file system cannot, it is synced."""
    flushed, synced, fsync = [], [], os.fsync

    def control(file: int, command: int) -> None:
        if not supported:
            raise OSError(45, "Operation not supported")
        flushed.append((command, Path(f"/proc/self/fd/{file}").resolve().name))

    def record(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").resolve().name)
        fsync(file)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", record)
    saveslot.CheckpointStore(tmp_path / "files").write("s", {"n": 1})
    names = [".new", "files"]
    assert [name for name in synced if name in names] == ([] if supported else names)
    assert [name for _, name in flushed if name in names] == (names if supported else [])
