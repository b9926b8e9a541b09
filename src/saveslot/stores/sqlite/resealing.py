"""Writes checksums to the pages of a file: to all if it was made without, and where another program wrote none."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from saveslot.errors import Unavailable
from saveslot.stores.sqlite.checksums import RESERVED, bad_pages, checksum_vfs, declared, page_size, raw, reserved
from saveslot.stores.sqlite.file import PATIENCE, truncated

# Bytes of the file that are copied at a time.
CHUNK = 1 << 20


class Missing(NamedTuple):
    """The pages whose checksum is missing or does not fit."""

    all: bool  # the file was made without checksums
    wrong: list[int]
    header: bool = False  # the file has checksums, and damage in its header hides that


def missing(connection: apsw.Connection, path: str) -> Missing | None:
    """None if every page has a checksum that fits, or this apsw cannot write any."""
    if checksum_vfs() is None:
        return None
    pages = bad_pages(path)
    if pages is None:
        return Missing(all=True, wrong=[], header=declared(connection) == RESERVED and _hidden(connection, path))
    return Missing(all=False, wrong=pages[0]) if pages[0] else None


def _hidden(connection: apsw.Connection, path: str) -> bool:
    """True if the first page fits its checksum once its header says that there is one."""
    with raw(path) as file:
        page = bytearray(file.xRead(page_size(file.xRead(100, 0)), 0))
    page[20] = RESERVED
    return bool(connection.execute("select verify_checksum(?)", (bytes(page),)).get)


def reseal(connection: apsw.Connection, *, all: bool) -> None:
    """Write every page anew, with its checksum; `BusyError` if the file had none and another process has it open.

    Such a process would not learn of the checksums, and go on without.
    """
    if all:
        connection.pragma("locking_mode", "exclusive")
        connection.pragma("journal_mode", "delete")  # takes the exclusive lock, and keeps it
        connection.pragma("journal_mode", "wal")
        connection.reserve_bytes("main", RESERVED)
    connection.execute("vacuum")
    _copy_wal(connection)
    connection.execute("update file set reserved = ?", (reserved(connection) or RESERVED,))
    _copy_wal(connection)


@contextmanager
def settled(connection: apsw.Connection, path: str) -> Generator[None]:
    """Hold the write lock while the WAL is empty: the file alone is the database, and nobody changes it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        _copy_wal(connection)
        connection.execute("begin immediate")
        if not _size(f"{path}-wal"):
            break
        connection.execute("rollback")
        if time.monotonic() > deadline:
            raise Unavailable(f"{path}: other processes write to it all the time; stop them and retry")
    try:
        yield
    finally:
        connection.execute("rollback")


def copied(connection: apsw.Connection, path: str) -> Path:
    """A copy of the file, byte by byte, with what was in its WAL, beside it."""
    copy = Path(f"{path}.before-repair-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    with settled(connection, path), raw(path) as file, copy.open("wb") as target:
        for start in range(0, end := file.xFileSize(), CHUNK):
            target.write(file.xRead(min(CHUNK, end - start), start))
    copy.chmod(Path(path).stat().st_mode & 0o777)
    return copy


def _copy_wal(connection: apsw.Connection) -> None:
    deadline = time.monotonic() + PATIENCE
    while not truncated(connection):
        if time.monotonic() > deadline:
            raise Unavailable(f"{connection.filename}: readers keep its WAL busy; stop them and retry")
        time.sleep(0.005)
    connection.pragma("checksum_verification", "off")  # a header that came from the WAL switches it on


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except FileNotFoundError:
        return 0
