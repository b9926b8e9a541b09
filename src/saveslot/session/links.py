"""Links: a hash chain through each session's log, in which every entry vouches for those before it, for `audit`.

An entry's *link* is stored after its digest, in the same column: 16 bytes, a mark and a hash. The hash covers the
previous link, the entry itself (append_id, seq, kind, name, fence, digest, checksum of its note, recipe and base:
everything that stays when it is emptied or copied; but not a recipe of format 1), and times. The store sets an entry's
time when it lands, so the next group covers it: the
mark says how many entries before are covered, and whether the writer set this one's own time (an import), in which case
it is covered at once.

    mark: times covered × 2, +1 if its own        hash: the first 15 bytes of sha256

Changing, removing, inserting or reordering entries in the database means renewing all later links; a link noted
elsewhere exposes that. Links cannot show a change to the newest group's times, or that the end of the log was cut off.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

from msgspec.msgpack import Encoder
from msgspec.structs import replace

from saveslot.stores import Store
from saveslot.stores.around.forking import ForkGuard
from saveslot.values.log import ALL, Entry, Group, Head, Outcome, Ref, Verdict, Wanted

LINK = 16
DIGEST = 32
SEAL = 16
# How a recipe of format 2 starts.
RECIPE_2 = b"\x02"
# Times that a mark can count.
REACH = 127
# Sessions whose newest link is cached; a miss costs one read.
REMEMBERED = 100_000
APPENDED = Outcome.APPENDED


# The entry that the next one follows: its id and link, and the times that no link covers yet.
Tip = tuple[bytes | None, bytes, Sequence[int]]
BEGINNING: Tip = (None, b"", ())


def split(digest: bytes) -> tuple[bytes, bytes]:
    """Return digest and link; the link is empty in entries written by older Saveslots."""
    size = len(digest)
    return (digest[:-LINK], digest[-LINK:]) if size in {LINK, DIGEST + LINK} else (digest, b"")


_packed = Encoder().encode
_MARKS = tuple(bytes((mark,)) for mark in range(256))


def linked(key: bytes, entry: Entry, before: bytes, times: Sequence[int]) -> bytes:
    """Return the link of an entry whose digest has none yet. Hot path: runs for each checkpoint."""
    given = entry.at > 0
    own, seal = entry.at if given else 0, entry.note and entry.note[:SEAL]
    what: tuple[Any, ...] = (entry.append_id, entry.seq, entry.kind, entry.name, entry.fence, entry.digest, seal)
    if entry.base or entry.recipe[:1] == RECIPE_2:
        what += (entry.recipe, entry.base)
    digest = sha256(_packed((before, times, own, key, what))).digest()
    return _MARKS[len(times) << 1 | given] + digest[: LINK - 1]


class LinkedStore(ForkGuard):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._tips: dict[bytes, Tip] = {}

    @property
    def stored(self) -> Store:
        """The inner store, whose digests include the links."""
        return self._inner

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        """Append with links. The links are written into the entries, so the caller must not reuse them."""
        tips = self._tips
        if len(groups) > 1:
            await self._learn(groups)
        for group in groups:
            prev, link, times = tips.get(group.key, BEGINNING)
            if prev != group.prev:
                _, link, times = await self._read(group)
            for entry in group.entries:
                link = linked(group.key, entry, link, times)
                entry.digest += link
                times = ()
        verdicts = await self._inner.append(groups, together=together)
        for n, verdict in enumerate(verdicts):
            group = groups[n]
            if verdict.outcome is APPENDED:
                last = group.entries[-1]
                tips[group.key] = (last.append_id, last.digest[-LINK:], verdict.times[-REACH:])
            else:  # also a retry: the first attempt may have been sealed differently
                tips.pop(group.key, None)
                verdict.head = verdict.head and _bare(verdict.head)
        if len(tips) > REMEMBERED:
            self._forget()
        return verdicts

    async def _learn(self, groups: Sequence[Group]) -> None:
        """Read, at once, the unknown tips that these groups follow."""
        tips = self._tips
        unknown = [group for group in groups if tips.get(group.key, BEGINNING)[0] != group.prev]
        for group, tip in zip(unknown, await gather(*map(self._read, unknown)), strict=True):
            tips[group.key] = tip

    async def _read(self, group: Group) -> Tip:
        """Read the tip that the group follows; if it is missing, `append` will refuse the group."""
        last = group.entries[0].seq - 1
        if not last:
            return BEGINNING
        entries = await self._inner.entries(group.key, Wanted([(last, last)], frames=False))
        if entries and (link := split(entries[0].digest)[1]) and not link[0] >> 1:
            # The end of a group: the next link has to cover the times of all its entries.
            entries = await self._inner.entries(group.key, Wanted([(max(1, last - REACH + 1), last)], frames=False))
        return _tip(entries) if entries else BEGINNING

    def _forget(self) -> None:
        """Evict the oldest tips down to the limit."""
        for key in list(islice(self._tips, len(self._tips) - REMEMBERED)):
            del self._tips[key]

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        heads = [head and self._head(head) for head in await self._inner.heads(refs, state=state)]
        if len(self._tips) > REMEMBERED:
            self._forget()
        return heads

    def _head(self, head: Head) -> Head:
        if head.row.locked is not None:  # damaged
            return head
        link = split(head.last.digest)[1]
        # Otherwise it ends a group, and the next link has to cover the times of all its entries.
        if not link or link[0] >> 1 or head.last.seq == 1:
            self._tips[head.row.key] = (head.last.append_id, link, (head.last.at,))
        frames = None if head.frames is None else [_bare(entry) for entry in head.frames]
        return Head(head.row, _bare(replace(head.last)), head.data and _bare(replace(head.data)), frames)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        entries = await self._inner.entries(key, wanted)
        return [_bare(entry) for entry in entries]


def _bare(entry: Entry) -> Entry:
    """Remove the link from the digest, in place."""
    if len(entry.digest) in {LINK, DIGEST + LINK}:
        entry.digest = entry.digest[:-LINK]
    return entry


def _tip(entries: Sequence[Entry]) -> Tip:
    """Return the tip at the end of these entries; its times go back to the start of the last group."""
    times: list[int] = []
    for entry in reversed(entries):
        link = split(entry.digest)[1]
        times.append(entry.at)
        if not link or link[0] >> 1 or entry.seq == 1:
            break
    last = entries[-1]
    return last.append_id, split(last.digest)[1], times[::-1]
