"""Keeps namespaces to their quotas: a store that refuses what would go over one, before anything is written.

Both doors write through it, and every verb is an append in the end: a fork, a copy, an import and a job count as what
they write. Sessions and bytes are counted in the store, now and then, and this process adds what it has written since:
so with one process the limits are exact. Of what other processes write it learns with the next count; so that all of
them together keep to a limit, each uses up a part of the room that it counted, and then counts again. Entries of a
minute are counted in this process alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from saveslot.errors import QuotaExceeded, SaveslotError, Unavailable
from saveslot.server.quotas import Quota
from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.wire.loops import running, stopped
from saveslot.values.kinds import Kind
from saveslot.values.log import EVER_DELETED, Group, Labels, Outcome, Query, Row, Verdict

# Bytes that a session and an entry count beside their content: what their rows take.
SESSION, ENTRY = 500, 100
# A count is used for a second, or for so many times as long as it took: then it takes at most a twentieth of the time.
FRESH, SHARE = 1.0, 20
# Of the room that it counted a process uses up such a part before it counts again, if counts are quick.
PART = 8
# After so many times that, a write waits for the next count instead of starting one and going on.
STALE = 3
# Near a limit the next count may come after so many times as long as the last one took, if a write has to wait for it
# no longer than so many seconds: so if counts take up to 50 ms.
SOON, NAP = 5, 0.25
# Seconds that a write waits for a count. Then it goes on with the one before; if there is none yet, it is refused with
# 503: the first count takes about a second per million entries, and begins when the quota is read.
PATIENCE = 5.0
# Seconds of the window in which entries are counted.
MINUTE = 60
# What ends, pauses, releases or shortens a session, and the result of a step, may go over a limit by a tenth, at least
# by so many entries or bytes: a worker at the limit has to be able to stop, to say what it has done, and to make room.
# Deleting is never refused.
CLOSING = frozenset({
    Kind.TOMBSTONE, Kind.RELEASED, Kind.COMPLETED, Kind.FAILED, Kind.PAUSED, Kind.CANCELLED, Kind.MARKED,
    Kind.STEP_FINISHED, Kind.STEP_FAILED,
})  # fmt: skip
RESERVE, FEWEST, LEAST = 10, 10, 64 * 1024
# Bytes of a deletion: a larger one is counted like any entry.
TOMB = 1024
# Namespaces of sessions remembered, by key; a miss costs one read.
REMEMBERED = 100_000

log = logging.getLogger("saveslot.server")


class Amount(msgspec.Struct):
    """What a write adds to a namespace."""

    sessions: int = 0
    bytes: int = 0
    entries: int = 0
    closing: bool = True  # all of it is of these kinds, or an update that says why
    deleting: bool = True  # all of it are deletions

    def add(self, other: Amount, sign: int = 1) -> None:
        self.sessions += sign * other.sessions
        self.bytes += sign * other.bytes
        self.entries += sign * other.entries


class Usage(msgspec.Struct, frozen=True):
    """What the store counted: when, and how long that took."""

    sessions: int
    bytes: int
    at: float
    took: float
    landed: Amount  # by then in this process

    @property
    def fresh(self) -> float:
        return max(FRESH, SHARE * self.took)


class Part(msgspec.Struct):
    """Entries of one second."""

    second: int
    entries: int


class Window:
    """Entries of the last minute, by the second."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._total = 0

    def count(self) -> int:
        now = int(running().time())
        while self._parts and self._parts[0].second < now - MINUTE:
            self._total -= self._parts.popleft().entries
        return self._total

    def add(self, entries: int) -> Part:
        self.count()  # drops what is older
        now = int(running().time())
        if not self._parts or self._parts[-1].second != now:
            self._parts.append(Part(now, 0))
        self._parts[-1].entries += entries
        self._total += entries
        return self._parts[-1]

    def take_back(self, part: Part, entries: int) -> None:
        if self._parts and self._parts[0].second <= part.second:
            part.entries -= entries
            self._total -= entries

    def wait(self, entries: int) -> int:
        """Seconds until so many entries have left the window."""
        now = int(running().time())
        for part in self._parts:
            entries -= part.entries
            if entries <= 0:
                return max(1, part.second + MINUTE + 1 - now)
        return MINUTE


class Account:
    """What one namespace has used of its quota, as this process knows it."""

    def __init__(self, store: Store, quota: Quota) -> None:
        self.quota = quota
        self._store = store
        self._usage: Usage | None = None
        self._landed = Amount()  # by this process; what it asked for and never heard of counts as landed
        self._flying = Amount()
        self._window = Window()
        self._counting: asyncio.Task[None] | None = None
        self._doubtful = False  # there may be more room than was counted

    def keep(self, quota: Quota) -> None:
        if self.quota.bytes is None and quota.bytes is not None:  # the last count did not weigh anything
            self._usage = None
        self.quota = quota
        if self._usage is None and self._counts:
            self._count()

    @property
    def _counts(self) -> bool:
        """Whether a limit rests on what the store holds."""
        return self.quota.sessions is not None or self.quota.bytes is not None

    async def prepare(self, wanted: Amount) -> None:
        """Have a count that is fresh enough to judge by: a refusal rests on one that is as fresh as any."""
        if not self._counts:
            return
        usage = self._usage
        age, full = 0.0 if usage is None else running().time() - usage.at, self._full(wanted) is not None
        if usage is None or age > STALE * usage.fresh or (full and age > usage.fresh):
            await self._counted()
        elif full and self._doubtful:
            await self._counted_soon(usage)
        elif age > usage.fresh:
            self._count()
        while (usage := self._usage) is not None and not self._full(wanted) and self._spent(usage, wanted):
            if not await self._counted_soon(usage):
                return

    def _spent(self, usage: Usage, wanted: Amount) -> bool:
        """True if this process has used up its part of the room that was counted."""
        if wanted.deleting:
            return False
        parts = (
            (self.quota.sessions, usage.sessions, self._sessions(usage), wanted.sessions),
            (self.quota.bytes, usage.bytes, self._bytes(usage), wanted.bytes),
        )
        return any(
            limit is not None and more and now > counted and now + more - counted > (limit - counted) // PART
            for limit, counted, now, more in parts
        )

    async def _counted_soon(self, usage: Usage) -> bool:
        """Wait for another count, if counts are so quick that one is due soon; return whether there was one."""
        rest = SOON * usage.took - (running().time() - usage.at)
        if rest > NAP:
            return False
        await asyncio.sleep(max(0.0, rest))
        await self._counted()
        return self._usage is not usage

    def require(self, wanted: Amount) -> None:
        """Raise `QuotaExceeded` if there is no room for it; `Unavailable` as long as nothing was counted."""
        if self._usage is None and self._counts and not wanted.deleting:
            space = self.quota.namespace
            raise Unavailable(f"namespace {space} is still being counted for its quota; nothing was written, retry")
        error = self._full(wanted) or self._too_fast(wanted)
        if error is not None:
            raise error

    def take(self, wanted: Amount) -> Part:
        self._flying.add(wanted)
        return self._window.add(wanted.entries)

    def settle(self, wanted: Amount, landed: Amount, part: Part) -> None:
        """Count what has landed of what was wanted."""
        self._flying.add(wanted, -1)
        self._landed.add(landed)
        self._window.take_back(part, wanted.entries - landed.entries)

    def freed(self) -> None:
        """Room was made: the next refusal counts again."""
        self._doubtful = True

    async def usage(self) -> tuple[int | None, int | None, int, float | None]:
        """Sessions, bytes and entries of the last minute, and how many seconds ago they were counted."""
        await self.prepare(Amount())
        usage, entries = self._usage, self._window.count()
        if usage is None:
            return None, None, entries, None
        return self._sessions(usage), self._bytes(usage), entries, running().time() - usage.at

    async def close(self) -> None:
        await stopped(self._counting)

    def _sessions(self, usage: Usage) -> int:
        return usage.sessions + self._landed.sessions - usage.landed.sessions + self._flying.sessions

    def _bytes(self, usage: Usage) -> int:
        return usage.bytes + self._landed.bytes - usage.landed.bytes + self._flying.bytes

    def _full(self, wanted: Amount) -> QuotaExceeded | None:
        usage, quota = self._usage, self.quota
        if usage is None or wanted.deleting:
            return None
        if quota.sessions is not None and wanted.sessions and self._sessions(usage) + wanted.sessions > quota.sessions:
            hint = "delete some, or ask for a higher quota"
            return self._exceeded("sessions", quota.sessions, self._sessions(usage), hint)
        if quota.bytes is not None:
            most = _most(quota.bytes, LEAST, wanted)
            if self._bytes(usage) + wanted.bytes > most:
                hint = f"this brings {wanted.bytes:,} more; erase, thin or purge sessions, or ask for a higher quota"
                return self._exceeded("bytes", quota.bytes, self._bytes(usage), hint)
        return None

    def _too_fast(self, wanted: Amount) -> QuotaExceeded | None:
        limit = self.quota.checkpoints_per_minute
        if limit is None or wanted.deleting:
            return None
        used, most = self._window.count(), _most(limit, FEWEST, wanted)
        if used + wanted.entries <= most:
            return None
        if wanted.entries > most:
            hint = f"this brings {wanted.entries:,} at once; it needs a higher quota"
            return self._exceeded("checkpoints_per_minute", limit, used, hint)
        wait = self._window.wait(used + wanted.entries - most)
        return self._exceeded("checkpoints_per_minute", limit, used, f"retry in {wait} s", wait)

    def _exceeded(self, what: str, limit: int, used: int, hint: str, retry_after: int = 0) -> QuotaExceeded:
        space = self.quota.namespace
        return QuotaExceeded(space, what, limit=limit, used=used, hint=hint, retry_after=retry_after)

    async def _counted(self) -> None:
        """Wait for a count, up to a limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._count())

    def _count(self) -> asyncio.Task[None]:
        """The count that is under way, or a new one."""
        if self._counting is None or self._counting.done():
            self._counting = running().create_task(self._measure())
        return self._counting

    async def _measure(self) -> None:
        began, landed = running().time(), msgspec.structs.replace(self._landed)
        # What is under way now may be in the count, and is added to it once it has landed.
        self._doubtful = self._flying.sessions > 0 or self._flying.bytes > 0
        query, weighs = Query(namespace=self.quota.namespace), self.quota.bytes is not None
        try:
            counts = [await self._store.count(query, totals="matching" if weighs else "none")]
            if weighs:  # deleted sessions take room until they are purged
                query.deleted_for = EVER_DELETED
                counts.append(await self._store.count(query, totals="matching"))
        except SaveslotError as exc:  # go on with what is known; the next write asks again
            log.warning("namespace %s was not counted for its quota: %s", self.quota.namespace, exc)
            return
        if self.quota.bytes is not None and not weighs:  # a limit of bytes was set meanwhile
            return
        rows = [sum(one.states.values()) for one in counts]
        size = sum(one.stored_bytes + ENTRY * one.entries for one in counts) + SESSION * sum(rows)
        now = running().time()
        self._usage = Usage(rows[0], size, began, now - began, landed)


class Limited(PassingStore):
    """A store whose namespaces keep to their quotas."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._accounts: dict[str, Account] = {}
        self._namespaces: dict[bytes, str] = {}

    def keep(self, quotas: Iterable[Quota]) -> None:
        """Keep to these quotas from now on."""
        before, self._accounts = self._accounts, {}
        for quota in quotas:
            account = before.get(quota.namespace)
            if account is None:
                account = Account(self._inner, quota)
            account.keep(quota)
            self._accounts[quota.namespace] = account

    @property
    def limited(self) -> list[str]:
        """The namespaces that have a quota."""
        return list(self._accounts)

    def account(self, namespace: str) -> Account | None:
        return self._accounts.get(namespace)

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        if not self._accounts:
            return await self._inner.append(groups, together=together)
        spaces = await self._spaces(groups)
        amounts: dict[str, Amount] = {}
        for space, group in zip(spaces, groups, strict=True):
            if space in self._accounts:
                _add(amounts.setdefault(space, Amount()), group)
        parts = await self._taken(amounts)
        # Of a write whose outcome is unknown, all counts: one that was cancelled lands.
        landed = {space: msgspec.structs.replace(amount) for space, amount in amounts.items()}
        try:
            verdicts = await self._inner.append(groups, together=together)
            landed = {space: Amount() for space in amounts}
            for space, group, verdict in zip(spaces, groups, verdicts, strict=True):
                if verdict.outcome is not Outcome.APPENDED:
                    continue
                if group.create is not None:  # only now: a refused creation may name a key of another namespace
                    self._remember([group.create])
                if space in landed:
                    _add(landed[space], group)
                    if group.delete:
                        parts[space][0].freed()
            return verdicts
        except SaveslotError:  # most likely it did not land, and is repeated
            for amount in landed.values():
                amount.entries = 0
            raise
        finally:
            for space, (account, part) in parts.items():
                account.settle(amounts[space], landed[space], part)

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        count = await self._inner.empty(key, seqs, notes=notes)
        if count:
            self._freed([key])
        return count

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        counts = await self._inner.purge(keys, seen)
        if any(counts):
            self._freed(keys)
        return counts

    def _freed(self, keys: Sequence[bytes]) -> None:
        """Sessions that were deleted before this process could learn where they are wait for the next count."""
        for key in keys:
            if (account := self._accounts.get(self._namespaces.get(key, ""))) is not None:
                account.freed()

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        more = len(after) - len(before) + sum(map(_size, (labels or {}).values()))
        if not self._accounts or more <= 0:
            return await self._inner.swap(key, before, after, labels)
        space = (await self._known([key])).get(key, "")
        wanted = Amount(bytes=more, closing=False, deleting=False)
        parts = await self._taken({space: wanted} if space in self._accounts else {})
        landed = wanted
        try:
            done = await self._inner.swap(key, before, after, labels)
            landed = wanted if done else Amount()
            return done
        finally:
            for account, part in parts.values():
                account.settle(wanted, landed, part)

    async def _taken(self, amounts: dict[str, Amount]) -> dict[str, tuple[Account, Part]]:
        """Take up room for all amounts, or for none. Nothing waits between the look and the taking."""
        accounts = {space: self._accounts[space] for space in amounts}
        for space, wanted in amounts.items():
            await accounts[space].prepare(wanted)
        for space, wanted in amounts.items():
            accounts[space].require(wanted)
        return {space: (accounts[space], accounts[space].take(wanted)) for space, wanted in amounts.items()}

    async def _spaces(self, groups: Sequence[Group]) -> list[str]:
        """The namespace of each group; "" if its session is gone, and nothing will land."""
        known = await self._known([group.key for group in groups if group.create is None])
        return [known.get(group.key, "") if (row := group.create) is None else row.namespace for group in groups]

    async def _known(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        unknown = [key for key in keys if key not in self._namespaces]
        if unknown:
            self._remember(head.row for head in await self._inner.heads(unknown) if head is not None)
        return {key: self._namespaces[key] for key in keys if key in self._namespaces}

    def _remember(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._namespaces[row.key] = row.namespace
        while len(self._namespaces) > REMEMBERED:
            del self._namespaces[next(iter(self._namespaces))]

    async def close(self) -> None:
        for account in self._accounts.values():
            await account.close()
        await self._inner.close()


def _most(limit: int, least: int, wanted: Amount) -> int:
    return limit + max(limit // RESERVE, least) if wanted.closing else limit


def _add(amount: Amount, group: Group) -> None:
    kinds = {entry.kind for entry in group.entries}
    amount.closing &= kinds - {Kind.UPDATED} <= CLOSING and kinds != {Kind.UPDATED}  # an update may say why it ended
    amount.deleting &= group.delete and len(group.entries) == 1 and _weight(group) <= TOMB
    amount.sessions += group.create is not None
    amount.bytes += _weight(group)
    amount.entries += len(group.entries)


def _weight(group: Group) -> int:
    """Bytes that a group adds, as the store counts them: a new body in full, the former one's are known by the next
    count.
    """
    size = len(group.body or b"")
    if (row := group.create) is not None:
        size += SESSION + len(row.body)
    for entry in group.entries:
        size += ENTRY + len(entry.frame or b"") + len(entry.note or b"") + len(entry.recipe)
        size += len(entry.name.encode()) + (_size(entry.labels) if entry.labels else 0)
    return size


def _size(labels: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for label in labels.items() for text in label)
