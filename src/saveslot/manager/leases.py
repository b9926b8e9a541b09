"""Leases: sessions held by programs elsewhere, which renew them by requests.

Each lease is a worker row of its own, so it needs no process here: any server of the store can renew it, write under it
and release it, and it outlives the restart of the one that gave it. Once it was not renewed for its TTL, the session is
an orphan like that of a worker that died.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

from saveslot.errors import Conflict, InvalidInput, LeaseHeld, LeaseLost, SaveslotError, Unavailable
from saveslot.manager.claims import FIRST, LONGEST, RETRY, claimed_now, taken
from saveslot.manager.lifecycle import repeated
from saveslot.session import attempts
from saveslot.session.attempts import Limit
from saveslot.session.engine import Engine, Space
from saveslot.session.held import Held
from saveslot.session.requests import entry_of, request
from saveslot.session.worker import Tenant, jittered, new_worker
from saveslot.values.checks import Data, Span, as_count, as_label, as_name, as_span
from saveslot.values.log import NO_WORKER, Head, Worker as WorkerRow
from saveslot.values.versions import version

R = TypeVar("R")

# Seconds that a lease lasts without a renewal.
TTL = 20
# Leases whose logs this process keeps at hand.
KEPT = 1000
# Attempts of a write that follows whatever is newest: another server may write under the same lease.
ATTEMPTS = 10


class Lease(msgspec.Struct, frozen=True):
    """A lease on a session. `ttl`: seconds that it lasts from its last renewal."""

    session_id: str
    lease_id: str
    worker: str
    fence: int
    ttl: float
    version: str
    cancelled: bool = False

    def to_dict(self) -> Data:
        return msgspec.structs.asdict(self)


class Renewal(msgspec.Struct, frozen=True):
    """What became of one lease of a batch: `code` and `message` say why it was not renewed."""

    session_id: str
    lease_id: str
    renewed: bool
    cancelled: bool = False
    code: str | None = None
    message: str | None = None

    def to_dict(self) -> Data:
        return msgspec.structs.asdict(self)


async def lease(sessions: Space, id: str, worker: str, *, wait: Span = 0, idempotency_key: str | None = None) -> Lease:
    """Take a session; `LeaseHeld` if another worker has it for `wait` seconds.

    The same call with the same `idempotency_key` gets the same lease, renewed; `LeaseLost` if that has ended.
    """
    session_id, name = as_name(id, "id"), as_name(worker, "worker")
    call_id = request(idempotency_key, "lease", {"worker": name})
    end = asyncio.get_running_loop().time() + as_span(wait, "wait")
    earlier = await _earlier(sessions, session_id, call_id)
    while earlier is None:
        try:
            held = await taken(sessions, session_id, lambda: _registered(sessions, name), call_id)
            return _given(sessions, held)
        except LeaseHeld:
            if (earlier := await _earlier(sessions, session_id, call_id)) is not None:  # the same call, just now
                break
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise
            await asyncio.sleep(min(left, jittered(RETRY)))
    return await renew_one(sessions, session_id, earlier)


async def _earlier(sessions: Space, id: str, call_id: bytes) -> str | None:
    """Return the id of the lease that the same call took before."""
    if not call_id:
        return None
    head = await sessions.lookup.existing(id)
    entry = await entry_of(sessions.engine.vault, head.row.key, call_id)
    return None if entry is None else (entry.lease or b"").hex()


async def lease_orphans(
    sessions: Space,
    worker: str,
    agent_type: str | None = None,
    limit: int = 10,
    *,
    released: bool = False,
    wait: Span = 0,
    max_attempts: Limit = ...,
) -> list[Lease]:
    """Take over sessions as `claim` does, each under a lease of its own."""
    limit, most, name = as_count(limit, "limit", 1), attempts.as_limit(max_attempts), as_name(worker, "worker")
    agent_type = None if agent_type is None else as_label(agent_type, "agent_type")
    end, pause = asyncio.get_running_loop().time() + as_span(wait, "wait"), FIRST
    while True:
        claimed = await claimed_now(
            sessions, agent_type, limit, most, released=released, register=lambda: _registered(sessions, name)
        )
        left = end - asyncio.get_running_loop().time()
        if claimed or left <= 0:
            return [_given(sessions, held) for held in claimed]
        await asyncio.sleep(min(left, jittered(pause)))
        pause = min(2 * pause, LONGEST)


async def renew(sessions: Space, leases: Sequence[tuple[str, str]]) -> list[Renewal]:
    """Renew leases, each a session's id and the lease's."""
    vault = sessions.engine.vault
    heads = await vault.heads([(sessions.namespace, as_name(session_id, "session_id")) for session_id, _ in leases])
    return list(
        await asyncio.gather(
            *(_renewed(sessions, *one, head) for one, head in zip(leases, heads, strict=True)),
        )
    )


async def renew_one(sessions: Space, id: str, lease_id: str) -> Lease:
    """Renew a lease; `LeaseLost` if it does not count any more."""
    head = await sessions.lookup.existing(id)
    await _beat(sessions, head, lease_id)
    past = await attempts.read(sessions.engine.vault, head)
    newest, row = await sessions.lookup.newest(head), head.row
    known = version(newest.seq, newest.append_id)
    return Lease(row.session_id, lease_id, row.worker, row.fence, float(TTL), known, past.cancelled is not None)


async def end_lease(
    sessions: Space, id: str, lease_id: str, error: str | None = None, *, idempotency_key: str | None = None
) -> None:
    """Give up a lease; with an error, other workers may claim the session, as when a `hold` block raises.

    The same call with the same `idempotency_key` does nothing.
    """
    call_id = request(idempotency_key, "release", {"lease_id": lease_id, "error": error})
    if await repeated(sessions, id, call_id):
        return
    held = await _held(sessions, id, lease_id)
    await held.end(error, call_id)
    if held.worker.parting:
        raise Unavailable("the store did not answer, so the lease may count until its time is over; retry")
    await _retired(sessions, held)


async def under(
    sessions: Space,
    id: str,
    lease_id: str,
    seen: str | None,
    write: Callable[[Held], Awaitable[R]],
    *,
    fresh: bool = False,
) -> R:
    """Write under a lease. Another server may write under the same one: then decide again after what it wrote.

    `fresh`: `write` may decide to write nothing, so it is called with the session as it is now.
    """
    if fresh:
        _forget(sessions, lease_id)
    for attempt in range(1, ATTEMPTS + 1):
        held = await _held(sessions, id, lease_id)
        try:
            answer = await write(held)
        except Conflict:
            _forget(sessions, lease_id)
            if attempt == (ATTEMPTS if seen is None else 2):  # what is kept here may be older than what was seen
                raise
            continue
        except SaveslotError:
            _forget(sessions, lease_id)
            raise
        if not held.holds:
            await _retired(sessions, held)
        return answer
    raise AssertionError  # the last attempt returns or raises


async def _renewed(sessions: Space, session_id: str, lease_id: str, head: Head | None) -> Renewal:
    try:
        if head is None:
            raise _lost(session_id)
        await _beat(sessions, head, lease_id)
        past = await attempts.read(sessions.engine.vault, head)
    except (LeaseLost, InvalidInput) as exc:
        return Renewal(session_id, lease_id, renewed=False, code=exc.code, message=str(exc))
    return Renewal(session_id, lease_id, renewed=True, cancelled=past.cancelled is not None)


async def _beat(sessions: Space, head: Head, lease_id: str) -> None:
    row = head.row
    if row.lease != _as_lease(lease_id) or row.owner is None or row.owner == NO_WORKER:
        raise _lost(row.session_id)
    [at] = await sessions.engine.vault.beat((), WorkerRow(row.owner, row.worker, TTL * 1_000_000))
    if not at:
        raise _lost(row.session_id)


async def _registered(sessions: Space, name: str) -> Tenant:
    row = WorkerRow(new_worker(sessions.engine.vault), name, TTL * 1_000_000, first=True)
    await sessions.engine.vault.beat((), row)
    row.first = False
    return Tenant(row)


def _given(sessions: Space, held: Held) -> Lease:
    _keep(sessions, held)
    return Lease(held.id, held.lease, held.worker.name, held.fence, float(TTL), held.session.version)


async def _retired(sessions: Space, held: Held) -> None:
    """Remove what a lease that has ended left: its worker owns nothing any more."""
    _forget(sessions, held.lease)
    await sessions.engine.vault.beat((), WorkerRow(held.worker.row.id, held.worker.name, 0))


# Leases at hand, the least used first: a write needs no read of the head and the state as long as nobody else writes.
_kept: WeakKeyDictionary[Engine, OrderedDict[tuple[str, str], Held]] = WeakKeyDictionary()


def _keep(sessions: Space, held: Held) -> None:
    kept = _kept.setdefault(sessions.engine, OrderedDict())
    kept[sessions.namespace, held.lease] = held
    if len(kept) > KEPT:
        kept.popitem(last=False)


def _forget(sessions: Space, lease_id: str) -> None:
    if (kept := _kept.get(sessions.engine)) is not None:
        kept.pop((sessions.namespace, lease_id), None)


async def _held(sessions: Space, id: str, lease_id: str) -> Held:
    kept = _kept.setdefault(sessions.engine, OrderedDict())
    held = kept.get((sessions.namespace, lease_id))
    if held is not None and held.id == id and held.holds:
        kept.move_to_end((sessions.namespace, lease_id))
        return held
    lease = _as_lease(lease_id)
    head = await sessions.lookup.existing(id, state=True)
    row = head.row
    if row.lease != lease or row.owner is None or row.owner == NO_WORKER:
        raise _lost(id)
    tenant = Tenant(WorkerRow(row.owner, row.worker, TTL * 1_000_000))
    held = Held(sessions, tenant, head, sessions.engine.cache.log(head))
    held.regain(lease, await attempts.read(sessions.engine.vault, head), await sessions.lookup.newest(head))
    _keep(sessions, held)
    return held


def _as_lease(lease_id: str) -> bytes:
    try:
        return bytes.fromhex(lease_id)
    except ValueError:
        raise InvalidInput("lease_id", f"{lease_id!r} is not the id of a lease") from None


def _lost(session_id: str) -> LeaseLost:
    return LeaseLost(f"the lease on session {session_id} has ended or was taken over; stop working on it")
