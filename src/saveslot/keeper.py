"""Background work of an open manager: finishing what dead workers left, failing what gives no sign of life.

It runs in the manager's event loop, does nothing until it is started, and asks one question a beat when all is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

from saveslot.errors import InvalidInput, SaveslotError
from saveslot.held import Held
from saveslot.holding import SessionHolder
from saveslot.lifeline import jittered
from saveslot.model import Data
from saveslot.stores import Tended

LOG = logging.getLogger("saveslot")
# Seconds between two sweeps at most; a tenth of `stale_after` where that is less.
SWEEP = 60.0
# Seconds between two upkeeps of the store.
TEND = 3600.0

Takeover = Callable[[Held], Awaitable[object]]


class Plan(NamedTuple):
    takeover: Takeover | None
    agent_type: str | None
    limit: int
    released: bool
    stale_after: timedelta | None


class Keeper:
    def __init__(
        self, holder: SessionHolder, sweep: Callable[[timedelta], Awaitable[int]], beat: float, store: object = None
    ) -> None:
        self._holder = holder
        self._sweep = sweep
        self._store = store
        self._beat = beat
        self._task: asyncio.Task[None] | None = None
        self._takeovers: set[asyncio.Task[None]] = set()
        self._next_sweep = self._next_upkeep = 0.0
        self._counts: Data = {"taken_over": 0, "swept": 0, "errors": 0, "last_error": ""}

    async def start(
        self,
        *,
        takeover: Takeover | None = None,
        agent_type: str | None = None,
        limit: int = 4,
        released: bool = False,
        stale_after: timedelta | None = None,
    ) -> None:
        """Go on in the background until `stop` or the manager's `close`.

        `takeover(held)` is called with each session of a dead worker (`released`: also with those that nobody holds),
        at most `limit` of them at a time; when it returns the session is let go. Sessions without a sign of life for
        `stale_after` become failed, as by `cleanup_stale_sessions`.
        """
        if takeover is None and stale_after is None:
            raise InvalidInput("keeper", "give it something to do: takeover or stale_after")
        if limit < 1:
            raise InvalidInput("limit", "must be 1 or more")
        await self.stop()
        self._next_sweep = 0.0
        self._task = asyncio.create_task(self._keep(Plan(takeover, agent_type, limit, released, stale_after)))

    async def stop(self) -> None:
        """End it. Takeovers under way are cancelled, and their sessions let go."""
        tasks = [*([] if self._task is None else [self._task]), *self._takeovers]
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def tend(self) -> None:
        """The upkeep of a store that needs some: PostgreSQL's partitions for months ahead. Hourly, while it runs."""
        if isinstance(self._store, Tended):
            await self._store.tend()

    @property
    def stats(self) -> Data:
        running = self._task is not None and not self._task.done()
        return {"running": running, "working_on": len(self._takeovers), **self._counts}

    async def _keep(self, plan: Plan) -> None:
        while True:
            try:
                await self._round(plan)
            except SaveslotError as exc:
                self._trouble("keeper", exc)
            await asyncio.sleep(jittered(self._beat))

    async def _round(self, plan: Plan) -> None:
        room = plan.limit - len(self._takeovers)
        if plan.takeover is not None and room > 0:
            for held in await self._holder.claim(plan.agent_type, room, released=plan.released):
                self._counts["taken_over"] += 1
                task = asyncio.create_task(self._take_over(plan.takeover, held))
                self._takeovers.add(task)
                task.add_done_callback(self._takeovers.discard)
        now = asyncio.get_running_loop().time()
        if plan.stale_after is not None and now >= self._next_sweep:
            self._next_sweep = now + min(SWEEP, plan.stale_after.total_seconds() / 10)
            self._counts["swept"] += await self._sweep(plan.stale_after)
        if now >= self._next_upkeep:
            self._next_upkeep = now + TEND
            await self.tend()

    async def _take_over(self, takeover: Takeover, held: Held) -> None:
        try:
            async with held:
                await takeover(held)
        except Exception as exc:  # noqa: BLE001  (the caller's code may raise anything; the others go on)
            self._trouble(f"takeover of session {held.session.session_id}", exc)

    def _trouble(self, what: str, exc: Exception) -> None:
        # Nobody waits for background work: `stats` and the log tell. Ids only, never content.
        self._counts["errors"] += 1
        self._counts["last_error"] = f"{what}: {type(exc).__name__}"
        LOG.warning("%s: %s", what, type(exc).__name__, exc_info=exc if isinstance(exc, SaveslotError) else None)
