"""What may be wrong with a SQLite file of Saveslot, and what to do about it. Looks only: nothing is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw

from saveslot.cli.findings import NAMED, Finding, Progress, problem, warning
from saveslot.cli.recipes import recipes
from saveslot.cli.words import many, size
from saveslot.errors import InvalidInput, Unavailable
from saveslot.stores.sqlite_file import APPLICATION_ID, migrations
from saveslot.stores.sqlite_rows import ENTRIES

# Before this one two processes that write a WAL file can damage it.
SOUND_SQLITE = 3_051_003
# Less room than this may be gone before anyone looks again.
SCARCE, LITTLE = 100_000_000, 1_000_000_000
# A WAL is copied into the file every 4 MB; one this large is being held back.
LARGE_WAL = 256_000_000
# WAL needs memory that all processes of one machine share; over a network there is none.
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}


async def check(path: Path, url: str, progress: Progress) -> AsyncGenerator[Finding]:
    """Everything, from the outside in; what a broken layer makes meaningless is left out."""
    yield _file(path)
    if found := _filesystem(path):
        yield found
    yield _space(path)
    yield _sqlite()
    try:
        with looking(path) as connection:
            told = _format(connection, path)
            yield told
            if told.state == "problem":
                return
            yield _journal(connection)
            yield Finding(
                "synchronous", "FULL, set on every connection: an acknowledged checkpoint survives a power cut"
            )
            yield _integrity(connection, progress)
            yield _counts(connection)
            sql = "select key, namespace, id, body from sessions order by key"
            sessions = cast("list[Any]", connection.execute(sql).fetchall())
            entries: int = connection.execute(ENTRIES).get
    except apsw.NotADBError:
        yield problem("format", "is not a SQLite database", "name another file with --store, or restore this one")
        return
    except apsw.Error as exc:
        yield problem("format", f"SQLite cannot read it ({exc})", "restore the file from a backup")
        return
    if told.state == "ok":
        yield await recipes(url, sessions, entries, progress)


@contextmanager
def looking(path: Path) -> Generator[apsw.Connection]:
    """A connection that cannot write."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        yield connection
    finally:
        connection.close()


def formats(path: Path) -> tuple[int, int]:
    """The file's format, and the newest that this Saveslot knows."""
    try:
        with looking(path) as connection:
            found, known = version(connection)
    except apsw.NotADBError:
        raise InvalidInput("url", f"{path} is not a SQLite database; name another file") from None
    except apsw.Error as exc:
        raise Unavailable(f"{path} cannot be read ({exc}); saveslot doctor says more") from None
    if found < 0:
        raise InvalidInput("url", f"{path} is another program's database; name a file of its own for Saveslot")
    return found, known


def version(connection: apsw.Connection) -> tuple[int, int]:
    """The same of an open file; -1 when it is not ours."""
    found: int = connection.pragma("user_version")
    ours = connection.pragma("application_id") == APPLICATION_ID
    used = found or connection.execute("select count(*) from sqlite_schema").get
    return (-1 if used and not ours else found), len(migrations())


def _file(path: Path) -> Finding:
    wal = path.with_name(path.name + "-wal")
    waiting = wal.stat().st_size if wal.exists() else 0
    told = f"{path}, {size(path.stat().st_size)}" + (f" and {size(waiting)} in its WAL" if waiting else "")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return problem(
            "file", f"{told}, not writable", f"let this user write {path} and its folder (the WAL lies there)"
        )
    if waiting > LARGE_WAL:
        return warning("file", told, "a reader or a stopped process holds the WAL back; end it, and the WAL shrinks")
    return Finding("file", told)


def _filesystem(path: Path) -> Finding | None:
    """Where the file lies, when that can be told and matters."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    above = {str(folder) for folder in path.resolve().parents}
    here = max((mount for mount in mounts if mount[0] in above), key=lambda mount: len(mount[0]), default=None)
    if here is None or here[1] not in REMOTE:
        return None
    return problem(
        "disk", f"lies on {here[1]}, over a network", "move the file to a local disk: WAL needs shared memory"
    )


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < SCARCE:
        return problem("free space", f"only {size(free)} left", "free some space: without it every save fails")
    if free < LITTLE:
        return warning("free space", f"{size(free)} left", "free some space before it runs out")
    return Finding("free space", f"{size(free)}")


def _sqlite() -> Finding:
    found = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < SOUND_SQLITE:
        return problem(
            "SQLite",
            f"{found} can damage a file that two processes write",
            "pip install --upgrade apsw (3.51.3 or newer)",
        )
    return Finding("SQLite", found)


def _format(connection: apsw.Connection, path: Path) -> Finding:
    found, known = version(connection)
    if found < 0:
        return problem("format", "is another program's database", f"leave {path} alone; name another file with --store")
    if found > known:
        return problem(
            "format", f"{found}, of a newer Saveslot (this one knows {known})", "pip install --upgrade saveslot"
        )
    if found < known:
        return warning("format", f"{found} of {known}", "saveslot migrate --apply (any use of the file does it, too)")
    return Finding("format", f"{found}, the newest")


def _journal(connection: apsw.Connection) -> Finding:
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        return problem("journal", f"{mode}, not wal", "stop all users of the file, then: pragma journal_mode=wal")
    return Finding("journal", "wal")


def _integrity(connection: apsw.Connection, progress: Progress) -> Finding:
    progress("integrity", 0, 0)
    found = [str(row[0]) for row in connection.execute(f"pragma integrity_check({NAMED})")]
    if found != ["ok"]:
        return problem(
            "integrity",
            f"SQLite finds {many(len(found), 'fault')}",
            "export what can be read (saveslot export), then restore the file from a backup",
            details=found,
        )
    return Finding("integrity", "every page and index is sound")


def _counts(connection: apsw.Connection) -> Finding:
    count: Any = connection.execute(
        "select count(*), count(deleted_at), count(distinct namespace) from sessions"
    ).fetchone()
    entries: int = connection.execute(ENTRIES).get
    idle = connection.pragma("freelist_count") * connection.pragma("page_size")
    told = f"{many(count[0] - count[1], 'session')} in {many(count[2], 'namespace')}, {many(entries, 'entry')}"
    told += f", {count[1]:,} deleted" if count[1] else ""
    return Finding("content", told + (f", {size(idle)} free inside" if idle > LITTLE // 100 else ""))
