"""Faults to plant in any store: wrappers that break one promise each. The suite must fail on every one of them.

    from saveslot.testing import first_failure
    from saveslot.testing.faults import FAULTS

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_suite_catches(fault, tmp_path):
        class Broken(TestMyStore):
            async def open(self, folder, clock):
                return fault(await super().open(folder, clock))

        assert first_failure(Broken, tmp_path)

A suite that passes says little until it has been seen to fail: with these, on your own store.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from saveslot.stores.around.wrapper import PassingStore
from saveslot.values.log import ALL, Entry, Event, Group, Head, Outcome, Place, Query, Ref, Row, Verdict, Wanted, Worker


class ForgetsAnAppend(PassingStore):
    """Acknowledges the second entry of each session without storing it."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        stored = iter(await self._inner.append([group for group in groups if group.entries[0].seq != 2], **how))
        forgotten = Verdict(Outcome.APPENDED, [1])
        return [forgotten if group.entries[0].seq == 2 else next(stored) for group in groups]


class AcceptsAStalePrev(PassingStore):
    """Puts a late writer's entries after entries that it has not seen."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        return [await self._forced(group, verdict) for group, verdict in await _judged(self, groups, **how)]

    async def _forced(self, group: Group, verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.CONFLICT or verdict.head is None or group.create is not None:
            return verdict
        entries = [replace(entry, seq=verdict.head.seq + 1 + n) for n, entry in enumerate(group.entries)]
        [verdict] = await self._inner.append([replace(group, prev=verdict.head.append_id, entries=entries)])
        return verdict


class TakesAnothersEntryForARetry(PassingStore):
    """Answers ALREADY to a writer whose place another writer's entry has taken."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        return [_already(group, verdict) for group, verdict in await _judged(self, groups, **how)]


class ForgetsARetry(PassingStore):
    """Answers CONFLICT to a writer that repeats an append whose answer was lost."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        verdicts = await self._inner.append(groups, **how)
        return [Verdict(Outcome.CONFLICT) if v.outcome is Outcome.ALREADY else v for v in verdicts]


class ShowsAnOlderHead(PassingStore):
    """Shows the entry before the newest one, as a replica that lags behind does."""

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        return [head and await self._older(head) for head in await self._inner.heads(refs, state=state)]

    async def _older(self, head: Head) -> Head:
        before = Wanted(ranges=[(head.last.seq - 1, head.last.seq - 1)], frames=False)
        entries = await self._inner.entries(head.row.key, before)
        return replace(head, last=entries[0]) if entries else head


class DropsAFrame(PassingStore):
    """Returns the last of several entries without its frame."""

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        entries = await self._inner.entries(key, wanted)
        return [*entries[:-1], replace(entries[-1], frame=None)] if len(entries) > 1 else entries


class LosesTheLease(PassingStore):
    """Tells a former owner of a conflict, so that it may think it still owns the session."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        verdicts = await self._inner.append(groups, **how)
        return [replace(v, outcome=Outcome.CONFLICT) if v.outcome is Outcome.FENCED else v for v in verdicts]


class RenewsTheDead(PassingStore):
    """Tells a worker that was declared dead that it lives."""

    async def beat(self, signs: Sequence[tuple[bytes, bytes | None]], worker: Worker | None = None) -> list[int]:
        times = await self._inner.beat(signs, worker)
        return times if worker is None else [*times[:-1], times[-1] or 1]


class OrdersWrongly(PassingStore):
    """Lists sessions in the opposite order."""

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        return (await self._inner.find(query, after, limit))[::-1]


class ShowsAnotherNamespace(PassingStore):
    """Keeps the sessions of all namespaces in one."""

    async def append(self, groups: Sequence[Group], **how: bool) -> list[Verdict]:
        shared = [
            group if group.create is None else replace(group, create=replace(group.create, namespace=self._shared))
            for group in groups
        ]
        return await self._inner.append(shared, **how)

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        here = [ref if isinstance(ref, bytes) else (self._shared, ref[1]) for ref in refs]
        heads = await self._inner.heads(here, state=state)
        spaces = ["" if isinstance(ref, bytes) else ref[0] for ref in refs]
        return [head and _moved(head, space) for head, space in zip(heads, spaces, strict=True)]

    async def find(self, query: Query, after: Place | None = None, limit: int = 100) -> list[Row]:
        rows = await self._inner.find(replace(query, namespace=self._shared), after, limit)
        return [replace(row, namespace=query.namespace) for row in rows]

    async def events(
        self, namespace: str, after: str | None, key: bytes | None = None, *, limit: int = 500, wait: float = 0
    ) -> tuple[list[Event], str]:
        del namespace
        return await self._inner.events(self._shared, after, key, limit=limit, wait=wait)

    _shared = "every-namespace"


async def _judged(store: PassingStore, groups: Sequence[Group], **how: bool) -> list[tuple[Group, Verdict]]:
    verdicts = await PassingStore.append(store, groups, **how)
    return list(zip(groups, verdicts, strict=True))


def _already(group: Group, verdict: Verdict) -> Verdict:
    if verdict.outcome is not Outcome.CONFLICT:
        return verdict
    return Verdict(Outcome.ALREADY, [1 for _ in group.entries])


def _moved(head: Head, namespace: str) -> Head:
    return replace(head, row=replace(head.row, namespace=namespace)) if namespace else head


FAULTS: tuple[type[PassingStore], ...] = (
    ForgetsAnAppend,
    AcceptsAStalePrev,
    TakesAnothersEntryForARetry,
    ForgetsARetry,
    ShowsAnOlderHead,
    DropsAFrame,
    LosesTheLease,
    RenewsTheDead,
    OrdersWrongly,
    ShowsAnotherNamespace,
)
