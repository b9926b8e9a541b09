"""A value comes back equal, with types and key order, or is refused by path."""

from __future__ import annotations

import math
import sys
import tracemalloc
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from saveslot import codec
from saveslot.errors import InvalidInput, SaveslotError, TooLarge

BERLIN = ZoneInfo("Europe/Berlin")
ODD_KEYS = [
    "",
    "$saveslot",
    "a.b",
    'quo"te',
    "\\",
    "nul\0",
    "\n",
    "😀",
    "ü",
    "\u2028",
    "k" * 3000,
    "0",
    "-1",
    "__proto__",
]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.sampled_from(ODD_KEYS) | text
offsets = st.integers(-23 * 3600, 23 * 3600).map(lambda seconds: timedelta(seconds=seconds))
zones = st.none() | st.builds(timezone, offsets)
moments = st.builds(lambda at, fold: at.replace(fold=fold), st.datetimes(timezones=zones), st.sampled_from([0, 1]))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [0, 0.0, -0.0, 1, 1.0, True, 1e16, 5e-324, 2**63, -(2**63), 2**64, sys.float_info.max, "$saveslot"]
    )
    | text
    | st.binary(max_size=20)
    | moments
    | st.uuids()
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5), max_leaves=30
)
states = st.dictionaries(keys, values, max_size=5)


def typed(value: Any) -> Any:
    """Everything that must be kept of a value, in a form where nothing equals anything else by chance."""
    if isinstance(value, dict):
        return ["dict", [(key, typed(item)) for key, item in cast("dict[str, Any]", value).items()]]
    if isinstance(value, list | tuple):
        return ["list", [typed(item) for item in cast("list[Any]", value)]]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, datetime):
        return ["datetime", value.isoformat(), value.fold if value.utcoffset() is None else None]
    return [type(value).__name__, value]


def stored(value: dict[str, Any]) -> dict[str, Any]:
    """The state as another process would read it."""
    written = codec.write(None, value, 1, "data")
    assert written.frame is not None
    return codec.rebuild([written.frame], written.state.digest, "it").value()


@given(states)
def test_a_state_comes_back_exactly(value: dict[str, Any]) -> None:
    """Values, types, signs of zero, offsets, folds and the order of keys at every level survive."""
    assert typed(stored(value)) == typed(value)


@given(values)
def test_a_note_comes_back_exactly(value: Any) -> None:
    """Any value can stand alone as a note."""
    assert typed(codec.read_note(codec.note(value, "metadata"))) == typed(value)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


Point = namedtuple("Point", "x y")  # noqa: PYI024  # as callers have them


@pytest.mark.parametrize(
    ("given", "back"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Colour.RED, "red"),
        ({Colour.RED: Colour.RED}, {"red": "red"}),
        (Level.HIGH, 3),
        (Loud("quiet"), "quiet"),
        ({Loud("quiet"): 1}, {"quiet": 1}),
        (type("Score", (float,), {})(0.5), 0.5),
        (bytearray(b"\0\xff"), b"\0\xff"),
        (10**4300 - 1, 10**4300 - 1),
        (1 - 10**4299, 1 - 10**4299),
        ({"$saveslot": ["bytes", "AAEC"]}, {"$saveslot": ["bytes", "AAEC"]}),
        ({"$saveslot": {"$saveslot": b"x"}, "y": 1}, {"$saveslot": {"$saveslot": b"x"}, "y": 1}),
    ],
)
def test_subclasses_come_back_as_their_base_type(given: Any, back: Any) -> None:
    """Tuples are lists, and a subclass of a plain type is stored by its plain value, at the top and below."""
    assert typed(stored({"v": given, "deep": [{"v": given}]})) == typed({"v": back, "deep": [{"v": back}]})


def test_keys_of_the_state_itself_may_be_of_a_text_type() -> None:
    """A StrEnum works as a top-level key, as it does below; so does the reserved key."""
    assert stored({Colour.RED: 1, "$saveslot": ["uuid", "no"]}) == {"red": 1, "$saveslot": ["uuid", "no"]}


def test_the_reserved_word_is_an_ordinary_text() -> None:
    """Only a key is a tag: the word as a value stays a text, also beside tagged values."""
    value = {"word": "$saveslot", "list": ["$saveslot", b"x"], "raw": b"x"}
    assert typed(stored(value)) == typed(value)
    assert codec.decode(b'"$saveslot"', tagged=True) == "$saveslot"


def test_an_hour_that_occurs_twice_keeps_its_instant() -> None:
    """In the hour when clocks go back, a time keeps its offset, and a naive one its fold."""
    for fold in (0, 1):
        aware = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        naive = datetime(2026, 10, 25, 2, 30, fold=fold)  # noqa: DTZ001
        back = stored({"aware": aware, "naive": naive})
        assert back["aware"].astimezone(UTC) == aware.astimezone(UTC)
        assert back["aware"].utcoffset() == aware.utcoffset()
        assert (back["naive"], back["naive"].fold, back["naive"].tzinfo) == (naive, fold, None)


class Nanoseconds(datetime):
    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return super().isoformat(sep, timespec) + ".000000001"


class NotATime(datetime):
    def isoformat(self, *_: str) -> str:
        return "NaT"


class Shape(Enum):
    ROUND = 1


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


itself: list[Any] = []
itself.append(itself)

REFUSED = {
    "nan": (math.nan, "", "nan"),
    "infinity": (-math.inf, "", "-inf"),
    "half a pair": ("a\ud800", "", "surrogate"),
    "half a pair in a key": ({"\udfff": 1}, "", "surrogate"),
    "a number as key": ({1: 2}, "", "int"),
    "a huge number as key": ({10**5000: 2}, "", "int"),
    "bytes as key": ({b"x": 2}, "", "bytes"),
    "None as key": ({None: 2}, "", "NoneType"),
    "a long integer": (10**4300, "", "4,300 digits"),
    "a long negative integer": (-(10**4299), "", "4,299 digits"),
    "a longer negative integer": (-(10**4300), "", "4,299 digits"),
    "a set": ({1}, "", "set"),
    "a function": (len, "", "builtin_function_or_method"),
    "a date": (date(2026, 1, 2), "", "date"),
    "a decimal": (Decimal(1), "", "Decimal"),
    "an enum": (Shape.ROUND, "", "Shape"),
    "a class": (Shape, "", "EnumType"),
    "nanoseconds": (Nanoseconds(2026, 1, 2), "", "Nanoseconds"),
    "no time": (NotATime(2026, 1, 2), "", "NotATime"),
    "a tiny offset": (datetime(2026, 1, 2, tzinfo=timezone(timedelta(microseconds=1))), "", "fraction of a second"),
    "half a second": (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1, seconds=1.5))), "", "fraction of a sec"),
    "itself": (itself, "[0]" * 99, "contains itself"),
    "too deep": (nested(100), "[0]" * 99, "nested deeper"),
    "two keys of one text": ({"quiet": 1, type("S", (str,), {"__hash__": lambda _: 0})("quiet"): 2}, "", "two keys"),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("beside", [None, datetime(2026, 1, 2, tzinfo=UTC)], ids=["plain", "tagged"])
def test_a_value_without_an_exact_form_is_refused_by_path(why: str, beside: Any) -> None:
    """The path names the value (or, for a key, the dict that has it), and the reason says what is wrong with it."""
    bad, inside, reason = REFUSED[why]
    with pytest.raises(InvalidInput, match=reason) as told_why:
        codec.write(None, {"ok": beside, "list": [0, {"two words": bad}]} if not inside else {"v": bad}, 1, "data")
    assert told_why.value.path == ('data.list[1]["two words"]' if not inside else f"data.v{inside}")
    str(told_why.value).encode()


@pytest.mark.parametrize("why", ["nan", "half a pair", "a set", "a long integer", "a long negative integer"])
def test_an_addition_is_refused_by_path_and_changes_nothing(why: str) -> None:
    """After `append` was refused, the state before it is as it was and can be appended to."""
    before = codec.write(None, {"messages": [1], "n": {}}, 1, "data").state
    with pytest.raises(InvalidInput) as told_why:
        codec.append(before, {"new": [1], "messages": [0, {"x": REFUSED[why][0]}]}, 2)
    assert told_why.value.path == "append.messages[1].x"
    assert before.value() == {"messages": [1], "n": {}}
    assert codec.append(before, {"messages": [2]}, 2).state.value() == {"messages": [1, 2], "n": {}}


@pytest.mark.parametrize(
    ("items", "path"),
    [
        ({"text": [1]}, "append.text"),
        ({"when": [1]}, "append.when"),
        ({"messages": "abc"}, "append.messages"),
        ({"messages": {"a": 1}}, "append.messages"),
        ({1: [1]}, "append"),
        ({"\ud800": [1]}, "append"),
    ],
)
def test_only_lists_can_be_added_to(items: dict[Any, Any], path: str) -> None:
    """A key without a list, items that are not a list and keys that are not text are refused by path."""
    before = codec.write(None, {"text": "[", "when": datetime(2026, 1, 2, tzinfo=UTC), "messages": []}, 1, "data").state
    with pytest.raises(InvalidInput) as told_why:
        codec.append(before, items, 2)
    assert told_why.value.path == path


def test_refusals_can_be_printed_whatever_the_keys_are() -> None:
    """Long and odd keys are shortened and escaped in the path."""
    for key in ODD_KEYS:
        with pytest.raises(InvalidInput) as told_why:
            codec.write(None, {key: {key: math.nan}}, 1, "data")
        assert len(told_why.value.path) < 200
        assert told_why.value.path.isprintable()


def test_depth_is_counted_the_same_everywhere() -> None:
    """100 containers inside each other are stored, written or appended, plain or tagged; one more is refused."""
    for deepest in ({"v": nested(99)}, {"v": nested(99), "b": b"x"}):
        assert stored(deepest) == deepest
    assert codec.append(None, {"v": [nested(98)]}, 1).state.value() == {"v": [nested(98)]}
    with pytest.raises(InvalidInput, match="nested deeper"):
        codec.append(None, {"v": [nested(99)]}, 1)
    reserved: dict[str, Any] = {}
    for _ in range(99):
        reserved = {"$saveslot": reserved}
    assert stored(reserved) == reserved


def test_a_raised_digit_limit_does_not_let_unreadable_integers_in() -> None:
    """Integers beyond 4,300 digits are refused even where Python was typed to print them; shorter ones are kept."""
    limit = sys.get_int_max_str_digits()
    try:
        for told_to in (0, 10_000):
            sys.set_int_max_str_digits(told_to)
            with pytest.raises(InvalidInput, match="4,300 digits"):
                codec.write(None, {"n": [1, {"x": 10**4300}]}, 1, "data")
            assert stored({"n": 10**4299, "at": b""}) == {"n": 10**4299, "at": b""}
        sys.set_int_max_str_digits(700)
        with pytest.raises(InvalidInput, match="700 digits"):
            codec.write(None, {"n": 10**700}, 1, "data")
    finally:
        sys.set_int_max_str_digits(limit)


def doubled(leaf: Any, times: int = 60) -> Any:
    for _ in range(times):
        leaf = [leaf, leaf]
    return leaf


def wide(times: int) -> Any:
    value: Any = []
    for _ in range(times):
        value = [value] * 3000
    return value


LARGE = {
    "doubled without end": lambda: doubled(1),
    "doubled, with a special value": lambda: [b"x", doubled(b"x")],
    "doubled, with NaN": lambda: [math.nan, doubled(1)],
    "doubled dicts": lambda: {"a": (value := doubled({"x": 1})), "b": value},
    "wide": lambda: wide(3),
    "one text many times": lambda: ["x" * 1_000_000] * 100_000,
    "one text in many dicts": lambda: [{"x": "x" * 1_000_000, "n": 1}] * 100_000,
    "one long key many times": lambda: [{"x" * 1_000_000: 1}] * 100_000,
    "one byte string many times": lambda: [b"x" * 1_000_000] * 100_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_shared_references_cannot_exhaust_memory(name: str) -> None:
    """A small structure that would be endless as text is refused before it is written out."""
    value = LARGE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            codec.write(None, {"v": value}, 1, "data", limit=1_000_000)
        with pytest.raises(TooLarge):
            codec.append(None, {"v": [value]}, 1, limit=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_the_limit_is_for_the_whole_state() -> None:
    """A state over the limit is refused, whether by one value, many, keys or appending; others are not."""
    fits = {"a": "x" * 400, "b": "x" * 400}
    assert codec.write(None, fits, 1, "data", limit=1000).state.value() == fits
    for value in ({"a": "x" * 1000}, {**fits, "c": "x" * 400}, {"k" * 1000: 1}, {"v": ["ü" * 400] * 2}):
        with pytest.raises(TooLarge) as told_why:
            codec.write(None, value, 1, "data", limit=1000)
        assert told_why.value.limit == 1000
        assert told_why.value.size > 1000
    with pytest.raises(TooLarge):
        codec.note("x" * 1000, "metadata", limit=1000)
    state = codec.write(None, {"a": ["x" * 400], "b": ["x" * 400]}, 1, "data", limit=1000).state
    with pytest.raises(TooLarge):
        codec.append(state, {"c": ["x" * 400]}, 2, limit=1000)
    assert list(state.texts) == ["a", "b"]


@given(st.lists(st.dictionaries(keys, st.lists(text, max_size=3), max_size=3), max_size=8))
def test_what_was_appended_can_be_written(additions: list[dict[str, Any]]) -> None:
    """A limit that lets `append` make a state also lets `write` store it."""
    state = codec.State()
    for seq, items in enumerate(additions, 1):
        try:
            state = codec.append(state, items, seq, limit=300).state
        except SaveslotError:
            break
    codec.write(None, state.value(), 99, "data", limit=300)


def test_only_a_dict_is_a_state() -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidInput, match="must be a dict, not list"):
        codec.write(None, cast("Any", [1]), 1, "data")


def test_ids_come_back_as_ids() -> None:
    """A UUID is not a text that looks like one."""
    name = UUID("0198c0de-0000-7000-8000-000000000001")
    assert typed(stored({"id": name, "text": str(name)})) == typed({"id": name, "text": str(name)})
