"""The steps that a holder runs: one caller at a time for each name and key, each attempt journaled.

The async API and the blocking one run the same loop: begin, then for each attempt pause, prepare, call the function and
settle, then end. Only where the function is called differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Token
from inspect import isawaitable
from typing import Any, NamedTuple, Protocol, cast

from saveslot import codec
from saveslot.errors import InvalidInput
from saveslot.session import steps
from saveslot.session.change import Author, change
from saveslot.session.draft import Draft
from saveslot.session.hearing import HEARD
from saveslot.session.log import Log
from saveslot.session.lookup import Lookup
from saveslot.session.retries import Calls, Scope, once_in
from saveslot.session.step_calls import Options, StepCall, in_thread
from saveslot.session.step_locks import INSIDE, StepLock, Turn
from saveslot.session.steps import Journal, Step
from saveslot.values.checks import Data
from saveslot.values.kinds import STEP_KINDS, Kind
from saveslot.values.lifecycle import follow
from saveslot.values.log import Wanted

StepId = tuple[str, str | None]  # name and key


class Run:
    """A step to run now, or one that already has a result."""

    def __init__(
        self,
        step: Step,
        options: Options,
        *,
        attempt: int = 1,
        result: Any = None,
        done: bool = False,
        ask: Callable[[Step], Any] | None = None,
    ) -> None:
        self.turn: Turn  # set before any caller gets the run
        self.step = step
        self.options = options
        self.attempt = attempt
        self.pause = 0.0  # seconds before this attempt
        self.ready = True  # nothing has to be journaled before this attempt
        self.result = result
        self.done = done
        self.ask = ask  # `on_unknown`: returns the result of an interrupted step
        self.repeated = False  # a step without a key that returned a result in this hold before
        self.request = b""  # of the call that is made now, if that has an idempotency key

    @property
    def id(self) -> StepId:
        return self.step.name, self.step.key

    def enter(self) -> Token[frozenset[StepLock]]:
        """Mark this step as running in this context: calling it again from there would deadlock."""
        return INSIDE.set(INSIDE.get() | {self.turn.lock})

    def end(self) -> None:
        """Let the next caller of this step proceed. Does nothing a second time."""
        self.turn.end()


class Outcome(NamedTuple):
    """How an attempt ended."""

    result: Any = None
    error: Exception | None = None
    timed_out: bool = False  # it was ended, or left alone, after `timeout`
    final: bool = False  # a mistake in the program: another attempt would fail, too

    @classmethod
    def of(cls, result: Any) -> Outcome:
        try:
            steps.check_result(result)
        except InvalidInput as exc:
            return cls(error=exc, final=True)
        return cls(result)


class Again(Exception):
    """An attempt timed out and its outcome is unknown: begin again, and let `on_unknown` decide."""


class Holder(Author, Protocol):
    """The held session that the steps belong to."""

    @property
    def running(self) -> set[asyncio.Future[Any]]: ...

    def by_us(self, draft: Draft) -> Draft:
        """Mark the draft as the holder's, which follows it once it lands."""
        ...

    @property
    def winding_up(self) -> Author:
        """The author of what a cancelled session still allows."""
        ...


def _where(runs: Runs, _argument: object) -> Scope:
    return runs.where


class Runs:
    """The runs of one hold's steps, and its view of their journal."""

    def __init__(self, author: Holder, log: Log, lookup: Lookup) -> None:
        self.where = author.where
        self._author = author
        self._log = log
        self._lookup = lookup
        self.journal: Journal | None = None  # None: not read yet
        self._steps: dict[StepId, StepLock] = {}
        self._arguments: dict[str, bytes] = {}  # fingerprints of the arguments of steps without a key, by name
        self._unrun: dict[StepId, int] = {}  # started here, by seq; no caller got the run yet
        self._threads: dict[StepId, asyncio.Future[Any]] = {}  # of the newest attempt; it may outlive that
        self._reached: dict[str, int] = {}  # how often a step without a key returned its result in this hold

    @property
    def calls(self) -> Calls:
        return self._author.calls

    @property
    def running(self) -> set[asyncio.Future[Any]]:
        return self._author.running

    async def run(self, call: StepCall[Any]) -> Run:
        """Run the step until it has a result, or raise its error."""
        while True:
            run = await self.begin(call)
            try:
                while not run.done:
                    if run.pause:
                        await asyncio.sleep(run.pause)
                    await self.prepare(run)
                    await self.settle(run, await self._attempted(run, call))
                return run
            except Again:
                continue
            finally:
                run.end()

    async def _attempted(self, run: Run, call: StepCall[Any]) -> Outcome:
        limit = asyncio.timeout(None if run.ask is not None else call.options.timeout)
        outside = run.enter()
        try:
            async with limit:
                returned = await self._called(run, call)
                return Outcome.of(await returned if isawaitable(returned) else returned)
        except Exception as exc:  # noqa: BLE001  (it belongs to the caller, which gets it from `settle`)
            if not limit.expired():
                return Outcome(error=exc)
            error = TimeoutError(f"step {run.step.name!r} took longer than {call.options.timeout:g} s")
            error.__cause__ = exc
            return Outcome(error=error, timed_out=True)
        finally:
            INSIDE.reset(outside)

    async def _called(self, run: Run, call: StepCall[Any]) -> Any:
        if run.ask is not None:
            return run.ask(run.step)
        work = call.work(run.step)
        if not call.in_thread:
            return work()
        thread = self._threads[run.id] = in_thread(work)
        result, error = await asyncio.shield(thread)
        if error is not None:
            raise error
        return result

    async def steps(self) -> list[Step]:
        async with self._log.turns:
            return list(await self._journaled())

    async def begin(self, call: StepCall[Any], thread: int | None = None, request: bytes = b"") -> Run:
        """Wait for other callers of this step, then look it up: it may have a result. Always `end` the run.

        `thread` is a synchronous caller's. If that was interrupted before it got the run, the run has ended. `request`
        is that of a call with an idempotency key.
        """
        name, options = call.name, call.options
        key = options.key
        given = steps.fingerprint(call.args, call.kwargs) if key is None else None
        if given is not None and self._arguments.setdefault(name, given) != given and not options.retry:
            hint = "in a loop, pass a key for each call (key=...)"
            raise InvalidInput("key", f"step {name!r} runs once, and was called with other arguments before; {hint}")
        lock = self._steps.setdefault((name, key), StepLock(name))
        turn = await lock.acquire(thread)
        try:
            run = await self._begun(name, options, request)
        except BaseException:
            turn.end()
            raise
        run.turn = turn
        if (unheard := HEARD.get()) is not None:
            unheard.append(run.end)
        self._unrun.pop((name, key), None)
        if run.done:
            self._reach(run)
        return run

    def _reach(self, run: Run) -> None:
        """Note that a step without a key returns its result; the second time, its caller is warned."""
        if run.step.key is None:
            times = self._reached[run.step.name] = self._reached.get(run.step.name, 0) + 1
            run.repeated = times == 2  # noqa: PLR2004

    @once_in(_where)
    async def _begun(self, name: str, options: Options, request: bytes) -> Run:
        run: Run | None = None
        key, on_unknown = options.key, options.on_unknown

        async def decide(log: Log) -> Draft | None:
            nonlocal run
            step = (await self._journaled()).find(name, key)
            if step.state == "finished":
                run = Run(step, options, result=await self._result(step), done=True)
                return None
            spent = step.state == "failed" or (step.state == "retrying" and step.attempts > options.retries)
            if spent and not options.retry:
                raise steps.failed(step)
            follow(log.at.state, "checkpoint")
            if step.state == "retrying" and not spent:
                run = Run(step, options, attempt=step.attempts + 1)
                run.pause, run.ready, run.request = options.pause(run.attempt), False, request
                return None
            unrun = step.state == "started" and self._unrun.get((name, key)) == step.seq
            run = Run(step, options, attempt=step.attempts if unrun else 1)
            run.request = request
            if step.state == "started" and not unrun:  # it started as at_most_once and stays that
                run.attempt = step.attempts + 1
                if on_unknown == "fail":
                    raise steps.unknown(step)
                if on_unknown == "skip":
                    run.done = True
                    return self._step(log, Kind.STEP_FINISHED, run, {"skipped": True}, codec.note(None, "result"))
                if callable(on_unknown):
                    run.ask = on_unknown
                    return None
            return None if unrun else self._start(log, run)

        draft = await change(self._author, decide)
        if run is None:  # a repeated call, whose entry is still the newest
            step = (await self._journaled()).find(name, key)
            done = cast("Draft", draft).group.entries[0].kind is Kind.STEP_FINISHED
            run = Run(step, options, attempt=step.attempts, done=done)
        return run

    def _start(self, log: Log, run: Run) -> Draft | None:
        if run.options.mode != "at_most_once":
            return None
        self._unrun[run.id] = log.at.seq + 1
        return self._step(log, Kind.STEP_STARTED, run, {})

    async def prepare(self, run: Run) -> None:
        """Get ready for the attempt: the thread of an earlier one has ended, and its start is durable if it must be."""
        thread = self._threads.get(run.id)
        if thread is not None and run.ask is None:
            await asyncio.wait({thread}, timeout=run.options.timeout)
            if not thread.done():
                raise steps.busy(run.step)
        self._threads.pop(run.id, None)
        if not run.ready:
            await self._started(run)
            self._unrun.pop(run.id, None)
            run.ready = True

    @once_in(_where)
    async def _started(self, run: Run) -> None:
        async def decide(log: Log) -> Draft | None:
            follow(log.at.state, "checkpoint")
            return self._start(log, run)

        await change(self._author, decide)

    async def settle(self, run: Run, outcome: Outcome) -> None:
        """Journal the attempt's outcome. Raise its error, unless another attempt follows."""
        error, options = outcome.error, run.options
        if error is None:
            await self.finish(run, outcome.result)
            run.done = True
            self._reach(run)
            return
        if run.ask is not None:
            raise error  # what `on_unknown` raised: whether the step happened is still unknown
        left = run.attempt <= options.retries and isinstance(error, options.retry_on) and not outcome.final
        if outcome.timed_out and options.mode == "at_most_once":
            if options.on_unknown == "fail" or (options.on_unknown == "retry" and not left):
                raise steps.unknown((await self._journaled()).find(*run.id)) from error
            raise Again
        await self.fail(run, steps.error_text(error), again=left)
        if not left:
            raise error
        run.attempt += 1
        run.pause, run.ready = options.pause(run.attempt), False

    @once_in(_where)
    async def finish(self, run: Run, result: Any) -> None:
        """Journal the step's result."""
        frame, wrong = steps.stored(result, self._log.limit)
        if wrong is not None and run.ask is not None:
            raise wrong  # `on_unknown` returned it: whether the step happened is still unknown
        note: Data = {} if wrong is None else {"error": str(wrong)[: steps.MAX_ERROR]}

        async def decide(log: Log) -> Draft:
            return self._step(log, Kind.STEP_FINISHED, run, note, frame)

        await change(self._author.winding_up, decide)
        if wrong is not None:
            raise wrong
        run.result = codec.read_note(cast("bytes", frame))

    @once_in(_where)
    async def fail(self, run: Run, error: str, *, again: bool = False) -> None:
        """Journal the attempt's error; `again` if another one follows."""
        note: Data = {"error": error, **({steps.AGAIN: True} if again else {})}

        async def decide(log: Log) -> Draft:
            return self._step(log, Kind.STEP_FAILED, run, note)

        await change(self._author.winding_up, decide)

    def _step(self, log: Log, kind: Kind, run: Run, note: Data, result: bytes | None = None) -> Draft:
        draft = self._author.by_us(log.draft())
        key: Data = {} if run.step.key is None else {"key": run.step.key}
        count: Data = {"attempt": run.attempt} if run.attempt > 1 else {}
        draft.step(kind, run.step.name, {**key, **count, **note}, result)
        draft.group.entries[-1].request = run.request
        return draft

    async def _journaled(self) -> Journal:
        if self.journal is None:
            log = self._log
            wanted = Wanted([(1, log.at.seq)], kinds=STEP_KINDS, frames=False)
            journal = Journal(log.session_id, log.key)
            journal.read(await self._lookup.store.entries(log.key, wanted))
            self.journal = journal
        return self.journal

    async def _result(self, step: Step) -> Any:
        if step.error:
            raise steps.unstorable(step)
        [entry] = await self._lookup.store.entries(self._log.key, Wanted([(step.seq, step.seq)]))
        return codec.read_note(entry.frame or b"")
