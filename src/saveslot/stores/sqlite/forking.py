"""SQLite files in a forked child: it closes inherited connections at once, or refuses to open their files.

SQLite records the locks on a file once per process, for all connections. A child inherits the records without the
locks: if it opened the file while an inherited connection is open, it would hold no lock, and the parent could delete
the WAL that the child writes. So the child closes those connections without touching the file (the locks are the
parent's). That works only if no other thread was inside SQLite at the fork, so a fork waits up to 1 s for that.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import get_ident
from weakref import WeakSet

import apsw

from saveslot.errors import Unavailable

# Seconds that a fork waits for reads and writes under way. Nearly all take milliseconds.
PATIENCE = 1.0

_connections: WeakSet[apsw.Connection] = WeakSet()
_opening: set[int] = set()  # threads
_kept: list[apsw.Connection] = []
_shut: set[tuple[int, ...]] = set()


@contextmanager
def opening(path: str) -> Generator[WeakSet[apsw.Connection]]:
    """Yield the set to which the caller adds the connection that it opens inside."""
    if _shut and identity(path) in _shut:
        raise Unavailable(
            f"{path} was in use when this process was forked, so it cannot be opened here; "
            "fork while the store is idle, or start processes by spawn"
        )
    _opening.add(get_ident())
    try:
        yield _connections
    finally:
        _opening.discard(get_ident())


def _at_rest() -> bool:
    """True when no thread is inside SQLite and no transaction is open."""
    if _opening:
        return False
    for connection in list(_connections):
        try:
            if connection.in_transaction:
                return False
        except apsw.ThreadingViolationError:
            return False
        except apsw.ConnectionClosedError:
            _connections.discard(connection)
    return True


def _before() -> None:
    end = time.monotonic() + PATIENCE
    while not _at_rest() and time.monotonic() < end:
        time.sleep(0.001)


def _in_child() -> None:
    if _at_rest():
        for connection in list(_connections):
            # Else SQLite would copy the WAL into the file and delete it if it sees no other connection.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
    elif _connections:
        _kept.extend(_connections)
        _shut.update(filter(None, map(identity, {connection.filename for connection in _connections})))
        atexit.register(_keep)
    _connections.clear()
    _opening.clear()


def _keep() -> None:
    """Leak these connections: Python would close them when it frees them at exit."""
    import ctypes  # takes 5 ms, and is rarely needed

    for connection in _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def identity(path: str) -> tuple[int, ...] | None:
    """Device and inode of a file; None if it does not exist, () if permissions hide it."""
    try:
        status = os.stat(path)  # noqa: PTH116  (pathlib takes three times as long)
    except PermissionError:
        return ()
    except OSError:
        return None
    return status.st_dev, status.st_ino


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
