"""PostgreSQL: many machines on one log. Group commit in two lanes, one statement a batch, a verdict for each group.

No session state is kept in a connection, so transaction pooling works. Times are the database's.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec

from saveslot.errors import InvalidInput, Unavailable
from saveslot.log import (
    FAILURES,
    TRACED,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Sample,
    Sign,
    Verdict,
    Worker,
    feed_number,
    foreign_cursor,
    judged,
    moment,
    order,
)
from saveslot.model import PLAIN_KINDS, Kind
from saveslot.stores import postgres_partitions, postgres_statements as sql
from saveslot.stores.batches import Batches
from saveslot.stores.joining import Joining
from saveslot.stores.postgres_dropping import drop_empty
from saveslot.stores.postgres_news import News
from saveslot.stores.postgres_server import SCHEMA, Connection, Server

# A watcher looks for itself this often, in seconds; less often while it would hear of what other processes append; and
# sooner, again and again, after something was announced: it may be shown a moment later.
POLL, LAZY, QUICK = 0.05, 0.25, 0.005
# A group that met neither its like nor a reason is sent again: its rival was rolled back.
TRIES = 5
# A worker that crashed and owns nothing leaves a row that nobody needs: gone after an hour.
LEFTOVER = 3600 * 1_000_000
# Of an entry, beside its kind: it is a sign of life, or follows one; it is the first of its group; what it has.
SIGNED, FIRST, LEASE, NOTE, FRAME = 256, 512, 1024, 2048, 4096
NOBODY = bytes(16)
# A purge waits so long, in seconds, for statements that began before it.
DRAINED = 2.0

_json = msgspec.json.Encoder().encode
_key = attrgetter("key")
APPENDED = Outcome.APPENDED  # found once


class PostgresStore:
    def __init__(
        self, server: Server, clock: Callable[[], int] | None = None, uptime: Callable[[], int] | None = None
    ) -> None:
        self._server = server
        self._clock, self._uptime = clock, uptime
        self.counters = server.counters
        self._batches = Batches(self._land, self.counters)
        self._joining = Joining(self._heads, self.counters)
        self._news = News(server)
        self._told: dict[str, str] = {}
        self._landed_groups = self._grown = 0
        self._closed = False

    @classmethod
    async def open(
        cls, url: str, clock: Callable[[], int] | None = None, uptime: Callable[[], int] | None = None
    ) -> PostgresStore:
        store = cls(Server(url), clock, uptime)
        try:
            await store._server.open()
        except BaseException:
            await store._server.close()
            raise
        return store

    @classmethod
    def on(cls, pool: Any, schema: str = SCHEMA) -> PostgresStore:
        """On a pool of the caller's; the tables are made on first use, in that schema."""
        if not (hasattr(pool, "acquire") and hasattr(pool, "release")):
            raise InvalidInput("db_pool", "must be a pool: await asyncpg.create_pool(url); for a URL use saveslot.open")
        return cls(Server(pool=pool, schema=schema))

    async def tend(self) -> None:
        """Make partitions ahead, and drop empty ones of months gone by, if that is for us to do."""
        self._check_open()
        await self._server.run(lambda connection: postgres_partitions.make(connection, self._server.schema))
        await self._server.run(lambda connection: drop_empty(connection, self._server.schema))

    def _sql(self, statement: str) -> str:
        """Under another text, and so planned anew, whenever this process has doubled what it wrote.

        A plan made for a table of a page reads it from end to end, and is kept: with 100,000 entries a head took 22 ms.
        """
        if (grown := self._landed_groups.bit_length()) != self._grown:
            self._grown = grown
            self._told.clear()
        if statement not in self._told:
            quoted = f'"{self._server.schema}"'  # it may be a word of SQL: order, user
            self._told[statement] = f"{statement.replace('{s}', quoted)} -- {grown}"
        return self._told[statement]

    def _times(self) -> str:
        """Those of a test's clocks, where it brings any, as an array."""
        if self._clock is self._uptime is None:
            return "{null,null}"
        return _array([clock and clock() for clock in (self._clock, self._uptime)])

    async def _fetch(self, statement: str, *values: Any) -> list[Any]:
        self._check_open()
        told = self._sql(statement)
        return await self._server.run(lambda connection: connection.fetch(told, *values))

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    # Writing

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        self._check_open()
        return await self._batches.append(groups)

    async def _land(self, groups: list[Group]) -> list[Verdict]:
        """One statement for each sort of group; who did not land is told why, in a new snapshot."""
        lone = groups[0]
        if len(groups) == 1 and _sort(lone) is sql.PLAIN:
            values = _values(lone, lone.entries[0], signed=lone.entries[0].sign)
            if found := await self._fetch(sql.LONE, self._clock and self._clock(), *values):
                self._landed_groups += 1
                self._news.tell()
                return [Verdict(Outcome.APPENDED, [found[0][0]])]
        sorts: dict[str, list[Group]] = {}
        for group in groups:
            sorts.setdefault(_sort(group), []).append(group)
        verdicts: dict[bytes, Verdict] = {}
        for statement in sql.APPENDING:
            if chosen := sorts.get(statement):
                verdicts |= await self._landed(chosen, statement)
        self._landed_groups += len(groups)
        self._news.tell()
        return [verdicts[group.key] for group in groups]

    async def _landed(self, groups: list[Group], statement: str) -> dict[bytes, Verdict]:
        """What became of each, by its session's key."""
        verdicts: dict[bytes, Verdict] = {}
        for _ in range(TRIES):
            [(now, keys, marked)] = await self._fetch(statement, self._times(), *_given(groups, statement))
            if marked:  # a purge is about to take one of them, but we come first
                await self._fetch(sql.UNMARK, b"".join(map(_key, groups)))
                continue
            landed = {keys[at : at + 16] for at in range(0, len(keys), 16)}
            verdicts |= {group.key: _appended(group, now) for group in groups if group.key in landed}
            if len(landed) == len(groups):
                return verdicts
            lost = [group for group in groups if group.key not in landed]
            looked = await self._looked(lost)
            verdicts |= {group.key: found for group, found in zip(lost, looked, strict=True) if found is not None}
            groups = [group for group, found in zip(lost, looked, strict=True) if found is None]
            if not groups:
                return verdicts
        made = [group.create for group in groups if group.create is not None]
        spaces, ids = [row.namespace for row in made], [row.session_id for row in made]
        for namespace, name in await self._fetch(sql.HOLLOW, spaces, ids):
            told = f"session {name} of namespace {namespace} has a row, but its log is gone (a partition dropped?)"
            raise Unavailable(f"{told}; `saveslot doctor` says how to remove it; what was appended with it: retry")
        raise Unavailable("some entries met rivals that never landed; retry")

    async def _looked(self, groups: list[Group]) -> list[Verdict | None]:
        """Why these did not land; None for one with no reason to be seen any more."""
        firsts = [str(group.entries[0].seq) for group in groups]
        rows = await self._fetch(sql.LOOK, [group.key.hex() for group in groups], firsts)
        verdicts: list[Verdict | None] = []
        for group, (known, deleted, fence, lease, heartbeat, here, before, *header) in zip(groups, rows, strict=True):
            head = None if header[0] is None else _entry(header)
            if here == group.entries[0].append_id:
                verdicts.append(await self._already(group, heartbeat or 0))
            elif group.create is not None:
                [taken] = await self.heads([(group.create.namespace, group.create.session_id)])
                verdicts.append(None if taken is None and head is None else _conflict(taken))
            else:
                row = Row(group.key, "", "", fence=fence, lease=lease) if known else None
                outcome = judged(group, here, before, row, deleted=deleted)
                free = outcome is Outcome.CONFLICT and here is None and _sort(group) is not sql.GUARDED
                verdicts.append(None if free else Verdict(outcome, head=head))
        return verdicts

    async def _already(self, group: Group, heartbeat: int) -> Verdict:
        first, last = group.entries[0].seq, group.entries[-1].seq
        # The lock makes this a commit, which waits for a synchronous replica: the first one may not have waited.
        found = "select at from {s}.checkpoints where key = $1 and seq between $2 and $3 order by seq for key share"
        rows = await self._fetch(found, group.key, first, last)
        return Verdict(Outcome.ALREADY, [at for (at,) in rows], heartbeat=heartbeat)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        self._check_open()
        beat, beat_one = self._sql(sql.BEAT), self._sql(sql.BEAT_ONE)

        async def work(connection: Connection) -> list[int]:
            beaten: dict[Sign, int] = {}
            if signs:
                keys, leases = [key.hex() for key, _ in signs], [_text(lease) for _, lease in signs]
                rows = await connection.fetch(beat, self._times(), keys, leases)
                for key, lease, at in rows:
                    found = at or await connection.fetchval(beat_one, self._times(), key, lease)
                    beaten[key, lease] = found or 0
            times = [beaten.get(sign, 0) for sign in signs]
            return times if worker is None else [*times, await self._beat_worker(connection, worker)]

        return await self._server.run_beside(work, None if worker is None else worker.ttl / 3e6)

    async def _beat_worker(self, connection: Connection, worker: Worker) -> int:
        times = self._times()
        if worker.first:
            await connection.execute(self._sql(sql.LEFTOVERS), times, LEFTOVER)
            first = self._sql(sql.WORKER_FIRST)
            return await connection.fetchval(first, times, worker.id, worker.name, worker.ttl) or 0
        return await connection.fetchval(self._sql(sql.WORKER), times, worker.id, worker.ttl) or 0

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        emptied = len(await self._fetch(sql.EMPTY, key, _array(seqs), notes)) if seqs else 0
        return emptied + (0 if body is None else len(await self._fetch(sql.SWAP, key, *body)))

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        purged: dict[bytes, int] = {}
        if seen is None:  # their tombstones stand where others would write
            if await self._drained():
                purged = dict(await self._fetch(sql.PURGE, b"".join(keys)))
        elif keys:
            [(own,)] = await self._fetch(sql.MARK, b"".join(keys))
            if await self._drained():
                told = b"".join(key + last for key, last in zip(keys, seen, strict=True))
                purged = dict(await self._fetch(sql.REMOVE, own, told))
            else:
                await self._fetch(sql.LEAVE, own)
        return [purged.pop(key, 0) for key in keys]

    async def _drained(self) -> bool:
        """Wait for all who write to the log just now: they may not have seen a tombstone or a mark.

        False if one of them takes too long.
        """
        end, nap = time.monotonic() + DRAINED, QUICK
        writing = {one for (one,) in await self._fetch(sql.WRITING)}
        while writing and time.monotonic() < end:
            await asyncio.sleep(nap)
            nap = min(nap * 2, POLL)
            writing &= {one for (one,) in await self._fetch(sql.WRITING)}
        return not writing

    # Reading

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        return await self._joining.heads(refs)

    async def _heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        found: dict[Ref, Head] = {}
        keys = [ref for ref in refs if isinstance(ref, bytes)]
        names = [ref for ref in refs if not isinstance(ref, bytes)]
        if keys:
            for row in await self._fetch(sql.HEADS_BY_KEY, self._times(), [key.hex() for key in keys]):
                head = _head(row)
                found[head.row.key] = head
        if names:
            spaces, ids = [namespace for namespace, _ in names], [name for _, name in names]
            for row in await self._fetch(sql.HEADS_BY_ID, self._times(), spaces, ids):
                head = _head(row)
                found[head.row.namespace, head.row.session_id] = head
        return [found.get(ref) for ref in refs]

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        frame = "frame" if frames else "null::bytea"
        if frames and largest is not None:
            # The length of a frame that lies outside its row is known without fetching it.
            frame = f"case when length(frame) <= {largest:d} then frame end"
        chosen = None if kinds is None else _array(list(kinds))
        if len(ranges) == 1:
            found, [(first, last)] = sql.RANGE, ranges
        else:
            found = sql.RANGES
            first, last = _array([first for first, _ in ranges]), _array([last for _, last in ranges])
        rows = await self._fetch(found.replace("{frame}", frame), key, first, last, chosen, name, newest)
        return [_entry(row) for row in reversed(rows)]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        weighed = query.ended_for is not None or query.deleted_for is not None
        (where, values), source = _where(query, "c.ended" if weighed else sql.ENDED), _source(query)
        way, compare = ("desc", "<") if order(query)[1] else ("asc", ">")
        column, key = _order(query)
        if after is not None:
            where += f" and ({column}, {key}) {compare} (${len(values) + 2}, ${len(values) + 3})"
            values += after
        page = f"order by {column} {way}, {key} {way} limit ${len(values) + 2}"
        if weighed:
            # In one statement, so that the newest entry is none that came after the row was read.
            found = f"{sql.ROW}, c.* from {source} cross join {sql.WEIGHED} where {where} {page}"
            return [_weighed(row) for row in await self._fetch(found, self._times(), *values, limit)]
        found = f"{sql.ROW} from {source} where {where} {page}"
        if query.text is not None and source == sql.OWNED:  # the index alone tells which; only those are read
            # Without owners, unless they are asked for: named in a join, even one that is left out, they are read.
            bare = "{s}.sessions s" if query.orphan_for is None else source
            keys = f"(select s.key from {bare} where {where} {page})"  # noqa: S608
            found = f"{sql.ROW} from {sql.OWNED} join {keys} k on k.key = s.key {page}"
        return [_row(row) for row in await self._fetch(found, self._times(), *values, limit)]

    async def count(self, query: Query, sample: int = 0) -> Counts:
        (where, values), source = _where(query), _source(query)
        # Who holds them is asked apart: few are held, and the others are counted without a look at workers.
        counted = f"""
            select s.state, s.agent_type, count(*) from {source} where {where} and $1::text is not null
            group by s.state, s.agent_type"""  # noqa: S608
        owned = f"""
            select count(*), count(*) filter (where w.dead or w.expires <= {sql.UP})
            from {source} where {where} and s.owner is not null and s.deleted_at is null"""  # noqa: S608
        whole = """
            select (select count(*) from {s}.checkpoints), (
              select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = $1 and c.relkind = 'r')::int8"""
        by_state, held, stored, found = await asyncio.gather(
            self._fetch(counted, self._times(), *values),
            self._fetch(owned, self._times(), *values),
            self._fetch(whole, self._server.schema),
            self._sample(query, sample),
        )
        counts = Counts(sample=found)
        for state, agent_type, many in by_state:
            counts.states[state] = counts.states.get(state, 0) + many
            counts.agent_types[agent_type] = counts.agent_types.get(agent_type, 0) + many
        [(counts.held, counts.orphaned)], [(counts.entries, counts.stored_bytes)] = held, stored
        return counts

    async def _sample(self, query: Query, count: int) -> Sample | None:
        if not count:
            return None
        sample = Sample(count * TRACED)
        where, values = _where(query)
        column, key = _order(query)
        newest = f"""
            select s.key, s.state, s.created_at from {_source(query)} where {where} and $1::text is not null
            order by {column} desc, {key} desc limit ${len(values) + 2}"""  # noqa: S608
        for key, state, created_at in await self._fetch(newest, self._times(), *values, count):
            sample.sessions[key] = (state, created_at)
        rows = await self._fetch(sql.TRACED, b"".join(sample.sessions), sample.limit)
        sample.entries = [tuple(row) for row in rows]
        failed = [key for key, (state, _) in sample.sessions.items() if state == "failed"][:FAILURES]
        found = {row[0]: _entry(tuple(row)[1:]) for row in await self._fetch(sql.FAILED, b"".join(failed))}
        sample.failures = [(key, found[key]) for key in failed if key in found]
        return sample

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        nap = QUICK
        if wait > 0:
            self._news.listen()
        if after is None:
            [(horizon,)] = await self._fetch(sql.EVENTS_END)
            start = (int(horizon), b"", 0)
        else:
            start = _place(after)
        while True:
            coming = self._news.coming
            rows = await self._fetch(sql.EVENTS, str(start[0]), start[1], start[2], limit)
            found: list[Event] = []
            for tx, owner, seq, kind, name, at, session_id, space in rows:
                start = (tx, owner, seq)
                if space == namespace and key in {None, owner}:
                    found.append(Event(_cursor(start), session_id, seq, Kind(kind).label, name, moment(at)))
            left = end - time.monotonic()
            full = len(rows) == limit  # and none for us: ours may lie right behind it
            if found or (left <= 0 and not full):
                return found, _cursor(start)
            if not full:
                try:
                    await asyncio.wait_for(coming.wait(), min(nap, left))
                    nap = QUICK
                except TimeoutError:
                    nap = min(nap * 2, LAZY if self._news.listening else POLL)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._batches.close()
            await self._news.close()
            await self._server.close()


def _sort(group: Group) -> str:
    """The statement that lands it. `PLAIN` for a checkpoint or step alone, which leaves the session's row as it is."""
    if group.create is not None:
        return sql.CREATE
    if group.only_stale or group.only_orphan is not None:
        return sql.GUARDED
    if group.heartbeat or group.state or group.body is not None or group.labels is not None:
        return sql.CHANGING
    for entry in group.entries:
        if entry.kind not in PLAIN_KINDS:
            return sql.CHANGING
    return sql.PLAIN if len(group.entries) == 1 else sql.SEVERAL


def _given(groups: list[Group], statement: str) -> list[Any]:
    """What a statement is told of its groups, behind the clock. By key: all who write several sessions keep to that."""
    groups = sorted(groups, key=_key)
    heads: list[bytes] = []
    parts: list[bytes] = []
    names: list[str] = []
    numbers: list[int] = []
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
            parts += (entry.recipe, entry.digest, note or b"", frame or b"")
            names.append(entry.name)
            numbers += (entry.seq, has, entry.at, entry.fence, entry.data_seq, entry.about_seq)
            place, prev = place & SIGNED, NOBODY
    ends = list(accumulate(map(len, parts), initial=1))
    columns: list[Any] = [b"".join(heads), b"".join(parts), names, _array(numbers), _array(ends)]
    if statement in {sql.PLAIN, sql.SEVERAL}:
        return columns
    told = [_created(group) if statement is sql.CREATE else _changed(group) for group in groups]
    return [*columns, *([_text(value) for value in column] for column in zip(*told, strict=True))]


def _array(numbers: Sequence[int | None]) -> str:
    """As PostgreSQL writes it: {1,2,null}."""
    return f"{{{_json(numbers)[1:-1].decode()}}}"


def _text(value: Any) -> str | None:
    return value.hex() if isinstance(value, bytes) else value if value is None else str(value)


def _values(group: Group, entry: Entry, *, signed: bool) -> tuple[Any, ...]:
    prev = group.prev if entry is group.entries[0] else None
    return (
        *(group.key, entry.seq, entry.append_id, prev, int(entry.kind), entry.name, entry.at, signed, entry.fence),
        *(entry.lease, entry.data_seq, entry.about_seq, entry.recipe, entry.digest, entry.note, entry.frame),
    )


def _changed(group: Group) -> tuple[Any, ...]:
    labels = None if group.labels is None else msgspec.json.encode(group.labels).decode()
    return (
        *(group.key, group.state, group.body, labels, group.heartbeat, group.delete, group.owner),
        *(group.only_stale or None, group.only_orphan, group.entries[0].seq - 1, group.prev),
    )


def _created(group: Group) -> tuple[Any, ...]:
    row, last = group.create or Row(group.key, "", ""), group.entries[-1]
    return (
        *(row.key, row.namespace, row.session_id, row.agent_type, row.user_id, group.state or row.state),
        *(row.created_at or None, None if group.heartbeat else row.heartbeat or None, last.fence, last.lease),
        *(row.body if group.body is None else group.body, msgspec.json.encode(group.labels or row.labels).decode()),
    )


def _appended(group: Group, now: int) -> Verdict:
    if group.create is not None and not group.heartbeat:
        beaten = group.create.heartbeat or now
    else:
        beaten = now if group.heartbeat else 0
    return Verdict(APPENDED, [entry.time(now) for entry in group.entries], None, beaten)


def _conflict(head: Head | None) -> Verdict:
    return Verdict(Outcome.CONFLICT, head=None if head is None else head.last)


def _entry(row: Sequence[Any]) -> Entry:
    seq, append_id, kind, name, at, alive, fence, lease, data_seq, about_seq, recipe, digest, note, frame, size = row
    return Entry(
        seq, append_id, Kind(kind), name, at, False, alive, fence, lease, data_seq, about_seq,  # noqa: FBT003
        recipe, digest, note, frame, size,
    )  # fmt: skip


def _row(row: Sequence[Any]) -> Row:
    *columns, labels, owner, worker, left, now, deleted_at = row
    told = msgspec.json.decode(labels, type=dict[str, str])
    return Row(*columns, labels=told, owner=owner, worker=worker, left=left, now=now, deleted_at=deleted_at)


def _weighed(row: Sequence[Any]) -> Row:
    *columns, _, weight, length, last = row
    found = _row(columns)
    found.weight, found.length, found.last = weight or 0, length or 0, last or NOBODY
    return found


def _head(row: Any) -> Head:
    columns = tuple(row)
    return Head(_row(columns[:17]), _entry(columns[17:]))


def _cursor(place: tuple[int, bytes, int]) -> str:
    return f"{place[0]}:{place[1].hex()}:{place[2]}"


def _place(cursor: str) -> tuple[int, bytes, int]:
    tx, key, seq = cursor.split(":") if cursor.count(":") == 2 else (cursor, "", "0")  # noqa: PLR2004
    try:
        return feed_number(tx), bytes.fromhex(key), feed_number(seq)
    except (InvalidInput, ValueError):
        raise foreign_cursor(cursor) from None


# What shapes the text of a list of label values, and so might be found between them; and what LIKE reads as a pattern.
_SHAPES = re.compile(r'[\x1f",\[\]\\]')
_WILD = re.compile(r"[%_]")


def _by_label(query: Query) -> bool:
    """True when a label leads: of the living, and where nothing else is known to choose fewer."""
    chosen = query.user_id is None and query.owner is None and query.orphan_for is None and query.deleted_for is None
    return bool(query.labels) and chosen and order(query)[0] == "created_at"


def _source(query: Query) -> str:
    return sql.LABELLED if _by_label(query) else sql.OWNED


def _order(query: Query) -> tuple[str, str]:
    """What orders the pages of a query, in the words of the index that leads."""
    return ("l.made", "l.session") if _by_label(query) else (f"s.{order(query)[0]}", "s.key")


def _where(query: Query, ended: str = sql.ENDED) -> tuple[str, list[Any]]:
    """$1 is the clock; `ended`: what tells when a session ended."""
    parts, values = list[str](["s.namespace = $2"]), list[Any]([query.namespace])

    def add(part: str, value: Any) -> None:
        values.append(value)
        parts.append(part.replace("?", f"${len(values) + 1}"))

    if query.deleted_for is None:
        parts.append("s.deleted_at is null")
    else:
        add(f"s.deleted_at is not null and s.deleted_at <= (select {sql.NOW}) - ?::int8", query.deleted_for)
    if query.agent_type is not None:
        add("s.agent_type = ?", query.agent_type)
    if query.user_id is not None:
        add("s.user_id = ?", query.user_id)
    if query.state is not None:
        add("s.state = ?", query.state)
    labels, created_at = dict(query.labels), "s.created_at"
    if _by_label(query):
        label, created_at = next(iter(labels)), "l.made"
        add("l.space = $2 and l.label = ?", label)
        add("l.value = ?", labels.pop(label))
    if labels:
        add("s.labels @> ?::text::jsonb", msgspec.json.encode(labels).decode())
    if query.created_after is not None:
        add(f"{created_at} > ?", query.created_after)
    if query.created_before is not None:
        add(f"{created_at} < ?", query.created_before)
    if query.prefix is not None:
        add("starts_with(s.id, ?)", query.prefix)
    if query.text is not None:
        if _SHAPES.search(query.text) or not query.text.strip():
            texts = [_contains(f"s.{column}") for column in ("id", "agent_type", "user_id")]
            inside = f"exists (select 1 from jsonb_each_text(s.labels) l where {_contains('l.value')})"  # noqa: S608
            add(f"({' or '.join([*texts, inside])})", query.text)
        else:
            pattern = _WILD.sub(r"\\\g<0>", query.text)
            # (select …): lowered once, not for each session.
            add('s.search like (select lower(?::text collate "C"))', f"%{pattern}%")
    if query.stale_for is not None:
        # (select …) of the clock: asked once, so that it bounds the index. Of the worker: a condition on the join was
        # thought to cost nothing, and asked of every session before the page was cut off.
        alive = """greatest(s.heartbeat, (select w.beaten from {s}.workers w where w.worker = s.owner), (
            select c.alive from {s}.checkpoints c where c.key = s.key order by c.seq desc limit 1))"""
        add(f"s.heartbeat < (select {sql.NOW}) - ?::int8 and {alive} < (select {sql.NOW}) - ?::int8", query.stale_for)
    if query.ended_for is not None:
        if query.state is None:
            parts.append("s.state in ('completed', 'failed')")
        elif query.state not in {"completed", "failed"}:
            parts.append("false")
        # (select …): asked once, so that it bounds the index.
        cutoff = f"(select {sql.NOW}) - ?::int8"
        add(f"s.heartbeat <= {cutoff} and {ended} <= {cutoff}", query.ended_for)
    if query.orphan_for is not None:
        add(f"s.owner is not null and (w.dead or w.expires + ?::int8 <= {sql.UP})", query.orphan_for)
    if query.owner is not None:
        add("s.owner = ?", query.owner)
    if query.unowned:
        parts.append("s.owner is null")
    return " and ".join(parts), values


def _contains(column: str) -> str:
    """Whatever the database's language: only the case of ASCII letters does not matter."""
    return f'position(lower(? collate "C") in lower({column} collate "C")) > 0'
