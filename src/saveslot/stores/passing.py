"""A store in front of another that hands everything down. Who wraps one says only what is different."""

from __future__ import annotations

from collections.abc import Sequence

from saveslot.log import Counts, Entry, Event, Group, Head, Place, Query, Ref, Row, Sign, Verdict, Worker
from saveslot.stores import Store, Tended


class PassingStore:
    def __init__(self, store: Store) -> None:
        self._inner = store

    @property
    def serial(self) -> bool:
        """True when only one can write at a time, whatever they write to."""
        return getattr(self._inner, "serial", False)

    @property
    def forks(self) -> bool:
        """True when a forked child has a store of its own by that, with all that was in its parent's."""
        return getattr(self._inner, "forks", False)

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        return await self._inner.append(groups)

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
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
        return await self._inner.entries(
            key, ranges, kinds=kinds, name=name, newest=newest, frames=frames, largest=largest
        )

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return await self._inner.find(query, after, limit)

    async def count(self, query: Query, sample: int = 0) -> Counts:
        return await self._inner.count(query, sample)

    async def beat(self, signs: Sequence[Sign], worker: Worker | None = None) -> list[int]:
        return await self._inner.beat(signs, worker)

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        return await self._inner.events(namespace, after, key, limit=limit, wait=wait)

    async def empty(
        self, key: bytes, seqs: Sequence[int], *, notes: bool = False, body: tuple[bytes, bytes] | None = None
    ) -> int:
        return await self._inner.empty(key, seqs, notes=notes, body=body)

    async def purge(self, keys: Sequence[bytes], seen: Sequence[bytes] | None = None) -> list[int]:
        return await self._inner.purge(keys, seen)

    async def tend(self) -> None:
        if isinstance(self._inner, Tended):
            await self._inner.tend()

    async def close(self) -> None:
        await self._inner.close()
