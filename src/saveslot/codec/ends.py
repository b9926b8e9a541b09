"""How much two texts have in common at their ends."""

from __future__ import annotations

from saveslot.codec.patch import Text


def common_ends(old: Text, new: Text) -> tuple[int, int]:
    """Return how many bytes two texts share at the front and, of the rest, at the back."""
    limit = min(len(old), len(new))
    front = common_front(old, 0, new, 0, limit)
    return front, common_back(old, len(old), new, len(new), limit - front)


# Bytes compared as one integer. Longer texts are bisected down to this, at memcmp speed.
_AT_ONCE = 256


def common_front(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """Return how many bytes from these places on are equal, up to a limit."""
    low, high = 0, limit
    if limit > _AT_ONCE:
        with memoryview(old) as view:
            if new.startswith(view[at : at + limit], there):
                return limit
            while high - low > _AT_ONCE:
                middle = (low + high) // 2
                if new.startswith(view[at + low : at + middle], there + low):
                    low = middle
                else:
                    high = middle
    a, b = old[at + low : at + high], new[there + low : there + high]
    return high - ((int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length() + 7) // 8


def common_back(old: Text, at: int, new: Text, there: int, limit: int) -> int:
    """Return how many bytes before these places are equal, up to a limit."""
    low, high = 0, limit
    if limit > _AT_ONCE:
        with memoryview(old) as view:
            while high - low > _AT_ONCE:
                middle = (low + high) // 2
                if new.endswith(view[at - middle : at - low], 0, there - low):
                    low = middle
                else:
                    high = middle
    a, b = old[at - high : at - low], new[there - high : there - low]
    return high - ((int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).bit_length() + 7) // 8
