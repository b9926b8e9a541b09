"""Reads one SQLite file: short reads in the event loop, all others in two threads.

A round trip to a thread takes longer than reading a head; and decoding a state, which happens in the event loop anyway,
takes longer than reading its frames (docs/decisions/sqlite.md). After one slow read the threads do the next ones, until
one is quick again. The event loop never waits for a lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar

import apsw

from saveslot.errors import Unavailable
from saveslot.stores.sqlite.file import (
    Files,
    blank,
    connect,
    created,
    empty,
    existing,
    translate,
    translated,
    up_to_date,
    wait,
)
from saveslot.stores.sqlite.threads import Readers

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

# Two: while one reads a long history, the other still answers.
THREADS = 2
# Seconds. After a short read that takes longer, the threads take over.
QUICK = 0.002
# Seconds of reading per turn of the event loop; after that, other tasks run first.
TURN = 0.005


class TooLong(Exception):
    """Raised in the event loop by a read that turns out too large for it: a thread repeats it."""


class Reader:
    """Lends connections to the event loop and the threads, so there are never more than concurrent reads."""

    files: Files | None = None  # set once the file is open

    def __init__(self, path: str, vfs: str | None) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100  (the working folder may change before the first write)
        self._vfs = vfs
        self._threads = Readers(THREADS)
        self._connections: list[apsw.Connection] = []
        self._idle: list[apsw.Connection] = []
        self._local = threading.local()  # `patient`: True in the reader threads; `blank`: each one's empty database
        self._opening = threading.Lock()  # two readers and the writer may be the first to open the file
        self._quick = True  # whether the last short read was quick
        self._spent = 0.0  # seconds of reading in this turn of the event loop

    def __repr__(self) -> str:
        return self._path if self.files is None else self.files.path

    async def open(self) -> None:
        """Migrate the file in a thread; if that is not needed, only check it here. The first write creates the file."""
        try:
            if not (empty(self._path) or self._up_to_date()):
                await self.read(lambda _: None)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise

    def _up_to_date(self) -> bool:
        """True if the file is up to date. Errors are ignored: a thread repeats the check and raises them."""
        connection = None
        try:
            connection = connect(self._path, self._vfs, self._wait)
            if up_to_date(connection, self._path):
                self._idle.append(self._known(connection))
                connection = None
                return True
        except apsw.Error:
            pass
        finally:
            if connection is not None:
                connection.close()
        return False

    def _known(self, connection: apsw.Connection) -> apsw.Connection:
        connection.pragma("query_only", 1)
        if self.files is None:
            self.files = Files(connection)
        self._connections.append(connection)
        return connection

    def _wait(self, tries: int) -> bool:
        return getattr(self._local, "patient", False) and wait(tries)

    def check(self, now: float) -> float:
        """For the writer: see `Files.check`."""
        return now if self.files is None else self.files.check(now)

    def writing(self) -> apsw.Connection:
        """The writer's connection. The first write creates file, folder and tables."""
        with self._opening:
            if self.files is None:
                connection = created(self._path, self._vfs, wait)
                connection.set_busy_handler(self._wait)
                self._idle.append(self._known(connection))
        return connect(str(self), self._vfs)

    async def read(self, work: Work[T], short: Work[T] | None = None) -> T:
        """Return the result of `work`. `short` does the same in the event loop."""
        if short is not None and self._quick:
            if self._spent > TURN:
                await asyncio.sleep(0)
                self._spent = 0.0
            if (result := self._here(short)) is not None:
                return result[0]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._there, work, short is not None)

    def _here(self, short: Work[T]) -> tuple[T] | None:
        """Read in the event loop; None if a thread has to."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._turn)
        start = monotonic()
        try:
            return (short(connection),)
        except (apsw.BusyError, TooLong):
            return None
        except Exception as exc:
            translate(exc, self._path)
            raise
        finally:
            self._idle.append(connection)
            took = monotonic() - start
            self._spent += took
            self._quick = took < QUICK

    def _turn(self) -> None:
        self._spent = 0.0

    def _there(self, work: Work[T], short: bool) -> T:  # noqa: FBT001
        """Read in a reader thread."""
        self._local.patient = True
        with translated(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                another = self._another()
                if another is None:
                    return work(self._blank())
                connection = another
            start = monotonic()
            try:
                return work(connection)
            finally:
                self._idle.append(connection)
                if short:
                    self._quick = monotonic() - start < QUICK

    def _another(self) -> apsw.Connection | None:
        """Another connection; None while nothing has been written."""
        with self._opening:
            if self.files is None:
                connection = existing(self._path, self._vfs, self._wait)
                return None if connection is None else self._known(connection)
        if lost := self.files.lost():
            raise Unavailable(f"{lost} was moved, deleted or replaced while it was open; open the store again")
        return self._known(connect(self.files.path, self._vfs, self._wait))

    def _blank(self) -> apsw.Connection:
        if not hasattr(self._local, "blank"):
            self._local.blank = blank()
        return self._local.blank

    def close(self) -> None:
        """Finish the reads under way, then close the file."""
        self._threads.shutdown()
        for connection in self._connections:
            with suppress(apsw.Error):  # the WAL could not be copied into the file: it stays, and loses nothing
                connection.close()
