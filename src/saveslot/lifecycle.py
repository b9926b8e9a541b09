"""Which state may follow which. The one table; every verb of every door asks it."""

from __future__ import annotations

from enum import StrEnum

from saveslot.errors import InvalidTransition


class SessionState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


ACTIVE, PAUSED, COMPLETED, FAILED = SessionState

# verb -> the state it leads to, from each state that allows it. A failed session is taken up again only on purpose
# (recover, rollback); a completed one never: fork it.
TRANSITIONS: dict[str, dict[SessionState, SessionState]] = {
    "checkpoint": {ACTIVE: ACTIVE, PAUSED: PAUSED},
    "pause": {ACTIVE: PAUSED},
    "resume": {PAUSED: ACTIVE, ACTIVE: ACTIVE},
    "complete": {ACTIVE: COMPLETED, PAUSED: COMPLETED},
    "fail": {ACTIVE: FAILED, PAUSED: FAILED},
    "recover": {FAILED: ACTIVE},
    "rollback": {ACTIVE: ACTIVE, PAUSED: PAUSED, FAILED: ACTIVE},
    "hold": {ACTIVE: ACTIVE, PAUSED: PAUSED},
}

_TARGET = {"pause": PAUSED, "complete": COMPLETED, "fail": FAILED}

_HINT = {
    ACTIVE: "it is active; this needs a failed one",
    PAUSED: "it is paused; resume it first",
    COMPLETED: "a completed session stays as it is; fork it to go on from there",
    FAILED: "a failed session is taken up again by recover or rollback",
}


def follow(state: SessionState, verb: str) -> SessionState:
    """The state after `verb`, or `InvalidTransition` naming both states."""
    after = TRANSITIONS[verb].get(state)
    if after is None:
        raise InvalidTransition(verb, state.value, _TARGET.get(verb, ACTIVE).value, _HINT[state])
    return after
