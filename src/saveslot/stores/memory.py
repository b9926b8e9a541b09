"""The reference store: the whole protocol in plain dicts. Tests check that every other store behaves like this one."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import msgspec

from saveslot.errors import Unavailable
from saveslot.stores import Store, Traits
from saveslot.stores.wire.bells import Bells
from saveslot.stores.wire.loops import set_within
from saveslot.values.kinds import KEEPING_KINDS, Kind
from saveslot.values.log import (
    ALL,
    FOREVER,
    ID,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Labels,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Totals,
    Verdict,
    Wanted,
    Worker,
    among,
    checked,
    checked_together,
    feed_number,
    judged,
    lost_place,
    moment,
    order,
    seq_after,
)


def clock() -> int:
    return time.time_ns() // 1000


def uptime() -> int:
    return time.monotonic_ns() // 1000


# Bytes kept of an emptied note.
SEAL = 16
# Seconds after which an append lets other tasks run: one that saves in a tight loop must not keep them from it.
TURN = 0.004
# Microseconds until the row of a crashed worker that owns nothing is removed: one hour.
LEFTOVER = 3600 * 1_000_000


class _Crewman(msgspec.Struct):
    name: str
    expires: int  # by the monotonic clock
    beaten: int  # by the wall clock
    dead: bool = False


class MemoryStore(Store):
    kind = "memory"
    traits = Traits(local=True)

    def __init__(self, clock: Callable[[], int] = clock, uptime: Callable[[], int] = uptime) -> None:
        self._clock = clock
        self._uptime = uptime
        self._workers: dict[bytes, _Crewman] = {}
        self._rows: dict[bytes, Row] = {}
        self._deleted: set[bytes] = set()
        self._deleted_at: dict[bytes, int] = {}
        self._ids: dict[tuple[str, str], bytes] = {}
        self._created_by: dict[tuple[str, bytes], bytes] = {}
        self._logs: dict[bytes, list[Entry]] = {}
        self._requests: dict[bytes, dict[bytes, int]] = {}  # of each log: by their first 16 bytes
        self._marks: dict[bytes, dict[int, dict[str, str]]] = {}  # labels of each log's entries, by seq
        self._feed: list[tuple[bytes, Entry]] = []
        self._places: dict[bytes, list[int]] = {}  # of each session's entries in the feed, from 1
        self._bells = Bells()
        self._turn = 0.0  # when other tasks have to run
        self._closed = False

    def __repr__(self) -> str:
        return "<MemoryStore>"

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        self._check_open()
        groups = [checked(group) for group in groups]
        verdicts = self._land_together(checked_together(groups)) if together else [self._land(g) for g in groups]
        self._bells.ring([group.key for group in groups])
        if time.monotonic() >= self._turn:
            await asyncio.sleep(0)
            self._turn = time.monotonic() + TURN
        return verdicts

    def _land(self, group: Group) -> Verdict:
        return self._refused(group) or self._appended(group)

    def _land_together(self, groups: Sequence[Group]) -> list[Verdict]:
        refused = [self._refused(group) for group in groups]
        if any(verdict is not None and verdict.outcome is not Outcome.ALREADY for verdict in refused):
            return [verdict or Verdict(Outcome.SKIPPED) for verdict in refused]
        return [verdict or self._appended(group) for verdict, group in zip(refused, groups, strict=True)]

    def _refused(self, group: Group) -> Verdict | None:
        """Why a group does not land, or that it has; None if it can."""
        log = self._logs.get(group.key, [])
        row = self._rows.get(group.key)
        first = group.entries[0]
        if group.create is not None:
            taken = self._ids.get((group.create.namespace, group.create.session_id))
            if taken is None and group.create.request:
                taken = self._created_by.get((group.create.namespace, group.create.request[:ID]))
            if taken is not None or row is not None:
                mine = bool(log) and log[0].append_id == first.append_id
                return self._landed(group) if mine else Verdict(Outcome.CONFLICT, head=self._last(taken))
        else:
            here = log[first.seq - 1].append_id if len(log) >= first.seq else None
            before = log[first.seq - 2].append_id if len(log) >= first.seq - 1 and first.seq > 1 else None
            free = len(log) == first.seq - 1 and before == group.prev and group.key not in self._deleted
            if row is None or not free or not self._allowed(group, row):
                outcome = judged(group, here, before, row, deleted=group.key in self._deleted)
                if outcome is Outcome.ALREADY:
                    return self._landed(group)
                return Verdict(outcome, head=self._last(group.key))
        return None

    def _allowed(self, group: Group, row: Row) -> bool:
        """Check the guards that need more than the entry before."""
        known = self._requests[group.key]
        if known and any(entry.request[:ID] in known for entry in group.entries):
            return False
        if group.only_stale and self._alive(row) >= self._clock() - group.only_stale:
            return False
        return group.only_orphan is None or self._bury(row.owner, group.only_orphan)

    def _appended(self, group: Group) -> Verdict:
        times = self._write(group)
        renewed = group.create is not None or group.heartbeat
        return Verdict(Outcome.APPENDED, times, heartbeat=self._rows[group.key].heartbeat if renewed else 0)

    def _write(self, group: Group) -> list[int]:
        """Add the entries; return their times."""
        now = self._clock()
        if group.create is not None:
            row = _copy(group.create)
            row.heartbeat = row.heartbeat or now
            row.created_at = row.created_at or now
            self._rows[group.key] = row
            self._ids[row.namespace, row.session_id] = group.key
            if row.request:
                self._created_by[row.namespace, row.request[:ID]] = group.key
            self._logs[group.key], self._requests[group.key], self._marks[group.key] = [], {}, {}
        row, log = self._rows[group.key], self._logs[group.key]
        times: list[int] = []
        for entry in group.entries:
            alive = now if entry.sign else log[-1].alive if log else row.heartbeat
            kept = msgspec.structs.replace(entry, at=entry.time(now), alive=alive, sign=False, labels={})
            kept.size = len(kept.frame or b"") + len(kept.note or b"")
            log.append(kept)
            times.append(kept.at)
            self._feed.append((group.key, kept))
            self._places.setdefault(group.key, []).append(len(self._feed))
            if entry.request:
                self._requests[group.key][entry.request[:ID]] = entry.seq
            if entry.labels:
                self._marks[group.key][entry.seq] = dict(entry.labels)
        row.state = group.state or row.state
        row.body = row.body if group.body is None else group.body
        row.labels = row.labels if group.labels is None else dict(group.labels)
        row.heartbeat = now if group.heartbeat else row.heartbeat
        row.fence, row.lease = log[-1].fence, log[-1].lease
        row.owner = None if row.lease is None else group.owner or row.owner
        if row.owner is not None:  # an owner that never sent a heartbeat counts as dead
            self._workers.setdefault(row.owner, _Crewman("", 0, 0, dead=True))
        if group.delete:
            self._deleted.add(group.key)
            self._deleted_at[group.key] = now
            self._forget(row)
        return times

    def _landed(self, group: Group) -> Verdict:
        log = self._logs[group.key]
        return Verdict(
            Outcome.ALREADY,
            [entry.at for entry in log[group.entries[0].seq - 1 : group.entries[-1].seq]],
            heartbeat=self._rows[group.key].heartbeat,
        )

    def _last(self, key: bytes | None) -> Entry | None:
        log = self._logs.get(key) if key is not None else None
        return msgspec.structs.replace(log[-1], frame=None) if log else None

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        self._check_open()
        heads = [self._head(ref) for ref in refs]
        for head in heads if state else ():
            if head is not None and head.last.data_seq:
                head.data = msgspec.structs.replace(self._logs[head.row.key][head.last.data_seq - 1], frame=None)
        return heads

    def _head(self, ref: Ref) -> Head | None:
        key = ref if isinstance(ref, bytes) else self._ids.get(ref)
        if key is None or key not in self._rows or key in self._deleted:
            return None
        log = self._logs[key]
        before = (log[-2].digest, log[-2].at) if len(log) > 1 else None
        return Head(self._shown(self._rows[key]), msgspec.structs.replace(log[-1], frame=None), before=before)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        self._check_open()
        log, marks = self._logs.get(key, []), self._marks.get(key, {})
        if wanted.labelled:
            entries = await self.entries(key, among(wanted, marks))
            return [msgspec.structs.replace(entry, labels=dict(marks[entry.seq])) for entry in entries]
        ranges = wanted.with_chain(_chain(log, wanted.chain))
        if wanted.request is not None:
            at = self._requests.get(key, {}).get(wanted.request)
            ranges = [(at, at) for first, last in ranges if at is not None and first <= at <= last]
        matching = [
            entry
            for first, last in ranges
            for entry in log[max(first - 1, 0) : max(last, 0)]
            if (wanted.kinds is None or entry.kind in wanted.kinds) and wanted.name in {None, entry.name}
        ]
        if wanted.newest is not None:
            matching = matching[max(0, len(matching) - wanted.newest) :]
        left = FOREVER if wanted.room is None else wanted.room
        entries: list[Entry] = []
        for entry in reversed(matching):
            left -= len(entry.frame or b"")
            entries.append(msgspec.structs.replace(entry, frame=entry.frame if wanted.frames and left >= 0 else None))
        return entries[::-1]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        self._check_open()
        column, newest_first = order(query)
        rows = [self._shown(row) for row in self._matching(query)]
        for row in rows if column == "changed_at" else ():
            row.changed_at = next(e.at for e in reversed(self._logs[row.key]) if e.kind not in KEEPING_KINDS)
        places = [(getattr(row, column), row.key, row) for row in rows]
        places.sort(reverse=newest_first)
        if after is not None:
            places = [item for item in places if (item[:2] < after if newest_first else item[:2] > after)]
        rows = [row for *_, row in places[:limit]]
        if query.ended_for is not None or query.deleted_for is not None:
            for row in rows:
                log = self._logs[row.key]
                row.weight = sum(entry.size for entry in log)
                row.length, row.last = len(log), log[-1].append_id
        return rows

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        self._check_open()
        counts, matching = Counts(), self._matching(query)
        if totals == "store":
            counts.entries = sum(map(len, self._logs.values()))
            counts.stored_bytes = sum(entry.size for log in self._logs.values() for entry in log)
        elif totals == "matching":
            counts.entries = sum(len(self._logs[row.key]) for row in matching)
            counts.stored_bytes = sum(map(self._weight, matching))
        for row in matching:
            counts.states[row.state] = counts.states.get(row.state, 0) + 1
            counts.agent_types[row.agent_type] = counts.agent_types.get(row.agent_type, 0) + 1
            if row.key not in self._deleted:  # a deleted session has no owner, whatever its last lease
                counts.held += row.owner is not None
                counts.orphaned += self._orphaned(row.owner, 0)
        return counts

    def _weight(self, row: Row) -> int:
        log, labels = self._logs[row.key], self._marks[row.key].values()
        marks = sum(len(text.encode()) for pairs in labels for pair in pairs.items() for text in pair)
        return len(row.body) + marks + sum(e.size + len(e.recipe) + len(e.name.encode()) for e in log)

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        self._check_open()
        return sorted({namespace for namespace, _ in self._ids if namespace > after})[:limit]

    def _matching(self, query: Query) -> list[Row]:
        now = self._clock()
        cutoff = None if query.stale_for is None else now - query.stale_for
        return [
            row
            for key, row in self._rows.items()
            if (key in self._deleted) == (query.deleted_for is not None)
            and _matches(row, query)
            and (cutoff is None or self._alive(row) < cutoff)
            and (query.ended_for is None or self._ended(row) <= now - query.ended_for)
            and (query.deleted_for is None or self._deleted_at.get(key, 0) <= now - query.deleted_for)
            and (query.orphan_for is None or self._orphaned(row.owner, query.orphan_for))
            and (not query.entry or any(query.entry.items() <= labels.items() for labels in self._marks[key].values()))
        ]

    def _alive(self, row: Row) -> int:
        """The newest sign of life: the session's own, its last entry's or its owner's."""
        owner = self._workers.get(row.owner or b"")
        return max(row.heartbeat, self._logs[row.key][-1].alive, 0 if owner is None else owner.beaten)

    def _ended(self, row: Row) -> int:
        """When the session completed or failed, by its entry and its row; beyond every time if it did not."""
        if row.state not in {"completed", "failed"}:
            return FOREVER
        ends = (entry.at for entry in reversed(self._logs[row.key]) if entry.kind in {Kind.COMPLETED, Kind.FAILED})
        return max(row.heartbeat, next(ends, 0))

    def _orphaned(self, owner: bytes | None, patience: int) -> bool:
        worker = self._workers.get(owner or b"")
        return worker is not None and (worker.dead or worker.expires + patience <= self._uptime())

    def _bury(self, owner: bytes | None, patience: int) -> bool:
        """Declare an owner dead if its time ran out; return whether it is dead."""
        if owner is None or not self._orphaned(owner, patience):
            return False
        self._workers[owner].dead = True
        return True

    def _shown(self, row: Row) -> Row:
        worker = self._workers.get(row.owner or b"")
        copy = msgspec.structs.replace(row, labels=dict(row.labels), now=self._clock())
        copy.deleted_at = self._deleted_at.get(row.key, 0)
        if worker is not None:
            copy.worker, copy.beaten = worker.name, worker.beaten
            copy.left = 0 if worker.dead else max(0, worker.expires - self._uptime())
        return copy

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        self._check_open()
        beaten = [self._beat(key, lease) for key, lease in signs]
        return beaten if worker is None else [*beaten, self._beat_worker(worker)]

    def _beat(self, key: bytes, lease: bytes | None) -> int:
        row = self._rows.get(key)
        if row is None or key in self._deleted or row.state not in {"active", "paused"} or row.lease != lease:
            return 0
        row.heartbeat = self._clock()
        return row.heartbeat

    def _beat_worker(self, worker: Worker) -> int:
        now = self._clock()
        if worker.first:
            owners = {row.owner for row in list(self._rows.values()) if row.key not in self._deleted}
            for idle in self._workers.keys() - owners:
                if self._orphaned(idle, LEFTOVER):
                    del self._workers[idle]
            self._workers.setdefault(worker.id, _Crewman(worker.name, 0, now))
        row = self._workers.get(worker.id)
        if row is None or row.dead:
            return 0
        row.expires, row.beaten, row.dead = self._uptime() + worker.ttl, now, not worker.ttl
        return now

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        places = range(1, len(self._feed) + 1) if key is None else self._places.get(key, [])
        at = len(places) if after is None else self._index(after, places, key)
        while True:
            self._check_open()
            message = self._bells.message(key)
            places = range(1, len(self._feed) + 1) if key is None else self._places.get(key, [])
            events: list[Event] = []
            while at < len(places) and len(events) < limit:
                place, at = places[at], at + 1
                owner, entry = self._feed[place - 1]
                row = self._rows.get(owner)
                if row is not None and row.namespace == namespace:
                    kind = Kind(entry.kind).label
                    events.append(Event(str(place), row.session_id, entry.seq, kind, entry.name, moment(entry.at)))
            left = end - time.monotonic()
            if events or left <= 0:
                return events, str(places[at - 1]) if 0 < at <= len(places) else "0" if key is None else f"@{at}"
            await set_within(message, left)

    def _index(self, after: str, places: Sequence[int], key: bytes | None) -> int:
        """How many of these places, of the feed or of one session, a cursor is after."""
        if key is not None and (seq := seq_after(after)) is not None:
            return seq
        place = feed_number(after)
        if place > len(self._feed):
            raise lost_place(after)
        return bisect_right(places, place)

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        self._check_open()
        wanted = set(seqs)
        count = 0
        for entry in self._logs.get(key, []):
            if entry.seq in wanted and (entry.frame is not None or (notes and len(entry.note or b"") > SEAL)):
                entry.frame = None
                entry.note = entry.note[:SEAL] if notes and entry.note is not None else entry.note
                entry.size = len(entry.note or b"")
                count += 1
        return count

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        self._check_open()
        row = self._rows.get(key)
        if row is None or row.body != before or not (after or key in self._deleted):
            return False
        row.body = after
        if not after:
            row.user_id, row.labels = "", {}
        marks = self._marks[key]
        marks |= {seq: dict(named) for seq, named in (labels or {}).items() if seq in marks}
        return True

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        self._check_open()
        if seen is None:
            return [self._purge(key) if key in self._deleted else 0 for key in keys]
        ends = zip(keys, seen, strict=True)
        return [
            self._purge(key) if key in self._logs and self._logs[key][-1].append_id == at else 0 for key, at in ends
        ]

    def _purge(self, key: bytes) -> int:
        row = self._rows.pop(key)
        if key not in self._deleted:
            self._forget(row)
        self._deleted.discard(key)
        self._deleted_at.pop(key, None)
        del self._requests[key], self._marks[key]
        self._places.pop(key, None)
        return len(self._logs.pop(key))

    def _forget(self, row: Row) -> None:
        """Take a session out of what finds it by its id, its request or its entries."""
        del self._ids[row.namespace, row.session_id]
        self._created_by.pop((row.namespace, row.request[:ID]), None)
        self._marks[row.key] = {}

    async def close(self) -> None:
        self._closed = True
        self._bells.ring()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")


def _chain(log: list[Entry], seq: int) -> Iterator[int]:
    while 0 < seq <= len(log):
        yield seq
        base = log[seq - 1].base
        seq = base if base < seq else 0


def _copy(row: Row) -> Row:
    return msgspec.structs.replace(row, labels=dict(row.labels))


def _lower(text: str) -> bytes:
    return text.encode(errors="surrogatepass").lower()


def _matches(row: Row, query: Query) -> bool:
    texts = (row.session_id, row.agent_type, row.user_id, *row.labels.values())
    return (
        row.namespace == query.namespace
        and (query.agent_type is None or row.agent_type == query.agent_type)
        and (query.user_id is None or row.user_id == query.user_id)
        and (query.state is None or row.state == query.state)
        and all(row.labels.get(name) == value for name, value in query.labels.items())
        and (query.created_after is None or row.created_at > query.created_after)
        and (query.created_before is None or row.created_at < query.created_before)
        and (query.text is None or any(_lower(query.text) in _lower(text) for text in texts))
        and (query.prefix is None or row.session_id.startswith(query.prefix))
        and (query.request is None or row.request[:ID] == query.request)
        and (query.owner is None or row.owner == query.owner)
        and not (query.unowned and row.owner is not None)
    )
