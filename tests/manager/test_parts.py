"""`get_data(keys=, last=)`: parts of a state, from the frames that hold them."""

from __future__ import annotations

import asyncio
import random

import pytest

from saveslot import Corrupt, InvalidInput, Retention, SessionManager
from saveslot.codec import new_key
from saveslot.stores.around.wrapper import PassingStore
from saveslot.stores.memory import MemoryStore


def turn(dice, n):
    return {"role": "assistant", "n": n, "content": dice.randbytes(250).hex(), "usage": {"out": n, "raw": b"\0"}}


def cut(data, keys, last):
    found = {key: value for key, value in data.items() if keys is None or key in keys or key in last}
    return {key: value[max(0, len(value) - last[key]) :] if key in last else value for key, value in found.items()}


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_parts_equal_the_whole(opened, sealed):
    """Whatever the history, in another process too: keys and tails are those of the whole state."""
    options = {"encryption_key": new_key()} if sealed else {}
    dice = random.Random(1)
    async with opened(**options) as sessions:
        await sessions.create_session("tutor", session_id="s")
        await sessions.checkpoint(
            "s", "first", {"messages": [turn(dice, n) for n in range(400)], "n": 0, "text": "x" * 9000}
        )
        for n in range(90):
            await sessions.checkpoint("s", "turn", append={"messages": [turn(dice, 400 + n)]})
            if n % 20 == 10:
                data = await sessions.get_data("s")
                messages = [*data["messages"][:7], turn(dice, -n), *data["messages"][9:]]
                await sessions.checkpoint("s", "edited", {**data, "messages": messages, "n": n, "more": [messages[-1]]})
            if n == 50:
                await sessions.rollback("s", "~30")
    async with opened(**options) as sessions:
        for ref in ("latest", "~0", "~3", "~40", "first", 60):
            data = await sessions.get_data("s", ref)
            for keys, last in (
                (None, {"messages": 20}),
                (["n"], {}),
                (["messages", "gone"], {"messages": 3}),
                (["more", "text"], None),
                (None, {"messages": 100_000, "more": 0, "gone": 3}),
                ([], {}),
                (["messages"], {"messages": 300}),
            ):
                part = await sessions.get_data("s", ref, keys=keys, last=last)
                assert part == cut(data, keys, last or {})
                assert keys is not None or [*part] == [*data]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"keys": "messages"}, "keys"),
        ({"keys": [1]}, "keys"),
        ({"last": 3}, "last"),
        ({"last": {"messages": -1}}, "last.messages"),
        ({"last": {"messages": True}}, "last.messages"),
        ({"last": {"n": 1}}, "last.n"),
        ({"last": {"text": 1}}, "last.text"),
    ],
    ids=str,
)
async def test_impossible_parts_are_refused_by_path(sessions, session, arguments, path):
    """Also of a state that is read whole, since it is small."""
    await sessions.checkpoint(session.session_id, "one", {"messages": [1], "n": 1, "text": "["})
    for size in (1, 20_000):
        with pytest.raises(InvalidInput) as refused:
            await sessions.get_data(session.session_id, **arguments)
        assert refused.value.path == path
        await sessions.checkpoint(session.session_id, "two", {"messages": [1], "n": 1, "text": "[" * size})


async def test_there_are_no_parts_before_the_first_checkpoint(sessions, session):
    assert await sessions.get_data(session.session_id, keys=["n"], last={"messages": 3}) == {}


async def test_a_tail_is_read_from_few_frames(stores, sessions, session, fresh):
    """Of a long session, the last items need the last frames; none of the others is asked of the store."""
    dice = random.Random(2)
    for n in range(400):
        await sessions.checkpoint(session.session_id, "turn", append={"messages": [turn(dice, n)]})
    frames = 0
    inner = stores[0].entries

    async def counted(*args, **options):
        nonlocal frames
        found = await inner(*args, **options)
        frames += sum(entry.frame is not None for entry in found)
        return found

    stores[0].entries = counted
    try:
        data = await fresh().get_data(session.session_id, last={"messages": 20})
    finally:
        del stores[0].entries
    assert [item["n"] for item in data["messages"]] == [*range(380, 400)]
    assert frames <= 36


async def test_a_part_read_while_its_frames_are_thinned_is_of_a_newer_head(sessions, others, session):
    """A reader whose frames were emptied reads the head again, and raises only for what is gone."""
    dice = random.Random(3)
    for n in range(60):
        await sessions.checkpoint(session.session_id, "turn", {"page": [turn(dice, n) for _ in range(30)], "n": n})

    async def read():
        for _ in range(20):
            assert len((await others.get_data(session.session_id, last={"page": 2}))["page"]) == 2
            await asyncio.sleep(0)

    async def thin():
        for n in range(5):
            await sessions.checkpoint(session.session_id, "turn", {"page": [turn(dice, n) for _ in range(30)], "n": n})
            await sessions.thin(session.session_id, Retention(keep_first=0, keep_last=1, compress_after=1), grace=0)

    await asyncio.gather(read(), thin())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_damage_in_a_part_is_corrupt(stores, sessions, session, fresh):
    """A byte of a frame that a part needs, changed in the store, is `Corrupt`; of others the right data comes."""
    dice = random.Random(4)
    big = {"messages": [turn(dice, n) for n in range(600)], "text": dice.randbytes(100_000).hex(), "n": 1}
    await sessions.checkpoint(session.session_id, "one", big)
    for n in range(40):
        await sessions.checkpoint(session.session_id, "more", append={"messages": [turn(dice, n)]})
    want = (await sessions.get_data(session.session_id))["messages"][-30:]
    [head] = await stores[0].heads([("default", session.session_id)])
    log = stores[0]._logs[head.row.key]  # noqa: SLF001
    noticed = 0
    for entry in log:
        if entry.frame is None or entry.kind != 1:
            continue
        kept = entry.frame
        for _ in range(8):
            at = dice.randrange(len(kept))
            entry.frame = kept[:at] + bytes([kept[at] ^ 1 << dice.randrange(8)]) + kept[at + 1 :]
            try:
                assert (await fresh().get_data(session.session_id, last={"messages": 30}, keys=["messages"]))[
                    "messages"
                ] == want
            except Corrupt:
                noticed += 1
        entry.frame = kept
    assert noticed > 50


class Frames(PassingStore):
    """Counts the frames that are read."""

    count = 0

    async def entries(self, key, *wanted):
        entries = await super().entries(key, *wanted)
        self.count += sum(entry.frame is not None for entry in entries)
        return entries


@pytest.mark.parametrize("many", [60, 300])
async def test_one_of_many_keys_is_read_from_few_frames(many):
    """Beyond 64 keys, too, a key that changed long ago is found without reading what came in between."""
    dice, state = random.Random(3), {f"key {n}": n for n in range(many)}
    plain = SessionManager(store=(memory := MemoryStore()))
    await plain.create_session("tutor", session_id="s", data=state | {"messages": []})
    for n in range(960):  # 30 long patches
        put = {"key 7": "old"} if n == 3 else {"key 8": n}
        await plain.checkpoint("s", "turn", append={"messages": [dice.randbytes(600).hex()]}, put=put)
    store = Frames(memory)
    sessions = SessionManager(store=store)
    assert await sessions.get_data("s", keys=["key 7", "key 8", "key 9"]) == {"key 7": "old", "key 8": 959, "key 9": 9}
    assert store.count < 16
    store.count = 0
    assert len((await sessions.get_data("s", last={"messages": 5}, keys=[]))["messages"]) == 5
    assert store.count < 16


async def test_the_last_writer_reads_no_frames():
    """The process that wrote the newest checkpoint knows its state: the end of a list that grew by appends costs it one
    head.
    """
    store = Frames(MemoryStore())
    sessions = SessionManager(store=store)
    await sessions.create_session("tutor", session_id="s", data={"messages": []})
    for n in range(40):
        await sessions.checkpoint("s", "turn", append={"messages": [n]})
    assert await sessions.get_data("s", last={"messages": 2}) == {"messages": [38, 39]}
    assert await sessions.get_data("s", keys=["messages"], last={"messages": 0}) == {"messages": []}
    assert store.count == 0
