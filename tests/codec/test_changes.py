"""What changed is stored, and adds up again: through writes, appends, rollbacks and limits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from saveslot import codec
from saveslot.codec.frame import PATCH, unpack
from saveslot.codec.state import (
    ANCHOR,
    MAX_BASE,
    MAX_RANGES,
    MAX_SHORT,
    MAX_SPLICES,
    Order,
    Remove,
    Splice,
    _unpack_ops,  # pyright: ignore[reportPrivateUsage]
    common_ends,
)
from saveslot.errors import Corrupt

# Words long and short, equal and alike, cut inside characters when their ends are compared.
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


class Log:
    """The entries of one session as a manager would keep them: frames, recipes, digests by seq."""

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.heads: list[tuple[bytes, bytes, Any]] = [(b"", b"", {})]  # recipe, digest, what must come back
        self.state = codec.State()

    @property
    def seq(self) -> int:
        return len(self.heads)

    def take(self, written: codec.Written, value: Any) -> None:
        if written.frame is not None:
            self.frames[self.seq] = written.frame
        self.state = written.state
        self.heads.append((self.state.recipe.pack(), self.state.digest, value))

    def write(self, value: dict[str, Any]) -> None:
        self.take(codec.write(self.state, value, self.seq, "data"), value)

    def append(self, items: dict[str, list[Any]]) -> None:
        value = dict(self.heads[-1][2])
        for key, more in items.items():
            value[key] = value.get(key, []) + more
        self.take(codec.append(self.state, items, self.seq), value)

    def other(self) -> None:
        """An entry of another kind, with a frame on a track of its own."""
        self.heads.append(self.heads[-1])

    def read(self, seq: int) -> codec.State:
        packed, digest, _ = self.heads[seq]
        recipe = codec.Recipe.unpack(packed)
        frames = [frame for at, frame in sorted(self.frames.items()) if recipe.holds(at)]
        assert len(frames) == recipe.frames
        assert (recipe.base <= MAX_BASE, recipe.short <= MAX_SHORT, len(recipe.ranges) <= MAX_RANGES) == (True,) * 3
        assert [len(frames[0])] == [recipe.keyframe_bytes] if frames else True
        assert sum(map(len, frames[1 : recipe.base])) == recipe.long_bytes
        assert sum(map(len, frames[recipe.base :])) == recipe.short_bytes
        return codec.rebuild(frames, digest, "it", recipe)

    def rollback(self, seq: int) -> None:
        """A new entry with an old recipe; the next one builds on a state read back."""
        self.state = self.read(seq)
        self.state.tip = self.seq
        self.heads.append(self.heads[seq])

    def resume(self) -> None:
        """Another process goes on from the head."""
        tip = self.state.tip
        self.state = self.read(self.seq - 1)
        self.state.tip = tip

    def check(self) -> None:
        for seq, (_, _, value) in enumerate(self.heads):
            assert shown(self.read(seq).value()) == shown(value)


def shown(value: Any) -> str:
    return repr(value)  # tells 1, 1.0 and True apart, and shows the order of keys


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
    """Whatever was written, appended and rolled back, each entry gives back what it held, from its recipe alone."""
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
    """Items of a long list edited, removed, repeated, mixed and added anywhere: the patch makes the new of the old."""
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
    """The bytes said to be shared are, and the next ones are not."""
    a, b = front + old + back, bytearray(front + new + back)
    ahead, behind = common_ends(a, b)
    assert a[:ahead] == b[:ahead]
    assert a[len(a) - behind :] == b[len(b) - behind :]
    limit = min(len(a), len(b))
    assert ahead + behind <= limit
    assert ahead == limit or a[ahead] != b[ahead]
    assert ahead + behind == limit or a[-behind - 1] != b[-behind - 1]


def ops(frame: bytes | None) -> list[Any]:
    assert frame is not None
    assert frame[1] & PATCH
    return _unpack_ops(unpack(frame).body)


def messages(count: int) -> list[dict[str, Any]]:
    dice = random.Random(count)
    return [{"role": "user", "content": dice.randbytes(300).hex(), "id": n} for n in range(count)]


LISTS = messages(200)


@pytest.mark.parametrize(
    ("name", "after", "splices"),
    [
        ("one more", [*LISTS, {"role": "user", "content": "hi"}], 1),
        ("first edited, one more", [{**LISTS[0], "content": "edited"}, *LISTS[1:], {"role": "user"}], 2),
        ("oldest dropped, one more", [LISTS[0], *LISTS[4:], {"role": "user"}], 2),
        ("summed up", [{"summary": "so far " * 20}, *LISTS[150:], {"role": "user"}], 2),
        ("three edited", [{**m, "id": -1} if m["id"] in (3, 90, 180) else m for m in LISTS], 3),
        ("two moved", [*LISTS[2:], *LISTS[:2]], 2),
    ],
)
def test_only_what_changed_is_stored(name: str, after: list[Any], splices: int) -> None:
    """Distant changes of one long list are stored each by itself, not with all that stands between them."""
    before = codec.write(None, {"messages": LISTS, "n": 1}, 1, "data").state
    for wrap in (lambda v: {"messages": v, "n": 1}, lambda v: {"n": 2, "graph": {"turn": len(v), "messages": v}}):
        before = codec.write(None, wrap(LISTS), 1, "data").state
        written = codec.write(before, wrap(after), 2, "data")
        assert len(ops(written.frame)) <= splices + 2
        assert written.frame is not None
        assert len(written.frame) < (2200 if name == "two moved" else 700)


def test_a_patch_stays_quick_to_apply() -> None:
    """However many places of a text changed, it gets at most 16 splices."""
    after = [{**m, "id": -1} for m in LISTS]
    before = codec.write(
        None, {"messages": LISTS, "ballast": random.Random(1).randbytes(200_000).hex()}, 1, "data"
    ).state
    changed = codec.write(before, {"messages": after, "ballast": before.value()["ballast"]}, 2, "data")
    assert len(ops(changed.frame)) == MAX_SPLICES


def test_changes_of_keys_are_stored_as_such() -> None:
    """A key taken away is a removal, a changed order is an order, and neither repeats a text."""
    before = codec.write(None, {"a": 1, "b": "x" * 900, "c": 3}, 1, "data").state
    assert ops(codec.write(before, {"b": "x" * 900, "c": 3}, 2, "data").frame) == [Remove("a")]
    assert ops(codec.write(before, {"c": 3, "b": "x" * 900, "a": 1}, 2, "data").frame) == [Order(["c", "b", "a"])]
    assert ops(codec.write(before, {"a": 1, "b": "x" * 900, "c": 3, "d": 4}, 2, "data").frame) == [
        Splice("d", 0, 0, b"4")
    ]


def test_a_splice_may_cut_a_character() -> None:
    """Texts are bytes: é and è share their first byte, and come back whole."""
    log = Log()
    log.write({"t": "x" * ANCHOR + "é"})
    log.write({"t": "x" * ANCHOR + "è"})
    assert ops(log.frames[2]) == [Splice("t", ANCHOR + 2, 1, b"\xa8")]
    log.check()


def test_what_looks_like_a_tag_stays_what_it_is() -> None:
    """A caller's dict that looks like ours is not mistaken when tagged values come later, written or appended."""
    log = Log()
    log.write({"v": {"$saveslot": ["bytes", "AAEC"]}, "$saveslot": ["bytes", "AAEC"], "list": []})
    log.append({"list": [b"x"]})
    log.write({**log.heads[-1][2], "n": 1})
    log.write({"v": log.heads[-1][2]["v"], "list": [1]})
    log.append({"list": [{"$saveslot": 2}]})
    log.check()
    assert shown(log.state.value()) == shown(log.heads[-1][2])


def test_nothing_changed_stores_nothing() -> None:
    """The same state again has no frame, and its entry the same recipe and digest."""
    first = codec.write(None, {"a": [1, 2.0, None]}, 1, "data").state
    for again in (codec.write(first, {"a": [1, 2.0, None]}, 2, "data"), codec.append(first, {"a": []}, 2)):
        assert again.frame is None
        assert (again.state.recipe, again.state.digest, again.state.tip) == (first.recipe, first.digest, 1)


def test_write_leaves_the_state_before_as_it_is() -> None:
    """Two writes that build on the same state do not disturb each other."""
    before = codec.write(None, {"messages": LISTS}, 1, "data").state
    before = codec.append(before, {"messages": [1]}, 2).state  # its text is now one that can be changed in place
    kept = ({key: bytes(text) for key, text in before.texts.items()}, before.recipe, before.digest)
    frames = [codec.write(before, {"messages": [*LISTS, 1, n]}, 3, "data").frame for n in (2, 3, 2)]
    assert (before.texts, before.recipe, before.digest) == kept
    assert frames[0] == frames[2] != frames[1]


def test_few_frames_rebuild_any_state() -> None:
    """A long patch takes the place of 32 short ones; after 24 frames that stay, a keyframe starts anew."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(100_000).hex(), "list": []})
    for n in range(1700):
        log.append({"list": [n]})
    keyframes = [seq for seq, frame in log.frames.items() if not frame[1] & PATCH]
    span = MAX_BASE * (MAX_SHORT + 1)
    assert [b - a for a, b in pairwise(keyframes)] == [span, span]
    assert log.read(span).recipe.frames == MAX_BASE + MAX_SHORT
    log.resume()
    assert log.state.value()["list"] == list(range(1700))


def test_long_patches_follow_every_kind_of_change() -> None:
    """Keys that come, go, come back and change their places between two long patches are right in all of them."""
    choice = random.Random(5)
    ballast = {f"k{n}": choice.randbytes(300).hex() for n in range(20)}
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
    assert any(codec.Recipe.unpack(packed).base > 2 for packed, _, _ in log.heads)


def test_patches_never_weigh_more_than_two_keyframes() -> None:
    """When the patches would weigh twice as much as the keyframe, a new keyframe is written."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(2000).hex(), "list": []})
    for n in range(100):
        log.append({"list": [random.Random(n).randbytes(200).hex()]})
    for packed, _, _ in log.heads[1:]:
        recipe = codec.Recipe.unpack(packed)
        assert recipe.long_bytes + recipe.short_bytes < 2 * recipe.keyframe_bytes
    assert sum(1 for frame in log.frames.values() if not frame[1] & PATCH) > 1
    log.check()


def test_ranges_reach_over_other_entries_but_not_over_rollbacks() -> None:
    """Going on from the newest frame prolongs the range; going on from a rollback opens one; there is a most."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(3000).hex(), "n": 0})
    base = log.heads[-1][2]
    log.other()
    log.write({**base, "n": 1})
    log.other()
    log.write({**base, "n": 7})
    assert log.state.recipe.ranges == ((1, 1), (3, 5))
    log.rollback(1)
    log.write({**base, "n": 2})
    assert log.state.recipe.ranges == ((1, 1), (7, 7))
    for n in range(40):
        log.rollback(log.seq - 1)
        log.write({**base, "n": n})
    log.check()
    assert max(len(codec.Recipe.unpack(packed).ranges) for packed, _, _ in log.heads) == MAX_RANGES


def test_a_cold_state_never_prolongs_a_range() -> None:
    """Without knowing the newest frame, a new range is opened: the safe choice."""
    log = Log()
    log.write({"ballast": random.Random(1).randbytes(3000).hex(), "n": 0})
    log.state = log.read(1)
    assert log.state.tip == 0
    log.write({**log.heads[-1][2], "n": 1})
    assert log.state.recipe.ranges == ((1, 1), (2, 2))
    log.check()


gaps = st.integers(1, 2**40)
weights = st.integers(0, 2**40)


@given(
    st.lists(gaps, min_size=1, max_size=MAX_BASE),
    st.lists(st.tuples(gaps, st.integers(0, 3)), max_size=MAX_RANGES - MAX_BASE),
    st.tuples(weights, weights, weights),
)
def test_a_recipe_comes_back(base: list[int], short: list[tuple[int, int]], told: tuple[int, int, int]) -> None:
    """Ranges of seqs of any size, frames and weights survive packing."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for gap, length in [*((gap, 0) for gap in base), *short]:
        ranges.append((at + gap, at + gap + length))
        at = ranges[-1][1]
    recipe = codec.Recipe(tuple(ranges), len(base), sum(length + 1 for _, length in short), *told)
    assert codec.Recipe.unpack(recipe.pack()) == recipe


@pytest.mark.parametrize(
    "numbers",
    [
        [], [1], [1, 0, 5, 0, 0], [1, 0, 5, 0, 0, 1], [1, 0, 5, 0, 0, 1, 0, 1],
        [0, 0, 5, 0, 0, 1, 0], [2, 0, 5, 0, 0, 1, 0], [1, 0, 5, 0, 0, 1, 1], [1, 1, 5, 0, 0, 1, 0],
        [1, 0, 5, 0, 0, 1, 0, 1, 0], [1, 33, 5, 0, 0, 1, 0, 1, 127], [1, 3, 5, 0, 0, 1, 0, 1, 1],
        [1, 0, 5, 0, 0, 0, 0], [1, 1, 5, 0, 0, 1, 0, 0, 5], [1, 0, 5, 0, 0, 2**63, 0], [1, 1, 5, 0, 0, 9, 0, -1, 0],
        [25, 0, 5, 0, 0, *[1, 0] * 25], [1, 32, 5, 0, 0, *[1, 0] * 33],
        [1, 0, 5.0, 0, 0, 1, 0], [1, 0, None, 0, 0, 1, 0], [[1, 0, 5, 0, 0, 1, 0]], 1, "1000000", {},
    ],
    ids=repr,
)  # fmt: skip
def test_a_recipe_that_cannot_be_is_corrupt(numbers: Any) -> None:
    """Cut short, no frames or too many, entry 0, ranges that do not go forward, numbers beyond any seq, or none."""
    with pytest.raises(Corrupt):
        codec.Recipe.unpack(msgspec.msgpack.encode(numbers))


@pytest.mark.parametrize("packed", ["ff", "97", "97 01 00 05 00 00 01", "97 01 00 05 00 00 01 00 00", "dd ff ff ff ff"])
def test_a_recipe_that_was_cut_is_corrupt(packed: str) -> None:
    """Bytes that are no list of numbers, or more than one, name no frames."""
    with pytest.raises(Corrupt):
        codec.Recipe.unpack(bytes.fromhex(packed))


LONGEST = {"first": 0, "between": 2, "last": 5}


@pytest.mark.parametrize("where", LONGEST)
def test_a_large_keyframe_with_keys_and_texts_of_all_lengths(where: str) -> None:
    """Whatever stands before and behind the longest text, all come back equal, and each grows without the others."""
    dice = random.Random(1)
    sizes = [0, 40, 300, 70_000, 66_000]
    sizes.insert(LONGEST[where], 200_000)
    keys = ["", "k" * 20, "é" * 16, "k" * 300, "k" * 70_000, "n"]
    value = {key: [dice.randbytes(size // 2).hex()] for key, size in zip(keys, sizes, strict=True)}
    first = codec.write(None, value, 1, "data")
    assert first.frame is not None
    assert len(first.frame) > 128 * 1024  # so that it is unpacked bit by bit
    recipe, digest = first.state.recipe, first.state.digest
    rebuilt = codec.rebuild([first.frame], digest, "it", recipe)
    assert rebuilt.value() == value
    assert list(rebuilt.value()) == keys
    rebuilt.tip = 1
    more = codec.append(rebuilt, {key: ["more"] for key in keys}, 2)
    assert more.frame is not None
    grown = codec.rebuild([first.frame, more.frame], more.state.digest, "it").value()
    assert grown == {key: [*items, "more"] for key, items in value.items()} == more.state.value()
