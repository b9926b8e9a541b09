"""Reading one SQLite file: what is short right where it is asked for, all else by a few threads.

Waking a thread and being woken again takes longer than reading a head; and decoding a state, which happens in the event
loop anyway, takes longer than reading its frames (docs/decisions/0035-short-reads-inline.md). After one slow read the
threads have the next ones, until they are quick again. A lock is never waited for in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import apsw

from saveslot.errors import Unavailable
from saveslot.stores.readers import Readers
from saveslot.stores.sqlite_file import EXISTING, Files, connect, prepared, translated, up_to_date, wait

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

# Two: one may be deep in a long history while the other answers.
THREADS = 2
# A short read that takes longer is the last one in the event loop for now.
QUICK = 0.002
# After so much reading the event loop goes round first: the others shall run too.
TURN = 0.005


class TooLong(Exception):
    """Raised in the event loop by a read that turned out to be a thread's."""


class Reader:
    """Connections are lent, to the event loop or to a thread, so there are never more than read at once."""

    files: Files  # once it is open

    def __init__(self, path: str, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._threads = Readers(THREADS)
        self._connections: list[apsw.Connection] = []
        self._idle: list[apsw.Connection] = []
        self._local = threading.local()  # `patient` in our threads
        self._quick = True  # the last short read was
        self._spent = 0.0  # on reading, in this turn of the event loop

    async def open(self) -> None:
        """Make the file, or bring it up to date; where neither is needed, it is only looked at."""
        try:
            if not self._found():
                await self.read(lambda _: None)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise

    def _found(self) -> bool:
        """True if the file is there and as it should be. Whatever is wrong with it, a thread meets again, and tells."""
        connection = None
        try:
            connection = connect(self._path, self._vfs, self._wait, EXISTING)
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
        if not self._connections:
            self.files = Files(connection)
        self._connections.append(connection)
        return connection

    def _wait(self, tries: int) -> bool:
        return getattr(self._local, "patient", False) and wait(tries)

    def check(self, now: float) -> float:
        """For a writer: see `Files`."""
        return self.files.check(now)

    async def read(self, work: Work[T], short: Work[T] | None = None) -> T:
        """What `work` finds. `short` finds the same in the event loop."""
        if short is not None and self._quick:
            if self._spent > TURN:
                await asyncio.sleep(0)
                self._spent = 0.0
            if (found := self._here(short)) is not None:
                return found[0]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._there, work, short is not None)

    def _here(self, short: Work[T]) -> tuple[T] | None:
        """In the event loop, or None: a thread should."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._turn)
        start = monotonic()
        try:
            with translated(self._path):
                try:
                    return (short(connection),)
                except (apsw.BusyError, TooLong):
                    return None
        finally:
            self._idle.append(connection)
            took = monotonic() - start
            self._spent += took
            self._quick = took < QUICK

    def _turn(self) -> None:
        self._spent = 0.0

    def _there(self, work: Work[T], short: bool) -> T:  # noqa: FBT001
        """In a thread of ours."""
        self._local.patient = True
        with translated(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._known(self._another())
            start = monotonic()
            try:
                return work(connection)
            finally:
                self._idle.append(connection)
                if short:
                    self._quick = monotonic() - start < QUICK

    def _another(self) -> apsw.Connection:
        if not self._connections:
            return prepared(self._path, self._vfs, self._wait)
        if lost := self.files.lost():
            raise Unavailable(f"{lost} was moved, deleted or replaced while it was open; open the store again")
        return connect(self.files.path, self._vfs, self._wait, EXISTING)

    def close(self) -> None:
        """Read what was asked for, then let the file go."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()
