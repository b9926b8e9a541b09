"""Which worker holds what. A session that has ended has no owner, so only active and paused ones are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from saveslot.manager.reading import WIDE_PAGE, find
from saveslot.session.engine import Space
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data
from saveslot.values.lifecycle import ACTIVE, PAUSED


class Holder(NamedTuple):
    """A worker that holds sessions. `left`: seconds until others may take them over, 0 if they may."""

    worker: str
    left: float
    sessions: list[AgentSession]

    @property
    def alive(self) -> bool:
        return self.left > 0

    def to_dict(self) -> Data:
        ids = [session.session_id for session in self.sessions]
        return {"worker": self.worker, "alive": self.alive, "left": self.left, "sessions": ids}


async def owned(
    sessions: Space,
    *,
    worker: str | None = None,
    alive: bool | None = None,
    states: Iterable[str] | None = None,
    **wanted: Any,
) -> list[AgentSession]:
    """Return the sessions that have an owner, newest first: of this worker, and of living or dead ones only.

    `wanted` are conditions of `find`, and its order.
    """
    matches: list[AgentSession] = []
    open_states = [state for state in (ACTIVE, PAUSED) if states is None or state.value in states]
    changed = wanted.get("order") == "changed"
    for state in [None] if changed and len(open_states) > 1 else open_states:
        after: str | None = None
        while True:
            page = await find(sessions, state=state, limit=WIDE_PAGE, after=after, **wanted)
            matches += [session for session in page if _is_owned(session, worker, alive)]
            after = page.next
            if after is None:
                break
    return matches if changed else sorted(matches, key=lambda session: session.created_at, reverse=True)


def _is_owned(session: AgentSession, worker: str | None, alive: bool | None) -> bool:  # noqa: FBT001  (private)
    owner = session.owner
    if owner is None or not owner.worker or worker not in {None, owner.worker}:  # without a name: left by an error
        return False
    return alive is None or alive == (owner.left > 0)


async def holders(sessions: Space) -> list[Holder]:
    """Return the workers that hold sessions of this namespace: the dead first, then those with the most sessions."""
    held: dict[str, list[AgentSession]] = {}
    for session in await owned(sessions):
        if session.owner is not None and session.owner.worker:  # not one that an error released
            held.setdefault(session.owner.worker, []).append(session)
    rows = [Holder(worker, _left(theirs), theirs) for worker, theirs in held.items()]
    return sorted(rows, key=lambda holder: (holder.alive, -len(holder.sessions), holder.worker))


def _left(held: Sequence[AgentSession]) -> float:
    return max(session.owner.left for session in held if session.owner is not None)
