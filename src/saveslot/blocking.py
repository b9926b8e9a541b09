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

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from saveslot import manager, opening
from saveslot.portal import Resident

P = ParamSpec("P")
R = TypeVar("R")
Manager = manager.SessionManager


def lifted(
    verb: Callable[Concatenate[Manager, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SessionManager, P], R]:
    @wraps(verb)
    def run(self: SessionManager, *args: P.args, **kwargs: P.kwargs) -> R:
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

    get_session = lifted(Manager.get_session)
    get_active_sessions = lifted(Manager.get_active_sessions)
    find = lifted(Manager.find)
    count = lifted(Manager.count)
    stats = lifted(Manager.stats)
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
    checkpoint = lifted(Manager.checkpoint)
    rollback = lifted(Manager.rollback)
    fork = lifted(Manager.fork)
    import_session = lifted(Manager.import_session)


open = opened(opening.open)  # noqa: A001  (saveslot.blocking.open reads well)
