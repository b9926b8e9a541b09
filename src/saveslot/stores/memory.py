"""The reference: the whole protocol in plain dicts. Every other store is tested to behave like this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from saveslot.errors import Unavailable
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
    judged,
    moment,
    order,
)
from saveslot.model import Kind


def clock() -> int:
    return time.time_ns() // 1000


def uptime() -> int:
    return time.monotonic_ns() // 1000


# Of a note that is emptied so much stays.
SEAL = 16
# A worker that crashed and owns nothing leaves a row that nobody needs: gone after an hour.
LEFTOVER = 3600 * 1_000_000


class _Crewman(msgspec.Struct):
    name: str
    expires: int  # by the clock that never jumps
    beaten: int  # by the one that people read
    dead: bool = False


class MemoryStore:
    forks = True  # a child goes on with a copy

    def __init__(self, clock: Callable[[], int] = clock, uptime: Callable[[], int] = uptime) -> None:
        self._clock = clock
        self._uptime = uptime
        self._workers: dict[bytes, _Crewman] = {}
        self._rows: dict[bytes, Row] = {}
        self._deleted: set[bytes] = set()
        self._deleted_at: dict[bytes, int] = {}
        self._ids: dict[tuple[str, str], bytes] = {}
        self._logs: dict[bytes, list[Entry]] = {}
        self._feed: list[tuple[bytes, Entry]] = []
        self._news = asyncio.Event()
        self._closed = False

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        self._check_open()
        verdicts = [self._land(group) for group in groups]
        self._news.set()
        self._news = asyncio.Event()
        await asyncio.sleep(0)  # whoever saves in a tight loop must not keep the others from running
        return verdicts

    def _land(self, group: Group) -> Verdict:
        log = self._logs.get(group.key, [])
        row = self._rows.get(group.key)
        first = group.entries[0]
        if group.create is not None:
            taken = self._ids.get((group.create.namespace, group.create.session_id))
            if taken is not None or row is not None:
                mine = bool(log) and log[0].append_id == first.append_id
                return self._landed(group) if mine else Verdict(Outcome.CONFLICT, head=self._last(taken))
        else:
            here = log[first.seq - 1].append_id if len(log) >= first.seq else None
            before = log[first.seq - 2].append_id if len(log) >= first.seq - 1 and first.seq > 1 else None
            free = len(log) == first.seq - 1 and before == group.prev and group.key not in self._deleted
            outcome = judged(group, here, before, row, deleted=group.key in self._deleted)
            if outcome is Outcome.ALREADY:
                return self._landed(group)
            if row is None or not free:
                return Verdict(outcome, head=self._last(group.key))
            if group.only_stale and self._alive(row) >= self._clock() - group.only_stale:
                return Verdict(outcome, head=self._last(group.key))
            if group.only_orphan is not None and not self._bury(row.owner, group.only_orphan):
                return Verdict(outcome, head=self._last(group.key))
        self._write(group)
        verdict = self._landed(group)
        verdict.outcome = Outcome.APPENDED
        verdict.heartbeat = verdict.heartbeat if group.create is not None or group.heartbeat else 0
        return verdict

    def _write(self, group: Group) -> None:
        now = self._clock()
        if group.create is not None:
            row = _copy(group.create)
            row.heartbeat = row.heartbeat or now
            row.created_at = row.created_at or now
            self._rows[group.key] = row
            self._ids[row.namespace, row.session_id] = group.key
            self._logs[group.key] = []
        row, log = self._rows[group.key], self._logs[group.key]
        for entry in group.entries:
            alive = now if entry.sign else log[-1].alive if log else row.heartbeat
            kept = msgspec.structs.replace(entry, at=entry.time(now), alive=alive, sign=False)
            kept.size = len(kept.frame or b"") + len(kept.note or b"")
            log.append(kept)
            self._feed.append((group.key, kept))
        row.state = group.state or row.state
        row.body = row.body if group.body is None else group.body
        row.labels = row.labels if group.labels is None else dict(group.labels)
        row.heartbeat = now if group.heartbeat else row.heartbeat
        row.fence, row.lease = log[-1].fence, log[-1].lease
        row.owner = None if row.lease is None else group.owner or row.owner
        if row.owner is not None:  # one that never said that it lives does not
            self._workers.setdefault(row.owner, _Crewman("", 0, 0, dead=True))
        if group.delete:
            self._deleted.add(group.key)
            self._deleted_at[group.key] = now
            del self._ids[row.namespace, row.session_id]

    def _landed(self, group: Group) -> Verdict:
        log = self._logs[group.key]
        return Verdict(
            Outcome.ALREADY,
            [log[entry.seq - 1].at for entry in group.entries],
            heartbeat=self._rows[group.key].heartbeat,
        )

    def _last(self, key: bytes | None) -> Entry | None:
        log = self._logs.get(key) if key is not None else None
        return msgspec.structs.replace(log[-1], frame=None) if log else None

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        self._check_open()
        return [self._head(ref) for ref in refs]

    def _head(self, ref: Ref) -> Head | None:
        key = ref if isinstance(ref, bytes) else self._ids.get(ref)
        if key is None or key not in self._rows or key in self._deleted:
            return None
        return Head(self._shown(self._rows[key]), msgspec.structs.replace(self._logs[key][-1], frame=None))

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
        self._check_open()
        found = [
            entry
            for first, last in ranges
            for entry in self._logs.get(key, [])[max(first - 1, 0) : max(last, 0)]
            if (kinds is None or entry.kind in kinds) and (name is None or entry.name == name)
        ]
        if newest is not None:
            found = found[max(0, len(found) - newest) :]
        most = -1 if not frames else 1 << 62 if largest is None else largest
        kept = [entry.frame if entry.frame is not None and len(entry.frame) <= most else None for entry in found]
        return [msgspec.structs.replace(entry, frame=frame) for entry, frame in zip(found, kept, strict=True)]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        self._check_open()
        column, newest_first = order(query)
        found = [(getattr(row, column), row.key, row) for row in map(self._shown, self._matching(query))]
        found.sort(reverse=newest_first)
        if after is not None:
            found = [item for item in found if (item[:2] < after if newest_first else item[:2] > after)]
        rows = [row for *_, row in found[:limit]]
        if query.ended_for is not None or query.deleted_for is not None:
            for row in rows:
                log = self._logs[row.key]
                row.weight = sum(entry.size for entry in log)
                row.length, row.last = len(log), log[-1].append_id
        return rows

    async def count(self, query: Query, sample: int = 0) -> Counts:
        self._check_open()
        counts = Counts(
            sample=self._sample(query, sample) if sample else None,
            entries=sum(map(len, self._logs.values())),
            stored_bytes=sum(entry.size for log in self._logs.values() for entry in log),
        )
        for row in self._matching(query):
            counts.states[row.state] = counts.states.get(row.state, 0) + 1
            counts.agent_types[row.agent_type] = counts.agent_types.get(row.agent_type, 0) + 1
            if row.key not in self._deleted:  # nobody holds a deleted one, whatever its last lease
                counts.held += row.owner is not None
                counts.orphaned += self._orphaned(row.owner, 0)
        return counts

    def _sample(self, query: Query, count: int) -> Sample:
        rows = sorted(self._matching(query), key=lambda row: (row.created_at, row.key), reverse=True)[:count]
        sample = Sample(count * TRACED, {row.key: (row.state, row.created_at) for row in rows})
        entries = ((row.key, entry) for row in rows for entry in self._logs[row.key])
        sample.entries = [(key, e.seq, int(e.kind), e.name, e.at, e.size) for key, e in islice(entries, sample.limit)]
        for row in [row for row in rows if row.state == "failed"][:FAILURES]:
            last = next(entry for entry in reversed(self._logs[row.key]) if entry.kind is Kind.FAILED)
            sample.failures.append((row.key, msgspec.structs.replace(last, frame=None)))
        return sample

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
        ]

    def _alive(self, row: Row) -> int:
        """The newest sign of life: the session's own, its last entry's or its owner's."""
        owner = self._workers.get(row.owner or b"")
        return max(row.heartbeat, self._logs[row.key][-1].alive, 0 if owner is None else owner.beaten)

    def _ended(self, row: Row) -> int:
        """When it was completed or failed, by its entry and its row; at the end of time if it was not."""
        if row.state not in {"completed", "failed"}:
            return 1 << 62
        ends = (entry.at for entry in reversed(self._logs[row.key]) if entry.kind in {Kind.COMPLETED, Kind.FAILED})
        return max(row.heartbeat, next(ends, 0))

    def _orphaned(self, owner: bytes | None, patience: int) -> bool:
        worker = self._workers.get(owner or b"")
        return worker is not None and (worker.dead or worker.expires + patience <= self._uptime())

    def _bury(self, owner: bytes | None, patience: int) -> bool:
        """Let an owner be dead whose time ran out; True if it is."""
        if owner is None or not self._orphaned(owner, patience):
            return False
        self._workers[owner].dead = True
        return True

    def _shown(self, row: Row) -> Row:
        worker = self._workers.get(row.owner or b"")
        shown = msgspec.structs.replace(row, labels=dict(row.labels), now=self._clock())
        shown.deleted_at = self._deleted_at.get(row.key, 0)
        if worker is not None:
            shown.worker, shown.left = worker.name, 0 if worker.dead else max(0, worker.expires - self._uptime())
        return shown

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
        start = len(self._feed) if after is None else feed_number(after)
        while True:
            self._check_open()
            found: list[Event] = []
            at = start
            for at, (owner, entry) in enumerate(self._feed[start:], start + 1):
                row = self._rows.get(owner)
                if row is not None and row.namespace == namespace and key in {None, owner}:
                    kind = Kind(entry.kind).label
                    found.append(Event(str(at), row.session_id, entry.seq, kind, entry.name, moment(entry.at)))
                    if len(found) == limit:
                        break
            if found or time.monotonic() >= end:
                return found, str(at)
            try:
                await asyncio.wait_for(self._news.wait(), end - time.monotonic())
            except TimeoutError:
                return [], str(at)

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        self._check_open()
        wanted = set(seqs)
        count = 0
        for entry in self._logs.get(key, []):
            if entry.seq in wanted and (entry.frame is not None or (notes and len(entry.note or b"") > SEAL)):
                entry.frame = None
                entry.note = entry.note[:SEAL] if notes and entry.note is not None else entry.note
                entry.size = len(entry.note or b"")
                count += 1
        row = self._rows.get(key)
        if body is not None and row is not None and row.body == body[0] and (body[1] or key in self._deleted):
            row.body = body[1]
            if not row.body:
                row.user_id, row.labels = "", {}
            count += 1
        return count

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
            del self._ids[row.namespace, row.session_id]
        self._deleted.discard(key)
        self._deleted_at.pop(key, None)
        return len(self._logs.pop(key))

    async def close(self) -> None:
        self._closed = True
        self._news.set()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")


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
        and (query.owner is None or row.owner == query.owner)
        and not (query.unowned and row.owner is not None)
    )
