"""Previews: what a rollback would do, before it is done. Nothing is written."""

from __future__ import annotations

from saveslot.manager.log_pages import StepStatus, Target, held_now, step_status
from saveslot.manager.outlook import verbs
from saveslot.manager.parts import OPERATIONS, Comparison, compare
from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.timeline import note_of
from saveslot.values.answers import Answer, Time
from saveslot.values.kinds import DATA_KINDS, STEP_KINDS
from saveslot.values.lifecycle import TRANSITIONS, SessionState
from saveslot.values.log import Head, Wanted, moment
from saveslot.values.versions import version

# Newest effects that a preview of a rollback names.
EFFECTS = 1_000


class Effect(Answer, frozen=True):
    """A step after the target: a rollback does not undo it, and it is not run again."""

    seq: int
    name: str
    key: str | None
    status: StepStatus
    at: Time


class RollbackPreview(Answer, frozen=True):
    session_id: str
    version: str  # pass it as If-Match: then this preview is what happens
    to: Target
    state_after: str
    allowed: bool
    refused: str  # why, if it is not allowed
    holder: str | None  # the living worker that holds the session
    left_behind: int  # checkpoints and rollbacks after the target
    effects: list[Effect]  # oldest first
    diff: Comparison  # from the newest state to the target's


@with_a_fresh_head
async def rollback_preview(sessions: Space, id: str, to: str | int, *, limit: int = OPERATIONS) -> RollbackPreview:
    """Return what a rollback to that ref would change, and what it would not undo."""
    head = await sessions.reader.existing(id)
    if head.row.locked is not None:
        raise head.row.locked
    target = await sessions.reader.entry(head, to)
    after = [(target.seq + 1, head.last.seq)]
    vault, key = sessions.engine.vault, head.row.key
    left = await vault.entries(key, Wanted(after, kinds=DATA_KINDS, frames=False))
    _, refused = await verbs(sessions, head)
    state, newest = SessionState(head.row.state), await sessions.lookup.newest(head)
    return RollbackPreview(
        head.row.session_id,
        version(newest.seq, newest.append_id),
        Target(target.seq, target.name),
        TRANSITIONS["rollback"].get(state, state).value,
        "rollback" not in refused,
        refused.get("rollback", ""),
        head.row.worker if held_now(head) else None,
        len(left),
        await _effects(sessions, head, target.seq),
        await compare(sessions, id, head.last.seq, target.seq, limit=limit),
    )


async def _effects(sessions: Space, head: Head, seq: int) -> list[Effect]:
    """Return the steps that began or ended after an entry, each as its newest entry has it."""
    wanted = Wanted([(seq + 1, head.last.seq)], kinds=STEP_KINDS, newest=EFFECTS, frames=False)
    effects: dict[tuple[str, str | None], Effect] = {}
    for entry in await sessions.engine.vault.entries(head.row.key, wanted):
        note = note_of(entry, f"{head.row.session_id}:{entry.seq}")
        status = step_status(entry, note, held=held_now(head) and entry.lease == head.row.lease)
        effects[entry.name, note.get("key")] = Effect(entry.seq, entry.name, note.get("key"), status, moment(entry.at))
    return sorted(effects.values(), key=lambda effect: effect.seq)
