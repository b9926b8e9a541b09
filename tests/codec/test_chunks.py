"""Long lists are encoded by chunks: the text is always that of encoding the whole list."""

from __future__ import annotations

import copy
from collections import OrderedDict
from datetime import UTC, datetime
from enum import IntEnum
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from saveslot import InvalidInput, TooLarge, codec


class Level(IntEnum):
    LOW = 1


def turns(count):
    return [
        {"role": "user", "text": f"turn {n}", "usage": {"in": n, "out": 1.5, "cached": False}} for n in range(count)
    ]


NUMBERS = [True, False, 0, 1, -1, 0.0, -0.0, 1.0, None, 10**30, Level.LOW]
OTHERS = ["", "1", "ä", "$saveslot", b"1", bytearray(b"1"), datetime(2026, 1, 2, tzinfo=UTC), UUID(int=1)]
CONTAINERS = [[], (), {}, [1], (1,), [1.0], [True], {"$saveslot": 1}, OrderedDict(a=1)]
VALUES = st.sampled_from([*NUMBERS, *OTHERS, *CONTAINERS])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 400), VALUES),
        st.tuples(st.just("nested"), st.integers(0, 400), VALUES),
        st.tuples(st.just("insert"), st.integers(0, 400), VALUES),
        st.tuples(st.just("delete"), st.integers(0, 400), st.none()),
        st.tuples(st.just("grow"), st.integers(1, 90), VALUES),
        st.tuples(st.just("append"), st.integers(1, 90), VALUES),
    ),
    max_size=8,
)


def changed(items, what, place, value):
    at = place % max(1, len(items))
    if what == "set" and items:
        items[at] = value
    elif what == "nested" and items and isinstance(items[at], dict) and "usage" in items[at]:
        items[at]["usage"]["cached"] = value
    elif what == "insert":
        items.insert(at, value)
    elif what == "delete" and items:
        del items[at]
    elif what == "grow":
        items += [copy.copy(value) for _ in range(place)]


@given(count=st.integers(0, 300), changes=CHANGES)
def test_texts_equal_those_of_encoding_everything(count, changes):
    """After any changes in place, the text is the one that encoding the whole list writes, and so is the value."""
    items = turns(count)
    state = codec.write(None, {"first": 1, "items": items, "last": []}, 1, "data").state
    for seq, (what, place, value) in enumerate(changes, 2):
        if what == "append":
            more = [copy.copy(value) for _ in range(place)]
            items += more
            state = codec.append(state, {"items": more}, seq).state
        else:
            changed(items, what, place, value)
            state = codec.write(state, {"first": 1, "items": items, "last": []}, seq, "data").state
        whole = codec.write(None, {"first": 1, "items": [*items[:100]], "rest": [*items[100:]]}, 1, "data").state
        assert list(state.texts) == ["first", "items", "last"]
        parts = bytes(whole.texts["items"])[1:-1], bytes(whole.texts["rest"])[1:-1]
        assert bytes(state.texts["items"]) == b"[%b]" % b",".join(part for part in parts if part)
        assert [*map(repr, state.value()["items"])] == [*map(repr, whole.value()["items"] + whole.value()["rest"])]


@pytest.mark.parametrize(
    "bad",
    [float("nan"), {1: 2}, {1, 2}, "\ud800", object(), 10**4300],
    ids=["nan", "key", "set", "surrogate", "object", "long"],
)
def test_an_item_that_cannot_be_stored_is_named_by_its_place_in_the_list(bad):
    """An item that was fine last time and is not now is refused, with its index in the whole list."""
    items = turns(300)
    state = codec.write(None, {"items": items}, 1, "data").state
    items[200]["usage"]["in"] = bad
    with pytest.raises(InvalidInput) as refused:
        codec.write(state, {"items": items}, 2, "data")
    assert refused.value.path.startswith("data.items[200].usage.in")


def test_a_long_list_is_measured_as_it_grows():
    """The limit holds for the sum of the chunks, and for the state around them."""
    items = turns(300)
    size = codec.write(None, {"items": items}, 1, "data").state.weight
    assert codec.write(None, {"items": items}, 1, "data", size).frame
    with pytest.raises(TooLarge):
        codec.write(None, {"items": items}, 1, "data", size - 1)
    with pytest.raises(TooLarge):
        codec.write(None, {"items": items, "more": 1}, 1, "data", size)


def test_shared_values_cannot_exhaust_memory():
    """A small object that would be gigabytes of JSON is refused before it is written."""
    value = ["x" * 100]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(TooLarge):
        codec.write(None, {"items": [value] * 200}, 1, "data")


def test_a_list_that_contains_itself_is_refused():
    items = turns(200)
    items[150]["usage"]["in"] = items
    with pytest.raises(InvalidInput, match="contains itself"):
        codec.write(None, {"items": items}, 1, "data")
