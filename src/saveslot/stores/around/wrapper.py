"""A store that passes every call to another one. Subclasses override what they change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from saveslot.stores import Store
from saveslot.stores.wire.metrics import Calls
from saveslot.values.log import (
    ALL,
    Counts,
    Entry,
    Event,
    Group,
    Head,
    Labels,
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


class PassingStore(Store):
    def __init__(self, store: Store) -> None:
        self._inner = store
        self.kind = store.kind
        self.traits = store.traits
        self.counters = store.counters

    def __repr__(self) -> str:
        return repr(self._inner)

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        return await self._inner.append(groups, together=together)

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        return await self._inner.heads(refs, state=state)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        return await self._inner.entries(key, wanted)

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._inner.find(query, after, limit)

    async def count(self, query: Query, *, totals: Totals = "store") -> Counts:
        return await self._inner.count(query, totals=totals)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        return await self._inner.beat(signs, worker)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        return await self._inner.events(namespace, after, key, limit=limit, wait=wait)

    async def empty(self, key: bytes, seqs: Sequence[int], *, notes: bool = False) -> int:
        return await self._inner.empty(key, seqs, notes=notes)

    async def swap(self, key: bytes, before: bytes, after: bytes, labels: Labels | None = None) -> bool:
        return await self._inner.swap(key, before, after, labels)

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        return await self._inner.purge(keys, seen)

    async def namespaces(self, after: str = "", limit: int = 1000) -> list[str]:
        return await self._inner.namespaces(after, limit)

    async def token_names(self, stamps: Collection[bytes]) -> dict[bytes, str]:
        return await self._inner.token_names(stamps)

    async def tend(self) -> None:
        await self._inner.tend()

    async def scrub(self, *, rewrite: bool = False) -> None:
        await self._inner.scrub(rewrite=rewrite)

    def metrics(self) -> dict[str, Any]:
        return self._inner.metrics()

    def calls(self) -> dict[tuple[str, str], Calls]:
        return self._inner.calls()

    async def close(self) -> None:
        await self._inner.close()
