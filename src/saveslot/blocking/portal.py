"""Synchronous calls of async code: one event loop per process, in a daemon thread, started when first needed.

Any number of threads may wait for it at once, even one that runs its own event loop. A forked child starts another
loop; what its parent opened before the fork raises `Unavailable` there, with the advice to open it again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from saveslot.errors import FORKED, Unavailable
from saveslot.session.hearing import HEARD, Unheard

T = TypeVar("T")
R = TypeVar("R")

# Seconds that the interpreter's exit waits for writes whose callers are gone (a commit takes milliseconds).
LAST_PATIENCE = 10.0

EXITING = "the interpreter is exiting: nothing can be read or written any more"

_END: Final = object()


class Call(Generic[R]):
    """One coroutine on its way through the loop, and its outcome."""

    answer: R  # once it is done without an error

    def __init__(self, make: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self.make = make  # called in the loop's thread, so that an interrupt drops no coroutine that was never awaited
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self.left = False  # the caller will not take the outcome
        self.unheard: list[Callable[[], None]] = []  # to be called then
        # A raw lock, held until the outcome is there. A `Condition` is Python code: an interrupt inside it can leave
        # its lock held forever, and the loop's thread waiting for it.
        self.done = allocate_lock()
        self.done.acquire()

    # The next two run in the loop's thread.

    def leave(self) -> None:
        """The caller left: cancel the call, or if it has finished, run its callbacks."""
        self.left = True
        if self.task is None:
            self.tell()
        else:
            self.task.cancel()

    def tell(self) -> None:
        loop = asyncio.get_running_loop()
        for callback in self.unheard:
            loop.call_soon(callback)  # before the first step of any task that is started later


class Portal:
    def __init__(self) -> None:
        self.residents: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}  # how each one is closed
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds them by weak references only
        # To be called in the loop's thread before any later call starts. Callers append to it before they do anything
        # else: that is one step, which no interrupt splits, and if the next line is interrupted, the next call sees it.
        self.queue: deque[Callable[[], None]] = deque()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Errands())
        self._thread = threading.Thread(target=self._turn, name="saveslot-loop", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run the coroutine in the loop and return its result.

        An interrupt (Ctrl-C, or anything else that a signal handler raises) frees the caller at once. The coroutine is
        cancelled; if it has finished, its callbacks in `session.hearing` learn that the caller did not take the answer.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call inside Saveslot's own event loop would wait for itself")
        call = Call(make)
        try:
            self._send(call)
            call.done.acquire()
            if self._stopping and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()  # only daemon threads are left: wait silently for the interpreter to end
            # Python runs signal handlers after calls and jumps back: from here to the caller's frame there are none.
            if call.error is None:
                return call.answer
            raise call.error  # noqa: TRY301  (an interrupt between this and a try block would go unnoticed)
        except BaseException as exc:
            if exc is not call.error:
                self.queue.append(call.leave)
                self.flush()
            raise
        finally:
            del call  # or its error would hold this frame, and the frame the error

    def send(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run the coroutine soon, without waiting for it. During exit, drop it."""
        if self is _current and not self._stopping:
            with suppress(Unavailable):
                self._send(Call(make))

    def flush(self) -> None:
        """Let the loop run the queue soon, without waiting for another call."""
        if self is _current:
            with suppress(RuntimeError):  # the loop is closed, and its calls with it
                self._loop.call_soon_threadsafe(self._catch_up)

    def forget(self, token: object) -> None:
        """Close an unreachable resident soon. Any thread may call this, the loop's too."""
        if self is _current and (close := self.residents.pop(token, None)) is not None:
            self.send(close)

    def _send(self, call: Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._start, call)
        except RuntimeError:
            raise Unavailable(EXITING) from None

    # The next three run in the loop's thread.

    def _start(self, call: Call[Any]) -> None:
        self._catch_up()
        if not call.left:
            unheard = Unheard()
            HEARD.set(unheard)  # in a copy of the caller's context, which the loop runs this in
            call.task = task = self._loop.create_task(self._answer(call, unheard))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call[Any], unheard: Unheard) -> None:
        try:
            call.answer = await call.make()
        except asyncio.CancelledError:
            call.error = Unavailable(EXITING)  # or the caller left, and no one reads it
        except BaseException as exc:  # noqa: BLE001  (it belongs to the caller)
            call.error = exc
        call.unheard = unheard.close()
        call.task = None
        if call.left:
            call.tell()
        call.done.release()
        del call  # or its error would hold this frame, and the frame the error

    def _catch_up(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def stop(self) -> None:
        """Close everything at exit, after all other threads are done, so that no file needs recovery."""
        self._stopping = True
        closing = Call(self._finished)
        try:
            self._send(closing)
        except Unavailable:
            return
        if not closing.done.acquire(timeout=LAST_PATIENCE):
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
    """Threads for work that would block the loop: opening, closing. Python's own pool accepts no work once the main
    thread has ended, while the caller's threads may still run.
    """

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future = Future[R]()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as exc:  # noqa: BLE001  (it belongs to the waiting coroutine)
                future.set_exception(exc)

        future.set_running_or_notify_cancel()
        try:
            threading.Thread(target=run, name="saveslot-errand", daemon=True).start()
        except RuntimeError:
            run()  # at exit some Pythons start no more threads
        return future


class Resident(Generic[T]):
    """An object that lives in the loop: created there, used from any thread, closed by `close`, when it becomes
    unreachable, or at exit. In a forked child only `close` works, and does nothing.
    """

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, T]], close: Callable[[T], Coroutine[Any, Any, None]]
    ) -> None:
        where = self._portal = portal()
        self.queue = where.queue
        token = self._token = object()

        async def make_and_register() -> T:
            value = await make()
            where.residents[token] = lambda: close(value)
            if (unheard := HEARD.get()) is not None:
                unheard.append(lambda: where.forget(token))
            return value

        self.value = where.run(make_and_register)
        self._closing = weakref.finalize(self, where.forget, token)
        self._closing.atexit = False  # `Portal.stop` does it then

    def run(self, verb: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        if self._portal is not _current:
            raise Unavailable(FORKED)
        return self._portal.run(lambda: verb(self.value))

    def flush(self) -> None:
        """Let the loop run what was appended to `queue`."""
        self._portal.flush()

    def part(self, value: R) -> Part[R]:
        """Return another object in the loop, which lives as long as this one."""
        return Part(self, value)

    def each(self, verb: Callable[[T], AsyncIterator[R]]) -> Iterator[R]:
        """Yield what the async iterator yields, one item at a time. Leaving the `for` loop closes it."""
        iterator: AsyncIterator[Any] | None = None
        turn = asyncio.Lock()  # a step that an interrupt cancelled may still be ending

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
            self._portal.run(self._close)

    async def _close(self) -> None:
        await self._portal.residents.pop(self._token)()


class Part(Generic[T]):
    def __init__(self, whole: Resident[Any], value: T) -> None:
        self.value = value
        self.queue = whole.queue
        self._whole = whole

    def run(self, verb: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        return self._whole.run(lambda _: verb(self.value))

    def flush(self) -> None:
        self._whole.flush()

    def part(self, value: R) -> Part[R]:
        return self._whole.part(value)

    def each(self, verb: Callable[[T], AsyncIterator[R]]) -> Iterator[R]:
        return self._whole.each(lambda _: verb(self.value))

    def close(self) -> None:
        """Do nothing: it ends with the whole."""


_current: Portal | None = None
_starting = threading.Lock()


def portal() -> Portal:
    """Return the portal of this process."""
    global _current  # noqa: PLW0603  (one per process)
    with _starting:
        if _current is None:
            _current = Portal()
        return _current


@atexit.register
def _stop() -> None:
    if _current is not None:
        _current.stop()


def _forked() -> None:
    """Forget the parent's portal: its thread does not exist in the child. Its objects are never touched."""
    global _current, _starting  # noqa: PLW0603
    _current = None
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
