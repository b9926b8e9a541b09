"""Writes that follow what their caller has read, for adapters whose callers pass ids, not session values."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from saveslot.codec.excerpt import excerpt
from saveslot.errors import Conflict, NotFound
from saveslot.manager import SessionManager
from saveslot.manager.changes import held_here
from saveslot.manager.create import create_paused
from saveslot.manager.reading import known
from saveslot.session.held import Held
from saveslot.session.lookup import with_a_fresh_head
from saveslot.session.model import Seen
from saveslot.stores.wire.loops import running
from saveslot.values.checks import Data
from saveslot.values.log import Head
from saveslot.values.versions import version

R = TypeVar("R")
Wanted = tuple[str, dict[str, int] | None, Sequence[str]]  # a session, and the arguments of `look` after it


class Sight(msgspec.Struct, frozen=True):
    """What a caller has seen of a session: its newest entry, and the number of the newest one with data."""

    key: bytes = b""  # empty: there was no session
    version: str | None = None
    data_seq: int = 0

    def shows_state_of(self, other: Sight) -> bool:
        return (self.key, self.data_seq) == (other.key, other.data_seq)


NOTHING = Sight()


class Turns:
    """One call at a time for each name, in the event loop of the calls: `async with turns.of(session_id):`."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None

    def of(self, name: str) -> asyncio.Lock:
        here = running()
        if self._loop is not here:
            self._locks, self._loop = WeakValueDictionary(), here
        return self._locks.setdefault(name, asyncio.Lock())


class New(msgspec.Struct, frozen=True):
    """What a session becomes if it is not there."""

    agent_type: str
    session_id: str
    context: Data | None = None
    labels: dict[str, str] | None = None


@with_a_fresh_head
async def look(
    sessions: SessionManager, session_id: str, last: dict[str, int] | None, keys: Sequence[str] = ()
) -> tuple[Data, Sight]:
    """Return the newest state, and what its reader has seen; with `last`, only `keys` and the ends of those lists."""
    unknown = (sessions.namespace, session_id) not in sessions.engine.cache
    head = await sessions.reader.head(session_id, state=last is None and unknown)
    return await _shown(sessions, head, last, keys)


@with_a_fresh_head
async def look_at_all(sessions: SessionManager, *wanted: Wanted) -> list[tuple[Data, Sight]]:
    """`look` at several sessions: their heads are of one read, in this order, and most need no other."""
    heads = await sessions.reader.heads([session_id for session_id, *_ in wanted])
    shown = (_shown(sessions, head, last, keys) for head, (_, last, keys) in zip(heads, wanted, strict=True))
    return await asyncio.gather(*shown)


async def _shown(
    sessions: SessionManager, head: Head | None, last: dict[str, int] | None, keys: Sequence[str]
) -> tuple[Data, Sight]:
    if head is None:
        return {}, NOTHING
    if head.row.locked is not None:
        raise head.row.locked
    newest = await sessions.reader.newest(head)
    sight = Sight(head.row.key, version(newest.seq, newest.append_id), head.last.data_seq)
    if last == {} and not keys:
        return {}, sight
    if (state := known(sessions, head)) is not None:
        return state.value() if last is None else excerpt(state, keys, last), sight
    entry = await sessions.reader.data_entry(head, head.last)
    if entry is None:
        return {}, sight
    if last is None:
        return (await sessions.reader.timeline(head, [entry])).state(entry).value(), sight
    return await sessions.reader.part(head, entry, keys, last), sight


async def glance(
    sessions: SessionManager, session_id: str, last: dict[str, int], keys: Sequence[str] = ()
) -> tuple[Data, Sight]:
    """Like `look`, but as of this process's last write, if it knows the state: no read, and perhaps not the newest. For
    a write that follows it: that is a `Conflict` if another process wrote since, and then it is time to look.
    """
    log = sessions.engine.cache.get((sessions.namespace, session_id))
    state = None if log is None else log.ready
    if log is None or state is None or held_here(sessions, (sessions.namespace, session_id)) is not None:
        return await look(sessions, session_id, last, keys)
    at = log.at
    return excerpt(state, keys, last), Sight(log.key, version(at.seq, at.append_id or b""), at.data_seq)


async def write(
    sessions: SessionManager, new: New, name: str, seen: Sight | None, change: Data, metadata: Data | None = None
) -> Sight:
    """Save a change after what `seen` shows; None: after whatever is newest. Creates a session that is not there."""
    follows = seen
    while True:
        try:
            return await _saved(sessions, new, name, follows, change, metadata)
        except NotFound:
            if seen is not None:
                raise overtaken(new.session_id, seen, NOTHING) from None
            follows = NOTHING
        except Conflict:
            _, newest = await look(sessions, new.session_id, {})
            if seen is None:
                follows = None
            elif newest.shows_state_of(seen):
                follows = newest
            else:
                raise overtaken(new.session_id, seen, newest) from None


async def _saved(
    sessions: SessionManager, new: New, name: str, follows: Sight | None, change: Data, metadata: Data | None
) -> Sight:
    held = own_hold(sessions, new.session_id)
    if held is not None:  # no other process can have written
        saved = await held.checkpoint(name, metadata=metadata, **change)
        return Sight(held.key, saved.version, saved.seq)
    if follows == NOTHING:
        [data] = change.values()  # all there is to begin with: the state, or its only key
        created = await create_paused(
            sessions, new.agent_type, new.session_id, name, data, metadata, context=new.context, labels=new.labels
        )
        seen = cast("Seen", created.seen)
        return Sight(seen.key, created.version, seen.seq)
    key, version = (b"", None) if follows is None else (follows.key, follows.version)
    saved = await sessions.checkpoint(new.session_id, name, metadata=metadata, seen=version, **change)
    return Sight(key, saved.version, saved.seq)


def own_hold(sessions: SessionManager, session_id: str) -> Held | None:
    """Return this process's hold of a conversation, to write under its lease. When it ends, the conversation rests
    paused, as those that nobody held do: no sweep fails it.
    """
    held = held_here(sessions, (sessions.namespace, session_id))
    if held is not None:
        held.rests = True
    return held


def overtaken(session_id: str, seen: Sight, newest: Sight) -> Conflict:
    what = "deleted" if not newest.key else "changed" if newest.key == seen.key else "created"
    return Conflict(
        f"session {session_id}: another caller {what} it after this one read it (entry {seen.data_seq} was the newest "
        f"with data, now {newest.data_seq}); nothing was stored: read it again, for a conversation by another run",
        seen=seen.data_seq,
        head=newest.data_seq,
    )


async def settled(work: Coroutine[Any, Any, R]) -> R:
    """Await a write to its end, also if the caller is cancelled: what an object has seen then includes it."""
    answer: asyncio.Future[R] = running().create_future()
    task = running().create_task(deliver(work, answer))
    try:
        return await answer
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        raise


async def deliver(work: Coroutine[Any, Any, R], answer: asyncio.Future[R]) -> None:
    """Run `work` as a task of its own, for a caller that awaits the answer and may be cancelled.

    A shielded task would wake its caller a turn of the event loop later.
    """
    try:
        result = await work
    except Exception as exc:  # noqa: BLE001  (the caller gets it)
        if not answer.done():
            answer.set_exception(exc)
    else:
        if not answer.done():
            answer.set_result(result)
    finally:
        answer.cancel()  # does nothing to one that is set
