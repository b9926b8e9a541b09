"""Page checksums of SQLite files, by SQLite's own checksum VFS (in apsw's wheel): changed bytes are an error.

The VFS keeps a checksum in the last 8 bytes of each page. It writes one with each page of the file, verifies it with
each page that it reads, and leaves files that reserve no bytes for it as they are. It does not cover the WAL.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import apsw

from saveslot.errors import Corrupt, InvalidInput

VFS = "cksmvfs"
# Bytes at the end of each page. The VFS checks only files that reserve exactly this many.
RESERVED = 8
# Seconds before a page that does not fit is read again: another process may have been writing it.
AGAIN = 0.05
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}
_loading = Lock()


def checksum_vfs() -> str | None:
    """The name of the VFS; None if this apsw has none. The process's default VFS stays what it was."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> str | None:
    names = apsw.vfs_names()
    if VFS in names:
        return VFS
    # Every start waits for this: apsw.sqlite_extra would take 2 ms to find the file.
    folder, suffix = os.path.dirname(apsw.__file__), _SUFFIX.get(sys.platform, ".so")  # noqa: PTH120
    library = f"{folder}/sqlite_extra_binaries/cksumvfs{suffix}"
    if not os.path.exists(library):  # noqa: PTH110
        return None
    connection = apsw.Connection(":memory:")
    try:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
        connection.load_extension(library)
    except (apsw.Error, AttributeError):  # an apsw without extensions, or a library for another system
        return None
    finally:
        apsw.set_default_vfs(names[0])
        connection.close()
    return VFS


def reserve(connection: apsw.Connection) -> None:
    """Give the pages of a new file room for checksums. No effect on a file with pages, until it is vacuumed."""
    if _verifying(connection) is not None:
        connection.reserve_bytes("main", RESERVED)


def reserved(connection: apsw.Connection) -> int:
    """The bytes of each page that this connection fills with a checksum: `RESERVED`, or 0."""
    return RESERVED if _verifying(connection) else 0


def unaware(connection: apsw.Connection) -> bool:
    """True if the file has checksums and this connection's VFS does not know: it read the header before they came."""
    return connection.reserve_bytes() == RESERVED and _verifying(connection) is False


def verify(connection: apsw.Connection, path: str) -> None:
    """Raise unless this connection checks every page that it reads, or the file was made without checksums."""
    if connection.reserve_bytes() != RESERVED:
        if declared(connection) == RESERVED:
            raise Corrupt(path, f"it was made with page checksums, and its header says that there are none; {CURE}")
    elif (on := _verifying(connection)) is None:
        hint = "reinstall apsw from its wheel (pip install --force-reinstall --only-binary apsw apsw)"
        raise InvalidInput("url", f"{path} has page checksums, which this apsw cannot write; {hint}")
    elif not on:
        raise Corrupt(path, f"its header and its WAL disagree about page checksums; {CURE}")


# For errors about a page.
CURE = "it was damaged, or another program wrote to it; `saveslot doctor` says what helps"


def declared(connection: apsw.Connection) -> int:
    """The bytes that the file's tables say are reserved; 0 if they are older than checksums."""
    try:
        return connection.execute("select reserved from file").get or 0
    except apsw.SQLError:
        return 0


def is_bad_page(exc: BaseException) -> bool:
    return isinstance(exc, apsw.IOError) and getattr(exc, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA


def bad_pages(path: str) -> tuple[list[int], int] | None:
    """The numbers of the file's pages that do not fit their checksums, and how many pages it has; None without any."""
    vfs = checksum_vfs()
    if vfs is None:
        return None
    with raw(path, vfs) as file:
        header = file.xRead(100, 0)
        page = page_size(header)
        if header[20] != RESERVED or not page:
            return None
        pages = range(file.xFileSize() // page)
        wrong = [n for n in pages if not _fits(file, n, page)]
        if wrong:
            time.sleep(AGAIN)
        return [n + 1 for n in wrong if not _fits(file, n, page)], len(pages)


def page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    return 65536 if size == 1 else size


@contextmanager
def raw(path: str, vfs: str = "") -> Generator[apsw.VFSFile]:
    """The file's bytes, by SQLite's own layer: closing a plain descriptor would drop this process's locks on it."""
    file = apsw.VFSFile(vfs, path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        yield file
    finally:
        file.xClose()


def _fits(file: apsw.VFSFile, number: int, page: int) -> bool:
    try:
        file.xRead(page, number * page)
    except apsw.IOError as exc:
        if is_bad_page(exc):
            return False
        raise
    return True


def _verifying(connection: apsw.Connection) -> bool | None:
    """None without the VFS."""
    answer: Any = connection.pragma("checksum_verification")
    return None if answer is None else str(answer) == "1"
