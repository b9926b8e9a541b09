"""Who may work on a session: `hold` takes one, `claim` takes over those of workers that died."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from saveslot.errors import Conflict, LeaseHeld, LeaseLost, SaveslotError
from saveslot.held import Held
from saveslot.lifecycle import SessionState, follow
from saveslot.lifeline import Lifeline, checked, jittered
from saveslot.log import Head, Outcome, Query
from saveslot.model import AgentSession, Data, Kind, as_count, as_label, as_name, as_span
from saveslot.reading import SessionReader
from saveslot.sealing import SealedStore
from saveslot.slot import Draft, Point, Slot, refusal

R = TypeVar("R")

# Sessions that are taken in one transaction.
CLAIM_BATCH = 500
# An empty session takes 41 bytes: a lower limit would refuse every one.
LEAST_STATE = 64
# How often who waits for a session looks again, in seconds.
LOOK = 0.1


class SessionHolder(SessionReader):
    """A reader that can take sessions into its hands."""

    def __init__(
        self, store: SealedStore, namespace: str, limit: int, *, worker_beat: float, worker_ttl: float, max_block: float
    ) -> None:
        super().__init__(store, namespace)
        self.running: set[asyncio.Future[Any]] = set()
        self._limit = as_count(limit, "max_state_bytes", LEAST_STATE)
        self._timing = checked(worker_beat, worker_ttl, max_block)
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
        limit = as_count(limit, "limit", 1)
        agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
        lifeline = await self._alive()
        orphans = Query(
            namespace=self.namespace,
            agent_type=agent_type,
            state=SessionState.ACTIVE.value,
            orphan_for=lifeline.patience,
        )
        claimed: list[Held] = []
        try:
            if lifeline.strays:  # a claim's answer was lost: ours now, and in nobody's hands
                await self._claim(replace(orphans, orphan_for=None, owner=lifeline.row.id), limit, claimed)
            await self._claim(orphans, limit, claimed)
            if released and len(claimed) < limit:
                await self._claim(replace(orphans, orphan_for=None, unowned=True), limit, claimed)
        except BaseException:
            for held in claimed:
                self._sent(held.release())  # nobody hears of these
            raise
        return claimed

    async def _claim(self, query: Query, limit: int, claimed: list[Held]) -> None:
        after: tuple[int, bytes] | None = None
        while len(claimed) < limit:
            rows = await self._store.find(query, after, max(CLAIM_BATCH, limit - len(claimed)))
            if not rows:
                break
            after = (rows[-1].created_at, rows[-1].key)
            keys = [row.key for row in rows]
            keys.sort(key=lambda _: os.urandom(8))  # claimers that start at once take different ones
            while keys and len(claimed) < limit:
                part = keys[: min(CLAIM_BATCH, limit - len(claimed))]
                del keys[: len(part)]
                heads = [head for head in await self._store.heads(part) if head is not None and self._open(head, query)]
                found = [(head, self._slot_at(head)) for head in heads]
                claimed += await self._take_all(found, orphans=query.orphan_for is not None)

    def _open(self, head: Head, query: Query) -> bool:
        """True for one that is still as it was found. Of our own worker's only what a claim took and nobody got."""
        row = head.row
        if row.locked is not None:  # sealed with a key that this worker was not given: others' work
            return False
        if query.owner is not None and self._lifeline is not None:
            stray = row.owner == query.owner and row.lease not in self._lifeline.holders
            return stray and head.last.kind is Kind.CLAIMED and row.state == query.state
        return row.state == query.state and (row.lease is None) == query.unowned

    async def _hold(self, session_id: str, wait: float) -> Held:
        end = asyncio.get_running_loop().time() + as_span(wait, "wait")
        while True:
            try:
                return await self._taken(session_id)
            except LeaseHeld:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise
                await asyncio.sleep(min(left, jittered(LOOK)))

    async def _taken(self, session_id: str) -> Held:
        alive = self._sent(self._alive())  # the first time a write: meanwhile is read what is to be taken
        alive.add_done_callback(_heard)
        await asyncio.sleep(0)  # it begins; a short read does not let the loop go round
        while True:
            head = await self._lookup.existing(session_id)
            follow(SessionState(head.row.state), "hold")
            slot, free = self._slot_at(head), head.row.lease is None
            if free:
                with suppress(Conflict):  # it went on meanwhile: then it is not taken either
                    await slot.load_data()
            lifeline = await alive
            # Ours, and not in our hands: taken by a write whose answer was lost.
            stray = head.row.owner == lifeline.row.id and head.row.lease not in lifeline.holders
            orphan = not free and not stray
            if orphan and head.row.left:
                raise await self._lookup.held(head)
            if taken := await self._take_all([(head, slot)], orphans=orphan):
                return taken[0]
            [now] = await self._store.heads([head.row.key])
            if now is not None and now.last.append_id == head.last.append_id:
                raise await self._lookup.held(head)  # its owner is silent, but not for long enough

    def _slot_at(self, head: Head) -> Slot:
        """What is known of a session of which only the head was read."""
        slot = Slot(self._store, head.row.session_id, head.row.key, Point.of(head), self._limit)
        slot.newest = head.last
        return slot

    async def _take_all(self, found: list[tuple[Head, Slot]], *, orphans: bool) -> list[Held]:
        """Take these, each if nobody was quicker. Cancelled: what was taken is let go again."""
        task = self._sent(self._take(found, orphans=orphans))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandon)
            raise

    async def _take(self, found: list[tuple[Head, Slot]], *, orphans: bool) -> list[Held]:
        lifeline = await self._alive()
        # Asked now, not when they were found: we may have been stopped since, and with us the whole store.
        patience = lifeline.patience if orphans else None
        taking: list[tuple[Held, Draft]] = []
        for head, slot in found:
            held = Held(self._lookup, lifeline, head, slot, self.running)
            draft = held.drafted(Kind.CLAIMED if orphans else Kind.TAKEN, os.urandom(16))
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
        lost: SaveslotError | None = None
        for (held, draft), verdict in zip(taking, verdicts, strict=True):
            if verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}:
                held.taken(draft, verdict)
                taken.append(held)
            else:
                held.untaken()
                if verdict.outcome is Outcome.LOST:
                    lost = refusal(held.session.session_id, verdict, draft.group.entries[0].seq - 1)
        if lost is not None:
            for held in taken:
                self._sent(held.release())
            raise lost
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
        while True:
            async with self._starting:
                if self._lifeline is None or not self._lifeline.usable:
                    starting = Lifeline(self._store, self._tidy, **self._timing)
                    await starting.start()
                    self._lifeline = starting
                lifeline = self._lifeline
            with suppress(LeaseLost):  # it was declared dead while we waited
                await lifeline.ready()
                return lifeline

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

    def _tell_holders(self) -> None:
        """They stay behind, in the caller's hands."""
        for holder in [] if self._lifeline is None else list(self._lifeline.holders.values()):
            holder.lose(LeaseLost("its manager was closed: another worker may have the session now"))


def _heard(alive: asyncio.Future[Lifeline]) -> None:
    """Why a worker could not be registered matters to nobody whose session cannot be taken: asyncio need not tell."""
    if not alive.cancelled():
        alive.exception()
