"""The first answer of a call that is made again with its idempotency key."""

from __future__ import annotations

from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.model import Checkpoint
from saveslot.session.requests import entry_of


@with_a_fresh_head
async def answered(sessions: Space, id: str, request: bytes) -> Checkpoint | None:
    """Return the checkpoint that the same call saved before, without its data once that was thinned."""
    if not request:
        return None
    head = await sessions.lookup.existing(id)
    entry = await entry_of(sessions.engine.vault, head.row.key, request)
    if entry is None:
        return None
    thinned = await sessions.lookup.hidden(head)
    return Checkpoint.stored(await sessions.lookup.timeline(head, [entry], thinned=thinned), entry)
