"""Events: the file's, by their number, and one session's, by seq."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from saveslot.stores.sqlite.file import snapshot
from saveslot.stores.sqlite.rows import NEWEST
from saveslot.stores.stored import shown_kind, shown_text
from saveslot.values.log import Event, foreign_cursor, lost_place, moment, seq_after

_ENTRY = """cast(c.seq as integer), cast(c.kind as integer), cast(c.name as blob), cast(c.at as integer),
  coalesce(substr(cast(c.append_id as blob), 1, 4), x'')"""
# INDEXED BY: see Reading.row.
_SESSIONS = "sessions s indexed by sqlite_autoindex_sessions_1 on s.key = c.key"
# CROSS: the feed leads.
_FEED = f"""
select c.feed, cast(s.id as blob), {_ENTRY}, s.namespace = ?2
from checkpoints c cross join {_SESSIONS} where c.feed > ?1 order by c.feed limit ?3"""  # noqa: S608
_OF = f"""
select c.feed, cast(s.id as blob), {_ENTRY}, s.namespace = ?2
from checkpoints c indexed by checkpoints_by_seq cross join {_SESSIONS}
where c.key = ?4 and c.seq > ?1 order by c.seq limit ?3"""  # noqa: S608
_AT = "select key, coalesce(substr(cast(append_id as blob), 1, 4), x'') from checkpoints where feed = ?"
# The newest entry of a session, up to a place in the feed.
_UP_TO = """
select feed, cast(seq as integer) from checkpoints indexed by checkpoints_by_seq
where key = ? and feed <= ? order by seq desc limit 1"""
_SEQ = "select feed from checkpoints where key = ? and seq = ?"

_CURSOR = re.compile(r"(\d{1,18})-((?:[0-9a-f]{2})*)-((?:[0-9a-f]{2})*)", re.ASCII)
# Beyond every number of a feed.
_END = 1 << 62


class Place(NamedTuple):
    """A place in the feed: an entry, and how to tell whether it is still there."""

    number: int = 0  # 0: before the first entry
    proof: bytes = b""  # the first bytes of its append_id
    file: bytes = b""  # the first bytes of the file's id

    def cursor(self) -> str:
        return f"{self.number}-{self.proof.hex()}-{self.file.hex()}" if self.number else "0"


class Page(NamedTuple):
    events: list[Event]
    cursor: str
    more: bool  # whether others may follow at once


def page(connection: apsw.Connection, namespace: str, after: str | None, limit: int) -> Page:
    """The events after a cursor; None: no events, and the cursor of the end."""
    with snapshot(connection):
        file = _file(connection)
        if after is None:
            return Page([], _place(connection, connection.execute(NEWEST).get, file).cursor(), more=False)
        start = _checked(connection, after, file)
        return _page(connection.execute(_FEED, (start.number, namespace, limit)), file, after, limit)


def page_of(connection: apsw.Connection, namespace: str, key: bytes, after: str | None, limit: int) -> Page:
    """The same of one session. Its cursors name its own entries, so that none but the first has to be looked for."""
    with snapshot(connection):
        file = _file(connection)
        if after is None or (seq := seq_after(after)) is None:
            number = _END if after is None else _checked(connection, after, file).number
            row = connection.execute(_UP_TO, (key, number)).fetchone()
            place, seq = (None, 0) if row is None else row
        else:
            place = connection.execute(_SEQ, (key, seq)).get
        here = f"@{seq}" if place is None else _place(connection, place, file).cursor()
        if after is None:
            return Page([], here, more=False)
        return _page(connection.execute(_OF, (seq, namespace, limit, key)), file, here, limit)


def _page(rows: Any, file: bytes, cursor: str, limit: int) -> Page:
    events: list[Event] = []
    listed: Sequence[Any] = list(rows)
    for number, session_id, seq, kind, name, at, proof, wanted in listed:
        cursor = Place(number, proof, file).cursor()
        if wanted:
            events.append(Event(cursor, shown_text(session_id), seq, shown_kind(kind), shown_text(name), moment(at)))
    return Page(events, cursor, more=len(listed) == limit)


def _file(connection: apsw.Connection) -> bytes:
    return connection.execute("select substr(id, 1, 4) from file").get or b""


def _place(connection: apsw.Connection, number: int, file: bytes) -> Place:
    entry: Any = connection.execute(_AT, (number,)).fetchone()
    return Place(number, b"" if entry is None else entry[1], file)


def _checked(connection: apsw.Connection, cursor: str, file: bytes) -> Place:
    """The place of a cursor; `HistoryLost` if the entry there is another one, or there can be none."""
    if cursor == "0":
        return Place()
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise foreign_cursor(cursor)
    place = Place(int(match[1]), bytes.fromhex(match[2]), bytes.fromhex(match[3]))
    entry: Any = connection.execute(_AT, (place.number,)).fetchone()
    if entry is None or entry[0] == b"":  # purged, if it was of this file
        lost = place.file != file or place.number > connection.execute(NEWEST).get
    else:
        lost = entry[1] != place.proof
    if lost:
        raise lost_place(cursor)
    return place
