"""Drops: the checkpoints of many sessions that retention would drop. They are found page by page, and then dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from saveslot.errors import Conflict, LeaseHeld, LeaseLost, NotFound, SaveslotError
from saveslot.manager.thin import GRACE, Thinned, dropped, free, freeable, thin
from saveslot.session.engine import Space
from saveslot.session.retention import Retention
from saveslot.values import refs
from saveslot.values.answers import Answer, Time
from saveslot.values.checks import as_count
from saveslot.values.log import Head, Query, moment

# Sessions that one call looks at; and of how many of them a preview names what would go.
LOOKED, SAMPLES = 1_000, 5


class Drop(Answer, frozen=True):
    """The checkpoints of a session that retention would drop."""

    id: str
    agent_type: str
    drop: list[int]
    bytes: int  # that would be freed once their frames are emptied


class Drops(NamedTuple):
    """What was found in a page of sessions. `next`: the cursor of the next page, None after the last."""

    drops: list[Drop]
    hidden: list[Head]  # of the other sessions: their newest entry hides checkpoints whose bytes may be there yet
    pinned: int
    sealed: int  # sessions that were left out, sealed with a key that this process lacks
    looked_at: int
    now: int
    next: str | None = None


async def drops(sessions: Space, *, looked: int = LOOKED, after: str | None = None) -> Drops:
    """Find what retention would drop of a page of sessions, those created last first."""
    most = min(as_count(looked, "looked", 1), LOOKED)
    query = Query(namespace=sessions.namespace)
    rows = await sessions.engine.vault.find(query, refs.place(after), most + 1)
    page = rows[:most]
    following = refs.cursor((page[-1].created_at, page[-1].key)) if len(rows) > most else None
    return (await drops_of(sessions, [row.key for row in page]))._replace(next=following)


async def drops_of(sessions: Space, sought: Sequence[bytes | tuple[str, str]], rule: Retention | None = None) -> Drops:
    """Find what retention, or `rule`, would drop of these sessions."""
    heads = await sessions.engine.vault.heads(sought) if sought else []
    there = [head for head in heads if head is not None]
    drops: list[Drop] = []
    hidden: list[Head] = []
    pinned = sealed = 0
    for head in there:
        if head.row.locked is not None:  # a mark needs its key
            sealed += 1
            continue
        seqs, weight, kept = await dropped(sessions, head, rule)
        pinned += kept
        if seqs:
            drops.append(Drop(head.row.session_id, head.row.agent_type, seqs, weight))
        elif freeable(head, GRACE):
            hidden.append(head)
    return Drops(drops, hidden, pinned, sealed, len(heads), max((head.row.now for head in there), default=0))


class Dropped(NamedTuple):
    """What became of drops: those done, what they freed, and the sessions that were left as they are and why."""

    drops: list[Drop]
    thinned: Thinned
    refused: list[tuple[str, SaveslotError]]


async def apply(sessions: Space, found: Drops, rule: Retention | None = None) -> Dropped:
    """Thin these sessions, and free the bytes of checkpoints that were dropped at least ten minutes ago.

    What a worker holds, or has changed meanwhile, is left as it is.
    """
    done: list[Drop] = []
    refused: list[tuple[str, SaveslotError]] = []
    total = Thinned()
    for drop in found.drops:
        try:
            total += await thin(sessions, drop.id, rule)
        except (Conflict, LeaseHeld, LeaseLost, NotFound) as exc:  # its owner saves, or it was deleted meanwhile
            refused.append((drop.id, exc))
        else:
            done.append(drop)
    for head in found.hidden:
        total += await free(sessions, head)
    return Dropped(done, total, refused)


class ThinPreview(Answer, frozen=True):
    """What `thin_all` would drop now, of the sessions that were looked at."""

    sessions: int
    checkpoints: int
    bytes: int
    pinned: int  # checkpoints that are kept because they are pinned
    sample: list[Drop]  # those that would lose the most
    rules: dict[str, dict[str, Any]]  # by agent type, `*` for all others; a session's own rule counts first
    looked_at: int  # sessions, those created last first
    as_of: Time | None
    next: str | None = None  # the cursor of the next page, null on the last one


async def thin_preview(
    sessions: Space, *, looked: int = LOOKED, samples: int = SAMPLES, after: str | None = None
) -> ThinPreview:
    """Return what retention would drop of a page of sessions, those created last first. Reads headers only."""
    samples = as_count(samples, "samples")
    found = await drops(sessions, looked=looked, after=after)
    return ThinPreview(
        len(found.drops),
        checkpoints(found.drops),
        sum(drop.bytes for drop in found.drops),
        found.pinned,
        sorted(found.drops, key=lambda drop: -len(drop.drop))[:samples],
        {name: rule.to_dict() for name, rule in sessions.engine.rules.items()},
        found.looked_at,
        moment(found.now) if found.now else None,
        found.next,
    )


def checkpoints(drops: Iterable[Drop]) -> int:
    return sum(len(drop.drop) for drop in drops)
