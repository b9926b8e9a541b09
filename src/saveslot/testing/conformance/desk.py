"""What the tests of every topic share: two handles on one store, a clock that tests set, and shorthand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from os import urandom
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from saveslot.stores import Store
from saveslot.testing.pen import SECOND, Clock, Pen
from saveslot.values.ids import fresh_id
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry, Group, Head, Outcome, Query, Verdict, Wanted, Worker, checked

APPENDED, ALREADY, CONFLICT = Outcome.APPENDED, Outcome.ALREADY, Outcome.CONFLICT
FENCED, MISSING, LOST, SKIPPED = Outcome.FENCED, Outcome.MISSING, Outcome.LOST, Outcome.SKIPPED
# Nothing here takes as long; a test that hangs is a test that fails.
PATIENCE = 60
# What one beat of a worker is good for.
TTL = 20 * SECOND

P = ParamSpec("P")


class Desk:
    """Two handles on the same data, as two processes have them, and shorthand for what most tests do."""

    def __init__(self, store: Store, other: Store, clock: Clock) -> None:
        self.store = store
        self.other = other
        self.clock = clock
        self.namespace = f"test-{fresh_id()}"

    async def create(self, session_id: str = "a", count: int = 1, namespace: str | None = None, **row: Any) -> Pen:
        pen = Pen(namespace or self.namespace, session_id)
        group = pen.begin(count, **row)
        assert (await self.send(group)).outcome is APPENDED
        pen.saw(group)
        return pen

    async def send(self, group: Group, on: Store | None = None) -> Verdict:
        (verdict,) = await (on or self.store).append([checked(group)])
        return verdict

    async def write(self, pen: Pen, count: int = 1, kind: Kind = Kind.CHECKPOINT, **of: Any) -> Verdict:
        return await self.land(pen, pen.group(count, kind, **of))

    async def land(self, pen: Pen, group: Group, on: Store | None = None) -> Verdict:
        verdict = await self.send(group, on)
        assert verdict.outcome is APPENDED
        pen.saw(group)
        return verdict

    async def delete(self, pen: Pen) -> Group:
        group = pen.delete()
        await self.land(pen, group)
        return group

    async def worker(self, name: str = "w", ttl: int = TTL, on: Store | None = None) -> Worker:
        """A worker that has just sent its first beat."""
        worker = Worker(urandom(16), name, ttl, first=True)
        assert await (on or self.store).beat((), worker) == [self.clock()]
        worker.first = False
        return worker

    async def beat(self, worker: Worker, on: Store | None = None) -> bool:
        (at,) = await (on or self.store).beat((), worker)
        assert at in {0, self.clock()}
        return bool(at)

    async def held(self, worker: Worker, session_id: str = "a", **row: Any) -> Pen:
        """A session that this worker holds."""
        pen = await self.create(session_id, **row)
        await self.land(pen, pen.take_over(worker))
        return pen

    async def log(self, pen: Pen, **how: Any) -> list[Entry]:
        return await self.other.entries(pen.key, Wanted(**how))

    async def head(self, pen: Pen) -> Head:
        (head,) = await self.other.heads([pen.key])
        assert head is not None
        return head

    async def ids(self, **query: Any) -> list[str]:
        return [row.session_id for row in await self.other.find(Query(namespace=self.namespace, **query))]


class Suite:
    erases = True  # False for a store that refuses to (`InvalidInput`)

    async def open(self, folder: Path, clock: Clock) -> Store:
        """A handle on the store in this folder. It is called twice; a store that lives in one process returns the same
        one again. `clock` tells the time by which the store judges staleness and dates entries, `clock.uptime` the one
        that nobody sets, by which a worker's time runs out.
        """
        raise NotImplementedError


def on_a_desk(test: Callable[Concatenate[Any, Desk, P], Awaitable[None]]) -> Callable[[Any, Path], None]:
    def run(self: Suite, tmp_path: Path) -> None:
        async def main() -> None:
            clock = Clock()
            desk = Desk(await self.open(tmp_path, clock), await self.open(tmp_path, clock), clock)
            try:
                async with asyncio.timeout(PATIENCE):
                    await test(self, desk)  # pyright: ignore[reportCallIssue]
            finally:
                await desk.store.close()
                await desk.other.close()

        asyncio.run(main())

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    run.__module__ = test.__module__
    return run


def spots(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    return [(entry.seq, entry.append_id) for entry in entries]
