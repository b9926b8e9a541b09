"""The same API for synchronous callers: the same names, arguments, results and errors, without `await`.

    with saveslot.blocking.open() as sessions:
        session = sessions.create_session("tutor", user_id="anna")
        sessions.checkpoint(session, "task_received", {"messages": []})

No code is duplicated: each method wraps the async one. All run in one event loop per process, in its own thread, so any
number of threads can share a manager, and it can be used inside another event loop (which it blocks). Ctrl-C abandons
an answer, never a running write. Acknowledged writes are durable; managers still open when the interpreter exits are
closed. After `os.fork` a manager belongs to the parent: in the child it raises `Unavailable`, so open another there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import partial, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from saveslot import manager, opening
from saveslot.blocking.portal import Part, Resident
from saveslot.errors import InvalidInput, SaveslotError
from saveslot.manager import keeper
from saveslot.manager.together import Together
from saveslot.session import held
from saveslot.session.attempts import Limit
from saveslot.session.model import AgentSession
from saveslot.session.runs import Outcome, Run
from saveslot.session.signatures import BlockingSteps
from saveslot.session.step_calls import StepCall, warn_repeated
from saveslot.stores.wire.loops import set_within
from saveslot.values.checks import Data, Span, as_span

__all__ = ["Held", "Keeper", "SessionManager", "open"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Manager = manager.SessionManager
Async = held.Held


class Door(Protocol):
    """A synchronous wrapper of an object that lives in the event loop."""

    @property
    def resident(self) -> Resident[Any] | Part[Any]: ...


class Front:
    """What the wrappers share: `dir`, which a REPL completes from, omits what is not for users."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "resident"]


class Lifted(Generic[P, R]):
    """A method that calls one of the async object. A descriptor, since type checkers bind those alike."""

    def __init__(self, run: Callable[Concatenate[Any, P], R]) -> None:
        self.__func__ = run

    @overload
    def __get__(self, door: None, kind: type) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, door: object, kind: type | None = None) -> Callable[P, R]: ...
    def __get__(self, door: object, kind: type | None = None) -> Callable[..., R]:
        return self.__func__ if door is None else MethodType(self.__func__, door)


def lifted(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Lifted[P, R]:
    name = verb.__name__  # looked up at each call: traces replace it

    @wraps(verb)
    def run(self: Door, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.resident.run(lambda inner: getattr(inner, name)(*args, **kwargs))

    return Lifted(run)


def iterated(verb: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Lifted[P, Iterator[R]]:
    @wraps(verb)
    def run(self: SessionManager, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self.resident.each(lambda inner: verb(inner, *args, **kwargs))

    return Lifted(run)


def built(
    make: Callable[P, Manager],
) -> Callable[[Callable[[SessionManager], None]], Callable[Concatenate[SessionManager, P], None]]:
    def init(_: Callable[[SessionManager], None]) -> Callable[Concatenate[SessionManager, P], None]:
        @wraps(Manager.__init__)
        def run(self: SessionManager, *args: P.args, **kwargs: P.kwargs) -> None:
            self.resident = Resident(lambda: _build(make, *args, **kwargs), Manager.close)

        return run

    return init


async def _build(make: Callable[P, Manager], *args: P.args, **kwargs: P.kwargs) -> Manager:
    return make(*args, **kwargs)


def opened(opener: Callable[P, opening.open]) -> Callable[P, SessionManager]:
    @wraps(opener, assigned=())
    def run(*args: P.args, **kwargs: P.kwargs) -> SessionManager:
        """`with saveslot.blocking.open() as sessions:` or `sessions = …open()`, then `sessions.close()`."""
        sessions = SessionManager.__new__(SessionManager)
        sessions.resident = Resident(opener(*args, **kwargs).__aenter__, Manager.close)
        return sessions

    return run


class Signal:
    """An event of a held session: `lost` is set when another worker may own it, `cancelled` when it was cancelled."""

    def __init__(self, resident: Part[held.Held], event: asyncio.Event) -> None:
        self._resident, self._event = resident, event

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: Span | None = None) -> bool:
        """Wait until set or timed out (seconds); return `is_set()`."""
        seconds = None if timeout is None else as_span(timeout, "timeout")
        return self._resident.run(lambda _: self._waited(seconds))

    async def _waited(self, seconds: float | None) -> bool:
        return await set_within(self._event, seconds)


class Held(Front, BlockingSteps):
    """`saveslot.Held` for synchronous callers. The worker's heartbeats continue while the caller works."""

    def __init__(self, resident: Resident[Manager] | Part[Manager], inner: held.Held) -> None:
        self.resident = resident.part(inner)
        self.lost: Signal = Signal(self.resident, inner.lost)
        self.cancelled: Signal = Signal(self.resident, inner.cancelled)

    def __enter__(self) -> Self:
        self.resident.run(Async.__aenter__)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.release(error=error)
        except SaveslotError:
            raise
        except BaseException as exc:  # interrupted, maybe before the loop heard of it
            why = error or exc
            _release_soon(self, why)
            raise

    def __repr__(self) -> str:
        return repr(self.resident.value).replace("<", "<blocking ", 1)

    @property
    def id(self) -> str:
        """The session's id."""
        return self.resident.value.id

    @property
    def session(self) -> AgentSession:
        return self.resident.value.session

    @property
    def fence(self) -> int:
        """Fencing token: +1 per new hold, so other systems can refuse a former owner."""
        return self.resident.value.fence

    @property
    def lease(self) -> str:
        """The id of this hold in the log, as hex."""
        return self.resident.value.lease

    @property
    def data(self) -> Data:
        """The working copy of the agent's data: change it, then save it with `checkpoint(name)`.

        It is the same object until `rollback` or `refresh`, which drop unsaved changes; `{}` before the first save.
        """
        return self.resident.value.data

    def _stepped(self, call: StepCall[Any]) -> Any:
        run = self._ran(call)
        if run.repeated:
            warn_repeated(call.name)
        return run.result

    def _ran(self, call: StepCall[Any]) -> Run:
        """The loop of `Runs.run`, with the function called in this thread."""
        if call.is_async:
            raise InvalidInput("fn", "is async; use the async API for it")
        if call.options.timeout is not None or call.options.run_in_thread:
            return self.resident.run(lambda inner: inner.runs.run(call))
        thread = threading.get_ident()
        run = self.resident.run(lambda inner: inner.runs.begin(call, thread))
        try:
            while not run.done:
                if run.pause:
                    time.sleep(run.pause)
                self.resident.run(lambda inner: inner.runs.prepare(run))
                outcome = copy_context().run(_attempted, run, call)
                self.resident.run(partial(_settled, run, outcome))
            return run
        finally:
            self.resident.queue.append(run.end)
            self.resident.flush()

    def _gathered(self, calls: tuple[StepCall[Any], ...]) -> tuple[Any, ...]:
        runs = [Ran(self._ran, call) for call in calls]
        for ran in runs:
            ran.thread.join()
        for ran in runs:
            if ran.error is not None:
                raise ran.error
        for ran in runs:
            if ran.run.repeated:
                warn_repeated(ran.run.step.name)
        return tuple(ran.run.result for ran in runs)

    release = lifted(Async.release)
    checkpoint = lifted(Async.checkpoint)
    record = lifted(Async.record)
    heartbeat = lifted(Async.heartbeat)
    pause = lifted(Async.pause)
    resume = lifted(Async.resume)
    complete = lifted(Async.complete)
    fail = lifted(Async.fail)
    update_context = lifted(Async.update_context)
    rollback = lifted(Async.rollback)
    refresh = lifted(Async.refresh)
    steps = lifted(Async.steps)


BLOCK = "write `with sessions.hold(…) as held:`, or without a block `held = sessions.take(…)`"


class Holding:
    """The block of `hold`: from `take` to the block there is no moment at which an interrupt could lose the session."""

    _held: Held | None = None  # while the session is to be released

    def __init__(self, session_id: str, take: Callable[[], Held]) -> None:
        self._session_id, self._take = session_id, take

    def __repr__(self) -> str:
        return f"<blocking hold of {self._session_id}: {BLOCK}>"

    if not TYPE_CHECKING:  # or every attribute would pass a type checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"sessions.hold(…) has no {name!r}: {BLOCK}")

    def __enter__(self) -> Held:
        held = self._held = self._take()
        return held

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._held is not None:
            self._held.__exit__(kind, error, trace)
            self._held = None

    def __del__(self) -> None:
        if self._held is not None:  # an interrupt at the very start of `__exit__`, where nothing can catch it
            _release_soon(self._held, KeyboardInterrupt())


class Gathering(Together):
    """The block of `together`."""

    def __init__(self, resident: Resident[Manager] | Part[Manager]) -> None:
        super().__init__(resident.value)
        self._resident = resident

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.ended = True
        if error is None:
            self._resident.run(lambda _: self.landed())


def _release_soon(held: Held, why: BaseException) -> None:
    held.resident.queue.append(lambda: held.resident.value.release_soon(why))
    held.resident.flush()


def _attempted(run: Run, call: StepCall[Any]) -> Outcome:
    """Call the function. Runs in a context of its own, so an interrupt leaves no mark of the step in the caller's."""
    run.enter()
    try:
        return Outcome.of(call.work(run.step)() if run.ask is None else run.ask(run.step))
    except Exception as exc:  # noqa: BLE001  (it belongs to the caller, which gets it from `settle`)
        return Outcome(error=exc)


async def _settled(run: Run, outcome: Outcome, inner: Async) -> None:
    await inner.runs.settle(run, outcome)


class Ran:
    """One of several steps side by side: its thread, and what came of it."""

    run: Run  # once the thread has ended without an error

    def __init__(self, run: Callable[[StepCall[Any]], Run], call: StepCall[Any]) -> None:
        self.error: BaseException | None = None
        context = copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._work, run, call), daemon=True)
        self.thread.start()

    def _work(self, run: Callable[[StepCall[Any]], Run], call: StepCall[Any]) -> None:
        try:
            self.run = run(call)
        except BaseException as exc:  # noqa: BLE001  (it belongs to the caller)
            self.error = exc


class Keeper(Front):
    """`sessions.keeper` for synchronous callers: each `takeover` gets a blocking `Held` and runs in its own thread."""

    def __init__(self, resident: Resident[Manager] | Part[Manager]) -> None:
        self._whole = resident
        self.resident = resident.part(resident.value.keeper)

    def start(
        self,
        *,
        takeover: Callable[[Held], object] | None = None,
        agent_type: str | None = None,
        limit: int = 4,
        released: bool = False,
        stale_after: Span | None = None,
        thin: bool = True,
        gc: bool = False,
        gc_after: Span | None = None,
        tidy_every: Span = keeper.TIDY,
    ) -> None:
        """Like `saveslot`'s: run in the background until `stop` or the manager's `close`."""

        async def taken_over(inner: held.Held) -> None:
            work = partial(cast("Callable[[Held], object]", takeover), Held(self._whole, inner))
            await asyncio.get_running_loop().run_in_executor(None, work)

        self.resident.run(
            lambda inner: inner.start(
                takeover=None if takeover is None else taken_over,
                agent_type=agent_type,
                limit=limit,
                released=released,
                stale_after=stale_after,
                thin=thin,
                gc=gc,
                gc_after=gc_after,
                tidy_every=tidy_every,
            )
        )

    def __repr__(self) -> str:
        return repr(self.resident.value).replace("<", "<blocking ", 1)

    stop = lifted(keeper.Keeper.stop)
    tend = lifted(keeper.Keeper.tend)

    @property
    def stats(self) -> Data:
        return self.resident.value.stats


class SessionManager(Front):
    """`saveslot.SessionManager` for synchronous callers."""

    resident: Resident[Manager] | Part[Manager]  # the async manager, in its event loop

    @built(Manager)
    def __init__(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.resident.value).replace("<", "<blocking ", 1)

    def close(self) -> None:
        """Finish the running writes, then close the store. Does nothing a second time, or in a forked child."""
        self.resident.close()

    def of(self, namespace: str) -> SessionManager:
        """Return a manager of another namespace. It shares everything with this one and costs nothing."""
        view = SessionManager.__new__(SessionManager)
        view.resident = self.resident.part(self.resident.value.of(namespace))
        return view

    @property
    def namespace(self) -> str:
        return self.resident.value.namespace

    @property
    def session_ttl_hours(self) -> float:
        return self.resident.value.session_ttl_hours

    @property
    def keeper(self) -> Keeper:
        return Keeper(self.resident)

    @property
    def worker(self) -> Data | None:
        return self.resident.value.worker

    def hold(
        self,
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
        """Own the session until the block ends or the process dies. `LeaseHeld` if another has it (for `wait` s).

        If there is none, `create` is the agent type of a new one, and the arguments after it are as in
        `create_session`; a session that exists stays as it is. Leaving the block by an exception lets other workers
        claim the session.
        """

        def take() -> Held:
            return self.take(
                id,
                create=create,
                user_id=user_id,
                context=context,
                metadata=metadata,
                labels=labels,
                data=data,
                wait=wait,
            )

        return Holding(str(getattr(id, "session_id", id)), take)

    def take(
        self,
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
        new: Data = {"user_id": user_id, "context": context, "metadata": metadata, "labels": labels, "data": data}

        async def taken(inner: Manager) -> Held:
            return Held(self.resident, await inner.take(id, create=create, **new, wait=wait))

        return self.resident.run(taken)

    def together(self) -> Gathering:
        """Change several sessions in one commit: `with sessions.together() as t:`, as in the async API."""
        return Gathering(self.resident)

    def claim(
        self,
        agent_type: str | None = None,
        limit: int = 10,
        *,
        released: bool = False,
        wait: Span = 0,
        max_attempts: Limit = ...,
    ) -> list[Held]:
        """Like `saveslot`'s; enter each: `with held`."""

        async def claimed(inner: Manager) -> list[Held]:
            claimed_sessions = await inner.claim(
                agent_type, limit, released=released, wait=wait, max_attempts=max_attempts
            )
            return [Held(self.resident, held) for held in claimed_sessions]

        return self.resident.run(claimed)

    def claims(
        self, agent_type: str | None = None, *, released: bool = False, max_attempts: Limit = ...
    ) -> Iterator[Held]:
        """Claim sessions one by one, forever: `for held in sessions.claims(…)`, then `with held`."""

        async def claimed(inner: Manager) -> AsyncGenerator[Held]:
            async for one in inner.claims(agent_type, released=released, max_attempts=max_attempts):
                yield Held(self.resident, one)

        return self.resident.each(claimed)

    get_session = lifted(Manager.get_session)
    get_active_sessions = lifted(Manager.get_active_sessions)
    find = lifted(Manager.find)
    count = lifted(Manager.count)
    stats = lifted(Manager.stats)
    metrics = lifted(Manager.metrics)
    analytics = lifted(Manager.analytics)
    namespaces = lifted(Manager.namespaces)
    head = lifted(Manager.head)
    history = lifted(Manager.history)
    entries = lifted(Manager.entries)
    walk = iterated(Manager.walk)
    log = lifted(Manager.log)
    get_checkpoint = lifted(Manager.get_checkpoint)
    get_data = lifted(Manager.get_data)
    record = lifted(Manager.record)
    records = lifted(Manager.records)
    diff = lifted(Manager.diff)
    summary = lifted(Manager.summary)
    export = lifted(Manager.export)
    export_parts = iterated(Manager.export_parts)
    watch = iterated(Manager.watch)
    create_session = lifted(Manager.create_session)
    update_session = lifted(Manager.update_session)
    refresh = lifted(Manager.refresh)
    delete_session = lifted(Manager.delete_session)
    pause = lifted(Manager.pause)
    resume = lifted(Manager.resume)
    complete = lifted(Manager.complete)
    fail = lifted(Manager.fail)
    cancel = lifted(Manager.cancel)
    release = lifted(Manager.release)
    cleanup_stale_sessions = lifted(Manager.cleanup_stale_sessions)
    erase = lifted(Manager.erase)
    erase_all = lifted(Manager.erase_all)
    audit = lifted(Manager.audit)
    rotate_keys = lifted(Manager.rotate_keys)
    key_ids = lifted(Manager.key_ids)
    checkpoint = lifted(Manager.checkpoint)
    thin = lifted(Manager.thin)
    thin_all = lifted(Manager.thin_all)
    pin = lifted(Manager.pin)
    unpin = lifted(Manager.unpin)
    pins = lifted(Manager.pins)
    drop = lifted(Manager.drop)
    gc = lifted(Manager.gc)
    rollback = lifted(Manager.rollback)
    fork = lifted(Manager.fork)
    copy_session = lifted(Manager.copy_session)
    import_session = lifted(Manager.import_session)


open = opened(opening.open)  # noqa: A001  (saveslot.blocking.open reads well)


def __dir__() -> list[str]:
    return __all__
