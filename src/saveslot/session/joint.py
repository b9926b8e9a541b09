"""Drafts of several sessions that land in one commit, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saveslot.errors import SaveslotError, Unavailable
from saveslot.session.draft import Draft
from saveslot.session.log import Log
from saveslot.stores import Store
from saveslot.values.log import Outcome


class Joint:
    def __init__(self, store: Store, parts: Sequence[tuple[Log, Draft]]) -> None:
        self._store = store
        self._parts = parts
        self.known = False  # its outcome
        self.changes: Sequence[Any] = ()  # that the caller made
        for _, draft in parts:
            draft.joint = self

    async def send(self) -> dict[Log, SaveslotError]:
        """Send all of them; return the errors of those that were refused. Then the others did not land either."""
        for log, draft in self._parts:
            log.sent(draft)
        return await self._sent()

    async def landed(self) -> bool:
        """Send them again if their outcome is unknown; return whether they are stored."""
        if not self.known:
            await self._sent()
        return all(draft.verdict is not None for _, draft in self._parts)

    async def settle(self, log: Log) -> None:
        """Resend them for one of their logs; raise if that one was refused."""
        why = (await self._sent()).get(log)
        if why is not None:
            raise why

    async def _sent(self) -> dict[Log, SaveslotError]:
        try:
            verdicts = await self._store.append([draft.group for _, draft in self._parts], together=True)
        except Unavailable:
            raise  # the outcome is unknown
        except SaveslotError:
            self.known = True
            for log, draft in self._parts:
                if log.awaits(draft):
                    log.undo()
            raise
        self.known = True
        errors: dict[Log, SaveslotError] = {}
        for (log, draft), verdict in zip(self._parts, verdicts, strict=True):
            if not log.awaits(draft):
                continue  # another caller settled them first, and may have written more
            if verdict.outcome is Outcome.SKIPPED:
                log.undo()
                continue
            try:
                log.answered(draft, verdict)
            except SaveslotError as exc:
                log.undo()
                errors[log] = exc
        return errors
