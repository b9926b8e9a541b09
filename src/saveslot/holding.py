"""Who may work on a session: `hold` takes one, `claim` takes over those of workers that died."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from saveslot.errors import InvalidInput, LeaseHeld, SaveslotError
from saveslot.held import Held
from saveslot.lifecycle import SessionState, follow
from saveslot.lifeline import Lifeline
from saveslot.log import Head, Outcome, Query
from saveslot.model import AgentSession, Data, Kind, as_name
from saveslot.reading import SessionReader
from saveslot.slot import Draft, Point, refusal
from saveslot.stores import Store

R = TypeVar("R")

# Sessions that are taken in one transaction.
CLAIM_BATCH = 500
# How often who waits for a session looks again, in seconds.
LOOK = 0.1


class SessionHolder(SessionReader):
    """A reader that can take sessions into its hands."""

    def __init__(
        self, store: Store, namespace: str, limit: int, *, worker_beat: float, worker_ttl: float, max_block: float
    ) -> None:
        super().__init__(store, namespace)
        self.running: set[asyncio.Future[Any]] = set()
        self._limit = limit
        self._timing = {"beat": worker_beat, "ttl": worker_ttl, "max_block": max_block}
        self._lifeline: Lifeline | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, session: AgentSession | str, *, wait: float = 0) -> AsyncGenerator[Held]:
        """Take the session: ours until we leave the block or die. `LeaseHeld` when another has it (for `wait` s)."""
        held = await self.take(session, wait=wait)
        try:
            yield held
        finally:
            await held.release()

    async def take(self, session: AgentSession | str, *, wait: float = 0) -> Held:
        """The same without a block: `release` it yourself."""
        held = await self._hold(as_name(getattr(session, "session_id", session), "session_id"), wait)
        return await held.__aenter__()

    async def claim(self, agent_type: str | None = None, limit: int = 10, *, released: bool = False) -> list[Held]:
        """Take over active sessions whose workers died (`released`: and those that nobody holds), each by one claimer.

        Enter each: `async with held`. Those never entered are orphans again when this manager is closed.
        """
        if limit < 1:
            raise InvalidInput("limit", "must be 1 or more")
        lifeline = await self._alive()
        orphans = Query(
            namespace=self.namespace,
            agent_type=agent_type,
            state=SessionState.ACTIVE.value,
            orphan_for=lifeline.patience,
        )
        claimed = await self._claim(orphans, limit)
        if released and len(claimed) < limit:
            free = Query(namespace=self.namespace, agent_type=agent_type, state=SessionState.ACTIVE.value, unowned=True)
            claimed += await self._claim(free, limit - len(claimed))
        return claimed

    async def _claim(self, query: Query, limit: int) -> list[Held]:
        claimed: list[Held] = []
        after: tuple[int, bytes] | None = None
        while len(claimed) < limit:
            rows = await self._store.find(query, after, max(CLAIM_BATCH, limit - len(claimed)))
            if not rows:
                break
            after = (rows[-1].created_at, rows[-1].key)
            keys = [row.key for row in rows]
            random.shuffle(keys)  # claimers that start at once take different ones
            while keys and len(claimed) < limit:
                part = keys[: min(CLAIM_BATCH, limit - len(claimed))]
                del keys[: len(part)]
                heads = [head for head in await self._store.heads(part) if head is not None and _open(head, query)]
                claimed += await self._take_all(heads, query.orphan_for)
        return claimed

    async def _hold(self, session_id: str, wait: float) -> Held:
        end = asyncio.get_running_loop().time() + wait
        while True:
            try:
                return await self._taken(session_id)
            except LeaseHeld:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise
                await asyncio.sleep(min(left, random.uniform(LOOK / 2, LOOK)))  # noqa: S311  (jitter)

    async def _taken(self, session_id: str) -> Held:
        lifeline = await self._alive()
        while True:
            head = await self._lookup.existing(session_id)
            follow(SessionState(head.row.state), "hold")
            # Ours, and not in our hands: taken by a write whose answer was lost.
            stray = head.row.owner == lifeline.row.id and head.row.lease not in lifeline.holders
            patience = None if head.row.lease is None or stray else lifeline.patience
            if patience is not None and head.row.left:
                raise await self._lookup.held(head)
            if taken := await self._take_all([head], patience):
                return taken[0]
            [now] = await self._store.heads([head.row.key])
            if now is not None and now.last.append_id == head.last.append_id:
                raise await self._lookup.held(head)  # its owner is silent, but not for long enough

    async def _take_all(self, heads: list[Head], patience: int | None) -> list[Held]:
        """Take these, each if nobody was quicker. Cancelled: what was taken is let go again."""
        task = self._sent(self._take(heads, patience))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandon)
            raise

    async def _take(self, heads: list[Head], patience: int | None) -> list[Held]:
        lifeline = await self._alive()
        taking: list[tuple[Held, Draft]] = []
        for head in heads:
            held = Held(self._lookup, lifeline, head, self._limit, self.running)
            orphan = patience is not None
            draft = held.drafted(Kind.CLAIMED if orphan else Kind.TAKEN, os.urandom(16))
            draft.group.only_orphan = patience
            taking.append((held, draft))
        try:
            verdicts = await self._store.append([draft.group for _, draft in taking])
        except BaseException:
            for held, _ in taking:
                held.untaken()
            lifeline.strays = True
            raise
        taken: list[Held] = []
        for (held, draft), verdict in zip(taking, verdicts, strict=True):
            if verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}:
                held.taken(draft, verdict)
                taken.append(held)
            else:
                held.untaken()
                if verdict.outcome is Outcome.LOST:
                    raise refusal(held.session.session_id, verdict, draft.group.entries[0].seq - 1)
        return taken

    def _abandon(self, task: asyncio.Future[list[Held]]) -> None:
        if not task.cancelled() and task.exception() is None:
            for held in task.result():
                self._sent(held.release())

    def _sent(self, work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
        """On its way, whoever waits for it; `close` does."""
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    @property
    def worker(self) -> Data | None:
        """What others see of this process; None before it held anything."""
        lifeline = self._lifeline
        if lifeline is None:
            return None
        return {
            "name": lifeline.name,
            "alive": lifeline.alive,
            "held": len(lifeline.holders),
            "beats": lifeline.beats,
        }

    # The worker

    async def _alive(self) -> Lifeline:
        """The lifeline of this process, known to hold. One that was declared dead is followed by another."""
        async with self._starting:
            if self._lifeline is None or not self._lifeline.usable:
                self._lifeline = Lifeline(self._store, self._tidy, **self._timing)
                await self._lifeline.start()
        await self._lifeline.ready()
        return self._lifeline

    def _tidy(self, lifeline: Lifeline) -> None:
        """After a beat, when the store may say that we hold what we do not."""
        lifeline.strays = False
        self._sent(self._let_strays_go(lifeline))

    async def _let_strays_go(self, lifeline: Lifeline) -> None:
        try:
            rows = await self._store.find(Query(namespace=self.namespace, owner=lifeline.row.id), None, CLAIM_BATCH)
            strays = [row.key for row in rows if row.lease not in lifeline.holders]
            drafts: list[Draft] = []
            for head in await self._store.heads(strays):
                if head is not None and head.row.owner == lifeline.row.id and head.row.lease not in lifeline.holders:
                    draft = Draft(head.row.key, Point.of(head), self._limit)
                    draft.release()
                    drafts.append(draft)
            verdicts = await self._store.append([draft.group for draft in drafts])
            missed = any(verdict.outcome is Outcome.CONFLICT for verdict in verdicts)
            lifeline.strays = lifeline.strays or missed or len(rows) == CLAIM_BATCH
        except SaveslotError:
            lifeline.strays = True  # after the next beat

    async def _leave(self) -> None:
        if self._lifeline is not None:
            await self._lifeline.leave()


def _open(head: Head, query: Query) -> bool:
    """True for one that is still as it was found."""
    return head.row.state == query.state and (head.row.lease is None) == query.unowned
