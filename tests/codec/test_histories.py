"""Random histories: every kept state is rebuilt equal, whole and in parts; damage never gives wrong data."""

from __future__ import annotations

import random
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from saveslot import codec
from saveslot.codec.excerpt import Excerpt, Header, Scattered, Wanting, excerpt
from saveslot.codec.frame import PATCH, chained, pack, unpack
from saveslot.errors import Corrupt, InvalidInput

from .logs import Log, exact

WORDS = [random.Random(0).randbytes(3).hex() for _ in range(500)]


class Story:
    """Steps of one history, chosen by dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.log = Log()
        few = dice.random() < 0.7
        self.log.write(
            {"messages": [], "n": 0} if few else {"ballast": self.prose(3000), "messages": self.messages(200)}
        )

    def prose(self, count: int) -> str:
        return " ".join(self.dice.choices(WORDS, k=count))

    def messages(self, most: int) -> list[Any]:
        return [self.message() for _ in range(self.dice.randrange(most))]

    def message(self) -> Any:
        dice = self.dice
        calls = [{"name": "search", "score": dice.random()}] * dice.randrange(3)
        return {"id": dice.randbytes(8).hex(), "content": self.prose(dice.choice([2, 30, 200])), "calls": calls}

    def step(self) -> None:
        dice, log = self.dice, self.log
        match dice.randrange(20):
            case 0 | 1:
                log.rollback(dice.randrange(1, log.seq))
            case 2:
                log.resume()
            case 3:
                log.other()
            case 4 | 5 | 6:
                log.write(self.edited())
            case 7 | 8 | 9:
                self.change()
            case _:
                key = "messages" if dice.random() < 0.8 else dice.choice("xyz")
                if isinstance(log.heads[-1][2].get(key, []), list):
                    log.append({key: [self.message() for _ in range(dice.choice([0, 1, 1, 1, 2, 30]))]})

    def edited(self) -> dict[str, Any]:
        dice, value = self.dice, dict(self.log.heads[-1][2])
        for _ in range(dice.choice([1, 1, 3])):
            key = dice.choice([*value, "new"])
            match dice.randrange(7):
                case 0:
                    value.pop(key, None)
                case 1:
                    value[key] = dice.choice(
                        [None, 1, True, b"x", self.prose(4), [self.message()], {"a": self.message()}]
                    )
                case 2 if key in value:
                    value[f"renamed{dice.randrange(5)}"] = value.pop(key)
                case 3:
                    value = {key: value.get(key), **{name: item for name, item in value.items() if name != key}}
                case 4 if isinstance(value.get(key), str):
                    value[key] = value[key][:50] + "EDIT" + value[key][60:]
                case 5:
                    value["copy"] = value.get(key)
                case _ if isinstance(value.get(key), list) and value[key]:
                    value[key] = self.rearranged(list(value[key]))
                case _:
                    value[key] = dice.randrange(9)
        return value

    def rearranged(self, items: list[Any]) -> list[Any]:
        at = self.dice.randrange(len(items))
        match self.dice.randrange(5):
            case 0:
                del items[at : at + self.dice.randrange(9)]
            case 1:
                items[at] = self.message()
            case 2:
                items.insert(at, self.message())
            case 3:
                items[at:at] = items[:5]
            case _:
                items = items[at:] + items[:at]
        return items

    def change(self) -> None:
        dice, value, edits = self.dice, self.log.heads[-1][2], dict[str, Any]()
        keys = dice.sample(list(value), len(value))
        if dice.random() < 0.5:
            key = keys.pop() if keys and dice.random() < 0.6 else f"put{dice.randrange(9)}"
            edits["put"] = {key: dice.choice([1, self.prose(9), [self.message()], value.get("messages")])}
            keys = [other for other in keys if other != key]
        if keys and dice.random() < 0.3:
            edits["drop"] = [keys.pop()]
        for key in keys:
            if isinstance(value[key], list):
                edits["cut"] = {key: min(len(value[key]), dice.choice([0, 1, 2, 50, 500]))}
                if dice.random() < 0.5:
                    edits["append"] = {key: [self.message()]}
                break
        self.log.change(**edits)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from([20, 100, 250]))
def test_every_survivor_of_a_random_history_is_rebuilt(dice: random.Random, steps: int) -> None:
    """Appends, edits, moves, renames, drops, rollbacks, interleaved chains; then all but a few entries are emptied."""
    story = Story(random.Random(dice.getrandbits(32)))
    for _ in range(steps):
        story.step()
    log = story.log
    chosen = [seq for seq in range(log.seq) if story.dice.random() < 0.3] + [log.seq - 1]
    log.check(chosen)
    kept = {seq for seq in chosen if story.dice.random() < 0.3}
    log.thin(kept)
    log.check(kept)
    # A survivor can stand on itself from then on, whatever it stood on.
    for seq in kept:
        alone = codec.write(None, log.read(seq).value(), 1, "data")
        assert alone.frame is not None
        assert exact(codec.rebuild([alone.frame], alone.state.digest, "it").value()) == exact(log.heads[seq][2])


def whole(log: Log, seq: int) -> Any:
    return log.read(seq).value()


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_no_flipped_bit_gives_wrong_data(seed: int) -> None:
    """In frames, recipes, bases and digests of stored rows: `Corrupt`, or the right data if it was not needed."""
    story = Story(random.Random(seed))
    for _ in range(80):
        story.step()
    log, dice = story.log, story.dice
    seq = log.seq - 1
    value, frames, heads, bases = log.heads[seq][2], dict(log.frames), list(log.heads), dict(log.bases)
    lists = {key: 3 for key, item in value.items() if isinstance(item, list)}
    ends = excerpt(log.read(seq), None, lists)
    for _ in range(60):
        log.frames, log.heads, log.bases = dict(frames), list(heads), dict(bases)
        packed, digest, _ = log.heads[seq]
        at = dice.choice(log.seqs(seq) or [1])
        match dice.randrange(4):
            case 0:
                log.frames[at] = flipped(frames[at], dice)
            case 1:
                log.heads[seq] = (flipped(packed, dice), digest, value)
            case 2:
                log.bases[at] ^= 1 << dice.randrange(8)
            case _:
                packed, digest, old = log.heads[at]
                log.heads[at] = (packed, flipped(digest, dice), old)
        for read, expected in (
            (whole, value),
            (lambda log, seq: log.part(seq, None, lists), ends),
        ):
            with suppress(Corrupt, AssertionError, KeyError):  # the harness' own: a frame it cannot find
                assert exact(read(log, seq)) == exact(expected) or pytest.fail(f"{seed}: wrong data")


def flipped(data: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(data)
    if damaged:
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
    return bytes(damaged)


KEYS = st.sampled_from(["a", "b", "list", "n", "new"])
COUNT = st.integers(0, 12) | st.integers(0, 2**28) | st.just(17_361)
PART = COUNT | st.binary(max_size=5) | st.tuples(KEYS, COUNT, COUNT)
CHANGE = st.tuples(KEYS, COUNT, COUNT, st.lists(PART, max_size=4)) | st.tuples(
    KEYS, COUNT, COUNT, st.lists(PART, max_size=4), st.lists(COUNT, max_size=4)
)
HEAD = st.tuples(
    st.lists(CHANGE, max_size=4),
    st.lists(KEYS, max_size=2),
    st.lists(KEYS, max_size=5),
    st.lists(COUNT, max_size=3),
    st.binary(max_size=48),
    st.lists(st.tuples(KEYS, COUNT, COUNT), max_size=4),
)


@settings(max_examples=400)
@given(
    st.lists(HEAD, min_size=1, max_size=4), st.lists(st.lists(CHANGE, max_size=3), max_size=3), st.binary(max_size=40)
)
def test_forged_frames_are_corrupt_or_give_a_value(heads: list[Any], shorts: list[Any], blocks: bytes) -> None:
    """Heads with impossible ranges, blocks, tables and marks, under matching digests, cost no time and no memory."""
    first = codec.write(None, {"a": "text", "b": 1, "list": [1, 2, 3], "n": {}}, 1, "data")
    assert first.frame is not None
    frames = [first.frame]
    frames += [pack(msgspec.msgpack.encode(head), patch=True, tagged=False, blocks=[blocks or b"x"]) for head in heads]
    frames += [pack(msgspec.msgpack.encode([short]), patch=True, tagged=False) for short in shorts]
    digests = [b""]
    for frame in frames:
        digests.append(chained(digests[-1], frame))
    seqs = range(1, len(frames) + 1)
    base, short = 1 + len(heads), len(shorts)
    raw = sum(len(unpack(frame).body) for frame in frames[base:])
    recipe = codec.Recipe(base, ((base + 1, base + short),) if short else (), short, 0, raw, 2**20)
    started = time.process_time()
    tracemalloc.start()
    try:
        with suppress(Corrupt):
            codec.rebuild(frames, digests[-1], "it").value()
        with suppress(Corrupt):
            codec.rebuild(frames, digests[-1], "it", recipe, list(seqs))
        for keys, last in ((None, {}), (["a", "new"], {}), (None, {"list": 2, "a": 1})):
            with suppress(Corrupt, InvalidInput, Scattered):
                found = Excerpt(
                    recipe,
                    digests[-1],
                    "it",
                    {seq: Header(seq - 1, digests[seq]) for seq in seqs[:base]},
                    frames[base:],
                )
                for _ in range(20):
                    try:
                        found.value(keys, last)
                        break
                    except Wanting as wanting:
                        for seq in wanting.seqs:
                            found.add(seq, frames[seq - 1])
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 5


def test_a_chain_of_forged_copies_takes_no_time() -> None:
    """Copies of copies of copies, each of them a thousand times: the work is limited, whatever they claim."""
    first = codec.write(None, {"a": "x" * 2000}, 1, "data")
    assert first.frame is not None
    frames = [first.frame]
    for _ in range(6):
        parts = [["a", n % 1000, 2] for n in range(1000)]
        frames.append(pack(msgspec.msgpack.encode([[["a", 0, 0, parts]]]), patch=True, tagged=False))
    digests = [b""]
    for frame in frames:
        digests.append(chained(digests[-1], frame))
    assert all(frame[1] & PATCH for frame in frames[1:])
    recipe = codec.Recipe(1, ((2, 7),), 6, 0, sum(len(unpack(frame).body) for frame in frames[1:]), 2**20)
    started = time.process_time()
    with suppress(Corrupt, Scattered):
        found = Excerpt(recipe, digests[-1], "it", {1: Header(0, digests[1])}, frames[1:])
        try:
            found.value(["a"], {})
        except Wanting:
            found.add(1, frames[0])
            found.value(["a"], {})
    assert time.process_time() - started < 10


def test_a_part_of_many_copies_costs_no_more_than_the_whole() -> None:
    """The end of a list that stands in copies of copies is read as quickly as all of it, or given up as soon."""
    dice = random.Random(1)
    items = [dice.randbytes(450).hex() for _ in range(30)]
    log = Log()
    log.write({"m": [dice.randbytes(20_000).hex(), *items]})
    for _ in range(25):
        log.write({"m": [*log.heads[-1][2]["m"], *(item for _ in range(8) for item in dice.sample(items, 30))]})
    seq = log.seq - 1
    assert log.recipe(seq).short == 25
    started = time.process_time()
    assert whole(log, seq)["m"] == log.heads[seq][2]["m"]
    taken, started = time.process_time() - started, time.process_time()
    with suppress(Scattered):
        assert log.part(seq, None, {"m": 3})["m"] == log.heads[seq][2]["m"][-3:]
    assert time.process_time() - started < 2 * taken + 0.3
