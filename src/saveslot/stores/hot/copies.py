"""Copies of newest states in Valkey: one hash per session, in one slot, with one time to live.

    saveslot:tenant-7:{lesson-1}     key   the session's key, in hexadecimal
                                     head  append_id of the newest entry that the copy includes
                                     12    checksum (16 bytes) | MessagePack [key, seq, kind, digest, base, frame]
                                     b9    the same of entry 9, a keyframe or long patch

The name begins with the namespace, so that an ACL can confine a user to it: `~saveslot:tenant-7:*`. Bytes of namespace
and id other than letters, digits and `_.-~` are percent-encoded: neither can contain a `:`, a `*` or a brace.

On a cluster's client no command names two sessions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from saveslot.errors import InvalidInput
from saveslot.stores.hot import connection as limits
from saveslot.stores.hot.connection import Connection, Operation
from saveslot.stores.hot.news import channel
from saveslot.stores.wire.loops import stopped
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import Entry
from saveslot.values.recipe import OF_A_BASE, Recipe, chain

Name = tuple[str, str]  # a session's namespace and id

# Bytes of a state that are copied at most: a larger one would keep Valkey, which does one thing at a time, from others.
LARGE = 16 << 20
# Bytes of changes that may wait; beyond that new ones are dropped. Each counts as at least 200 bytes.
BACKLOG, EACH = 32 << 20, 200
# Sessions and bytes per call of a script.
BATCH, HEAVY = 256, 1 << 20
# Seconds in which changes gather for one call. A call costs the driver about as much as 15 changes.
GATHER = 0.01
# Seconds that a grave stays: longer than a copy can be under way.
GRAVE = 3600
# Entries after which a copy is rid of short patches that its state no longer needs; a new base removes them all.
STALE = 64
GONE = b"gone"  # the head of a grave, as drop.lua writes it
CHECKSUM = 16


class Change(NamedTuple):
    """A change of one copy, packed as change.lua takes it."""

    name: Name
    packed: bytes


class Copy(msgspec.Struct):
    """What lies in Valkey for a session: nothing, a state, or something else."""

    key: bytes = b""
    head: bytes = b""
    frames: dict[bytes, bytes] = {}

    def seen(self, key: bytes) -> bytes:
        """The head that a change has to expect. Another session's copy with the same id counts as none."""
        return self.head if self.key == key.hex().encode() else b""


class Copies:
    def __init__(self, connection: Connection, ttl: float) -> None:
        """`ttl`: seconds that a copy lives after the last entry."""
        if ttl <= 0:
            raise InvalidInput("session_ttl_hours", "must be more than 0")
        self._connection = connection
        self._counts = connection.counts
        self._ttl = max(1, int(ttl * 1000))
        self._waiting: deque[Change] = deque()
        self._weight = 0
        self._filler: asyncio.Task[None] | None = None

    def read(self, name: Name) -> Operation | None:
        """Start to read a session's copy; None if Valkey is not there yet, or skipped."""
        if self._connection.closed or not self._connection.ready:
            return None
        return self._connection.begin("read", self._read(name))

    async def _read(self, name: Name) -> Copy:
        try:
            fields = await self._connection.execute("HGETALL", place(name))
        except Exception as exc:
            if "WRONGTYPE" in str(exc):
                return Copy()
            raise
        return Copy(fields.pop(b"key", b""), fields.pop(b"head", b""), fields)

    def change(self, name: Name, key: bytes, seen: bytes, head: Entry, entries: Iterable[Entry], *, anew: bool) -> None:
        """Queue a change that brings a copy up to `head`; drop it if too many wait. `seen`: the copy's current head."""
        parts = [key.hex().encode(), seen, head.append_id, b"1" if anew else b"", b""]
        size = EACH
        for entry in entries:
            if entry.kind in DATA_KINDS:
                based = entry.recipe.startswith(OF_A_BASE)
                if not anew and (based or entry.seq % STALE == 0):
                    parts[4] = pruned(entry, based=based)
                if entry.frame is not None:
                    parts += (b"b%d" % entry.seq if based else b"%d" % entry.seq, packed(key, entry))
                    size += len(entry.frame)
        skipped = self._connection.closed or self._connection.breaker.state == "open"
        if skipped or size > LARGE or self._weight > BACKLOG:
            self._counts.dropped += 1
            return
        # One argument per change, since the driver takes some µs for each. As strings, which the server's MessagePack
        # reads as bytes; it has no type for those.
        change = b"".join([piece for part in parts for piece in (b"\xdb", len(part).to_bytes(4, "big"), part)])
        self._waiting.append(Change(name, change))
        self._weight += len(change)
        if self._filler is None:
            self._filler = asyncio.ensure_future(self._fill())

    async def _fill(self) -> None:
        try:
            await self._connection.client()
            while self._waiting:
                if not self._connection.closed:
                    await asyncio.sleep(GATHER)
                batch, size = self._batch()
                changed = await self._connection.run("fill", self._changed(batch), size)
                if changed is None:
                    self._counts.dropped += len(batch)
                else:
                    self._counts.fills += changed
                if self._connection.breaker.state == "open":
                    self._counts.dropped += len(self._waiting)
                    self._waiting.clear()
                    self._weight = 0
        finally:
            self._filler = None

    def _batch(self) -> tuple[list[Change], int]:
        batch: list[Change] = []
        size = 0
        while self._waiting and len(batch) < BATCH and size < HEAVY:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].packed)
        self._weight -= size
        return batch, size

    async def _changed(self, batch: list[Change]) -> int:
        if not self._connection.cluster:
            return await self._change(batch)
        in_turn: dict[Name, list[Change]] = {}
        for change in batch:
            in_turn.setdefault(change.name, []).append(change)
        return sum(await asyncio.gather(*(self._change(changes) for changes in in_turn.values())))

    async def _change(self, batch: list[Change]) -> int:
        channels = sorted({channel(change.name[0]) for change in batch}) if self._connection.shared else []
        names = [place(change.name) for change in batch]
        changes = [change.packed for change in batch]
        values = (self._ttl, *changes, *channels)
        return await self._connection.execute("EVAL", script("change"), len(names), *names, *values)

    async def drop(self, sessions: Sequence[tuple[Name, bytes]], *, graves: bool) -> bool:
        """Remove the copies of these sessions, by name and key; False if Valkey did not confirm it."""
        if sessions:
            await self._connection.client()
        together = 1 if self._connection.cluster else BATCH
        for start in range(0, len(sessions), together):
            part = sessions[start : start + together]
            names, keys = [place(name) for name, _ in part], [key.hex() for _, key in part]
            values = (len(names), *names, GRAVE * 1000 if graves else 0, *keys)
            if await self._connection.run("bury", self._connection.execute("EVAL", script("drop"), *values)) is None:
                self._counts.left += len(sessions) - start
                return False
            self._counts.buried += len(part)
        return True

    async def close(self) -> None:
        """Give waiting changes the budget of one operation, then stop."""
        if self._filler is not None:
            await asyncio.wait([self._filler], timeout=limits.BUDGET)
        await stopped(self._filler)


@lru_cache(10_000)
def place(name: Name) -> str:
    """A copy's name in Valkey."""
    namespace, session_id = (quote(part, safe="", errors="surrogatepass") for part in name)
    return f"saveslot:{namespace}:{{{session_id}}}"


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes, int, int, bytes, int, bytes]).decode


def packed(key: bytes, entry: Entry) -> bytes:
    body = _pack((key, entry.seq, int(entry.kind), entry.digest, entry.base, entry.frame))
    return sha256(body).digest()[:CHECKSUM] + body


def unpacked(key: bytes, seq: int, value: object) -> Entry | None:
    """The entry that a value holds, without its name, times and note; None for anything else."""
    if not isinstance(value, bytes):
        return None
    body = memoryview(value)[CHECKSUM:]
    if sha256(body).digest()[:CHECKSUM] != value[:CHECKSUM]:
        return None
    owner, number, kind, digest, base, frame = _unpack(body)
    right = (owner, number) == (key, seq)
    return Entry(seq, b"", Kind(kind), "", digest=digest, frame=frame, base=base) if right else None


def pruned(entry: Entry, *, based: bool) -> bytes:
    """What to drop, as change.lua takes it: bases between two seqs, and short patches outside of ranges."""
    ranges = Recipe.unpack(entry.recipe, entry.seq).ranges
    between = (entry.base, entry.seq) if based else (0, 0)
    return " ".join([*map(str, between), *(f"{first}-{last}" for first, last in ranges)]).encode()


def state_of(copy: Copy, key: bytes, recipe: Recipe) -> list[Entry] | None:
    """The frames that a recipe names; None if some are missing. `ValueError` if one is not what Saveslot wrote."""
    chain: list[Entry] = []
    at = recipe.base
    while at:
        entry = unpacked(key, at, copy.frames.get(b"b%d" % at))
        if entry is None or entry.base >= at:
            return None
        chain.append(entry)
        at = entry.base
    seqs = sorted(int(field) for field in copy.frames if field.isdigit())
    wanted = [seq for seq in seqs if any(first <= seq <= last for first, last in recipe.ranges)]
    entries = [unpacked(key, seq, copy.frames[b"%d" % seq]) for seq in wanted]
    if None in entries:
        raise ValueError("not what was copied")
    chain = [*reversed(chain), *(entry for entry in entries if entry is not None)]
    return chain if whole(recipe, chain) else None


def whole(recipe: Recipe, frames: Sequence[Entry]) -> bool:
    """True if these are all the frames that a recipe names, and no others."""
    there = {entry.seq: entry.base for entry in frames if entry.frame is not None}
    bases = chain(recipe.base, there)
    complete = not recipe.base or bool(bases and bases[-1] == recipe.base and not there[bases[0]])
    return complete and len(there) == len(bases) + recipe.short


@cache
def script(name: str) -> bytes:
    return Path(__file__).with_name(f"{name}.lua").read_bytes()
