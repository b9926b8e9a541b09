"""What a new state has in common with the one before: its keys, equal ends of texts, and parts that stand elsewhere.

Parts are found by anchors. An anchor is 64 bytes of the new text, looked up in the old ones; the longest match,
extended both ways, becomes a copy. A small change looks in the ends of each text, where an agent's newest messages
stand, a large one in whole texts.
"""

from __future__ import annotations

from saveslot.codec.marks import items_of
from saveslot.codec.patch import Change, Copy, Diff, Part, Text, Texts

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
# Bytes compared as one integer, first those at the end, where most texts differ. Longer texts that are equal there are
# bisected down to this, at memcmp speed.
AT_ONCE = 32
# Bytes. A new text up to this size is stored whole: a number, a word. (Not a list: what was added to it is reported.)
SHORT = 16
# What is reported of a new key.
NEW = True


def compared(old: Texts, new: Texts) -> Diff:
    """Return what changed between two states."""
    removed, order = key_changes(list(old), list(new))
    changes: list[Change] = []
    seen: dict[str, int | None] = dict.fromkeys(removed)
    search = Search(old)
    for key, text in new.items():
        known = old.get(key)
        if known is None:
            changes.append(Change(key, 0, 0, search.parts(key, text, 0, len(text), 0)))
            seen[key] = NEW
        elif known != text:
            front, back = kept_ends(known, text)
            changes.append(Change(key, front, back, search.parts(key, text, front, len(text) - back, front)))
            seen[key] = grown(known, text, front)
    return Diff(changes, removed, order, seen, search.copies)


def key_changes(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the removed keys, and the order of the others unless it follows from the old one."""
    if old == new:
        return [], []
    left, known = set(new), set(old)
    follows = [key for key in old if key in left] + [key for key in new if key not in known]
    return [key for key in old if key not in left], [] if follows == new else new


def grown(old: Text, new: Text, front: int) -> int:
    """Return how many items were added to the end of a list; 0 for any other change. `front`: bytes they share."""
    if front == len(old) - 1 and new[front : front + 1] == b"," and old[:1] == b"[" == new[:1]:
        return len(items_of(b"[" + new[front + 1 :]))
    return 0


class Search:
    """Looks for the parts of new texts in the texts before, within limits that count for one patch."""

    def __init__(self, texts: Texts) -> None:
        self._all = texts
        self._texts: Texts = {}  # those worth searching, once there is something to look for
        self._spent = 0
        self.copies = 0

    def parts(self, key: str, new: Text, start: int, stop: int, at: int) -> list[Part]:
        """Return these bytes of a new text as parts. `at`: where they begin to differ in the old text of the key."""
        if stop - start < WORTH_COPYING:
            return [bytes(new[start:stop])] if stop > start else []
        self._texts = self._texts or {name: text for name, text in self._all.items() if len(text) >= WORTH_COPYING}
        parts: list[Part] = []
        limit = min(MOST, self._spent + LEAST + EFFORT * (stop - start))
        near = stop - start <= NEAR
        done = start
        while stop - done >= WORTH_COPYING and self.copies < MAX_COPIES and self._spent < limit:
            place = self._find(key, new, done, stop, at, limit, near=near)
            if place is None:
                break
            there, source, here, length = place
            if there > done:
                parts.append(bytes(new[done:there]))
            parts.append(Copy(source, here, length))
            self.copies += 1
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
        ends = self._ends(key, at) if near else b""
        looked, last = len(ends), stop - ANCHOR
        spent, step, after = self._spent, ANCHOR, done
        best: tuple[int, str, int, int] | None = None
        while after <= last and spent < limit and best is None:
            there, after = after, done + step
            step *= 2
            anchor = new[there : there + ANCHOR]
            spent += looked
            if near and anchor not in ends:
                continue
            for source, old in self._texts.items():
                size, here = len(old), -1
                if source == key and size > NEAR:  # after the place where they begin to differ
                    end = min(size, at + NEAR) if near else size
                    here = old.find(anchor, at, end)
                    spent += max(TRY, (end if here < 0 else here) - at)
                if here < 0:  # else the last place
                    begin = max(0, size - NEAR) if near else 0
                    here = old.rfind(anchor, begin)
                    spent += max(TRY, size - max(begin, here))
                if here >= 0:
                    more = min(size - here, stop - there) - ANCHOR
                    more = ANCHOR + common_front(old, here + ANCHOR, new, there + ANCHOR, more)
                    less = common_back(old, here, new, there, min(here, there - done))
                    if less + more >= WORTH_COPYING and (best is None or less + more > best[3]):
                        best = (there - less, source, here - less, less + more)
                if spent >= limit:
                    break
        self._spent = spent
        return best

    def _ends(self, key: str, at: int) -> bytes:
        """Return all that a small change is looked for in: most anchors are in none of it."""
        ends = [old[-NEAR:] for old in self._texts.values()]
        own = self._texts.get(key, b"")
        if len(own) > NEAR:
            ends.append(own[at : at + NEAR])
        return b"\n".join(ends)  # which no JSON text contains


def kept_ends(old: Text, new: Text) -> tuple[int, int]:
    """Return how many bytes a change keeps at the front and at the back: those that the texts share, unless short."""
    return (0, 0) if len(new) <= SHORT and new[:1] != b"[" else common_ends(old, new)


def common_ends(old: Text, new: Text) -> tuple[int, int]:
    """Return how many bytes two texts share at the front and, of the rest, at the back."""
    limit = min(len(old), len(new))
    front = common_front(old, 0, new, 0, limit)
    return front, common_back(old, len(old), new, len(new), limit - front)


def common_front(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """Return how many bytes from these places on are equal, up to a limit."""
    low, high = 0, min(limit, AT_ONCE)
    if limit > AT_ONCE and old[at : at + AT_ONCE] == new[there : there + AT_ONCE]:
        low, high = AT_ONCE, limit
        with memoryview(old) as view:
            if new.startswith(view[at + low : at + high], there + low):
                return limit
            while high - low > AT_ONCE:
                middle = (low + high) // 2
                if new.startswith(view[at + low : at + middle], there + low):
                    low = middle
                else:
                    high = middle
    a, b = old[at + low : at + high], new[there + low : there + high]
    return high - ((int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length() + 7) // 8


def common_back(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """Return how many bytes before these places are equal, up to a limit."""
    low, high = 0, min(limit, AT_ONCE)
    if limit > AT_ONCE and old[at - AT_ONCE : at] == new[there - AT_ONCE : there]:
        low, high = AT_ONCE, limit
        with memoryview(old) as view:
            # Where little changed, it is next to the front.
            if limit > 2 * AT_ONCE and new.endswith(view[at - limit + AT_ONCE : at - low], 0, there - low):
                low = limit - AT_ONCE
            while high - low > AT_ONCE:
                middle = (low + high) // 2
                if new.endswith(view[at - middle : at - low], 0, there - low):
                    low = middle
                else:
                    high = middle
    a, b = old[at - high : at - low], new[there - high : there - low]
    return high - ((int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).bit_length() + 7) // 8
