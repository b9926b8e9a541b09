"""Writes to one SQLite file: many jobs in one transaction with one sync; callers get their results after it.

Jobs submitted in the same turn of the event loop form a batch. While commits are quick, the loop itself makes them: a
round trip to a thread costs more than a single commit, and two threads that compete for the interpreter slow each other
down (docs/decisions/sqlite.md). Once commits are slow, a thread makes them, so that a slow disk never blocks the loop.
While one is under way the next batch grows: the busier the file, the fewer syncs per job.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from saveslot.stores.wire.loops import running
from saveslot.stores.wire.metrics import Counters

Work = Any  # a job that `CarriedOut` can run
CarriedOut = Callable[[apsw.Connection, Sequence[Work]], list[Any]]  # runs a batch inside its transaction
Check = Callable[[float], float]  # raises if nothing may be written; else returns when to check again


Job = tuple[Work, "asyncio.Future[Any]", bool]  # and whether it is one statement, a transaction by itself
Batch = list[Job]

# Seconds. While the moving average of commits is below this, they run in the event loop: encoding a large state takes
# as long.
QUICK = 0.004
# Weight of one commit in that average, and the most seconds of it that count.
SHARE, STALL = 0.125, 8 * QUICK
# Seconds per turn of the event loop for committing single jobs at once; then other tasks run before the next one.
# (With a quarter of this, a single session was 10 % slower: a turn costs more than encoding a small checkpoint.)
TURN = QUICK
# Jobs up to which waiting batches are merged: more would hold the write lock longer than other processes should wait.
MAX_BATCH = 256
# Seconds that a batch waits for another process's commit, or for a process stopped inside one.
PATIENCE = 30.0
# Pages in the WAL (4 KB each) before they are copied into the file; SQLite's default. With 4,000, commits were not
# faster.
WAL_PAGES = 1000


class Writer:
    """Opens the file and starts the thread with the first job: a process that only reads needs neither."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        announce: Callable[[], None],
        carried_out: CarriedOut,
        counters: Counters | None = None,
        check: Check = lambda _: float("inf"),
    ) -> None:
        self._connect = connect
        self._check = check
        self._checked = 0.0  # the last check holds until then
        self._counters = counters or Counters()  # changed only while holding the baton
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # two event loops may submit the first job
        self._announce = announce  # called in the event loop after each commit
        self._carried_out = carried_out
        self._forming: Batch = []
        # Loop, jobs, and 1 if the batch is counted in `_waiting`.
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, Batch, int] | None] = SimpleQueue()
        self._waiting = 0  # batches given to the thread and not yet answered
        self._baton = threading.Lock()  # its holder may use the connection
        self._usual = 0.0  # moving average of a commit, in seconds
        self._lone = True  # the last batch was a single job
        self._turn = 0.0  # when this turn of the loop has used up its time; 0 in a new turn
        self._patience = 0.0
        self._wal_pages = 0
        self._next_checkpoint = WAL_PAGES

    def submit(self, work: Work, *, single: bool = False, heavy: bool = False) -> asyncio.Future[Any]:
        """Run a job in the next transaction. Cancelling the future abandons the answer, not the work.

        `single`: it is one statement. `heavy`: it takes too long for the event loop, even while commits are quick.
        """
        loop = running()
        answer: asyncio.Future[Any] = loop.create_future()
        job = (work, answer, single)
        if heavy:
            self._leave(loop, [job])
        elif (results := self._alone(work, single=single)) is not None:
            self._announce()
            _answer([(job, results[0])])
        else:
            self._forming.append(job)
            if len(self._forming) == 1:
                loop.call_soon(self._send, loop)
        return answer

    def at_once(self, statement: Work) -> Any | None:
        """Run a single statement now and return its result; None if it has to be submitted. (Saves a future: 2 us.)

        The caller announces it.
        """
        results = self._alone(statement, single=True)
        return None if results is None else results[0]

    def _alone(self, work: Work, *, single: bool) -> list[Any] | None:
        if self._forming or not self._lone or time.monotonic() >= (self._turn or self._new_turn()):
            return None
        return self._here([work], single=single)

    def post(self, work: Work) -> asyncio.Future[Any]:
        """Submit a job from any event loop, even while the store's own loop is blocked."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._hand_over(loop, [(work, answer, False)], 0)
        return answer

    async def close(self) -> None:
        """Finish the submitted jobs, then close the file."""
        loop = asyncio.get_running_loop()
        if self._forming:
            self._send(loop)
        if self._thread is not None:
            self._queue.put(None)
            await loop.run_in_executor(None, self._thread.join)
        if self._connection is not None:
            # Copy the WAL now, not with the last connection: if that is another program's, it writes no checksums.
            with suppress(apsw.Error):  # if it cannot be copied, the WAL stays, and loses nothing
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            with suppress(apsw.Error):
                self._connection.close()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._forming = self._forming, []
        self._lone = len(batch) == 1
        results = self._here([work for work, _, _ in batch], single=_single(batch)) if batch else []
        if results is None:
            self._leave(loop, batch)
        else:
            if batch:
                self._announce()
            _answer(zip(batch, results, strict=True))

    def _leave(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """Give a batch to the thread. Until it has answered, later batches go there too."""
        self._waiting += 1
        self._hand_over(loop, batch, 1)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, batch: Batch, counted: int) -> None:
        self._queue.put((loop, batch, counted))
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="saveslot-writer", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError:  # some Python versions start no threads at exit
                    self._queue.put(None)
                    self._run()

    def _new_turn(self) -> float:
        """Start this turn's time limit: a task that saves in a tight loop must not keep other tasks from running."""
        self._turn = time.monotonic() + TURN
        running().call_soon(self._turned)
        return self._turn

    def _turned(self) -> None:
        self._turn = 0.0

    def _here(self, works: list[Work], *, single: bool) -> list[Any] | None:
        """Commit in the event loop and return the results; None if the thread has to."""
        if self._usual > QUICK or self._waiting or self._connection is None or not self._baton.acquire(False):  # noqa: FBT003
            return None
        try:
            results = self._transaction(works, 0, single=single)
        except Exception:  # noqa: BLE001  (the thread retries: it can wait for a lock, and separate good jobs from bad)
            self._lone = False  # batch it with the other jobs of this turn
            return None
        finally:
            self._baton.release()
        if self._wal_pages >= self._next_checkpoint:
            self._leave(running(), [])
        return results

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            loop, batch, counted = first
            loops = {loop: counted}
            last = False
            while len(batch) < MAX_BATCH:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    last = True
                    break
                loop, jobs, counted = more
                batch = batch + jobs
                loops[loop] = loops.get(loop, 0) + counted
            with self._baton:
                results = self._committed(batch) if batch else []
            for loop, counted in loops.items():  # answer each caller in its own loop: another loop may be closed
                mine = [(job, result) for job, result in zip(batch, results, strict=True) if job[1].get_loop() is loop]
                if not _called(loop, self._answered, mine, counted):
                    self._waiting -= counted
            with self._baton:  # after the answers, so that callers do not wait for it
                if self._connection is not None and self._wal_pages >= self._next_checkpoint:
                    self._checkpoint(self._connection)
            if last:
                return

    def _answered(self, results: list[tuple[Job, Any]], counted: int) -> None:
        _answer(results)
        if counted:  # else it was posted from a loop without watchers
            self._waiting -= counted
            self._announce()

    def _committed(self, batch: Batch) -> list[Any]:
        """Run all jobs in one transaction; if it fails, each in its own, so that a bad job fails alone."""
        try:
            return self._transaction([work for work, _, _ in batch], PATIENCE, single=_single(batch))
        except Exception as exc:  # noqa: BLE001  (each caller gets it)
            if len(batch) > 1 and not isinstance(exc, apsw.BusyError):
                return [result for job in batch for result in self._committed([job])]
            return [exc for _ in batch]

    def _transaction(self, works: list[Work], patience: float, *, single: bool) -> list[Any]:
        start = time.monotonic()
        self._patience = start + patience
        try:
            if start >= self._checked:
                self._checked = self._check(start)
            connection = self._connection or self._opened()
            results = self._carried_out(connection, works) if single else self._together(connection, works)
        finally:
            self._usual += (min(time.monotonic() - start, STALL) - self._usual) * SHARE
        self._counters.batches.add(len(works))
        return results

    def _together(self, connection: apsw.Connection, works: list[Work]) -> list[Any]:
        # IMMEDIATE takes the write lock before the first read, so two processes never both see entry n as the newest.
        connection.execute("begin immediate")
        try:
            results = self._carried_out(connection, works)
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        return results

    def _opened(self) -> apsw.Connection:
        connection = self._connection = self._connect()
        connection.set_busy_handler(self._wait_for_lock)
        connection.set_wal_hook(self._grown)
        return connection

    def _wait_for_lock(self, tries: int) -> bool:
        if time.monotonic() >= self._patience:
            return False
        self._counters.retries += not tries
        time.sleep(random.uniform(0.0001, min(0.0005 * (tries + 1), 0.002)))  # noqa: S311  (jitter)
        return True

    def _grown(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        if pages < self._wal_pages:
            self._next_checkpoint = WAL_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Copy the WAL into the file. If a reader holds it back, try again after another 1,000 pages."""
        self._next_checkpoint = self._wal_pages + WAL_PAGES
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return  # the WAL loses nothing; the next checkpoint tries again


def _single(batch: Batch) -> bool:
    """True if the batch is one statement, which is a transaction by itself."""
    return len(batch) == 1 and batch[0][2]


def _answer(results: Iterable[tuple[Job, Any]]) -> None:
    """Set each job's future to its result, or to its exception."""
    for (_, answer, _), result in results:
        if answer.done():
            continue  # cancelled: the caller went away
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _called(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> bool:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False  # the loop is closed, and its callers are gone
    return True
