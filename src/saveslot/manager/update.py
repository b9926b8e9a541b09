"""Session values: storing what was staged and changed in one, and loading what other callers wrote."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any, cast

from saveslot import codec
from saveslot.errors import Conflict, InvalidInput
from saveslot.manager.reading import checkpoints_of
from saveslot.session.change import change
from saveslot.session.draft import ABOUT, Draft
from saveslot.session.engine import Space, passerby, scope_of
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
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import once_in
from saveslot.values.checks import Data, as_data, as_labels, as_name, now
from saveslot.values.kinds import DATA_KINDS, SIDE_KINDS, VERBS, Kind
from saveslot.values.lifecycle import follow
from saveslot.values.log import Head, Verdict, Wanted, micros, moment
from saveslot.values.versions import Version, as_version

# While a session is held, only its owner writes these.
OWNERS_ALONE = DATA_KINDS | {Kind.COMPLETED}


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
    return {**parts_of(session), "staged": staged}


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
    about = parts_of(session)
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


def parts_of(session: AgentSession) -> Data:
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


def seen_of(log: Log, session: AgentSession, draft: Draft) -> Seen:
    texts = dict.fromkeys(ABOUT, b"{}") if session.seen is None else session.seen.about
    if log.at.about is not None:
        texts = texts | {part: bytes(text) for part, text in log.at.about.texts.items()}
    kept = born(session) if session.seen is None else session.seen.born
    newest = next(entry for entry in reversed(draft.group.entries) if entry.kind not in SIDE_KINDS)
    named = (newest.seq, newest.append_id)
    return Seen(log.key, log.at.seq, log.at.append_id or b"", texts, log.at.state, kept, named, log.home)


def show(session: AgentSession, draft: Draft, checkpoint: Checkpoint) -> None:
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
    session.seen = seen_of(log, session, draft)
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
