"""Background work of an open manager: finishing what dead workers left, failing what gives no sign of life, thinning
histories, removing what ended long ago.

It runs in the manager's event loop, does nothing until it is started, and asks one question a beat when all is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from inspect import isawaitable
from typing import NamedTuple

from saveslot.errors import InvalidInput, LeaseLost, NotFound, SaveslotError
from saveslot.held import Held
from saveslot.holding import SessionHolder
from saveslot.lifeline import jittered
from saveslot.log import as_age
from saveslot.loops import stopped
from saveslot.model import Data, as_count, as_label, as_span
from saveslot.stores import Tended

LOG = logging.getLogger("saveslot")
# Seconds between two sweeps at most; a tenth of `stale_after` where that is less.
SWEEP = 60.0
# Seconds between two looks at what may be thinned or removed: all sessions are looked at.
TIDY = 3600.0
# Seconds between two upkeeps of the store.
TEND = 3600.0
# Seconds until a takeover that raises again and again is tried once more, at most; and how many may wait for that.
LONGEST, MOST = 60.0, 100

Takeover = Callable[[Held], Awaitable[object]]


class Chores(NamedTuple):
    """What a manager lets its keeper do."""

    sweep: Callable[[timedelta], Awaitable[int]]
    thin: Callable[[], Awaitable[tuple[int, int, int]]]  # checkpoints marked, frames emptied, their bytes
    collect: Callable[[timedelta | None], Awaitable[tuple[int, int]]]  # sessions removed, their bytes


class Plan(NamedTuple):
    takeover: Takeover | None
    agent_type: str | None
    limit: int
    released: bool
    stale_after: timedelta | None
    thin: bool
    gc: bool
    gc_after: timedelta | None


class Keeper:
    def __init__(self, holder: SessionHolder, chores: Chores, beat: float, store: object = None) -> None:
        self._holder = holder
        self._chores = chores
        self._store = store
        self._beat = beat
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._takeovers: set[asyncio.Task[None]] = set()
        self._waiting = 0  # those of them that will be tried again
        self._turns = asyncio.Semaphore()
        self._let_go = True
        self._next_sweep = self._next_upkeep = 0.0
        counted = ("taken_over", "swept", "thinned", "emptied", "removed", "freed_bytes", "errors")
        self._counts: Data = {**dict.fromkeys(counted, 0), "last_error": ""}

    async def start(
        self,
        *,
        takeover: Takeover | None = None,
        agent_type: str | None = None,
        limit: int = 4,
        released: bool = False,
        stale_after: timedelta | None = None,
        thin: bool = True,
        gc: bool = False,
        gc_after: timedelta | None = None,
        tidy_every: float = TIDY,
    ) -> None:
        """Go on in the background until `stop` or the manager's `close`.

        `takeover(held)` is called with each session of a dead worker (`released`: also with those that nobody holds),
        at most `limit` of them at a time; when it returns the session is let go, and when it raises it is called again,
        later and later. Sessions without a sign of life for `stale_after` become failed, as by
        `cleanup_stale_sessions`. Every `tidy_every` seconds: `thin` does as `thin_all`, `gc` removes deleted sessions
        after their grace, `gc_after` also those that ended so long ago.
        """
        if takeover is not None and not callable(takeover):
            raise InvalidInput("takeover", f"must be a function of a held session, not {type(takeover).__name__}")
        if takeover is None and stale_after is None and gc_after is None and not (thin or gc):
            raise InvalidInput("keeper", "give it something to do: takeover, stale_after, thin, gc or gc_after")
        tidy_every = as_span(tidy_every, "tidy_every")
        if not tidy_every:
            raise InvalidInput("tidy_every", "must be more than 0 s")
        limit = as_count(limit, "limit", 1)
        agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
        for name, age in (("stale_after", stale_after), ("gc_after", gc_after)):
            if age is not None:
                as_age(age, name)
        await self.stop()
        self._turns = asyncio.Semaphore(limit)
        self._next_sweep = 0.0
        gc = gc or gc_after is not None
        plan = Plan(takeover, agent_type, limit, released, stale_after, thin, gc, gc_after)
        self._task = asyncio.create_task(self._keep(plan, self._round, self._beat))
        if thin or gc:
            self._tidying = asyncio.create_task(self._keep(plan, self._tidy, tidy_every))  # nobody waits for it

    async def stop(self, *, let_go: bool = True) -> None:
        """End it. Takeovers under way are cancelled, and their sessions let go.

        Without `let_go` they stay this worker's, for another to take over once the manager is closed: `close` does so.
        """
        self._let_go = let_go
        loops, takeovers = (self._task, self._tidying), list(self._takeovers)
        self._task = self._tidying = None
        for task in takeovers:
            task.cancel()
        await stopped(*loops)
        await asyncio.gather(*takeovers, return_exceptions=True)

    async def tend(self) -> None:
        """The upkeep of a store that needs some: PostgreSQL's partitions for months ahead. Hourly, while it runs."""
        if isinstance(self._store, Tended):
            await self._store.tend()

    @property
    def stats(self) -> Data:
        running = self._task is not None and not self._task.done()
        return {"running": running, "working_on": len(self._takeovers), **self._counts}

    async def _keep(self, plan: Plan, work: Callable[[Plan], Awaitable[None]], every: float) -> None:
        while True:
            try:
                await work(plan)
            except SaveslotError as exc:
                self._trouble("keeper", exc)
            await asyncio.sleep(jittered(every))

    async def _round(self, plan: Plan) -> None:
        room = min(plan.limit - len(self._takeovers) + self._waiting, MOST - self._waiting)
        if plan.takeover is not None and room > 0:
            for held in await self._holder.claim(plan.agent_type, room, released=plan.released):
                self._counts["taken_over"] += 1
                task = asyncio.create_task(self._take_over(plan.takeover, held))
                self._takeovers.add(task)
                task.add_done_callback(self._takeovers.discard)
        now = asyncio.get_running_loop().time()
        if plan.stale_after is not None and now >= self._next_sweep:
            self._next_sweep = now + min(SWEEP, plan.stale_after.total_seconds() / 10)
            self._counts["swept"] += await self._chores.sweep(plan.stale_after)
        if now >= self._next_upkeep:
            self._next_upkeep = now + TEND
            await self.tend()

    async def _tidy(self, plan: Plan) -> None:
        if plan.thin:
            self._count(zip(("thinned", "emptied", "freed_bytes"), await self._chores.thin(), strict=True))
        if plan.gc:
            self._count(zip(("removed", "freed_bytes"), await self._chores.collect(plan.gc_after), strict=True))

    def _count(self, done: Iterable[tuple[str, int]]) -> None:
        for name, number in done:
            self._counts[name] += number

    async def _take_over(self, takeover: Takeover, held: Held) -> None:
        """Until it is done, or not ours any more: who let an unfinished one go would leave it to nobody."""
        wait, what = self._beat, f"takeover of session {held.session.session_id}"
        try:
            await held.__aenter__()
            while not await self._taken_over(takeover, held, what):
                self._waiting += 1
                try:
                    await asyncio.sleep(jittered(wait))
                finally:
                    self._waiting -= 1
                wait = min(2 * wait, LONGEST)
            await held.release()
        except asyncio.CancelledError:
            if self._let_go:
                await held.release()
            raise
        except SaveslotError as exc:
            self._trouble(what, exc)

    async def _taken_over(self, takeover: Takeover, held: Held, what: str) -> bool:
        """True when nothing is left to do."""
        async with self._turns:
            try:
                await held.refresh()
            except (LeaseLost, NotFound):
                return True  # it was ended, or is another's
            except SaveslotError as exc:
                self._trouble(what, exc)
                return False
            try:
                made = takeover(held)
                if isawaitable(made):
                    await made
            except Exception as exc:  # noqa: BLE001  (the caller's code may raise anything; the others go on)
                self._trouble(what, exc)
                return False
            return True

    def _trouble(self, what: str, exc: Exception) -> None:
        # Nobody waits for background work: `stats` and the log tell. Ids only, never content.
        self._counts["errors"] += 1
        self._counts["last_error"] = f"{what}: {type(exc).__name__}"
        LOG.warning("%s: %s", what, type(exc).__name__, exc_info=exc if isinstance(exc, SaveslotError) else None)
