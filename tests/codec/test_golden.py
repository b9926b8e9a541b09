"""The bytes on disk: every released format stays readable, and FORMAT.md shows what is really written.

`golden/` holds frames, notes and recipes; `golden/index.json` says what they must be read as. Names of format 2 begin
with `2-`; files of format 1 are read, and never written. A change of the format is made on purpose, with a new version
byte; then `python tests/codec/test_golden.py` adds the new files. It never changes one that is there.
"""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import apsw
import pytest

from saveslot import codec
from saveslot.codec.blocks import Blocks, opened
from saveslot.codec.cipher import Body, Cipher, place_of
from saveslot.codec.frame import (
    CHECKSUM,
    DICTIONARY,
    LONG as LONG_FLAG,
    PATCH,
    TAGGED as TAGGED_FLAG,
    WORDS,
    ZSTD,
    chained,
    dictionary,
    unpack,
)
from saveslot.errors import Corrupt
from saveslot.values.kinds import Kind

HERE = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
FORMAT = (ROOT / "FORMAT.md").read_text()


def stored(file: str) -> bytes:
    return (HERE / file).read_bytes()


def index() -> dict[str, Any]:
    return json.loads((HERE / "index.json").read_text())


def prose(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(["keep", "what", "the", "agent", "knows", "and", "go", "on"], k=count))


def frames(*values: dict[str, Any]) -> list[bytes]:
    """One checkpoint after the other."""
    state = codec.State()
    items: list[bytes] = []
    for seq, value in enumerate(values, 1):
        written = codec.write(state, value, seq, "data")
        assert written.frame is not None
        items.append(written.frame)
        state = written.state
    return items


# As in FORMAT.md.
FIRST: dict[str, Any] = {
    "topic": "fractions, for a pupil of ten years who has met halves and quarters",
    "n": 1,
    "messages": ["What is a third of a third?", "It is a ninth."],
    "tmp": None,
}
SECOND = {"n": 2, "topic": FIRST["topic"], "messages": [*FIRST["messages"], "Why?"]}
LONG: dict[str, Any] = {"text": prose(1, 90), "log": [{"n": n, "said": prose(n, 9)} for n in range(30)], "n": 1}
MORE = {**LONG, "more": prose(3, 2000)}
TAGGED = {
    "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "there": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "naive": datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    "raw": b"\0\1\2",
    "id": UUID("0198c0de-0000-7000-8000-000000000001"),
    "like a tag": {"$saveslot": ["bytes", "AAEC"], "x": [b""]},
    "$saveslot": 1,
}
TALK: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": "Can you tell me how many thirds there are in the whole, and why it is that number?",
        },
        {"role": "assistant", "content": "There are three: a third is what you have when the whole is cut into three."},
    ],
    "tries": [417, 2093, 58, 6616, 905, 7241, 330, 1182],
}
TOOL = {"role": "tool", "tool_call_id": "call_1", "content": "Here are the results of the search: " + prose(6, 30)}
GROWN = {**TALK, "messages": [*TALK["messages"], TOOL]}
PLAIN = {
    "": None,
    "nul\0": "\0",
    "emoji 😀": "é\u2028\ud7ff",
    "numbers": [0, -1, 2**63, -(2**64), 10**40, 0.0, -0.0, 1.0, 1e16, 5e-324, 0.1, True, False],
    "empty": [{}, [], ""],
}
ANSWER = {
    "role": "assistant",
    "content": "It is a ninth: a third of a third, since three times three is nine. Shall we draw it?",
    "id": "a-1",
}
INBOX = {"inbox": [{**ANSWER, "stop": "end"}], "messages": ["What is a third of a third?"]}
TAKEN = {"inbox": [], "messages": [*INBOX["messages"], {**ANSWER, "stop": "end"}]}
ROWS: dict[str, Any] = {"rows": ["a row of the table, like all the others before and after it"] * 280, "n": 1}
PAGED = {**ROWS, "page": "lorem ipsum " * 11_000, "n": 2}
FRAMES: dict[str, list[bytes]] = {
    "keyframe": frames({"n": 1}),
    "empty": frames({}),
    "plain": frames(PLAIN),
    "tagged": frames(TAGGED),
    "tagged-small": frames({"raw": b"\0\1\2"}),
    "patch": frames(FIRST, SECOND),
    "distant": frames(LONG, {**LONG, "log": [{"n": -1}, *LONG["log"][1:], {"n": 80}]}),
    "large": frames(MORE, {**MORE, "text": prose(4, 1000)}),
    "small": frames(TALK, GROWN),
    "small-tagged": frames({**TALK, "raw": b"\xff"}, {**GROWN, "raw": b"\xff"}),
    "digits": frames({"rows": [n * n for n in range(100)]}),
    "tagged-large": frames({**MORE, "raw": b"\xff"}, {**MORE, "raw": random.Random(8).randbytes(1200)}),
    "tagged-later": frames(LONG, {**LONG, "n": b"\xff"}, {**LONG, "n": b"\xff" * 300}),
    "tagged-zstd": frames({"rows": [n * n for n in range(400)], "raw": b"\xff"}),
    "copy": frames(INBOX, TAKEN),
    "blocks": frames(ROWS, PAGED),
    "blocks-tagged": frames({**ROWS, "raw": b"\xff"}, {**PAGED, "raw": b"\xff"}, {**PAGED, "raw": b"\xff", "n": 3}),
}
FRAMES = {f"2-{name}": found for name, found in FRAMES.items()}
CHANGES: dict[str, int | None] = {"messages": 2, "n": 0, "draft": None, "plan": True}
NOTES = {
    "note": {"tokens": 512},
    "note-tagged": {"at": TAGGED["at"]},
    "note-small": {"said": prose(5, 60)},
    "note-zstd": {"said": prose(5, 600)},
    "note-value": "a note need not be a dict",
}
# Each of entry 43.
RECIPES = {
    "2-recipe-base": codec.Recipe(43, (), 0, 300, 0, 290),
    "2-recipe": codec.Recipe(34, ((35, 37), (40, 43)), 6, 1_522_004, 9_321, 1_531_077),
}


# As in FORMAT.md: the caller's key, a session of the namespace `default`, and entry 2 of it, a checkpoint.
KEYRING = codec.Keyring({"2026": bytes(range(32))})
PLACE = place_of("default", UUID("0198c0de-0000-7000-8000-000000000001").bytes)
ENTRY = bytes((Kind.CHECKPOINT,)) + (2).to_bytes(8, "big")


def typed(value: Any) -> Any:
    """A value in JSON, in words of its own: it must not depend on the codec that it checks."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [typed(item) for item in cast("list[Any]", value)]
    match value:
        case datetime():
            return f"datetime {value.isoformat()} fold {value.fold}"
        case bytes():
            return f"bytes {value.hex()}"
        case UUID():
            return f"uuid {value}"
        case _:
            return value


def parts(name: str) -> list[str]:
    return [f"{name}.{n}.frame" for n in range(1, len(FRAMES[name]) + 1)]


def expected(value: Any) -> Any:
    """A value for the index; of a large one the sha256 of its JSON."""
    text = json.dumps(typed(value))
    return typed(value) if len(text) < 50_000 else {"sha256": sha256(text.encode()).hexdigest()}


def digest_of(frames: list[bytes]) -> bytes:
    digest = b""
    for frame in frames:
        digest = chained(digest, frame)
    return digest


@pytest.mark.parametrize("name", [name for name, item in index().items() if "frames" in item])
def test_stored_frames_are_read(name: str) -> None:
    """Frames of every released format give back what they held, in its order."""
    known = index()[name]
    state = codec.rebuild([stored(file) for file in known["frames"]], bytes.fromhex(known["digest"]), name)
    assert json.dumps(expected(state.value())) == json.dumps(known["value"])


@pytest.mark.parametrize("name", NOTES)
def test_stored_notes_are_read(name: str) -> None:
    """Notes of every released format give back what they held."""
    assert json.dumps(typed(codec.read_note(stored(f"{name}.note")))) == json.dumps(index()[name]["value"])


@pytest.mark.parametrize("name", RECIPES)
def test_stored_recipes_are_read(name: str) -> None:
    """Recipes of this format name the same frames."""
    assert codec.Recipe.unpack(stored(f"{name}.recipe"), 43) == RECIPES[name]


@pytest.mark.parametrize("name", ["recipe-none", "recipe-one", "recipe"])
def test_stored_recipes_of_format_1_are_read(name: str) -> None:
    """All frames are within their ranges, and they are stored again as they are."""
    packed, value = stored(f"{name}.recipe"), index()[name]["value"]
    result = codec.Recipe.unpack(packed, 43)
    assert (result.base, result.ranges) == (0, tuple(map(tuple, value["ranges"])))
    assert result.short == value["base"] + value["short"]
    assert result.pack(99) == packed


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_written_as_they_were(name: str) -> None:
    """The same states give the same bytes; of compressed ones (a compressor may improve) the same flags and body."""
    for file, frame in zip(parts(name), FRAMES[name], strict=True):
        before, now = unpack(stored(file)), unpack(frame)
        assert frame[1] == stored(file)[1]
        if now.long:  # compressed blocks differ, and so do their sizes and digests in the head
            assert opened(now).changes == opened(before).changes
        else:
            assert now.body == before.body
        if not frame[1] & (ZSTD | LONG_FLAG):
            assert frame == stored(file)


@pytest.mark.parametrize("name", NOTES)
def test_notes_are_written_as_they_were(name: str) -> None:
    """The same value gives the same bytes with their checksum, or when compressed the same body."""
    note, before = codec.note(NOTES[name], "metadata"), stored(f"{name}.note")
    assert unpack(note[CHECKSUM:]) == unpack(before[CHECKSUM:])
    assert note == before or note[CHECKSUM + 1] & ZSTD


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_written_as_they_were(name: str) -> None:
    """The same recipe gives the same bytes."""
    assert RECIPES[name].pack(43) == stored(f"{name}.recipe")


def test_sealed_bytes_are_opened() -> None:
    """A body's wrapped key opens with the caller's, and with it the body, a frame and a note of that session."""
    body = Body.unpack(stored("sealed.body"))
    assert body is not None
    assert body.key_id == "2026"
    cipher = Cipher(KEYRING.unwrap(body.key_id, body.wrapped, "default", PLACE, "the session"), PLACE)
    assert (
        cipher.unseal(body.sealed, b"body")
        == codec.note({"context": {}, "metadata": {}, "labels": {}}, "session")[CHECKSUM:]
    )
    digest = cipher.masked(stored("sealed.digest"), ENTRY)
    assert digest == chained(b"", stored("keyframe.1.frame"))
    assert cipher.unseal_frame(stored("sealed.frame"), ENTRY + digest) == stored("keyframe.1.frame")
    assert cipher.unseal_note(stored("sealed.note"), ENTRY) == stored("note.note")


def test_a_sealed_frame_with_blocks_is_opened_part_by_part() -> None:
    """Its head opens without its blocks, and each block by itself."""
    cipher = Cipher(random.Random(7).randbytes(32), PLACE)
    sealed, frame = stored("2-sealed.frame"), stored("2-blocks.1.frame")
    part = ENTRY + chained(b"", frame)
    assert cipher.unseal_frame(sealed, part) == frame
    head, block = cipher.cut(sealed, part)
    assert frame.startswith(head)
    assert Blocks(opened(unpack(head)), block).read(0, 10) == b'["a row of'


def test_stored_changes_are_read() -> None:
    """A checkpoint's note says what it changed, and by how many items lists grew or shrank."""
    assert codec.read_note(stored("2-note.note")) == NOTES["note"]
    changed = codec.read_changes(stored("2-note.note"))
    assert changed == codec.Changed(CHANGES, added=1, removed=1, changed=2)
    assert codec.read_changes(stored("note.note")) is None


def test_every_form_of_a_frame_is_among_them() -> None:
    """Keyframes and patches, plain and tagged, as they are, by zstd, and by zstd with the dictionary."""
    kinds = (0, PATCH, TAGGED_FLAG, PATCH | TAGGED_FLAG)
    forms = {kind | how for kind in kinds for how in (0, ZSTD, ZSTD | DICTIONARY)}
    forms |= {LONG_FLAG | kind for kind in kinds}
    assert {frame[1] for result in FRAMES.values() for frame in result} == forms


def test_the_dictionary_is_what_it_was() -> None:
    """Without exactly these bytes no small frame can be read: the dictionary never changes."""
    digest = sha256(WORDS.read_bytes()).hexdigest()
    assert digest == "2df519ef4a5bb824d431e721406ffbccaf79e88e0bafdfe70f5268e20f3b11d9"
    assert f"`{digest}`" in FORMAT


def test_a_damaged_dictionary_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary with one changed byte would decode to other text: it is refused."""
    damaged = tmp_path / WORDS.name
    damaged.write_bytes(WORDS.read_bytes().replace(b"messages", b"massages"))
    monkeypatch.setattr("saveslot.codec.frame.WORDS", damaged)
    dictionary.cache_clear()
    try:
        with ThreadPoolExecutor(1) as fresh, pytest.raises(Corrupt, match=r"small\.zdict"):
            fresh.submit(unpack, stored("small.1.frame")).result()  # each thread has a decompressor of its own
    finally:
        dictionary.cache_clear()


def shown(block: str) -> bytes:
    """The bytes that an annotated sample shows: the part of each line left of the bar."""
    return bytes.fromhex("".join(line.partition("|")[0] for line in block.splitlines()))


SAMPLES: dict[str, str] = dict(re.findall(r"^`(\S+)`[^\n]*\n\n```text\n(.*?)^```", FORMAT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("file", SAMPLES)
def test_the_samples_in_format_md_are_real(file: str) -> None:
    """Each annotated sample is, byte for byte, a stored file."""
    assert shown(SAMPLES[file]).hex(" ") == stored(file).hex(" ")


def test_format_md_shows_what_matters() -> None:
    """There are samples of keyframe, patch, small frame, note and recipe; the digests and tagged values are real."""
    assert set(SAMPLES) == {
        "2-keyframe.1.frame",
        "2-patch.2.frame",
        "2-copy.2.frame",
        "2-small.2.frame",
        "2-blocks.1.frame",
        "2-blocks.2.frame",
        "note.note",
        "2-note.note",
        "2-recipe.recipe",
        "keyframe.1.frame",
        "patch.2.frame",
        "recipe.recipe",
        "sealed.frame",
        "sealed.body",
    }
    for count in (1, 2):
        digest = digest_of([stored(file) for file in parts("2-patch")[:count]]).hex()
        assert f"`{digest[:16]}…`" in FORMAT
    for key, value in TAGGED.items():
        if key != "$saveslot":
            assert f"`{codec.encode(value, key)[0].decode()}`" in FORMAT


def test_format_md_names_every_column_and_kind() -> None:
    """Its tables list the columns of the SQLite tables, in their order, and the numbers of kinds of entries."""
    database = apsw.Connection(":memory:")
    for script in sorted((ROOT / "src/saveslot/stores/sqlite/migrations").glob("*.sql")):
        database.execute(script.read_text())
    for table in ("checkpoints", "sessions", "workers"):
        columns = [row[0] for row in database.execute("select name from pragma_table_info(?)", (table,))]
        section = FORMAT.partition(f"### `{table}`")[2].partition("\n#")[0]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == columns
    for kind in Kind:
        assert f"{kind.value} {kind.name.lower()}" in FORMAT


def add(file: str, content: bytes) -> None:
    if not (HERE / file).exists():
        (HERE / file).write_bytes(content)


def main() -> None:
    """Write what is not there yet."""
    HERE.mkdir(exist_ok=True)
    known = index() if (HERE / "index.json").exists() else {}
    for name, result in FRAMES.items():
        for file, frame in zip(parts(name), result, strict=True):
            add(file, frame)
        read = [stored(file) for file in parts(name)]
        digest = digest_of(read)
        value = expected(codec.rebuild(read, digest, name).value())
        known.setdefault(name, {"frames": parts(name), "digest": digest.hex(), "value": value})
    for name, value in NOTES.items():
        add(f"{name}.note", codec.note(value, "metadata"))
        known.setdefault(name, {"value": typed(value)})
    add("2-note.note", codec.note(NOTES["note"], "metadata", changes=CHANGES))
    for name, recipe in RECIPES.items():
        add(f"{name}.recipe", recipe.pack(43))
    if not (HERE / "2-sealed.frame").exists():
        frame = stored("2-blocks.1.frame")
        add(
            "2-sealed.frame",
            Cipher(random.Random(7).randbytes(32), PLACE).seal_frame(frame, ENTRY + chained(b"", frame)),
        )
    if not (HERE / "sealed.body").exists():
        key = random.Random(7).randbytes(32)
        cipher, frame = Cipher(key, PLACE), stored("keyframe.1.frame")
        about = codec.note({"context": {}, "metadata": {}, "labels": {}}, "session")
        digest = chained(b"", frame)
        add("sealed.body", Body(*KEYRING.wrap(key, "default", PLACE), cipher.seal(about[CHECKSUM:], b"body")).pack())
        add("sealed.frame", cipher.seal_frame(frame, ENTRY + digest))
        add("sealed.note", cipher.seal_note(stored("note.note"), ENTRY))
        add("sealed.digest", cipher.masked(digest, ENTRY))
    (HERE / "index.json").write_text(json.dumps(known, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
