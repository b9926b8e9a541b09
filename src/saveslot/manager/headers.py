"""The newest entry of a session, and pages of its log: without frames, so their cost does not grow with the state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from saveslot.errors import InvalidInput
from saveslot.session.engine import Space
from saveslot.session.headers import EntryHeader, Head, head_of, header, owners
from saveslot.session.lookup import with_a_fresh_head
from saveslot.values.checks import as_count, as_texts
from saveslot.values.kinds import TAKING_KINDS, Kind
from saveslot.values.log import MAX_SEQ, Entry, Head as StoredHead, Wanted

# The kinds that each word stands for.
LABELS = {
    label: frozenset(kind for kind in Kind if kind.label == label) for label in dict.fromkeys(k.label for k in Kind)
}


async def head(sessions: Space, id: str) -> Head | None:
    """Return its newest entry, records, pins and retention marks aside, and its version; None for an unknown id.

    One read, whatever the length of its log; a second one if a worker holds it, for `owner.since`.
    """
    stored = await sessions.reader.head(id)
    return None if stored is None else await headed(sessions, stored)


async def headed(sessions: Space, stored: StoredHead) -> Head:
    if stored.row.locked is not None:
        raise stored.row.locked
    return head_of(stored, await sessions.lookup.newest(stored), await sessions.lookup.owner(stored))


@with_a_fresh_head
async def entries(
    sessions: Space,
    id: str,
    *,
    after: int = 0,
    before: int | None = None,
    newest: int | None = None,
    names: Collection[str] | None = None,
    kinds: Collection[str] | None = None,
) -> list[EntryHeader]:
    """Return the entries of its log, oldest first, without the states: all kinds, except checkpoints that were thinned.

    `after` and `before` are numbers, both exclusive; `newest` returns the last n that match; `kinds` are the words that
    `saveslot log --all` shows.
    """
    first = as_count(after, "after") + 1
    last = MAX_SEQ if before is None else as_count(before, "before") - 1
    newest = None if newest is None else as_count(newest, "newest")
    wanted = None if kinds is None else as_kinds(kinds)
    named = [None] if names is None else sorted(set(as_texts(names, "names")))
    head = await sessions.reader.existing(id)
    reach = (first, min(last, head.last.seq))
    if reach[0] > reach[1] or newest == 0:
        return []
    parts = await asyncio.gather(
        *(sessions.lookup.visible(head, wanted, within=reach, name=name, newest=newest) for name in named)
    )
    chosen = sorted((entry for part in parts for entry in part), key=lambda entry: entry.seq)
    if newest is not None:
        chosen = chosen[-newest:]
    session_id = head.row.session_id
    leases = owners(await _takings(sessions, head, chosen), session_id)
    return [header(entry, session_id, leases) for entry in chosen]


async def _takings(sessions: Space, head: StoredHead, chosen: list[Entry]) -> list[Entry]:
    """Return the entries by which workers took the session, if one of these was written under a lease."""
    leases = {entry.lease for entry in chosen if entry.lease is not None}
    here = [entry for entry in chosen if entry.kind in TAKING_KINDS]
    if leases <= {entry.lease for entry in here}:
        return here
    reach = [(1, chosen[-1].seq)]
    return await sessions.engine.vault.entries(head.row.key, Wanted(reach, kinds=TAKING_KINDS, frames=False))


def as_kinds(kinds: Collection[str]) -> frozenset[Kind]:
    chosen: set[Kind] = set()
    for label in as_texts(kinds, "kinds"):
        if label not in LABELS:
            raise InvalidInput("kinds", f"{label!r} is not one of {', '.join(LABELS)}")
        chosen |= LABELS[label]
    return frozenset(chosen)
