"""Rebuilds what a SQLite file derives from its rows: indexes, label rows and the text that is searched."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import apsw

from saveslot.errors import Corrupt
from saveslot.stores import sqlite_path
from saveslot.stores.findings import NAMED, Finding, problem, warning
from saveslot.stores.sqlite.file import translated, unchecked
from saveslot.stores.sqlite.resealing import copied, missing, reseal
from saveslot.stores.sqlite.rows import ROW, fetched, label_rows, search_text, to_row
from saveslot.values.log import Row
from saveslot.values.words import many

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def misplaced(connection: apsw.Connection, rows: Sequence[Row]) -> int:
    """How many of these sessions a search by label or text cannot find."""
    return len(_wrong(connection, rows))


def _wrong(connection: apsw.Connection, rows: Sequence[Row]) -> list[Row]:
    text = "cast({0} as blob)".format
    there: dict[bytes, set[tuple[Any, ...]]] = {}
    columns = f"{text('space')}, {text('label')}, {text('value')}, made, session"
    for *label, created_at, key in connection.execute(f"select {columns} from labels"):  # noqa: S608
        there.setdefault(key, set()).add((*label, created_at, key))
    searched: dict[bytes, bytes] = dict(connection.execute(f"select key, {text('search')} from sessions"))  # noqa: S608
    wrong: list[Row] = []
    for row in rows:
        if row.locked is not None or row.deleted_at:
            continue
        due = {(*(part.encode() for part in label), created_at, key) for *label, created_at, key in _label_rows(row)}
        if there.get(row.key, set()) != due or searched.get(row.key) != _searched(row).encode():
            wrong.append(row)
    return wrong


def _label_rows(row: Row) -> list[tuple[Any, ...]]:
    return label_rows(row, row.created_at, row.labels)


def _searched(row: Row) -> str:
    return search_text(row, row.labels).translate(_LOWER)


async def repair(url: str) -> Finding | None:
    """Copy the file, and rebuild what is wrong. None if nothing is."""
    path = sqlite_path(url)
    with translated(path), closing(unchecked(path)) as connection:
        pages = missing(connection, path)
        if pages is not None and pages.header:
            return problem("repair", "its header is damaged (byte 20)", "restore the file from a backup")
        faults = _faults(connection)
        if not faults and pages is None and not _wrong(connection, _rows(connection)):
            return None
        copy, wrong = copied(connection, path), list[Row]()
        try:
            wrong = _rebuilt(connection)
            if pages is not None:
                reseal(connection, all=pages.all)
            left = _faults(connection)
        except apsw.BusyError:
            hint = "stop everything that uses the file, then: saveslot doctor --repair"
            text = "it has no page checksums, and gets none while another process has it open"
            return problem("repair", f"{text}; the file as it was: {copy}", hint)
        except (apsw.CorruptError, apsw.ConstraintError, Corrupt) as exc:
            left = [str(exc)]
    kept = f"the file as it was: {copy}"
    if left:
        advice = "export what can be read (saveslot export --all), then restore the file from a backup"
        return problem("repair", f"its indexes cannot be rebuilt; {kept}", advice, details=left)
    labels = f", the label rows of {many(len(wrong), 'session')} rewritten" if wrong else ""
    if pages is None or pages.all:
        checksums = "" if pages is None else ", every page with a checksum"
        return Finding("repair", f"every index rebuilt{labels}{checksums}; {kept}", details=faults)
    numbers = f"{', '.join(map(str, pages.wrong[:NAMED]))}{', …' if len(pages.wrong) > NAMED else ''}"
    text = f"every index rebuilt{labels}; {many(len(pages.wrong), 'page')} that did not fit the checksum, rewritten"
    advice = "check names, users, labels and times: no digest covers them, and these pages may be damaged"
    return warning("repair", f"{text} as they were; {kept}", advice, details=[f"pages {numbers}", *faults])


def _rebuilt(connection: apsw.Connection) -> list[Row]:
    """Rebuild indexes, label rows and searched text; return the sessions that had wrong ones."""
    wrong: list[Row] = []
    with connection:
        connection.execute("reindex")
        wrong = _wrong(connection, _rows(connection))
        for row in wrong:
            connection.execute("delete from labels where session = ?", (row.key,))
            connection.executemany("insert into labels values (?, ?, ?, ?, ?)", _label_rows(row))
            connection.execute("update sessions set search = ? where key = ?", (_searched(row), row.key))
    return wrong


def _rows(connection: apsw.Connection) -> list[Row]:
    return [to_row(row, 0) for row in fetched(connection, f"{ROW.format('sessions')} order by key", ("", 0))]


def _faults(connection: apsw.Connection) -> list[str]:
    faults = [str(row[0]) for row in connection.execute(f"pragma integrity_check({NAMED})")]
    return [] if faults == ["ok"] else faults
