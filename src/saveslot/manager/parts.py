"""Parts of states to look at: outlines of large ones, how one is put together, and comparisons of two."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from saveslot import codec
from saveslot.codec import difference
from saveslot.codec.outline import Kind, joined, outline
from saveslot.session.engine import Space
from saveslot.session.lookup import with_a_fresh_head
from saveslot.values import refs
from saveslot.values.answers import Answer
from saveslot.values.checks import as_count, as_text
from saveslot.values.kinds import DATA_KINDS
from saveslot.values.log import Entry, Wanted

# Depth of an outline and children of its top, unless the caller says otherwise; and at most.
DEPTH, CHILDREN, MOST = 2, 200, 1_000
# Operations of a comparison, unless the caller says otherwise.
OPERATIONS = 2_000


class Part(Answer, frozen=True):
    """Part of the agent's data as of an entry. Containers below the depth stand as `{"…": kind, "size", "bytes"}`."""

    seq: int  # of the entry
    data_seq: int  # the entry that carries that data; 0 before the first one
    digest: str  # of that data: as long as it is the same, so is every part
    path: str
    kind: Kind
    size: int  # members, items or characters at the path
    bytes: int  # as JSON, at the path
    start: int  # the first child that is shown
    next: int | None  # `start` of the next children
    value: Any


class Frame(Answer, frozen=True):
    seq: int
    kind: Literal["keyframe", "long", "short"]
    bytes: int  # of frame and metadata, as stored


class Making(Answer, frozen=True):
    """What a state is rebuilt from."""

    seq: int
    data_seq: int
    digest: str
    state_bytes: int
    stored_bytes: int  # of its frames
    frames: list[Frame]


class Sides(Answer, frozen=True):
    """Bytes of both states as JSON."""

    a: int
    b: int


class Summary(Answer, frozen=True):
    operations: int
    added: int
    removed: int
    changed: int
    by_key: dict[str, int]  # operations by top-level key
    equal_keys: list[str]
    bytes: Sides


class Comparison(Answer, frozen=True):
    """Operations as in RFC 6902, with `old` beside those that remove or replace; in lists equal items stay in place."""

    items: list[Any]
    next: str | None
    summary: Summary
    truncated: bool  # there are more operations than `items`


@with_a_fresh_head
async def part(
    sessions: Space,
    id: str,
    ref: str | int = "latest",
    *,
    path: str = "",
    depth: int = DEPTH,
    limit: int = CHILDREN,
    start: int = 0,
) -> Part:
    """Return what is at a JSON pointer in the agent's data as of a ref, down to a depth."""
    path, depth = as_text(path, "path"), as_count(depth, "depth", 1)
    limit, start = min(as_count(limit, "limit", 1), MOST), as_count(start, "start")
    entry, data, state = await _state(sessions, id, ref)
    view = outline(state.texts, path, tagged=state.tagged, depth=depth, limit=limit, start=start)
    seq = 0 if data is None else data.seq
    return Part(
        entry.seq,
        seq,
        state.digest.hex(),
        path,
        view.kind,
        view.size,
        view.bytes,
        view.start,
        view.next,
        view.value,
    )


@with_a_fresh_head
async def text(sessions: Space, id: str, ref: str | int = "latest") -> bytes:
    """Return what `get_data` does, as JSON and not decoded, however large it is."""
    reader = sessions.reader
    head = await reader.existing(id, state=True)
    if ref == "latest" and not head.last.data_seq:
        return b"{}"
    reading = reader.state_of(head, ref) if refs.elsewhere(ref) is None else reader.state_at(id, ref)
    return joined((await reading).texts)


async def _state(sessions: Space, id: str, ref: str | int) -> tuple[Entry, Entry | None, codec.State]:
    """Return the entry that a ref names, the one with the agent's data as of it, and that data."""
    head = await sessions.reader.existing(id, state=True)
    entry = await sessions.reader.entry(head, ref)
    data = await sessions.reader.data_entry(head, entry)
    if data is None:
        return entry, None, codec.State()
    return entry, data, (await sessions.reader.timeline(head, [data])).state(data)


@with_a_fresh_head
async def making(sessions: Space, id: str, ref: str | int = "latest") -> Making:
    """Return the frames that the agent's data as of a ref is rebuilt from. Reads none of them."""
    head = await sessions.reader.existing(id)
    entry = await sessions.reader.entry(head, ref)
    data = await sessions.reader.data_entry(head, entry)
    if data is None or not data.recipe:
        return Making(entry.seq, 0 if data is None else data.seq, "", 0, 0, [])
    recipe = codec.Recipe.unpack(data.recipe, data.seq)
    wanted = Wanted(recipe.ranges, kinds=DATA_KINDS, frames=False, chain=recipe.base)
    entries = await sessions.engine.vault.entries(head.row.key, wanted)
    bases = {recipe.base}
    for base in reversed(entries):
        if base.seq in bases and base.base:
            bases.add(base.base)
    frames = [Frame(one.seq, _kind(one, bases), one.size) for one in entries]
    weight = sum(frame.bytes for frame in frames)
    return Making(entry.seq, data.seq, data.digest.hex(), recipe.size, weight, frames)


def _kind(entry: Entry, bases: set[int]) -> Literal["keyframe", "long", "short"]:
    if entry.seq not in bases:
        return "short"
    return "long" if entry.base else "keyframe"


async def compare(
    sessions: Space,
    id: str,
    a: str | int,
    b: str | int,
    *,
    other: str | None = None,
    old: bool = True,
    limit: int = OPERATIONS,
) -> Comparison:
    """Compare the agent's data at `a` with that at `b`, of the session `other` if it is passed."""
    limit = as_count(limit, "limit")
    before = await sessions.reader.state_at(id, a)
    after = await sessions.reader.state_at(id if other is None else other, b)
    ops = difference.diff_texts(before.texts, after.texts, tagged=before.tagged or after.tagged, old=old)
    kinds = Counter(op["op"] for op in ops)
    keys = Counter(_key(op["path"]) for op in ops)
    equal = [key for key in before.texts if key in after.texts and key not in keys]
    summary = Summary(
        len(ops),
        kinds["add"],
        kinds["remove"],
        kinds["replace"],
        dict(keys),
        equal,
        Sides(*(len(joined(state.texts)) for state in (before, after))),
    )
    return Comparison(ops[:limit], None, summary, len(ops) > limit)


def _key(path: str) -> str:
    return path.split("/", 2)[1].replace("~1", "/").replace("~0", "~")
