"""Keeps namespaces to their quotas: a store that refuses what would go over one, before anything is written.

Both doors write through it, and every verb is an append in the end: a fork, a copy, an import and a job count as what
they write. Sessions and bytes are counted in the store, now and then, and this process adds what it has written since:
so with one process the limits are exact. Of what other processes write it learns with the next count; so that all of
them together keep to a limit, each uses up a part of the room that it counted, and then counts again. Entries of a
minute all processes count in one place: `minute`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from saveslot.errors import QuotaExceeded, SaveslotError, Unavailable
from saveslot.server.minute import Minute
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
# What ends, pauses, releases or shortens a session, and the result of a step, may go over a limit by a tenth, at least
# by so many entries or bytes: a worker at the limit has to be able to stop, to say what it has done, and to make room.
# Deleting is never refused.
CLOSING = frozenset({
    Kind.TOMBSTONE, Kind.RELEASED, Kind.COMPLETED, Kind.FAILED, Kind.PAUSED, Kind.CANCELLED, Kind.MARKED,
    Kind.STEP_FINISHED, Kind.STEP_FAILED,
})  # fmt: skip
RESERVE, FEWEST, LEAST = 10, 10, 64 * 1024
# What ends or releases a session is not refused for its bytes if it is short: the namespace may be further over than
# that, since its limit was lowered, or other processes wrote before this one counted.
ENDING = frozenset({Kind.RELEASED, Kind.COMPLETED, Kind.FAILED, Kind.CANCELLED})
# Bytes of a deletion, or of such an end: a larger one is counted like any entry.
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
    ending: bool = True  # all of it are short ends or releases

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


class Account:
    """What one namespace has used of its quota, as this process knows it."""

    def __init__(self, store: Store, quota: Quota) -> None:
        self.quota = quota
        self._store = store
        self._usage: Usage | None = None
        self._landed = Amount()  # by this process; what it asked for and never heard of counts as landed
        self._flying = Amount()
        self._minute = Minute(store, quota.namespace)
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

    async def spend(self, wanted: Amount) -> None:
        """Count its entries within the minute; `QuotaExceeded` if they are too many."""
        limit = self.quota.checkpoints_per_minute
        if limit is not None and not wanted.deleting:
            await self._minute.take(limit, _most(limit, FEWEST, wanted), wanted.entries)

    def unspend(self, wanted: Amount, landed: Amount) -> None:
        """Count only those entries that have landed."""
        if self.quota.checkpoints_per_minute is not None and not wanted.deleting:
            self._minute.give_back(wanted.entries - landed.entries)

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
        if (error := self._full(wanted)) is not None:
            raise error

    def take(self, wanted: Amount) -> None:
        self._flying.add(wanted)

    def settle(self, wanted: Amount, landed: Amount) -> None:
        """Count what has landed of what was wanted."""
        self._flying.add(wanted, -1)
        self._landed.add(landed)
        self.unspend(wanted, landed)

    def freed(self) -> None:
        """Room was made: the next refusal counts again."""
        self._doubtful = True

    async def usage(self) -> tuple[int | None, int | None, int | None, float | None]:
        """Sessions, bytes and entries of the last minute, as far as limited, and how old the first two are in s."""
        await self.prepare(Amount())
        usage = self._usage
        entries = None if self.quota.checkpoints_per_minute is None else await self._minute.used()
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
        if quota.bytes is not None and not wanted.ending:
            most = _most(quota.bytes, LEAST, wanted)
            if self._bytes(usage) + wanted.bytes > most:
                hint = f"this brings {wanted.bytes:,} more; erase, thin or purge sessions, or ask for a higher quota"
                return self._exceeded("bytes", quota.bytes, self._bytes(usage), hint)
        return None

    def _exceeded(self, what: str, limit: int, used: int, hint: str) -> QuotaExceeded:
        return QuotaExceeded(self.quota.namespace, what, limit=limit, used=used, hint=hint, retry_after=0)

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
        weighs = self.quota.bytes is not None
        try:
            sessions, size = await counted(self._store, self.quota)
        except SaveslotError as exc:  # go on with what is known; the next write asks again
            log.warning("namespace %s was not counted for its quota: %s", self.quota.namespace, exc)
            return
        if self.quota.bytes is not None and not weighs:  # a limit of bytes was set meanwhile
            return
        now = running().time()
        self._usage = Usage(sessions, size, began, now - began, landed)


async def counted(store: Store, quota: Quota) -> tuple[int, int]:
    """Count the sessions of a namespace in the store, and their bytes if those are limited."""
    query, weighs = Query(namespace=quota.namespace), quota.bytes is not None
    counts = [await store.count(query, totals="matching" if weighs else "none")]
    if weighs:  # deleted sessions take room until they are purged
        query.deleted_for = EVER_DELETED
        counts.append(await store.count(query, totals="matching"))
    rows = [sum(one.states.values()) for one in counts]
    return rows[0], sum(one.stored_bytes + ENTRY * one.entries for one in counts) + SESSION * sum(rows)


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
        accounts = await self._taken(amounts)
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
                        accounts[space].freed()
            return verdicts
        except SaveslotError:  # most likely it did not land, and is repeated
            for amount in landed.values():
                amount.entries = 0
            raise
        finally:
            for space, account in accounts.items():
                account.settle(amounts[space], landed[space])

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
        wanted = Amount(bytes=more, closing=False, deleting=False, ending=False)
        accounts = await self._taken({space: wanted} if space in self._accounts else {})
        landed = wanted
        try:
            done = await self._inner.swap(key, before, after, labels)
            landed = wanted if done else Amount()
            return done
        finally:
            for account in accounts.values():
                account.settle(wanted, landed)

    async def _taken(self, amounts: dict[str, Amount]) -> dict[str, Account]:
        """Take up room for all amounts, or for none. Nothing waits between the look at sessions and bytes, and that."""
        accounts = {space: self._accounts[space] for space in amounts}
        spent: list[str] = []
        try:
            for space, wanted in amounts.items():
                await accounts[space].prepare(wanted)
                await accounts[space].spend(wanted)
                spent.append(space)
            for space, wanted in amounts.items():
                accounts[space].require(wanted)
        except BaseException:
            for space in spent:
                accounts[space].unspend(amounts[space], Amount())
            raise
        for space, wanted in amounts.items():
            accounts[space].take(wanted)
        return accounts

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
    others = kinds - {Kind.UPDATED} or kinds  # an update may say why it ended
    amount.closing &= others <= CLOSING
    amount.ending &= others <= ENDING and _weight(group) <= TOMB
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
