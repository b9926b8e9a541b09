"""Sessions as small drawings."""

from __future__ import annotations

import pytest

from saveslot import InvalidInput
from saveslot.manager.shapes import MARKS, Mark, merged, shapes


async def test_a_shape_has_owners_and_marks(sessions, others):
    """Checkpoints, a takeover with the dead owner's last heartbeat, and a rollback with its target."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    held = await others.take("s")
    await held.checkpoint("one", {"n": 1})
    await others.engine.worker.leave()
    [before] = await shapes(sessions, ["s"])
    assert (before.orphaned, before.silent_s is not None) == (True, True)
    [held] = await sessions.claim()
    async with held:
        await held.checkpoint("two", {"n": 2})
        await held.step("ask", lambda: 1)
    await sessions.rollback("s", "one")
    [shape] = await shapes(sessions, ["s", "unknown", "s"])
    assert [mark.kind for mark in shape.marks] == [
        "created", "checkpoint", "taken", "checkpoint", "claimed", "checkpoint", "released", "rollback",
    ]  # fmt: skip
    assert shape.owners == [others.worker["name"]]  # two managers of one process
    assert [mark.owner for mark in shape.marks] == [None, None, 0, 0, 0, 0, None, None]
    assert shape.marks[-1].to == shape.marks[3].offset_s
    assert shape.marks[4].to <= shape.marks[4].offset_s
    assert (shape.orphaned, shape.from_seq, shape.state) == (False, 1, "active")
    assert shape.stored_bytes == (await sessions.summary("s"))["stored_bytes"] > sum(mark.bytes for mark in shape.marks)
    assert shape.to_dict()["marks"][0] == [0.0, "created", None, shape.marks[0].bytes, None]


async def test_long_logs_are_drawn_from_their_end(sessions):
    """At most 64 marks of the newest 128 entries; close checkpoints become one, which has the bytes of both."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    for n in range(140):
        await sessions.checkpoint("s", "turn", {"n": n})
    await sessions.pause("s")
    [shape] = await shapes(sessions, ["s"])
    entries = await sessions.entries("s", after=shape.from_seq - 1)
    assert (shape.from_seq, len(shape.marks), shape.marks[-1].kind) == (16, MARKS, "paused")
    assert sum(mark.bytes for mark in shape.marks) == sum(entry.size for entry in entries)
    with pytest.raises(InvalidInput, match="ids"):
        await shapes(sessions, [str(n) for n in range(101)])


def test_only_neighbouring_checkpoints_of_one_owner_are_merged():
    """The closest first; a rollback or another owner between them keeps them apart."""
    marks = [Mark(0, "checkpoint", 0, 1), Mark(1, "checkpoint", 0, 2), Mark(9, "checkpoint", 0, 4)]
    assert merged(marks, 2) == [Mark(0, "checkpoint", 0, 3), Mark(9, "checkpoint", 0, 4)]
    apart = [Mark(0, "checkpoint", 0, 1), Mark(1, "rollback", 0, 0, 0), Mark(1.5, "checkpoint", 1, 4)]
    assert merged(apart, 2) == apart[1:]
