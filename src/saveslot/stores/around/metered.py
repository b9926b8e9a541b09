"""A store with metrics: every verb is counted and timed, whatever the store below."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from saveslot.stores import Store
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.wire.metrics import Calls, Counters
from saveslot.values.kinds import Kind
from saveslot.values.log import (
    ALL,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Labels,
    Outcome,
    Place,
    Query,
    Ref,
    Row,
    Sign,
    Totals,
    Verdict,
    Wanted,
    Worker,
)

READS = ("heads", "entries", "find", "count")
APPENDED = Outcome.APPENDED


class Timed:
    """`with Timed(calls):` counts one call. One instance per call, since calls overlap."""

    __slots__ = ("_calls", "_start")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self._calls.took.add(perf_counter_ns() - self._start)
        if kind is not None and issubclass(kind, Exception):  # a cancelled call did not fail
            self._calls.errors += 1


class MeteredStore(PassingStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._inside = store.counters or Counters()
        self._append, self._beat, self._renewal, self._watch = Calls(), Calls(), Calls(), Calls()
        self._reads = {verb: Calls() for verb in READS}
        self._others = {"empty": Calls(), "swap": Calls(), "purge": Calls()}
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._kinds = [0] * len(Kind)
        self._bytes = self._sent = self._wakeups = 0

    def metrics(self) -> dict[str, Any]:
        inside = self._inside
        return {
            "database": {
                "appends": {
                    **self._append.to_dict(),
                    "groups": self._outcomes[APPENDED],
                    "entries": sum(self._kinds),
                    "kinds": self._by_kind(),
                    "bytes": self._bytes,
                    "outcomes": {outcome.value: many for outcome, many in self._outcomes.items()},
                },
                "batches": {"count": inside.batches.count, "groups": inside.batches.percentiles()},
                "retries": inside.retries,
                **({} if inside.pool is None else {"pool": inside.pool()}),
                **{verb: calls.to_dict() for verb, calls in self._reads.items()},
                "shared_heads": inside.shared,
                "bytes_read": self._sent,
                "heartbeats": self._beat.to_dict(),
                "renewals": self._renewal.to_dict(),
                "watches": {
                    "calls": self._watch.took.count,
                    "errors": self._watch.errors,
                    "wakeups": self._wakeups,
                },
                **{verb: calls.to_dict() for verb, calls in self._others.items()},
            }
        }

    def _by_kind(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, many in zip(Kind, self._kinds, strict=True):
            if many:
                counts[kind.label] = counts.get(kind.label, 0) + many
        return counts

    def calls(self) -> dict[tuple[str, str], Calls]:
        known = {"append": self._append, **self._reads, "beat": self._beat, "renewal": self._renewal, **self._others}
        return {(self.kind, verb): calls for verb, calls in known.items()}

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        start = perf_counter_ns()
        try:
            verdicts = await self._inner.append(groups, together=together)
        except Exception:
            self._append.errors += 1
            raise
        finally:
            self._append.took.add(perf_counter_ns() - start)
        for group, verdict in zip(groups, verdicts, strict=True):
            self._outcomes[verdict.outcome] += 1
            if verdict.outcome is APPENDED:
                for entry in group.entries:
                    self._kinds[entry.kind] += 1
                    self._bytes += len(entry.frame or b"") + len(entry.note or b"")
        return verdicts

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        with Timed(self._reads["heads"]):
            return await self._inner.heads(refs, state=state)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        with Timed(self._reads["entries"]):
            entries = await self._inner.entries(key, wanted)
        if wanted.frames:
            self._sent += sum(len(entry.frame) for entry in entries if entry.frame is not None)
        return entries

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        with Timed(self._reads["find"]):
            return await self._inner.find(query, after, limit)

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        with Timed(self._reads["count"]):
            return await self._inner.count(query, totals=totals)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        with Timed(self._beat if worker is None else self._renewal):  # renewals come from a thread of their own
            return await self._inner.beat(signs, worker)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        with Timed(self._watch):
            page = await self._inner.events(namespace, after, key, limit=limit, wait=wait)
        self._wakeups += bool(page[0])
        return page

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        with Timed(self._others["empty"]):
            return await self._inner.empty(key, seqs, notes=notes)

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        with Timed(self._others["swap"]):
            return await self._inner.swap(key, before, after, labels)

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        with Timed(self._others["purge"]):
            return await self._inner.purge(keys, seen)


def metered(store: Store) -> Store:
    """The same store, with `metrics()`."""
    return store if store.metrics() else MeteredStore(store)
