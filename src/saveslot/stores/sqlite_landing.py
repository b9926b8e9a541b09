"""Groups land in the transaction of a SQLite file, or each is told why not; many that are alike in one statement.

Nobody else writes before that transaction ends: what was looked at here stays true until it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from saveslot.errors import Corrupt
from saveslot.log import Entry, Group, Outcome, Row, Verdict, judged
from saveslot.model import PLAIN_KINDS
from saveslot.stores.sqlite_file import Uptime
from saveslot.stores.sqlite_rows import COLUMNS, GONE, HEADER, entry_values, label_rows, labels_text, search_text
from saveslot.stores.sqlite_session import TOGETHER, Reading, append_id, last_entry

# More entries or bytes of frames than this are never written in the event loop: 12 MB took 30 ms there.
MANY, LARGE = 32, 256 * 1024

# Both number their values as `entry_values` does; {0} is what stands before a number.
_ENTRY = """{0}1, {0}4, {0}5, {0}6, {0}7, iif({0}8 > 0, {0}8, {0}3 + {0}8), {1},
  {0}10, {0}11, {0}12, {0}13, {0}14, {0}15, {0}16, {0}17"""
_BEFORE = "p.key = {0}1 and p.seq = {0}4 - 1 and p.append_id = {0}2 and p.kind <> 9"
_LOG = f"checkpoints (key, {HEADER}, frame)"
# The guard gives `alive`: the entry before must be there, carry `prev`, and be no tombstone. Else `alive` is null, and
# such a row is ignored, as is one whose place is taken.
_ALIVE = f"(select iif(?9, ?3, p.alive) from checkpoints p where {_BEFORE.format('?')})"  # noqa: S608
_FOLLOW = f"insert or ignore into {_LOG} values ({_ENTRY.format('?', _ALIVE)})"  # noqa: S608
# The same for {} entries. CROSS: the values lead, whatever the statistics say.
_FOLLOW_MANY = f"""
insert into {_LOG}
select {_ENTRY.format("column", "iif(column9, column3, p.alive)")}
from (values {{}}) cross join checkpoints p where {_BEFORE.format("column")}
on conflict do nothing"""  # noqa: S608
_SEVENTEEN = f"({', '.join('?' * 17)})"
# The first of a session. ?2: its sign of life, unless it is one.
_BEGIN = f"insert into {_LOG} values ({_ENTRY.format('?', 'iif(?9, ?3, ?2)')})"  # noqa: S608
# Of the groups in {} how many can land, their labels being what they were: key, seq, prev, and what no sign of life may
# have reached since.
_ABLE = """
select count(*) from (values {}) cross join checkpoints p
cross join sessions indexed by sqlite_autoindex_sessions_1 on sessions.key = column1 left join workers on worker = owner
where p.key = column1 and p.seq = column2 - 1 and p.append_id = column3 and p.kind <> 9
  and not exists (select 1 from checkpoints c where c.key = column1 and c.seq = column2)
  and max(heartbeat, p.alive, coalesce(beaten, 0)) < coalesce(column4, 9e18)
  and labels = coalesce(column5, labels)"""
_CREATE = f"""
insert into sessions ({COLUMNS}, search) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, null, lower(?))
on conflict do nothing"""  # noqa: S608
# {}: columns that change. Each index on a column that is named is written anew, and all of them know `deleted_at`.
_PROJECT = """
update sessions set fence = ?2, lease = ?3, owner = case when ?3 is null then null else coalesce(?4, owner) end{}
where key = ?1"""
# The same for many. INDEXED BY: see Reading.row.
_PROJECT_MANY = """
with given as (values {1})
update sessions indexed by sqlite_autoindex_sessions_1
set fence = column2, lease = column3, owner = case when column3 is null then null else coalesce(column4, owner) end{0}
from given where key = column1"""
# An owner that never said that it lives, or so long ago that its row is gone, does not.
_UNHEARD = "insert into workers values (?, '', '', 0, 0, 1) on conflict do nothing"
UNLABEL = "delete from labels where (space, label, value, made, session) = (?, ?, ?, ?, ?)"


class Landing:
    def __init__(self, path: str, clock: Callable[[], int], uptime: Uptime) -> None:
        self._path = path
        self._clock = clock
        self._uptime = uptime
        self._reading = Reading(clock, uptime)

    def carried_out(self, connection: apsw.Connection, works: Sequence[Any]) -> list[Any]:
        """What a batch asks for: light groups together, then one after another those and all else that is left."""
        if len(works) == 1:
            return [self._one(connection, works[0])]
        groups = [work for work in works if isinstance(work, Group)]
        landed: dict[bytes, Verdict] = {}
        for start in range(0, len(groups), TOGETHER):
            landed |= self._together(connection, groups[start : start + TOGETHER])
        if len(landed) == len(works):  # nearly always
            return [*landed.values()]
        return [
            (isinstance(work, Group) and landed.pop(work.entries[0].append_id, None)) or self._one(connection, work)
            for work in works
        ]

    def _one(self, connection: apsw.Connection, work: Any) -> Any:
        if not isinstance(work, Group):
            return work(connection)
        entry, now = work.entries[0], self._clock()
        connection.execute(_FOLLOW, entry_values(work.key, work.prev, now, entry))
        if connection.changes():
            return Verdict(Outcome.APPENDED, [entry.time(now)])
        return self._verdict(connection, work)

    def _together(self, connection: apsw.Connection, groups: list[Group]) -> dict[bytes, Verdict]:
        """Land what one statement can; the others are not told of here."""
        now = self._clock()
        values: list[Any] = []
        landed: dict[bytes, Verdict] = {}
        for group in groups:
            entry = group.entries[0]
            values += entry_values(group.key, group.prev, now, entry)
            landed[entry.append_id] = Verdict(Outcome.APPENDED, [entry.time(now)])
        connection.execute(_FOLLOW_MANY.format(", ".join([_SEVENTEEN] * len(groups))), values)
        count = connection.changes()
        if count == len(groups):
            return landed
        # What was inserted just now is the newest: nobody else writes before this transaction ends.
        newest = connection.execute("select append_id from checkpoints order by feed desc limit ?", (count,))
        return {append_id: landed[append_id] for (append_id,) in newest}

    def land_all(self, connection: apsw.Connection, groups: Sequence[Group]) -> list[Verdict]:
        """Those that change alike together, if all of them can land; the others one after another."""
        alike: dict[tuple[str | int, ...], list[Group]] = {}
        distinct = len({group.key for group in groups}) == len(groups)
        for group in groups if distinct else ():
            alike.setdefault((len(group.entries), _plain(group), *_changes(group, 0)), []).append(group)
        landed: dict[bytes, Verdict] = {}
        for same in alike.values():
            for start in range(0, len(same), TOGETHER):
                part = same[start : start + TOGETHER]
                if _able(connection, part, now := self._clock()):
                    landed |= self._many(connection, part, now)
        return [landed.pop(group.entries[0].append_id, None) or self._land(connection, group) for group in groups]

    def _many(self, connection: apsw.Connection, groups: list[Group], now: int) -> dict[bytes, Verdict]:
        """Land groups that can; by the id of their first entries."""
        for place in range(len(groups[0].entries)):
            values: list[Any] = []
            for group in groups:
                entry = group.entries[place]
                prev = group.entries[place - 1].append_id if place else group.prev
                values += entry_values(group.key, prev, now, entry)
            connection.execute(_FOLLOW_MANY.format(", ".join([_SEVENTEEN] * len(groups))), values)
            if connection.changes() != len(groups):  # nobody else writes before this transaction ends
                raise Corrupt(self._path, "entries that could land did not")
        if not _plain(groups[0]):
            _project(connection, groups, now)
        heartbeat = now if groups[0].heartbeat else 0
        return {
            group.entries[0].append_id: Verdict(
                Outcome.APPENDED, [entry.time(now) for entry in group.entries], heartbeat=heartbeat
            )
            for group in groups
        }

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
        if not _plain(group):
            if group.delete or group.labels is not None:
                self._relabel(connection, group.key, None if group.delete else group.labels)
            _project(connection, [group], now)
        if group.create is not None:
            heartbeat = heartbeat or group.create.heartbeat or now
        return Verdict(Outcome.APPENDED, [entry.time(now) for entry in group.entries], heartbeat=heartbeat)

    def _begin(self, connection: apsw.Connection, group: Group, row: Row, now: int) -> bool:
        heartbeat = row.heartbeat or now
        values = (
            *(row.key, row.namespace, row.session_id, row.agent_type, row.user_id, row.state),
            *(row.created_at or now, heartbeat, row.fence, row.lease, row.body, labels_text(row.labels)),
        )
        connection.execute(_CREATE, (*values, search_text(row, row.labels)))
        if not connection.changes():
            return False
        _label(connection, row, row.created_at or now, row.labels)
        first, *rest = group.entries
        connection.execute(_BEGIN, entry_values(group.key, heartbeat, now, first))
        return not rest or self._follow(connection, group, rest, first.append_id, now)

    def _relabel(self, connection: apsw.Connection, key: bytes, labels: dict[str, str] | None) -> None:
        """Before the row is written: let it be found by these labels, or by none any more."""
        known = "select 1 from sessions indexed by sqlite_autoindex_sessions_1 where key = ? and labels = ?"
        if labels is not None and connection.execute(known, (key, labels_text(labels))).get:
            return  # nearly always: context and metadata changed
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
            connection.execute(_FOLLOW, entry_values(group.key, prev, now, entry))
            if not connection.changes():
                if entry is not group.entries[0]:  # behind an entry of ours nobody can have written
                    raise Corrupt(self._path, f"entry {entry.seq} of {group.key.hex()} stands behind a gap")
                return False
            prev = entry.append_id
        return True

    def _allowed(self, connection: apsw.Connection, group: Group, now: int) -> bool:
        """The guards that look at more than the entry before."""
        if group.only_stale:
            sql = """
                select max(heartbeat, (select alive from checkpoints where key = ?1 and seq = ?2), coalesce(beaten, 0))
                from sessions indexed by sqlite_autoindex_sessions_1 left join workers on worker = owner
                where key = ?1"""
            alive = connection.execute(sql, (group.key, group.entries[0].seq - 1)).get
            if alive is None or alive >= now - group.only_stale:
                return False
        if group.only_orphan is not None:
            # The worker is dead from here on: a dead one is never renewed, so nobody takes a session from the living.
            # Unless the entry will not land: then nobody was taken from.
            boot, up = self._uptime()
            sql = f"""
                update workers set dead = 1 where worker = (select owner from sessions where key = ?1) and {GONE}
                and (select append_id from checkpoints where key = ?1 order by seq desc limit 1) = ?"""  # noqa: S608
            connection.execute(sql, (group.key, boot, group.only_orphan, up, group.prev))
            return bool(connection.changes())
        return True

    def _verdict(self, connection: apsw.Connection, group: Group) -> Verdict:
        first = group.entries[0]
        if group.create is not None:
            head = self._reading.head(connection, (group.create.namespace, group.create.session_id))
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
        sql = "select at from checkpoints where key = ? and seq between ? and ? order by seq"
        times = [at for (at,) in connection.execute(sql, (group.key, first, last))]
        row = self._reading.row(connection, group.key, deleted=True)
        return Verdict(Outcome.ALREADY, times, heartbeat=0 if row is None else row.heartbeat)


def _changes(group: Group, now: int) -> dict[str, Any]:
    """The columns of the session's row that a group writes, beside those that tell who holds it."""
    told = {
        "state": group.state,
        "body": group.body,
        "labels": None if group.labels is None else labels_text(group.labels),
        "heartbeat": now if group.heartbeat else None,
        "deleted_at": now if group.delete else None,
    }
    return {column: value for column, value in told.items() if value is not None}


def _project(connection: apsw.Connection, groups: list[Group], now: int) -> None:
    """Write the rows of sessions whose groups change alike."""
    values: list[Any] = []
    for group in groups:
        last = group.entries[-1]
        values += (group.key, last.fence, last.lease, group.owner, *_changes(group, now).values())
    columns = list(enumerate(_changes(groups[0], now), 5))
    if len(groups) == 1:
        sql = _PROJECT.format("".join(f", {column} = ?{n}" for n, column in columns))
    else:
        row = f"({', '.join('?' * (4 + len(columns)))})"
        sets = "".join(f", {column} = column{n}" for n, column in columns)
        sql = _PROJECT_MANY.format(sets, ", ".join([row] * len(groups)))
    connection.execute(sql, values)
    for owner in {group.owner for group in groups} - {None}:
        connection.execute(_UNHEARD, (owner,))


def _able(connection: apsw.Connection, groups: list[Group], now: int) -> bool:
    """True if these can land together: each behind the entry that it names, all guards met, no labels to be written."""
    if len(groups) == 1:
        return False
    values: list[Any] = []
    for group in groups:
        if group.create is not None or group.only_orphan is not None or group.delete:
            return False
        labels = None if group.labels is None else labels_text(group.labels)
        cutoff = now - group.only_stale if group.only_stale else None
        values += (group.key, group.entries[0].seq, group.prev, cutoff, labels)
    return connection.execute(_ABLE.format(", ".join(["(?, ?, ?, ?, ?)"] * len(groups))), values).get == len(groups)


def _plain(group: Group) -> bool:
    """True for checkpoints alone, which leave the session's row as it is: one row written, not two."""
    told = group.heartbeat or group.state or group.body is not None or group.labels is not None
    return not told and PLAIN_KINDS.issuperset([entry.kind for entry in group.entries])


def light(group: Group) -> bool:
    """True for one plain checkpoint of a usual size, which follows another entry: nearly all that is ever written."""
    if group.create is not None or group.only_stale or group.only_orphan is not None:
        return False
    if group.heartbeat or group.state or group.body is not None or group.labels is not None:
        return False
    entry = group.entries[0]
    usual = entry.frame is None or len(entry.frame) <= LARGE
    return usual and entry.kind in PLAIN_KINDS and len(group.entries) == 1


def _label(connection: apsw.Connection, row: Row, made: int, labels: dict[str, str]) -> None:
    connection.executemany("insert into labels values (?, ?, ?, ?, ?)", label_rows(row, made, labels))
