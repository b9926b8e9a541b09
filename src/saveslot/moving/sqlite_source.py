"""Another program's SQLite file, opened read-only."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from saveslot.errors import InvalidInput
from saveslot.moving.parcel import Problem
from saveslot.stores.sqlite.file import APPLICATION_ID, PATIENCE

MAGIC = b"SQLite format 3\0"
# Bytes of one value; SQLite refuses a longer one before it allocates it.
LONGEST = 256 * 1024 * 1024
Tables = dict[str, set[str]]  # their columns


def is_sqlite(beginning: bytes) -> bool:
    return beginning.startswith(MAGIC)


@contextmanager
def opened(path: Path) -> Generator[tuple[apsw.Connection, Tables]]:
    """The file and its tables, in one snapshot."""
    try:
        connection = apsw.Connection(_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            connection.set_busy_timeout(int(PATIENCE * 1000))
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, LONGEST)
            connection.pragma("trusted_schema", False)  # noqa: FBT003
            if connection.pragma("application_id") == APPLICATION_ID:
                raise InvalidInput(str(path), f"is a Saveslot store; use: saveslot copy sqlite:///{path} TO_URL")
            connection.execute("begin")
            yield connection, _tables(connection)
        finally:
            connection.close()
    except (apsw.Error, OSError, UnicodeError) as exc:
        raise InvalidInput(str(path), f"cannot be read as SQLite ({exc})") from exc


def _uri(path: Path) -> str:
    # Reading a WAL file that no process has open leaves two files beside it, unless it is opened as immutable.
    with path.open("rb") as file:
        wal = file.read(20)[18:20] == b"\x02\x02"
    alone = wal and not path.with_name(f"{path.name}-wal").exists()
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"


def _tables(connection: apsw.Connection) -> Tables:
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    return {name: {row[1] for row in connection.execute(f"pragma table_info({quoted(name)})")} for name in names}


def select(
    connection: apsw.Connection, columns: Sequence[str], rest: str, bindings: Sequence[Any] = ()
) -> Iterator[list[Any]]:
    """Rows of these columns. A text that is not UTF-8 has surrogates for its bad bytes, and so is refused by its name:
    SQLite checks no encoding, and the driver would stop at such a row.
    """
    parts = [
        f"typeof({name}), case typeof({name}) when 'text' then cast({name} as blob) else {name} end" for name in columns
    ]
    for row in connection.execute(f"select {', '.join(parts)} {rest}", tuple(bindings)):
        pairs = zip(row[::2], row[1::2], strict=True)
        yield [value.decode(errors="surrogateescape") if kind == "text" else value for kind, value in pairs]


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def unknown(table: str, columns: set[str], known: set[str]) -> list[Problem]:
    return [Problem(f"column {table}.{name}", "is unknown and was left out") for name in sorted(columns - known)]
