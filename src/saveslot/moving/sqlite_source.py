"""Another program's SQLite file, to be read and never written to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from saveslot.errors import InvalidInput
from saveslot.moving.parcel import Problem
from saveslot.stores.sqlite_file import APPLICATION_ID, PATIENCE

MAGIC = b"SQLite format 3\0"
Tables = dict[str, set[str]]  # their columns


def is_sqlite(beginning: bytes) -> bool:
    return beginning.startswith(MAGIC)


@contextmanager
def opened(path: Path) -> Generator[tuple[apsw.Connection, Tables]]:
    """The file and its tables, all as of one moment."""
    try:
        connection = apsw.Connection(_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            connection.set_busy_timeout(int(PATIENCE * 1000))
            if connection.pragma("application_id") == APPLICATION_ID:
                raise InvalidInput(str(path), f"is a store of Saveslot; use: saveslot copy sqlite:///{path} TO_URL")
            connection.execute("begin")
            yield connection, _tables(connection)
        finally:
            connection.close()
    except (apsw.Error, OSError) as exc:
        raise InvalidInput(str(path), f"cannot be read as SQLite ({exc})") from exc


def _uri(path: Path) -> str:
    # Reading a file in WAL mode that nobody has open would leave two files beside it, unless it is called immutable.
    with path.open("rb") as file:
        wal = file.read(20)[18:20] == b"\x02\x02"
    alone = wal and not path.with_name(f"{path.name}-wal").exists()
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"


def _tables(connection: apsw.Connection) -> Tables:
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    return {name: {row[1] for row in connection.execute(f"pragma table_info({quoted(name)})")} for name in names}


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def unknown(table: str, columns: set[str], known: set[str]) -> list[Problem]:
    return [Problem(f"column {table}.{name}", "is not known; it was left out") for name in sorted(columns - known)]
