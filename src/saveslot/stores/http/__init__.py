"""A store behind a server: the ten primitives as requests to `/store`. Appends that are ready together share one.

The manager above is the same as on a database, and so is the codec: a turn of a long session sends its change only, and
with an encryption key the server sees no plain text.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from saveslot.errors import InvalidInput, SaveslotError, TooLarge, Unavailable, from_dict
from saveslot.stores import Store, Traits
from saveslot.stores.http import wire
from saveslot.stores.http.servers import Servers
from saveslot.stores.http.url import parse_url
from saveslot.stores.wire.batches import Batches
from saveslot.stores.wire.joining import Joining
from saveslot.values.log import (
    ALL,
    FOREVER,
    MAX_SEQ,
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
    checked_together,
    order,
)

# Seconds that upkeep and removals may take.
LONG = 120.0
T = TypeVar("T")
_DECODERS = {verb: wire.decoder(kind) for verb, kind in wire.ANSWERS.items()}


class Refused(Verdict, kw_only=True):
    """Stands for the verdict of a group that the server did not accept."""

    error: SaveslotError


def _parts(items: Sequence[T]) -> list[Sequence[T]]:
    """What several requests carry, since each has room for so many; one at least."""
    return [items[start : start + wire.LIST] for start in range(0, len(items), wire.LIST)] or [items]


class HttpStore(Store):
    kind = "http"

    def __init__(self, servers: Servers, traits: Traits) -> None:
        self._servers = servers
        self.traits = traits
        self.counters = servers.counters
        self._batches = Batches(self._land, self.counters)
        self._joining = Joining(self._heads, self.counters)
        self._joining_states = Joining(partial(self._heads, state=True), self.counters)

    @classmethod
    async def open(cls, url: str, token: str | None = None, *, patient: bool = True) -> HttpStore:
        """`token` comes from `SAVESLOT_TOKEN` if it is not given."""
        servers = Servers(parse_url(url), token or os.environ.get("SAVESLOT_TOKEN"), patient=patient)
        try:
            hello: wire.Hello = _DECODERS["hello"].decode(await servers.call("hello", b""))
        except BaseException:
            await servers.close()
            raise
        return cls(servers, Traits(serial=hello.serial, crew=hello.crew, stamp=hello.stamp))

    def __repr__(self) -> str:
        return f"<HttpStore {self._servers}>"

    async def _call(self, verb: str, request: wire.Request | None = None, **how: float | None) -> Any:
        try:
            body = b"" if request is None else wire.encode(request)
        except (UnicodeEncodeError, OverflowError) as exc:
            raise InvalidInput("argument", f"cannot be sent ({exc})") from exc
        answer = await self._servers.call(verb, body, **how)
        try:
            return _DECODERS[verb].decode(answer)
        except msgspec.MsgspecError as exc:
            raise Unavailable(f"{self._servers} answers {verb} in another form ({exc}); compare versions") from exc

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        if together:
            verdicts = await self._batches.together(checked_together(groups), partial(self._land, together=True))
        else:
            verdicts = await self._batches.append(groups)
        for verdict in verdicts:
            if isinstance(verdict, Refused):
                raise verdict.error
        return verdicts

    async def _land(self, groups: list[Group], *, together: bool = False) -> list[Verdict]:
        answer: wire.Appended = await self._call("append", wire.Append(groups, together))
        return [
            Refused(Outcome.SKIPPED, error=from_dict(answer.refusals[place])) if verdict is None else verdict
            for place, verdict in enumerate(answer.verdicts)
        ]

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        return await (self._joining_states if state else self._joining).answers(refs)

    async def _heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        if len(refs) > wire.LIST:
            return [head for part in _parts(refs) for head in await self._heads(part, state=state)]
        try:
            return await self._call("heads", wire.Heads(list(refs), state))
        except TooLarge:
            if len(refs) == 1:
                raise
            half = len(refs) // 2
            return [*await self._heads(refs[:half], state=state), *await self._heads(refs[half:], state=state)]

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        entries = None
        if sum(last - first + 1 for first, last in wanted.ranges) <= wire.PAGE:
            with suppress(TooLarge):
                entries = await self._page(key, wanted)
        if entries is None:
            entries = await self._pages(key, wanted)
        if wanted.frames and (wanted.room is None or wanted.room > wire.ROOM):
            await self._fill(key, wanted, entries)
        return entries

    async def _page(self, key: bytes, wanted: Wanted) -> list[Entry]:
        room = wire.ROOM if wanted.room is None else min(wanted.room, wire.ROOM)
        return await self._call("entries", wire.Entries(key, replace(wanted, room=room) if wanted.frames else wanted))

    async def _pages(self, key: bytes, wanted: Wanted) -> list[Entry]:
        """Read more entries than one answer has, the newest first."""
        entries: list[Entry] = []  # newest first
        left, room, below, many = wanted.newest, wanted.room, MAX_SEQ + 1, wire.PAGE
        while left is None or left > 0:
            most = many if left is None else min(left, many)
            ranges = [(first, min(last, below - 1)) for first, last in wanted.ranges]
            try:
                page = await self._page(key, replace(wanted, ranges=ranges, newest=most, room=room))
            except TooLarge:
                if most == 1:
                    raise
                many = most // 2
                continue
            new = [entry for entry in page if entry.seq < below]  # a chain is read from its beginning each time
            entries += reversed(new)
            if len(page) < most or not new:
                break
            below, left = new[0].seq, None if left is None else left - len(new)
            room = None if room is None else max(0, room - sum(map(wire.frame_size, new)))
        return entries[::-1]

    async def _fill(self, key: bytes, wanted: Wanted, entries: Sequence[Entry]) -> None:
        """Read the frames that the answer had no room for, the newest first, as far as the caller has room."""
        left = FOREVER if wanted.room is None else wanted.room
        missing: list[Entry] = []
        for entry in reversed(entries):
            left -= wire.frame_size(entry)
            if left >= 0 and wire.left_out(entry):
                missing.append(entry)
        while missing:
            page = await self._page(key, Wanted([(entry.seq, entry.seq) for entry in reversed(missing[: wire.PAGE])]))
            frames = {entry.seq: entry for entry in page}
            for entry in missing:
                if (read := frames.get(entry.seq)) is not None:
                    entry.frame, entry.size = read.frame, read.size
            rest = [entry for entry in missing if wire.left_out(entry)]
            if len(rest) == len(missing):  # purged meanwhile
                break
            missing = rest

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        rows: list[Row] = []
        many = wire.PAGE
        while True:
            wanted = min(limit - len(rows), many)
            try:
                page: list[Row] = await self._call("find", wire.Find(query, after, wanted))
            except TooLarge:
                if wanted == 1:
                    raise
                many = wanted // 2
                continue
            rows += page
            if len(page) < wanted or len(rows) == limit:
                return rows
            after = (getattr(page[-1], order(query)[0]), page[-1].key)

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        return await self._call("count", wire.Count(query, totals))

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        within = None if worker is None else worker.ttl / 3e6
        *parts, last = _parts(signs)
        times: list[int] = [time for part in parts for time in await self._call("beat", wire.Beat([*part]))]
        return times + await self._call("beat", wire.Beat([*last], worker), within=within)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        wait = min(wait, wire.WATCH)
        return await self._call("events", wire.Events(namespace, after, key, limit, wait), waits=wait)

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        return sum([await self._call("empty", wire.Empty(key, [*part], notes)) for part in _parts(seqs)])

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        return await self._call("swap", wire.Swap(key, before, after, labels or {}))

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        counts: list[int] = []
        ends = [None] if seen is None else _parts(seen)
        for part, last in zip_longest(_parts(keys), ends):
            counts += await self._call("purge", wire.Purge([*part], None if last is None else [*last]), waits=LONG)
        return counts

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        """Those that the token includes."""
        return await self._call("namespaces", wire.Namespaces(after, limit))

    async def token_names(self, stamps: Collection[bytes]) -> dict[bytes, str]:
        names: dict[bytes, str] = {}
        wanted = [*stamps]
        for start in range(0, len(wanted), wire.PAGE):
            names |= await self._call("tokens", wire.Tokens(wanted[start : start + wire.PAGE]))
        return names

    async def tend(self) -> None:
        await self._call("tend", waits=LONG)

    async def scrub(self, *, rewrite: bool = False) -> None:
        await self._call("scrub", wire.Scrub(rewrite), waits=LONG)

    async def close(self) -> None:
        await self._batches.close()
        await self._servers.close()
