"""Valkey as the only store: the same log in one server's memory, for as long as its sessions live.

Every primitive is one call of a script (`script.lua`), so the log's rule holds as in any database. A session is one
key with one time to live, counted from its last entry or heartbeat, and ends as a whole. The server's persistence
decides how much survives a restart; `saveslot doctor` reports it. Times are the server's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from saveslot.errors import Corrupt, InvalidInput, Unavailable
from saveslot.stores import Store
from saveslot.stores.stored import shown_text, to_marks, with_labels
from saveslot.stores.valkey.connection import ALWAYS, PREFIX, READS, WRITES, Server, damaged
from saveslot.stores.valkey.finding import Finding
from saveslot.stores.valkey.landing import Refused, as_string, packed, to_verdict
from saveslot.stores.valkey.news import News
from saveslot.stores.valkey.rows import hexed, split_marks, to_entry, to_event, to_head, to_row
from saveslot.stores.wire.batches import Batches
from saveslot.stores.wire.bells import REST
from saveslot.stores.wire.joining import Joining
from saveslot.stores.wire.metrics import Counters
from saveslot.values.log import (
    ALL,
    FOREVER,
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
    checked_together,
    feed_number,
    lost_place,
    seq_after,
)

# Seconds between a watcher's queries: without hints, and with them.
POLL, LAZY = 0.05, 0.25
# Bytes of frames per answer; more are read in parts of this size.
BUDGET = 4 << 20
# Entries that the first search for the newest of a kind goes back; each further one goes four times as far.
BACK = 64
# Sessions per call of an upkeep that looks at all of them.
PART = 200
CENTURY = 100 * 366 * 24 * 3600

NOT_YET = "a Valkey store cannot erase sessions or rewrap their keys yet; its sessions expire by themselves"


class ValkeyStore(Store):
    kind = "valkey"

    def __init__(
        self,
        server: Server,
        ttl: float = 24 * 3600,
        clock: Callable[[], int] | None = None,
        uptime: Callable[[], int] | None = None,
    ) -> None:
        """`ttl`: seconds that a session created here lives after its last entry or heartbeat, from any process."""
        if not 0 < ttl <= CENTURY:
            raise InvalidInput("session_ttl_hours", "must be more than 0, and at most a hundred years")
        self._server = server
        self._ttl = max(1, int(ttl * 1000))
        self._clock, self._uptime = clock, uptime
        self.counters = Counters()
        self._batches = Batches(self._land, self.counters)
        self._joining = Joining(self._heads, self.counters)
        self._joining_states = Joining(partial(self._heads, state=True), self.counters)
        self._news = News(server)
        self._finding = Finding(server, self._run)
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        ttl: float = 24 * 3600,
        clock: Callable[[], int] | None = None,
        uptime: Callable[[], int] | None = None,
        *,
        patient: bool = True,
    ) -> ValkeyStore:
        store = cls(Server(url, patient=patient), ttl, clock, uptime)
        try:
            await store._server.open()
        except BaseException:
            await store._server.close()
            raise
        return store

    @classmethod
    def on(cls, client: Any, ttl: float = 24 * 3600) -> ValkeyStore:
        """On the caller's asyncio client, of the `valkey` or `redis` package; it stays open."""
        return cls(Server(client=client), ttl)

    def __repr__(self) -> str:
        return f"<ValkeyStore {self._server.shown}>"

    def _clocks(self) -> tuple[bytes, bytes]:
        now, up = (b"" if clock is None else b"%d" % clock() for clock in (self._clock, self._uptime))
        return now, up

    async def _run(self, flags: str, verb: str, request: Any) -> Any:
        self._check_open()
        return await self._server.run(flags, verb, self._clocks(), request)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed; open it again")

    # Writing

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        self._check_open()
        if together:
            verdicts = await self._batches.together(checked_together(groups), self._land_together)
        else:
            verdicts = await self._batches.append(groups)
        for verdict in verdicts:
            if isinstance(verdict, Refused):
                raise damaged(verdict.why) or Corrupt(self._server.shown, verdict.why)
        return verdicts

    async def _land_together(self, groups: list[Group]) -> list[Verdict]:
        return await self._land(groups, "together")

    async def _land(self, groups: list[Group], verb: str = "append") -> list[Verdict]:
        # A full server accepts a deletion: it frees memory in the end.
        flags = ALWAYS if all(group.delete for group in groups) else WRITES
        answers = await self._run(flags, verb, [packed(group, self._ttl) for group in groups])
        with self._server.decoding():
            pairs = zip(answers, groups, strict=True)
            verdicts = [to_verdict(answer, group.key.hex()) for answer, group in pairs]
        if any(verdict.outcome is Outcome.APPENDED for verdict in verdicts):
            self._news.ring([group.key for group in groups])
        return verdicts

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        self._check_open()
        request: dict[str, Any] = {"signs": [(key.hex(), hexed(lease)) for key, lease in signs]}
        if worker is not None:
            request["worker"] = {"id": worker.id.hex(), "name": worker.name, "ttl": worker.ttl, "first": worker.first}
        return await self._server.run_beside(ALWAYS, "beat", self._clocks(), request)

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        self._check_open()
        if notes:
            raise InvalidInput("store", NOT_YET)
        return await self._run(ALWAYS, "empty", {"key": key.hex(), "seqs": list(seqs)})

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        del key, before, after, labels
        self._check_open()
        raise InvalidInput("store", NOT_YET)

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        ends = [] if seen is None else [last.hex() for last in seen]
        return await self._run(ALWAYS, "purge", {"keys": [key.hex() for key in keys], "ends": ends})

    # Reading

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        return await (self._joining_states if state else self._joining).answers(refs)

    async def _heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        request = {"refs": [(ref.hex(),) if isinstance(ref, bytes) else ref for ref in refs], "state": state}
        answers = await self._run(READS, "heads", request)
        with self._server.decoding():
            heads = [None if answer is None else to_head(answer) for answer in answers]
        for ref, head in zip(refs, heads, strict=True):
            if head is not None and not isinstance(ref, bytes) and ref != (head.row.namespace, head.row.session_id):
                head.row.locked = head.row.locked or Corrupt(f"session {ref[1]}", "its id leads to another session")
                head.row.namespace, head.row.session_id = ref
        return heads

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        if wanted.labelled:
            with self._server.decoding():
                marks = to_marks(split_marks(await self._run(READS, "marks", {"key": key.hex()})))
            return with_labels(await self.entries(key, among(wanted, marks)), marks)
        entries: list[Entry] = []  # newest first
        unsent: list[Entry] = []
        kinds, name, newest, frames = wanted.kinds, wanted.name, wanted.newest, wanted.frames
        chosen = kinds is not None or name is not None
        most = 2**31 if newest is None else max(BACK, newest) if chosen else newest
        left = wanted.with_chain(await self._chain(key, wanted.chain) if wanted.chain else ())
        if wanted.request is not None:
            at = await self._run(READS, "requested", {"key": key.hex(), "request": wanted.request.hex()})
            left = [(at, at) for first, last in left if first <= at <= last]
        while left and most and (newest is None or len(entries) < newest):
            budget = BUDGET if frames and not chosen else 0
            request = {"key": key.hex(), "ranges": left, "most": most, "budget": budget}
            last, answers = await self._run(READS, "log", request)
            if last < 0:  # also when the session ends while it is read: all of it, or nothing
                return []
            with self._server.decoding():
                for seq, header, size, sent, frame in answers:
                    entry = to_entry(header, size, seq, key.hex())
                    if (kinds is None or entry.kind in kinds) and (name is None or entry.name == name):
                        entries.append(entry)
                        entry.frame = frame
                        if frames and not sent:
                            unsent.append(entry)
            if len(answers) < most:
                break
            low, most = answers[-1][0], 4 * most
            left = [(first, min(last, low - 1)) for first, last in left if first < low]
        if newest is not None:
            entries = entries[:newest]
        lowest = entries[-1].seq if entries else 0
        if not await self._fill(key, [entry for entry in unsent if entry.seq >= lowest]):
            return []
        left = FOREVER if wanted.room is None else wanted.room
        for entry in entries:
            left -= len(entry.frame or b"")
            if left < 0:
                entry.frame = None
        entries.reverse()
        return entries

    async def _chain(self, key: bytes, seq: int) -> list[int]:
        return await self._run(READS, "chain", {"key": key.hex(), "seq": seq})

    async def _fill(self, key: bytes, entries: list[Entry]) -> bool:
        """Read the frames of these entries; False if the session ended meanwhile."""
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

    async def rows(self, keys: Sequence[bytes]) -> list[Row]:
        """The rows of sessions by their keys in hexadecimal, deleted ones too: for `saveslot doctor`."""
        answers = await self._run(READS, "rows", [as_string(key) for key in keys])
        with self._server.decoding():
            return [to_row(answer) for answer in answers if len(answer) == 1 or any(answer[1:15])]

    async def keys(self) -> list[bytes]:
        """The keys of all sessions, in hexadecimal, also of those that no index names."""
        prefix, cursor, keys = PREFIX + b":session:", b"0", set[bytes]()
        while True:
            cursor, part = await self._server.scan(cursor, prefix + b"*")
            keys.update(key.removeprefix(prefix) for key in part)
            if int(cursor) == 0:
                return sorted(keys)

    async def relist(self, keys: Sequence[bytes], *, apply: bool) -> int:
        """How many of these sessions an index lacks or places wrongly; with `apply` they are listed again."""
        wrong = 0
        for start in range(0, len(keys), PART):
            part = [as_string(key) for key in keys[start : start + PART]]
            wrong += await self._run(ALWAYS, "relist", {"keys": part, "apply": apply})
        return wrong

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._finding.find(query, after, limit)

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        return await self._finding.count(query, totals)

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        await self._finding.tidy()
        prefix, cursor, names = PREFIX + b":ids:", b"0", set[str]()
        while True:
            cursor, part = await self._server.scan(cursor, prefix + b"*")
            names.update(shown_text(key.removeprefix(prefix)) for key in part)
            if int(cursor) == 0:
                return sorted(name for name in names if name > after)[:limit]

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        end = time.monotonic() + wait
        request: dict[str, Any] = {"namespace": namespace, "limit": limit}
        if key is not None:
            request["key"] = key.hex()
        woken = False
        while True:
            message = self._news.message(key)
            stopped, looked, answers = await self._run(READS, "events", request | _place(after, key))
            with self._server.decoding():
                events = [to_event(*answer) for answer in answers]
                place = stopped.decode()
            if looked < 0:
                raise lost_place(place)
            after = place
            left = end - time.monotonic()
            full = looked == limit  # if none match, matching ones may follow
            if events or (left <= 0 and not full):
                return events, place
            if not full:
                if woken:
                    await asyncio.sleep(REST)
                self._news.listen()
                await self._news.wait(message, min(LAZY if self._news.listening else POLL, left))
                woken = message.is_set()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._news.ring(None)
            await self._batches.close()
            await self._news.close()
            await self._server.close()


def _place(after: str | None, key: bytes | None) -> dict[str, Any]:
    if after is None:
        return {}
    if key is not None and (seq := seq_after(after)) is not None:
        return {"seq": seq}
    return {"after": str(feed_number(after))}
