"""A held session: ours until we leave or die. What it writes carries our lease, so after a takeover nothing lands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Self, TypeVar, cast

from msgspec.structs import replace

from saveslot import codec, steps
from saveslot.errors import Conflict, InvalidInput, LeaseLost, NotFound, SaveslotError, Unavailable
from saveslot.lifecycle import ACTIVE, follow
from saveslot.lifeline import Lifeline
from saveslot.log import Head, Outcome, Verdict, moment
from saveslot.lookup import Lookup
from saveslot.model import STEP_KINDS, AgentSession, Checkpoint, Data, Kind, Owner, as_data
from saveslot.saving import Save, drafted
from saveslot.settling import settled
from saveslot.slot import ABOUT, Draft, Slot, refusal
from saveslot.steps import Journal, Mode, OnUnknown, Step

R = TypeVar("R")


# The steps that this task is inside of.
INSIDE: ContextVar[frozenset[asyncio.Lock]] = ContextVar("inside", default=frozenset())


class Run:
    """A step that is to be run now, or has a result already."""

    def __init__(
        self,
        step: Step,
        lock: asyncio.Lock,
        *,
        result: Any = None,
        done: bool = False,
        ask: Callable[[Step], Any] | None = None,
    ) -> None:
        self.step = step
        self.result = result
        self.done = done
        self.ask = ask  # nobody knows whether it happened: this function does
        self._lock = lock

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return fn(*args, **steps.keyed(fn, self.step)) if self.ask is None else self.ask(self.step)

    @contextmanager
    def inside(self) -> Generator[None]:
        """While the function runs: who asks for this step from there waits for itself."""
        before = INSIDE.set(INSIDE.get() | {self._lock})
        try:
            yield
        finally:
            INSIDE.reset(before)

    def end(self) -> None:
        """Whoever waits for the same step may go on."""
        self._lock.release()


class Held:
    """A session in the hands of its one owner: `async with sessions.hold(id) as held`."""

    def __init__(
        self, lookup: Lookup, lifeline: Lifeline, head: Head, slot: Slot, running: set[asyncio.Future[Any]]
    ) -> None:
        self.session: AgentSession = lookup.session(head)
        self.lost = asyncio.Event()  # set when others may have taken the session
        self.running = running
        self._lookup = lookup
        self._lifeline = lifeline
        self._slot = slot
        self._lease = b""
        self._over: SaveslotError | None = None  # why nothing can be written any more
        self._journal: Journal | None = None
        self._steps: dict[tuple[str, str | None], asyncio.Lock] = {}
        self._asked: dict[str, bytes] = {}  # the arguments of steps without a key, by name
        self._unrun: dict[tuple[str, str | None], int] = {}  # starts of ours, by seq, whose run nobody was handed

    async def __aenter__(self) -> Self:
        try:
            await self._slot.load_data()
        except BaseException:
            await self.release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    @property
    def fence(self) -> int:
        """How often the session has changed hands: a number for other systems to refuse a former owner by."""
        return self._slot.at.fence

    @property
    def lease(self) -> str:
        """What this hold is known by in the log."""
        return self._lease.hex()

    @property
    def data(self) -> Data:
        """The agent's data as last checkpointed or rolled back to, decoded anew each time; `{}` before the first."""
        state = self._slot.at.data
        if state is None:
            raise InvalidInput("held", "its data is loaded on entering: async with held")
        return state.value()

    # How it is taken and let go

    def drafted(self, kind: Kind, lease: bytes) -> Draft:
        """The entry that makes the session ours."""
        before = "" if self.session.owner is None else self.session.owner.worker
        draft = self._slot.draft()
        draft.take(kind, lease, self._lifeline.row, before)
        self._lease, self._slot.mine = lease, draft.at.fence
        self._lifeline.holders[lease] = self
        return draft

    def taken(self, draft: Draft, verdict: Verdict) -> None:
        self._slot.at = draft.at
        self.session.owner = Owner(self._lifeline.name, self._lifeline.ttl)
        if draft.group.entries[0].sign:
            self.session.last_heartbeat = moment(verdict.times[0])

    def untaken(self) -> None:
        self._lifeline.holders.pop(self._lease, None)

    def doubt(self) -> None:
        self.lost.set()

    def trust(self) -> None:
        self.lost.clear()

    def lose(self, why: SaveslotError) -> None:
        """Given up for good; should the store still say that it is ours, it is let go."""
        self._over = self._over or why
        self.lost.set()
        self.untaken()
        self._lifeline.strays = True

    async def release(self) -> None:
        """Let the session go, in the state that it is in. A second time: nothing."""
        if self._over is not None:
            return
        try:
            await self._released()
        except (LeaseLost, NotFound) as exc:
            self.lose(exc)
        except Unavailable:
            self._lifeline.strays = True  # nobody knows: it is let go when the store is back, or its time runs out
        finally:  # cancelled: it is on its way all the same
            self._over = self._over or self._let_go()
            self.untaken()

    def _let_go(self) -> LeaseLost:
        return LeaseLost(f"session {self._slot.session_id} was let go; hold it again to go on")

    @settled
    async def _released(self) -> None:
        slot = self._slot
        async with slot.lock:
            with suppress(Conflict):
                await slot.settle()
            while slot.at.lease is not None:
                draft = slot.draft()
                draft.release()
                try:
                    await slot.append(draft)
                except Conflict:  # someone changed something; the lease may still be ours
                    slot.meet(await self._head())
                    if slot.at.lease != self._lease:
                        break
            self._over = self._over or self._let_go()  # before anybody else has a turn

    # The verbs

    async def checkpoint(
        self,
        name: str,
        data: Data | None = None,
        *,
        append: Mapping[str, Sequence[Any]] | None = None,
        patch: Sequence[Mapping[str, Any]] | None = None,
        metadata: Data | None = None,
    ) -> Checkpoint:
        """Save a named checkpoint; durable when this returns. Give the whole state, what to append, or a patch.

        Without any of them the state is `{}`.
        """
        save = Save(name, data, metadata, append, patch).checked()
        slot = self._slot
        state = slot.ready
        if state is not None and self._over is None and self._lifeline.alive:
            slot.lock.take()  # nothing is awaited before the write is on its way
            try:
                return await self._saved(state, save)
            finally:
                slot.lock.give()
        return await self._checkpoint(save.kept(slot.limit))

    @settled
    async def _checkpoint(self, save: Save) -> Checkpoint:
        await self._sure()
        slot = self._slot
        async with slot.lock:
            before = await self._settle() if slot.doubtful else None
            self._check_ours()
            return await self._saved(await slot.load_data(), save, before)

    async def _saved(self, state: codec.State, save: Save, before: Draft | None = None) -> Checkpoint:
        """The checkpoint behind that state: stored now, if it is not `before`. The slot's lock is the caller's."""
        slot = self._slot
        follow(slot.at.state, "checkpoint")
        draft = drafted(slot, state, save, before)
        if draft is not before:
            await self._append(draft)
        return draft.made(Checkpoint)

    async def heartbeat(self) -> None:
        """A sign of life of this session. (That of its worker goes on by itself.)"""
        await self._sure()
        [beaten] = await self._lookup.store.beat([(self._slot.key, self._lease)])
        if beaten:
            self.session.last_heartbeat = moment(beaten)
            return
        head = await self._head()
        raise self._told(Outcome.FENCED if head.row.lease != self._lease else Outcome.CONFLICT, head)

    async def pause(self) -> None:
        """From active to paused; still held."""
        await self._live("pause", Kind.PAUSED, "session_paused", {"previous_state": ACTIVE.value})

    async def resume(self) -> None:
        """From paused to active; nothing happens to an active one."""
        await self._sure()
        await self._find_out()  # a pause may be on its way, unheard
        if follow(self._slot.at.state, "resume") != self._slot.at.state:
            await self._live("resume", Kind.RESUMED, "session_resumed", {})

    @settled
    async def _find_out(self) -> None:
        """What became of all that was asked for before."""
        async with self._slot.lock:
            if self._slot.doubtful:
                await self._settle()
            self._check_ours()

    async def complete(self, result: Any = None) -> None:
        """The end, for good; the session is let go in the same step."""
        await self._live("complete", Kind.COMPLETED, "session_completed", {"result": {} if result is None else result})

    async def fail(self, error: str, error_details: Data | None = None) -> None:
        """The end, until someone recovers it; the session is let go in the same step."""
        await self._live("fail", Kind.FAILED, "session_failed", {"error": error, "details": error_details or {}})

    @settled
    async def _live(self, verb: str, kind: Kind, name: str, data: Data) -> None:
        data = as_data(data, "data")  # its caller may leave, and change it
        await self._sure()
        async with self._slot.lock:
            request = (verb, codec.encode(data, "data", self._slot.limit)[0])
            if await self._landed_before(request):
                return
            state = follow(self._slot.at.state, verb)
            draft = self._slot.draft()
            draft.request = request
            draft.lifecycle(kind, name, data)
            draft.become(state)
            await self._append(draft)

    @settled
    async def update_context(self, changes: Data | None = None, /, **more: Any) -> None:
        """Set keys of the session's context."""
        changes = {**as_data(changes, "context"), **as_data(more, "context")}
        await self._sure()
        async with self._slot.lock:
            request = ("update_context", codec.encode(changes, "context", self._slot.limit)[0])
            if not await self._landed_before(request):
                await self._slot.load_about()
                draft = self._slot.draft()
                draft.request = request
                about: Data = {part: getattr(self.session, part) for part in ABOUT}
                draft.about({**about, "context": {**self.session.context, **changes}})
                await self._append(draft)

    @settled
    async def keep(self, decide: Callable[[Head, Draft], Awaitable[bool]]) -> bool:
        """Append what `decide` adds to a draft behind the newest entry, if it does: something about keeping."""
        await self._sure()
        async with self._slot.lock:
            if self._slot.doubtful:
                raise Unavailable(f"session {self._slot.session_id}: a write is in doubt; first retry that one")
            self._check_ours()
            head, draft = await self._head(), self._slot.draft()
            if head.last.append_id != self._slot.at.append_id:
                raise self._told(Outcome.CONFLICT, head)  # its holder will be told by the next verb
            decided = await decide(head, draft)
            if decided:
                await self._append(draft)
            return decided

    @settled
    async def rollback(self, to: str | int) -> Checkpoint:
        """Go back to what an older entry held, by a new entry: nothing is lost, and the way forward stays open."""
        await self._sure()
        slot = self._slot
        async with slot.lock:
            if not await self._landed_before(("rollback", to)):
                head = await self._head()
                await self._append(await self._lookup.rollback(slot, head, to))
            await slot.load_data()
            return await self._lookup.checkpoint(slot.session_id, self._seq)

    @settled
    async def refresh(self) -> AgentSession:
        """Take in what others wrote (they may pause the session or update its context), and go on from there."""
        slot = self._slot
        async with slot.lock:
            with suppress(Conflict):
                await self._settle()
            head = await self._head()
            fresh = self._lookup.session(head)
            for part in ("state", "context", "metadata", "labels", "last_heartbeat", "seen"):
                setattr(self.session, part, getattr(fresh, part))
            if self._over is not None:
                raise self._over
            if head.row.lease != self._lease:
                raise self._told(Outcome.FENCED, head)
            slot.meet(head)
            await slot.load_data()
            return self.session

    # Steps

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        mode: Mode = "idempotent",
        on_unknown: OnUnknown = "fail",
        retry: bool = False,
    ) -> Any:
        """Run `fn(*args)` once in this session's life, and journal its result: after a crash that is returned instead.

        A step is known by its name and key: in a loop give each its own key. `fn` may be async, and is handed
        `idempotency_key=` (the same on every run) if it takes one. What it raises is journaled and raised again;
        `retry` runs a step that failed before once more. With `at_most_once` the start is durable before `fn` runs,
        and `on_unknown` says what to do with one that started and never ended: fail, skip (None), retry, or a function
        of the `Step` whose result counts as the step's.
        """
        steps.check_function(fn)
        run = await self.begin_step(name, args, key=key, mode=mode, on_unknown=on_unknown, retry=retry)
        try:
            if not run.done:
                try:
                    with run.inside():
                        made = run.call(fn, args)
                        result: Any = await made if isawaitable(made) else made
                    steps.check_made(result)
                except Exception as exc:
                    await self.fail_step(run, exc)
                    raise
                await self.finish_step(run, result)
            return run.result
        finally:
            run.end()

    async def steps(self) -> list[Step]:
        """What the journal has, oldest first. Steps are facts: a rollback does not undo them."""
        async with self._slot.lock:
            return list(await self._journaled())

    async def begin_step(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        *,
        key: str | None = None,
        mode: Mode = "idempotent",
        on_unknown: OnUnknown = "fail",
        retry: bool = False,
    ) -> Run:
        """The first half of `step`, for callers who run the function themselves. `end` the run in any case."""
        steps.checked(name, key, mode, on_unknown)
        asked = steps.fingerprint(args) if key is None else None
        if asked is not None and self._asked.setdefault(name, asked) != asked and not retry:
            hint = "in a loop give each its own key (key=...)"
            raise InvalidInput("key", f"step {name!r} was asked for with other arguments before, and runs once; {hint}")
        lock = self._steps.setdefault((name, key), asyncio.Lock())
        if lock in INSIDE.get():
            raise InvalidInput("name", f"step {name!r} is asked for while it runs, by itself: it would wait for ever")
        await lock.acquire()
        try:
            run = await self._begun(name, key, mode, on_unknown, lock, retry=retry)
        except BaseException:
            lock.release()
            raise
        self._unrun.pop((name, key), None)
        return run

    @settled
    async def _begun(
        self, name: str, key: str | None, mode: Mode, on_unknown: OnUnknown, lock: asyncio.Lock, *, retry: bool
    ) -> Run:
        await self._sure()
        async with self._slot.lock:
            await self._landed_before(lock)
            step = (await self._journaled()).find(name, key)
            if step.state == "finished":
                return Run(step, lock, result=await self._result(step), done=True)
            if step.state == "failed" and not retry:
                raise steps.failed(step)
            follow(self._slot.at.state, "checkpoint")
            unrun = step.state == "started" and self._unrun.get((name, key)) == step.seq
            if step.state == "started" and not unrun:  # at most once, whoever says now that he is not so strict
                if on_unknown == "fail":
                    raise steps.unknown(step)
                if on_unknown == "skip":
                    await self._journal_step(Kind.STEP_FINISHED, step, {"skipped": True}, codec.note(None, "result"))
                    return Run(step, lock, done=True)
                if callable(on_unknown):
                    return Run(step, lock, ask=on_unknown)
            if mode == "at_most_once" and not unrun:
                self._unrun[name, key] = self._seq + 1
                await self._journal_step(Kind.STEP_STARTED, step, {})
            return Run(step, lock)

    @settled
    async def finish_step(self, run: Run, result: Any) -> None:
        """It happened: from now on this is its result."""
        frame, wrong = steps.stored(result, self._slot.limit)
        note: Data = {} if wrong is None else {"error": str(wrong)[: steps.MAX_ERROR]}
        await self._sure()
        async with self._slot.lock:
            await self._landed_before(run)
            await self._journal_step(Kind.STEP_FINISHED, run.step, note, frame)
        if wrong is not None:
            raise wrong
        run.result = codec.read_note(cast("bytes", frame))

    @settled
    async def fail_step(self, run: Run, exc: Exception) -> None:
        """It raised; run again only when someone says so. (What could not be found out stays unknown.)"""
        if run.ask is not None:
            return
        await self._sure()
        async with self._slot.lock:
            await self._landed_before(run)
            await self._journal_step(Kind.STEP_FAILED, run.step, {"error": steps.error_text(exc)})

    async def _journal_step(self, kind: Kind, step: Step, note: Data, result: bytes | None = None) -> None:
        draft = self._slot.draft()
        draft.step(kind, step.name, note if step.key is None else {"key": step.key, **note}, result)
        await self._append(draft)

    async def _journaled(self) -> Journal:
        if self._journal is None:
            slot = self._slot
            found = await self._lookup.store.entries(slot.key, [(1, slot.at.seq)], kinds=STEP_KINDS, frames=False)
            self._journal = Journal(slot.session_id, slot.key)
            self._journal.read(found)
        return self._journal

    async def _result(self, step: Step) -> Any:
        if step.error:
            raise steps.unstorable(step)
        [entry] = await self._lookup.store.entries(self._slot.key, [(step.seq, step.seq)])
        return codec.read_note(entry.frame or b"")

    # How it is written

    @property
    def _seq(self) -> int:
        return self._slot.at.seq

    async def _head(self) -> Head:
        """Of the session that was taken: another of that id, created since, is not ours."""
        [head] = await self._lookup.store.heads([self._slot.key])
        if head is None:
            exc = NotFound(f"session {self._slot.session_id} was deleted; create it again to start anew")
            self.lose(exc)
            raise exc
        return head

    async def _sure(self) -> None:
        """Start nothing when others may have the session."""
        if self._over is None and not self._lifeline.alive:
            try:
                await self._lifeline.ready()
            except LeaseLost as exc:
                self.lose(exc)
            except Unavailable as exc:
                self.lose(LeaseLost(f"session {self._slot.session_id} may have been taken over: {exc}"))
        self._check_ours()

    def _check_ours(self) -> None:
        """Also who waited for its turn asks: what came before it may have ended the hold."""
        if self._over is not None:
            raise self._over

    async def _append(self, draft: Draft) -> None:
        await self._landing(self._slot.append(draft))
        self._took(draft)

    async def _settle(self) -> Draft | None:
        """Find out what became of a write whose outcome is unknown, before anything else is written."""
        landed = await self._landing(self._slot.settle())
        if landed is None:
            return None
        self._took(landed[0])
        return landed[0]

    async def _landed_before(self, request: object) -> bool:
        """True when a write in doubt was this same one, and landed. Raises when it was another, and ended the hold."""
        draft = await self._settle() if self._slot.doubtful else None
        if draft is not None and draft.request == request:
            return True
        self._check_ours()
        return False

    async def _landing(self, write: Awaitable[R]) -> R:
        try:
            return await write
        except NotFound as exc:
            self.lose(exc)
            raise
        except LeaseLost as exc:
            self.lose(exc)
            await self._forget_tried()
            raise
        except Conflict:
            await self._forget_tried()
            head = await self._head()
            if head.row.fence != self._slot.mine:
                raise self._told(Outcome.FENCED, head) from None  # what ends a hold names no lease to be judged by
            if head.row.lease != self._lease:
                self._told(Outcome.FENCED, head)
            raise

    async def _forget_tried(self) -> None:
        """What was tried and not stored must not show in `data`."""
        self._slot.at = replace(self._slot.at, data=None)
        await self._slot.load_data()

    def _took(self, draft: Draft) -> None:
        self.session.state = draft.at.state
        if draft.group.body is not None:
            self.session.context = codec.read_note(draft.group.body)["context"]
        if self._journal is not None:
            self._journal.read(draft.group.entries)
        if draft.at.lease is None:
            self._over = self._over or LeaseLost(f"session {self._slot.session_id} was let go ({draft.at.state})")
            self.untaken()

    def _told(self, outcome: Outcome, head: Head) -> SaveslotError:
        exc = refusal(self._slot.session_id, Verdict(outcome, head=head.last), self._seq, self._slot.mine)
        if outcome is Outcome.FENCED:
            if not isinstance(exc, LeaseLost):
                exc = LeaseLost(f"session {self._slot.session_id} was ended by someone else ({head.last.name})")
            self.lose(exc)
        return exc
