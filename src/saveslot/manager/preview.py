"""Previews: what a rollback or a run of retention would do, before it is done. Nothing is written."""

from __future__ import annotations

from typing import Any, NamedTuple

from saveslot.manager.log_pages import StepStatus, Target, held_now, step_status
from saveslot.manager.outlook import verbs
from saveslot.manager.parts import OPERATIONS, Comparison, compare
from saveslot.manager.thin import dropped
from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.timeline import note_of
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import as_count
from saveslot.values.kinds import DATA_KINDS, STEP_KINDS
from saveslot.values.lifecycle import TRANSITIONS, SessionState
from saveslot.values.log import Head, Query, Wanted, moment
from saveslot.values.versions import version

# Newest effects that a preview of a rollback names.
EFFECTS = 1_000
# Sessions that a preview of retention looks at, those created last; and of how many of them it names what would go.
LOOKED, SAMPLES = 1_000, 5


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


class Drop(Answer, frozen=True):
    """The checkpoints of a session that retention would drop."""

    id: str
    agent_type: str
    drop: list[int]
    bytes: int  # that would be freed once their frames are emptied


class ThinPreview(Answer, frozen=True):
    """What `thin_all` would drop now, of the sessions that were looked at."""

    sessions: int
    checkpoints: int
    bytes: int
    pinned: int  # checkpoints that are kept because they are pinned
    sample: list[Drop]  # those that would lose the most
    rules: dict[str, dict[str, Any]]  # by agent type, `*` for all others; a session's own rule counts first
    looked_at: int  # sessions, those created last
    as_of: Time | None


async def thin_preview(sessions: Space, *, looked: int = LOOKED, samples: int = SAMPLES) -> ThinPreview:
    """Return what retention would drop of the sessions created last. Reads headers only."""
    samples = as_count(samples, "samples")
    found = await drops(sessions, looked=looked)
    most = sorted(found.drops, key=lambda drop: -len(drop.drop))[:samples]
    return ThinPreview(
        len(found.drops),
        sum(len(drop.drop) for drop in found.drops),
        sum(drop.bytes for drop in found.drops),
        found.pinned,
        most,
        {name: rule.to_dict() for name, rule in sessions.engine.rules.items()},
        found.looked_at,
        moment(found.now) if found.now else None,
    )


class Drops(NamedTuple):
    drops: list[Drop]
    pinned: int
    looked_at: int
    now: int


async def drops(sessions: Space, *, looked: int = LOOKED) -> Drops:
    """Find what retention would drop of the sessions created last."""
    vault = sessions.engine.vault
    rows = await vault.find(Query(namespace=sessions.namespace), None, min(as_count(looked, "looked", 1), LOOKED))
    heads = await vault.heads([row.key for row in rows]) if rows else []
    found: list[Drop] = []
    pinned = 0
    for head in heads:
        if head is None or head.row.locked is not None:
            continue
        seqs, weight, kept = await dropped(sessions, head)
        pinned += kept
        if seqs:
            found.append(Drop(head.row.session_id, head.row.agent_type, seqs, weight))
    return Drops(found, pinned, len(rows), max((head.row.now for head in heads if head is not None), default=0))
