"""`saveslot serve --workers N`: several processes on one socket. A process that dies is replaced; if the parent dies,
they finish their requests and end.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any

from saveslot.errors import SaveslotError, Unavailable, from_dict
from saveslot.server.run import GRACE, Options, Position, bind, serve

# Each starts as a new interpreter: what the parent has open stays its own.
SPAWN = multiprocessing.get_context("spawn")
# Seconds that a process may take to start, and to end after its requests.
STARTING, ENDING = 60.0, 5.0
# Seconds before a process that died is started again.
AGAIN = 1.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run in a new event loop: uvloop's, where there is one."""
    try:
        import uvloop as loops
    except ModuleNotFoundError:
        import asyncio as loops  # Windows
    loops.run(work)


def serve_alone(options: Options, ready: Callable[[str], None]) -> None:
    listening = bind(options.host, options.port)
    try:
        run(serve(options, listening, lambda: ready(options.place(listening))))
    finally:
        listening.close()


def serve_many(options: Options, count: int, ready: Callable[[str], None]) -> None:
    """Serve with `count` processes until this one is told to end; `ready` is called once all of them answer."""
    listening = bind(options.host, options.port)
    with TemporaryDirectory(prefix="saveslot-") as folder:
        crew = [Member(options, listening, folder, number) for number in range(count)]
        try:
            for member in crew:
                member.await_ready()
            ready(options.place(listening))
            _supervise(crew)
        finally:
            for member in crew:
                member.process.terminate()
            ends = time.monotonic() + GRACE + ENDING
            for member in crew:
                member.process.join(max(0.0, ends - time.monotonic()))
                member.process.kill()
            listening.close()


class Member:
    """One process. It reports through a pipe that it is ready, or why it cannot be."""

    def __init__(self, options: Options, listening: socket.socket, folder: str, number: int) -> None:
        self._given = options, listening, folder, number
        self.start()

    def start(self) -> None:
        self._report, theirs = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=_work, args=(*self._given, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def await_ready(self) -> None:
        try:
            problem = self._report.recv() if self._report.poll(STARTING) else None
        except EOFError:
            problem = None
        else:
            if problem == {}:
                return
        raise from_dict(problem) if problem else Unavailable("a server process did not start; its message is above")


def _work(options: Options, listening: socket.socket, folder: str, number: int, report: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells it to end, or is killed
    parent = multiprocessing.parent_process()
    position = None if parent is None or sys.platform == "win32" else Position(number, folder, parent.sentinel)
    try:
        run(serve(options, listening, lambda: report.send({}), position))
    except SaveslotError as exc:
        report.send(exc.to_dict())


def _supervise(crew: list[Member]) -> None:
    signalled: list[int] = []
    numbers = (signal.SIGTERM,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: signalled.append(number)) for number in numbers}
    try:
        while not signalled:
            ended = wait([member.process.sentinel for member in crew], timeout=0.2)
            if ended and not signalled:
                time.sleep(AGAIN)
            for member in crew:
                if member.process.sentinel in ended and not signalled:
                    member.start()
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
