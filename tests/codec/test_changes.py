"""Changes are stored and add up again: through writes, appends, rollbacks and limits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from saveslot import codec
from saveslot.codec.blocks import Head, opened
from saveslot.codec.common import MAX_COPIES, common_ends
from saveslot.codec.frame import LONG, PATCH, unpack
from saveslot.codec.patch import Change, Copy
from saveslot.errors import InvalidInput
from saveslot.values.recipe import MAX_SHORT

from .logs import Log, exact

# Long and short, equal and similar texts, cut inside characters when their ends are compared.
words = st.sampled_from(["", "a", "aa", "ab", "é", "è", "😀", "😁", "\\", '"', "\0", "lorem ipsum " * 30, "x" * 300])
leaves = (
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 1e16])
    | words
    | st.binary(max_size=3)
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(words, inner, max_size=5), max_leaves=25
)
states = st.dictionaries(st.sampled_from(["a", "b", "c", "list", "$saveslot", ""]), values, max_size=5)


steps = st.one_of(
    st.tuples(st.just("write"), states),
    st.tuples(st.just("edit"), st.tuples(st.sampled_from(["a", "b", "list"]), values)),
    st.tuples(st.just("append"), st.dictionaries(st.sampled_from(["list", "more"]), st.lists(values, max_size=3))),
    st.tuples(st.just("rollback"), st.integers(0, 30)),
    st.tuples(st.sampled_from(["other", "resume", "again"]), st.none()),
)


@settings(max_examples=200)
@given(st.lists(steps, max_size=25), st.booleans())
def test_every_entry_of_a_log_can_be_rebuilt(story: list[tuple[str, Any]], large: bool) -> None:  # noqa: FBT001
    """After any writes, appends and rollbacks, each entry's state is rebuilt from its recipe alone."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(3000).hex()} if large else {})  # lets patches follow one another
    for verb, what in story:
        value = log.heads[-1][2]
        match verb:
            case "write":
                log.write(what)
            case "edit":
                log.write({**value, what[0]: what[1]})
            case "append":
                log.append({key: more for key, more in what.items() if isinstance(value.get(key, []), list)})
            case "rollback":
                log.rollback(what % log.seq)
            case "again":
                log.write(value)
            case "other":
                log.other()
            case _:
                log.resume()
    log.check()


@settings(max_examples=200)
@given(st.data())
def test_large_texts_changed_in_many_places_add_up(data: st.DataObject) -> None:
    """Items of a long list are edited, removed, repeated, mixed and added anywhere: the patch restores the new list."""
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    old = [{"id": n, "text": dice.choice(["same " * 40, dice.randbytes(60).hex()])} for n in range(dice.randrange(60))]
    new = list(old)
    for _ in range(data.draw(st.integers(0, 25))):
        at = dice.randrange(len(new) + 1)
        match dice.randrange(4):
            case 0:
                new[at : at + 1] = [{"id": at, "text": dice.randbytes(dice.randrange(900)).hex()}]
            case 1:
                del new[at : at + dice.randrange(5)]
            case 2:
                new[at:at] = dice.sample(old, min(3, len(old)))
            case _:
                new[at : at + 5] = reversed(new[at : at + 5])
    log = Log()
    log.write({"messages": old, "ballast": dice.randbytes(30_000).hex()})
    log.write({"messages": new, "ballast": log.heads[-1][2]["ballast"]})
    log.check()


@given(st.binary(max_size=2000), st.binary(max_size=2000), st.binary(max_size=600), st.binary(max_size=600))
def test_common_ends_are_exact(front: bytes, back: bytes, old: bytes, new: bytes) -> None:
    """The bytes reported as shared are equal, and the next ones are not."""
    a, b = front + old + back, bytearray(front + new + back)
    ahead, after = common_ends(a, b)
    assert a[:ahead] == b[:ahead]
    assert a[len(a) - after :] == b[len(b) - after :]
    limit = min(len(a), len(b))
    assert ahead + after <= limit
    assert ahead == limit or a[ahead] != b[ahead]
    assert ahead + after == limit or a[-after - 1] != b[-after - 1]


def said(frame: bytes | None) -> Head:
    assert frame is not None
    assert frame[1] & PATCH
    return opened(unpack(frame))


def messages(count: int) -> list[dict[str, Any]]:
    dice = random.Random(count)
    return [{"role": "user", "content": dice.randbytes(300).hex(), "id": n} for n in range(count)]


LISTS = messages(200)


@pytest.mark.parametrize(
    ("name", "after", "parts"),
    [
        ("one more", [*LISTS, {"role": "user", "content": "hi"}], 1),
        ("first edited, one more", [{**LISTS[0], "content": "edited"}, *LISTS[1:], {"role": "user"}], 3),
        ("oldest dropped, one more", [LISTS[0], *LISTS[4:], {"role": "user"}], 3),
        ("summed up", [{"summary": "so far " * 20}, *LISTS[90:], {"role": "user"}], 3),
        ("three edited", [{**m, "id": -1} if m["id"] in (3, 90, 180) else m for m in LISTS], 5),
        ("two moved", [*LISTS[2:], *LISTS[:2]], 5),
    ],
)
def test_only_what_changed_is_stored(name: str, after: list[Any], parts: int) -> None:
    """Distant changes of one long list are stored separately, without what is between them; a moved item not at all."""
    for wrap in (lambda v: {"messages": v, "n": 1}, lambda v: {"n": 2, "graph": {"turn": len(v), "messages": v}}):
        before = codec.write(None, wrap(LISTS), 1, "data").state
        written = codec.write(before, wrap(after), 2, "data")
        assert sum(len(change.parts) for change in said(written.frame).changes) <= parts + 2
        assert written.frame is not None
        assert len(written.frame) < 700


@pytest.mark.parametrize("how", ["another key", "renamed", "appended", "inside"])
def test_what_stands_elsewhere_is_copied(how: str) -> None:
    """A value that is in the state already, under another key or inside of one, is not stored again."""
    state: dict[str, Any] = {"inbox": LISTS[:3], "messages": LISTS[3:50], "n": 1}
    match how:
        case "another key":
            after = {**state, "last": LISTS[2]}
        case "renamed":
            after = {"letters": LISTS[:3], "messages": state["messages"], "n": 1}
        case "appended":
            after = {**state, "messages": [*state["messages"], LISTS[2]]}
        case _:
            after = {**state, "n": {"draft": LISTS[49], "by": "me"}}
    log = Log()
    log.write(state)
    log.write(after)
    assert len(log.frames[2]) < 130
    assert any(isinstance(part, Copy) for change in said(log.frames[2]).changes for part in change.parts)
    log.check()


def test_a_patch_stays_quick_to_apply() -> None:
    """A patch has at most 256 copies, however many places changed."""
    many = messages(600)
    before = codec.write(None, {"messages": many}, 1, "data").state
    changed = codec.write(before, {"messages": [{**m, "id": -1} for m in many]}, 2, "data")
    [change] = said(changed.frame).changes
    assert sum(isinstance(part, Copy) for part in change.parts) <= MAX_COPIES


def test_changes_of_keys_are_stored_as_such() -> None:
    """A missing key is stored as a removal, a changed order as an order; neither repeats a text."""
    before = codec.write(None, {"a": 1, "b": "x" * 900, "c": 3}, 1, "data").state
    removed = said(codec.write(before, {"b": "x" * 900, "c": 3}, 2, "data").frame)
    assert (removed.changes, removed.removed, removed.order) == ([], ["a"], [])
    ordered = said(codec.write(before, {"c": 3, "b": "x" * 900, "a": 1}, 2, "data").frame)
    assert (ordered.changes, ordered.removed, ordered.order) == ([], [], ["c", "b", "a"])
    added = said(codec.write(before, {"a": 1, "b": "x" * 900, "c": 3, "d": 4}, 2, "data").frame)
    assert (added.changes, added.removed, added.order) == ([Change("d", 0, 0, [b"4"])], [], [])


def test_a_change_may_cut_a_character() -> None:
    """Texts are bytes: é and è share their first byte, and come back whole."""
    log = Log()
    log.write({"t": "x" * 128 + "é"})
    log.write({"t": "x" * 128 + "è"})
    assert said(log.frames[2]).changes == [Change("t", 130, 1, [b"\xa8"])]
    log.check()


@pytest.mark.parametrize(
    ("edits", "seen"),
    [
        ({"put": {"n": 2, "new": [1]}}, {"n": 0, "new": True}),
        ({"append": {"list": [4, 5], "other": [1]}}, {"list": 2, "other": True}),
        ({"cut": {"list": 2}}, {"list": -2}),
        ({"cut": {"list": 1}, "append": {"list": [7]}}, {"list": 0}),
        ({"cut": {"list": 3}}, {"list": -3}),
        ({"drop": ["n", "text"]}, {"n": None, "text": None}),
        ({"put": {"list": [1, 2, 3, 4]}, "drop": ["n"]}, {"n": None, "list": 1}),
        ({"put": {"n": 1}, "append": {"list": []}, "cut": {"list": 0}}, {}),
    ],
    ids=str,
)
def test_keys_are_changed_one_by_one(edits: dict[str, Any], seen: dict[str, Any]) -> None:
    """Puts, drops, appends and cuts change what they name and nothing else, and what changed is reported."""
    for filled in (3, 5000):
        log = Log()
        log.write({"n": 1, "list": [1, 2, 3], "text": "t" * 5000, "more": list(range(filled))})
        assert dict(log.change(**edits).changes) == seen
        log.check()


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ({"drop": ["gone"]}, "drop.gone"),
        ({"cut": {"list": 4}}, "cut.list"),
        ({"cut": {"list": -1}}, "cut.list"),
        ({"cut": {"list": True}}, "cut.list"),
        ({"cut": {"n": 1}}, "cut.n"),
        ({"cut": {"gone": 1}}, "cut.gone"),
        ({"append": {"n": [1]}}, "append.n"),
        ({"put": {"n": 2}, "drop": ["n"]}, "drop.n"),
        ({"put": {"list": [2]}, "append": {"list": [1]}}, "append.list"),
        ({"drop": ["list"], "cut": {"list": 1}}, "cut.list"),
        ({"put": {"n": {1}}}, "put.n"),
    ],
    ids=str,
)
def test_a_refused_change_names_the_argument_and_changes_nothing(edits: dict[str, Any], path: str) -> None:
    """The path names the argument and the key; the state stays as it was."""
    before = codec.write(None, {"n": 1, "list": [1, 2, 3]}, 1, "data").state
    with pytest.raises(InvalidInput) as refused:
        codec.change(before, codec.Edits(**edits), 2)
    assert refused.value.path == path
    assert before.value() == {"n": 1, "list": [1, 2, 3]}


def test_items_are_cut_from_a_long_list_without_reading_it() -> None:
    """However long the list, wherever its last base is, the right items go."""
    log = Log()
    log.write({"messages": LISTS * 5})
    dice = random.Random(1)
    for n in range(120):
        many = len(log.heads[-1][2]["messages"])
        log.change(
            cut={"messages": min(many, dice.choice([1, 2, 40]))}, append={"messages": LISTS[n : n + dice.randrange(30)]}
        )
    log.check(range(1, 121, 7))


def test_a_dict_that_looks_like_a_tag_stays_a_dict() -> None:
    """A caller's dict in the form of a tag stays a dict when tagged values are written or appended later."""
    log = Log()
    log.write({"v": {"$saveslot": ["bytes", "AAEC"]}, "$saveslot": ["bytes", "AAEC"], "list": []})
    log.append({"list": [b"x"]})
    log.write({**log.heads[-1][2], "n": 1})
    log.write({"v": log.heads[-1][2]["v"], "list": [1]})
    log.append({"list": [{"$saveslot": 2}]})
    log.check()
    assert exact(log.state.value()) == exact(log.heads[-1][2])


def test_nothing_changed_stores_nothing() -> None:
    """Writing the same state again stores no frame; the entry gets the same recipe and digest."""
    first = codec.write(None, {"a": [1, 2.0, None]}, 1, "data").state
    for again in (codec.write(first, {"a": [1, 2.0, None]}, 2, "data"), codec.append(first, {"a": []}, 2)):
        assert again.frame is None
        assert not again.changes
        assert (again.state.recipe, again.state.digest, again.state.tip) == (first.recipe, first.digest, 1)


def test_write_does_not_change_the_previous_state() -> None:
    """Two writes that build on the same state do not disturb each other."""
    before = codec.write(None, {"messages": LISTS}, 1, "data").state
    before = codec.append(before, {"messages": [1]}, 2).state  # its text is now one that can be changed in place
    kept = ({key: bytes(text) for key, text in before.texts.items()}, before.recipe, before.digest)
    frames = [codec.write(before, {"messages": [*LISTS, 1, n]}, 3, "data").frame for n in (2, 3, 2)]
    assert (before.texts, before.recipe, before.digest) == kept
    assert frames[0] == frames[2] != frames[1]


def turn(dice: random.Random, n: int) -> dict[str, Any]:
    """A turn of an agent, 1.5 KB, with nested tool calls and usage."""
    said = dice.randbytes(300).hex()
    call = {
        "id": dice.randbytes(8).hex(),
        "name": "search",
        "arguments": {"query": dice.randbytes(20).hex(), "limit": n},
    }
    items = [{"id": dice.randrange(10**6), "score": dice.random(), "title": dice.randbytes(30).hex()} for _ in range(4)]
    usage = {"input_tokens": dice.randrange(9000), "output_tokens": dice.randrange(900), "total": n}
    return {"role": "assistant", "content": said, "tool_calls": [{**call, "result": items}], "usage": usage}


def test_a_growing_list_is_stored_once_in_short_and_once_in_long_patches() -> None:
    """No keyframe comes of appending: the bytes of a turn do not depend on how many came before it."""
    log, dice = Log(), random.Random(1)
    log.write({"messages": []})
    sizes: list[int] = []
    for n in range(3000):
        log.append({"messages": [turn(dice, n)]})
        sizes.append(len(log.frames[log.seq - 1]))
    assert [seq for seq, frame in log.frames.items() if not frame[1] & PATCH] == [1]
    assert max(len(packed) for packed, _, _ in log.heads) <= 16
    per_turn = [sum(sizes[:count]) / count for count in (300, 1000, 3000)]
    assert max(per_turn) / min(per_turn) < 1.02
    log.check(range(1, 3000, 331))
    assert log.part(3000, None, {"messages": 20})["messages"] == log.heads[3000][2]["messages"][-20:]
    assert log.read_bases <= 3


def test_small_changes_of_a_large_state_make_no_chain() -> None:
    """A long patch under 4 KB is replaced by the next one, so a counter beside a large text stays cheap to read."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(100_000).hex(), "n": 0})
    for n in range(1000):
        log.change(put={"n": n})
    assert max(len(log.chain(seq)) for seq in range(1, log.seq)) == 2
    log.resume()
    log.change(put={"n": -1})
    log.check(range(1, log.seq, 111))


def test_a_large_change_is_a_long_patch_at_once() -> None:
    """What does not fit into a block is stored in blocks, and once only."""
    log, dice = Log(), random.Random(1)
    log.write({"notes": [], "ballast": dice.randbytes(300_000).hex()})
    log.append({"notes": ["small"]})
    log.change(put={"page": dice.randbytes(100_000).hex()})
    log.append({"notes": ["more"]})
    assert [frame[1] & LONG for frame in log.frames.values()] == [LONG, 0, LONG, 0]
    log.check()


@pytest.mark.parametrize("chains", [2, 8])
def test_chains_that_interleave_each_have_long_patches(chains: int) -> None:
    """32 short patches of one chain become a long one wherever they stand in the log; recipes stay short."""
    log, dice = Log(), random.Random(1)
    log.write({"messages": []})
    tips = [1] * chains
    for n in range(150 * chains):
        log.rollback(tips[n % chains])
        log.append({"messages": [turn(dice, n)]})
        tips[n % chains] = log.seq - 1
    assert sum(not frame[1] & PATCH for frame in log.frames.values()) == 1
    assert max(len(packed) for packed, _, _ in log.heads) <= 80
    assert [len(log.chain(tip)) for tip in tips] == [len(log.chain(tips[0]))] * chains
    log.check([1, *tips, *range(1, log.seq, 97)])


def test_a_keyframe_comes_when_more_is_dead_than_alive() -> None:
    """The frames of a state never weigh more than twice the state and 512 bytes."""
    log, dice = Log(), random.Random(1)
    log.write({"page": ""})
    for n in range(300):
        log.change(put={"page": dice.randbytes(2000).hex(), "n": n})
        recipe = log.state.recipe
        assert recipe.base_raw + recipe.short_raw <= 2 * recipe.weight + 512
    assert sum(not frame[1] & PATCH for frame in log.frames.values()) > 100
    log.check(range(1, log.seq, 17))


def test_what_nobody_needs_can_be_emptied() -> None:
    """Kept states are rebuilt when every frame that they do not need is gone: copies never name a frame."""
    dice = random.Random(3)
    log = Log()
    log.write({"messages": LISTS, "inbox": []})
    for n in range(300):
        match n % 4:
            case 0:
                log.append({"inbox": [turn(dice, n)]})
            case 1:
                log.change(put={"copy": log.heads[-1][2]["inbox"][-1], "last": LISTS[n % 200]})
            case 2:
                log.append({"messages": [log.heads[-1][2]["copy"]]})
            case _:
                log.change(drop=["copy"], cut={"inbox": 1})
    kept = {5, 40, 171, 203, 301}
    log.thin(kept)
    log.check(kept)
    log.resume()
    for _ in range(40):
        log.append({"messages": [turn(dice, 0)]})
    log.check([*kept, log.seq - 1])


def test_long_patches_follow_every_kind_of_change() -> None:
    """Keys that are added, removed, added again and reordered between two long patches are right in all of them."""
    choice = random.Random(5)
    ballast = {f"k{n}": choice.randbytes(2000).hex() for n in range(20)}
    value: dict[str, Any] = dict(ballast)
    log = Log()
    for n in range(400):
        key = choice.choice(list(ballast))
        match choice.randrange(5):
            case 0:
                value.pop(key, None)
            case 1:
                value = {key: value.get(key, "back"), **{k: v for k, v in value.items() if k != key}}
            case 2:
                value[key] = f"{value.get(key, '')[:200]}{n}{ballast[key][-200:]}"
            case 3:
                value[f"new{n % 7}"] = [n]
            case _:
                value["list"] = [*value.get("list", []), n]
        log.write(dict(value))
        if n % 37 == 0:
            log.resume()
        if n % 71 == 70:
            log.rollback(choice.randrange(1, log.seq))
            value = dict(log.heads[-1][2])
    log.check()
    assert any(len(log.chain(seq)) > 1 for seq in range(log.seq))


def test_ranges_span_other_entries_but_not_rollbacks() -> None:
    """A patch on the newest frame extends the range, one after a rollback starts a range."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(3000).hex(), "n": 0})
    base = log.heads[-1][2]
    log.other()
    log.write({**base, "n": 1})
    log.other()
    log.write({**base, "n": 7})
    assert (log.state.recipe.base, log.state.recipe.ranges) == (1, ((3, 5),))
    log.rollback(1)
    log.write({**base, "n": 2})
    assert (log.state.recipe.base, log.state.recipe.ranges) == (1, ((7, 7),))
    for n in range(80):
        log.rollback(log.seq - 1)
        log.write({**base, "n": n})
    log.check()
    assert max(log.recipe(seq).short for seq in range(log.seq)) == MAX_SHORT


def test_a_cold_state_never_extends_a_range() -> None:
    """If the newest frame is not known, a new range starts: the safe choice."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(3000).hex(), "n": 0})
    log.state = log.read(1)
    assert log.state.tip == 0
    log.write({**log.heads[-1][2], "n": 1})
    assert (log.state.recipe.base, log.state.recipe.ranges) == (1, ((2, 2),))
    log.check()


LONGEST = {"first": 0, "between": 2, "last": 5}


@pytest.mark.parametrize("where", LONGEST)
def test_a_large_keyframe_with_keys_and_texts_of_all_lengths(where: str) -> None:
    """Whatever precedes and follows the longest text, all come back equal, and each grows without the others."""
    dice = random.Random(1)
    sizes = [0, 40, 300, 70_000, 66_000]
    sizes.insert(LONGEST[where], 200_000)
    keys = ["", "k" * 20, "é" * 16, "k" * 300, "k" * 70_000, "n"]
    value = {key: [dice.randbytes(size // 2).hex()] for key, size in zip(keys, sizes, strict=True)}
    first = codec.write(None, value, 1, "data")
    assert first.frame is not None
    assert len(first.frame) > 128 * 1024  # so that it has several zstd blocks
    recipe, digest = first.state.recipe, first.state.digest
    rebuilt = codec.rebuild([first.frame], digest, "it", recipe, [1])
    assert rebuilt.value() == value
    assert list(rebuilt.value()) == keys
    rebuilt.tip = 1
    more = codec.append(rebuilt, {key: ["more"] for key in keys}, 2)
    assert more.frame is not None
    grown = codec.rebuild([first.frame, more.frame], more.state.digest, "it").value()
    assert grown == {key: [*items, "more"] for key, items in value.items()} == more.state.value()
