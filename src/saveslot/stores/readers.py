"""A few threads that read.

Not `ThreadPoolExecutor`: that one takes no work any more once the main thread has ended, while threads of the caller's
may still be reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Readers(Executor):
    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = Future[T]()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name="saveslot-reader", daemon=True)
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # at exit some Pythons start no threads any more
                if not self._threads:
                    self._queue.put(None)
                    self._run()
                    self._idle.acquire()  # nobody is
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Read what was asked for, then end."""
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            tell, told = future.cancelled, ()
            if future.set_running_or_notify_cancel():
                try:
                    tell, told = future.set_result, (work(),)
                except BaseException as exc:  # noqa: BLE001  (it belongs to who waits)
                    tell, told = future.set_exception, (exc,)
            # First this: who hears of it and asks again at once needs no other thread.
            self._idle.release()
            tell(*told)
            del job, future, work, tell, told  # or what was read lives until the next reading
