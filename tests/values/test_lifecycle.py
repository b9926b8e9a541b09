"""Every verb follows one table of transitions."""

from __future__ import annotations

import pytest

from saveslot import AgentSession, InvalidTransition, SessionState
from saveslot.values.lifecycle import TRANSITIONS, follow


def in_state(state: SessionState) -> AgentSession:
    return AgentSession(agent_type="tutor", state=state)


VERBS = {
    "checkpoint": lambda session: session.checkpoint("x", {}),
    "pause": lambda session: session.pause(),
    "resume": lambda session: session.resume(),
    "complete": lambda session: session.complete(),
    "fail": lambda session: session.fail("boom"),
    "recover": lambda session: session.recover(),
}


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_from_every_state_follows_the_one_table(state, verb):
    """A verb leads where the table says, or raises naming both states and changes nothing."""
    session = in_state(state)
    after = TRANSITIONS[verb].get(state)
    if after is None:
        with pytest.raises(InvalidTransition) as caught:
            VERBS[verb](session)
        assert state.value in str(caught.value)
        assert caught.value.source == state.value
        assert caught.value.target in str(caught.value)
        assert (session.state, session.checkpoints) == (state, [])
    else:
        VERBS[verb](session)
        assert session.state == after


def test_a_completed_session_never_goes_on_and_a_failed_one_only_on_purpose():
    """From completed nothing leads on; from failed only recover and rollback do."""
    assert not [verb for verb in TRANSITIONS if SessionState.COMPLETED in TRANSITIONS[verb]]
    assert {verb for verb in TRANSITIONS if SessionState.FAILED in TRANSITIONS[verb]} == {"recover", "rollback"}
    assert follow(SessionState.FAILED, "rollback") is SessionState.ACTIVE
