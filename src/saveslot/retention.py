"""Which checkpoints of a history go. Pure: names in, places out."""

from __future__ import annotations

from collections.abc import Sequence

# So many newest ones are kept, whatever their names.
RECENT = 20


def thinned(names: Sequence[str], max_checkpoints: int, compress_after: int | None = None) -> list[int]:
    """The places to drop. Over `compress_after`: all but the first, the last 20 and the newest of each name in between.
    Of what is left, over `max_checkpoints`: the oldest behind the first, so those kept for their names go before
    recent ones. The newest is always kept, and the first as long as there is room for two.
    """
    kept = list(range(len(names)))
    if compress_after is not None and len(names) > compress_after:
        between = names[1 : max(1, len(names) - RECENT)]
        newest = {name: place for place, name in enumerate(between, 1)}
        kept = [0, *sorted(newest.values()), *range(1 + len(between), len(names))]
    excess = len(kept) - max_checkpoints
    if excess > 0:
        kept = kept[:1] + kept[1 + excess :] if max_checkpoints > 1 else kept[-1:]
    if len(kept) == len(names):
        return []
    return sorted(set(range(len(names))).difference(kept))
