"""A disk that fails when a test says so."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import apsw

Failure = type[apsw.Error]


class BadDisk(apsw.VFS):
    """A file system, by name for `SqliteStore.open(vfs=disk.name)`, that does as it should until `fail` is called."""

    def __init__(self) -> None:
        self.name = f"bad-disk-{uuid4()}"
        self.counted: dict[tuple[str, str], int] = {}
        self._failures: dict[tuple[str, str], tuple[range, Failure]] = {}
        self.failed = 0
        super().__init__(self.name, "")

    def fail(self, file: str, action: str, nth: int = 1, times: int = 1, error: Failure = apsw.IOError) -> None:
        """The nth `write`, `sync` or `truncate` of `main`, `wal` or `journal` from now on fails, and so on."""
        self.heal()
        self._failures[file, action] = range(nth, nth + times), error

    def heal(self) -> None:
        self._failures.clear()
        self.counted.clear()

    def passes(self, file: str, action: str) -> None:
        number = self.counted[file, action] = self.counted.get((file, action), 0) + 1
        when, error = self._failures.get((file, action), (range(0), apsw.IOError))
        if number in when:
            self.failed += 1
            raise error("planted fault")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  (SQLite's name)
        return _BadFile(self, name, flags)


class _BadFile(apsw.VFSFile):
    def __init__(self, disk: BadDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        wal, journal = flags[0] & apsw.SQLITE_OPEN_WAL, flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL
        self._file = "wal" if wal else "journal" if journal else "main"
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "sync")
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "truncate")
        super().xTruncate(newsize)
