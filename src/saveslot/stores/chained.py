"""Entries that vouch for those before them: a chain of hashes through each session's log, for `audit`.

Behind the digest in its column stands an entry's *link*, 16 bytes: a mark, and a hash of the link before, of what the
entry is (append_id, seq, kind, name, fence, digest, seal of its note: all that stays when it is emptied or copied), and
of times. A time is given by the store when an entry lands, so the next group covers it: the mark says how many entries
before are covered, and whether this one's own time was given by the writer (an import), and so is covered at once.

    mark: times covered × 2, +1 if its own        hash: the first 15 bytes of sha256

Who changes, removes, inserts or reorders entries in the database has to renew all links behind; a link that was noted
elsewhere tells. The times of the newest group, and whether entries at the end were cut off, no link can tell.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice

from msgspec.msgpack import Encoder
from msgspec.structs import replace

from saveslot.log import (
    Entry,
    Group,
    Head,
    Outcome,
    Ref,
    Verdict,
)
from saveslot.stores import Store
from saveslot.stores.forking import guard
from saveslot.stores.passing import PassingStore

LINK = 16
DIGEST = 32
SEAL = 16
# So many times fit into a mark.
REACH = 127
# Sessions whose newest link is remembered; one that was forgotten costs a read.
REMEMBERED = 100_000
APPENDED = Outcome.APPENDED


# What the next entry follows: its id and link, and the times that nobody has covered yet.
Tip = tuple[bytes | None, bytes, Sequence[int]]
BEGINNING: Tip = (None, b"", ())


def split(digest: bytes) -> tuple[bytes, bytes]:
    """Digest and link; entries of older Saveslots have none."""
    size = len(digest)
    return (digest[:-LINK], digest[-LINK:]) if size in {LINK, DIGEST + LINK} else (digest, b"")


_packed = Encoder().encode
_MARKS = tuple(bytes((mark,)) for mark in range(256))


def linked(key: bytes, entry: Entry, before: bytes, times: Sequence[int]) -> bytes:
    """The link of an entry whose digest is bare. Each checkpoint pays for this."""
    given = entry.at > 0
    own, seal = entry.at if given else 0, entry.note and entry.note[:SEAL]
    what = (entry.append_id, entry.seq, entry.kind, entry.name, entry.fence, entry.digest, seal)
    found = sha256(_packed((before, times, own, key, what)))
    return _MARKS[len(times) << 1 | given] + found.digest()[: LINK - 1]


def misfit(key: bytes, entries: Sequence[Entry]) -> tuple[int, str] | None:
    """The first entry of a whole log that does not fit, and what is wrong; None when all do. Digests as stored."""
    link = b""
    for place, entry in enumerate(entries):
        if entry.seq != place + 1:
            return place + 1, "is missing"
        digest, own = split(entry.digest)
        if not own:
            if link:
                return entry.seq, "carries no link, though entries before it do: it was changed, or put there"
            continue
        reach, given = own[0] >> 1, own[0] & 1
        if reach > place:
            return entry.seq, "was changed"
        times = [one.at for one in entries[place - reach : place]]
        bare = replace(entry, digest=digest, at=entry.at if given else 0)
        if linked(key, bare, link, times) != own:
            covered = f", or the time of {'an entry' if reach > 1 else 'the one'} right before it" if reach else ""
            return entry.seq, f"does not fit what stands before it: it was changed{covered}"
        note = entry.note or b""
        if len(note) > SEAL and sha256(note[SEAL:]).digest()[:SEAL] != note[:SEAL]:
            return entry.seq, "has a note that was changed"
        link = own
    return None


class ChainedStore(PassingStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._tips: dict[bytes, Tip] = {}
        if not self.forks:
            guard(self)

    def give_up(self, instead: Store) -> Store:
        given, self._inner = self._inner, instead
        return given

    @property
    def stored(self) -> Store:
        """The same with the links."""
        return self._inner

    async def append(self, groups: Sequence[Group]) -> list[Verdict]:
        """Links are written into the entries: whoever calls this gives them away."""
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
        verdicts = await self._inner.append(groups)
        for n, verdict in enumerate(verdicts):
            group = groups[n]
            if verdict.outcome is APPENDED:
                last = group.entries[-1]
                tips[group.key] = (last.append_id, last.digest[-LINK:], verdict.times[-REACH:])
            else:  # also a retry: what landed the first time may have been sealed otherwise
                tips.pop(group.key, None)
                verdict.head = verdict.head and _bare(verdict.head)
        if len(tips) > REMEMBERED:
            self._forget()
        return verdicts

    async def _learn(self, groups: Sequence[Group]) -> None:
        """What many groups follow, where it is not known: read together."""
        tips = self._tips
        unknown = [group for group in groups if tips.get(group.key, BEGINNING)[0] != group.prev]
        for group, tip in zip(unknown, await gather(*map(self._read, unknown)), strict=True):
            tips[group.key] = tip

    async def _read(self, group: Group) -> Tip:
        """What the group follows, from the store; should it not be there, the store says so."""
        last = group.entries[0].seq - 1
        if not last:
            return BEGINNING
        found = await self._inner.entries(group.key, [(last, last)], frames=False)
        if found and (link := split(found[0].digest)[1]) and not link[0] >> 1:
            # The end of a group: the times of all its entries are to be covered.
            found = await self._inner.entries(group.key, [(max(1, last - REACH + 1), last)], frames=False)
        return _tip(found) if found else BEGINNING

    def _forget(self) -> None:
        """What was remembered first, as much as is too much."""
        for key in list(islice(self._tips, len(self._tips) - REMEMBERED)):
            del self._tips[key]

    async def heads(self, refs: Sequence[Ref]) -> list[Head | None]:
        found = [head and self._head(head) for head in await self._inner.heads(refs)]
        if len(self._tips) > REMEMBERED:
            self._forget()
        return found

    def _head(self, head: Head) -> Head:
        link = split(head.last.digest)[1]
        # Else it ends a group: the times of all its entries are to be covered.
        if not link or link[0] >> 1 or head.last.seq == 1:
            self._tips[head.row.key] = (head.last.append_id, link, (head.last.at,))
        return Head(head.row, _bare(replace(head.last)))

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
        found = await self._inner.entries(
            key, ranges, kinds=kinds, name=name, newest=newest, frames=frames, largest=largest
        )
        return [_bare(entry) for entry in found]


def _bare(entry: Entry) -> Entry:
    """In place."""
    if len(entry.digest) in {LINK, DIGEST + LINK}:
        entry.digest = entry.digest[:-LINK]
    return entry


def _tip(entries: Sequence[Entry]) -> Tip:
    """At the end of these: its times reach back to where its group began."""
    times: list[int] = []
    for entry in reversed(entries):
        link = split(entry.digest)[1]
        times.append(entry.at)
        if not link or link[0] >> 1 or entry.seq == 1:
            break
    last = entries[-1]
    return last.append_id, split(last.digest)[1], times[::-1]
