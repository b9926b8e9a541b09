"""How sessions begin: created, forked from another one, or imported."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from saveslot import codec
from saveslot.errors import AlreadyExists, Conflict, InvalidInput
from saveslot.manager import export
from saveslot.manager.reading import get_session
from saveslot.manager.update import parts_of, seen_of
from saveslot.session.attempts import Limit, as_own
from saveslot.session.draft import FORKED, Draft, beginning, creation
from saveslot.session.engine import Space, scope_of
from saveslot.session.log import Log
from saveslot.session.model import (
    AgentSession,
    Checkpoint,
    SessionCheckpoint,
)
from saveslot.session.refusals import overtaken
from saveslot.session.requests import request, row_of
from saveslot.session.retention import OWN, Retention, as_rule
from saveslot.session.retries import CALL, once_in
from saveslot.session.timeline import visible
from saveslot.values import advice
from saveslot.values.checks import Data, as_data, as_labels, as_name
from saveslot.values.ids import fresh_id, fresh_key
from saveslot.values.kinds import SHOWN_KINDS, Kind
from saveslot.values.log import Entry, Row, Verdict, micros, moment
from saveslot.values.versions import as_version

# Characters of an export that is read in a thread, so that other calls go on meanwhile.
LONG = 256 << 10


@once_in(scope_of)
async def create_session(
    sessions: Space,
    agent_type: str,
    user_id: str = "",
    context: Data | None = None,
    metadata: Data | None = None,
    *,
    labels: dict[str, str] | None = None,
    session_id: str | None = None,
    retention: Retention | None = None,
    max_attempts: Limit = ...,
    data: Data | None = None,
    name: str = "created",
    exist_ok: bool = False,
    idempotency_key: str | None = None,
) -> AgentSession:
    """Create an active session with its first entry. `AlreadyExists` if the id is taken in this namespace.

    With `exist_ok`, return the one that is there instead, as it is. `data` is a first checkpoint in the same write,
    called `name`. `retention` is its own rule and `max_attempts` its own limit, stored with it; by default its agent
    type's or the manager's apply. The same call with the same `idempotency_key` gets the session that the first one
    created; `InvalidInput` if its content differs.
    """
    session, draft, call_id = begun(
        sessions,
        agent_type,
        user_id,
        context,
        metadata,
        labels=labels,
        session_id=session_id,
        retention=retention,
        max_attempts=max_attempts,
        data=data,
        name=name,
        idempotency_key=idempotency_key,
    )
    if (there := await made(sessions, call_id)) is not None:
        return there
    while True:
        try:
            return await _create(sessions, session, draft, request=call_id)
        except AlreadyExists:
            if (there := await made(sessions, call_id)) is not None:
                return there
            if not exist_ok:
                raise
            there = await get_session(sessions, session.session_id)
            if there is not None:  # else it was deleted just now
                return there


def begun(
    sessions: Space,
    agent_type: str,
    user_id: str = "",
    context: Data | None = None,
    metadata: Data | None = None,
    *,
    labels: dict[str, str] | None = None,
    session_id: str | None = None,
    retention: Retention | None = None,
    max_attempts: Limit = ...,
    data: Data | None = None,
    name: str = "created",
    data_metadata: Data | None = None,
    paused: bool = False,
    idempotency_key: str | None = None,
) -> tuple[AgentSession, Draft, bytes]:
    """Return what `create_session` creates: the session, its first entries, and the call's request. A `paused` one
    rests from its first entry on: no sweep fails it.
    """
    own: Data = {} if retention is None else {OWN: as_rule(retention).to_dict()}
    own |= as_own(max_attempts)
    session = AgentSession(
        session_id=fresh_id() if session_id is None else session_id,
        agent_type=agent_type,
        user_id=user_id,
        context=as_data(context, "context"),
        metadata=as_data(metadata, "metadata") | own,
        labels=as_labels(labels),
    )
    given = {**parts_of(session), "agent_type": agent_type, "user_id": user_id, "session_id": session_id}
    call_id = request(idempotency_key, "create", {**given, "data": data, "name": name})
    draft = _born(sessions, session)
    if paused:
        draft.pause()
    if data is not None:
        draft.checkpoint(as_name(name, "name"), as_data(data, "data"), data_metadata)
    elif name != "created":
        raise InvalidInput("name", "is that of the first checkpoint; pass its data too (data={} for an empty state)")
    return session, draft, call_id


async def create_paused(
    sessions: Space,
    agent_type: str,
    session_id: str,
    name: str | None = None,
    data: Data | None = None,
    metadata: Data | None = None,
    *,
    user_id: str = "",
    context: Data | None = None,
    labels: dict[str, str] | None = None,
    session_metadata: Data | None = None,
) -> AgentSession:
    """Create a session that rests from its first entry on, in one write: no sweep fails it. With `name`, its first
    checkpoint is in the same write; `data` and `metadata` are the checkpoint's.
    """
    session, draft, _ = begun(
        sessions,
        agent_type,
        user_id,
        context,
        session_metadata,
        labels=labels,
        session_id=session_id,
        data=data,
        name="created" if name is None else name,
        data_metadata=metadata,
        paused=True,
    )
    return await _create(sessions, session, draft)


def _born(sessions: Space, session: AgentSession) -> Draft:
    """Draft the first entry of a new session."""
    draft = Draft(fresh_key(), beginning(), sessions.engine.limit, sessions.engine.vault.traits.stamp)
    entry = draft.about(parts_of(session), kind=Kind.CREATED, name="session_created")
    entry.note = codec.note({"agent_type": session.agent_type, "user_id": session.user_id}, "session")
    entry.sign = True
    return draft


async def made(sessions: Space, request: bytes) -> AgentSession | None:
    """Return the session that the same call created before."""
    row = await row_of(sessions.engine.vault, sessions.namespace, request)
    return None if row is None else await get_session(sessions, row.session_id)


async def _made_once(
    sessions: Space, session: AgentSession, draft: Draft, row: Row | None, request: bytes
) -> AgentSession:
    try:
        return await _create(sessions, session, draft, row, request=request)
    except AlreadyExists:  # perhaps by the same call in another process
        there = await made(sessions, request)
        if there is None:
            raise
        return there


async def _create(
    sessions: Space, session: AgentSession, draft: Draft, row: Row | None = None, *, request: bytes = b""
) -> AgentSession:
    engine, call = sessions.engine, CALL.get()
    if call is not None and call.draft is not None and call.draft.group.create is not None:
        draft, row = call.draft, call.draft.group.create  # a repeated call: if it landed, this call created it
        session.session_id = row.session_id
    else:
        row = row or row_for(sessions, session, draft)
        row.request = request
        draft.group = creation(row, draft)
    if call is not None:
        call.draft = draft
    scope = (sessions.namespace, session.session_id)
    log = engine.cache.new(scope, draft)
    try:
        verdict = draft.verdict or await log.append(draft)
    except Conflict as exc:
        raise taken(sessions, session.session_id, exc) from None
    created(sessions, session, log, draft, verdict)
    return session


def row_for(sessions: Space, session: AgentSession, draft: Draft) -> Row:
    return Row(draft.group.key, sessions.namespace, session.session_id, session.agent_type, session.user_id)


def taken(sessions: Space, session_id: str, why: Conflict) -> AlreadyExists:
    return AlreadyExists(
        f"session {session_id} exists already in namespace {sessions.namespace}; {advice.OTHER_ID}", head=why.head
    )


def created(sessions: Space, session: AgentSession, log: Log, draft: Draft, verdict: Verdict) -> None:
    """Fill the value of a session whose creation landed."""
    engine, scope, row = sessions.engine, (sessions.namespace, session.session_id), cast("Row", draft.group.create)
    session.created_at = moment(row.created_at or verdict.times[0])
    session.last_heartbeat = moment(verdict.heartbeat)
    entries = [entry for entry in draft.group.entries if entry.kind in SHOWN_KINDS]
    entries = visible(entries, draft.group.entries, session.session_id)
    session.checkpoints = [draft.stored(SessionCheckpoint, entry) for entry in entries]
    session.seen = seen_of(log, session, draft)
    known = engine.cache.get(scope)
    if known is None or known.key != log.key:  # otherwise another caller wrote after it before this answer came
        engine.cache.put(scope, log)


@once_in(scope_of)
async def fork(
    sessions: Space,
    id: str,
    at: str | int = "latest",
    session_id: str | None = None,
    *,
    seen: str | None = None,
    idempotency_key: str | None = None,
) -> AgentSession:
    """Create a session that continues from a checkpoint of this one, whatever the state of this one.

    It keeps nothing of the step journal: its steps run anew. With `seen`, a version: `Conflict` unless that names the
    newest entry of this one.
    """
    lookup, version = sessions.lookup, as_version(seen)
    head = await lookup.existing(id)
    given = {"at": at, "session_id": session_id}
    call_id = request(idempotency_key, "fork", given, scope=head.row.key)
    if (there := await made(sessions, call_id)) is not None:
        return there
    if version is not None and not await lookup.current(head, version):
        raise overtaken(id, head, version.seq)
    data: Entry | None = None
    if at != "latest" or head.last.data_seq:
        data = await lookup.data_entry(head, await lookup.entry(head, at))
    origin = None if data is None else await lookup.checkpoint(id, data.seq)
    return await branch(sessions, lookup.session(head), origin, session_id, call_id)


async def branch(
    sessions: Space, source: AgentSession, origin: Checkpoint | None, session_id: str | None, request: bytes = b""
) -> AgentSession:
    """Create a session with the context of another one, and the data of a checkpoint of it."""
    session = AgentSession(
        session_id=fresh_id() if session_id is None else session_id,
        agent_type=source.agent_type,
        user_id=source.user_id,
        context=source.context,
        metadata={**source.metadata, "forked_from": source.session_id if origin is None else origin.id},
        labels=source.labels,
    )
    draft = _born(sessions, session)
    draft.group.entries[0].labels = {FORKED: source.session_id}
    if origin is not None:
        draft.checkpoint(origin.name, origin.data, {**origin.metadata, "forked_from": origin.id})
    return await _made_once(sessions, session, draft, None, request)


@once_in(scope_of)
async def import_session(
    sessions: Space, json: str, *, session_id: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Store a session from `export`, with its numbers and times, under its own id or another."""
    call_id = request(idempotency_key, "import", {"json": json, "session_id": session_id})
    if (there := await made(sessions, call_id)) is not None:
        return there
    keyring = sessions.engine.vault.keyring
    if isinstance(json, str) and len(json) > LONG:  # pyright: ignore[reportUnnecessaryIsInstance]
        session, entries = await asyncio.to_thread(export.parsed, json, keyring)
    else:
        session, entries = export.parsed(json, keyring)
    session.session_id = session.session_id if session_id is None else as_name(session_id, "session_id")
    draft = Draft(fresh_key(), beginning(), sessions.engine.limit, sessions.engine.vault.traits.stamp)
    filling = export.fill(draft, session, entries)
    if len(json) > LONG:
        await asyncio.to_thread(deque, filling, 0)
    else:
        for _ in filling:
            await asyncio.sleep(0)
    row = Row(
        draft.group.key,
        sessions.namespace,
        session.session_id,
        session.agent_type,
        session.user_id,
        session.state.value,
        micros(session.created_at),
        micros(session.last_heartbeat),
    )
    return await _made_once(sessions, session, draft, row, call_id)
