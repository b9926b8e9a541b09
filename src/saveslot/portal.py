"""Where synchronous callers meet async code: one event loop a process, in a daemon thread, started when first needed.

Any number of threads may wait there at once, also one that runs another event loop itself. A forked child starts a loop
of its own, and what was opened before the fork stays its parent's: the child is told to open it again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from saveslot.errors import FORKED, Unavailable

T = TypeVar("T")
R = TypeVar("R")

# How long the interpreter's exit waits for writes that nobody waits for any more (a commit takes milliseconds).
LAST_PATIENCE = 10.0

_END: Final = object()


class Portal:
    def __init__(self) -> None:
        self.residents: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}  # how each of them is closed
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Errands())
        self._thread = threading.Thread(target=self._turn, name="saveslot-loop", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Its result. Ctrl-C abandons the answer: the coroutine is cancelled, and the caller free at once."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call inside Saveslot's own event loop would wait for itself")
        future = self._sent(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()  # nothing happens to one that is done
            del future  # or its exception would hold this frame, and the frame the exception
            if self._stopping and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()  # only daemon threads are left, which end with the interpreter: without a word

    def send(self, verb: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run it some time soon, if there is such a time; nobody waits."""
        if self is _current and not self._stopping:
            with suppress(Unavailable):
                self._sent(verb())

    def _sent(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Unavailable("the interpreter is exiting: nothing can be read or written any more") from None

    def stop(self) -> None:
        """At exit, when all other threads are done: close what is open, so that no file is left to be recovered."""
        self._stopping = True
        try:
            self._sent(self._finished()).result(LAST_PATIENCE)
        except (TimeoutError, Unavailable):
            return  # the thread is a daemon: it ends with the interpreter, and what was acknowledged is durable
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LAST_PATIENCE)
        self._loop.close()

    async def _finished(self) -> None:
        await asyncio.gather(*[close() for close in list(self.residents.values())], return_exceptions=True)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class _Errands(ThreadPoolExecutor):
    """Threads for what the loop should not wait for itself: opening, closing. Python's own pool takes no work any more
    once the main thread has ended, while threads of the caller's may go on.
    """

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future = Future[R]()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as exc:  # noqa: BLE001  (it belongs to who waits)
                future.set_exception(exc)

        future.set_running_or_notify_cancel()
        try:
            threading.Thread(target=run, name="saveslot-errand", daemon=True).start()
        except RuntimeError:
            run()  # at exit some Pythons start no threads any more
        return future


class Resident(Generic[T]):
    """Something that lives in the loop: made there, used from any thread, closed by `close`, when it is forgotten, or
    at exit. In a forked child only `close` works, and does nothing.
    """

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, T]], close: Callable[[T], Coroutine[Any, Any, None]]
    ) -> None:
        self._portal = portal()
        value = self.value = self._portal.run(make())
        token = object()
        self._portal.residents[token] = lambda: close(value)
        self._closing = weakref.finalize(self, _forget, self._portal, token)
        self._closing.atexit = False  # `Portal.stop` does it then
        self._token = token

    def run(self, verb: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        if self._portal is not _current:
            raise Unavailable(FORKED)
        return self._portal.run(verb(self.value))

    def part(self, value: R) -> Part[R]:
        """Something else that lives there, as long as this does."""
        return Part(self, value)

    def each(self, verb: Callable[[T], AsyncIterator[R]]) -> Iterator[R]:
        """What the async iterator yields, one at a time; leaving the loop that reads it closes it."""
        iterator: AsyncIterator[Any] | None = None
        turn = asyncio.Lock()  # a step that Ctrl-C cancelled may still be on its way out

        async def step(value: T) -> Any:
            nonlocal iterator
            async with turn:
                iterator = iterator or verb(value)
                return await anext(iterator, _END)

        async def leave() -> None:
            async with turn:
                if isinstance(iterator, AsyncGenerator):
                    await iterator.aclose()

        try:
            while (item := self.run(step)) is not _END:
                yield item
        finally:
            self._portal.send(leave)  # not waited for: the garbage collector may call this anywhere

    def close(self) -> None:
        if self._portal is _current and self._closing.detach() is not None:
            close = self._portal.residents.pop(self._token)
            self._portal.run(close())


class Part(Generic[T]):
    def __init__(self, whole: Resident[Any], value: T) -> None:
        self.value = value
        self._whole = whole

    def run(self, verb: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        return self._whole.run(lambda _: verb(self.value))


def _forget(where: Portal, token: object) -> None:
    """Nobody can reach it any more: close it, some time soon. (This may run in any thread, even in the loop's.)"""
    if where is _current:
        where.send(where.residents.pop(token))


_current: Portal | None = None
_starting = threading.Lock()


def portal() -> Portal:
    """The one of this process."""
    global _current  # noqa: PLW0603  (one a process)
    with _starting:
        if _current is None:
            _current = Portal()
        return _current


@atexit.register
def _stop() -> None:
    if _current is not None:
        _current.stop()


def _forked() -> None:
    """The child has none of its parent's threads; their objects are left as they are, and never touched."""
    global _current, _starting  # noqa: PLW0603
    _current = None
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
