"""Session states and the transitions between them. Every verb of every API checks this one table."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from saveslot.errors import InvalidTransition
from saveslot.values import advice
from saveslot.values.kinds import FOLLOWED


class SessionState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


ACTIVE, PAUSED, COMPLETED, FAILED = SessionState

# For each verb: the states that allow it, and the state it leads to. A failed session continues only on purpose
# (recover, rollback); a completed one never does: fork it.
TRANSITIONS: dict[str, dict[SessionState, SessionState]] = {
    "checkpoint": {ACTIVE: ACTIVE, PAUSED: PAUSED},
    "pause": {ACTIVE: PAUSED},
    "resume": {PAUSED: ACTIVE, ACTIVE: ACTIVE},
    "complete": {ACTIVE: COMPLETED, PAUSED: COMPLETED},
    "fail": {ACTIVE: FAILED, PAUSED: FAILED},
    "recover": {FAILED: ACTIVE},
    "cancel": {ACTIVE: FAILED, PAUSED: FAILED},  # at once, or as soon as its holder leaves it
    "rollback": {ACTIVE: ACTIVE, PAUSED: PAUSED, FAILED: ACTIVE},
    "hold": {ACTIVE: ACTIVE, PAUSED: PAUSED},
}

_TARGET = {"pause": PAUSED, "complete": COMPLETED, "fail": FAILED, "cancel": FAILED}

_HINT = {
    ACTIVE: "it is active; this needs a failed session",
    PAUSED: str(advice.PAUSED),
    COMPLETED: str(advice.COMPLETED),
    FAILED: str(advice.FAILED),
}

# `hold` meets ended sessions in programs that are run again: it says where their results are.
_HOLD_HINT = {COMPLETED: str(advice.RESULT), FAILED: str(advice.WHY_FAILED)}


def follow(state: SessionState, verb: str) -> SessionState:
    """Return the state after `verb`, or raise `InvalidTransition` with both states."""
    after = TRANSITIONS[verb].get(state)
    if after is None:
        hint = _HOLD_HINT[state] if verb == "hold" else _HINT[state]
        raise InvalidTransition(verb, state.value, _TARGET.get(verb, ACTIVE).value, hint)
    return after


def led_to(kinds: Iterable[int]) -> SessionState:
    """Return the state that the entries of a log lead to; those that change no state may be left out."""
    state = ACTIVE
    for kind in kinds:
        if (verb := FOLLOWED.get(kind)) is not None:
            state = TRANSITIONS[verb].get(state, state)
    return state
