"""Checkpoints and rollbacks by a caller that does not hold the session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from saveslot.errors import Conflict, InvalidTransition
from saveslot.manager.update import advance, named, show
from saveslot.session.answers import answered
from saveslot.session.change import change
from saveslot.session.draft import Draft, Save
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.held import rolled_back
from saveslot.session.log import Log
from saveslot.session.model import (
    AgentSession,
    Checkpoint,
    stand,
)
from saveslot.session.refusals import overtaken
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import content, once_in
from saveslot.values.checks import Data
from saveslot.values.lifecycle import TRANSITIONS, SessionState, follow
from saveslot.values.log import Head
from saveslot.values.versions import Version, as_version


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
        show(value, draft, checkpoint)
        stand(value, draft.at.state)
    return checkpoint
