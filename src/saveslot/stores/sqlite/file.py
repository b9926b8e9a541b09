"""Opens a SQLite file, migrates it by numbered scripts, and translates its errors to Saveslot's."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import apsw

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.stores.sqlite.checksums import CURE, checksum_vfs, is_bad_page, reserve, reserved, unaware, verify
from saveslot.stores.sqlite.forking import identity, opening

APPLICATION_ID = 0x53_41_56_45  # "SAVE", in the file's header
# Seconds that a read waits for a lock (only recovery after a crash takes one), and that opening waits for a migration
# by another process.
PATIENCE = 10.0


def wait(tries: int) -> bool:
    """Busy handler: sleep 5 ms; False after 10 s."""
    time.sleep(0.005)
    return tries * 0.005 < PATIENCE


Wait = Callable[[int], bool]
EXISTING = apsw.SQLITE_OPEN_READWRITE
# A new file gets its first page once: one attempt may fall into that moment.
ATTEMPTS = 3
# Permissions of a new file, less what the umask takes away. SQLite gives its -wal and -shm the same ones.
PRIVATE = 0o600
# Least seconds between a writer's checks that its file is still where it was opened.
LOOK = 1.0


def created(path: str, vfs: str | None, busy: Wait = wait) -> apsw.Connection:
    """Open the file for the first write: create it with its folder and tables, unless another process just did."""
    with translated(path):
        real = Path(os.path.realpath(path))  # a link may lead to a file that is not there yet
        real.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # closing a file that is open elsewhere in this process would drop its locks
            os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        connection = connect(path, vfs, busy)
        reserve(connection)
        connection = _migrated(connection, path)
        if not unaware(connection):
            return connection
        connection.close()  # another process wrote the first page
        return connect(path, vfs, busy)


def existing(path: str, vfs: str | None, busy: Wait = wait) -> apsw.Connection | None:
    """Open the file for reading, and migrate an older format; None if nothing has been written to it yet."""
    with translated(path):
        if empty(path):
            return None
        connection = connect(path, vfs, busy)
        if _used(connection, path):
            return _migrated(connection, path)
        connection.close()
        return None


def blank() -> apsw.Connection:
    """A database in memory with empty tables: what readers find before the first write."""
    connection = apsw.Connection(":memory:")
    for script in migrations():
        connection.execute(Path(script).read_text(encoding="utf-8"))
    return connection


def empty(path: str) -> bool:
    """True if there is no file, or one without a byte; raise `InvalidInput` if there can be none."""
    try:
        status = os.stat(path)  # noqa: PTH116  (pathlib takes three times as long)
        return status.st_size == 0 and stat.S_ISREG(status.st_mode)
    except PermissionError:
        return False
    except OSError:
        if (wrong := _misplaced(path)) is not None:
            raise InvalidInput("url", f"{wrong}; name another file") from None
        return True


def _migrated(connection: apsw.Connection, path: str) -> apsw.Connection:
    """Bring the tables up to date; safe to run in many processes at once."""
    try:
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: str, vfs: str | None, busy: Wait = wait) -> apsw.Connection:
    """Open a file that exists; raise unless the checksum of each page is verified, if its pages have checksums."""
    for _ in range(ATTEMPTS - 1):
        with suppress(Corrupt):  # or another process was writing the first page
            return _verified(path, vfs, busy)
    return _verified(path, vfs, busy)


def _verified(path: str, vfs: str | None, busy: Wait) -> apsw.Connection:
    connection = _opened(path, vfs, busy)
    try:
        verify(connection, path)
    except Corrupt:
        with suppress(apsw.Error):
            connection.wal_checkpoint()  # after a crash the newest header may still be in the WAL
        connection.close()
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def unchecked(path: str) -> apsw.Connection:
    """Open a file for its repair: pages are read as they are, whatever their checksums."""
    return _opened(path, None, wait, check=False)


def _opened(path: str, vfs: str | None, busy: Wait, *, check: bool = True) -> apsw.Connection:
    with opening(path) as noted:
        connection = apsw.Connection(path, EXISTING, vfs=vfs or checksum_vfs())
        noted.add(connection)
    connection.set_busy_handler(busy)
    if not check:
        connection.pragma("checksum_verification", "off")
    # Make plans independent of bound values: else SQLite would prepare most selects again on every run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", "full")
    if sys.platform == "darwin":  # whose fsync leaves the bytes in the drive's cache
        connection.pragma("fullfsync", 1)
    # Overwrite deleted and replaced bytes with zeros, so that no page of the file still holds an erased session.
    connection.pragma("secure_delete", 1)
    return connection


def scrub(path: str, vfs: str | None) -> None:
    """Copy the WAL, which still holds old pages, into the file and truncate it to 0 bytes.

    While another connection copies the WAL, SQLite answers "busy" at once, hence the retries.
    """
    connection = connect(path, vfs)
    deadline = time.monotonic() + PATIENCE
    try:
        while not truncated(connection):
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{path}: the session is erased from the file, but readers kept the WAL ({path}-wal) busy for "
                    f"{PATIENCE:.0f} s, so it still holds older pages; erase again once they have ended"
                )
            time.sleep(0.005)
    finally:
        connection.close()


def truncated(connection: apsw.Connection) -> bool:
    """Copy the WAL into the file and empty it; False while another connection reads or copies it."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


class Files:
    """The files that a store has open: database, WAL and WAL index. Their paths may come to lead to other files.

    SQLite would go on writing then, into files without a path. It can check only the database, and only on an open
    connection; this also serves a caller that is about to open one (docs/decisions/sqlite.md).
    """

    def __init__(self, connection: apsw.Connection) -> None:
        """`connection` has read something: all three files exist from then on, until the last connection closes."""
        self.path = connection.filename  # absolute, with all links resolved by SQLite
        log = connection.filename_wal
        names = (self.path, log, f"{log.removesuffix('-wal')}-shm")
        self._known = [(name, known) for name in names if (known := identity(name))]
        self._checked_at = -LOOK
        self._lost = ""

    def lost(self) -> str:
        """The first path that is gone or leads to another file; "" if there is none."""
        return next((name for name, known in self._known if identity(name) not in {known, ()}), "")

    def check(self, now: float) -> float:
        """Return when a writer has to check again; raise `Unavailable` while a file is lost."""
        if now >= self._checked_at + LOOK:
            self._checked_at, self._lost = now, self.lost()
        if self._lost:
            raise Unavailable(
                f"{self._lost} was moved, deleted or replaced while it was open; this write is not stored, and "
                f"writes of the last {LOOK:.0f} s before this check may be only in the original file; "
                "put that file back, or open the store again"
            )
        return now + LOOK


@contextmanager
def snapshot(connection: apsw.Connection) -> Generator[None]:
    """Give all reads inside one snapshot of the database."""
    connection.execute("savepoint reads")
    try:
        yield
    finally:
        if connection.in_transaction:  # not after a page that cannot be read
            connection.execute("release reads")


class translated:  # noqa: N801  (reads as a verb)
    """Context manager that translates SQLite's errors to Saveslot's."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is not None:
            translate(exc, self._path)


def translate(exc: BaseException, path: str) -> None:
    """Raise Saveslot's error for one of SQLite's; return for any other."""
    match exc:
        case apsw.NotADBError():
            raise InvalidInput("url", f"{path} is not a SQLite database; name another file") from exc
        case apsw.CorruptError():
            raise Corrupt(path, f"SQLite reports damage ({exc})") from exc
        case apsw.IOError() if is_bad_page(exc):
            raise Corrupt(path, f"one of its pages does not fit its checksum: {CURE}") from exc
        case apsw.FullError():
            raise Unavailable(f"{path}: the disk is full; free some space and retry") from exc
        case apsw.BusyError() | apsw.LockedError():
            raise Unavailable(f"{path}: another process holds the file's write lock; retry") from exc
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | OSError():
            if (wrong := _misplaced(path)) is not None:
                raise InvalidInput("url", f"{wrong}; name another file") from exc
            hint = "make its folder writable, or choose another file with SAVESLOT_URL"
            raise Unavailable(f"{path} cannot be opened or written ({exc}); {hint}") from exc
        case OverflowError() | UnicodeEncodeError():
            raise InvalidInput("argument", f"cannot be stored in SQLite ({exc})") from exc
        case apsw.Error():
            raise Unavailable(f"{path}: {exc}; nothing was acknowledged; retry") from exc
        case _:
            return


def _misplaced(path: str) -> str | None:
    """Why the path cannot be a file, whatever its permissions; else None. (pathlib raises where it may not look.)"""
    if os.path.isdir(path):  # noqa: PTH112
        return f"{path} is a folder, not a file"
    above = next((folder for folder in Path(path).parents if os.path.exists(folder)), None)  # noqa: PTH110
    return None if above is None or os.path.isdir(above) else f"{above} is a file, not a folder"  # noqa: PTH112


Uptime = Callable[[], tuple[str, int]]  # the machine's boot id ("" if it has none), and microseconds since that boot


def since_boot() -> tuple[str, int]:
    """Read a clock that cannot be set and is shared by all processes of a machine.

    It stops while the machine sleeps: when a laptop wakes up, its workers are as alive as before.
    """
    return _boot(), time.monotonic_ns() // 1000


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:  # noqa: PTH123  (saves 0.1 ms per start)
            return file.read().strip().decode()
    except OSError:
        return ""  # not Linux


@cache
def migrations() -> list[str]:
    """The numbered scripts, oldest first."""
    # Every start waits for this: importlib.resources would take 9 ms, and pathlib three times as long as this.
    folder = f"{os.path.dirname(__file__)}/migrations"  # noqa: PTH120
    return [f"{folder}/{name}" for name in sorted(os.listdir(folder))]  # noqa: PTH208


def up_to_date(connection: apsw.Connection, path: str) -> bool:
    """True when there is nothing to migrate."""
    known = len(migrations())
    return _version(connection, path, known) == known and connection.pragma("journal_mode") == "wal"


def migrate(connection: apsw.Connection, path: str) -> None:
    scripts = migrations()
    current = _version(connection, path, len(scripts)) == len(scripts)
    if not current or connection.pragma("journal_mode") != "wal":  # a copy made by VACUUM INTO is not in WAL mode
        _switch_to_wal(connection)
    if current:
        return
    # If eight processes open a new file, one migrates; seven wait, then find nothing to do.
    connection.execute("begin immediate")
    try:
        for script in scripts[_version(connection, path, len(scripts)) :]:
            connection.execute(Path(script).read_text(encoding="utf-8"))
        connection.execute("update file set reserved = ?", (reserved(connection),))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(scripts))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _used(connection: apsw.Connection, path: str) -> bool:
    """False before the first write's tables are there: its process may be making them now, or was killed before."""
    try:
        return _version(connection, path, len(migrations())) > 0
    except BaseException:
        connection.close()
        raise


def _version(connection: apsw.Connection, path: str, known: int) -> int:
    """Return the file's format, 0 for a new file; refuse another program's file and a newer Saveslot's."""
    with snapshot(connection):  # another process may migrate between two reads
        version = connection.pragma("user_version")
        ours = connection.pragma("application_id") == APPLICATION_ID
        used = version or connection.execute("select count(*) from sqlite_schema").get
    if used and not ours:
        raise InvalidInput("url", f"{path} is another program's database; give Saveslot a file of its own")
    if version > known:
        raise InvalidInput(
            "url", f"{path} has format {version}, but this Saveslot reads only up to {known}; upgrade it"
        )
    return version


def _switch_to_wal(connection: apsw.Connection) -> None:
    """Switch a new file to WAL. SQLite answers "busy" at once if another process does so, hence the retries."""
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
