"""Checks of a SQLite file, with advice. Read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from saveslot.errors import InvalidInput, Unavailable
from saveslot.stores import sqlite_path
from saveslot.stores.findings import NAMED, Finding, Logs, Progress, problem, warning
from saveslot.stores.sqlite.checksums import RESERVED, bad_pages, checksum_vfs, declared
from saveslot.stores.sqlite.file import APPLICATION_ID, migrations
from saveslot.stores.sqlite.repair import misplaced
from saveslot.stores.sqlite.rows import ENTRIES, ROW, fetched, to_row
from saveslot.values.log import Row
from saveslot.values.words import many, size

TABLES = True
# Older versions can corrupt a WAL file that two processes write.
SOUND_SQLITE = 3_051_003
# Free bytes on the disk below which there is a problem, a warning.
SCARCE, LITTLE = 100_000_000, 1_000_000_000
# Bytes. The WAL is copied into the file every 4 MB; if it grows this large, a reader holds it back.
LARGE_WAL = 256_000_000
# WAL needs memory shared by all processes, which network file systems do not have.
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}


async def check(url: str, progress: Progress, *, every: bool = False) -> AsyncGenerator[Finding | Logs]:
    """All findings, from the outside in; a broken layer ends the check. `every`: all sessions, as is usual here."""
    del every
    path = Path(sqlite_path(url))
    yield _file(path)
    if finding := _filesystem(path):
        yield finding
    yield _space(path)
    yield _sqlite()
    try:
        with looking(path) as connection:
            format_ = _format(connection, path)
            yield format_
            if format_.state == "problem":
                return
            yield _checksums(connection, str(path))
            yield _journal(connection)
            yield Finding(
                "synchronous", "FULL, set on every connection: an acknowledged checkpoint survives a power cut"
            )
            yield _integrity(connection, progress)
            yield _counts(connection)
            sql = f"{ROW.format('sessions')} order by key"
            rows = [to_row(row, 0) for row in fetched(connection, sql, ("", 0))]
            entries: int = connection.execute(ENTRIES).get
            yield _labels(connection, rows)
    except apsw.NotADBError:
        yield problem("format", "is not a SQLite database", "name another file with --store, or restore this one")
        return
    except apsw.Error as exc:
        yield problem("format", f"SQLite cannot read it ({exc})", "restore the file from a backup")
        return
    if format_.state == "ok":
        yield Logs(url, rows, entries)


@contextmanager
def looking(path: Path | str) -> Generator[apsw.Connection]:
    """A read-only connection."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        yield connection
    finally:
        connection.close()


async def formats(url: str) -> tuple[int, int]:
    """The file's format, and the newest one that this Saveslot knows."""
    path = sqlite_path(url)
    try:
        with looking(path) as connection:
            stored, known = version(connection)
    except apsw.NotADBError:
        raise InvalidInput("url", f"{path} is not a SQLite database; name another file") from None
    except apsw.Error as exc:
        raise Unavailable(f"{path} cannot be read ({exc}); saveslot doctor says more") from None
    if stored < 0:
        raise InvalidInput("url", f"{path} is another program's database; give Saveslot a file of its own")
    return stored, known


def version(connection: apsw.Connection) -> tuple[int, int]:
    """The same for an open file; -1 if it is another program's."""
    stored: int = connection.pragma("user_version")
    ours = connection.pragma("application_id") == APPLICATION_ID
    used = stored or connection.execute("select count(*) from sqlite_schema").get
    return (-1 if used and not ours else stored), len(migrations())


def _file(path: Path) -> Finding:
    wal = path.with_name(path.name + "-wal")
    waiting = wal.stat().st_size if wal.exists() else 0
    text = f"{path}, {size(path.stat().st_size)}" + (f" and {size(waiting)} in its WAL" if waiting else "")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return problem("file", f"{text}, not writable", f"let this user write {path} and its folder (the WAL is there)")
    if waiting > LARGE_WAL:
        return warning("file", text, "a reader or a stopped process holds the WAL back; end it and the WAL shrinks")
    return Finding("file", text)


def _filesystem(path: Path) -> Finding | None:
    """A problem if the file is on a network file system."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    above = {str(folder) for folder in path.resolve().parents}
    here = max((mount for mount in mounts if mount[0] in above), key=lambda mount: len(mount[0]), default=None)
    if here is None or here[1] not in REMOTE:
        return None
    return problem(
        "disk", f"on {here[1]}, a network file system", "move the file to a local disk: WAL needs shared memory"
    )


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < SCARCE:
        return problem("free space", f"only {size(free)} left", "free some space; without it every save fails")
    if free < LITTLE:
        return warning("free space", f"{size(free)} left", "free some space before it runs out")
    return Finding("free space", f"{size(free)}")


def _sqlite() -> Finding:
    linked = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < SOUND_SQLITE:
        return problem(
            "SQLite",
            f"{linked} can corrupt a file that two processes write",
            "pip install --upgrade apsw (3.51.3 or newer)",
        )
    return Finding("SQLite", linked)


def _format(connection: apsw.Connection, path: Path) -> Finding:
    stored, known = version(connection)
    if stored < 0:
        return problem("format", "another program's database", f"leave {path} alone; name another file with --store")
    if stored > known:
        return problem(
            "format", f"{stored}, but this Saveslot reads only up to {known}", "pip install --upgrade saveslot"
        )
    if stored < known:
        return warning(
            "format", f"{stored} of {known}", "saveslot migrate --apply (any use of the file migrates it, too)"
        )
    return Finding("format", f"{stored}, the newest")


def _checksums(connection: apsw.Connection, path: str) -> Finding:
    if checksum_vfs() is None:
        text = "none can be written or verified: this apsw has no checksum VFS"
        return warning("checksums", text, "pip install --force-reinstall --only-binary apsw apsw")
    counted = bad_pages(path)
    if counted is None and declared(connection) == RESERVED:
        text = "the file was made with page checksums, but its header says that there are none"
        return problem("checksums", text, "restore the file from a backup; or, if another program wrote it anew:", CURE)
    if counted is None:
        text = "none: the file was made without; damaged pages are found only where digests cover their rows"
        return warning("checksums", text, f"stop everything that uses the file, then: {CURE}")
    wrong, pages = counted
    if not wrong:
        return Finding("checksums", f"all {many(pages, 'page')} fit theirs")
    named = ", ".join(map(str, wrong[:NAMED])) + (", …" if len(wrong) > NAMED else "")
    return problem(
        "checksums",
        f"{len(wrong):,} of {many(pages, 'page')} do not fit theirs: damaged, or written by another program",
        "restore the file from a backup; or, if another program wrote to it or copied it:",
        CURE,
        details=[f"pages {named}"],
    )


# What writes checksums.
CURE = "saveslot doctor --repair  copies the file and rewrites every page, with a checksum"


def _journal(connection: apsw.Connection) -> Finding:
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        return problem("journal", f"{mode}, not wal", "stop all users of the file, then: pragma journal_mode=wal")
    return Finding("journal", "wal")


def _integrity(connection: apsw.Connection, progress: Progress) -> Finding:
    progress("integrity", 0, 0)
    faults = [str(row[0]) for row in connection.execute(f"pragma integrity_check({NAMED})")]
    if faults != ["ok"]:
        return problem(
            "integrity",
            f"SQLite found {many(len(faults), 'fault')}",
            "saveslot doctor --repair  copies the file and rebuilds its indexes",
            "if that does not help: saveslot export --all, then restore the file from a backup",
            details=faults,
        )
    return Finding("integrity", "every page and index is sound")


def _labels(connection: apsw.Connection, rows: list[Row]) -> Finding:
    wrong = misplaced(connection, rows)
    if wrong:
        text = f"{many(wrong, 'session')} cannot be found by label or text"
        return problem("labels", text, "saveslot doctor --repair  copies the file and rewrites their label rows")
    return Finding("labels", "every session is found by its labels and text")


def _counts(connection: apsw.Connection) -> Finding:
    count: Any = connection.execute(
        "select count(*), count(deleted_at), count(distinct namespace) from sessions"
    ).fetchone()
    entries: int = connection.execute(ENTRIES).get
    idle = connection.pragma("freelist_count") * connection.pragma("page_size")
    text = f"{many(count[0] - count[1], 'session')} in {many(count[2], 'namespace')}, {many(entries, 'entry')}"
    text += f", {count[1]:,} deleted" if count[1] else ""
    return Finding("content", text + (f", {size(idle)} free inside" if idle > LITTLE // 100 else ""))
