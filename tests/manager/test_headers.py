"""Reads without states: `head`, `entries`, and sessions without their history."""

from __future__ import annotations

import pytest

import saveslot
from saveslot import Corrupt, InvalidInput, NotFound, Owner, SessionState
from saveslot.stores.memory import MemoryStore
from saveslot.stores.sqlite.file import connect


async def filled(sessions, session_id="s"):
    await sessions.create_session("tutor", "anna", session_id=session_id, labels={"class": "7b"}, data={"n": 0})
    async with sessions.hold(session_id) as held:
        await held.checkpoint("one", {"n": 1}, {"m": 1})
        await held.step("ask", lambda: 5)
    await sessions.checkpoint(session_id, "two", {"n": 2})
    await sessions.pause(session_id)


async def test_head_is_the_newest_entry(sessions, others):
    """It has the entry's number, kind, name, time and data, and what lists show of the session."""
    await filled(sessions)
    head = await others.head("s")
    assert (head.session_id, head.seq, head.kind, head.name) == ("s", 8, "paused", "session_paused")
    assert (head.state, head.metadata) == (SessionState.PAUSED, {"previous_state": "active"})
    assert (head.agent_type, head.user_id, head.labels, head.owner) == ("tutor", "anna", {"class": "7b"}, None)
    assert head.timestamp == (await others.history("s"))[-1].timestamp


async def test_head_names_the_owner(sessions, others):
    """While a worker holds the session: its name, fencing token, and since when."""
    await sessions.create_session("tutor", session_id="s")
    async with sessions.hold("s") as held:
        await held.checkpoint("one", {"n": 1})
        owner = (await others.head("s")).owner
        assert isinstance(owner, Owner)
        assert (owner.worker, owner.fence) == (sessions.worker["name"], held.fence)
        [taken] = await others.entries("s", kinds=["taken"])
        assert owner.since == taken.timestamp == held.session.owner.since
        [found] = await others.find(heads=True)
        assert (found.head.owner.fence, found.head.name) == (1, "one")


async def test_a_damaged_head_does_not_hide_other_sessions(tmp_path):
    """A list has None for it, and the heads of the others; whoever reads that one session gets `Corrupt`."""
    async with saveslot.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        for name in ("a", "b"):
            await sessions.create_session("tutor", session_id=name)
            await sessions.complete(name, {"grade": name})
        connection = connect(f"{tmp_path}/s.db", None)
        connection.execute("""
            update checkpoints set note = cast(note || x'00' as blob)
            where seq = 2 and key = (select key from sessions where id = 'a')
        """)
        connection.close()
    async with saveslot.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        listed = {session.session_id: session for session in await sessions.find(heads=True)}
        assert (listed["a"].head, listed["a"].state) == (None, SessionState.COMPLETED)
        assert listed["b"].head.metadata == {"result": {"grade": "b"}}
        with pytest.raises(Corrupt, match="a:2"):
            await sessions.head("a")


async def test_entries_are_headers_oldest_first(sessions, others):
    """All kinds, each with the worker that held the session; checkpoints that were thinned are left out."""
    await filled(sessions)
    every = await others.entries("s")
    assert [(entry.seq, entry.kind) for entry in every] == [
        (1, "created"), (2, "checkpoint"), (3, "taken"), (4, "checkpoint"), (5, "step_finished"), (6, "released"),
        (7, "checkpoint"), (8, "paused"),
    ]  # fmt: skip
    assert [entry.owner is not None and entry.owner.fence for entry in every][2:6] == [1, 1, 1, False]
    assert every[3].owner.worker == sessions.worker["name"]
    assert every[3].metadata == {"m": 1}
    assert all(entry.size > 0 for entry in every[:3])
    assert every[-1].version == (await others.head("s")).version


async def test_entries_can_be_paged_and_filtered(sessions):
    """`after` and `before` are exclusive; `newest`, `names` and `kinds` choose among what is between them."""
    await filled(sessions)
    for n in range(5):
        await sessions.checkpoint("s", f"c{n % 2}", {"n": n})

    async def seqs(**wanted):
        return [entry.seq for entry in await sessions.entries("s", **wanted)]

    assert await seqs(after=3, before=6) == [4, 5]
    assert await seqs(newest=2) == [12, 13]
    assert await seqs(after=4, before=9, newest=2) == [7, 8]
    assert await seqs(names=["c1", "one"]) == [4, 10, 12]
    assert await seqs(names=["c0", "c1"], newest=3) == [11, 12, 13]
    assert await seqs(kinds=["checkpoint"], newest=1) == [13]
    assert await seqs(kinds=["taken", "released"]) == [3, 6]
    assert [entry.owner.fence for entry in await sessions.entries("s", names=["one"])] == [1]
    assert await seqs(newest=0) == await seqs(after=13) == await seqs(before=1) == await seqs(names=[]) == []
    wrong = {"kinds": ["nonsense"], "names": "one", "after": -1, "newest": -1, "before": "x"}
    for name, value in wrong.items():
        with pytest.raises(InvalidInput, match=name):
            await sessions.entries("s", **{name: value})
    with pytest.raises(NotFound):
        await sessions.entries("nobody")


async def test_history_0_loads_nothing(sessions, others):
    """One head is read; checkpoints are empty, and asking for the last one says how to load it. So do lists."""
    await filled(sessions)
    [listed] = await others.find()
    for session in (await others.get_session("s", history=0), listed):
        assert session.checkpoints == []
        for name in (None, "one"):
            with pytest.raises(NotFound, match="get_session"):
                session.get_last_checkpoint(name)
        session.context["k"] = 1
        await others.refresh(session)
        assert session.get_last_checkpoint("two").data == {"n": 2}
        assert session.get_last_checkpoint("nonsense") is None


async def test_head_and_history_0_read_no_log():
    """Their cost does not depend on the log: a store is asked for the head, and for no entries."""
    asked = []

    class Counting(MemoryStore):
        async def entries(self, key, wanted):
            asked.append(wanted)
            return await super().entries(key, wanted)

    from saveslot import SessionManager

    sessions = SessionManager(store=Counting())
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    for n in range(50):
        await sessions.checkpoint("s", "c", {"n": n})
    asked.clear()
    await sessions.head("s")
    await sessions.get_session("s", history=0)
    assert asked == []


@pytest.mark.parametrize("reader", ["writer", "other"])
async def test_parts_of_the_state(sessions, others, reader):
    """Only the keys asked for come back, and of lists the last items; `last` names keys as well. It is the same for a
    process that wrote last as for another one.
    """
    data = {"messages": [{"n": n, "text": '],[\\"' * n} for n in range(30)], "turn": 3, "raw": b"\x00", "empty": []}
    await sessions.create_session("tutor", session_id="s", data=data)
    await sessions.checkpoint("s", "later", put={"turn": 4}, append={"messages": ["last"]})
    get = (sessions if reader == "writer" else others).get_data
    messages = [*data["messages"], "last"]
    assert await get("s", keys=["turn", "raw", "nobody"]) == {"turn": 4, "raw": b"\x00"}
    assert await get("s", keys=[]) == {}
    assert await get("s", last={"messages": 2}) == {**data, "turn": 4, "messages": messages[-2:]}
    assert await get("s", keys={"turn"}, last={"messages": 1, "nobody": 2}) == {"messages": ["last"], "turn": 4}
    assert await get("s", keys=(), last={"messages": 99, "empty": 5}) == {"messages": messages, "empty": []}
    assert await get("s", keys=(), last={"messages": 0}) == {"messages": []}
    assert await get("s", "created", keys=["turn"], last={"messages": 1}) == {"turn": 3, "messages": messages[29:30]}
    for wrong in ({"turn": 1}, {"messages": -1}, {"messages": True}, {"messages": None}):
        with pytest.raises(InvalidInput, match=f"last.{next(iter(wrong))}"):
            await get("s", last=wrong)
    for name, value in {"keys": "turn", "last": [1]}.items():
        with pytest.raises(InvalidInput, match=name):
            await get("s", **{name: value})
