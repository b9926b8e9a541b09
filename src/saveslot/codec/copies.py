"""Copies: what a new text has in common with the texts before it, found by anchors.

An anchor is 64 bytes of the new text, looked up in the old ones; the longest match, extended both ways, becomes a copy.
A small change looks in the ends of each text, where an agent's newest messages stand, a large one in whole texts.
"""

from __future__ import annotations

from saveslot.codec.ends import common_back, common_front
from saveslot.codec.patch import Copy, Part, Text, Texts

# Bytes that must be equal to count as the same part: shorter ones recur in JSON by chance.
ANCHOR = 64
# Bytes of a match: a shorter one takes as many bytes to name, compressed, as to store.
WORTH_COPYING = 128
# Bytes. A new text up to this size is looked for in this much of the end of each old one.
NEAR = 4 * 1024
# Bytes of old texts searched for one patch: for each new byte, in addition, and in all.
EFFORT, LEAST, MOST = 64, 64 * 1024, 8 * 1024 * 1024
# Bytes that one look into a text counts as, at least.
TRY = 256
# Copies in one patch.
MAX_COPIES = 256


class Search:
    """Looks for the parts of new texts in the texts before, within limits that count for one patch."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._spent = 0
        self._copies = 0

    def parts(self, key: str, new: Text, start: int, stop: int, at: int) -> list[Part]:
        """Return these bytes of a new text as parts. `at`: where they begin to differ in the old text of the key."""
        if stop - start < WORTH_COPYING:
            return [bytes(new[start:stop])] if stop > start else []
        parts: list[Part] = []
        limit = min(MOST, self._spent + LEAST + EFFORT * (stop - start))
        near = stop - start <= NEAR
        done = start
        while stop - done >= WORTH_COPYING and self._copies < MAX_COPIES and self._spent < limit:
            found = self._find(key, new, done, stop, at, limit, near=near)
            if found is None:
                break
            there, source, here, length = found
            if there > done:
                parts.append(bytes(new[done:there]))
            parts.append(Copy(source, here, length))
            self._copies += 1
            done = there + length
            if source == key:
                at = here + length
        if stop > done:
            parts.append(bytes(new[done:stop]))
        return parts

    def _find(
        self, key: str, new: Text, done: int, stop: int, at: int, limit: int, *, near: bool
    ) -> tuple[int, str, int, int] | None:
        """Return the first match: place in the new text, key and place in the old, length. Looks in doubling steps."""
        step = 0
        while done + step + ANCHOR <= stop:
            there = done + step
            anchor = bytes(new[there : there + ANCHOR])
            best: tuple[int, str, int, int] | None = None
            for source, old in self._texts.items():
                if len(old) < WORTH_COPYING:
                    continue
                if self._spent >= limit:
                    return best
                here = self._place(anchor, old, at if source == key else -1, near=near)
                if here < 0:
                    continue
                more = ANCHOR + common_front(
                    old, here + ANCHOR, new, there + ANCHOR, min(len(old) - here, stop - there) - ANCHOR
                )
                less = common_back(old, here, new, there, min(here, there - done))
                if less + more >= WORTH_COPYING and (best is None or less + more > best[3]):
                    best = (there - less, source, here - less, less + more)
            if best is not None:
                return best
            step = max(ANCHOR, 2 * step)
        return None

    def _place(self, anchor: bytes, old: Text, at: int, *, near: bool) -> int:
        """Return where an anchor stands in an old text: after `at` if that is known, else the last place."""
        if at >= 0 and len(old) > NEAR:
            end = min(len(old), at + NEAR) if near else len(old)
            here = old.find(anchor, at, end)
            self._spent += max(TRY, (end if here < 0 else here) - at)
            if here >= 0:
                return here
        begin = max(0, len(old) - NEAR) if near else 0
        here = old.rfind(anchor, begin)
        self._spent += max(TRY, len(old) - max(begin, here))
        return here
