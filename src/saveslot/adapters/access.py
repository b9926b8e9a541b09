"""How an adapter reaches its sessions: the caller's open manager, or one opened from a URL at first use.

The manager lives in the event loop of the first use. Callers in another loop or in a thread are carried there. A first
use without a loop goes to the loop of `saveslot.blocking`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from importlib import metadata
from threading import Lock
from typing import Any, TypeVar, cast

from saveslot import blocking, opening
from saveslot.blocking.portal import Part, Resident, portal
from saveslot.errors import InvalidInput, Unavailable
from saveslot.manager import SessionManager
from saveslot.stores.wire.loops import running
from saveslot.values.checks import as_name

R = TypeVar("R")

MEMORY = "memory:"
INSIDE = "a synchronous method would block the event loop that it waits for; await the asynchronous one"

# Adapters with the same URL and options share one manager per event loop.
Place = tuple[str, str]


class Shared:
    """One manager in one event loop, for all adapters that were given the same URL there."""

    def __init__(self, place: Place, manager: asyncio.Future[SessionManager]) -> None:
        self.place, self.users, self.manager = place, 0, manager


_shared: dict[asyncio.AbstractEventLoop, dict[Place, Shared]] = {}


class Access:
    """`await access.call(verb)` and, without a loop, `access.run(verb)` run `verb(manager)` where the manager lives.

    `sessions` is an open manager of `saveslot` or `saveslot.blocking`, which stays the caller's to close. Otherwise
    `url` and `options` are those of `saveslot.open`. With `apart` it lives in the loop of `saveslot.blocking`, and so
    does what opens it: for frameworks that block their event loop while they wait, or run each call in a new one.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        apart: bool = False,
        **options: Any,
    ) -> None:
        if apart and isinstance(sessions, SessionManager):
            raise InvalidInput("sessions", "must be a manager of saveslot.blocking: this framework blocks event loops")
        if sessions is not None and (url is not None or options):
            raise InvalidInput("sessions", "pass either an open manager or a URL, not both")
        if sessions is not None and not isinstance(sessions, SessionManager | blocking.SessionManager):  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = "the manager that `async with saveslot.open(…) as sessions` gives"
            raise InvalidInput("sessions", f"must be {hint}, not {type(cast('Any', sessions)).__name__}")
        self.namespace = None if namespace is None else as_name(namespace, "namespace")
        self._given = sessions
        self._url, self._options = None if url is None else os.fspath(url), options
        if sessions is None:
            opening.open(self._url, **options)  # a wrong argument is refused here, not at first use
        self._kept: SessionManager | None = None  # of memory: it outlives the event loop of its first use
        self._view: SessionManager | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared: Shared | None = None
        self._resident: Resident[SessionManager] | Part[SessionManager] | None = None
        self._apart = Lock() if apart else None
        if isinstance(sessions, blocking.SessionManager):
            self._live(sessions.resident)

    def __repr__(self) -> str:
        return repr(self._given) if self._given is not None else repr(self._url)

    @property
    def is_here(self) -> bool:
        """True once its manager lives in the event loop that runs."""
        return self._loop is not None and self._loop is _running()

    async def call(self, verb: Callable[[SessionManager], Awaitable[R]]) -> R:
        """Run `verb(manager)` for a caller in an event loop."""
        here = running()
        if self._apart is not None and self._resident is None:
            await asyncio.to_thread(self._move_in, self._apart)
        if self._loop is here and self._view is not None:
            return await verb(self._view)
        if self._loop is None or not self._loop.is_running():
            self._settle(here)
        if self._loop is here:
            return await verb(await self._opened())
        home = cast("asyncio.AbstractEventLoop", self._loop)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._there(verb), home))

    def run(self, verb: Callable[[SessionManager], Awaitable[R]]) -> R:
        """Run `verb(manager)` for a caller outside of an event loop, and wait for it."""
        if self._apart is not None and self._resident is None:
            self._move_in(self._apart)
        if self._resident is None and (self._loop is None or not self._loop.is_running()):
            if self._given is not None:
                hint = "its asynchronous methods, or pass a manager of saveslot.blocking"
                raise InvalidInput("sessions", f"belongs to an event loop that is not running here; use {hint}")
            self._live(Resident(self._open, SessionManager.close))
        if self._resident is not None:
            return self._resident.run(lambda _: self._there(verb))
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        if _running() is loop:
            raise InvalidInput("call", INSIDE)
        return asyncio.run_coroutine_threadsafe(self._there(verb), loop).result()

    async def close(self) -> None:
        """Close what this opened; a manager that adapters share closes with the last of them. Later use reopens it."""
        resident, shared, loop = self._resident, self._shared, self._loop
        self._forget()
        self._kept = None
        if self._given is not None:
            return
        if resident is not None:
            await asyncio.to_thread(resident.close)
        elif shared is not None and loop is not None:
            if loop is asyncio.get_running_loop():
                await _leave(shared, loop)
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_leave(shared, loop), loop))

    def close_now(self) -> None:
        """`close` for callers outside of an event loop."""
        if self._loop is not None and self._loop is _running():
            raise InvalidInput("close", INSIDE)
        portal().run(self.close)

    def _forget(self) -> None:
        if not isinstance(self._given, blocking.SessionManager):
            self._resident = self._loop = None
            self._view = self._shared = None

    def _move_in(self, turn: Lock) -> None:
        with turn:
            if self._resident is None:  # else another thread was first
                self._live(Resident(self._open, SessionManager.close))

    def _live(self, resident: Resident[SessionManager] | Part[SessionManager]) -> None:
        """Live in the loop of `saveslot.blocking`."""

        async def here(manager: SessionManager) -> None:
            self._loop, self._view = asyncio.get_running_loop(), self._narrowed(manager)

        resident.run(here)
        self._resident = resident

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Live in this loop from now on."""
        self._view, self._loop, self._resident = None, loop, None
        if isinstance(self._given, SessionManager):
            self._view = self._narrowed(self._given)
            return
        for closed in [known for known in [*_shared] if known.is_closed()]:
            _shared.pop(closed, None)
        url = opening.located(self._url)["url"].value
        # Each adapter in memory has a store of its own.
        place = (url, str(id(self)) if url == MEMORY else repr(sorted(self._options.items())))
        opened = _shared.setdefault(loop, {})
        if place not in opened:
            opened[place] = Shared(place, asyncio.ensure_future(self._open()))
        self._shared = opened[place]
        self._shared.users += 1

    async def _open(self) -> SessionManager:
        if self._kept is not None:
            return self._kept
        manager = await opening.open(self._url, **self._options)
        if opening.located(self._url)["url"].value == MEMORY:
            self._kept = manager
        return manager

    async def _opened(self) -> SessionManager:
        if self._view is None:
            shared = self._shared
            if shared is None:
                raise Unavailable("it was closed while this call waited; call again")
            try:
                # Shielded: another adapter may be waiting for the same manager.
                manager = await asyncio.shield(shared.manager)
            except BaseException:
                if shared.manager.done() and self._shared is shared:  # not opened: the next call tries again
                    self._forget()
                    _shared.get(asyncio.get_running_loop(), {}).pop(shared.place, None)
                raise
            if self._shared is not shared:
                raise Unavailable("it was closed while this call waited; call again")
            self._view = self._narrowed(manager)
        return self._view

    async def _there(self, verb: Callable[[SessionManager], Awaitable[R]]) -> R:
        return await verb(await self._opened())

    def _narrowed(self, manager: SessionManager) -> SessionManager:
        return manager if self.namespace in {None, manager.namespace} else manager.of(cast("str", self.namespace))


async def _leave(shared: Shared, loop: asyncio.AbstractEventLoop) -> None:
    shared.users -= 1
    if shared.users == 0:
        opened = _shared.get(loop, {})
        if opened.get(shared.place) is shared:
            del opened[shared.place]
        await (await shared.manager).close()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def require(extra: str, distribution: str, lowest: str, below: str) -> None:
    """Raise ImportError unless a version of the framework is installed that its adapter is tested with."""
    hint = f"pip install 'saveslot[{extra}]'"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise ImportError(f"this adapter needs {distribution}: {hint}", name=distribution) from None
    if not _numbers(lowest) <= _numbers(version) < _numbers(below):
        works = f"works with {distribution} {lowest} up to, but not including, {below}"
        raise ImportError(f"this adapter {works}; {version} is installed: {hint}", name=distribution)


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: `1.2.0rc1` is (1, 2, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return () if release is None else tuple(int(part) for part in release[0].split("."))
