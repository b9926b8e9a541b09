"""Background work of an open manager: takes over orphans, fails sessions without a heartbeat, thins
histories, and purges sessions that ended long ago.

It runs in the manager's event loop, does nothing until it is started, and sends one query per beat when all is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import NamedTuple

from saveslot.errors import InvalidInput, SaveslotError
from saveslot.manager.claims import claim
from saveslot.manager.clocks import Clocks
from saveslot.manager.gc import collect, wanted
from saveslot.manager.sweep import sweep
from saveslot.manager.thin import thin_each
from saveslot.session.engine import Space
from saveslot.session.held import Held
from saveslot.session.worker import jittered
from saveslot.stores.wire.loops import stopped
from saveslot.values.checks import Data, Span, as_count, as_label, as_span
from saveslot.values.log import as_age

LOG = logging.getLogger("saveslot")
# Seconds between sweeps, or a tenth of `stale_after` if that is less.
SWEEP = 60.0
# Seconds between runs of thinning and garbage collection, which read all sessions.
TIDY = 3600.0
# Seconds between runs of the store's own upkeep.
TEND = 3600.0

Takeover = Callable[[Held], Awaitable[object]]


class Plan(NamedTuple):
    takeover: Takeover | None
    agent_type: str | None
    limit: int
    released: bool
    stale_after: Span | None
    thin: bool
    gc: bool
    gc_after: Span | None


class Keeper:
    def __init__(self, sessions: Space) -> None:
        self._sessions = sessions
        self._beat = sessions.engine.timing["beat"]
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._takeovers: dict[asyncio.Task[None], Held] = {}
        self._next_sweep = self._next_upkeep = 0.0
        self._clocks: Clocks | None = None  # only where ages are measured by this machine's clock
        counted = ("taken_over", "swept", "thinned", "emptied", "removed", "freed_bytes", "errors")
        self._counts: Data = {**dict.fromkeys(counted, 0), "last_error": ""}

    def __repr__(self) -> str:
        return f"<Keeper {self._sessions.namespace}{' running' if self.stats['running'] else ''}>"

    async def start(
        self,
        *,
        takeover: Takeover | None = None,
        agent_type: str | None = None,
        limit: int = 4,
        released: bool = False,
        stale_after: Span | None = None,
        thin: bool = True,
        gc: bool = False,
        gc_after: Span | None = None,
        tidy_every: Span = TIDY,
    ) -> None:
        """Run in the background until `stop` or the manager's `close`.

        `takeover(held)` is called with each session that `claim` would return (`released`: also with sessions without
        an owner), at most `limit` at a time. When it returns, the session is released; when it raises, the session is
        claimed again later, as after any hold. Sessions without a heartbeat for `stale_after` are failed, as by
        `cleanup_stale_sessions`. Every `tidy_every` seconds, `thin` runs `thin_all`, `gc` purges deleted sessions after
        their grace, and `gc_after` also those that ended that long ago.
        """
        if takeover is not None and not callable(takeover):
            raise InvalidInput("takeover", f"must be a function that takes a Held, not {type(takeover).__name__}")
        if takeover is None and stale_after is None and gc_after is None and not (thin or gc):
            raise InvalidInput("keeper", "has nothing to do; pass takeover, stale_after, thin, gc or gc_after")
        tidy_every = as_span(tidy_every, "tidy_every")
        if not tidy_every:
            raise InvalidInput("tidy_every", "must be more than 0 s")
        limit = as_count(limit, "limit", 1)
        agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
        for name, age in (("stale_after", stale_after), ("gc_after", gc_after)):
            if age is not None:
                as_age(age, name)
        await self.stop()
        self._next_sweep = 0.0
        self._clocks = Clocks() if self._sessions.engine.vault.traits.local else None
        gc = gc or gc_after is not None
        plan = Plan(takeover, agent_type, limit, released, stale_after, thin, gc, gc_after)
        self._task = asyncio.create_task(self._keep(plan, self._round, self._beat))
        if thin or gc:
            self._tidying = asyncio.create_task(self._keep(plan, self._tidy, tidy_every))  # not awaited

    async def stop(self) -> None:
        """Stop the background work. Running takeovers are cancelled; other workers may claim their sessions."""
        loops = (self._task, self._tidying)
        self._task = self._tidying = None
        await stopped(*loops)
        takeovers = dict(self._takeovers)
        await stopped(*takeovers)
        # A takeover that was cancelled before it began; and a claim may have been cancelled.
        await asyncio.gather(*(held.give_back() for held in takeovers.values()))
        await self._sessions.engine.settled()

    async def tend(self) -> None:
        """Run the store's upkeep: PostgreSQL's partitions for the months ahead. A running keeper does so hourly."""
        await self._sessions.engine.vault.tend()

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
        room = plan.limit - len(self._takeovers)
        if plan.takeover is not None and room > 0:
            for held in await claim(self._sessions, plan.agent_type, room, released=plan.released):
                self._counts["taken_over"] += 1
                task = asyncio.create_task(self._take_over(plan.takeover, held))
                self._takeovers[task] = held
                task.add_done_callback(self._takeovers.pop)
        now = asyncio.get_running_loop().time()
        if plan.stale_after is not None and now >= self._next_sweep and self._trusted():
            self._next_sweep = now + min(SWEEP, as_span(plan.stale_after, "stale_after") / 10)
            self._counts["swept"] += await sweep(self._sessions, plan.stale_after, self._trusted)
        if now >= self._next_upkeep:
            self._next_upkeep = now + TEND
            await self.tend()

    async def _tidy(self, plan: Plan) -> None:
        if self._clocks is not None:
            await self._clocks.calm()
        if plan.thin:
            done = await thin_each(self._sessions, trusted=self._trusted)
            self._count(zip(("thinned", "emptied", "freed_bytes"), done, strict=True))
        if plan.gc:
            garbage = await collect(self._sessions, wanted(self._sessions, plan.gc_after), trusted=self._trusted)
            self._count([("removed", garbage.count), ("freed_bytes", garbage.bytes)])

    def _trusted(self) -> bool:
        """False after a jump of the clock that ages are measured by. Asked between finding and removing, too."""
        return self._clocks is None or not self._clocks.left()

    def _count(self, done: Iterable[tuple[str, int]]) -> None:
        for name, number in done:
            self._counts[name] += number

    async def _take_over(self, takeover: Takeover, held: Held) -> None:
        """Call the function once. If it raises, the session is an orphan again, and claimed later."""
        try:
            async with held:
                returned = takeover(held)
                if isawaitable(returned):
                    await returned
        except Exception as exc:  # noqa: BLE001  (the caller's code may raise anything; other takeovers continue)
            self._trouble(f"takeover of session {held.session.session_id}", exc)

    def _trouble(self, what: str, exc: Exception) -> None:
        # No caller awaits background work, so report in `stats` and the log. Ids only, never content.
        self._counts["errors"] += 1
        self._counts["last_error"] = f"{what}: {type(exc).__name__}"
        LOG.warning("%s: %s", what, type(exc).__name__, exc_info=exc if isinstance(exc, SaveslotError) else None)
