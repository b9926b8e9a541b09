"""One writer of one SQLite file: many jobs in one transaction, one sync, and every caller told only after it.

Jobs that come in the same turn of the event loop form a batch. While commits are quick they are made right there, in
the loop: waking a thread and being woken again costs more than a lone commit takes, and two threads that want the
interpreter at once slow each other down (docs/decisions/0001-commits-inline.md). As soon as they are not quick a thread
makes them, so that a slow disk never stops the loop, and while one is under way the next batch grows: the busier, the
fewer syncs a job.
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

from saveslot.loops import running
from saveslot.metrics import Counters
from saveslot.stores.sqlite_room import Room

Work = Any  # something that `CarriedOut` understands
CarriedOut = Callable[[apsw.Connection, Sequence[Work]], list[Any]]  # what a batch asks for, in its transaction
Check = Callable[[float], float]  # raises if nothing may be written; else, when to ask again


Job = tuple[Work, "asyncio.Future[Any]", bool]  # and whether it is one statement, a transaction by itself
Batch = list[Job]

# While commits take less than this, by a moving average, they run in the event loop: a large state is encoded as long.
QUICK = 0.004
# How much one commit counts in that average, and at most so many seconds of it.
SHARE, STALL = 0.125, 8 * QUICK
# Lone jobs are committed where they are for as long as one may take there; then the loop must go round before the next.
# (With a quarter of it one session alone was a tenth slower: a turn costs more than a small checkpoint's encoding.)
TURN = QUICK
# Waiting batches are merged up to so many jobs: more would hold the write lock for longer than others should wait.
MAX_BATCH = 256
# How long a batch waits for another process's commit. A process stopped inside a commit looks like that.
PATIENCE = 30.0
# Pages in the WAL (4 KB each) before they are copied into the file; SQLite's own default. With 4,000 commits are no
# quicker.
WAL_PAGES = 1000


class Writer:
    """File and thread are opened and started with the first job: who only reads waits for neither."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        told: Callable[[], None],
        carried_out: CarriedOut,
        counters: Counters | None = None,
        check: Check = lambda _: float("inf"),
    ) -> None:
        self._connect = connect
        self._check = check
        self._checked = 0.0  # until then, and it was well
        self._counters = counters or Counters()  # counted by whoever has the baton
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # two event loops may have the first job
        self._told = told  # called in the event loop after each commit
        self._carried_out = carried_out
        self._forming: Batch = []
        # Loop, jobs, and 1 if they are counted in `_waiting`.
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, Batch, int] | None] = SimpleQueue()
        self._waiting = 0  # batches handed to the thread and not yet answered
        self._baton = threading.Lock()  # who has it may use the connection
        self._usual = 0.0  # seconds that a commit takes
        self._lone = True  # the last batch was a single job
        self._turn = 0.0  # when this turn of the loop has had its time; 0 in a new one
        self._patience = 0.0
        self._wal_pages = 0
        self._next_checkpoint = WAL_PAGES
        self._room = Room()

    def submit(self, work: Work, *, single: bool = False, heavy: bool = False) -> asyncio.Future[Any]:
        """Run in the next transaction. Cancelling the future abandons the answer; the work is done all the same.

        `single`: it is one statement. `heavy`: it is too long for the event loop, however quick the last one was.
        """
        loop = running()
        answer: asyncio.Future[Any] = loop.create_future()
        job = (work, answer, single)
        if heavy:
            self._leave(loop, [job])
        elif (results := self._alone(work, single=single)) is not None:
            _answer([(job, results[0])])
        else:
            self._forming.append(job)
            if len(self._forming) == 1:
                loop.call_soon(self._send, loop)
        return answer

    def at_once(self, statement: Work) -> Any | None:
        """What a single statement finds, here and now; None if it is to be submitted. (Saves the future: 2 us.)"""
        results = self._alone(statement, single=True)
        return None if results is None else results[0]

    def _alone(self, work: Work, *, single: bool) -> list[Any] | None:
        if self._forming or not self._lone or time.monotonic() >= (self._turn or self._new_turn()):
            return None
        return self._here([work], single=single)

    def post(self, work: Work) -> asyncio.Future[Any]:
        """The same from any event loop, while the one that this store lives in may stand still."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._hand_over(loop, [(work, answer, False)], 0)
        return answer

    async def close(self) -> None:
        """Finish what was submitted, then let the file go."""
        loop = asyncio.get_running_loop()
        if self._forming:
            self._send(loop)
        if self._thread is not None:
            self._queue.put(None)
            await loop.run_in_executor(None, self._thread.join)
        if self._connection is not None:
            with suppress(apsw.Error):  # the WAL could not be copied back: it stays, and holds everything
                self._connection.close()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._forming = self._forming, []
        self._lone = len(batch) == 1
        results = self._here([work for work, _, _ in batch], single=_single(batch)) if batch else []
        if results is None:
            self._leave(loop, batch)
        else:
            _answer(zip(batch, results, strict=True))

    def _leave(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """To the thread. Until it has answered, it has all that comes."""
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
                except RuntimeError:  # at exit some Pythons start no threads any more
                    self._queue.put(None)
                    self._run()

    def _new_turn(self) -> float:
        """When this turn of the loop has had its time: who saves in a tight loop must not keep others from running."""
        self._turn = time.monotonic() + TURN
        running().call_soon(self._turned)
        return self._turn

    def _turned(self) -> None:
        self._turn = 0.0

    def _here(self, works: list[Work], *, single: bool) -> list[Any] | None:
        """Commit in the event loop: what came of it, or None when that is the thread's to do."""
        if self._usual > QUICK or self._waiting or self._connection is None or not self._baton.acquire(False):  # noqa: FBT003
            return None
        try:
            results = self._transaction(works, 0, single=single)
        except Exception:  # noqa: BLE001  (the thread meets it again: it can wait for a lock, and tell good jobs from bad)
            self._lone = False  # with what else comes in this turn
            return None
        finally:
            self._baton.release()
        self._told()
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
            for loop, counted in loops.items():  # each caller in its own loop: another's may be closed
                mine = [(job, result) for job, result in zip(batch, results, strict=True) if job[1].get_loop() is loop]
                if not _told(loop, self._answered, mine, counted):
                    self._waiting -= counted
            with self._baton:  # whoever was answered need not wait for this
                if self._connection is not None and self._wal_pages >= self._next_checkpoint:
                    self._checkpoint(self._connection)
            if last:
                return

    def _answered(self, results: list[tuple[Job, Any]], counted: int) -> None:
        _answer(results)
        if counted:  # else it was posted, from a loop in which nobody waits for news
            self._waiting -= counted
            self._told()

    def _committed(self, batch: Batch) -> list[Any]:
        """All jobs in one transaction; if that fails, each in its own, so that one bad job harms no other."""
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
            if single and self._wal_pages <= self._room.enough:
                results = self._carried_out(connection, works)
            else:
                results = self._together(connection, works)
        finally:
            self._usual += (min(time.monotonic() - start, STALL) - self._usual) * SHARE
        self._counters.batches.add(len(works))
        return results

    def _together(self, connection: apsw.Connection, works: list[Work]) -> list[Any]:
        # IMMEDIATE takes the write lock before the first read, so two processes never both see entry n as the newest.
        connection.execute("begin immediate")
        try:
            if self._wal_pages > self._room.enough:
                self._room.lay(connection, self._wal_pages)
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
            self._room = Room()  # unless somebody cut the file, it is long enough; that is looked at
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Copy the WAL into the file. A reader may hold it back; then the next try is another 1,000 pages away."""
        self._next_checkpoint = self._wal_pages + WAL_PAGES
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return  # the WAL holds everything; the next checkpoint tries again


def _single(batch: Batch) -> bool:
    """True for one statement alone, which is a transaction by itself."""
    return len(batch) == 1 and batch[0][2]


def _answer(results: Iterable[tuple[Job, Any]]) -> None:
    """A result that is an exception is raised where the answer is awaited."""
    for (_, answer, _), result in results:
        if answer.done():
            continue  # cancelled: the caller went away
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _told(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> bool:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False  # the loop is closed: nobody waits for an answer any more
    return True
