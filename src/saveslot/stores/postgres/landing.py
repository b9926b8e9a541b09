"""Appends groups to PostgreSQL, one statement per kind of group, and says why a group did not land."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec

from saveslot.errors import Unavailable
from saveslot.stores.postgres import statements as sql
from saveslot.stores.postgres.rows import array, as_text
from saveslot.stores.stored import salvaged_entry
from saveslot.values.kinds import PLAIN_KINDS
from saveslot.values.log import ID, Entry, Group, Head, Outcome, Ref, Row, Verdict, judged

# Attempts for a group that was refused without a visible reason: the write it collided with was rolled back.
TRIES = 5
# Flags of an entry beside its kind: it or an earlier entry of its group is a heartbeat; it is the first of its group;
# it has a lease, a note, a frame.
SIGNED, FIRST, LEASE, NOTE, FRAME = 256, 512, 1024, 2048, 4096
NOBODY = bytes(16)
# Columns of `_changed` and `_created`.
CHANGED, CREATED = 11, 13

_key = attrgetter("key")
APPENDED = Outcome.APPENDED  # looked up once


class Landing:
    def __init__(
        self,
        fetch: Callable[..., Awaitable[list[Any]]],
        clock: Callable[[], int] | None,
        times: Callable[[], str],
        heads: Callable[[Sequence[Ref]], Awaitable[list[Head | None]]],
        fetch_whole: Callable[..., Awaitable[list[Any]]],
    ) -> None:
        """`fetch_whole` returns no rows if the statement undoes itself."""
        self._fetch, self._fetch_whole = fetch, fetch_whole
        self._clock = clock
        self._times = times
        self._heads = heads

    async def land(self, groups: list[Group]) -> list[Verdict]:
        """Append with one statement per kind of group; look up in a new snapshot why a group did not land."""
        lone = groups[0]
        if len(groups) == 1 and _sort(lone) is sql.PLAIN:
            values = _values(lone, lone.entries[0], signed=lone.entries[0].sign)
            if landed := await self._fetch(sql.LONE, self._clock and self._clock(), *values):
                return [Verdict(APPENDED, [landed[0][0]])]
        sorts: dict[str, list[Group]] = {}
        for group in groups:
            sorts.setdefault(_sort(group), []).append(group)
        verdicts: dict[bytes, Verdict] = {}
        for statement in sql.APPENDING:
            if chosen := sorts.get(statement):
                verdicts |= await self._landed(chosen, statement)
        return [verdicts[group.key] for group in groups]

    async def land_together(self, groups: list[Group]) -> list[Verdict]:
        """Append all of them with one statement, or none."""
        verdicts: dict[bytes, Verdict] = {}
        left = groups
        statement = sql.PLAIN_TOGETHER if all(_sort(group) is sql.PLAIN for group in groups) else sql.TOGETHER
        for _ in range(TRIES):
            for now, _ in await self._fetch_whole(statement, self._times(), *_given(left, statement)):
                verdicts |= {group.key: _appended(group, now) for group in left}
                return [verdicts[group.key] for group in groups]
            looked = await self._looked(left)
            if any(verdict is not None and verdict.outcome is not Outcome.ALREADY for verdict in looked):
                verdicts |= {g.key: v or Verdict(Outcome.SKIPPED) for g, v in zip(left, looked, strict=True)}
                return [verdicts[group.key] for group in groups]
            verdicts |= {group.key: verdict for group, verdict in zip(left, looked, strict=True) if verdict is not None}
            left = [group for group in left if group.key not in verdicts]
            if not left:
                return [verdicts[group.key] for group in groups]
        raise await self._baffled(left)

    async def _landed(self, groups: list[Group], statement: str) -> dict[bytes, Verdict]:
        """Verdicts by session key."""
        verdicts: dict[bytes, Verdict] = {}
        for _ in range(TRIES):
            [(now, keys)] = await self._fetch(statement, self._times(), *_given(groups, statement))
            landed = set(map(bytes.fromhex, keys))
            verdicts |= {group.key: _appended(group, now) for group in groups if group.key in landed}
            if len(landed) == len(groups):
                return verdicts
            lost = [group for group in groups if group.key not in landed]
            looked = await self._looked(lost)
            verdicts |= {group.key: verdict for group, verdict in zip(lost, looked, strict=True) if verdict is not None}
            groups = [group for group, verdict in zip(lost, looked, strict=True) if verdict is None]
            if not groups:
                return verdicts
        raise await self._baffled(groups)

    async def _baffled(self, groups: list[Group]) -> Unavailable:
        """Why these groups neither land nor are refused."""
        created = [group.create for group in groups if group.create is not None]
        spaces, ids = [row.namespace for row in created], [row.session_id for row in created]
        for namespace, name in await self._fetch(sql.HOLLOW, spaces, ids):
            text = f"session {name} of namespace {namespace} has a row, but its log is gone (a partition dropped?)"
            return Unavailable(f"{text}; `saveslot doctor` shows how to remove it; retry the other appends")
        return Unavailable(f"{TRIES} attempts collided with writes that were rolled back; nothing was stored, retry")

    async def _looked(self, groups: list[Group]) -> list[Verdict | None]:
        """Why each group did not land; None if the reason is no longer visible."""
        firsts = [str(group.entries[0].seq) for group in groups]
        requests = [",".join([e.request[:ID].hex() for e in group.entries if e.request]) for group in groups]
        rows = await self._fetch(sql.LOOK, [group.key.hex() for group in groups], firsts, requests)
        verdicts: list[Verdict | None] = []
        for group, (known, deleted, fence, lease, heartbeat, here, before, repeated, *header) in zip(
            groups, rows, strict=True
        ):
            head = None if header[0] is None else salvaged_entry(header)[0]
            if here == group.entries[0].append_id:
                verdicts.append(await self._already(group, heartbeat or 0))
            elif group.create is not None:
                taken = await self._taken(group.create)
                verdicts.append(None if taken is None and head is None else _conflict(taken))
            else:
                row = Row(group.key, "", "", fence=fence, lease=lease) if known else None
                outcome = judged(group, here, before, row, deleted=deleted)
                free = outcome is Outcome.CONFLICT and here is None and not repeated and _sort(group) is not sql.GUARDED
                verdicts.append(None if free else Verdict(outcome, head=head))
        return verdicts

    async def _taken(self, row: Row) -> Head | None:
        """The session with this id, or that the same request created."""
        [taken] = await self._heads([(row.namespace, row.session_id)])
        if taken is None and row.request:
            for (key,) in await self._fetch(sql.CREATED_BY, row.namespace, row.request[:ID]):
                [taken] = await self._heads([key])
        return taken

    async def _already(self, group: Group, heartbeat: int) -> Verdict:
        first, last = group.entries[0].seq, group.entries[-1].seq
        # The lock makes this a commit, which waits for a synchronous replica: the first attempt may not have waited.
        times = "select at from {s}.checkpoints where key = $1 and seq between $2 and $3 order by seq for key share"
        rows = await self._fetch(times, group.key, first, last)
        return Verdict(Outcome.ALREADY, [at for (at,) in rows], heartbeat=heartbeat)


def _sort(group: Group) -> str:
    """The statement that appends a group. `PLAIN`: one checkpoint or step, which leaves the session's row as it is."""
    if group.create is not None:
        return sql.CREATE
    if group.only_stale or group.only_orphan is not None:
        return sql.GUARDED
    if group.heartbeat or group.state or group.body is not None or group.labels is not None:
        return sql.CHANGING
    for entry in group.entries:
        if entry.kind not in PLAIN_KINDS:
            return sql.CHANGING
    [first, *rest] = group.entries
    return sql.SEVERAL if rest or first.request or first.labels else sql.PLAIN


def _given(groups: list[Group], statement: str) -> list[Any]:
    """A statement's arguments after the clock. Sorted by key: every writer of several sessions keeps that order."""
    groups = sorted(groups, key=_key)
    heads: list[bytes] = []
    parts: list[bytes] = []
    names: list[str] = []
    numbers: list[int] = []
    marks: list[dict[str, Any]] = []
    for group in groups:
        place, prev = FIRST, group.prev or NOBODY
        for entry in group.entries:
            lease, note, frame = entry.lease, entry.note, entry.frame
            if entry.sign:
                place |= SIGNED
            has = entry.kind | place
            if lease is not None:
                has |= LEASE
            if note is not None:
                has |= NOTE
            if frame is not None:
                has |= FRAME
            heads += (group.key, entry.append_id, prev, lease or NOBODY)
            parts += (entry.recipe, entry.digest, note or b"", entry.request, frame or b"")
            if entry.labels:
                marks.append({"key": group.key.hex(), "seq": entry.seq, "labels": entry.labels})
            names.append(entry.name)
            numbers += (entry.seq, has, entry.at, entry.fence, entry.data_seq, entry.about_seq, entry.base)
            place, prev = place & SIGNED, NOBODY
    ends = list(accumulate(map(len, parts), initial=1))
    columns: list[Any] = [b"".join(heads), b"".join(parts), names, array(numbers), array(ends)]
    if statement is sql.PLAIN:
        return columns
    if statement is sql.PLAIN_TOGETHER:
        return [*columns, len(groups)]
    labels = msgspec.json.encode(marks).decode()
    changed = [_changed(group) for group in groups if group.create is None]
    created = [_created(group, group.create) for group in groups if group.create is not None]
    if statement is sql.TOGETHER:
        return [*columns, *_turned(changed, CHANGED), *_turned(created, CREATED), labels, len(groups)]
    if statement is sql.SEVERAL:
        return [*columns, labels]
    rows = _turned(created, CREATED) if statement is sql.CREATE else _turned(changed, CHANGED)
    return [*columns, *rows, labels]


def _turned(rows: list[tuple[Any, ...]], width: int) -> list[list[str | None]]:
    """The columns of these rows."""
    return [[as_text(row[n]) for row in rows] for n in range(width)]


def _values(group: Group, entry: Entry, *, signed: bool) -> tuple[Any, ...]:
    prev = group.prev if entry is group.entries[0] else None
    return (
        *(group.key, entry.seq, entry.append_id, prev, int(entry.kind), entry.name, entry.at, signed, entry.fence),
        *(entry.lease, entry.data_seq, entry.about_seq, entry.recipe, entry.digest, entry.note, entry.base),
        entry.frame,
    )


def _changed(group: Group) -> tuple[Any, ...]:
    labels = None if group.labels is None else msgspec.json.encode(group.labels).decode()
    return (
        *(group.key, group.state, group.body, labels, group.heartbeat, group.delete, group.owner),
        *(group.only_stale or None, group.only_orphan, group.entries[0].seq - 1, group.prev),
    )


def _created(group: Group, row: Row) -> tuple[Any, ...]:
    last = group.entries[-1]
    return (
        *(row.key, row.namespace, row.session_id, row.agent_type, row.user_id, group.state or row.state),
        *(row.created_at or None, None if group.heartbeat else row.heartbeat or None, last.fence, last.lease),
        *(row.body if group.body is None else group.body, msgspec.json.encode(group.labels or row.labels).decode()),
        row.request or None,
    )


def _appended(group: Group, now: int) -> Verdict:
    if group.create is not None and not group.heartbeat:
        beaten = group.create.heartbeat or now
    else:
        beaten = now if group.heartbeat else 0
    return Verdict(APPENDED, [entry.time(now) for entry in group.entries], None, beaten)


def _conflict(head: Head | None) -> Verdict:
    return Verdict(Outcome.CONFLICT, head=None if head is None else head.last)
