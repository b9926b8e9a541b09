"""Links: a hash chain through each session's log, in which every entry vouches for those before it, for `audit`.

An entry's *link* is stored after its digest, in the same column: 16 bytes, a mark and a hash. The hash covers the
previous link, the entry itself (every column that stays when it is emptied or copied, so not its lease), and times. The
store sets an entry's time when it lands, so the next group covers it: the mark says how many entries before are
covered, and whether the writer set this one's own time (an import), in which case it is covered at once.

    mark: times covered × 2, +1 if its own        hash: the first 15 bytes of sha256

Changing, removing, inserting or reordering entries in the database means renewing all later links; a link noted
elsewhere exposes that. Links cannot show a change to the newest group's times, or that the end of the log was cut off.

The newest entry is checked whenever a head is read, and before anything is appended after it: an entry that does not
fit its link, or a row that does not fit the entry, makes the session `Corrupt`.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

from msgspec.msgpack import Encoder
from msgspec.structs import replace

from saveslot.errors import Corrupt
from saveslot.stores import Store
from saveslot.stores.around.forking import ForkGuard
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.lifecycle import ACTIVE, COMPLETED, FAILED, PAUSED
from saveslot.values.log import ALL, Entry, Group, Head, Outcome, Ref, Verdict, Wanted

LINK = 16
DIGEST = 32
SEAL = 16
# How a recipe of format 2 starts.
RECIPE_2 = b"\x02"
# Times that a mark can count.
REACH = 127
# Entries read to check the one that a write follows; more, if it comes after a group of more.
NEAR = 8
# Sessions whose newest link is cached; a miss costs one read.
REMEMBERED = 100_000
APPENDED = Outcome.APPENDED


# The states that a session can have after an entry of these kinds. While it is being copied, it is paused.
LED_TO = {
    Kind.PAUSED: frozenset({PAUSED}),
    **dict.fromkeys((Kind.RESUMED, Kind.RECOVERED, *DATA_KINDS), frozenset({ACTIVE, PAUSED})),
    Kind.COMPLETED: frozenset({COMPLETED, PAUSED}),
    Kind.FAILED: frozenset({FAILED, PAUSED}),
}

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
    what = (
        *(entry.append_id, entry.seq, entry.kind, entry.name, entry.fence, entry.digest, seal),
        *(entry.recipe, entry.base, entry.data_seq, entry.about_seq, entry.request),
    )
    digest = sha256(_packed((before, times, own, key, what))).digest()
    return _MARKS[len(times) << 1 | given] + digest[: LINK - 1]


def fits(key: bytes, entry: Entry, before: bytes, times: Sequence[int]) -> bool:
    """True if a stored entry fits its link. `before`: the previous link; `times`: those that the link covers."""
    digest, own = split(entry.digest)
    bare = replace(entry, digest=digest, at=entry.at if own[0] & 1 else 0)
    return linked(key, bare, before, times) == own or _linked_early(key, bare, before, times) == own


def _linked_early(key: bytes, entry: Entry, before: bytes, times: Sequence[int]) -> bytes:
    """Return the link that Saveslot wrote until November 2026."""
    seal = entry.note and entry.note[:SEAL]
    what: tuple[Any, ...] = (entry.append_id, entry.seq, entry.kind, entry.name, entry.fence, entry.digest, seal)
    if entry.base or entry.recipe[:1] == RECIPE_2:
        what += (entry.recipe, entry.base)
    digest = sha256(_packed((before, times, entry.at, key, what))).digest()
    return _MARKS[len(times) << 1 | (entry.at > 0)] + digest[: LINK - 1]


def misfit(key: bytes, entry: Entry, before: bytes | None, times: Sequence[int]) -> str:
    """Return what is wrong with a stored entry after one with that digest (None: after none), or "".

    `times`: of as many entries before it as its link covers.
    """
    own, link = split(entry.digest)[1], b"" if before is None else split(before)[1]
    if not own:  # written by an older Saveslot
        return "has no link, though the entry before it has one: it was changed" if link else ""
    return "" if fits(key, entry, link, times) else "does not match its link: it was changed"


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
        for group, verdict in zip(groups, verdicts, strict=True):
            if verdict.outcome is APPENDED:
                last = group.entries[-1]
                tips[group.key] = (last.append_id, last.digest[-LINK:], verdict.times[-REACH:])
            else:  # also a retry: the first attempt may have been sealed differently
                tips.pop(group.key, None)
                # A copy: a store may answer the conflicts and reads of many callers by one entry.
                verdict.head = verdict.head and _bare(replace(verdict.head))
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
        entries = await self._end(group.key, last, NEAR)
        if entries and not _is_whole(entries):
            entries = await self._end(group.key, last, 2 * REACH + 1)
        if not entries:
            return BEGINNING
        *earlier, newest = entries
        if wrong := misfit(group.key, newest, earlier[-1].digest if earlier else None, _covered(newest, earlier)):
            raise Corrupt(f"entry {newest.seq} of session {group.key.hex()}", wrong)
        return _tip(entries)

    async def _end(self, key: bytes, last: int, count: int) -> list[Entry]:
        """Read the last `count` entries up to `last`, if that is there; without a gap."""
        entries = await self._inner.entries(key, Wanted([(max(1, last - count + 1), last)], frames=False))
        if not entries or entries[-1].seq != last:
            return []
        return [entry for place, entry in enumerate(entries, last + 1 - len(entries)) if entry.seq == place]

    def _forget(self) -> None:
        """Evict the oldest tips down to the limit."""
        for key in list(islice(self._tips, len(self._tips) - REMEMBERED)):
            del self._tips[key]

    async def heads(self, refs: Sequence[Ref], *, state: bool = False) -> list[Head | None]:
        stored = await self._inner.heads(refs, state=state)
        far = [head for head in stored if head is not None and self._is_far(head)]
        times = dict(await gather(*map(self._times, far))) if far else dict[bytes, list[int]]()
        heads = [head and self._head(head, times.get(head.row.key)) for head in stored]
        if len(self._tips) > REMEMBERED:
            self._forget()
        return heads

    def _is_far(self, head: Head) -> bool:
        """True if its link covers times that were not read with it, and this process neither wrote nor checked it."""
        link = split(head.last.digest)[1]
        return _reach(head.last) > 1 and self._tips.get(head.row.key, BEGINNING)[:2] != (head.last.append_id, link)

    async def _times(self, head: Head) -> tuple[bytes, list[int]]:
        seq, key = head.last.seq, head.row.key
        entries = await self._end(key, seq - 1, _reach(head.last))
        return key, [entry.at for entry in entries]

    def _head(self, head: Head, times: Sequence[int] | None) -> Head:
        """Return the head without links, and its row with `locked` set if its newest entry does not fit."""
        row, last = head.row, head.last
        if row.locked is not None:  # damaged
            return head
        link, reach = split(last.digest)[1], _reach(last)
        if times is None and reach <= 1:
            times = () if not reach or head.before is None else (head.before[1],)
        if wrong := _wrong(head, times):
            row = replace(row, locked=Corrupt(f"session {row.session_id}", wrong))
        # Otherwise it ends a group, and the next link has to cover the times of all its entries.
        elif not link or reach or last.seq == 1:
            self._tips[row.key] = (last.append_id, link, (last.at,))
        frames = None if head.frames is None else [_bare(entry) for entry in head.frames]
        return Head(row, _bare(replace(last)), head.data and _bare(replace(head.data)), frames)

    async def entries(self, key: bytes, wanted: Wanted = ALL) -> list[Entry]:
        entries = await self._inner.entries(key, wanted)
        return [_bare(entry) for entry in entries]


def _bare(entry: Entry) -> Entry:
    """Remove the link from the digest, in place."""
    if len(entry.digest) in {LINK, DIGEST + LINK}:
        entry.digest = entry.digest[:-LINK]
    return entry


def _reach(entry: Entry) -> int:
    """Return how many entries before a stored one have times that its link covers."""
    link = split(entry.digest)[1]
    return link[0] >> 1 if link else 0


def _wrong(head: Head, times: Sequence[int] | None) -> str:
    """Return what is wrong with a stored head, or "". `times`: those that its link covers, None if it surely fits."""
    row, last = head.row, head.last
    if (row.fence, row.lease) != (last.fence, last.lease):
        return f"its row names another owner than its newest entry, {last.seq}"
    if (states := LED_TO.get(last.kind)) is not None and row.state not in states:
        return f"its row says {row.state}, but its newest entry, {last.seq}, is {last.kind.label!r}"
    if head.before is None and last.seq > 1:
        return f"entry {last.seq - 1} is missing or damaged"
    if times is None:
        return ""
    wrong = misfit(row.key, last, None if head.before is None else head.before[0], times)
    return wrong and f"its newest entry, {last.seq}, {wrong}"


def _covered(entry: Entry, earlier: Sequence[Entry]) -> list[int]:
    return [one.at for one in earlier[max(0, len(earlier) - _reach(entry)) :]] if _reach(entry) else []


def _is_whole(entries: Sequence[Entry]) -> bool:
    """True if these are all that the newest link covers, and all of its group."""
    begun = any(_reach(entry) or not split(entry.digest)[1] or entry.seq == 1 for entry in entries)
    return begun and len(entries) > min(_reach(entries[-1]), entries[-1].seq - 1)


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
