"""Damaged bytes raise `Corrupt`: never wrong data, another error or exhausted memory."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from saveslot import codec
from saveslot.codec.frame import (
    DICTIONARY,
    LONG,
    MAX_RAW,
    PATCH,
    TAGGED,
    VERSION,
    VERSION_2,
    ZSTD,
    add_checksum,
    chained,
    dictionary,
    pack,
    unpack,
)
from saveslot.codec.text import TAG
from saveslot.errors import Corrupt
from saveslot.values.recipe import varint

from .another_zstd import zstd

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "and", "runs", "away", "from", "them", "all"]


def prose(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def keyframe(*, tagged: bool = False, **texts: bytes) -> bytes:
    return pack(
        msgspec.msgpack.encode([[[key, 0, 0, [text]] for key, text in texts.items()]]), patch=False, tagged=tagged
    )


def old_keyframe(**texts: bytes) -> bytes:
    """A keyframe of format 1."""
    return pack(msgspec.msgpack.encode(texts), patch=False, tagged=False, version=VERSION)


def story() -> tuple[list[bytes], bytes]:
    """A keyframe with a block, and patches: raw, by zstd with and without the dictionary, tagged; keys moved."""
    first = {"a": prose(1, 3000), "list": [1, 2], "gone": None, "n": 1}
    versions: list[dict[str, Any]] = [
        {**first, "n": 2},
        {**first, "n": 3, "b": prose(2, 60)},
        {**first, "n": 3, "b": prose(2, 1200)},
        {"list": [{"at": datetime(2026, 1, 2, tzinfo=UTC), "raw": b"\0", "id": UUID(int=7)}], "a": first["a"], "n": 4},
    ]
    written = codec.write(None, first, 1, "data")
    frames = [written.frame]
    for seq, value in enumerate(versions, 2):
        written = codec.write(written.state, value, seq, "data")
        frames.append(written.frame)
    items = [frame for frame in frames if frame is not None]
    small = PATCH | ZSTD | DICTIONARY
    assert [frame[1] for frame in items] == [LONG, PATCH, small, PATCH | ZSTD, small | TAGGED]
    return items, written.state.digest


FRAMES, DIGEST = story()


# The same without compression, so that damage reaches the content.
def bare(frame: bytes) -> bytes:
    found = unpack(frame)
    start = bytes((VERSION_2, frame[1] & (PATCH | TAGGED | LONG))) + varint(len(found.body))
    return start + varint(len(found.body)) * found.long + found.body + frame[found.end :]


BARE = [bare(frame) for frame in FRAMES]


def test_an_undamaged_story_is_read() -> None:
    """The bytes that the tests below damage are good."""
    assert codec.rebuild(FRAMES, DIGEST, "it").value()["n"] == 4
    assert taken(BARE) == codec.rebuild(FRAMES, DIGEST, "it").value()


def test_any_changed_byte_is_noticed() -> None:
    """If any byte of any frame is changed, nothing is returned."""
    dice = random.Random(1)
    for n, frame in enumerate(FRAMES):
        for at in range(0, len(frame), max(1, len(frame) // 300)):
            damaged = bytearray(frame)
            damaged[at] ^= dice.randrange(1, 256)
            with pytest.raises(Corrupt, match=r"^it: "):
                codec.rebuild([*FRAMES[:n], bytes(damaged), *FRAMES[n + 1 :]], DIGEST, "it")


OTHER = codec.write(None, {"a": "another session"}, 1, "data")
ARRANGED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "one missing": lambda f: f[:2] + f[3:],
    "the last missing": lambda f: f[:-1],
    "the keyframe missing": lambda f: f[1:],
    "all missing": lambda _: [],
    "one twice": lambda f: [*f[:2], f[1], *f[2:]],
    "two swapped": lambda f: [f[0], f[2], f[1], *f[3:]],
    "one too many": lambda f: [*f, f[-1]],
    "a foreign keyframe": lambda f: [OTHER.frame or b"", *f[1:]],
    "a foreign frame between": lambda f: [*f[:2], OTHER.frame or b"", *f[2:]],
    "cut short": lambda f: [*f[:-1], f[-1][:-1]],
    "longer": lambda f: [*f[:-1], f[-1] + b"\0"],
    "empty": lambda f: [*f[:-1], b""],
    "moved from one to the next": lambda f: [f[0] + f[1][:1], f[1][1:], *f[2:]],
}


@pytest.mark.parametrize("how", ARRANGED)
def test_rearranged_frames_are_noticed(how: str) -> None:
    """Intact frames must also be the ones that were written, in order."""
    with pytest.raises(Corrupt):
        codec.rebuild(ARRANGED[how](FRAMES), DIGEST, "it")


@pytest.mark.parametrize(
    "how", sorted(set(ARRANGED) - {"all missing", "the last missing", "one missing", "one too many"})
)
def test_rearranged_frames_with_a_matching_digest_are_refused_if_they_do_not_fit(how: str) -> None:
    """A patch without a keyframe, a keyframe in the middle and a splice that does not fit are refused by themselves."""
    frames = ARRANGED[how](FRAMES)
    digest = b""
    for frame in frames:
        digest = chained(digest, frame)
    try:
        codec.rebuild(frames, digest, "it").value()
    except Corrupt:
        return
    assert how in {"one twice", "two swapped", "a foreign keyframe", "a foreign frame between"}


def taken(frames: list[bytes]) -> Any:
    """What the frames add up to when every digest is right; `Corrupt` is the only error there may be."""
    state = codec.State()
    try:
        for frame in frames:
            state.apply(frame)
        return state.value()
    except Corrupt:
        if state.digest == b"":
            assert state.texts == {}
        return None


def test_damage_below_a_matching_digest_is_corrupt_or_harmless() -> None:
    """Every byte of every frame, changed in many ways, with digests to match: a value comes back, or `Corrupt`."""
    dice = random.Random(2)
    for story in (FRAMES, BARE):
        for n, frame in enumerate(story):
            for at in [*range(min(len(frame), 120)), *dice.sample(range(len(frame)), min(len(frame), 120))]:
                for change in (0x00, 0x7F, 0x80, 0xFF, frame[at] ^ (1 << dice.randrange(8)), dice.randrange(256)):
                    damaged = bytearray(frame)
                    damaged[at] = change
                    taken([*story[:n], bytes(damaged), *story[n + 1 :]])


small = st.integers(-3, 12)
names = st.sampled_from(["a", "list", "n", "gone", "new"])
parts = st.lists(st.binary(max_size=9) | small | st.tuples(names, small, small) | st.none(), max_size=4)
changes = st.tuples(names, small | st.integers(), small, parts) | st.tuples(
    st.none() | st.text(max_size=3), st.binary(max_size=3)
)
ops = st.tuples(st.lists(changes, max_size=4), st.lists(names, max_size=3), st.lists(names, max_size=5)) | st.tuples(
    st.lists(changes, max_size=4)
)
old_ops = st.lists(
    st.tuples(st.just(0), names, small | st.integers(), small, st.binary(max_size=9))
    | st.tuples(st.just(1), names)
    | st.tuples(st.just(2), st.lists(names, max_size=5))
    | st.tuples(st.integers(0, 5), st.none() | st.integers() | st.text(max_size=3), st.binary(max_size=3)),
    max_size=5,
)


@settings(max_examples=400)
@given(ops, old_ops, st.booleans())
def test_forged_patches_are_corrupt_or_give_a_value(forged: Any, old: list[Any], tagged: bool) -> None:  # noqa: FBT001
    """Ranges out of bounds, unknown keys, orders that lose keys, unknown operations: no other error comes out."""
    texts = {"a": b'"text"', "list": b"[1,2]", "n": b"1", "gone": b"null"}
    for change, version, first in ((forged, VERSION_2, keyframe(**texts)), (old, VERSION, old_keyframe(**texts))):
        try:
            body = msgspec.msgpack.encode(change)
        except OverflowError:  # MessagePack ends at 64 bits
            return
        taken([first, pack(body, patch=True, tagged=tagged, version=version)])


@pytest.mark.parametrize(
    "forged",
    [
        [["a", 5, 5, [b"x"]]], [["a", -1, 0, [b"x"]]], [["a", 0, -1, [b"x"]]], [["a", 1, 2**63, [b"x"]]],
        [["new", 1, 0, [b"x"]]], [["a", 1, 0]], [["a", 1.0, 0, [b"x"]]], [["a", 0, 0, [5]]], [["a", 0, 0, [None]]],
        [["a", 0, 0, [["a", 4, 3]]]], [["a", 0, 0, [["new", 0, 0]]]], [["a", 0, 0, [["b", 0, 2**28]]]],
        [["a", 0, 0, [["b", 2**28, 1]]]], [["a", 0, 0, [["b", -1, 1]]]], [["a", 0, 0, [["b", 0, 1, 1]]]],
        [["c", 0, 0, [["c", 0, 1]]]], [["a", 0, 0, [["a", 0, 6]] * 40_000]],
        [[1, 0, 0, [b"x"]]], [[b"\xff", 0, 0, [b"x"]]], [[]], [0], 0, None,
    ],
    ids=lambda forged: repr(forged)[:40],
)  # fmt: skip
def test_a_change_that_does_not_fit_is_corrupt(forged: Any) -> None:
    """Ranges beyond their text, copies of what was not there before, too many of them, unknown or incomplete parts."""
    state = codec.State()
    state.apply(keyframe(a=b'"text"', b=b"1"))
    with pytest.raises(Corrupt):
        state.apply(pack(msgspec.msgpack.encode([forged]), patch=True, tagged=False))


@pytest.mark.parametrize(
    "forged",
    [[[], ["new"]], [[], ["a", "a"]], [[], [], ["a"]], [[], [], ["a", "a"]], [[], [], ["a", "b", "new"]], [], [[], 1]],
    ids=repr,
)
def test_keys_that_do_not_fit_are_corrupt(forged: Any) -> None:
    """Removals of unknown keys, orders that lose or repeat one."""
    state = codec.State()
    state.apply(keyframe(a=b'"text"', b=b"1"))
    with pytest.raises(Corrupt):
        state.apply(pack(msgspec.msgpack.encode(forged), patch=True, tagged=False))


@pytest.mark.parametrize(
    "forged",
    [
        (0, "a", 5, 5, b"x"), (0, "a", -1, 0, b"x"), (0, "a", 0, -1, b"x"), (0, "a", 1, 2**63, b"x"),
        (0, "new", 1, 0, b"x"), (0, "a", 1, 0), (0, "a", 1.0, 0, b"x"),
        (0, 1, 0, 0, b"x"), (0, b"\xff", 0, 0, b"x"), (1, "new"), (1,),
        (2, ["a"]), (2, ["a", "a"]), (2, ["a", "b", "new"]), (2, []), (3, "a"), (), 0, None,
    ],
    ids=repr,
)  # fmt: skip
def test_an_operation_of_format_1_that_does_not_fit_is_corrupt(forged: Any) -> None:
    """Splices beyond their text, unknown keys, orders that lose or repeat one, unknown or incomplete operations."""
    state = codec.State()
    state.apply(old_keyframe(a=b'"text"', b=b"1"))
    with pytest.raises(Corrupt):
        state.apply(pack(msgspec.msgpack.encode([forged]), patch=True, tagged=False, version=VERSION))


def test_copies_cannot_exhaust_memory() -> None:
    """Patches that copy a text again and again are refused before memory is taken."""
    frames = [keyframe(a=b'"%b"' % (b"x" * 60_000))]
    for n in range(12):
        doubled = [
            [["a" if n == 0 else "b", 0, 0, [b'"']], ["b", 0, 0, [["a" if n == 0 else "b", 0, 60_000 << n]] * 2]]
        ]
        frames.append(pack(msgspec.msgpack.encode(doubled[1:] or doubled), patch=True, tagged=False))
    many = [[f"k{n}", 0, 0, [["a", 0, 60_000]] * 100] for n in range(100)]
    frames = [frames[0], pack(msgspec.msgpack.encode([many]), patch=True, tagged=False)]
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="claims"):
            codec.rebuild(frames, chained(chained(b"", frames[0]), frames[1]), "it")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=400)
@given(st.binary(max_size=60), st.integers(0, 255), st.booleans())
@example(b"\x91" * 60, PATCH, True)  # noqa: FBT003
def test_random_bytes_are_corrupt_or_give_a_value(noise: bytes, flags: int, framed: bool) -> None:  # noqa: FBT001
    """Noise as a frame, as the body of a frame, as a note and as a recipe raises `Corrupt` and nothing else."""
    for version in (VERSION, VERSION_2):
        frame = bytes((version, flags)) + varint(len(noise)) + noise if framed else noise
        taken([frame])
        taken([BARE[0], frame])
        for read in (
            lambda frame=frame: codec.read_note(add_checksum(frame)),
            lambda: codec.read_note(noise),
            lambda: codec.Recipe.unpack(noise, 99),
        ):
            with suppress(Corrupt):
                read()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc0", b"\x90", b"\x01", b"\x81", b"\x91", b"\x91\x91", b"\x91\x91\x94\xa1a\x00\x00",
        b"\x91\x91\x94\xa1a\x00\x00\x91\xc4\x021", b"\x81\xa1a", b"\x81\xa1a\xc4\x011x", b"\x82\xa1a\xc4\x011",
        b"\x81\x01\xc4\x011", b"\x81\xa1\xff\xc4\x011", b"\x81\xa1a\xa11", b"\x81\xa1a\x01", b'{"a":1}',
        b"\x91" * 1_000_000,
    ],
    ids=lambda body: body[:12],
)  # fmt: skip
def test_a_keyframe_without_texts_is_corrupt(body: bytes) -> None:
    """A keyframe that does not hold texts by key is refused."""
    for tagged in (False, True):
        for version in (VERSION, VERSION_2):
            assert taken([pack(body, patch=False, tagged=tagged, version=version)]) is None


@pytest.mark.parametrize(
    "text",
    [
        b"", b"1x", b"[1,]", b"{1:2}", b'{"\xff":1}', b'"\xff"', b"nan", b"1e999", b"1" * 5000, b'"\\ud800"', b"tru",
        b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 5000, b"[" * 1_000_000,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_invalid_json_is_corrupt(text: bytes) -> None:
    """A text that is not JSON, or not as Saveslot writes it, is refused when read."""
    for tagged in (False, True):
        assert taken([keyframe(tagged=tagged, a=text)]) is None


@pytest.mark.parametrize(
    "forged",
    [
        ["datetime", "yesterday"], ["datetime", 5], ["datetime", "2026-01-02", 2],
        ["bytes", "*"], ["bytes", "A"], ["bytes", "ü"], ["uuid", "x"], ["uuid", None],
        ["dict", []], ["dict", [["a", 1]]], ["pickle", "gASVAAA="], [], {}, None, "datetime",
    ],
    ids=repr,
)  # fmt: skip
def test_an_unknown_tag_is_corrupt(forged: Any) -> None:
    """No fallback: an unknown tag, or one with more keys beside it, is not guessed at."""
    for value in ({TAG: forged}, {TAG: ["uuid", str(UUID(int=1))], "more": 1}, [{TAG: forged}], {"x": {TAG: forged}}):
        assert taken([keyframe(tagged=True, v=msgspec.json.encode(value))]) is None
        with pytest.raises(Corrupt):
            codec.read_note(add_checksum(pack(msgspec.json.encode(value), patch=False, tagged=True, version=VERSION)))


@pytest.mark.parametrize("how", [ZSTD, ZSTD | DICTIONARY])
@pytest.mark.parametrize("claimed", [0, 100, 300_000_000 - 1, 300_000_000, 300_000_000 + 1, 2**62])
def test_a_small_frame_cannot_exhaust_memory(claimed: int, how: int) -> None:
    """A frame is never decompressed beyond what it claims, and none may claim more than 256 MiB."""
    bomb = zstd.compress(bytes(300_000_000), zstd_dict=words(how))
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            codec.State().apply(bytes((VERSION_2, how)) + varint(claimed) + bomb)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert MAX_RAW < 300_000_000


FORGED = """
import resource
from saveslot.codec.frame import BLOCK, MAX_RAW, VERSION, ZSTD, unpack
from saveslot.errors import Corrupt
from saveslot.values.recipe import varint

size = MAX_RAW // 2
head, window = b"\\x28\\xb5\\x2f\\xfd", b"\\x88"  # as far back as zstd goes unasked: 128 MB
repeated = (BLOCK << 3 | 2).to_bytes(3, "little") + b"a"  # a block of one byte, again and again
whole = head + b"\\x80" + window + size.to_bytes(4, "little")
bombs = [
    head + b"\\xa0" + size.to_bytes(4, "little") + b"\\x0b\\0\\0a",  # one block cannot hold what it claims
    whole + repeated * (size // BLOCK - 1),  # cut
    whole + b"\\x08\\0\\0a",
]
unpack(bytes((VERSION, 0)) + varint(1) + b"a")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for bomb in bombs:
    for flags in (ZSTD, ZSTD | 1):
        try:
            unpack(bytes((VERSION, flags)) + varint(size) + bomb)
        except Corrupt:
            continue
        raise SystemExit(f"{bomb[:16]!r} was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_length_forged_in_both_headers_takes_no_memory() -> None:
    """Neither the claimed length nor a window for it is allocated before the frame's blocks are counted."""
    grown = subprocess.run([sys.executable, "-c", FORGED], check=True, capture_output=True, text=True)
    assert int(grown.stdout) < 10_000  # KB


def words(how: int) -> zstd.ZstdDict | None:
    return zstd.ZstdDict(dictionary().as_bytes()) if how & DICTIONARY else None


@pytest.mark.parametrize("how", [ZSTD, ZSTD | DICTIONARY])
@pytest.mark.parametrize("text", [b"lorem ipsum " * 30, random.Random(1).randbytes(150_000).hex().encode()])
def test_a_compressed_body_is_exactly_one_zstd_frame(text: bytes, how: int) -> None:
    """Truncated, followed by more, or of another length than claimed: `Corrupt`."""
    body = msgspec.msgpack.encode([[["a", 0, 0, [b'"%s"' % text]]]])
    good = zstd.compress(body, zstd_dict=words(how))
    compressor = zstd.ZstdCompressor(zstd_dict=words(how))
    untold = compressor.compress(body, zstd.ZstdCompressor.FLUSH_BLOCK)  # all of it, but for the end
    longer = untold + compressor.flush()
    compressor = zstd.ZstdCompressor(zstd_dict=words(how))
    compressor.set_pledged_input_size(len(body))
    unended = compressor.compress(body, zstd.ZstdCompressor.FLUSH_BLOCK)
    checked = zstd.compress(body, zstd_dict=words(how), options={zstd.CompressionParameter.checksum_flag: 1})
    empty, skipped = zstd.compress(b""), (0x184D2A50).to_bytes(4, "little") + bytes(4)
    head = bytes((VERSION_2, how))
    for result in (good, checked):
        assert taken([head + varint(len(body)) + result]) is not None
    for size, result in (
        (len(body), good[:-1]),
        (len(body), untold),
        (len(body), longer),
        (len(body), unended),
        (len(body), unended + b"\1"),
        (len(body), checked[:-1]),
        (len(body), checked[:-4]),
        (len(body), checked[:-1] + bytes((checked[-1] ^ 1,))),
        (len(body), good + b"\0"),
        (len(body), good + good),
        (len(body), good + empty),
        (len(body), good + empty[:4]),
        (len(body), good + skipped),
        (len(body), skipped + good),
        (0, empty),
        (0, empty + b"\0"),
        (len(body) - 1, good),
        (len(body) + 1, good),
        (len(body), b""),
        (len(body), body),
    ):
        with pytest.raises(Corrupt):
            codec.State().apply(head + varint(size) + result)


def test_a_huge_count_in_a_patch_takes_no_memory() -> None:
    """MessagePack may announce four billion operations in five bytes."""
    tracemalloc.start()
    try:
        huge = b"\xdd\xff\xff\xff\xff"
        for body in (huge, b"\x91" + huge, b"\x91\x91\x94\xa1a\0\0" + huge, b"\x92\x90" + huge, b"\x93\x90\x90" + huge):
            assert taken([BARE[0], pack(body, patch=True, tagged=False)]) is None
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_patch_needs_a_frame_before_it() -> None:
    """Even a patch that fits an empty state is refused in place of a keyframe."""
    patch = pack(msgspec.msgpack.encode([[("a", 0, 0, [b"1"])]]), patch=True, tagged=False)
    with pytest.raises(Corrupt, match="without a frame before it"):
        codec.State().apply(patch)
    with pytest.raises(Corrupt, match="without a frame before it"):
        codec.rebuild([patch], chained(b"", patch), "it")


@pytest.mark.parametrize("tagged", [False, True])
def test_a_text_too_deep_to_read_is_corrupt(tagged: bool) -> None:  # noqa: FBT001
    """Also in a patch or a note, which are not checked before they are read."""
    deep = b"[" * 200_000 + b'{"$saveslot":1}' + b"]" * 200_000
    first = keyframe(a=b"1")
    patch = pack(msgspec.msgpack.encode([[("a", 0, 0, [deep])]]), patch=True, tagged=tagged)
    with pytest.raises(Corrupt):
        codec.rebuild([first, patch], chained(chained(b"", first), patch), "it").value()
    with pytest.raises(Corrupt):
        codec.read_note(add_checksum(pack(deep, patch=False, tagged=tagged, version=VERSION)))


def test_a_state_is_empty_after_damage() -> None:
    """A patch that fails halfway leaves no state that could be taken for the previous one."""
    state = codec.State()
    state.apply(keyframe(a=b"1", b=b"2"))
    half = msgspec.msgpack.encode([[("a", 0, 0, [b"5"])], ["unknown"]])
    with pytest.raises(Corrupt):
        state.apply(pack(half, patch=True, tagged=False))
    assert (state.digest, state.value()) == (b"", {})


def test_any_changed_byte_of_a_note_is_noticed() -> None:
    """A note has a checksum; with a matching one, damage is `Corrupt` or a value, and a patch is not a note."""
    for value in ({"a": 1}, {"at": datetime(2026, 1, 2, tzinfo=UTC)}, {"text": prose(3, 200)}):
        note = codec.note(value, "metadata")
        for at in range(len(note)):
            damaged = bytearray(note)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(Corrupt):
                codec.read_note(bytes(damaged))
            with suppress(Corrupt):
                codec.read_note(add_checksum(bytes(damaged)[16:]))
        with pytest.raises(Corrupt):
            codec.read_note(note[:-1])
    with pytest.raises(Corrupt):
        codec.read_note(b"")
    with pytest.raises(Corrupt, match="patch"):
        codec.read_note(add_checksum(pack(b"{}", patch=True, tagged=False, version=VERSION)))


bodies = st.one_of(
    st.binary(max_size=1500),
    st.text(max_size=700).map(str.encode),
    st.builds(lambda seed, count: prose(seed, count).encode(), st.integers(0, 99), st.integers(0, 400)),
    st.lists(st.integers(0, 10**6), max_size=250).map(msgspec.json.encode),
)


@settings(max_examples=300)
@given(bodies, st.booleans(), st.booleans())
def test_every_body_comes_back_from_its_frame(body: bytes, patch: bool, tagged: bool) -> None:  # noqa: FBT001
    """Whatever it holds and whichever form is shortest: never longer than header and body."""
    frame = pack(body, patch=patch, tagged=tagged)
    assert unpack(frame) == (VERSION_2, patch, tagged, body, False, len(frame))
    assert len(frame) <= 2 + len(varint(len(body))) + len(body)


def test_threads_do_not_share_a_compressor() -> None:
    """Frames that many threads write and read at once are the ones that a single thread writes."""
    bodies = [prose(n, 20 + n).encode() for n in range(200)]
    alone = [pack(body, patch=False, tagged=False) for body in bodies]

    def one(_: int) -> bool:
        frames = [pack(body, patch=False, tagged=False) for body in bodies]
        return frames == alone and [unpack(frame).body for frame in frames] == bodies

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, range(12)))


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "01",
        "0100",
        "03 00 02 7b 7d",
        "01 10 02 7b 7d",
        "01 08 02 7b 7d",
        "01 20 02 7b 7d",
        "01 00 80",
        "01 40 02 02 7b 7d",
        "02 08 02 7b 7d",
        "02 80 02 7b 7d",
        "02 40 02 03 7b 7d",
        "02 40 02 80",
    ],
    ids=repr,
)
def test_an_unknown_format_is_corrupt(frame: str) -> None:
    """Another version, an unknown flag or no header: refused, not guessed."""
    with pytest.raises(Corrupt):
        codec.State().apply(bytes.fromhex(frame))
