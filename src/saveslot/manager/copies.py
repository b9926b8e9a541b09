"""Copies of whole sessions: entries as they are stored, under a new key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import AlreadyExists, Corrupt
from saveslot.manager.create import made
from saveslot.manager.reading import get_session
from saveslot.session.draft import Draft, Point, beginning, body_of, creation, labels_of
from saveslot.session.engine import Space, scope_of
from saveslot.session.lookup import Overtaken, about_of, with_a_fresh_head
from saveslot.session.model import AgentSession
from saveslot.session.refusals import unknown
from saveslot.session.requests import request
from saveslot.session.retries import CALL, once_in
from saveslot.session.timeline import Timeline, visible
from saveslot.values.checks import Data, as_name
from saveslot.values.ids import fresh_append_id, fresh_key, stamped, stamping
from saveslot.values.kinds import ABOUT_KINDS, DATA_KINDS, Kind
from saveslot.values.lifecycle import SessionState, led_to
from saveslot.values.log import Entry, Head, Outcome, Row, Wanted


@once_in(scope_of)
async def copy_session(
    sessions: Space, id: str, to: str, *, upto: str | int | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Copy a session under another id, with its numbers, names, times, lifecycle, records and step journal.

    Nothing is decoded or encoded again. `upto` is a ref: the copy ends with that entry. A copy repeats no effect,
    unlike a fork, which keeps no step; it keeps idempotency keys, too. It has no owner. `AlreadyExists` if the id is
    taken.
    """
    session_id, target, vault = as_name(id, "id"), as_name(to, "to"), sessions.engine.vault
    call = CALL.get()
    draft = None if call is None else call.draft
    if draft is None:
        source = (await sessions.lookup.existing(session_id)).row.key
        call_id = request(idempotency_key, "copy", {"to": target, "upto": upto}, scope=source)
        if (there := await made(sessions, call_id)) is not None:
            return there
        draft = await _drafted(sessions, session_id, target, upto)
        cast("Row", draft.group.create).request = call_id
    if call is not None:
        call.draft = draft
    [verdict] = await vault.append([draft.group])
    if verdict.outcome not in {Outcome.APPENDED, Outcome.ALREADY}:
        if (there := await made(sessions, cast("Row", draft.group.create).request)) is not None:
            return there
        raise AlreadyExists(
            f"session {target} exists already in namespace {sessions.namespace}; choose another id",
            head=0 if verdict.head is None else verdict.head.seq,
        )
    sessions.engine.cache.drop((sessions.namespace, target))
    session = await get_session(sessions, target)
    if session is None:
        raise unknown(target, sessions.namespace)
    return session


@with_a_fresh_head
async def _drafted(sessions: Space, id: str, target: str, upto: str | int | None) -> Draft:
    lookup = sessions.lookup
    head = await lookup.existing(id)
    source = lookup.session(head)  # raises if it cannot be opened
    last = head.last.seq if upto is None else (await lookup.entry(head, upto)).seq
    entries = await sessions.engine.vault.entries(head.row.key, Wanted([(1, last)]))
    thinned = await lookup.hidden(head)
    await _check_frames(sessions, head, entries, thinned)
    row = Row(fresh_key(), sessions.namespace, target, source.agent_type, source.user_id, head.row.state)
    row.created_at, row.heartbeat = head.row.created_at, max(head.row.heartbeat, head.last.alive)
    stamp = sessions.engine.vault.traits.stamp or stamping.get()
    draft = Draft(row.key, beginning(), sessions.engine.limit, stamp)
    draft.group.entries = [
        replace(entry, append_id=stamped(fresh_append_id(), stamp), lease=None, sign=False) for entry in entries
    ]
    end = draft.group.entries[-1]
    about = about_of(head.row, head.last)[0] if upto is None else _about(entries, id)
    for entry in draft.group.entries:
        if entry.note is not None or entry.kind is Kind.CREATED:
            entry.labels = labels_of(entry, id, about["metadata"])
    if upto is not None:
        row.state = led_to(entry.kind for entry in entries).value
    draft.group.body = body_of(row.key, about, end.about_seq, codec.ANY_SIZE)
    draft.group.labels = about["labels"]
    state = SessionState(row.state)
    draft.at = Point(
        end.seq, end.append_id, state, end.fence, None, end.data_seq, end.about_seq, codec.State(), codec.State()
    )
    kept = visible([entry for entry in entries if entry.kind in DATA_KINDS], entries, id)
    if gone := [(entry.seq, entry.seq) for entry in kept if entry.seq in thinned]:  # by a mark after `upto`
        draft.mark(gone)
    draft.group = creation(row, draft)
    return draft


async def _check_frames(sessions: Space, head: Head, entries: Sequence[Entry], thinned: frozenset[int]) -> None:
    """Raise unless all frames are here that the visible checkpoints are rebuilt from."""
    data = [entry for entry in entries if entry.kind in DATA_KINDS]
    timeline = Timeline(head.row.session_id, data)
    if len(entries) == entries[-1].seq and all(
        timeline.whole(codec.Recipe.unpack(entry.recipe, entry.seq)) for entry in data if entry.seq not in thinned
    ):
        return
    if (await sessions.lookup.again(head)).last.append_id != head.last.append_id:
        raise Overtaken
    raise Corrupt(f"session {head.row.session_id}", "entries or frames of it are missing")


def _about(entries: Sequence[Entry], id: str) -> Data:
    """Return context, metadata and labels as of the last of these entries."""
    abouts = [entry for entry in entries if entry.kind in ABOUT_KINDS]
    if not abouts:
        return {"context": {}, "metadata": {}, "labels": {}}
    return Timeline(id, abouts).state(abouts[-1]).value()
