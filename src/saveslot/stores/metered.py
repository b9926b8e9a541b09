"""A store, and what it did: each verb counted and timed where it is called, whatever store stands behind."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from saveslot.log import Counts, Entry, Event, Group, Head, Outcome, Place, Query, Ref, Row, Sign, Verdict, Worker
from saveslot.metrics import Calls, Counters
from saveslot.stores import Store
from saveslot.stores.passing import PassingStore

READS = ("heads", "entries", "find", "count")
APPENDED = Outcome.APPENDED


class Timed:
    """`with timed:` counts one call. One for each call, since calls overlap."""

    __slots__ = ("_calls", "_start")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self._calls.took.add(perf_counter_ns() - self._start)
        if kind is not None and issubclass(kind, Exception):  # who was cancelled did not fail
            self._calls.errors += 1


@runtime_checkable
class Telling(Store, Protocol):
    """A store that says what it did, by tier."""

    def metrics(self) -> dict[str, Any]: ...


class MeteredStore(PassingStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        # A store counts what only it sees, if it does.
        self._inside: Counters = getattr(store, "counters", None) or Counters()
        self._append, self._beat, self._renewal, self._watch = Calls(), Calls(), Calls(), Calls()
        self._reads = {verb: Calls() for verb in READS}
        self._others = {"empty": Calls(), "purge": Calls()}
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._entries = self._bytes = self._sent = self._wakeups = 0

    def metrics(self) -> dict[str, Any]:
        inside = self._inside
        return {
            "database": {
                "appends": {
                    **self._append.told(),
                    "groups": self._outcomes[APPENDED],
                    "entries": self._entries,
                    "bytes": self._bytes,
                    "outcomes": {outcome.value: many for outcome, many in self._outcomes.items()},
                },
                "batches": {"count": inside.batches.count, "groups": inside.batches.percentiles()},
                "retries": inside.retries,
                **{verb: calls.told() for verb, calls in self._reads.items()},
                "shared_heads": inside.shared,
                "bytes_read": self._sent,
                "heartbeats": self._beat.told(),
                "renewals": self._renewal.told(),
                "watches": {
                    "calls": self._watch.took.count,
                    "errors": self._watch.errors,
                    "wakeups": self._wakeups,
                },
                **{verb: calls.told() for verb, calls in self._others.items()},
            }
        }

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        start = perf_counter_ns()
        try:
            verdicts = await self._inner.append(groups)
        except Exception:
            self._append.errors += 1
            raise
        finally:
            self._append.took.add(perf_counter_ns() - start)
        for n, verdict in enumerate(verdicts):
            self._outcomes[verdict.outcome] += 1
            if verdict.outcome is APPENDED:
                for entry in groups[n].entries:
                    self._entries += 1
                    self._bytes += len(entry.frame or b"") + len(entry.note or b"")
        return verdicts

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        with Timed(self._reads["heads"]):
            return await self._inner.heads(refs)

    async def entries(
        self,
        key: bytes,
        ranges: Sequence[tuple[int, int]] = ((1, 2**62),),
        *,
        kinds: frozenset[int] | None = None,
        name: str | None = None,
        newest: int | None = None,
        frames: bool = True,
        largest: int | None = None,
    ) -> list[Entry]:
        with Timed(self._reads["entries"]):
            found = await self._inner.entries(
                key, ranges, kinds=kinds, name=name, newest=newest, frames=frames, largest=largest
            )
        if frames:
            self._sent += sum(len(entry.frame) for entry in found if entry.frame is not None)
        return found

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        with Timed(self._reads["find"]):
            return await self._inner.find(query, after, limit)

    async def count(self, query: Query, sample: int = 0) -> Counts:
        with Timed(self._reads["count"]):
            return await self._inner.count(query, sample)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        with Timed(self._beat if worker is None else self._renewal):  # renewals come from a thread of their own
            return await self._inner.beat(signs, worker)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        with Timed(self._watch):
            found = await self._inner.events(namespace, after, key, limit=limit, wait=wait)
        self._wakeups += bool(found[0])
        return found

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        with Timed(self._others["empty"]):
            return await self._inner.empty(key, seqs, notes=notes, body=body)

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        with Timed(self._others["purge"]):
            return await self._inner.purge(keys, seen)


def metered(store: Store) -> Telling:
    """The same store, with `metrics()`."""
    return store if isinstance(store, Telling) else MeteredStore(store)
