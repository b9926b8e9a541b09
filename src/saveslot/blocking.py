"""The same API for synchronous callers: the same names, arguments, results and errors, without `await`.

    with saveslot.blocking.open() as sessions:
        session = sessions.create_session("tutor", user_id="anna")
        sessions.checkpoint(session, "task_received", {"messages": []})

Nothing is written twice: each method is the async one, lifted. They run in one event loop of the process, in a thread
of its own, so a manager may be shared by any number of threads, and used inside somebody else's event loop (which it
blocks). Ctrl-C abandons an answer, never a write under way. What was acknowledged is durable; what is open when the
interpreter exits is closed. After `os.fork` a manager belongs to the parent: in the child it raises `Unavailable`, and
has to be opened again there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from saveslot import held, keeper, manager, opening
from saveslot.model import AgentSession, Data
from saveslot.portal import Part, Resident
from saveslot.steps import Mode, OnUnknown, check_function, check_made

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Manager = manager.SessionManager
Async = held.Held


class Door(Protocol[T]):
    """Something whose async self lives in the loop."""

    @property
    def resident(self) -> Resident[T] | Part[T]: ...


def lifted(
    verb: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Door[T], P], R]:
    @wraps(verb)
    def run(self: Door[T], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.resident.run(lambda inner: verb(inner, *args, **kwargs))

    return run


def iterated(
    verb: Callable[Concatenate[Manager, P], AsyncIterator[R]],
) -> Callable[Concatenate[SessionManager, P], Iterator[R]]:
    @wraps(verb)
    def run(self: SessionManager, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self.resident.each(lambda inner: verb(inner, *args, **kwargs))

    return run


def built(
    make: Callable[P, Manager],
) -> Callable[[Callable[[SessionManager], None]], Callable[Concatenate[SessionManager, P], None]]:
    def init(_: Callable[[SessionManager], None]) -> Callable[Concatenate[SessionManager, P], None]:
        @wraps(Manager.__init__)
        def run(self: SessionManager, *args: P.args, **kwargs: P.kwargs) -> None:
            self.resident = Resident(lambda: _made(make, *args, **kwargs), Manager.close)

        return run

    return init


async def _made(make: Callable[P, Manager], *args: P.args, **kwargs: P.kwargs) -> Manager:
    return make(*args, **kwargs)


def opened(opener: Callable[P, opening.open]) -> Callable[P, SessionManager]:
    @wraps(opener, assigned=())
    def run(*args: P.args, **kwargs: P.kwargs) -> SessionManager:
        """`with saveslot.blocking.open() as sessions:` or `sessions = …open()`, then `sessions.close()`."""
        sessions = SessionManager.__new__(SessionManager)
        sessions.resident = Resident(opener(*args, **kwargs).__aenter__, Manager.close)
        return sessions

    return run


class Lost:
    """Whether others may have taken a held session."""

    def __init__(self, resident: Part[held.Held]) -> None:
        self._resident = resident

    def is_set(self) -> bool:
        return self._resident.value.lost.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set, or so many seconds; whether it is."""
        return self._resident.run(lambda inner: self._waited(inner, timeout))

    async def _waited(self, inner: held.Held, seconds: float | None) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(inner.lost.wait(), seconds)
        return inner.lost.is_set()


class Held:
    """`saveslot.Held` for synchronous callers. Its worker's heartbeats go on while they work."""

    def __init__(self, resident: Resident[Manager], inner: held.Held) -> None:
        self.resident = resident.part(inner)
        self.lost = Lost(self.resident)

    def __enter__(self) -> Self:
        self.resident.run(Async.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def session(self) -> AgentSession:
        return self.resident.value.session

    @property
    def fence(self) -> int:
        """How often the session has changed hands: a number for other systems to refuse a former owner by."""
        return self.resident.value.fence

    @property
    def lease(self) -> str:
        """What this hold is known by in the log."""
        return self.resident.value.lease

    @property
    def data(self) -> Data:
        """The agent's data as last checkpointed or rolled back to, decoded anew each time; `{}` before the first."""
        return self.resident.value.data

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        mode: Mode = "idempotent",
        on_unknown: OnUnknown = "fail",
        retry: bool = False,
    ) -> Any:
        """As `saveslot.Held.step`; `fn` is called in the caller's thread."""
        check_function(fn)
        run = self.begin_step(name, args, key=key, mode=mode, on_unknown=on_unknown, retry=retry)
        try:
            if not run.done:
                try:
                    with run.inside():
                        result = run.call(fn, args)
                    check_made(result)
                except Exception as exc:
                    self.fail_step(run, exc)
                    raise
                self.finish_step(run, result)
            return run.result
        finally:
            self.resident.run(lambda _: _ended(run))

    release = lifted(Async.release)
    checkpoint = lifted(Async.checkpoint)
    heartbeat = lifted(Async.heartbeat)
    pause = lifted(Async.pause)
    resume = lifted(Async.resume)
    complete = lifted(Async.complete)
    fail = lifted(Async.fail)
    update_context = lifted(Async.update_context)
    rollback = lifted(Async.rollback)
    refresh = lifted(Async.refresh)
    steps = lifted(Async.steps)
    begin_step = lifted(Async.begin_step)
    finish_step = lifted(Async.finish_step)
    fail_step = lifted(Async.fail_step)


async def _ended(run: held.Run) -> None:
    run.end()


class Keeper:
    """`sessions.keeper` for synchronous callers: each `takeover` gets a blocking `Held`, and a thread of its own."""

    def __init__(self, resident: Resident[Manager]) -> None:
        self._whole = resident
        self.resident = resident.part(resident.value.keeper)

    def start(
        self,
        *,
        takeover: Callable[[Held], object] | None = None,
        agent_type: str | None = None,
        limit: int = 4,
        released: bool = False,
        stale_after: timedelta | None = None,
        thin: bool = True,
        gc: bool = False,
        gc_after: timedelta | None = None,
        tidy_every: float = keeper.TIDY,
    ) -> None:
        """As `saveslot`'s: go on in the background until `stop` or the manager's `close`."""

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

    stop = lifted(keeper.Keeper.stop)
    tend = lifted(keeper.Keeper.tend)

    @property
    def stats(self) -> Data:
        return self.resident.value.stats


class SessionManager:
    """`saveslot.SessionManager` for synchronous callers."""

    resident: Resident[Manager]  # the async one, in the loop that it lives in

    @built(Manager)
    def __init__(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the writes under way, then let the store go. A second time, or in a forked child: nothing."""
        self.resident.close()

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

    @contextmanager
    def hold(self, session: AgentSession | str, *, wait: float = 0) -> Generator[Held]:
        """Take the session: ours until we leave the block or die. `LeaseHeld` when another has it (for `wait` s)."""
        with self.take(session, wait=wait) as held:
            yield held

    def take(self, session: AgentSession | str, *, wait: float = 0) -> Held:
        """The same without a block: `release` it yourself."""
        return Held(self.resident, self.resident.run(lambda inner: inner.take(session, wait=wait)))

    def claim(self, agent_type: str | None = None, limit: int = 10, *, released: bool = False) -> list[Held]:
        """Take over active sessions whose workers died (`released`: and those that nobody holds), each by one claimer.

        Enter each: `with held`. Those never entered are orphans again when this manager is closed.
        """
        claimed = self.resident.run(lambda inner: inner.claim(agent_type, limit, released=released))
        return [Held(self.resident, held) for held in claimed]

    get_session = lifted(Manager.get_session)
    get_active_sessions = lifted(Manager.get_active_sessions)
    find = lifted(Manager.find)
    count = lifted(Manager.count)
    stats = lifted(Manager.stats)
    metrics = lifted(Manager.metrics)
    analytics = lifted(Manager.analytics)
    history = lifted(Manager.history)
    walk = iterated(Manager.walk)
    log = lifted(Manager.log)
    get_checkpoint = lifted(Manager.get_checkpoint)
    get_data = lifted(Manager.get_data)
    diff = lifted(Manager.diff)
    summary = lifted(Manager.summary)
    export = lifted(Manager.export)
    export_parts = iterated(Manager.export_parts)
    watch = iterated(Manager.watch)
    create_session = lifted(Manager.create_session)
    update_session = lifted(Manager.update_session)
    refresh = lifted(Manager.refresh)
    delete_session = lifted(Manager.delete_session)
    cleanup_stale_sessions = lifted(Manager.cleanup_stale_sessions)
    erase = lifted(Manager.erase)
    audit = lifted(Manager.audit)
    rotate_keys = lifted(Manager.rotate_keys)
    key_ids = lifted(Manager.key_ids)
    checkpoint = lifted(Manager.checkpoint)
    thin = lifted(Manager.thin)
    thin_all = lifted(Manager.thin_all)
    pin = lifted(Manager.pin)
    unpin = lifted(Manager.unpin)
    pins = lifted(Manager.pins)
    gc = lifted(Manager.gc)
    rollback = lifted(Manager.rollback)
    fork = lifted(Manager.fork)
    import_session = lifted(Manager.import_session)


open = opened(opening.open)  # noqa: A001  (saveslot.blocking.open reads well)
