"""Valkey alone: the same log in one server's memory, for as long as sessions live there.

Every primitive is one call of a script (`lua/valkey.lua`), so the rule of the log holds as in any database. A session
is one key with one time to live, counted from its last entry or beat: it ends as a whole. How much of it survives a
restart is what the server's persistence says; `saveslot doctor` tells. Times are the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.log import (
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
    Sign,
    Verdict,
    Worker,
    feed_number,
    order,
)
from saveslot.metrics import Counters
from saveslot.stores.batches import Batches
from saveslot.stores.joining import Joining
from saveslot.stores.sampling import sampled
from saveslot.stores.valkey_news import News
from saveslot.stores.valkey_server import ALWAYS, READS, WRITES, Server
from saveslot.stores.valkey_values import Refused, group_told, hexed, question, to_entry, to_event, to_row, to_verdict

# A watcher asks this often; less often while it listens.
POLL, LAZY = 0.05, 0.25
# One answer carries so many bytes of frames; the others are asked for in parts as large.
BUDGET = 4 << 20
# The first look for the newest of some kind goes so far back, each further one four times as far.
BACK = 64
CENTURY = 100 * 366 * 24 * 3600
# So many sessions that are gone are cleared away at a time.
TIDIED = 200


NOT_YET = "Valkey alone as a store cannot erase sessions or wrap their keys anew yet; its sessions end by themselves"


class ValkeyStore:
    def __init__(
        self,
        server: Server,
        ttl: float = 24 * 3600,
        clock: Callable[[], int] | None = None,
        uptime: Callable[[], int] | None = None,
    ) -> None:
        """`ttl`: seconds that a session created here lives after its last sign of use, whoever gives that."""
        if not 0 < ttl <= CENTURY:
            raise InvalidInput("session_ttl_hours", "must be more than 0, and at most a hundred years")
        self._server = server
        self._ttl = max(1, int(ttl * 1000))
        self._clock, self._uptime = clock, uptime
        self.counters = Counters()
        self._batches = Batches(self._land, self.counters)
        self._joining = Joining(self._heads, self.counters)
        self._news = News(server)
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        ttl: float = 24 * 3600,
        clock: Callable[[], int] | None = None,
        uptime: Callable[[], int] | None = None,
    ) -> ValkeyStore:
        store = cls(Server(url), ttl, clock, uptime)
        try:
            await store._server.open()
        except BaseException:
            await store._server.close()
            raise
        return store

    @classmethod
    def on(cls, client: Any, ttl: float = 24 * 3600) -> ValkeyStore:
        """On an asyncio client of the caller's, of the `valkey` or `redis` package; it stays open."""
        return cls(Server(client=client), ttl)

    def _clocks(self) -> tuple[bytes, bytes]:
        now, up = (b"" if clock is None else b"%d" % clock() for clock in (self._clock, self._uptime))
        return now, up

    async def _run(self, flags: str, verb: str, told: Any) -> Any:
        self._check_open()
        return await self._server.run(flags, verb, self._clocks(), told)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    @contextmanager
    def _understood(self) -> Generator[None]:
        """What cannot be read is not ours, or no longer."""
        try:
            yield
        except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as exc:
            raise Corrupt(self._server.shown, f"holds something else than was written ({exc})") from exc

    # Writing

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        self._check_open()
        verdicts = await self._batches.append(groups)
        for verdict in verdicts:
            if isinstance(verdict, Refused):
                raise Corrupt(self._server.shown, verdict.why)
        return verdicts

    async def _land(self, groups: list[Group]) -> list[Verdict]:
        # A deletion makes room in the end: a full server takes it.
        flags = ALWAYS if all(group.delete for group in groups) else WRITES
        answers = await self._run(flags, "append", [group_told(group, self._ttl) for group in groups])
        with self._understood():
            verdicts = [to_verdict(answer) for answer in answers]
        if any(verdict.outcome is Outcome.APPENDED for verdict in verdicts):
            self._news.wake()
        return verdicts

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        self._check_open()
        told: dict[str, Any] = {"signs": [(key.hex(), hexed(lease)) for key, lease in signs]}
        if worker is not None:
            told["worker"] = {"id": worker.id.hex(), "name": worker.name, "ttl": worker.ttl, "first": worker.first}
        return await self._server.run_beside(ALWAYS, "beat", self._clocks(), told)

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        if notes or body is not None:
            raise InvalidInput("store", NOT_YET)
        return await self._run(ALWAYS, "empty", {"key": key.hex(), "seqs": list(seqs)})

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        ends = [] if seen is None else [last.hex() for last in seen]
        return await self._run(ALWAYS, "purge", {"keys": [key.hex() for key in keys], "ends": ends})

    # Reading

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        return await self._joining.heads(refs)

    async def _heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        asked = [(ref.hex(),) if isinstance(ref, bytes) else ref for ref in refs]
        answers = await self._run(READS, "heads", asked)
        with self._understood():
            return [None if told is None else Head(to_row(told[0]), to_entry(told[1], told[2])) for told in answers]

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
        found: list[Entry] = []  # newest first
        untold: list[Entry] = []
        chosen = kinds is not None or name is not None
        most = 2**31 if newest is None else max(BACK, newest) if chosen else newest
        left = [span for span in ranges if span[0] <= span[1]]
        while left and most and (newest is None or len(found) < newest):
            asked = {"key": key.hex(), "ranges": left, "most": most, "budget": BUDGET if frames and not chosen else 0}
            last, answers = await self._run(READS, "log", asked)
            if last < 0:  # also when it ends while it is read: all of it, or nothing
                return []
            with self._understood():
                for _, header, size, told, frame in answers:
                    entry = to_entry(header, size)
                    if (kinds is None or entry.kind in kinds) and (name is None or entry.name == name):
                        found.append(entry)
                        entry.frame = frame
                        if frames and not told:
                            untold.append(entry)
            if len(answers) < most:
                break
            low, most = answers[-1][0], 4 * most
            left = [(first, min(last, low - 1)) for first, last in left if first < low]
        if newest is not None:
            found = found[:newest]
        lowest = found[-1].seq if found else 0
        if not await self._filled(key, [entry for entry in untold if entry.seq >= lowest]):
            return []
        for entry in found:
            if largest is not None and len(entry.frame or b"") > largest:
                entry.frame = None
        found.reverse()
        return found

    async def _filled(self, key: bytes, entries: list[Entry]) -> bool:
        """Bring these their frames; False if the session is gone meanwhile."""
        while entries:
            part: list[Entry] = []
            size = 0
            while entries and (not part or size + entries[0].size <= BUDGET):
                part.append(entries.pop(0))
                size += part[-1].size
            there, frames = await self._run(READS, "frames", {"key": key.hex(), "seqs": [entry.seq for entry in part]})
            if not there:
                return False
            for entry, frame in zip(part, frames, strict=True):
                entry.frame = frame
                entry.size = len(frame or b"") + len(entry.note or b"")
        return True

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        found: list[Row] = []
        weighed = query.ended_for is not None or query.deleted_for is not None
        for asked in await self._indexes(query):
            rows: list[Row] = []
            place = None if after is None else (after[0], after[1].hex())
            while len(rows) < limit:
                told = asked | {"limit": limit - len(rows), "weighed": weighed}
                if place is not None:
                    told |= {"score": place[0], "place": place[1]}
                stopped, answers = await self._run(READS, "find", told)
                with self._understood():
                    rows += [to_row(answer, weighed=weighed) for answer in answers]
                    place = (int(stopped[0]), stopped[1].decode()) if stopped else None
                if place is None:
                    break
            found += rows
        column, newest_first = order(query)
        found.sort(key=lambda row: (getattr(row, column), row.key), reverse=newest_first)
        return found[:limit]

    async def count(self, query: Query, sample: int = 0) -> Counts:
        while await self._run(ALWAYS, "tidy", TIDIED) == TIDIED:
            pass
        counts = Counts(sample=await sampled(self, query, sample) if sample else None)
        [asked, *_] = await self._indexes(msgspec.structs.replace(query, owner=None, orphan_for=None))
        asked["query"] = question(query)
        place: dict[str, Any] = {}
        while True:
            stopped, cells, counts.entries, counts.stored_bytes = await self._run(READS, "count", asked | place)
            with self._understood():
                for state, agent_type, many, held, orphaned in cells:
                    _add(counts.states, state.decode(), many)
                    _add(counts.agent_types, agent_type.decode(), many)
                    counts.held += held
                    counts.orphaned += orphaned
                if not stopped:
                    return counts
                place = {"score": int(stopped[0]), "place": stopped[1].decode()}

    async def _indexes(self, query: Query) -> list[dict[str, Any]]:
        """Where to look: few sessions are held by any one worker, and few workers are dead."""
        column, newest_first = order(query)
        asked: dict[str, Any] = {"query": question(query), "down": newest_first}
        if column != "created_at" or (query.owner is None and query.orphan_for is None):
            return [asked]
        if query.owner is not None:
            return [asked | {"worker": query.owner.hex()}]
        gone = await self._run(READS, "gone", query.orphan_for)
        return [asked | {"worker": worker.decode()} for worker in gone]

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        asked: dict[str, Any] = {"namespace": namespace, "limit": limit}
        if key is not None:
            asked["key"] = key.hex()
        place = None if after is None else str(feed_number(after))
        while True:
            news = self._news.heard
            stopped, looked, answers = await self._run(READS, "events", asked | ({"after": place} if place else {}))
            with self._understood():
                found = [to_event(*answer) for answer in answers]
                place = stopped.decode()
            left = end - time.monotonic()
            full = looked == limit  # and none for us: ours may lie right behind it
            if found or (left <= 0 and not full):
                return found, place
            if not full:
                self._news.listen()
                await self._news.wait(news, min(LAZY if self._news.listening else POLL, left))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._news.wake()
            await self._batches.close()
            await self._news.close()
            await self._server.close()


def _add(counts: dict[str, int], name: str, many: int) -> None:
    counts[name] = counts.get(name, 0) + many
