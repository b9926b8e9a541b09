"""Planted faults: stores with one wrong behaviour each, which the suite and the machine must catch, and a failing disk.

A suite that passes says little until it has been seen to fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any
from uuid import uuid4

import apsw
from msgspec.structs import replace

from saveslot.log import Counts, Event, Group, Head, Outcome, Place, Query, Ref, Row, Verdict, Worker
from saveslot.model import Kind
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.stores.sqlite_landing import Landing

# Memory with a fault: the rules of the log


class PrevNotChecked(MemoryStore):
    """The number alone is the guard."""

    def _land(self, group: Group) -> Verdict:
        log = self._logs.get(group.key, [])
        fits = bool(log) and group.entries[0].seq == len(log) + 1
        return super()._land(replace(group, prev=log[-1].append_id) if fits else group)


class RebasedSilently(MemoryStore):
    """A late writer's entries are put on top of what it has not seen."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        if verdict.outcome is not Outcome.CONFLICT or group.create is not None or group.only_stale:
            return verdict
        log = self._logs[group.key]
        entries = [replace(entry, seq=len(log) + 1 + n) for n, entry in enumerate(group.entries)]
        return super()._land(replace(group, prev=log[-1].append_id, entries=entries))


class GroupTorn(MemoryStore):
    """Of a group only the first entry is kept."""

    def _write(self, group: Group) -> None:
        super()._write(group)
        del self._logs[group.key][group.entries[0].seq :]

    def _landed(self, group: Group) -> Verdict:
        return super()._landed(replace(group, entries=group.entries[:1]))


class RefusedButProjected(MemoryStore):
    """A group that did not land changes the session's row all the same."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        if verdict.outcome is Outcome.CONFLICT and group.create is None:
            self._rows[group.key].state = group.state or self._rows[group.key].state
        return verdict


class RetryAppendedTwice(MemoryStore):
    """A retry is taken for a new entry."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        log = self._logs.get(group.key, [])
        if verdict.outcome is Outcome.ALREADY and group.create is None and group.key not in self._deleted:
            entries = [replace(entry, seq=len(log) + 1 + n) for n, entry in enumerate(group.entries)]
            self._write(replace(group, entries=entries))
        return verdict


class RetryForgotten(MemoryStore):
    """A retry is recognised only while its entry is the newest."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        newest = verdict.outcome is Outcome.ALREADY and len(self._logs[group.key]) == group.entries[-1].seq
        if verdict.outcome is Outcome.ALREADY and not newest:
            return Verdict(Outcome.CONFLICT, head=self._last(group.key))
        return verdict


class CreationForgotten(MemoryStore):
    """A retried creation is told that its own id is taken."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        if group.create is not None and verdict.outcome is Outcome.ALREADY:
            return Verdict(Outcome.CONFLICT, head=self._last(group.key))
        return verdict


class OneBadGroupFailsAll(MemoryStore):
    """A verdict for the batch instead of one for each group."""

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        before = deepcopy((self._rows, self._deleted, self._ids, self._logs, self._feed))
        verdicts = await super().append(groups)
        bad = next((v for v in verdicts if v.outcome not in {Outcome.APPENDED, Outcome.ALREADY}), None)
        if bad is None:
            return verdicts
        self._rows, self._deleted, self._ids, self._logs, self._feed = before
        return [bad for _ in groups]


class AcknowledgedBeforeCommit(MemoryStore):
    """The answer comes first, the write with the next call."""

    _owed: Sequence[Group] = ()

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        await super().append(self._owed)
        before = deepcopy((self._rows, self._deleted, self._ids, self._logs, self._feed))
        verdicts = await super().append(groups)
        self._rows, self._deleted, self._ids, self._logs, self._feed = before
        self._owed = deepcopy(list(groups))
        return verdicts


class CancelledAndForgotten(MemoryStore):
    """A cancelled append is never written."""

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        await asyncio.sleep(0)
        return await super().append(groups)


class LeaseIgnored(MemoryStore):
    """The former owner is told of a conflict and may think that it still owns the session."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        return replace(verdict, outcome=Outcome.CONFLICT) if verdict.outcome is Outcome.FENCED else verdict


class LeaseByNumber(MemoryStore):
    """Two leases of the same number are the same."""

    def _land(self, group: Group) -> Verdict:
        row = self._rows.get(group.key)
        verdict = super()._land(group)
        same = row is not None and row.fence == group.entries[0].fence
        return replace(verdict, outcome=Outcome.CONFLICT) if verdict.outcome is Outcome.FENCED and same else verdict


class LossPaperedOver(MemoryStore):
    """A writer whose last entry is gone is told of an ordinary conflict."""

    def _land(self, group: Group) -> Verdict:
        verdict = super()._land(group)
        return replace(verdict, outcome=Outcome.CONFLICT) if verdict.outcome is Outcome.LOST else verdict


class CheckpointsChangeNoRow(MemoryStore):
    """Labels that come with a checkpoint are dropped."""

    def _land(self, group: Group) -> Verdict:
        plain = group.create is None and group.entries[-1].kind == Kind.CHECKPOINT
        return super()._land(replace(group, labels=None) if plain else group)


# Deleting, emptying, purging


class TombstoneIgnored(MemoryStore):
    """Entries are taken after the tombstone."""

    def _land(self, group: Group) -> Verdict:
        log = self._logs.get(group.key, [])
        if group.key in self._deleted and group.prev == log[-1].append_id:
            row = self._rows[group.key]
            self._ids.setdefault((row.namespace, row.session_id), group.key)  # so that a second tombstone can go again
            self._write(group)
            if not group.delete:
                del self._ids[row.namespace, row.session_id]
            return replace(self._landed(group), outcome=Outcome.APPENDED)
        return super()._land(group)


class DeletedIsShown(MemoryStore):
    """Who knows the key still reads a deleted session."""

    def _head(self, ref: Ref) -> Head | None:
        if isinstance(ref, bytes) and ref in self._deleted:
            last = self._last(ref)
            return None if last is None else Head(self._rows[ref], last)
        return super()._head(ref)


class DeletedComesBack(MemoryStore):
    """A late retry of the creation makes the deleted session live again."""

    def _land(self, group: Group) -> Verdict:
        if group.create is not None and group.key in self._deleted:
            self._deleted.discard(group.key)
            self._ids.setdefault((group.create.namespace, group.create.session_id), group.key)
        return super()._land(group)


class IdStaysTaken(MemoryStore):
    """A deleted id cannot be created again."""

    def _land(self, group: Group) -> Verdict:
        if group.create is not None and group.key not in self._rows:
            spot = (group.create.namespace, group.create.session_id)
            if any((self._rows[key].namespace, self._rows[key].session_id) == spot for key in self._deleted):
                return Verdict(Outcome.CONFLICT)
        return super()._land(group)


class FormerBodyReturns(MemoryStore):
    """A new incarnation starts with what the former one knew."""

    def _write(self, group: Group) -> None:
        super()._write(group)
        row = self._rows[group.key]
        for key in self._deleted if group.create is not None else ():
            if (self._rows[key].namespace, self._rows[key].session_id) == (row.namespace, row.session_id):
                row.body = self._rows[key].body


class EmptyRemovesTheRow(MemoryStore):
    """Thinning removes entries instead of their frames."""

    async def empty(self, key: bytes, seqs: Sequence[int], **more: Any) -> int:
        emptied = await super().empty(key, seqs, **more)
        if key in self._logs:
            self._logs[key][:] = [entry for entry in self._logs[key] if entry.seq not in seqs] or self._logs[key][:1]
        return emptied


class EmptyTakesNotes(MemoryStore):
    """Thinning takes the note along with the frame."""

    async def empty(self, key: bytes, seqs: Sequence[int], **more: Any) -> int:
        for entry in self._logs.get(key, []):
            if entry.seq in seqs:
                entry.note = None
        return await super().empty(key, seqs, **more)


class PurgeTakesTheLiving(MemoryStore):
    """A purge does not ask whether the session was deleted."""

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        for key in keys:
            if key in self._rows and key not in self._deleted:
                self._deleted.add(key)
                self._ids.pop((self._rows[key].namespace, self._rows[key].session_id), None)
        return await super().purge(keys, seen)


class PurgeForgetsWhatWasSeen(MemoryStore):
    """A session that was written to since somebody looked at its end is purged all the same."""

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        logs = [self._logs.get(key) for key in keys]
        return await super().purge(keys, seen and [log[-1].append_id if log else b"" for log in logs])


class PurgeKeepsTheName(MemoryStore):
    """A living session that was purged still has its id."""

    def _purge(self, key: bytes) -> int:
        self._deleted.add(key)
        return super()._purge(key)


# Namespaces, pages, life


class NamespaceIgnoredInPages(MemoryStore):
    """Pages and counts show every tenant's sessions."""

    def _matching(self, query: Query) -> list[Row]:
        everywhere = {row.namespace for row in self._rows.values()}
        return [
            row
            for namespace in everywhere
            for row in super(type(self), self)._matching(replace(query, namespace=namespace))
        ]


class NamespaceIgnoredInEvents(MemoryStore):
    """A watcher sees every tenant's entries."""

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        names = {name: row.namespace for name, row in self._rows.items()}
        try:
            for row in self._rows.values():
                row.namespace = namespace
            return await super().events(namespace, after, key, limit=limit, wait=0 if wait < 1 else wait)
        finally:
            for name, row in self._rows.items():
                row.namespace = names.get(name, row.namespace)


class IdsAcrossNamespaces(MemoryStore):
    """An id that another tenant uses is taken."""

    def _land(self, group: Group) -> Verdict:
        if group.create is not None and group.key not in self._rows:
            taken = [key for (_, name), key in self._ids.items() if name == group.create.session_id]
            if taken:
                return Verdict(Outcome.CONFLICT, head=self._last(taken[0]))
        return super()._land(group)


class PagesSkipTies(MemoryStore):
    """A page goes on behind the time alone, past others of the same time."""

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        if after is not None:
            after = (after[0], b"\xff" * 16 if query.stale_for is not None else b"")
        return await super().find(query, after, limit)


class StaleByRowAlone(MemoryStore):
    """A session whose entries are its signs of life is taken for dead."""

    def _matching(self, query: Query) -> list[Row]:
        if query.stale_for is None:
            return super()._matching(query)
        cutoff = self._clock() - query.stale_for
        return [row for row in super()._matching(replace(query, stale_for=None)) if row.heartbeat < cutoff]


class StaleGuardIgnored(MemoryStore):
    """A sweep fails sessions that have just given a sign of life."""

    def _land(self, group: Group) -> Verdict:
        return super()._land(replace(group, only_stale=0))


class AliveMovedByAll(MemoryStore):
    """Everything that is written counts as a sign of life."""

    def _write(self, group: Group) -> None:
        super()._write(replace(group, entries=[replace(entry, sign=True) for entry in group.entries]))


class AliveNotCarried(MemoryStore):
    """An entry that is no sign of life makes the last one forgotten."""

    def _write(self, group: Group) -> None:
        super()._write(group)
        for entry in group.entries:
            if not entry.sign:
                self._logs[group.key][entry.seq - 1].alive = self._rows[group.key].created_at


class EndedOnesBeat(MemoryStore):
    """A session that has ended is kept alive."""

    def _beat(self, key: bytes, lease: bytes | None) -> int:
        row = self._rows.get(key)
        if row is None or key in self._deleted or row.lease != lease:
            return 0
        row.heartbeat = self._clock()
        return row.heartbeat


# Owners


class OwnerKeptAfterRelease(MemoryStore):
    """A session that was let go still has its owner."""

    def _write(self, group: Group) -> None:
        before = self._rows[group.key].owner if group.key in self._rows else None
        super()._write(group)
        self._rows[group.key].owner = self._rows[group.key].owner or before


class OwnerForgotten(MemoryStore):
    """Every entry that names no owner makes the session nobody's."""

    def _write(self, group: Group) -> None:
        super()._write(group)
        self._rows[group.key].owner = group.owner


class FormerOwnerStays(MemoryStore):
    """Who takes over a session is not noted: it is still the dead one's."""

    def _write(self, group: Group) -> None:
        before = self._rows[group.key].owner if group.key in self._rows else None
        super()._write(group)
        if group.only_orphan is not None:
            self._rows[group.key].owner = before


class FenceNotRaised(MemoryStore):
    """The row keeps the fence of its beginning."""

    def _write(self, group: Group) -> None:
        super()._write(group)
        self._rows[group.key].fence = 0


class OrphanGuardIgnored(MemoryStore):
    """A claim takes sessions from the living."""

    def _land(self, group: Group) -> Verdict:
        return super()._land(replace(group, only_orphan=None))


class PatienceIgnored(MemoryStore):
    """A claim does not wait, though the claimer said that it should."""

    def _land(self, group: Group) -> Verdict:
        return super()._land(group if group.only_orphan is None else replace(group, only_orphan=0))


class PatienceIgnoredInPages(MemoryStore):
    """Pages show orphans that nobody may claim yet."""

    def _matching(self, query: Query) -> list[Row]:
        return super()._matching(query if query.orphan_for is None else replace(query, orphan_for=0))


class OrphanLeftAlive(MemoryStore):
    """Whose session was claimed may beat on, and hold the others."""

    def _bury(self, owner: bytes | None, patience: int) -> bool:
        return self._orphaned(owner, patience)


class LateClaimKills(MemoryStore):
    """A claim that does not land declares the owner dead all the same."""

    def _land(self, group: Group) -> Verdict:
        row = self._rows.get(group.key)
        if row is not None and group.only_orphan is not None:
            self._bury(row.owner, group.only_orphan)
        return super()._land(group)


class UnownedIsOrphaned(MemoryStore):
    """What was let go is claimed as if its owner had died."""

    def _bury(self, owner: bytes | None, patience: int) -> bool:
        return owner is None or super()._bury(owner, patience)


class DeadOneRenewed(MemoryStore):
    """A worker that was declared dead beats, and lives."""

    def _beat_worker(self, worker: Worker) -> int:
        if worker.id in self._workers:
            self._workers[worker.id].dead = False
        return super()._beat_worker(worker)


class FirstBeatRevives(MemoryStore):
    """A dead worker comes back by introducing itself again."""

    def _beat_worker(self, worker: Worker) -> int:
        if worker.first:
            self._workers.pop(worker.id, None)
        return super()._beat_worker(worker)


class SilenceIsDeath(MemoryStore):
    """A worker whose time ran out is refused, though nobody declared it dead."""

    def _beat_worker(self, worker: Worker) -> int:
        late = worker.id in self._workers and self._orphaned(worker.id, 0)
        return 0 if late else super()._beat_worker(worker)


class LeavingIsLate(MemoryStore):
    """A worker that leaves is only late."""

    def _beat_worker(self, worker: Worker) -> int:
        at = super()._beat_worker(worker)
        if at:
            self._workers[worker.id].dead = False
        return at


class StrangerHolds(MemoryStore):
    """A session whose owner nobody ever heard of is held for ever."""

    def _orphaned(self, owner: bytes | None, patience: int) -> bool:
        worker = self._workers.get(owner or b"")
        stranger = worker is not None and worker.expires == worker.beaten == 0
        return super()._orphaned(owner, patience) and not stranger


class WallClockForLeases(MemoryStore):
    """Whoever sets the clock makes workers die."""

    def __init__(self, clock: Callable[[], int], uptime: Callable[[], int]) -> None:  # noqa: ARG002  (the fault)
        super().__init__(clock, clock)


class BeatWithoutLease(MemoryStore):
    """Anyone may say that a held session lives."""

    def _beat(self, key: bytes, lease: bytes | None) -> int:  # noqa: ARG002  (the fault)
        row = self._rows.get(key)
        return super()._beat(key, None if row is None else row.lease)


class StaleIgnoresOwner(MemoryStore):
    """What a living worker holds is swept when it has written nothing for long."""

    def _alive(self, row: Row) -> int:
        return super()._alive(replace(row, owner=None))


class FormerOwnerIsASign(MemoryStore):
    """Any worker's beat keeps every session from being swept."""

    def _alive(self, row: Row) -> int:
        return max(super()._alive(row), *(worker.beaten for worker in self._workers.values()), 0)


class CountsIgnoreDeath(MemoryStore):
    """Orphans are counted as held, and not as orphans."""

    async def count(self, query: Query, sample: int = 0) -> Counts:
        return replace(await super().count(query, sample), orphaned=0)


# Events


class EventsSkip(MemoryStore):
    """Behind a full page one event is passed over."""

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        found, end = await super().events(namespace, after, key, limit=limit, wait=wait)
        return found, str(int(end) + 1) if len(found) == limit else end


class EventsRepeat(MemoryStore):
    """Behind a full page its last event comes again."""

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        found, end = await super().events(namespace, after, key, limit=limit, wait=wait)
        return found, str(int(end) - 1) if len(found) == limit > 1 else end


class NobodyIsWoken(MemoryStore):
    """Who waits for events waits until the time is up."""

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        news, self._news = self._news, asyncio.Event()
        verdicts = await super().append(groups)
        self._news = news
        return verdicts


# SQLite with a fault


class _ByNumber(Landing):
    def _follow(self, connection: apsw.Connection, group: Group, entries: Any, prev: bytes | None, now: int) -> bool:
        sql = "select append_id from checkpoints where key = ? and seq = ?"
        prev = connection.execute(sql, (group.key, entries[0].seq - 1)).get
        return super()._follow(connection, group, entries, prev, now)


class GuardInSqlByNumber(SqliteStore):
    """The statement looks whether there is an entry before, not which."""

    Landing = _ByNumber


class _KillingFirst(Landing):
    def _allowed(self, connection: apsw.Connection, group: Group, now: int) -> bool:
        if group.only_orphan is not None:
            sql = "select append_id from checkpoints where key = ? order by seq desc limit 1"
            group = replace(group, prev=connection.execute(sql, (group.key,)).get)
        return super()._allowed(connection, group, now)


class ClaimKillsFirst(SqliteStore):
    """The owner is declared dead before it is known whether the claim lands."""

    Landing = _KillingFirst


class _OwnersIgnored(Landing):
    def _allowed(self, connection: apsw.Connection, group: Group, now: int) -> bool:
        if group.only_stale:
            sql = (
                "select max(heartbeat, (select alive from checkpoints c where c.key = s.key order by seq desc limit 1))"
            )
            alive = connection.execute(f"{sql} from sessions s where key = ?", (group.key,)).get
            return alive is not None and alive < now - group.only_stale
        return super()._allowed(connection, group, now)


class OwnersIgnoredInStatements(SqliteStore):
    """A sweep's statement does not look at the worker."""

    Landing = _OwnersIgnored


class _AllLanded(Landing):
    def _together(self, connection: apsw.Connection, groups: list[Group]) -> dict[bytes, Verdict]:
        super()._together(connection, groups)
        return {group.entries[0].append_id: Verdict(Outcome.APPENDED, [1]) for group in groups}


class OneForAll(SqliteStore):
    """Entries that share a statement are all told that they landed."""

    Landing = _AllLanded


class FeedNumbersReused(SqliteStore):
    """After a purge the feed's last numbers are given out again, as plain rowids are."""

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        purged = await super().purge(keys, seen)
        await self._write(lambda connection: connection.execute("delete from checkpoints where key = x''").get)
        return purged


class SnapshotKept(SqliteStore):
    """A reader goes on reading the moment of its first read."""

    async def _read(
        self, work: Callable[[apsw.Connection], Any], short: Callable[[apsw.Connection], Any] | None = None
    ) -> Any:
        def kept(connection: apsw.Connection) -> Any:
            if not connection.in_transaction:
                connection.execute("begin")
            return work(connection)

        return await super()._read(kept, short and kept)


# Those of this file; a caller may have subclasses of its own.
FAULTY_MEMORY = tuple(fault for fault in MemoryStore.__subclasses__() if fault.__module__ == __name__)
FAULTY_SQLITE = tuple(fault for fault in SqliteStore.__subclasses__() if fault.__module__ == __name__)


# A disk that fails

Failure = type[apsw.Error]


class BadDisk(apsw.VFS):
    """A file system, by name for `SqliteStore.open(vfs=disk.name)`, that does as it should until `fail` is called."""

    def __init__(self) -> None:
        self.name = f"bad-disk-{uuid4()}"
        self.counted: dict[tuple[str, str], int] = {}
        self._failures: dict[tuple[str, str], tuple[range, Failure]] = {}
        self.failed = 0
        super().__init__(self.name, "")

    def fail(self, file: str, action: str, nth: int = 1, times: int = 1, error: Failure = apsw.IOError) -> None:
        """The nth `write`, `sync` or `truncate` of `main`, `wal` or `journal` from now on fails, and so on."""
        self.heal()
        self._failures[file, action] = range(nth, nth + times), error

    def heal(self) -> None:
        self._failures.clear()
        self.counted.clear()

    def passes(self, file: str, action: str) -> None:
        number = self.counted[file, action] = self.counted.get((file, action), 0) + 1
        when, error = self._failures.get((file, action), (range(0), apsw.IOError))
        if number in when:
            self.failed += 1
            raise error("planted fault")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  (SQLite's name)
        return _BadFile(self, name, flags)


class _BadFile(apsw.VFSFile):
    def __init__(self, disk: BadDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        wal, journal = flags[0] & apsw.SQLITE_OPEN_WAL, flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL
        self._file = "wal" if wal else "journal" if journal else "main"
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "sync")
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.passes(self._file, "truncate")
        super().xTruncate(newsize)
