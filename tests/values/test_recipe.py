"""Recipes come back from their bytes, and impossible ones are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from saveslot.errors import Corrupt
from saveslot.values.recipe import MAX_RECIPE, MAX_SHORT, OF_A_BASE, Recipe, chain, varint

gaps = st.integers(1, 2**40)
weights = st.integers(0, 2**40)


@given(
    gaps, st.lists(st.tuples(gaps, st.integers(0, 3)), max_size=MAX_SHORT // 4), st.tuples(weights, weights, weights)
)
def test_a_recipe_comes_back(base: int, short: list[tuple[int, int]], sizes: tuple[int, int, int]) -> None:
    """Ranges of seqs of any size, frames and weights survive packing, also in a later entry."""
    ranges: list[tuple[int, int]] = []
    at = base
    for gap, length in short:
        ranges.append((at + gap, at + gap + length))
        at = ranges[-1][1]
    recipe = Recipe(base, tuple(ranges), sum(length + 1 for _, length in short), *sizes)
    for seq in (at, at + 1, at + 2**30):
        packed = recipe.pack(seq)
        assert Recipe.unpack(packed, seq) == recipe
        assert packed.startswith(OF_A_BASE) == (seq == base)


def numbers(*values: int) -> bytes:
    return b"\x02" + b"".join(map(varint, values))


@pytest.mark.parametrize(
    "packed",
    [
        numbers(), numbers(0), numbers(0, 1, 1), numbers(0, 1, 1, 1, 1), numbers(0, 1, 1, 1, 1, 1),
        numbers(1, 1, 1, 1, 1, 1, 0, 1), numbers(9, 1, 1, 1), numbers(10, 1, 1, 1), numbers(4, 1, 1, 1, 0, 1, 0),
        numbers(4, 1, 1, 1, 2, 1, 0), numbers(4, 1, 1, 1, 33, 1, 40), numbers(4, 1, 1, 1, 1, 0, 0),
        numbers(4, 1, 1, 1, 1, 5, 0), numbers(4, 1, 1, 1, 1, 1, 0, 1, 0), numbers(0, 2**62 + 1, 1, 1),
        b"\x02\x80", b"\x02" + b"\xff" * 20, b"\x03\x00\x01\x01\x01", b"\x01", b"\xff",
    ],
    ids=lambda packed: packed.hex(),
)  # fmt: skip
def test_an_impossible_recipe_is_corrupt(packed: bytes) -> None:
    """Cut short, of a base before entry 1, of frames after its own entry, too many or none, of another format."""
    with pytest.raises(Corrupt):
        Recipe.unpack(packed, 9)


def test_a_recipe_is_never_longer_than_80_bytes() -> None:
    """Where short patches stand far apart, room for them ends, and a long patch follows."""
    recipe: Recipe | None = Recipe(5, (), 0, 10**7, 0, 10**7)
    seq = 5
    while recipe is not None:
        assert len(recipe.pack(seq)) <= MAX_RECIPE
        seq += 5000
        recipe = recipe.with_short(0, seq, 1500, 10**7)


@pytest.mark.parametrize(
    "old",
    [
        [], [1], [1, 0, 5, 0, 0], [1, 0, 5, 0, 0, 1], [1, 0, 5, 0, 0, 1, 0, 1],
        [0, 0, 5, 0, 0, 1, 0], [2, 0, 5, 0, 0, 1, 0], [1, 0, 5, 0, 0, 1, 1], [1, 1, 5, 0, 0, 1, 0],
        [1, 0, 5, 0, 0, 1, 0, 1, 0], [1, 33, 5, 0, 0, 1, 0, 1, 127], [1, 3, 5, 0, 0, 1, 0, 1, 1],
        [1, 0, 5, 0, 0, 0, 0], [1, 1, 5, 0, 0, 1, 0, 0, 5], [1, 0, 5, 0, 0, 2**63, 0], [1, 1, 5, 0, 0, 9, 0, -1, 0],
        [25, 0, 5, 0, 0, *[1, 0] * 25], [1, 32, 5, 0, 0, *[1, 0] * 33],
        [1, 0, 5.0, 0, 0, 1, 0], [1, 0, None, 0, 0, 1, 0], [[1, 0, 5, 0, 0, 1, 0]],
    ],
    ids=repr,
)  # fmt: skip
def test_an_impossible_recipe_of_format_1_is_corrupt(old: object) -> None:
    """Truncated, no frames or too many, entry 0, ranges that do not ascend, numbers beyond any seq, or not numbers."""
    with pytest.raises(Corrupt):
        Recipe.unpack(msgspec.msgpack.encode(old), 99)


def test_a_chain_ends_where_a_base_is_missing_or_not_older() -> None:
    """A damaged column neither makes a loop nor leads to a later entry."""
    assert chain(9, {9: 5, 5: 2, 2: 0}) == [2, 5, 9]
    assert chain(9, {9: 5, 5: 9, 2: 0}) == [5, 9]
    assert chain(9, {9: 9}) == [9]
    assert chain(9, {9: 3}) == [9]
    assert chain(0, {}) == []
