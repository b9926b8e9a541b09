"""Patches between states: exact, small, and never at the cost of the caller's own values."""

from __future__ import annotations

import random
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from saveslot.codec import encode
from saveslot.codec.difference import MAX_ALIGNED, appended_items, diff, diff_texts, patched
from saveslot.errors import InvalidInput, TooLarge

leaves = (
    st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "1", "a", 2**70])
    | st.sampled_from([datetime(2026, 1, 2, tzinfo=UTC), b"\0", UUID(int=7)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.text(max_size=5)
)
keys = st.sampled_from(["a", "b", "c", "", "-", "0", "1", "a/b", "m~n", "~1", "$saveslot", "ü"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=4), max_leaves=25
)
states = st.dictionaries(keys, values, max_size=4)
few = st.lists(st.sampled_from([1, 1.0, True, "1", [1], {"x": 1, "y": 2}, {"y": 2, "x": 1}, {"x": True}]), max_size=12)


def children(value: Any) -> dict[Any, Any] | None:
    """The members of a dict by key, the items of a list by index, None of anything else."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value)
    return dict(enumerate(cast("list[Any]", value))) if isinstance(value, list) else None


def same(a: Any, b: Any) -> bool:
    """Equal with the types that Python's == overlooks; the order of keys does not count."""
    x, y = children(a), children(b)
    if type(a) is not type(b):
        return False
    if x is None or y is None:
        return repr(a) == repr(b) if isinstance(a, float) else a == b
    return x.keys() == y.keys() and all(same(x[key], y[key]) for key in x)


def texts(state: dict[str, Any]) -> dict[str, bytes | bytearray]:
    return {key: bytearray(encode(value, key)[0]) for key, value in state.items()}


def containers(value: Any) -> set[int]:
    inner = children(value)
    return set() if inner is None else {id(value)}.union(*map(containers, inner.values()))


# --- diff -------------------------------------------------------------------------------------------------------------


@given(values, values)
def test_a_patch_leads_to_the_other_value(a: Any, b: Any) -> None:
    """Whatever the two values, the patch between them turns one into exactly the other, types included."""
    assert same(patched(a, diff(a, b)), b)


@given(few, few)
def test_a_patch_leads_to_the_other_list(a: Any, b: Any) -> None:
    """Lists of items that repeat and that are almost alike are distinguished, too."""
    assert same(patched(a, diff(a, b)), b)


@given(states, states)
def test_states_as_texts(a: Any, b: Any) -> None:
    """Two states kept as texts give the same patch as the states themselves, with datetimes as datetimes."""
    result = diff_texts(texts(a), texts(b), tagged=True)
    assert same(patched(a, result), b)
    if "$saveslot" not in a and "$saveslot" not in b:
        assert same(result, diff(a, b))


@given(values)
def test_no_change_no_operation(value: Any) -> None:
    """A value does not differ from itself, nor from its deep copy with the keys of all objects in another order."""

    def turned(value: Any) -> Any:
        inner = children(value)
        if inner is None or "$saveslot" in inner:  # a dict with the reserved key is stored as one tagged value
            return value
        if isinstance(value, list):
            return list(map(turned, inner.values()))
        return {key: turned(item) for key, item in reversed(inner.items())}

    assert diff(value, deepcopy(value)) == []
    assert diff(value, turned(value)) == []


def test_items_alike_but_for_the_order_of_keys_stay():
    """A list whose items differ only in the order of their keys keeps them, whichever of them are equal as texts."""
    one, other, new = {"x": 1, "y": 2}, {"y": 2, "x": 1}, {"z": 3}
    assert diff([one, other], [other, one]) == []
    assert diff([one, other, one], [other, new, one, other]) == [{"op": "add", "path": "/1", "value": new}]


@given(st.lists(st.integers(0, 4), max_size=15), st.lists(st.integers(0, 4), max_size=15))
def test_as_much_of_a_list_stays_as_can(a: Any, b: Any) -> None:
    """A patch never takes more operations than going by the longest common subsequence does."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    longest = table[-1][-1]
    assert len(diff(a, b)) <= len(a) + len(b) - 2 * longest


def message(n: int, text: str = "") -> dict[str, Any]:
    return {
        "role": "user" if n % 2 else "assistant",
        "content": text or f"message {n} " * 9,
        "usage": {"in": n, "out": 7},
    }


MESSAGES = [message(n) for n in range(40)]


@pytest.mark.parametrize(
    ("new", "ops"),
    [
        (
            [*MESSAGES, message(40), message(41)],
            [("add", "/messages/-", message(40)), ("add", "/messages/-", message(41))],
        ),
        ([message(90), *MESSAGES], [("add", "/messages/0", message(90))]),
        ([*MESSAGES[:7], message(90), *MESSAGES[7:]], [("add", "/messages/7", message(90))]),
        ([*MESSAGES[:7], *MESSAGES[9:]], [("remove", "/messages/8"), ("remove", "/messages/7")]),
        (MESSAGES[:38], [("remove", "/messages/39"), ("remove", "/messages/38")]),
        ([*MESSAGES[:7], "gone", *MESSAGES[8:]], [("replace", "/messages/7", "gone")]),
        (
            [*MESSAGES[:7], {**MESSAGES[7], "usage": {"in": 7, "out": 8}}, *MESSAGES[8:]],
            [("replace", "/messages/7/usage/out", 8)],
        ),
        (
            [*MESSAGES[:7], message(90), *MESSAGES[7:30], {**MESSAGES[30], "content": "-"}, *MESSAGES[31:]],
            [("add", "/messages/7", message(90)), ("replace", "/messages/31/content", "-")],
        ),
        (
            [*MESSAGES[:7], message(90), {**MESSAGES[7], "content": "-"}, *MESSAGES[8:]],
            [("add", "/messages/7", message(90)), ("replace", "/messages/8/content", "-")],
        ),
        (
            [*MESSAGES[1:20], {**MESSAGES[20], "seen": True}, *MESSAGES[21:], message(40)],
            [("remove", "/messages/0"), ("add", "/messages/19/seen", True), ("add", "/messages/-", message(40))],
        ),
        ([dict(reversed(m.items())) for m in MESSAGES], []),
    ],
    ids=["tail", "front", "middle", "two gone", "cut", "replaced", "nested", "far", "adjacent", "three", "key order"],
)
def test_a_small_change_is_a_small_patch(new: Any, ops: Any) -> None:
    """Each change of a conversation takes as many operations as a person would use."""
    a, b = {"messages": MESSAGES, "n": 1}, {"messages": new, "n": 1}
    expected: list[dict[str, Any]] = [dict(zip(("op", "path", "value"), op, strict=False)) for op in ops]
    assert diff(a, b) == expected
    assert diff_texts(texts(a), texts(b), tagged=False) == expected
    assert patched(a, expected) == b


EXACT: list[Any] = [
    ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
    ({"a": 1}, {"a": 1.0}, [{"op": "replace", "path": "/a", "value": 1.0}]),
    ({"a/b~": 1}, {}, [{"op": "remove", "path": "/a~1b~0"}]),
    ({"": {"": 1}}, {"": {"": 2}}, [{"op": "replace", "path": "//", "value": 2}]),
    ({"a": {}}, {"a": []}, [{"op": "replace", "path": "/a", "value": []}]),
    ([], {}, [{"op": "replace", "path": "", "value": {}}]),
    ([], [[]], [{"op": "add", "path": "/-", "value": []}]),
    ({"a": b"1"}, {"a": b"2"}, [{"op": "replace", "path": "/a", "value": b"2"}]),
    (
        {"a": {"$saveslot": 1}},
        {"a": {"$saveslot": 2}},
        [{"op": "replace", "path": "/a", "value": {"$saveslot": 2}}],
    ),
]


@pytest.mark.parametrize(
    ("a", "b", "ops"),
    EXACT,
)
def test_exact_operations(a: Any, b: Any, ops: Any) -> None:
    """Types count, keys are escaped, tagged values are replaced whole."""
    assert same(diff(a, b), ops)
    assert same(patched(a, ops), b)


def test_long_lists_keep_patch_and_time_small() -> None:
    """A list that mostly changed is replaced where that is shorter; one too long to align is compared in place."""
    rng = random.Random(1)
    a, b = ([rng.randrange(10) for _ in range(3 * MAX_ALIGNED)] for _ in range(2))
    assert diff({"v": a}, {"v": b}) == [{"op": "replace", "path": "/v", "value": b}]
    assert diff({"m": MESSAGES * 9}, {"m": MESSAGES[:1]}) == [{"op": "replace", "path": "/m", "value": MESSAGES[:1]}]
    assert [op["path"] for op in diff([0], [*a, 0])] == [f"/{n}" for n in range(len(a))]
    flags = [{"a": n, "b": 0} for n in range(2 * MAX_ALIGNED)]
    assert diff(flags, [{"b": 0, "a": n} for n in range(2 * MAX_ALIGNED)]) == []
    long = MESSAGES * (2 + MAX_ALIGNED // len(MESSAGES))
    assert diff(long, [dict(reversed(m.items())) for m in long]) == []
    changed = ["first", *long[1:-1], "last"]
    assert diff(long, changed) == [
        {"op": "replace", "path": "/0", "value": "first"},
        {"op": "replace", "path": f"/{len(long) - 1}", "value": "last"},
    ]


def test_comparing_leaves_no_trace() -> None:
    """The compared texts can grow in place afterwards, and a patch shares nothing with the compared values."""
    a: dict[str, Any] = {"l": [[1], {"x": []}]}
    b: dict[str, Any] = {"l": [[1], {"x": []}, {"y": [2]}]}
    old, new = texts(a), texts(b)
    result = diff_texts(old, new, tagged=False)
    old["l"] += b" "
    new["l"] += b" "
    assert containers([op["value"] for op in result + diff(a, b)]).isdisjoint(containers(b))


# --- patched: the examples of RFC 6902, appendix A --------------------------------------------------------------------


STANDARD: list[Any] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
]


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    STANDARD,
    ids=["A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A10", "A11", "A14", "A16"],
)
def test_examples_of_the_standard(document: Any, patch: Any, result: Any) -> None:
    """The examples of RFC 6902 that succeed give the documents that it shows."""
    assert same(patched(document, patch), result)


@pytest.mark.parametrize(
    ("document", "op", "result"),
    [
        ({"a": 1}, {"op": "add", "path": "", "value": [1]}, [1]),
        ({"a": 1}, {"op": "replace", "path": "", "value": None}, None),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": ""}, {"b": 1}),
        ({"a": 1}, {"op": "move", "from": "", "path": ""}, {"a": 1}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/a"}, {"a": 1}),
        ({"a": 1}, {"op": "copy", "from": "", "path": "/b"}, {"a": 1, "b": {"a": 1}}),
        ({"a": 1}, {"op": "add", "path": "/a", "value": None}, {"a": None}),
        ({"a": 1}, {"op": "add", "path": "/", "value": 2}, {"a": 1, "": 2}),
        ({"a": {}}, {"op": "add", "path": "/a/-", "value": 2}, {"a": {"-": 2}}),
        ({"a": {}}, {"op": "add", "path": "/a/01", "value": 2}, {"a": {"01": 2}}),
        ([1, 2], {"op": "add", "path": "/2", "value": 3}, [1, 2, 3]),
        ([1, 2], {"op": "move", "from": "/0", "path": "/-"}, [2, 1]),
        ([[1], 2], {"op": "copy", "from": "/0", "path": "/-"}, [[1], 2, [1]]),
        ({"a": 1, "ab": 2}, {"op": "move", "from": "/a", "path": "/ab"}, {"ab": 1}),
        ((1, (2,)), {"op": "replace", "path": "/1/0", "value": 3}, [1, [3]]),
        ({"a": [1, {"b": 2}]}, {"op": "test", "path": "/a", "value": [1.0, {"b": 2.0}]}, {"a": [1, {"b": 2}]}),
    ],
)
def test_the_corners_of_each_operation(document: Any, op: Any, result: Any) -> None:
    """The root, "-", escapes and numbers mean what RFC 6901 and 6902 say."""
    assert same(patched(document, [op]), result)


# --- patched: refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ({"op": "remove", "path": "/x"}, 'remove "/x": there is no key "x" in ""'),
        ({"op": "remove", "path": "/o/x"}, 'remove "/o/x": there is no key "x" in "/o"'),
        ({"op": "replace", "path": "/o/x", "value": 1}, "no key"),
        ({"op": "test", "path": "/o/x", "value": None}, "no key"),
        ({"op": "add", "path": "/x/y", "value": 1}, 'add "/x/y": there is no key "x"'),
        ({"op": "add", "path": "/s/y", "value": 1}, 'there is no "y" in "/s", which holds a str'),
        ({"op": "add", "path": "/l/4", "value": 1}, 'index 4 is out of range for the list "/l" of 3'),
        ({"op": "replace", "path": "/l/3", "value": 1}, "index 3 is out of range"),
        ({"op": "remove", "path": "/l/" + "9" * 9999}, "index 99999999999999999999 is out of range"),
        ({"op": "remove", "path": "/l/01"}, '"01" is not an index'),
        ({"op": "add", "path": "/l/-1", "value": 1}, '"-1" is not an index'),
        ({"op": "add", "path": "/l/٣", "value": 1}, '"٣" is not an index'),
        ({"op": "add", "path": "/l/", "value": 1}, '"" is not an index'),
        ({"op": "remove", "path": "/l/-"}, "nothing is there"),
        ({"op": "add", "path": "/l/-/x", "value": 1}, "nothing is there"),
        ({"op": "copy", "path": "/x", "from": "/y"}, 'copy "/x": there is no key "y"'),
        ({"op": "move", "path": "/o/k/x", "from": "/o"}, 'move "/o/k/x": "/o" cannot move into itself'),
        ({"op": "move", "path": "/x", "from": ""}, "cannot move into itself"),
        ({"op": "remove", "path": ""}, "can only be replaced"),
        ({"op": "test", "path": "/n", "value": True}, 'test "/n": found 1, which is not the value'),
        ({"op": "test", "path": "/s", "value": 10}, "found '10'"),
        ({"op": "test", "path": "/l", "value": [1, 2]}, "found [1, 2, 3]"),
        ({"op": "test", "path": "/o", "value": {}}, "found {'k': {}}"),
        ({"op": "add", "path": "/x"}, 'add needs a "value", which is missing'),
        ({"op": "move", "path": "/x"}, 'move needs a "from"'),
        ({"op": "remove"}, 'remove needs a "path"'),
        ({"op": "spin", "path": "/x"}, "the op is 'spin', not one of add, remove"),
        ({"op": ["add"], "path": "/x"}, "the op is ['add']"),
        ({"path": "/x"}, "the op is None"),
        ({"op": "remove", "path": "x"}, 'remove: the path "x" does not start with "/"'),
        ({"op": "copy", "path": "/x", "from": "n"}, 'from "n" does not start with "/"'),
        ({"op": "remove", "path": "/~2"}, 'has a "~" that is neither'),
        ({"op": "remove", "path": "/x~"}, 'has a "~" that is neither'),
        ({"op": "remove", "path": 1}, "must be text, not int"),
        ("remove", "must be an object with op and path, not str"),
    ],
)
def test_what_does_not_fit_is_refused(op: Any, reason: Any) -> None:
    """An operation that cannot be done is named with its place in the patch, its pointer and what was found."""
    document: dict[str, Any] = {"n": 1, "s": "10", "l": [1, 2, 3], "o": {"k": {}}}
    before = deepcopy(document)
    patch = [{"op": "add", "path": "/l/-", "value": 4}, {"op": "remove", "path": "/l/3"}, op]
    with pytest.raises(InvalidInput) as caught:
        patched(document, patch)
    assert caught.value.path == "patch[2]"
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 500
    assert document == before


@pytest.mark.parametrize("patch", [None, {"op": "remove", "path": "/a"}, "[]", b"[]", 1])
def test_a_patch_is_a_list(patch: Any) -> None:
    """Anything but a list of operations is refused as such."""
    for use in (lambda: patched({}, patch), lambda: appended_items(patch)):
        with pytest.raises(InvalidInput, match="must be a list of operations"):
            use()


def test_a_patch_cannot_blow_up() -> None:
    """Copies that double the document, and values that contain themselves, are refused in time."""
    doubling = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(60)]
    with pytest.raises(TooLarge):
        patched({"a": "x" * 1000}, doubling)
    with pytest.raises(TooLarge):
        patched({"a": "x" * 2**20}, [{"op": "copy", "from": "/a", "path": f"/{n}"} for n in range(20)])
    with pytest.raises(InvalidInput, match="copies more than 1,000,000"):
        patched({"a": [[]] * 400_000}, [{"op": "copy", "from": "/a", "path": f"/{n}"} for n in range(3)])
    with pytest.raises(InvalidInput, match="moves more than 200,000,000"):
        patched({"a": [0] * 1_000_000}, [{"op": "add", "path": "/a/0", "value": 1}] * 300)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="contains itself"):
        patched({}, [{"op": "add", "path": "/a", "value": endless}])
    with pytest.raises(InvalidInput, match="nested too deep"):
        patched(endless, [{"op": "test", "path": "", "value": [endless]}])


# --- patched: whose values are whose ----------------------------------------------------------------------------------


@given(states, states)
def test_arguments_stay_as_they_are(a: Any, b: Any) -> None:
    """Neither the document nor the patch is changed, and the result holds no container of the patch."""
    patch = diff(a, b)
    kept = deepcopy((a, patch))
    result = patched(a, patch)
    assert same([a, patch], list(kept))
    assert containers(result).isdisjoint(containers([op.get("value") for op in patch]))


def test_only_what_is_touched_is_copied() -> None:
    """Containers on the way to a change are new, all others are the document's own."""
    document: dict[str, Any] = {"messages": [{"x": []}, {"y": []}], "plan": {"steps": []}}
    result = patched(document, [{"op": "add", "path": "/messages/1/y/-", "value": 1}])
    assert document == {"messages": [{"x": []}, {"y": []}], "plan": {"steps": []}}
    assert result["plan"] is document["plan"]
    assert result["messages"][0] is document["messages"][0]


def test_copies_and_values_are_their_own() -> None:
    """What was added or copied can be changed by later operations without changing where it came from."""
    value = {"list": [1]}
    document = {"a": {"list": [0]}}
    patch = [
        {"op": "add", "path": "/b", "value": value},
        {"op": "add", "path": "/c", "value": value},
        {"op": "copy", "from": "/b", "path": "/d"},
        {"op": "copy", "from": "/a", "path": "/e"},
        {"op": "move", "from": "/a", "path": "/f"},
        *({"op": "add", "path": f"/{key}/list/-", "value": key} for key in "bcdef"),
    ]
    assert patched(document, patch) == {
        "b": {"list": [1, "b"]},
        "c": {"list": [1, "c"]},
        "d": {"list": [1, "d"]},
        "e": {"list": [0, "e"]},
        "f": {"list": [0, "f"]},
    }
    assert document == {"a": {"list": [0]}}
    assert value == {"list": [1]}


def test_one_object_in_two_places() -> None:
    """A document that holds one dict twice is changed only where the pointer says."""
    shared = {"n": 1}
    assert patched([shared, shared], [{"op": "replace", "path": "/0/n", "value": 2}]) == [{"n": 2}, {"n": 1}]


# --- what a patch is about --------------------------------------------------------------------------------------------


def test_appended_items() -> None:
    """Only a patch that adds behind top-level lists, and does nothing else, is an append."""
    a, b = {"m": [1], "a/b": []}, {"m": [1, 2, [3]], "a/b": [4]}
    assert appended_items(diff(a, b)) == {"m": [2, [3]], "a/b": [4]}
    assert appended_items([]) == {}
    add = {"op": "add", "path": "/m/-", "value": 1}
    for other in (
        {"op": "add", "path": "/m/0", "value": 1},
        {"op": "add", "path": "/-", "value": 1},
        {"op": "add", "path": "/m/x/-", "value": 1},
        {"op": "copy", "from": "/m/0", "path": "/m/-"},
        {"op": "test", "path": "/m/0", "value": 1},
    ):
        assert appended_items([add, other]) is None
