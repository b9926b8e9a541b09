"""The one way to write to a session: take a turn, settle a write in doubt, meet the head, decide, append.

There are two kinds of author. A holder (`Held`) writes under its lease; an entry written meanwhile by another caller is
a conflict. A passer-by writes without a lease, after the entry that its session value has seen or the newest one that
this process knows. Only the author knows which refusal becomes which error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from saveslot.errors import Conflict, SaveslotError
from saveslot.session.cache import Cache
from saveslot.session.draft import Draft
from saveslot.session.log import Log
from saveslot.session.lookup import Lookup
from saveslot.session.model import AgentSession, Seen
from saveslot.session.refusals import overtaken, recreated, unknown
from saveslot.session.retries import CALL, Calls, Scope
from saveslot.values.log import NO_WORKER, Head
from saveslot.values.versions import Version

Decide = Callable[[Log], Awaitable[Draft | None]]  # None or a draft without entries: write nothing


class Author(Protocol):
    @property
    def calls(self) -> Calls: ...

    @property
    def where(self) -> Scope: ...

    @property
    def blind(self) -> bool:
        """True if it writes after whatever is newest, without having read that."""
        ...

    def turn(self) -> AbstractAsyncContextManager[Log]:
        """Lock the session's log for this call."""
        ...

    async def meet(self, log: Log) -> None:
        """Raise if this author must not write after the newest entry that the log knows."""
        ...

    async def refused(self, log: Log, draft: Draft | None, why: SaveslotError) -> None:
        """Raise the caller's error, or return to try again. Without a draft, an earlier write was refused."""
        ...


async def change(author: Author, decide: Decide) -> Draft | None:
    """Append the draft that `decide` returns after the newest entry. A repeated call gets the draft it wrote before."""
    call = CALL.get()
    while True:
        async with author.turn() as log:
            draft: Draft | None = None
            log.refused = False
            try:
                await log.settle()
                if call is not None and log.ends_with(call.draft):
                    return call.draft
                await author.meet(log)
                draft = await decide(log)
                if draft is None or not draft.group.entries:
                    return draft
                draft.blind = author.blind
                if call is not None:
                    call.draft = draft
                await log.append(draft)
            except SaveslotError as exc:
                if not log.refused:
                    raise
                await author.refused(log, draft, exc)
            else:
                if author.where in author.calls.left:
                    author.calls.moved(author.where, draft)
                return draft


class Passerby:
    """Author that does not hold the session.

    It writes after the entry that its session value has seen, or its version names; by id, after the newest one that
    callers of this process have read or written.
    """

    def __init__(
        self,
        lookup: Lookup,
        cache: Cache,
        calls: Calls,
        session_id: str,
        value: AgentSession | None = None,
        version: Version | None = None,
        *,
        alone: bool = False,
        fresh: bool = False,
        blind: bool = False,
        insists: bool = False,
    ) -> None:
        self.head: Head | None = None  # as last read, if `fresh`
        self.calls = calls
        self.where: Scope = (lookup.namespace, session_id)
        self._lookup = lookup
        self._cache = cache
        self._value = value
        self._version = version
        self._read = fresh  # the head, in this call
        self._alone = alone  # refuse to write while another caller holds the session
        self._fresh = fresh  # read the head first, instead of trusting the cached log
        self._insists = insists and version is None  # after a conflict, decide again instead of raising
        self.blind = (blind or insists) and version is None

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[Log]:
        """Lock the session's only log: writers on two logs would collide."""
        while True:
            log = self._cache.get(self.where)
            if log is None:
                self._cache.misses += 1
                head = await self._lookup.existing(self.where[1])
                if self._insists:  # a pin or a mark must not change what this process has seen
                    yield self._cache.log(head)
                    return
                self._read = True
                log = self._cache.get(self.where) or self._cache.add(self.where, head)  # another caller may be first
            else:
                self._cache.hits += 1
            async with log.turns:
                if self._cache.get(self.where) is not log:
                    continue  # dropped while this caller waited
                try:
                    yield log
                finally:
                    self._cache.used(self.where, log)
                return

    async def meet(self, log: Log) -> None:
        if self._fresh:
            self.head = await self._lookup.existing(self.where[1])
            log.meet(self.head)
        if self._value is not None:
            await self.seen(log, self._value)
        if self._version is not None:
            await self._follow(log, self._version)
        elif self._value is None and not self.blind:
            await self._follow_known(log)
        if self._alone and log.at.lease is not None:
            await self._free(log)

    async def seen(self, log: Log, value: AgentSession) -> Seen:
        """Return what the session value has seen; raise `Conflict` if that is not the newest entry."""
        seen, session_id = value.seen, value.session_id
        if seen is None:
            raise Conflict(f"session {session_id}: this value was not read from the store; refresh it first")
        if log.at.append_id != seen.append_id:
            head = await self._lookup.head(session_id)
            if head is None or head.row.key != seen.key:
                self._cache.drop(self.where, log)
                raise unknown(session_id, self.where[0]) if head is None else recreated(session_id)
            if head.last.append_id != seen.append_id:
                if not await self._lookup.current(head, Version(seen.seq, seen.append_id)):
                    self._cache.drop(self.where, log)
                    raise overtaken(session_id, head, seen.seq)
                seen.seq, seen.append_id = head.last.seq, head.last.append_id
            log.meet(head)
        return seen

    async def _follow(self, log: Log, version: Version, key: bytes | None = None) -> None:
        """Move the log to the newest entry; raise `Conflict` if that is not the one that the version names."""
        if version.names(log.at.seq, log.at.append_id):
            return
        session_id = self.where[1]
        head = await self._lookup.existing(session_id, state=True)
        if key is not None and head.row.key != key:
            self._cache.drop(self.where, log)
            raise recreated(session_id)
        if self._alone and _is_held(head):
            self._cache.drop(self.where, log)
            raise await self._lookup.held(head)
        if not await self._lookup.current(head, version):
            self._cache.drop(self.where, log)
            raise overtaken(session_id, head, version.seq)
        log.meet(head)

    async def _follow_known(self, log: Log) -> None:
        known = log.known
        if known.append_id:
            await self._follow(log, Version(known.seq, known.append_id), known.key)
        elif not self._read:
            log.meet(await self._lookup.existing(self.where[1], state=True))
        known.move(log.key, log.at.seq, log.at.append_id)  # the first time, this caller follows whatever is newest

    async def _free(self, log: Log) -> None:
        """Raise if another caller holds the session. The cached lease may be out of date, so read the head."""
        head = await self._lookup.existing(log.session_id)
        if _is_held(head):
            self._cache.drop(self.where, log)
            raise await self._lookup.held(head)
        if head.last.append_id != log.at.append_id:
            self._cache.drop(self.where, log)
            raise overtaken(log.session_id, head, log.at.seq)

    async def refused(self, log: Log, draft: Draft | None, why: SaveslotError) -> None:
        self._cache.drop(self.where, log)
        if not isinstance(why, Conflict):
            raise why
        if self._insists:
            return
        head = await self._lookup.head(self.where[1])
        if head is not None and draft is not None and (prev := draft.group.prev) is not None:
            if await self._lookup.current(head, Version(draft.group.entries[0].seq - 1, prev)):
                return
            if self._alone and _is_held(head):
                raise await self._lookup.held(head) from why
        raise why


def _is_held(head: Head) -> bool:
    """True if a worker holds the session: not one that its owner left by an error."""
    return head.row.lease is not None and head.row.owner != NO_WORKER
