"""Writes: the verbs of a manager that change a session without holding it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any, cast

from saveslot import codec
from saveslot.errors import AlreadyExists, Conflict, InvalidInput, InvalidTransition, NotFound
from saveslot.manager import export
from saveslot.manager.reading import checkpoints_of, get_session
from saveslot.session.answers import answered
from saveslot.session.attempts import Limit, as_own
from saveslot.session.change import change
from saveslot.session.draft import ABOUT, FORKED, Draft, Save, beginning, creation
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.held import rolled_back
from saveslot.session.log import Log
from saveslot.session.model import (
    BORN,
    AgentSession,
    Checkpoint,
    Seen,
    SessionCheckpoint,
    Staged,
    born,
    folded,
    stand,
)
from saveslot.session.refusals import overtaken, recreated
from saveslot.session.requests import entry_of, request, row_of
from saveslot.session.retention import OWN, Retention, as_rule
from saveslot.session.retries import CALL, content, once_in
from saveslot.session.timeline import visible
from saveslot.values import advice
from saveslot.values.checks import Data, as_data, as_labels, as_name, now
from saveslot.values.ids import fresh_id, fresh_key
from saveslot.values.kinds import DATA_KINDS, SHOWN_KINDS, SIDE_KINDS, VERBS, Kind
from saveslot.values.lifecycle import TRANSITIONS, SessionState, follow
from saveslot.values.log import Entry, Head, Outcome, Row, Verdict, Wanted, micros, moment
from saveslot.values.versions import Version, as_version

# While a session is held, only its owner writes these.
OWNERS_ALONE = DATA_KINDS | {Kind.COMPLETED}

# Characters of an export that is read in a thread, so that other calls go on meanwhile.
LONG = 256 << 10

# Sessions


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
    given = {**_about(session), "agent_type": agent_type, "user_id": user_id, "session_id": session_id}
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
    entry = draft.about(_about(session), kind=Kind.CREATED, name="session_created")
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
    session.seen = _seen(log, session, draft)
    known = engine.cache.get(scope)
    if known is None or known.key != log.key:  # otherwise another caller wrote after it before this answer came
        engine.cache.put(scope, log)


@once_in(scope_of)
async def update_session(
    sessions: Space, session: AgentSession, *, seen: str | None = None, idempotency_key: str | None = None
) -> AgentSession:
    """Append the staged entries and the changes to context, metadata and labels, in one durable write.

    The session value must have seen the newest entry; with `seen`, that must also be the one which this version names.

    The content of a call with an `idempotency_key` is what is staged, and the value's dicts. The same call again, from
    any process, writes nothing: it discards what is staged and refreshes the value. One with nothing to write uses no
    key up.
    """
    value = as_value(session)
    if value.by_holder:
        raise InvalidInput(
            "session", "held.session is for reading; call held.update_context, or load it with get_session"
        )
    call_id = request(idempotency_key, "update", _given(value)) if idempotency_key is not None else b""
    return await _update(sessions, value, as_version(seen), call_id)


@once_in(scope_of)
async def update_as(sessions: Space, session: AgentSession, call_id: bytes, *, seen: str | None = None) -> AgentSession:
    """Like `update_session`, of a call whose content is not the value's, such as a merge patch."""
    return await _update(sessions, session, as_version(seen), call_id)


async def _update(sessions: Space, value: AgentSession, version: Version | None, call_id: bytes) -> AgentSession:
    alone = any(item.kind in OWNERS_ALONE for item in value.staged)
    author = passerby(sessions, value.session_id, value, version, alone=alone)

    async def decide(log: Log) -> Draft:
        draft = await staged_draft(log, value, sessions.engine.limit)
        if not draft.group.entries:
            await heartbeat(sessions, value, log)
        else:
            draft.group.entries[-1].request = call_id
        return draft

    if await _updated(sessions, value, call_id):
        return value
    try:
        await change(author, decide)
    except Conflict:  # perhaps with the same call in another process
        if not await _updated(sessions, value, call_id):
            raise
    return value


def _given(session: AgentSession) -> Data:
    """Return what an update stores."""
    staged = [
        [int(item.kind), item.checkpoint.name, item.checkpoint.data, item.checkpoint.metadata]
        for item in session.staged
    ]
    return {**_about(session), "staged": staged}


async def _updated(sessions: Space, session: AgentSession, request: bytes) -> bool:
    """Refresh the value if the same call stored it before; return whether it did."""
    if not request:
        return False
    head = await sessions.lookup.existing(session.session_id)
    if await entry_of(sessions.engine.vault, head.row.key, request) is None:
        return False
    session.unstage()
    await refresh(sessions, session)
    return True


async def staged_draft(log: Log, session: AgentSession, limit: int) -> Draft:
    """Draft a session value's staged entries and changed dicts."""
    seen = cast("Seen", session.seen)
    _check_set(session, seen)
    staged = list(session.staged)
    state = log.at.state
    for item in staged:
        state = follow(state, VERBS[item.kind])
    about = _about(session)
    changed = {part: codec.encode(about[part], part, limit)[0] for part in about} != seen.about
    if changed:
        await log.load_about()
    if any(item.kind is Kind.CHECKPOINT for item in staged):
        await log.load_data()
    draft = log.draft()
    draft.landed = partial(advance, session)
    # How long ago each was staged, as 0 or less: the store's clock may differ, but time spans agree.
    ages = [min(0, micros(item.checkpoint.timestamp) - micros(now())) for item in staged]
    ages = list(accumulate(ages, max))  # none may be older than the one before it
    if changed:
        draft.about(about, at=ages[0] if ages else 0)
    for item, at in zip(staged, ages, strict=True):
        cp = item.checkpoint
        if item.kind is Kind.CHECKPOINT:
            draft.checkpoint(cp.name, cp.data, cp.metadata, at=at, append_id=item.append_id)
        else:
            draft.lifecycle(item.kind, cp.name, cp.data, at=at, append_id=item.append_id)
        item.append_id = draft.group.entries[-1].append_id  # stamped
    if draft.group.entries:
        draft.become(state)
        draft.group.heartbeat = log.at.lease is None  # while it is held, only its owner's writes are signs of life
    return draft


async def heartbeat(sessions: Space, session: AgentSession, log: Log) -> None:
    vault = sessions.engine.vault
    [head] = await vault.heads([log.key])
    if head is None or head.last.append_id != log.at.append_id:
        sessions.engine.cache.drop((sessions.namespace, log.session_id), log)
        raise overtaken(log.session_id, head, log.at.seq)
    [renewed_at] = await vault.beat([(log.key, None)])
    if renewed_at:
        session.last_heartbeat = moment(renewed_at)


async def refresh(sessions: Space, session: AgentSession) -> AgentSession:
    """Load other callers' writes into `session`, in place. Staged entries and your changes to its dicts stay."""
    head = await _met(sessions, as_value(session))
    fresh = sessions.lookup.session(head, await sessions.lookup.newest(head))
    stored = await checkpoints_of(sessions, head, None)
    seen, base = 0, dict[str, bytes]()
    if session.seen is not None:
        seen, base = session.seen.seq, session.seen.about
    if session.staged:  # an entry that landed after its caller left is no longer staged
        wanted = Wanted([(seen + 1, head.last.seq)], frames=False)
        landed = {entry.append_id for entry in await sessions.engine.vault.entries(head.row.key, wanted)}
        session.staged = [item for item in session.staged if item.append_id not in landed]
    for part in ABOUT:
        before: Data = codec.decode(base[part], tagged=True) if part in base else {}
        setattr(session, part, _merged(before, getattr(session, part), getattr(fresh, part)))
    session.agent_type, session.user_id = fresh.agent_type, fresh.user_id
    session.created_at, session.last_heartbeat = fresh.created_at, fresh.last_heartbeat
    session.seen = fresh.seen
    session.checkpoints, session.loaded = stored + [item.checkpoint for item in session.staged], True
    stand(session, fresh.state)
    return session


async def _met(sessions: Space, session: AgentSession) -> Head:
    """Return the head of a session value's log, and drop the cached log."""
    scope = (sessions.namespace, session.session_id)
    log = sessions.engine.cache.get(scope)
    if log is None:
        head = await sessions.reader.existing(session.session_id)
    else:
        async with log.turns:
            with suppress(Conflict):  # the write in doubt was refused; its entries stay staged
                await log.settle()
            head = await sessions.reader.existing(session.session_id)
            sessions.engine.cache.drop(scope, log)
    if session.seen is not None and session.seen.key != head.row.key:
        raise recreated(session.session_id)
    return head


@once_in(scope_of)
async def delete_session(sessions: Space, id: str, *, seen: str | None = None) -> bool:
    """Delete the session by a tombstone; its log stays as the audit trail. Return True if it existed.

    With `seen`, a version: `Conflict` unless that names its newest entry. Without, whatever is newest.
    """
    session_id, engine, call = as_name(id, "id"), sessions.engine, CALL.get()
    version = as_version(seen)
    scope = (sessions.namespace, session_id)

    async def decide(log: Log) -> Draft:
        draft = log.draft()
        draft.lifecycle(Kind.TOMBSTONE, "session_deleted", {})
        draft.group.delete = True
        draft.landed = gone
        return draft

    def gone(log: Log, _draft: Draft, _verdict: Verdict) -> None:
        engine.cache.drop(scope, log)

    earlier = None if call is None else call.draft
    try:
        await change(passerby(sessions, session_id, version=version, fresh=True, insists=True), decide)
        return True
    except NotFound:
        engine.cache.drop(scope)
        if earlier is None:
            return False
        if earlier.verdict is not None:
            return True
    # This call was made before, and its outcome is unknown: if that deletion landed, it was ours.
    [verdict] = await engine.vault.append([earlier.group])
    return verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}


# Checkpoints


async def checkpoint(
    sessions: Space,
    session: AgentSession | str,
    name: str,
    data: Data | None = None,
    metadata: Data | None = None,
    *,
    put: Mapping[str, Any] | None = None,
    drop: Collection[str] | None = None,
    append: Mapping[str, Sequence[Any]] | None = None,
    cut: Mapping[str, int] | None = None,
    patch: Sequence[Mapping[str, Any]] | None = None,
    seen: str | None = None,
    idempotency_key: str | None = None,
) -> Checkpoint:
    """Save a named checkpoint; durable when this returns.

    `data` is the whole state. `put` (values), `drop` (keys), `append` (items to add to lists; a missing list is made)
    and `cut` (how many items to take off the ends of lists) combine: other keys are neither read nor written. `patch`
    is RFC 6902. Without any of them the state stays as it is; `data={}` empties it.

    Given a session value, the checkpoint follows
    the entry that the value has seen; given `seen`, the entry that this version names; given only an id, the newest one
    that this manager has read or written for that id. `Conflict` if another writer wrote after that, until the session
    is read again.

    The same call with the same `idempotency_key` gets its first answer, from any process, whatever came after;
    `InvalidInput` if its content differs.
    """
    save = Save(name, data, metadata, put, drop, append, cut, patch).checked()
    if idempotency_key is not None:
        save.requested(idempotency_key)
    version = None if seen is None else as_version(seen)
    value, session_id = named(session)
    engine, scope = sessions.engine, (sessions.namespace, session_id)
    if save.request:
        return await _once(sessions, session, save, version)
    log = engine.cache.get(scope)
    state = None if log is None or log.at.lease is not None or scope in engine.calls.left else log.ready
    if log is not None and state is not None and _is_current(log, value, version):
        engine.cache.hits += 1
        try:
            draft = save.draft(log, state)
            if value is not None:
                draft.landed = partial(advance, value)
            if await log.send(
                draft,
                lambda: passerby(sessions, session_id, value, version, alone=True),
                lambda: content("_checkpoint", session, save),
            ):
                return draft.stored(Checkpoint)
        except InvalidTransition:
            pass  # another manager may have revived the session: look in the store
        finally:
            engine.cache.used(scope, log)
    return await _checkpoint(sessions, session, save.copied(engine.limit), seen=version)


async def _once(sessions: Space, session: AgentSession | str, save: Save, version: Version | None) -> Checkpoint:
    """Save a checkpoint with an idempotency key, unless that call was made before."""
    session_id = named(session)[1]
    save = save.copied(sessions.engine.limit)
    earlier = await answered(sessions, session_id, save.request)
    if earlier is not None:
        return earlier
    try:
        return await _checkpoint(sessions, session, save, seen=version)
    except Conflict:  # perhaps with the same call in another process
        earlier = await answered(sessions, session_id, save.request)
        if earlier is None:
            raise
        return earlier


def _is_current(log: Log, value: AgentSession | None, version: Version | None) -> bool:
    """True if the log ends with the entry that this write has to follow."""
    at = log.at
    if version is not None and not version.names(at.seq, at.append_id):
        return False
    if value is not None:
        return value.seen is not None and value.seen.append_id == at.append_id
    return version is not None or log.known.append_id == at.append_id


@once_in(scope_of)
async def _checkpoint(sessions: Space, session: AgentSession | str, save: Save, *, seen: Version | None) -> Checkpoint:
    value, session_id = named(session)

    async def decide(log: Log) -> Draft | None:
        if log.at.state not in TRANSITIONS["checkpoint"]:
            await check_ended(sessions, log)
        if await entry_of(sessions.engine.vault, log.key, save.request) is not None:
            return None
        draft = save.draft(log, await log.load_data())
        if value is not None:
            draft.landed = partial(advance, value)
        return draft

    draft = await change(passerby(sessions, session_id, value, seen, alone=True), decide)
    if draft is None:
        return cast("Checkpoint", await answered(sessions, session_id, save.request))
    return draft.stored(Checkpoint)


async def check_ended(sessions: Space, log: Log) -> None:
    """Raise for a checkpoint of an ended session: `Conflict` if another manager revived it meanwhile."""
    head = await sessions.lookup.existing(log.session_id)
    follow(SessionState(head.row.state), "checkpoint")
    sessions.engine.cache.drop((sessions.namespace, log.session_id), log)
    raise overtaken(log.session_id, head, log.at.seq)


@once_in(scope_of)
async def rollback(
    sessions: Space,
    id: AgentSession | str,
    to: str | int,
    *,
    seen: str | None = None,
    idempotency_key: str | None = None,
) -> Checkpoint:
    """Restore the state of an older entry by appending a new one. Nothing is lost: you can roll forward again.

    A session value must have seen the newest entry, and continues from the new one; given an id or `seen`, as for
    `checkpoint`. A failed session becomes active. `idempotency_key` as for `checkpoint`.
    """
    value, session_id = named(id)
    call_id = request(idempotency_key, "rollback", {"to": to})
    if (earlier := await answered(sessions, session_id, call_id)) is not None:
        return earlier
    author = passerby(sessions, session_id, value, as_version(seen), alone=True, fresh=True)

    async def decide(log: Log) -> Draft | None:
        if await entry_of(sessions.engine.vault, log.key, call_id) is not None:
            return None
        return await rolled_back(sessions, log, cast("Head", author.head), to, call_id)

    try:
        draft = await change(author, decide)
    except Conflict:  # perhaps with the same call in another process
        if (earlier := await answered(sessions, session_id, call_id)) is None:
            raise
        return earlier
    if draft is None:
        return cast("Checkpoint", await answered(sessions, session_id, call_id))
    checkpoint = await sessions.lookup.checkpoint(session_id, draft.at.seq)
    if value is not None and value.seen is not None and value.seen.append_id == draft.group.prev:
        _show(value, draft, checkpoint)
        stand(value, draft.at.state)
    return checkpoint


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
    for _ in export.fill(draft, session, entries):
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


# Session values


def named(session: AgentSession | str) -> tuple[AgentSession | None, str]:
    if isinstance(session, AgentSession):
        return session, session.session_id
    if isinstance(session, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None, session  # checked where it is looked up in the store
    return None, as_name(session, "session")


def as_value(session: Any) -> AgentSession:
    if not isinstance(session, AgentSession):
        raise InvalidInput("session", f"must be a session from get_session, not {type(session).__name__}")
    return session


def _about(session: AgentSession) -> Data:
    return {
        "context": as_data(session.context, "context"),
        "metadata": as_data(session.metadata, "metadata"),
        "labels": as_labels(session.labels),
    }


def _check_set(session: AgentSession, seen: Seen) -> None:
    """Raise if attributes were set that `update_session` does not store, instead of dropping the change."""
    for part, mine, stored in zip(BORN, born(session), seen.born, strict=True):
        if mine != stored:
            raise InvalidInput(part, f"was {stored!s} when the session was created, and cannot change")
    if session.state != (folded(seen.state, session.staged) or seen.state):
        raise InvalidInput("state", f"was set to {session.state}; use pause, resume, complete, fail or recover")
    last = session.checkpoints[-1 - len(session.staged) :]
    if any(not cp.id and all(cp is not item.checkpoint for item in session.staged) for cp in last):
        raise InvalidInput("checkpoints", "do not append to it; call checkpoint(name, data)")


def _seen(log: Log, session: AgentSession, draft: Draft) -> Seen:
    texts = dict.fromkeys(ABOUT, b"{}") if session.seen is None else session.seen.about
    if log.at.about is not None:
        texts = texts | {part: bytes(text) for part, text in log.at.about.texts.items()}
    kept = born(session) if session.seen is None else session.seen.born
    newest = next(entry for entry in reversed(draft.group.entries) if entry.kind not in SIDE_KINDS)
    named = (newest.seq, newest.append_id)
    return Seen(log.key, log.at.seq, log.at.append_id or b"", texts, log.at.state, kept, named, log.home)


def _show(session: AgentSession, draft: Draft, checkpoint: Checkpoint) -> None:
    """Add the stored checkpoint to the session value, before its staged entries."""
    seen = cast("Seen", session.seen)
    seen.seq, seen.append_id, seen.state = draft.at.seq, draft.at.append_id or b"", draft.at.state
    seen.newest = (seen.seq, seen.append_id)
    session.checkpoints.insert(len(session.checkpoints) - len(session.staged), checkpoint)


def advance(session: AgentSession, log: Log, draft: Draft, verdict: Verdict) -> None:
    """Unstage the entries that landed, if they follow the entry that this value has seen."""
    landed = {entry.append_id: entry for entry in draft.group.entries}
    if session.seen is None or draft.group.prev != session.seen.append_id:
        return
    left: list[Staged] = []
    for item in session.staged:
        entry = landed.pop(item.append_id, None)
        if entry is None:
            left.append(item)
        else:
            item.checkpoint.settle(draft.stored(SessionCheckpoint, entry))
    session.staged = left
    for entry in landed.values():
        if entry.kind is Kind.CHECKPOINT:
            session.checkpoints.insert(len(session.checkpoints) - len(left), draft.stored(Checkpoint, entry))
    session.seen = _seen(log, session, draft)
    stand(session, session.seen.state)
    if verdict.heartbeat:
        session.last_heartbeat = moment(verdict.heartbeat)


def _merged(before: Data, mine: Data, theirs: Data) -> Data:
    """Return `theirs` with the keys that `mine` changed since `before`, also in nested dicts."""
    merged = dict(theirs)
    for key in {**before, **mine}:
        if key not in mine:
            merged.pop(key, None)
        elif all(isinstance(side.get(key), dict) for side in (before, mine, theirs)):
            merged[key] = _merged(before[key], mine[key], theirs[key])
        elif key not in before or _differ(before[key], mine[key]):
            merged[key] = mine[key]
    return merged


def _differ(before: Any, mine: Any) -> bool:
    """Compare two values as stored: Python's == does not tell 1 from True or 1.0."""
    try:
        return codec.encode(before, "before", codec.ANY_SIZE)[0] != codec.encode(mine, "mine", codec.ANY_SIZE)[0]
    except InvalidInput:
        return True  # the update will name what cannot be stored
