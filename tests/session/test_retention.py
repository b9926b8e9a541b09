"""Retention rules, tested against their specification."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from saveslot import InvalidInput, Retention, codec
from saveslot.session.retention import DEFAULT, checked, rule_of
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry

HOUR = 3_600_000_000


def history(names, **of):
    """Entries with data, an hour apart, each rebuilt from its own frame."""
    return [
        Entry(n, b"", Kind.CHECKPOINT, name, at=n * HOUR, recipe=codec.Recipe(n).pack(n), **of)
        for n, name in enumerate(names, 1)
    ]


def survivors(names, rule, *, now=0, pinned=(), sizes=None):
    entries = history(names)
    dropped = rule.drops(entries, now or len(names) * HOUR, pinned, sizes)
    return [entry.seq - 1 for entry in entries if entry.seq not in dropped]


def test_default_rule_keeps_first_last_twenty_and_newest_per_name():
    """51 checkpoints under three names leave 1 + 3 + 20; 50 are left alone."""
    names = [f"n{n % 3}" for n in range(51)]
    assert survivors(names[:50], Retention.parity()) == list(range(50))
    assert survivors(names, Retention.parity()) == [0, 28, 29, 30, *range(31, 51)]


def test_newest_per_name_ignores_first_and_recent():
    """Checkpoints in between are judged alone: neither the first nor a recent one counts for its name there."""
    assert survivors(["a"] * 30, Retention.parity(compress_after=10)) == [0, 9, *range(10, 30)]


def test_maximum_drops_oldest_per_name_first():
    """Then the oldest recent ones are dropped; the first stays if there is room for two, the newest always."""
    names = [str(n) for n in range(30)]
    assert survivors(names, Retention(max_checkpoints=25)) == [0, *range(6, 30)]
    assert survivors(names, Retention.parity(25, 10)) == [0, *range(6, 30)]
    assert survivors(names, Retention(max_checkpoints=3)) == [0, 28, 29]
    assert survivors(names, Retention(max_checkpoints=1)) == [29]


@given(st.lists(st.sampled_from("abc"), min_size=15, max_size=70), st.integers(1, 60), st.integers(0, 40))
def test_parity_rule_holds_for_any_history(names, most, after):
    """Never more than the maximum; below both limits nothing is dropped; otherwise what the specification names, oldest
    first.
    """
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
    assert survivors(names, Retention.parity(most, after)) == expected


def test_each_part_of_a_rule_is_optional():
    """A rule drops only what it names: nothing, all but the last, all but both ends."""
    names = ["a", "b", "a", "b", "c", "c", "c"]
    assert survivors(names, Retention()) == list(range(7))
    assert survivors(names, Retention(keep_last=2)) == [0, 2, 3, 4, 5, 6]
    assert survivors(names, Retention(keep_last=2, keep_latest_per_name=False)) == [0, 5, 6]
    assert survivors(names, Retention(0, 2, keep_latest_per_name=False)) == [5, 6]
    assert survivors(names, Retention(2, 0, keep_latest_per_name=False)) == [0, 1, 6]
    assert survivors(names, Retention(keep_last=2, compress_after=7)) == list(range(7))


def test_age_and_bytes_are_limits():
    """Checkpoints too old are dropped, even the first; then the oldest until the rest fits; the newest always stays."""
    names = ["a"] * 10
    assert survivors(names, Retention(max_age=timedelta(hours=3))) == [6, 7, 8, 9]
    assert survivors(names, Retention(max_age=timedelta(0)), now=100 * HOUR) == [9]
    sizes = dict.fromkeys(range(1, 11), 10)
    assert survivors(names, Retention(max_bytes=45), sizes=sizes) == [0, 7, 8, 9]
    assert survivors(names, Retention(max_bytes=0), sizes=sizes) == [9]
    assert survivors(names, Retention(max_bytes=100), sizes=sizes) == list(range(10))


def test_byte_limit_counts_shared_frames():
    """Dropping a checkpoint whose frame others need saves nothing: they are dropped with it, or it stays."""
    entries = history(["a"] * 4)
    for entry in entries[2:]:
        entry.recipe, entry.base = codec.Recipe(2, ((3, entry.seq),), entry.seq - 2).pack(entry.seq), 2
    sizes = {1: 10, 2: 100, 3: 1, 4: 1}
    assert Retention(0, max_bytes=102).drops(entries, 0, (), sizes) == [1]
    assert Retention(0, max_bytes=50).drops(entries, 0, (), sizes) == [1, 2, 3]


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=40),
    st.sets(st.integers(1, 40)),
    st.builds(
        Retention,
        st.integers(0, 3),
        st.none() | st.integers(0, 5),
        st.booleans(),
        st.integers(0, 20),
        st.none() | st.integers(1, 10),
        st.none() | st.integers(0, 50).map(lambda hours: timedelta(hours=hours)),
        st.none() | st.integers(0, 300),
    ),
)
def test_pinned_and_newest_survive_any_rule(names, pinned, rule):
    """No rule drops them, or any part of a short enough history; a rule also round-trips as text."""
    kept = survivors(names, rule, pinned=pinned, sizes=dict.fromkeys(range(1, 41), 10))
    assert {n - 1 for n in pinned if n <= len(names)} | {len(names) - 1} <= set(kept)
    if len(names) <= rule.least:
        assert kept == list(range(len(names)))
    if rule.max_checkpoints is not None:
        assert len(kept) <= max(rule.max_checkpoints, len(pinned) + 1)
    assert Retention.from_dict(rule.to_dict()) == rule


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_first": -1},
        {"keep_last": "5"},
        {"max_checkpoints": 0},
        {"max_age": -5},
        {"after_end": "5"},
        {"max_bytes": True},
    ],
)
def test_invalid_rule_is_refused(wrong):
    """The error names the wrong number; text that is not a rule is refused too."""
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Retention(**wrong)
    with pytest.raises(InvalidInput):
        Retention.from_dict({"keep": 5})
    with pytest.raises(InvalidInput):
        Retention.from_dict("all")


def test_retention_rule_precedence():
    """The session's own, then its agent type's, then the general one, then the default; None keeps everything."""
    short, own = Retention(keep_last=1), Retention(keep_last=2)
    rules = checked({"tutor": short, "grader": None})
    assert rule_of(rules, "tutor", {}) == short
    assert rule_of(rules, "tutor", {"saveslot.retention": own.to_dict()}) == own
    assert rule_of(rules, "grader", {}).keeps_all
    assert rule_of(rules, "judge", {}) == DEFAULT
    assert rule_of(checked({"*": short}), "judge", {}) == short
    assert rule_of(checked(short), "judge", {}) == short
    assert rule_of(checked(None), "judge", {}).keeps_all
    with pytest.raises(InvalidInput):
        checked({"tutor": 5})
