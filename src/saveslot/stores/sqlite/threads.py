"""Executor for the reader threads.

`ThreadPoolExecutor` refuses work once the main thread has ended, while other threads of the caller may still read.
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
            except RuntimeError:  # some Python versions start no threads at exit
                if not self._threads:
                    self._queue.put(None)
                    self._run()
                    self._idle.acquire()  # there is no idle thread
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Finish the submitted reads, then end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            respond, result = future.cancelled, ()
            if future.set_running_or_notify_cancel():
                try:
                    respond, result = future.set_result, (work(),)
                except BaseException as exc:  # noqa: BLE001  (it is raised in the caller)
                    respond, result = future.set_exception, (exc,)
            # Release first: a caller that reads again right after the result then needs no other thread.
            self._idle.release()
            respond(*result)
            del job, future, work, respond, result  # or the result stays in memory until the next read
