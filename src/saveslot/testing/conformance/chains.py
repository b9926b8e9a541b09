"""Chains: entries reached from one another by `base`, wherever they stand in the log."""

from __future__ import annotations

from typing import Any

from saveslot.testing.conformance.desk import Desk, Suite, on_a_desk
from saveslot.testing.pen import Pen
from saveslot.values.kinds import Kind


class Chains(Suite):
    @on_a_desk
    async def test_entries_follow_a_chain(self, desk: Desk) -> None:
        """The chain adds to the ranges, and the same conditions apply to it; no entry comes twice."""
        # Two chains in turn: 9 → 7 → 3 → 2, and 8 → 4; 5 and 10 stand on nothing.
        pen = await _written(desk, [0, 2, 0, 0, 3, 3, 4, 7, 0])
        paused = frozenset({Kind.PAUSED})
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({"chain": 9}, [2, 3, 7, 9]),
            ({"chain": 8}, [4, 8]),
            ({"chain": 5}, [5]),
            ({"chain": 11}, []),
            ({"chain": 2**62}, []),
            ({"chain": 9, "ranges": [(5, 8)]}, [2, 3, 5, 6, 7, 8, 9]),
            ({"chain": 9, "ranges": [(1, 2), (7, 7), (10, 99)]}, [1, 2, 3, 7, 9, 10]),
            ({"chain": 9, "ranges": [(8, 5), (12, 20)]}, [2, 3, 7, 9]),
            ({"chain": 9, "kinds": paused}, [3, 9]),
            ({"chain": 9, "name": "even"}, [2]),
            ({"chain": 9, "newest": 3}, [3, 7, 9]),
            ({"chain": 9, "newest": 2, "ranges": [(8, 8)]}, [8, 9]),
            ({"chain": 9, "newest": 0}, []),
        ]
        for how, expected in cases:
            assert [entry.seq for entry in await desk.log(pen, **{"ranges": [], **how})] == expected, how
        assert [entry.base for entry in await desk.log(pen, ranges=[], chain=9)] == [0, 2, 3, 7]
        assert await desk.log(pen, chain=9) == await desk.log(pen)

    @on_a_desk
    async def test_chain_comes_with_frames_if_wanted(self, desk: Desk) -> None:
        """`frames` leaves them out, and `room` the oldest, across the range and the chain."""
        pen = await _written(desk, [0, 2, 3, 0], frame=b"12345")
        [each] = {entry.size for entry in await desk.log(pen, ranges=[(2, 5)])}
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [2, 3, 4, 5]),
            ({"frames": False}, []),
            ({"room": 3 * each - 1}, [4, 5]),
            ({"room": 3 * each}, [3, 4, 5]),
            ({"room": 0}, []),
        ]
        for how, expected in cases:
            entries = await desk.log(pen, ranges=[(5, 5)], chain=4, **how)
            assert [entry.seq for entry in entries] == [2, 3, 4, 5]
            assert [entry.seq for entry in entries if entry.frame is not None] == expected, how
            assert {entry.size for entry in entries} == {each}

    @on_a_desk
    async def test_chain_stays_in_its_session(self, desk: Desk) -> None:
        """Entries with the same numbers in another session are no part of it; emptied ones are."""
        pen, other = await _written(desk, [0, 2, 3]), await _written(desk, [0, 0, 0], "b")
        await desk.store.empty(pen.key, [3])
        assert [entry.seq for entry in await desk.log(pen, ranges=[], chain=4)] == [2, 3, 4]
        assert [entry.seq for entry in await desk.log(other, ranges=[], chain=4)] == [4]

    @on_a_desk
    async def test_long_chain_is_followed_to_its_end(self, desk: Desk) -> None:
        """However many entries it has."""
        pen = await desk.create()
        for _ in range(8):
            group = pen.group(150, frame=b"x")
            for entry in group.entries:
                entry.base = entry.seq - 1
            await desk.land(pen, group)
        assert [entry.seq for entry in await desk.log(pen, ranges=[], chain=1200)] == list(range(1, 1201))


async def _written(desk: Desk, bases: list[int], session_id: str = "a", **of: Any) -> Pen:
    """A session whose entries from 2 on have these bases; every third is a pause."""
    pen = await desk.create(session_id)
    for seq, base in enumerate(bases, 2):
        kind = Kind.PAUSED if seq % 3 == 0 else Kind.CHECKPOINT
        await desk.write(pen, 1, kind, base=base, name="odd" if seq % 2 else "even", **of)
    return pen
