"""A SQLite file: opened, brought up to date by numbered scripts, its errors in Saveslot's words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import apsw

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.stores.sqlite_forking import opening

APPLICATION_ID = 0x53_41_56_45  # "SAVE", in the file's header
# How long a read waits for a lock (only recovery after a crash takes one), and opening for another process's migration.
PATIENCE = 10.0


def wait(tries: int) -> bool:
    """For a lock, a while."""
    time.sleep(0.005)
    return tries * 0.005 < PATIENCE


Wait = Callable[[int], bool]
EXISTING = apsw.SQLITE_OPEN_READWRITE
OPEN = EXISTING | apsw.SQLITE_OPEN_CREATE
# So often at most a writer asks whether its file is still where it was opened.
LOOK = 1.0


def prepared(path: str, vfs: str | None, busy: Wait = wait) -> apsw.Connection:
    """Open the file, make it if need be, and bring it up to date; safe when many processes do so at once."""
    with translated(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        connection = connect(path, vfs, busy)
        try:
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def connect(path: str, vfs: str | None, busy: Wait = wait, flags: int = OPEN) -> apsw.Connection:
    with opening(path) as noted:
        connection = apsw.Connection(path, flags, vfs=vfs)
        noted.add(connection)
    connection.set_busy_handler(busy)
    # Plans do not depend on what is bound: else SQLite would prepare most selects anew each time that they run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", "full")
    # What is deleted or replaced is overwritten with zeros, so that an erased session is in no page of the file.
    connection.pragma("secure_delete", 1)
    return connection


def scrub(path: str, vfs: str | None) -> None:
    """Empty the WAL, which still holds pages as they were: all of it goes into the file, then it is cut to nothing."""
    connection = connect(path, vfs, flags=EXISTING)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError as exc:
        raise Unavailable(
            f"{path}: what was erased is gone from the file, but somebody has been reading for longer than "
            f"{PATIENCE:.0f} s, so its log ({path}-wal) still holds older pages; erase again when that ended"
        ) from exc
    finally:
        connection.close()


class Files:
    """What a store has open: the file, its log, the index of that. Their paths may come to lead elsewhere.

    SQLite goes on writing then, into files that nobody finds. It can be asked about the first of the three, by who has
    it open already; this is also for who is about to open it (docs/decisions/0052-a-file-that-is-gone.md).
    """

    def __init__(self, connection: apsw.Connection) -> None:
        """Of a connection that has read something: the three are there from then on, until the last one closes."""
        self.path = connection.filename  # absolute, and behind all links: as SQLite found it
        log = connection.filename_wal
        found = ((name, _identity(name)) for name in (self.path, log, f"{log.removesuffix('-wal')}-shm"))
        self._known = [(name, identity) for name, identity in found if identity]
        self._asked = -LOOK
        self._lost = ""

    def lost(self) -> str:
        """The one whose path leads nowhere, or to another file; "" if all is well."""
        return next((name for name, identity in self._known if _identity(name) not in {identity, ()}), "")

    def check(self, now: float) -> float:
        """When a writer has to ask again; `Unavailable` as long as something is lost."""
        if now >= self._asked + LOOK:
            self._asked, self._lost = now, self.lost()
        if self._lost:
            raise Unavailable(
                f"{self._lost} was moved, deleted or replaced while it was open; nothing of this write is stored, and "
                f"what was written in the {LOOK:.0f} s before that was noticed is only in the file that was there; "
                "put that one back, or open the store again"
            )
        return now + LOOK


def _identity(name: str) -> tuple[int, ...] | None:
    """Which file a path leads to; () if we may not look, which says nothing."""
    try:
        found = os.stat(name)  # noqa: PTH116  (pathlib takes three times as long)
    except PermissionError:
        return ()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def snapshot(connection: apsw.Connection) -> Generator[None]:
    """One moment of the database for all reads inside."""
    with connection:
        yield


class translated:  # noqa: N801  (reads as a verb)
    """SQLite's errors in Saveslot's words, once, for every path into the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        match exc:
            case None:
                return
            case apsw.NotADBError():
                raise InvalidInput("url", f"{self._path} is not a SQLite database; name another file") from exc
            case apsw.CorruptError():
                raise Corrupt(self._path, f"SQLite finds it damaged ({exc})") from exc
            case apsw.FullError():
                raise Unavailable(f"{self._path}: the disk is full; free some space and retry") from exc
            case apsw.BusyError() | apsw.LockedError():
                raise Unavailable(f"{self._path}: another process holds the file's write lock; retry") from exc
            case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | OSError():
                if (wrong := _misplaced(self._path)) is not None:
                    raise InvalidInput("url", f"{wrong}; name another file") from exc
                hint = "make its folder writable, or choose another file by SAVESLOT_URL"
                raise Unavailable(f"{self._path} cannot be opened or written ({exc}); {hint}") from exc
            case OverflowError() | UnicodeEncodeError():
                raise InvalidInput("argument", f"cannot be handed to SQLite ({exc})") from exc
            case apsw.Error():
                raise Unavailable(f"{self._path}: {exc}; nothing was acknowledged; retry") from exc
            case _:
                return


def _misplaced(path: str) -> str | None:
    """Why there can be no such file, whoever may write there. (pathlib would raise where it may not look.)"""
    if os.path.isdir(path):  # noqa: PTH112
        return f"{path} is a folder, not a file"
    above = next((folder for folder in Path(path).parents if os.path.exists(folder)), None)  # noqa: PTH110
    return None if above is None or os.path.isdir(above) else f"{above} is a file, not a folder"  # noqa: PTH112


Uptime = Callable[[], tuple[str, int]]  # which boot of which machine, and microseconds since


def since_boot() -> tuple[str, int]:
    """A clock that nobody sets and that all processes of a machine share; it goes on while the machine sleeps."""
    return _boot(), time.clock_gettime_ns(_CLOCK) // 1000


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:  # noqa: PTH123  (0.1 ms of every start)
            return file.read().strip().decode()
    except OSError:
        return ""  # not Linux: a worker that died with its machine seems alive until the clock has caught up


@cache
def migrations() -> list[str]:
    """The numbered scripts, oldest first."""
    # Every start waits for this: importlib.resources would take 9 ms, pathlib three times as long as what it finds.
    folder = f"{os.path.dirname(__file__)}/sql"  # noqa: PTH120
    return [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.startswith("sqlite_")]  # noqa: PTH208


def up_to_date(connection: apsw.Connection, path: str) -> bool:
    """True when there is nothing to migrate."""
    known = len(migrations())
    return _version(connection, path, known) == known and connection.pragma("journal_mode") == "wal"


def migrate(connection: apsw.Connection, path: str) -> None:
    scripts = migrations()
    current = _version(connection, path, len(scripts)) == len(scripts)
    if not current or connection.pragma("journal_mode") != "wal":  # VACUUM INTO makes a copy without
        _switch_to_wal(connection)
    if current:
        return
    # Of eight processes that open a new file one migrates and seven wait, then find nothing left to do.
    connection.execute("begin immediate")
    try:
        for script in scripts[_version(connection, path, len(scripts)) :]:
            connection.execute(Path(script).read_text())
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(scripts))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _version(connection: apsw.Connection, path: str, known: int) -> int:
    """The file's format, 0 for a new one. Another program's file is refused, and one from a newer Saveslot."""
    with snapshot(connection):  # between two reads another process may have migrated
        version = connection.pragma("user_version")
        ours = connection.pragma("application_id") == APPLICATION_ID
        used = version or connection.execute("select count(*) from sqlite_schema").get
    if used and not ours:
        raise InvalidInput("url", f"{path} is another program's database; name a file of its own for Saveslot")
    if version > known:
        raise InvalidInput(
            "url", f"{path} is of a newer Saveslot (format {version}, this one knows {known}); upgrade saveslot"
        )
    return version


def _switch_to_wal(connection: apsw.Connection) -> None:
    """The first process to open a file switches it; SQLite answers the others "busy" at once, so they ask again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if connection.pragma("journal_mode") != "wal":
                connection.pragma("auto_vacuum", "incremental")
                connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
