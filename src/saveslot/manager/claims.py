"""Ownership: `hold` takes one session, `claim` and `claims` take over those whose workers died or left by an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from saveslot.errors import Conflict, InvalidInput, LeaseHeld, NotFound, SaveslotError
from saveslot.manager.create import create_session
from saveslot.session import attempts
from saveslot.session.attempts import Limit
from saveslot.session.draft import Draft
from saveslot.session.engine import CLAIM_BATCH, Space
from saveslot.session.hearing import HEARD
from saveslot.session.held import Held
from saveslot.session.log import Log
from saveslot.session.model import AgentSession
from saveslot.session.refusals import refusal
from saveslot.session.worker import Worker, jittered
from saveslot.values.checks import EVER, Data, Span, as_count, as_data, as_label, as_labels, as_name, as_span
from saveslot.values.kinds import Kind
from saveslot.values.lifecycle import SessionState, follow
from saveslot.values.log import NO_WORKER, Head, Outcome, Query

# Seconds between attempts while `hold(wait=…)` waits for another owner.
RETRY = 0.1
# Seconds between looks while `claim(wait=…)` waits for an orphan: doubled from the first to the longest.
FIRST, LONGEST = 0.1, 1.0
# Orphans looked at together at least: some may have to wait for their next attempt.
LOOKED = 20

# Registers a worker of its own for each session that is taken, in place of this process's.
Register = Callable[[], Awaitable[Worker]]

# A session to take, and its failed attempts so far.
Candidate = tuple[Head, Log, int]


BLOCK = "write `async with sessions.hold(…) as held:`, or without a block `held = await sessions.take(…)`"


class Holding:
    """The block of `hold`."""

    def __init__(self, session_id: str, take: Callable[[], Awaitable[Held]]) -> None:
        self._session_id, self._take = session_id, take
        self._held: Held | None = None

    async def __aenter__(self) -> Held:
        held = self._held = await self._take()
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is not None:
            await self._held.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<hold of {self._session_id}: {BLOCK}>"

    if not TYPE_CHECKING:  # or every attribute would pass a type checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"sessions.hold(…) has no {name!r}: {BLOCK}")

        def __await__(self) -> Any:
            raise TypeError(BLOCK)

        def __enter__(self) -> Any:
            raise TypeError(BLOCK)

        def __exit__(self, *_: object) -> None: ...


def hold(
    sessions: Space,
    id: AgentSession | str,
    *,
    create: str | None = None,
    user_id: str = "",
    context: Data | None = None,
    metadata: Data | None = None,
    labels: dict[str, str] | None = None,
    data: Data | None = None,
    wait: Span = 0,
) -> Holding:
    """Own the session until the block ends or the process dies. `LeaseHeld` if another worker has it for `wait` s.

    If there is none, `create` is the agent type of a new one, and the arguments after it are as in `create_session`; a
    session that exists stays as it is. Leaving the block by an exception lets other workers claim the session.
    """
    new: Data = {"user_id": user_id, "context": context, "metadata": metadata, "labels": labels, "data": data}
    return Holding(str(getattr(id, "session_id", id)), partial(take, sessions, id, create=create, **new, wait=wait))


async def take(
    sessions: Space,
    id: AgentSession | str,
    *,
    create: str | None = None,
    user_id: str = "",
    context: Data | None = None,
    metadata: Data | None = None,
    labels: dict[str, str] | None = None,
    data: Data | None = None,
    wait: Span = 0,
) -> Held:
    """`hold` without a block: call `release` yourself."""
    session_id = as_name(getattr(id, "session_id", id), "id")
    new: Data = {"user_id": user_id, "context": context, "metadata": metadata, "labels": labels, "data": data}
    if create is None:
        for name, value in new.items():
            if value is not None and value != "":
                raise InvalidInput(name, "is for a new session; pass create=, its agent type, too")
    else:  # now, or they would be refused only while there is no such session
        as_label(create, "create")
        as_label(user_id, "user_id")
        as_labels(labels)
        for name in ("context", "metadata", "data"):
            as_data(new[name], name)
    end = asyncio.get_running_loop().time() + as_span(wait, "wait")
    while True:
        try:
            held = await taken(sessions, session_id)
            await held.__aenter__()
            _release_unheard(sessions, [held])
            return held
        except NotFound:
            if create is None:
                raise
            # Several callers may create it at once: one does, and the others wait for their turn.
            before = HEARD.set(None)  # this call gets the answer
            try:
                await create_session(sessions, create, **new, session_id=session_id, exist_ok=True)
            finally:
                HEARD.reset(before)
        except LeaseHeld:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise
            await asyncio.sleep(min(left, jittered(RETRY)))


async def claim(
    sessions: Space,
    agent_type: str | None = None,
    limit: int = 10,
    *,
    released: bool = False,
    wait: Span = 0,
    max_attempts: Limit = ...,
) -> list[Held]:
    """Take over active sessions whose workers died or left by an exception, each by one claimer.

    `released`: also sessions without an owner. `wait`: seconds to wait for the first one. A session is claimed again at
    once after its first failed attempt, after a growing pause (`backoff`) after later ones; after `max_attempts` of
    them without a new checkpoint or finished step it is failed instead. Enter each: `async with held`. Sessions never
    entered are orphans again once this manager is closed.
    """
    limit, most = as_count(limit, "limit", 1), attempts.as_limit(max_attempts)
    agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
    end = asyncio.get_running_loop().time() + as_span(wait, "wait")
    pause = FIRST
    while True:
        claimed = await claimed_now(sessions, agent_type, limit, most, released=released)
        left = end - asyncio.get_running_loop().time()
        if claimed or left <= 0:
            _release_unheard(sessions, claimed)
            return claimed
        await asyncio.sleep(min(left, jittered(pause)))
        pause = min(2 * pause, LONGEST)


async def claims(
    sessions: Space, agent_type: str | None = None, *, released: bool = False, max_attempts: Limit = ...
) -> AsyncIterator[Held]:
    """Claim sessions one by one, forever: `async for held in sessions.claims(…)`, then `async with held`.

    Each is claimed only when the loop is ready for it. While there is none, it waits.
    """
    while True:
        for held in await claim(sessions, agent_type, 1, released=released, wait=EVER, max_attempts=max_attempts):
            yield held


async def due(sessions: Space, heads: Sequence[Head], most: Limit = ...) -> list[tuple[Head, int]]:
    """Return the orphans that may be taken now, with their failed attempts.

    Cancelled ones and those without attempts left are failed. `heads` belong to dead workers, or to no worker.
    """
    engine = sessions.engine
    pasts = await asyncio.gather(*(attempts.read(engine.vault, head) for head in heads))
    ready: list[tuple[Head, int]] = []
    ending: list[Draft] = []
    for head, past in zip(heads, pasts, strict=True):
        limit = attempts.limit(head, most, engine.max_attempts)
        if past.cancelled is not None:
            ending.append(attempts.cancellation(sessions.engine.vault, head, past.cancelled))
        elif limit is not None and past.failed >= limit:
            ending.append(attempts.exhaustion(sessions.engine.vault, head, past))
        elif past.due(head.row.now, engine.backoff):
            ready.append((head, past.failed))
    await _end(sessions, ending)
    return ready


async def startable(sessions: Space, ids: Sequence[str]) -> list[str]:
    """Return which of these orphans may be taken now; fail those that `claim` would fail."""
    heads = await sessions.engine.vault.heads([(sessions.namespace, one) for one in ids])
    orphans = [head for head in heads if head is not None and _is_orphan(head)]
    return [head.row.session_id for head, _ in await due(sessions, orphans)]


def _is_orphan(head: Head) -> bool:
    return head.row.lease is not None and not head.row.left and head.row.locked is None


async def _end(sessions: Space, drafts: Sequence[Draft]) -> None:
    """Fail orphans. If another worker was faster, it decides."""
    if not drafts:
        return
    worker = await sessions.engine.alive()
    for draft in drafts:
        draft.group.only_orphan = worker.patience
    await sessions.engine.vault.append([draft.group for draft in drafts])


async def claimed_now(
    sessions: Space,
    agent_type: str | None,
    limit: int,
    most: Limit,
    *,
    released: bool,
    register: Register | None = None,
) -> list[Held]:
    """Take over what there is now, without waiting."""
    await sessions.engine.given_back()
    worker = await sessions.engine.alive()
    silent = Query(namespace=sessions.namespace, agent_type=agent_type, state=SessionState.ACTIVE.value, orphan_for=0)
    orphans = replace(silent, orphan_for=worker.patience)
    claimed: list[Held] = []
    try:
        if sessions.namespace in worker.strays:  # a claim's answer was lost: no caller got its sessions
            await _claim(
                sessions, replace(orphans, orphan_for=None, owner=worker.row.id), limit, most, claimed, register
            )
        await _claim(sessions, orphans, limit, most, claimed, register)
        if released and len(claimed) < limit:
            await _claim(sessions, replace(orphans, orphan_for=None, unowned=True), limit, most, claimed, register)
        if not claimed and worker.trial and await _any(sessions, silent) and await worker.judging():
            await _claim(sessions, replace(orphans, orphan_for=worker.patience), limit, most, claimed, register)
    except BaseException:
        _abandon(sessions, claimed)
        raise
    return claimed


async def _any(sessions: Space, query: Query) -> bool:
    """True if there are such sessions of workers that may be alive."""
    vault = sessions.engine.vault
    rows = await vault.find(query, None, CLAIM_BATCH)
    return any(row.owner != NO_WORKER and vault.open_row(row).locked is None for row in rows)


async def _claim(
    sessions: Space, query: Query, limit: int, most: Limit, claimed: list[Held], register: Register | None
) -> None:
    vault, cache = sessions.engine.vault, sessions.engine.cache
    after: tuple[int, bytes] | None = None
    while len(claimed) < limit:
        rows = await vault.find(query, after, max(CLAIM_BATCH, limit - len(claimed)))
        if not rows:
            break
        after = (rows[-1].created_at, rows[-1].key)
        keys = [row.key for row in rows]
        keys.sort(key=lambda _: os.urandom(8))  # claimers that start at once take different ones
        while keys and len(claimed) < limit:
            part = keys[: min(CLAIM_BATCH, max(LOOKED, limit - len(claimed)))]
            del keys[: len(part)]
            heads = [head for head in await vault.heads(part) if head is not None and _open(sessions, head, query)]
            if query.orphan_for is not None:
                ready = await due(sessions, heads, most)
            elif query.owner is not None:  # taken by this worker, though no caller got them: that was no attempt
                ready = [(head, (await attempts.read(vault, head)).failed - 1) for head in heads]
            else:
                ready = [(head, 0) for head in heads]
            while ready and len(claimed) < limit:
                chosen, ready = ready[: limit - len(claimed)], ready[limit - len(claimed) :]
                candidates = [(head, cache.log(head), failed) for head, failed in chosen]
                orphans = query.orphan_for is not None
                claimed += await _take_all(sessions, candidates, orphans=orphans, register=register)


def _open(sessions: Space, head: Head, query: Query) -> bool:
    """True if the session still matches the query. Of this worker's own sessions, only those that no caller got."""
    row, worker = head.row, sessions.engine.worker
    if row.locked is not None:  # sealed with a key that this worker lacks: leave it to others
        return False
    if query.owner is not None and worker is not None:
        stray = row.owner == query.owner and row.lease not in worker.holders
        return stray and head.last.kind is Kind.CLAIMED and row.state == query.state
    return row.state == query.state and (row.lease is None) == query.unowned


async def taken(sessions: Space, session_id: str, register: Register | None = None, request: bytes = b"") -> Held:
    """Take the session if it is free or an orphan; else `LeaseHeld`. `request`: of a call with an idempotency key."""
    engine = sessions.engine
    starting = engine.start(engine.alive())  # writes the worker row the first time, while the session is read
    starting.add_done_callback(_heard)
    await asyncio.sleep(0)  # let it begin: a short read does not yield to the loop
    await engine.given_back()
    while True:
        head = await sessions.lookup.existing(session_id, state=True)
        follow(SessionState(head.row.state), "hold")
        log, free = engine.cache.log(head), head.row.lease is None
        worker = await starting
        # This worker's, but no caller got it: taken by a write whose answer was lost.
        stray = head.row.owner == worker.row.id and head.row.lease not in worker.holders
        orphan = not free and not stray
        if orphan and head.row.left:
            raise await sessions.lookup.held(head)
        past = attempts.NONE if free else await attempts.read(engine.vault, head)
        if past.cancelled is not None:
            await _end(sessions, [attempts.cancellation(sessions.engine.vault, head, past.cancelled)])
            candidates: list[Candidate] = []
        else:
            candidates = [(head, log, past.failed - stray)]  # a stray's was no attempt
        # Its state is read while it is being taken: two round trips in all, unless its owner is dead.
        work = _take_all(sessions, candidates, orphans=orphan, register=register, request=request)
        taking = asyncio.ensure_future(work)
        try:
            ours, state = await asyncio.gather(taking, log.load_data(), return_exceptions=True)
        except asyncio.CancelledError:
            engine.give_back(_unwanted(taking))
            raise
        if isinstance(ours, BaseException):
            raise ours
        if ours:
            if isinstance(state, BaseException) and not isinstance(state, Conflict):
                _abandon(sessions, ours)
                raise state
            return ours[0]
        [now] = await engine.vault.heads([head.row.key])
        if now is not None and now.last.append_id == head.last.append_id and not await worker.judging():
            raise await sessions.lookup.held(head)  # its owner is silent, but not for long enough


async def _take_all(
    sessions: Space, candidates: list[Candidate], *, orphans: bool, register: Register | None, request: bytes = b""
) -> list[Held]:
    """Take these, except those that another worker took first. If the caller is cancelled, release them."""
    task = sessions.engine.start(_take(sessions, candidates, orphans=orphans, register=register, request=request))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        sessions.engine.give_back(_unwanted(task))
        raise


async def _take(
    sessions: Space, candidates: list[Candidate], *, orphans: bool, register: Register | None, request: bytes
) -> list[Held]:
    worker = await sessions.engine.alive()
    # Evaluated now, not when the sessions were found: this process, and the whole store, may have been stopped since.
    patience = worker.patience if orphans else None
    taking: list[tuple[Held, Draft]] = []
    for head, log, failed in candidates:
        held = Held(sessions, worker if register is None else await register(), head, log)
        draft = held.drafted(Kind.CLAIMED if orphans else Kind.TAKEN, os.urandom(16), failed, head.row.beaten)
        draft.group.only_orphan = patience
        draft.group.entries[-1].request = request
        taking.append((held, draft))
    try:
        verdicts = await sessions.engine.vault.append([draft.group for _, draft in taking])
    except BaseException:
        for held, _ in taking:
            held.untaken()
        worker.strays.add(sessions.namespace)
        raise
    ours: list[Held] = []
    lost: SaveslotError | None = None
    for (held, draft), verdict in zip(taking, verdicts, strict=True):
        if verdict.outcome in {Outcome.APPENDED, Outcome.ALREADY}:
            held.taken(draft, verdict)
            ours.append(held)
        else:
            held.untaken()
            if verdict.outcome is Outcome.LOST:
                lost = refusal(held.session.session_id, verdict, draft.group.entries[0].seq - 1)
    if lost is not None:
        _abandon(sessions, ours)
        raise lost
    return ours


def _abandon(sessions: Space, taken: list[Held]) -> None:
    """Release sessions that no caller got."""
    for held in taken:
        sessions.engine.give_back(held.give_back())


def _release_unheard(sessions: Space, taken: list[Held]) -> None:
    """Release these if a synchronous caller was interrupted before it got them."""
    if (unheard := HEARD.get()) is not None:
        unheard.append(lambda: _abandon(sessions, taken))


async def _unwanted(taking: asyncio.Future[list[Held]]) -> None:
    """Release what is being taken for a caller that was cancelled."""
    with suppress(SaveslotError, asyncio.CancelledError):
        await asyncio.gather(*(held.give_back() for held in await taking))


def _heard(starting: asyncio.Future[Worker]) -> None:
    """Mark a failed registration as seen: if the session cannot be taken, asyncio must not log it."""
    if not starting.cancelled():
        starting.exception()
