"""Parts of states to look at: outlines, recipes and comparisons."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from saveslot import InvalidInput, NotFound
from saveslot.codec import encode
from saveslot.codec.difference import diff_texts, patched
from saveslot.codec.outline import outline
from saveslot.manager.parts import compare, making, part

AT = datetime(2026, 1, 1, tzinfo=UTC)
STATE = {
    "messages": [{"role": "user", "content": "x" * n} for n in (1, 2, 3000)],
    "trip": {"to": "Lisbon", "days": {"start": AT, "end": AT}},
    "a/b~c": 1,
    "many": list(range(300)),
}


async def test_an_outline_shows_a_state_down_to_a_depth(sessions):
    """What is below stands as kind, size and bytes; a path opens it, page by page, with the values as saved."""
    await sessions.create_session("tutor", session_id="s", data=STATE)
    top = await part(sessions, "s", depth=1)
    assert (top.kind, top.size, top.next, top.data_seq) == ("object", 4, None, 2)
    assert top.value["trip"]["…"] == "object"
    assert (top.value["many"]["size"], top.value["many"]["bytes"]) == (300, len(str(STATE["many"]).replace(" ", "")))
    assert top.value["a/b~c"] == 1
    two = await part(sessions, "s", depth=3)
    assert two.value["trip"] == STATE["trip"]
    assert two.value["messages"][0] == STATE["messages"][0]
    cut = two.value["messages"][2]["content"]
    assert (cut["…"], cut["size"], cut["start"]) == ("text", 3000, "x" * 2000)
    assert two.value["many"]["…"] == "list"  # too many children to come unasked
    assert (await part(sessions, "s", path="/messages/2/content")).value == "x" * 3000
    assert (await part(sessions, "s", path="/a~1b~0c")).value == 1
    page = await part(sessions, "s", path="/many", limit=100, start=250)
    assert (page.value, page.start, page.next) == (list(range(250, 300)), 250, None)
    assert (await part(sessions, "s", path="/many", limit=100)).next == 100
    for path in ("/none", "/messages/3", "/messages/x", "/trip/to/0", "/messages/01x"):
        with pytest.raises(NotFound, match="nothing"):
            await part(sessions, "s", path=path)
    with pytest.raises(InvalidInput, match="path"):
        await part(sessions, "s", path="messages")


async def test_an_outline_is_as_of_any_entry(sessions):
    """Entries without data show the state as of them; before the first checkpoint it is empty."""
    await sessions.create_session("tutor", session_id="s")
    assert (await part(sessions, "s", 1)).value == {}
    await sessions.checkpoint("s", "one", {"n": 1})
    await sessions.pause("s")
    seen = await part(sessions, "s", 3)
    assert (seen.seq, seen.data_seq, seen.value) == (3, 2, {"n": 1})
    assert seen.digest == (await part(sessions, "s", 2)).digest == (await making(sessions, "s", 3)).digest


async def test_a_recipe_names_the_frames(sessions):
    """The keyframe, long and short patches that the state is rebuilt from, with their bytes as stored."""
    await sessions.create_session("tutor", session_id="s", data={"text": "word " * 500, "n": 0})
    for n in range(40):
        await sessions.checkpoint("s", "turn", put={"n": n})
    made = await making(sessions, "s")
    kinds = [frame.kind for frame in made.frames]
    assert (kinds[0], kinds[1], set(kinds[2:])) == ("keyframe", "long", {"short"})
    assert made.stored_bytes == sum(frame.bytes for frame in made.frames)
    assert made.state_bytes > 2500
    assert (await making(sessions, "s", 1)).frames == []


async def test_a_comparison_aligns_lists_by_content(sessions, others):
    """A message put in front is one addition; what goes has its old value; the summary counts all operations."""
    before = {"messages": ["a", "b", "c"], "n": 1, "same": [1], "gone": "x"}
    await sessions.create_session("tutor", session_id="s", data=before)
    await sessions.checkpoint("s", "later", {"messages": ["0", "a", "c", "d"], "n": 2, "same": [1]})
    found = await compare(others, "s", 2, "later")
    assert found.items == [
        {"op": "remove", "path": "/gone", "old": "x"},
        {"op": "add", "path": "/messages/0", "value": "0"},
        {"op": "remove", "path": "/messages/2", "old": "b"},
        {"op": "add", "path": "/messages/-", "value": "d"},
        {"op": "replace", "path": "/n", "value": 2, "old": 1},
    ]
    summary = found.summary
    assert (summary.operations, summary.added, summary.removed, summary.changed) == (5, 2, 2, 1)
    assert (summary.by_key, summary.equal_keys) == ({"gone": 1, "messages": 3, "n": 1}, ["same"])
    few = await compare(others, "s", 2, "later", limit=2, old=False)
    assert (few.items, few.truncated) == ([{"op": "remove", "path": "/gone"}, found.items[1]], True)
    assert few.summary == summary
    await sessions.create_session("tutor", session_id="t", data=before)
    assert (await compare(others, "s", 2, "latest", other="t")).items == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


def texts(state) -> dict[str, bytes]:
    return {key: encode(value, "v")[0] for key, value in state.items()}


@given(STATES, STATES)
def test_old_values_are_what_the_operation_replaces(a, b):
    """Applied one after the other, each operation meets its `old` value where it goes."""
    ops = diff_texts(texts(a), texts(b), tagged=False, old=True)
    now = a
    for op in ops:
        if op["op"] != "add":
            now = patched(now, [{"op": "test", "path": op["path"], "value": op["old"]}])
        now = patched(now, [{name: value for name, value in op.items() if name != "old"}])
    assert now == b
    plain = [{name: value for name, value in op.items() if name != "old"} for op in ops]
    assert plain == diff_texts(texts(a), texts(b), tagged=False)


@given(STATES)
def test_a_deep_outline_is_the_state(state):
    """Nothing is lost or changed where nothing is too deep, too long or too many."""
    assert outline(texts(state), "", tagged=False, depth=99, limit=99).value == state
