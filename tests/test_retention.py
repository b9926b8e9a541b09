"""The thinning rule, against the sentence that it comes from."""

from __future__ import annotations

from hypothesis import given, strategies as st

from saveslot.retention import thinned


def survivors(names, max_checkpoints, compress_after=None):
    dropped = thinned(names, max_checkpoints, compress_after)
    return [place for place in range(len(names)) if place not in dropped]


def test_over_the_limit_the_first_the_last_twenty_and_the_newest_of_each_name_stay():
    """51 checkpoints under three names leave 1 + 3 + 20, and 50 are left alone."""
    names = [f"n{n % 3}" for n in range(51)]
    assert survivors(names[:50], 100, 50) == list(range(50))
    assert survivors(names, 100, 50) == [0, 28, 29, 30, *range(31, 51)]


def test_a_name_in_between_is_kept_though_it_is_also_first_or_recent():
    """What lies in between is judged by itself: neither the first nor a recent checkpoint stands for its name there."""
    assert survivors(["a"] * 30, 100, 10) == [0, 9, *range(10, 30)]


def test_over_the_maximum_the_oldest_kept_for_its_name_goes_first():
    """Then the oldest recent ones go; the first stays while there is room for two, the newest always."""
    names = [str(n) for n in range(30)]
    assert survivors(names, 25) == [0, *range(6, 30)]
    assert survivors(names, 25, 10) == [0, *range(6, 30)]
    assert survivors(names, 3) == [0, 28, 29]
    assert survivors(names, 1) == [29]


@given(st.lists(st.sampled_from("abc"), min_size=15, max_size=70), st.integers(1, 60), st.integers(0, 40))
def test_the_rule_holds_for_any_history(names, most, after):
    """Never more than the maximum; below both limits nothing goes; else what the sentence names, oldest first."""
    kept = survivors(names, most, after)
    expected = list(range(len(names)))
    if len(names) > after:
        recent = expected[-20:]
        between = [place for place in expected[1:] if place not in recent]
        newest = [
            place for place in between if names[place] not in [names[later] for later in between if later > place]
        ]
        expected = sorted({0, *recent, *newest})
    while len(expected) > most:
        del expected[1 if most > 1 else 0]
    assert kept == expected
