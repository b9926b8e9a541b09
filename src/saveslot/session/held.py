"""A session held by this process until released. Its writes carry the lease, so after a takeover they are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar, cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import Conflict, InvalidInput, LeaseLost, NotFound, SaveslotError, Unavailable
from saveslot.session import attempts
from saveslot.session.answers import answered
from saveslot.session.change import Author, change
from saveslot.session.draft import ABOUT, Draft, Save
from saveslot.session.engine import Space
from saveslot.session.log import Log
from saveslot.session.model import AgentSession, Checkpoint, Owner
from saveslot.session.records import NewRecord
from saveslot.session.refusals import refusal
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import CALL, Calls, Scope, content, once_in
from saveslot.session.runs import Runs
from saveslot.session.signatures import AsyncSteps
from saveslot.session.transition import Transition
from saveslot.session.worker import Worker
from saveslot.session.working import Effect, WorkingCopy, kept
from saveslot.stores import Store
from saveslot.values.checks import Data, as_data
from saveslot.values.kinds import ENDING_KINDS, SIDE_KINDS, Kind
from saveslot.values.lifecycle import SessionState, follow
from saveslot.values.log import Entry, Head, Outcome, Verdict, Wanted, moment
from saveslot.values.versions import Version, as_version

T = TypeVar("T")


# Attributes that are not for users: `dir`, which a REPL completes from, omits them.
INTERNAL = frozenset(
    [
        "blind",
        "by_us",
        "calls",
        "doubt",
        "drafted",
        "end",
        "give_back",
        "heard",
        "holds",
        "follow",
        "keep",
        "key",
        "landed",
        "look",
        "lose",
        "meet",
        "refused",
        "regain",
        "release_soon",
        "reload",
        "rests",
        "running",
        "runs",
        "saving",
        "space",
        "taken",
        "trust",
        "turn",
        "untaken",
        "where",
        "winding_up",
        "worker",
        "working",
        "write_record",
    ]
)


def _where(held: Held, _argument: object) -> Scope:
    return held.where


class Held(AsyncSteps):
    """A session held by its one owner: `async with sessions.hold(id) as held`."""

    def __init__(self, space: Space, worker: Worker, head: Head, log: Log) -> None:
        self.session: AgentSession = space.lookup.session(head)  # for reading: the verbs are those of `held`
        self.session.by_holder = True
        self.lost: asyncio.Event = asyncio.Event()  # set when another worker may own the session
        self.cancelled: asyncio.Event = asyncio.Event()  # set when the session was cancelled: save and stop
        self._space = space
        self._lookup = space.lookup
        self.worker = worker
        self._log = log
        self._lease = b""
        self.rests = False  # pause the session when it is released without an error
        self._claimed = False  # from a dead owner, or one that left by an error
        self._attempts = 0  # failed ones before this one, since the last new checkpoint or finished step
        self._reason = ""  # of the cancellation
        self._over: SaveslotError | None = None  # the error that further writes raise
        self.where: Scope = (space.namespace, head.row.session_id)
        self.runs: Runs = Runs(self, log, space.lookup)
        self.working = WorkingCopy()

    async def __aenter__(self) -> Self:
        try:
            await self._log.load_data()
        except BaseException as exc:
            await self.release(error=exc)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.release(error=error)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    @property
    def key(self) -> bytes:
        return self._log.key

    @property
    def space(self) -> Space:
        return self._space

    def __repr__(self) -> str:
        ended = "" if self._over is None else " ended"
        return f"<Held {self.id} seq={self._log.at.seq} fence={self.fence}{ended}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self.where[1]

    @property
    def holds(self) -> bool:
        """False once it was released, or lost."""
        return self._over is None

    @property
    def fence(self) -> int:
        """Fencing token: +1 per new hold, so other systems can refuse a former owner."""
        return self._log.at.fence

    @property
    def lease(self) -> str:
        """The id of this hold in the log, as hex."""
        return self._lease.hex()

    @property
    def data(self) -> Data:
        """The working copy of the agent's data: change it, then save it with `checkpoint(name)`.

        It is the same object until `rollback` or `refresh`, which drop unsaved changes; `{}` before the first save.
        """
        if self.working.data is not None:
            return self.working.data
        state = self._log.at.data
        if state is None:
            raise InvalidInput("held", "its data is not loaded; enter it first: async with held")
        return self.working.read(state)

    # Taking and releasing

    def drafted(self, kind: Kind, lease: bytes, failed: int, silent_since: int) -> Draft:
        """Draft the entry that makes this worker the owner, after `failed` failed attempts.

        `silent_since`: the former owner's last heartbeat.
        """
        before = "" if self.session.owner is None else self.session.owner.worker
        draft = self._log.draft()
        draft.take(kind, lease, self.worker.row, before, failed, silent_since if kind is Kind.CLAIMED else 0)
        self._lease, self._log.fence = lease, draft.at.fence
        self._claimed, self._attempts = kind is Kind.CLAIMED, failed
        self.worker.holders[lease] = self
        return draft

    def regain(self, lease: bytes, past: attempts.Attempts, newest: Entry) -> None:
        """Go on with a lease that was taken before, perhaps by another process."""
        self._lease, self._log.fence = lease, self._log.at.fence
        self._attempts = past.failed - 1  # which counts this one as if its owner had died
        if self.session.seen is not None:
            self.session.seen.newest = (newest.seq, newest.append_id)
        if past.cancelled is not None:
            self._reason = past.cancelled
            self.cancelled.set()

    def taken(self, draft: Draft, verdict: Verdict) -> None:
        self._log.at = replace(draft.at, data=self._log.at.data)  # the data may have been loaded meanwhile
        self._log.known.wrote(draft.group)
        self._seen(draft)
        self.session.owner = Owner(self.worker.name, self.worker.ttl, draft.at.fence, moment(verdict.times[0]))
        if draft.group.entries[0].sign:
            self.session.last_heartbeat = moment(verdict.times[0])

    def untaken(self) -> None:
        self.worker.holders.pop(self._lease, None)

    def doubt(self) -> None:
        self.lost.set()

    def trust(self) -> None:
        self.lost.clear()

    def lose(self, why: SaveslotError) -> None:
        """Stop using the session; release it later if the store still counts it as this worker's."""
        self._over = self._over or why
        self.lost.set()
        self.untaken()
        self.worker.strays.add(self.where[0])

    async def release(self, *, error: BaseException | None = None) -> None:
        """Give up ownership; the session keeps its state. Releasing twice is not an error.

        With an `error`, as when an exception leaves the block, other workers may claim the session, and its release
        says why. A cancelled session that was not ended fails.
        """
        failed = error is not None
        await self._leave({"error": attempts.error_text(error), "attempts": self._attempts + 1} if failed else None)

    async def end(self, error: str | None, request: bytes = b"") -> None:
        """Release a lease that another program held; with an error, as when an exception leaves the block.

        `request` is that of a call with an idempotency key.
        """
        await self._leave(None if error is None else {"error": error, "attempts": self._attempts + 1}, request)

    def release_soon(self, error: BaseException) -> None:
        """Release in the background: the caller was interrupted."""
        self._space.engine.give_back(self.release(error=error))

    async def give_back(self) -> None:
        """Release a session that no caller got: an orphan is one again, and this was not an attempt."""
        await self._leave({"attempts": self._attempts} if self._claimed else None)

    async def _leave(self, note: Data | None, request: bytes = b"") -> None:
        if self._over is not None:
            return
        try:
            await self._release(note, request)
        except (LeaseLost, NotFound) as exc:
            self.lose(exc)
        except Unavailable:  # outcome unknown: released when the store is back, or expires
            self.worker.strays.add(self.where[0])
            self.worker.parting[self._lease] = (self.where[0], note)
        finally:  # if cancelled, the release continues in the background
            self._end(self._released())
            self.untaken()

    def _released(self) -> LeaseLost:
        return LeaseLost(f"session {self.where[1]} was released; hold it again to continue")

    def _end(self, why: SaveslotError) -> None:
        self._over = self._over or why

    @once_in(_where)
    async def _release(self, note: Data | None, request: bytes) -> None:
        async def decide(log: Log) -> Draft | None:
            if log.at.lease != self._lease:
                return None
            draft = log.draft()
            if self.cancelled.is_set():
                head = await self._head()
                if head.row.lease != self._lease:
                    return None
                draft = attempts.cancellation(self._lookup.store, head, self._reason)
            else:
                if self.rests and note is None and log.at.state is SessionState.ACTIVE:
                    draft.pause()
                draft.release(note)
            draft.landed = released
            draft.group.entries[-1].request = request
            return draft

        def released(log: Log, _draft: Draft, _verdict: Verdict) -> None:
            self._space.engine.cache.left(self.where, log)
            self._end(self._released())  # before the next caller's turn

        await change(_Leaving(self, self._lookup.store, self._log), decide)
        self._end(self._released())

    async def look(self, head: Head) -> None:
        """Notice what others wrote: that the session was cancelled, or taken away."""
        if self._over is not None or head.last.append_id == self._log.at.append_id:
            return
        if head.row.fence > (self._log.fence or 0):
            self._fenced(head)
        else:
            await self.heard(head)

    async def heard(self, head: Head) -> bool:
        """Read what others wrote since; True if it is nothing but records and a cancellation, which is now noticed."""
        unseen = Wanted([(self._log.at.seq + 1, head.last.seq)], frames=False)
        entries = await self._lookup.store.entries(self._log.key, unseen)
        marks = [entry for entry in entries if entry.kind is Kind.CANCELLED]
        if marks:
            self._reason = attempts.reason_of(marks[-1], f"{self.where[1]}:{marks[-1].seq}")
            self.cancelled.set()
        return all(entry.kind is Kind.CANCELLED or entry.kind in SIDE_KINDS for entry in entries)

    # Author of changes

    blind = False

    @property
    def calls(self) -> Calls:
        return self._space.calls

    @property
    def running(self) -> set[asyncio.Future[Any]]:
        return self._space.running

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[Log]:
        if not self.worker.alive:
            await self._wait_for_worker()
        call = CALL.get()
        if self._over is not None and (call is None or call.draft is None):
            raise self._over  # otherwise this call may be the one that ended the hold
        async with self._log.turns:
            yield self._log

    async def meet(self, log: Log, winding_up: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  (a holder knows the newest entry, or gets a conflict)
        """Refuse to write once another worker may own the session, or it was cancelled."""
        if self._over is not None:
            raise self._over
        if self.cancelled.is_set() and not winding_up:
            raise attempts.stopped(self.where[1], self._reason)

    async def refused(self, log: Log, draft: Draft | None, why: SaveslotError) -> None:  # noqa: ARG002
        if isinstance(why, NotFound):
            self.lose(why)
        elif isinstance(why, LeaseLost):
            self.lose(why)
            await self.reload()
        elif isinstance(why, Conflict):
            await self.reload()
            head = await self._head()
            if head.row.fence != log.fence:
                raise self._fenced(head) from None  # an entry that ends a hold has no lease to compare
            if head.row.lease != self._lease:
                self._fenced(head)
            elif await self.heard(head):  # decide again: the verbs that save or end the session still work
                log.meet(head)
                await log.load_data()
                return
        raise why

    def by_us(self, draft: Draft) -> Draft:
        draft.landed = self.landed
        return draft

    def landed(self, _log: Log, draft: Draft, _verdict: Verdict) -> None:
        self.session.state = draft.at.state
        self._seen(draft)
        if draft.group.body is not None:
            about = codec.read_note(draft.group.body)
            for part in ABOUT:
                setattr(self.session, part, about[part])
        if self.runs.journal is not None:
            self.runs.journal.read(draft.group.entries)
        if self._attempts and any(entry.kind in attempts.PROGRESS_KINDS for entry in draft.group.entries):
            self._attempts = 0
        if draft.at.lease is None:
            self._space.engine.cache.left(self.where, self._log)
            self._end(LeaseLost(f"session {self.where[1]} was released ({draft.at.state})"))
            self.untaken()

    def _has_seen(self, version: Version) -> bool:
        return self.session.seen is not None and version.names(*self.session.seen.newest)

    def follow(self, version: Version | None) -> None:
        """Raise `Conflict` unless the version names the newest entry."""
        if version is not None and not self._has_seen(version):
            raise refusal(self.where[1], Verdict(Outcome.CONFLICT), version.seq)

    def _seen(self, draft: Draft) -> None:
        seen, last = self.session.seen, draft.group.entries[-1]
        if seen is not None and last.kind not in SIDE_KINDS:
            seen.newest = (last.seq, last.append_id)

    async def _wait_for_worker(self) -> None:
        if self._over is not None:
            return
        try:
            await self.worker.ready()
        except LeaseLost as exc:
            self.lose(exc)
        except Unavailable as exc:
            self.lose(LeaseLost(f"session {self.where[1]} may have been taken over: {exc}"))

    async def _head(self) -> Head:
        """Read the head by key: a session recreated with the same id is not this one."""
        [head] = await self._lookup.store.heads([self._log.key])
        if head is None:
            exc = NotFound(f"session {self.where[1]} was deleted; create it again to start over")
            self.lose(exc)
            raise exc
        return head

    def _fenced(self, head: Head) -> LeaseLost:
        verdict = Verdict(Outcome.FENCED, head=head.last)
        exc = refusal(self.where[1], verdict, self._log.at.seq, self._log.fence)
        if not isinstance(exc, LeaseLost):
            exc = LeaseLost(f"session {self.where[1]} was ended by another caller ({head.last.name})")
        self.lose(exc)
        return exc

    async def reload(self) -> None:
        """Reload the data, so that `data` does not show a refused write."""
        self._log.at = replace(self._log.at, data=None)
        await self._log.load_data()

    # The verbs

    async def checkpoint(
        self,
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
        """Save a named checkpoint; durable when this returns. With a name alone it saves `held.data`.

        `data` is the whole new state, and `held.data` becomes equal to it (`data={}` empties it). `put` (values),
        `drop` (keys), `append` (items to add to lists) and `cut` (how many items to take off their ends) combine, or
        `patch` (RFC 6902): these save only what they name, and do the same to `held.data`; its other unsaved changes
        wait for the next `checkpoint(name)`. With `seen`, a version: `Conflict` unless that names the newest entry.
        The same call with the same `idempotency_key` gets its first answer, and changes nothing.
        """
        save = Save(name, data, metadata, put, drop, append, cut, patch).checked()
        if idempotency_key is not None:
            save.requested(idempotency_key)
        version = None if seen is None else as_version(seen)
        working = self.working.data
        own = (data is None or data is working) and save.whole  # save the working copy
        if own:
            save.data = working
        log = self._log
        state = log.ready
        if (
            state is not None
            and self._over is None
            and self.worker.alive
            and self.where not in self._space.engine.calls.left
            and (version is None or self._has_seen(version))
            and not save.request
        ):
            draft = self.saving(save, log, state, own=own)
            if await log.send(draft, lambda: self, lambda: content("_checkpoint", save, own)):
                return draft.stored(Checkpoint)
        if (earlier := await answered(self._space, self.where[1], save.request)) is not None:
            return earlier
        return await self._checkpoint(save if own else save.copied(log.limit), own, seen=version)

    @once_in(_where)
    async def _checkpoint(self, save: Save, own: bool, *, seen: Version | None) -> Checkpoint:  # noqa: FBT001  (part of the call's content)
        if own:
            save = replace(save).copied(self._log.limit)
        changes = self.working.changes

        async def decide(log: Log) -> Draft | None:
            if await entry_of(self._lookup.store, log.key, save.request) is not None:
                return None
            self.follow(seen)
            state = await log.load_data()
            if own and self.working.changes != changes:  # a write that came first changed the working copy
                save.data = self.working.data
            return self.saving(save, log, state, own=own)

        draft = await change(_WindingUp(self), decide)
        if draft is None:
            return cast("Checkpoint", await answered(self._space, self.where[1], save.request))
        return draft.stored(Checkpoint)

    def saving(self, save: Save, log: Log, state: codec.State, *, own: bool) -> Draft:
        effect = kept if own else None if self.working.data is None else self.working.effect(save)
        draft = save.draft(log, state)
        draft.landed = partial(self._saved, effect)
        return draft

    def _saved(self, effect: Effect | None, log: Log, draft: Draft, verdict: Verdict) -> None:
        self.landed(log, draft, verdict)
        if self.working.data is not None:
            self.working.landed(effect, draft.at.data)

    async def heartbeat(self) -> None:
        """Record a heartbeat of this session. (Its worker's heartbeats are automatic.)"""
        if not self.worker.alive:
            await self._wait_for_worker()
        await self.meet(self._log)
        [renewed_at] = await self._lookup.store.beat([(self._log.key, self._lease)])
        if renewed_at:
            self.session.last_heartbeat = moment(renewed_at)
            return
        head = await self._head()
        if head.row.lease != self._lease:
            raise self._fenced(head)
        raise refusal(self.where[1], Verdict(Outcome.CONFLICT, head=head.last), self._log.at.seq, self._log.fence)

    async def pause(self, *, seen: str | None = None, idempotency_key: str | None = None) -> None:
        """Pause an active session; it stays held. The same call with the same `idempotency_key` changes nothing."""
        await self._become(Transition.pause(idempotency_key), seen=as_version(seen))

    async def resume(self, *, seen: str | None = None, idempotency_key: str | None = None) -> None:
        """Make a paused session active, like `pause`. Resuming an active session does nothing."""
        await self._become(Transition.resume(idempotency_key), seen=as_version(seen))

    async def complete(
        self, result: Any = None, *, seen: str | None = None, idempotency_key: str | None = None
    ) -> None:
        """End the session for good, like `pause`, and release it in the same write."""
        await self._become(Transition.complete(result, idempotency_key), seen=as_version(seen))

    async def fail(
        self,
        error: str,
        error_details: Data | None = None,
        *,
        seen: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """End the session as failed, like `pause` (`recover` reopens it), and release it in the same write."""
        await self._become(Transition.fail(error, error_details, idempotency_key), seen=as_version(seen))

    @once_in(_where)
    async def _become(self, transition: Transition, *, seen: Version | None) -> None:
        store, key = self._lookup.store, self._log.key
        if await transition.made(store, key):  # perhaps it ended this hold
            return

        async def decide(log: Log) -> Draft | None:
            if await transition.made(store, key):
                return None
            self.follow(seen)
            draft = transition.draft(log)
            return None if draft is None else self.by_us(draft)

        try:
            await change(_WindingUp(self) if transition.kind in ENDING_KINDS else self, decide)
        except LeaseLost:  # perhaps by the same call, which was still under way
            if not await transition.made(store, key):
                raise

    @once_in(_where)
    async def update_context(self, changes: Data | None = None, /, **more: Any) -> None:
        """Set keys of the session's context."""
        changes = {**as_data(changes, "context"), **as_data(more, "context")}
        codec.encode(changes, "context", self._log.limit)

        async def decide(log: Log) -> Draft:
            await log.load_about()
            draft = self.by_us(log.draft())
            about: Data = {part: getattr(self.session, part) for part in ABOUT}
            draft.about({**about, "context": {**self.session.context, **changes}})
            return draft

        await change(self, decide)

    async def record(self, name: str, value: Any, *, key: str | None = None, seen: str | None = None) -> int:
        """Add a value of its own beside the state, like `sessions.record`; return its number."""
        return await self._record(NewRecord.of(name, value, key, self._log.limit), seen=as_version(seen))

    @once_in(_where)
    async def _record(self, new: NewRecord, *, seen: Version | None) -> int:
        return await self.write_record(new, seen=seen)

    async def write_record(self, new: NewRecord, *, seen: Version | None) -> int:
        number: int | None = None

        async def decide(log: Log) -> Draft | None:
            nonlocal number
            number = await new.earlier(self._lookup.store, log.key)
            if number is not None:
                return None
            self.follow(seen)
            return self.by_us(new.draft(log))

        draft = await change(_WindingUp(self), decide)
        return cast("int", number) if draft is None else draft.at.seq

    async def keep(self, decide: Callable[[Head, Draft], Awaitable[bool]], seen: Version | None = None) -> Draft | None:
        """Append a pin or a retention mark after the newest entry, if `decide` adds one to the draft."""

        async def decided(log: Log) -> Draft | None:
            self.follow(seen)
            head, draft = await self._head(), self.by_us(log.draft())
            if head.last.append_id != log.at.append_id:  # the holder's next write raises the same
                raise refusal(self.where[1], Verdict(Outcome.CONFLICT, head=head.last), log.at.seq, log.fence)
            return draft if await decide(head, draft) else None

        return await change(_WindingUp(self), decided)

    @once_in(_where)
    async def rollback(
        self, to: str | int, *, seen: str | None = None, idempotency_key: str | None = None
    ) -> Checkpoint:
        """Restore the state of an older entry by appending a new one. Nothing is lost: you can roll forward again.

        The same call with the same `idempotency_key` gets its first answer, and changes nothing.
        """
        version, call_id = as_version(seen), request(idempotency_key, "rollback", {"to": to})
        if (earlier := await answered(self._space, self.where[1], call_id)) is not None:
            return earlier

        async def decide(log: Log) -> Draft | None:
            if await entry_of(self._lookup.store, log.key, call_id) is not None:
                return None
            self.follow(version)
            draft = await rolled_back(self._space, log, await self._head(), to, call_id)
            draft.landed = back
            return draft

        def back(log: Log, draft: Draft, verdict: Verdict) -> None:
            self.landed(log, draft, verdict)
            self.working.drop()

        draft = await change(self, decide)
        if draft is None:
            return cast("Checkpoint", await answered(self._space, self.where[1], call_id))
        async with self._log.turns:
            await self._log.load_data()
        return await self._lookup.checkpoint(self.where[1], draft.at.seq)

    @once_in(_where)
    async def refresh(self) -> AgentSession:
        """Load other callers' writes (they may pause the session or update its context) and continue after them."""
        log = self._log
        async with log.turns:
            log.refused = False
            try:
                await log.settle()
            except SaveslotError as exc:
                if not log.refused:
                    raise
                with suppress(Conflict):
                    await self.refused(log, None, exc)
            head = await self._head()
            fresh = self._lookup.session(head, await self._lookup.newest(head))
            for part in ("state", "context", "metadata", "labels", "last_heartbeat", "seen"):
                setattr(self.session, part, getattr(fresh, part))
            if self._over is not None:
                raise self._over
            if head.row.lease != self._lease:
                raise self._fenced(head)
            if head.last.append_id != log.at.append_id:
                await self.heard(head)
            log.meet(head)
            await log.load_data()
            self.working.drop()
            await self.meet(log)
            return self.session

    @property
    def winding_up(self) -> Author:
        """The author of what a cancelled session still allows."""
        return _WindingUp(self)


class _WindingUp:
    """Author of what a cancelled session still allows: saving, ending, and the result of a step that was running."""

    blind = False

    def __init__(self, held: Held) -> None:
        self.calls, self.where, self.turn, self.refused = held.calls, held.where, held.turn, held.refused
        self._held = held

    async def meet(self, log: Log) -> None:
        await self._held.meet(log, True)  # noqa: FBT003  (called by position, like any author's)


class _Leaving:
    """Author of the release: retries after other callers' writes for as long as the lease is this hold's."""

    blind = True

    def __init__(self, held: Held, store: Store, log: Log) -> None:
        self.calls, self.where = held.calls, held.where
        self._held, self._store, self._log = held, store, log

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[Log]:
        async with self._log.turns:
            yield self._log

    async def meet(self, log: Log) -> None: ...

    async def refused(self, log: Log, draft: Draft | None, why: SaveslotError) -> None:  # noqa: ARG002
        if not isinstance(why, Conflict):
            raise why
        [head] = await self._store.heads([log.key])
        if head is None:
            raise NotFound(f"session {log.session_id} was deleted")
        if head.row.lease == log.at.lease:
            await self._held.heard(head)
        log.meet(head)


async def rolled_back(space: Space, log: Log, head: Head, to: str | int, request: bytes = b"") -> Draft:
    """Draft the entry that restores an older entry's state."""
    state = follow(log.at.state, "rollback")
    target = await space.lookup.entry(head, to)
    data = await space.lookup.data_entry(head, target)
    draft = log.draft()
    draft.rollback("session_rolled_back", data, {"to": f"{log.session_id}:{target.seq}", "name": target.name})
    draft.group.entries[-1].request = request
    draft.group.heartbeat = state is not log.at.state
    draft.become(state)
    return draft
