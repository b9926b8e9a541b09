"""The keepers of a server: one for each namespace that has sessions, as `saveslot keeper --all-namespaces`."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import msgspec

from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.manager.keeper import TIDY
from saveslot.session.retention import DEFAULT, Rules
from saveslot.stores.wire.loops import running, stopped

# Seconds between two looks for new namespaces; and how many are kept.
LOOK, NAMESPACES = 30.0, 10_000

log = logging.getLogger("saveslot.server")


class Retaining(msgspec.Struct, frozen=True):
    """What the keepers do: thin by these rules, and purge sessions that were deleted a week ago."""

    rules: Rules = DEFAULT
    gc_after: timedelta | None = None  # also sessions that ended so long ago
    tidy_every: timedelta = timedelta(seconds=TIDY)


class Keepers:
    def __init__(self, sessions: SessionManager, plan: Retaining) -> None:
        self._sessions = sessions
        self._plan = plan
        self._kept: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = running().create_task(self._keep())

    async def stop(self) -> None:
        """Stop looking for namespaces. Closing the manager stops the keepers."""
        await stopped(self._task)

    async def _keep(self) -> None:
        while True:
            try:
                for name in {*await self._sessions.namespaces(limit=NAMESPACES)} - self._kept:
                    keeper = self._sessions.of(name).keeper
                    await keeper.start(
                        thin=True, gc=True, gc_after=self._plan.gc_after, tidy_every=self._plan.tidy_every
                    )
                    self._kept.add(name)
            except SaveslotError as exc:  # the store may be back at the next look
                log.warning("no namespaces to keep: %s", exc)
            await asyncio.sleep(LOOK)
