"""How many Python calls the verbs make that agents make most: a ceiling, so that they do not grow unnoticed."""

from __future__ import annotations

import pytest

from bench.trace import walks

# Calls of functions of the package, and those that enter another module. Raise one only for what is worth its time: a
# call costs about 0.3 us (`python -m bench.trace -v` lists them).
CEILINGS = {
    "checkpoint": (105, 36),
    "held.checkpoint": (98, 30),
    "held.checkpoint append=": (128, 36),
    "get_session": (162, 40),
    "get_data": (350, 104),
}


@pytest.mark.parametrize("verb", CEILINGS)
async def test_a_verb_walks_no_further_than_it_did(verb: str) -> None:
    """A verb makes no more calls in the package, and changes module no more often, than its ceilings say."""
    walk = (await walks("memory:"))[verb]
    calls, changes = CEILINGS[verb]
    assert walk.count <= calls
    assert walk.crossings.total() <= changes
