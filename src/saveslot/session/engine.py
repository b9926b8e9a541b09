"""State that all namespaces of one store share in this process: vault, logs, worker, calls and running writes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from saveslot import codec
from saveslot.errors import Corrupt, LeaseLost, SaveslotError
from saveslot.session import attempts
from saveslot.session.cache import Cache
from saveslot.session.change import Passerby
from saveslot.session.known import KnownEntries
from saveslot.session.lookup import Lookup
from saveslot.session.model import AgentSession, warn_of_staged
from saveslot.session.retention import DEFAULT, Rules, checked
from saveslot.session.retries import Calls, Scope
from saveslot.session.vault import Vault
from saveslot.session.worker import Holder, Worker, timing
from saveslot.stores import Store
from saveslot.stores.around.cached import CachedAnswers
from saveslot.stores.around.metered import metered
from saveslot.values.checks import MAX_NAME, Data, Span, as_count, as_name, as_span
from saveslot.values.log import Outcome, Query
from saveslot.values.versions import Version

R = TypeVar("R")

# Lower bound of `max_state_bytes`: an empty session takes 41 bytes.
LEAST_STATE = 64
# Sessions claimed or released per transaction.
CLAIM_BATCH = 500


class Stops(Protocol):
    """Background work that `close` stops: a keeper."""

    async def stop(self) -> None: ...


class Engine:
    def __init__(
        self,
        store: Store,
        keyring: codec.Keyring | None = None,
        *,
        max_state_bytes: int = codec.MAX_STATE,
        worker_beat: Span = 5.0,
        worker_ttl: Span = 20.0,
        max_block: Span = 300.0,
        retention: Rules = DEFAULT,
        backoff: Span = attempts.BACKOFF,
        max_attempts: int | None = attempts.MAX_ATTEMPTS,
    ) -> None:
        self.limit = as_count(max_state_bytes, "max_state_bytes", LEAST_STATE)
        self.timing = timing(worker_beat, worker_ttl, max_block)
        self.rules = checked(retention)
        self.backoff = as_span(backoff, "backoff")
        self.max_attempts = None if max_attempts is None else as_count(max_attempts, "max_attempts", 1)
        self.metered = metered(store)
        self.vault = Vault(self.metered, keyring)
        self.idle: dict[bytes, bytes] = {}  # by session key: the newest entry when there was nothing to thin
        self.keepers: dict[str, Stops] = {}  # by namespace
        self.known = KnownEntries()
        self._reset()
        _engines.add(self)

    def _reset(self) -> None:
        self.known.clear()
        self.cache = Cache(self.vault, self.limit, self.known)
        self.answers = CachedAnswers(self.vault)
        self.calls = Calls()
        self.running: set[asyncio.Future[Any]] = set()
        self._returning: set[asyncio.Future[Any]] = set()  # sessions taken for callers that left
        self.worker: Worker | None = None
        self._starting = asyncio.Lock()
        self._looking: asyncio.Future[None] | None = None

    def forked(self) -> None:
        """Reset in a forked child: no task of the parent runs here, so nothing may wait for one. Held sessions stay the
        parent's.
        """
        worker = self.worker
        self.keepers.clear()
        self._reset()
        if worker is not None:
            worker.forked()

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
        """Run `work` as a task that outlives its caller; `close` waits for it."""
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    def give_back(self, work: Coroutine[Any, Any, Any]) -> None:
        """Release sessions whose caller left before it got them."""
        task = self.start(work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def given_back(self) -> None:
        """Wait for those releases: a repeated `take` or `claim` must not find its own first attempt in its way."""
        if self._returning:
            await asyncio.wait(self._returning)

    async def settled(self) -> None:
        """Wait for the writes that are under way now, among them releases on behalf of cancelled callers."""
        if self.running:
            await asyncio.wait(self.running)

    async def leave(self) -> None:
        """Finish the writes under way. Sessions that are still held become orphans at once."""
        for keeper in self.keepers.values():
            await keeper.stop()
        await self.settled()
        if self.worker is not None:
            await self.worker.leave()
            for holder in list(self.worker.holders.values()):
                holder.lose(LeaseLost("its manager was closed; another worker may own the session now"))

    async def close(self) -> None:
        """Leave, then close the store."""
        await self.leave()
        await self.vault.close()
        warn_of_staged(id(self.vault))

    async def alive(self) -> Worker:
        """Return this process's worker once it is known to be alive; replace one that was declared dead."""
        while True:
            async with self._starting:
                if self.worker is None or not self.worker.usable:
                    starting = Worker(self.vault, self._tidy, **self.timing)
                    await starting.start()
                    self.worker = starting
                worker = self.worker
            with suppress(LeaseLost):  # declared dead while this caller waited
                await worker.ready()
                return worker

    def _tidy(self, worker: Worker) -> None:
        """After a heartbeat, release sessions that the store counts as this worker's and no caller holds; and look
        whether one that a caller holds was cancelled.
        """
        namespaces, worker.strays = worker.strays, set()
        for namespace in namespaces:
            self.start(self._release_strays(worker, namespace))
        if worker.holders and (self._looking is None or self._looking.done()):
            self._looking = self.start(self._look(list(worker.holders.values())))

    async def tell(self, lease: bytes | None) -> None:
        """Let the holder of this lease, if it is in this process, notice at once what was just written."""
        if self.worker is not None and (holder := self.worker.holders.get(lease or b"")) is not None:
            await self._look([holder])

    async def _look(self, holders: list[Holder]) -> None:
        with suppress(SaveslotError):  # again after the next heartbeat; a verb of the holder learns of it anyway
            for start in range(0, len(holders), CLAIM_BATCH):
                part = holders[start : start + CLAIM_BATCH]
                heads = await self.vault.heads([holder.key for holder in part])
                for holder, head in zip(part, heads, strict=True):
                    if head is not None:
                        await holder.look(head)

    async def _release_strays(self, worker: Worker, namespace: str) -> None:
        vault = self.vault
        notes = {lease: note for lease, (where, note) in worker.parting.items() if where == namespace}
        try:
            rows = await vault.find(Query(namespace=namespace, owner=worker.row.id), None, CLAIM_BATCH)
            strays = [row.key for row in rows if row.lease not in worker.holders]
            ours = [
                head
                for head in await vault.heads(strays)
                if head is not None
                and not isinstance(head.row.locked, Corrupt)
                and head.row.owner == worker.row.id
                and head.row.lease not in worker.holders
            ]
            drafts = [await attempts.parting(vault, head, notes.get(head.row.lease or b"", ...)) for head in ours]
            verdicts = await vault.append([draft.group for draft in drafts])
            for head, draft, verdict in zip(ours, drafts, verdicts, strict=True):
                if verdict.outcome is Outcome.APPENDED:
                    self.known.of((namespace, head.row.session_id)).wrote(draft.group, blind=True)
            missed = any(verdict.outcome is Outcome.CONFLICT for verdict in verdicts)
            if missed or len(rows) == CLAIM_BATCH:
                worker.strays.add(namespace)
            else:
                for lease in notes:
                    worker.parting.pop(lease, None)
        except SaveslotError:
            worker.strays.add(namespace)  # retry after the next heartbeat


# Attributes of a space that are not for users: `dir`, which a REPL completes from, omits them.
INTERNAL = frozenset({"calls", "engine", "lookup", "reader", "running"})


class Space:
    """One namespace of an engine. A second one adds no thread, connection or worker row."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace: str = as_name(namespace, "namespace")
        self.lookup = Lookup(engine.vault, self.namespace)
        self.reader = Lookup(engine.vault, self.namespace, engine.known)  # for callers: what it reads, they have seen

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    @property
    def calls(self) -> Calls:
        return self.engine.calls

    @property
    def running(self) -> set[asyncio.Future[Any]]:
        return self.engine.running

    @property
    def worker(self) -> Data | None:
        """Name, liveness and counts of this process's worker; None until it first held a session."""
        worker = self.engine.worker
        if worker is None:
            return None
        return {"name": worker.name, "alive": worker.alive, "held": len(worker.holders), "beats": worker.beats}


def scope_of(sessions: Space, target: object) -> Scope:
    return sessions.namespace, target.session_id if isinstance(target, AgentSession) else str(target)[:MAX_NAME]


def passerby(
    sessions: Space, session_id: str, value: AgentSession | None = None, version: Version | None = None, **how: bool
) -> Passerby:
    """Return the author of a write to a session that this process does not hold; `how` as in `Passerby`."""
    engine = sessions.engine
    return Passerby(sessions.lookup, engine.cache, engine.calls, session_id, value, version, **how)


_engines: WeakSet[Engine] = WeakSet()


def _forked() -> None:
    for engine in list(_engines):
        engine.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
