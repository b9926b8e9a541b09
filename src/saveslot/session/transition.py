"""Changes of a session's state by its verbs, the same for a holder and for a caller by id."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from saveslot.session.draft import Draft
from saveslot.session.log import Log
from saveslot.session.requests import entry_of, request
from saveslot.stores import Store
from saveslot.values.checks import Data, as_data
from saveslot.values.kinds import VERBS, Kind
from saveslot.values.lifecycle import ACTIVE, follow


class Transition(msgspec.Struct, frozen=True):
    """One such change: its entry, and the request of the call that makes it."""

    kind: Kind
    note: Data
    request: bytes

    @classmethod
    def pause(cls, key: str | None) -> Self:
        return cls(Kind.PAUSED, {"previous_state": ACTIVE.value}, request(key, "pause", {}))

    @classmethod
    def resume(cls, key: str | None) -> Self:
        return cls(Kind.RESUMED, {}, request(key, "resume", {}))

    @classmethod
    def complete(cls, result: Any, key: str | None) -> Self:
        # A copy: a caller that was cancelled may change it.
        note = as_data({"result": {} if result is None else result}, "data")
        return cls(Kind.COMPLETED, note, request(key, "complete", {"result": result}))

    @classmethod
    def fail(cls, error: str, details: Data | None, key: str | None) -> Self:
        note = as_data({"error": error, "details": details or {}}, "data")
        return cls(Kind.FAILED, note, request(key, "fail", {"error": error, "error_details": details}))

    async def made(self, store: Store, key: bytes) -> bool:
        """Return whether the same call changed the session before; `InvalidInput` if another call used its key."""
        return await entry_of(store, key, self.request) is not None

    def draft(self, log: Log) -> Draft | None:
        """Draft the entry; None if it resumes an active session."""
        state = follow(log.at.state, VERBS[self.kind])
        if self.kind is Kind.RESUMED and state is log.at.state:
            return None
        draft = log.draft()
        draft.lifecycle(self.kind, f"session_{self.kind.label}", self.note)
        draft.group.entries[-1].request = self.request
        draft.become(state)
        return draft
