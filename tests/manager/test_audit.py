"""The audit trail says who did what and when, survives erasure, and shows where the database was tampered with."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from msgspec.structs import replace

import saveslot
from saveslot import NotFound, SessionManager
from saveslot.session.links import fits, linked
from saveslot.session.model import AgentSession
from saveslot.stores.sqlite.file import connect
from saveslot.values.kinds import Kind
from saveslot.values.log import Entry

KEY = bytes(range(32))


async def live(sessions: SessionManager, others: SessionManager) -> AgentSession:
    """Write entries of all kinds, alone and in groups, from two managers in turn."""
    session = await sessions.create_session("tutor", "anna", {"a": 1}, session_id="s")
    session.checkpoint("asked", {"n": 1})
    session.checkpoint("asked", {"n": 2})
    session.context["a"] = 2
    await sessions.update_session(session)
    await others.checkpoint("s", "told", {"n": 3}, {"m": 1})
    async with others.hold("s") as held:
        await held.checkpoint("held", {"n": 4})
        await held.step("ask", lambda: 1)
        await sessions.import_session(await sessions.export("s"), session_id="copy")
    await sessions.head("s")
    await sessions.rollback("s", "asked")
    session = await others.refresh(session)
    session.checkpoint("asked", {"n": 5})
    session.pause()
    await others.update_session(session)
    return session


@pytest.mark.parametrize("key", [None, KEY])
async def test_every_writer_continues_the_chain(opened, key):
    """Other managers, holders, imports and groups all continue the chain, also after delete and erase."""
    async with opened(encryption_key=key) as sessions, opened(encryption_key=key) as others:
        await live(sessions, others)
        worker = others.worker["name"]
    async with opened() as sessions:  # nothing of it needs the key
        trail = await sessions.audit("s")
        assert (trail.misfit, trail.unlinked, trail.state) == (None, 0, "paused")
        assert [line.seq for line in trail.lines] == list(range(1, len(trail.lines) + 1))
        assert {line.held_by for line in trail.lines if line.kind in {"taken", "step_finished"}} == {worker}
        assert trail.lines[0].held_by == ""
        assert all(len(line.link) == 32 for line in trail.lines)
        assert (await sessions.audit("copy")).misfit is None
        noted = trail.head
        await sessions.delete_session("copy")
        assert (await sessions.audit("copy")).state == "deleted"
        await sessions.erase("s")
        await sessions.erase("copy")
        for name in ("s", "copy"):
            after = await sessions.audit(name, link=noted if name == "s" else None)
            assert (after.misfit, after.state) == (None, "erased")
            assert after.lines[-1].kind == "tombstone"
        assert (await sessions.audit("s")).lines[: len(trail.lines)] == trail.lines
        assert (await sessions.audit("s", link="0" * 32)).misfit is not None
        with pytest.raises(NotFound):
            await sessions.audit("nobody")


def test_link_matches_the_format():
    """A link is checked byte by byte, so that later readers can verify today's links."""
    first = Entry(1, b"a" * 16, Kind.CREATED, "session_created", digest=b"d" * 32)
    text = bytes.fromhex("95 c400 90 00 c410") + b"k" * 16
    text += bytes.fromhex("9c c410") + b"a" * 16 + bytes.fromhex("01 00 af") + b"session_created"
    text += bytes.fromhex("00 c420") + b"d" * 32 + bytes.fromhex("c0 c400 00 00 00 c400")
    before = linked(b"k" * 16, first, b"", [])
    assert before == b"\x00" + sha256(text).digest()[:15]
    later = Entry(300, b"b" * 16, Kind.FAILED, "ü", at=5, fence=2, note=b"s" * 16 + b"more")
    text = bytes.fromhex("95 c410") + before + bytes.fromhex("92 cd012c cf000640000000ffff 05 c410") + b"k" * 16
    text += bytes.fromhex("9c c410") + b"b" * 16 + bytes.fromhex("cd012c 06 a2c3bc 02 c400 c410") + b"s" * 16
    text += bytes.fromhex("c402 0209 cd0123 cd012b 07 c420") + b"r" * 32
    later.recipe, later.base, later.data_seq, later.about_seq, later.request = b"\2\x09", 291, 299, 7, b"r" * 32
    assert linked(b"k" * 16, later, before, [300, 0x000640000000FFFF]) == b"\x05" + sha256(text).digest()[:15]


@pytest.mark.parametrize("recipe", [b"", b"\2\x09"])
def test_early_links_are_accepted(recipe):
    """A link of an earlier Saveslot covers fewer columns, and still vouches for those."""
    entry = Entry(2, b"b" * 16, Kind.CHECKPOINT, "n", at=5, digest=b"d" * 32, recipe=recipe)
    columns = (entry.append_id, 2, Kind.CHECKPOINT, "n", 0, entry.digest, None, *((recipe, 0) if recipe else ()))
    digest = sha256(msgspec.msgpack.encode((b"", (4,), 0, b"k" * 16, columns))).digest()
    entry.digest += b"\x02" + digest[:15]
    assert fits(b"k" * 16, entry, b"", [4])
    assert not fits(b"k" * 16, replace(entry, name="m"), b"", [4])
    assert not fits(b"k" * 16, entry, b"", [5])


def flipped(value: bytes | None) -> bytes:
    return b"\0" * 16 if value is None else bytes([value[0] ^ 1]) + value[1:]


COLUMNS = {
    "name": lambda name: name + "!",
    "kind": lambda kind: kind + 1,
    "fence": lambda fence: fence + 1,
    "digest": flipped,
    "note": flipped,
    "note ": lambda note: b"\0" * 17 if note is None else note[:-1] + bytes([note[-1] ^ 1]),
    "append_id": flipped,
    "recipe": lambda recipe: flipped(recipe) if recipe else b"\2\0\1\1\1",
    "recipe ": lambda recipe: recipe[:-1] + bytes([recipe[-1] ^ 1]) if recipe else b"\2\0\1\1\1",
    "base": lambda base: base + 1,
    "data_seq": lambda seq: seq + 1,
    "about_seq": lambda seq: seq - 1,
    "request": lambda request: flipped(request) if request else b"r" * 32,
}


class Forger:
    """Changes a session's rows directly in the database, and restores them."""

    def __init__(self, file, key: bytes) -> None:
        self._connection = connect(str(file), None)
        self._key = key

    def get(self, column: str, seq: int):
        sql = f"select {column} from checkpoints where key = ? and seq = ?"  # noqa: S608
        return self._connection.execute(sql, (self._key, seq)).get

    def put(self, column: str, seq: int, value) -> None:
        sql = f"update checkpoints set {column} = ? where key = ? and seq = ?"  # noqa: S608
        self._connection.execute(sql, (value, self._key, seq))

    def add_tombstone(self, seq: int, name: str) -> None:
        columns = "key, seq, append_id, kind, name, at, alive, fence, data_seq, about_seq, recipe, digest"
        sql = f"insert into checkpoints ({columns}) values (?, ?, randomblob(16), 9, ?, 1, 1, 0, 0, 0, x'', x'')"  # noqa: S608
        self._connection.execute(sql, (self._key, seq, name))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
async def scene(file):
    """A manager, its sessions `s` and `copy`, and a forger for each."""
    async with saveslot.open(f"sqlite:///{file}") as sessions, saveslot.open(f"sqlite:///{file}") as others:
        await live(sessions, others)
        forgers = {name: Forger(file, (await sessions.get_session(name)).seen.key) for name in ("s", "copy")}
        yield sessions, forgers
        for forger in forgers.values():
            forger.close()


@pytest.mark.parametrize("column", COLUMNS)
async def test_changed_entry_breaks_the_chain_at_itself(scene, column):
    """Changing any field of any entry breaks the chain at that entry; restoring it repairs the chain."""
    sessions, forgers = scene
    for seq in range(1, len((await sessions.audit("s")).lines) + 1):
        before = forgers["s"].get(column, seq)
        forgers["s"].put(column, seq, COLUMNS[column](before))
        assert (await sessions.audit("s")).misfit == seq
        forgers["s"].put(column, seq, before)
    assert (await sessions.audit("s")).misfit is None


async def test_changed_time_is_detected(scene):
    """An import's time is covered by its own link, others by the next group; the newest group's is not covered yet."""
    sessions, forgers = scene
    for name in ("s", "copy"):
        last = len((await sessions.audit(name)).lines)
        for seq in range(1, last + 1):
            at = forgers[name].get("at", seq)
            forgers[name].put("at", seq, at + 1)
            result = (await sessions.audit(name)).misfit
            if name == "copy":
                assert result == seq
            elif seq <= last - 2:  # the last two are one group
                assert seq < result <= seq + 4
            else:
                assert result is None
            forgers[name].put("at", seq, at)


async def test_removed_moved_and_truncated_entries_are_detected(scene):
    """Missing and reordered entries are named; truncation is detected by a link noted earlier."""
    sessions, forgers = scene
    trail = await sessions.audit("s")
    forger, last = forgers["s"], len(trail.lines)
    forger.put("seq", 3, -1)
    assert (await sessions.audit("s")).misfit == 3
    forger.put("seq", 4, 3)
    forger.put("seq", -1, 4)
    assert (await sessions.audit("s")).misfit == 3
    forger.put("seq", 3, -1)
    forger.put("seq", 4, 3)
    forger.put("seq", -1, 4)
    assert (await sessions.audit("s")).misfit is None
    forger.put("seq", last, -1)
    assert (await sessions.audit("s")).misfit is None
    assert (await sessions.audit("s", link=trail.head)).misfit == last


async def test_tombstone_without_a_link_is_detected(scene):
    """A tombstone without a link is detected at any position, whatever it contains."""
    sessions, forgers = scene
    for session_id, name in (("s", "session_deleted"), ("copy", "session_erased")):
        last = len((await sessions.audit(session_id)).lines)
        forgers[session_id].add_tombstone(last + 1, name)
        assert (await sessions.audit(session_id)).misfit == last + 1
