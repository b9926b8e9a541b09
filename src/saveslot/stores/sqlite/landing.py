"""Appends groups to a SQLite file inside the writer's transaction, and finds out why a group did not land.

No other process writes before that transaction ends, so what is read here stays true until the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from saveslot.errors import Corrupt
from saveslot.stores.sqlite.file import Uptime
from saveslot.stores.sqlite.reading import Reading, append_id, last_entry
from saveslot.stores.sqlite.rows import COLUMNS, GONE, HEADER, gone, label_rows, labels_text, search_text
from saveslot.values.kinds import PLAIN_KINDS
from saveslot.values.log import ID, Entry, Group, Labels, Outcome, Row, Verdict, judged

# More entries or bytes of frames than this are never written in the event loop: 12 MB took 30 ms there.
MANY, LARGE = 32, 256 * 1024
_THERE = {Outcome.APPENDED, Outcome.ALREADY}

# Values are numbered as in `_values`, from 1; {} gives `alive`.
AT = 7  # where the entry's time is in them
_ENTRY = f"""
checkpoints (key, {HEADER}, frame) values (?1, ?4, ?5, ?6, ?7, ?8, {{}},
  ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"""
# The guard gives `alive`: the entry before must exist, carry `prev`, and not be a tombstone. Otherwise `alive` is null,
# and the row is ignored, as is one whose seq is taken.
_GUARD = """(select iif(?9, ?3, p.alive) from checkpoints p
  where p.key = ?1 and p.seq = ?4 - 1 and p.append_id = ?2 and p.kind <> 9)"""
_FOLLOW = f"insert or ignore into {_ENTRY.format(_GUARD)}"
# The first entry of a session. ?2: the session's heartbeat, unless the entry is one.
_BEGIN = f"insert into {_ENTRY.format('iif(?9, ?3, ?2)')}"
_CREATE = f"""
insert into sessions ({COLUMNS}, search) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, null, ?, lower(?))
on conflict do nothing"""  # noqa: S608
# {}: columns that change. SQLite rewrites each index on a column named here, and every index covers `deleted_at`.
_PROJECT = """
update sessions set fence = ?2, lease = ?3, owner = case when ?3 is null then null else coalesce(?4, owner) end{}
where key = ?1"""
# An owner without a row never sent a heartbeat, or so long ago that the row was removed: it counts as dead.
_UNHEARD = "insert into workers values (?, '', '', 0, 0, 1) on conflict do nothing"
# Labels of an entry.
_MARK = """
insert into entry_labels
select namespace, ?2, ?3, created_at, key, ?4 from sessions indexed by sqlite_autoindex_sessions_1 where key = ?1"""
UNMARK = "delete from entry_labels where session = ?"
_UNMARK_SOME = """
delete from entry_labels indexed by entry_labels_by_session
where session = ? and seq in (select value from json_each(?)) returning seq"""
_REQUESTED = """
select 1 from checkpoints indexed by checkpoints_by_request
where key = ? and substr(request, 1, 16) = ? and request is not null"""
UNLABEL = "delete from labels where (space, label, value, made, session) = (?, ?, ?, ?, ?)"


def remark(connection: apsw.Connection, key: bytes, labels: Labels) -> None:
    """Replace the labels of those of these entries that have some."""
    had = {seq for (seq,) in connection.execute(_UNMARK_SOME, (key, json.dumps(list(labels))))}
    for seq in had:
        for label, value in labels[seq].items():
            connection.execute(_MARK, (key, label, value, seq))


class Landing:
    def __init__(self, path: str, clock: Callable[[], int], uptime: Uptime) -> None:
        self._path = path
        self._clock = clock
        self._uptime = uptime
        self._reading = Reading(clock, uptime)

    def carried_out(self, connection: apsw.Connection, works: Sequence[Any]) -> list[Any]:
        """Do each job of a batch: a light group, or a function of the connection."""
        return [self._one(connection, work) for work in works]

    def _one(self, connection: apsw.Connection, work: Any) -> Any:
        if not isinstance(work, Group):
            return work(connection)
        entry, now = work.entries[0], self._clock()
        values = _values(work.key, work.prev, now, entry)
        connection.execute(_FOLLOW, values)
        if connection.changes():
            return Verdict(Outcome.APPENDED, [values[AT]])
        return self._verdict(connection, work)

    def land_all(self, connection: apsw.Connection, groups: Sequence[Group]) -> list[Verdict]:
        return [self._land(connection, group) for group in groups]

    def land_together(self, connection: apsw.Connection, groups: Sequence[Group]) -> list[Verdict]:
        """All of them, or none: what has landed before one is refused is taken back."""
        connection.execute("savepoint together")
        verdicts = self.land_all(connection, groups)
        if any(verdict.outcome not in _THERE for verdict in verdicts):
            connection.execute("rollback to together")
            verdicts = [Verdict(Outcome.SKIPPED) if v.outcome is Outcome.APPENDED else v for v in verdicts]
        connection.execute("release together")
        return verdicts

    def _land(self, connection: apsw.Connection, group: Group) -> Verdict:
        now = self._clock()
        if group.create is not None:
            landed = self._begin(connection, group, group.create, now)
        else:
            allowed = self._allowed(connection, group, now)
            landed = allowed and self._follow(connection, group, group.entries, group.prev, now)
        if not landed:
            return self._verdict(connection, group)
        heartbeat = now if group.heartbeat else 0
        for entry in group.entries:
            for label, value in entry.labels.items():
                connection.execute(_MARK, (group.key, label, value, entry.seq))
        if group.delete:
            connection.execute(UNMARK, (group.key,))
        if not _plain(group):
            if group.delete or group.labels is not None:
                self._relabel(connection, group.key, None if group.delete else group.labels)
            _project(connection, group, now)
        if group.create is not None:
            heartbeat = heartbeat or group.create.heartbeat or now
        return Verdict(Outcome.APPENDED, [entry.time(now) for entry in group.entries], heartbeat=heartbeat)

    def _begin(self, connection: apsw.Connection, group: Group, row: Row, now: int) -> bool:
        heartbeat = row.heartbeat or now
        values = (
            *(row.key, row.namespace, row.session_id, row.agent_type, row.user_id, row.state),
            *(row.created_at or now, heartbeat, row.fence, row.lease, row.body, labels_text(row.labels)),
            row.request or None,
        )
        connection.execute(_CREATE, (*values, search_text(row, row.labels)))
        if not connection.changes():
            return False
        _label(connection, row, row.created_at or now, row.labels)
        first, *rest = group.entries
        connection.execute(_BEGIN, _values(group.key, heartbeat, now, first))
        return not rest or self._follow(connection, group, rest, first.append_id, now)

    def _relabel(self, connection: apsw.Connection, key: bytes, labels: dict[str, str] | None) -> None:
        """Replace the session's label rows, before its own row is written; None removes them."""
        known = "select 1 from sessions indexed by sqlite_autoindex_sessions_1 where key = ? and labels = ?"
        if labels is not None and connection.execute(known, (key, labels_text(labels))).get:
            return  # the usual case: only context or metadata changed
        row = self._reading.row(connection, key, deleted=True)
        if row is None:
            return
        connection.executemany(UNLABEL, label_rows(row, row.created_at, row.labels))
        if labels is not None:
            _label(connection, row, row.created_at, labels)
            connection.execute("update sessions set search = lower(?) where key = ?", (search_text(row, labels), key))

    def _follow(
        self, connection: apsw.Connection, group: Group, entries: list[Entry], prev: bytes | None, now: int
    ) -> bool:
        for entry in entries:
            connection.execute(_FOLLOW, _values(group.key, prev, now, entry))
            if not connection.changes():
                if entry is not group.entries[0]:  # no other writer can have followed our own entry
                    raise Corrupt(self._path, f"entry {entry.seq} of {group.key.hex()} follows a gap")
                return False
            prev = entry.append_id
        return True

    def _allowed(self, connection: apsw.Connection, group: Group, now: int) -> bool:
        """Check the guards that need more than the entry before."""
        for entry in group.entries:
            if entry.request and connection.execute(_REQUESTED, (group.key, entry.request[:ID])).get:
                return False
        if group.only_stale:
            sql = """
                select cast(max(
                    heartbeat, (select alive from checkpoints where key = ?1 and seq = ?2), coalesce(beaten, 0)
                ) as integer)
                from sessions indexed by sqlite_autoindex_sessions_1 left join workers on worker = owner
                where key = ?1"""
            alive = connection.execute(sql, (group.key, group.entries[0].seq - 1)).get
            if alive is None or alive >= now - group.only_stale:
                return False
        if group.only_orphan is not None:
            # Declares the worker dead, and a dead one is never renewed, so no session is taken from a living worker.
            # Only if the entry will land: otherwise no session was taken.
            sql = f"""
                update workers set dead = 1 where worker = (select owner from sessions where key = ?1) and {GONE}
                and (select append_id from checkpoints where key = ?1 order by seq desc limit 1) = ?"""  # noqa: S608
            connection.execute(sql, (group.key, *gone(self._uptime(), group.only_orphan), group.prev))
            return bool(connection.changes())
        return True

    def _verdict(self, connection: apsw.Connection, group: Group) -> Verdict:
        first = group.entries[0]
        if group.create is not None:
            row = group.create
            head = self._reading.head(connection, (row.namespace, row.session_id))
            if head is None and row.request:
                head = self._reading.created(connection, row.namespace, row.request[:ID])
            here = append_id(connection, group.key, first.seq)
            if here == first.append_id:
                return self._already(connection, group)
            return Verdict(Outcome.CONFLICT, head=None if head is None else head.last)
        row = self._reading.row(connection, group.key, deleted=True)
        gone = row is not None and self._reading.row(connection, group.key) is None
        here = append_id(connection, group.key, first.seq)
        before = append_id(connection, group.key, first.seq - 1)
        outcome = judged(group, here, before, row, deleted=gone)
        if outcome is Outcome.ALREADY:
            return self._already(connection, group)
        return Verdict(outcome, head=last_entry(connection, group.key))

    def _already(self, connection: apsw.Connection, group: Group) -> Verdict:
        first, last = group.entries[0].seq, group.entries[-1].seq
        sql = "select cast(at as integer) from checkpoints where key = ? and seq between ? and ? order by seq"
        times = [at for (at,) in connection.execute(sql, (group.key, first, last))]
        row = self._reading.row(connection, group.key, deleted=True)
        return Verdict(Outcome.ALREADY, times, heartbeat=0 if row is None else row.heartbeat)


def _values(key: bytes, prev: Any, now: int, entry: Entry) -> tuple[Any, ...]:
    """The values of an entry after `prev`; statements refer to them by number, 1 to 19."""
    at = entry.at if entry.at > 0 else now + entry.at
    return (
        key, prev, now, entry.seq, entry.append_id, entry.kind, entry.name, at, entry.sign, entry.fence,
        entry.lease, entry.data_seq, entry.about_seq, entry.recipe, entry.digest, entry.note,
        entry.request or None, entry.base, entry.frame,
    )  # fmt: skip


def _changes(group: Group, now: int) -> dict[str, Any]:
    """The columns of the session's row that a group writes, except fence, lease and owner."""
    columns = {
        "state": group.state,
        "body": group.body,
        "labels": None if group.labels is None else labels_text(group.labels),
        "heartbeat": now if group.heartbeat else None,
        "deleted_at": now if group.delete else None,
    }
    return {column: value for column, value in columns.items() if value is not None}


def _project(connection: apsw.Connection, group: Group, now: int) -> None:
    """Write the session's row."""
    last, changes = group.entries[-1], _changes(group, now)
    sql = _PROJECT.format("".join(f", {column} = ?{n}" for n, column in enumerate(changes, 5)))
    connection.execute(sql, (group.key, last.fence, last.lease, group.owner, *changes.values()))
    if group.owner is not None:
        connection.execute(_UNHEARD, (group.owner,))


def _plain(group: Group) -> bool:
    """True if a group has only checkpoints, which leave the session's row as it is: one row written, not two."""
    changes = group.heartbeat or group.state or group.body is not None or group.labels is not None
    return not changes and PLAIN_KINDS.issuperset([entry.kind for entry in group.entries])


def _label(connection: apsw.Connection, row: Row, created_at: int, labels: dict[str, str]) -> None:
    connection.executemany("insert into labels values (?, ?, ?, ?, ?)", label_rows(row, created_at, labels))
