"""SQLite files in a forked child. Connections that came along are closed there at once, or the file stays shut.

SQLite notes once a process which locks it has on a file, for all its connections. A child has those notes and not the
locks: a file that it opened while a connection from before the fork is open would be locked by nobody, and the parent,
closing it, would delete the log that the child writes. So they are closed, without a word to the file (the locks are
the parent's). That can be done only if no other thread was inside SQLite at the fork, which is waited for a moment.
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

# How long a fork waits for reads and writes under way, in seconds. Nearly all take milliseconds.
PATIENCE = 1.0

_connections: WeakSet[apsw.Connection] = WeakSet()
_opening: set[int] = set()  # threads
_kept: list[apsw.Connection] = []
_shut: set[tuple[int, int]] = set()


@contextmanager
def opening(path: str) -> Generator[WeakSet[apsw.Connection]]:
    """Where a connection that is made inside is to be noted."""
    if _shut and _identity(path) in _shut:
        raise Unavailable(
            f"{path} was in use when this process forked, and cannot be opened in it any more; "
            "fork while nobody reads or writes, or start processes by spawn"
        )
    _opening.add(get_ident())
    try:
        yield _connections
    finally:
        _opening.discard(get_ident())


def _at_rest() -> bool:
    """True when no thread is inside SQLite, and nothing is begun."""
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
            # Else the log is copied into the file and deleted, should nobody else seem to have it open.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
    elif _connections:
        _kept.extend(_connections)
        _shut.update(filter(None, map(_identity, {connection.filename for connection in _connections})))
        atexit.register(_keep)
    _connections.clear()
    _opening.clear()


def _keep() -> None:
    """One that Python frees at its end would be closed."""
    import ctypes  # 5 ms, for nearly nobody

    for connection in _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (pathlib takes three times as long)
    except OSError:
        return None
    return found.st_dev, found.st_ino


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
