"""Pages of a whole log: headers with everything that is known of an entry."""

from __future__ import annotations

import msgspec
import pytest

import saveslot
from saveslot import InvalidInput, NotFound
from saveslot.codec import new_key
from saveslot.manager.log_pages import log_page
from saveslot.manager.parts import compare, making
from saveslot.stores.sqlite.file import connect


async def eventful(sessions, others) -> None:
    """A session with steps, a dead owner, a takeover, a rollback, a pin and a fork."""
    await sessions.create_session("tutor", session_id="s", data={"messages": []}, idempotency_key="k")  # 1, 2
    held = await others.take("s")  # 3
    await held.checkpoint("turn", append={"messages": ["hello"]}, put={"n": 1})  # 4
    await held.step("mail", lambda: 1, key="a", mode="at_most_once")  # 5, 6
    run = await held.runs.begin(held.call("pay", print, mode="at_most_once"))  # 7
    run.end()
    await others.engine.worker.leave()
    [held] = await sessions.claim()  # 8
    async with held:
        await held.checkpoint("later", put={"n": 2})  # 9
    await sessions.rollback("s", "turn")  # 11
    await sessions.pin("s", "turn")  # 12
    await sessions.fork("s", 9, "branch")


async def test_the_size_of_a_state_is_that_of_its_json(sessions, others):
    """`state_bytes` of a header, of a recipe and of a comparison are the same number: the bytes of the JSON."""
    await eventful(sessions, others)
    sizes = {row.seq: row.state_bytes for row in (await log_page(sessions, "s")).items if row.state_bytes is not None}
    states = {seq: len(msgspec.json.encode(await sessions.get_data("s", seq))) for seq in sizes}
    assert sizes == states
    assert {seq: (await making(sessions, "s", seq)).state_bytes for seq in sizes} == states
    compared = (await compare(sessions, "s", 4, 9)).summary.bytes
    assert (compared.a, compared.b) == (states[4], states[9])


async def test_a_page_tells_what_each_entry_is_and_did(sessions, others):
    """Kinds, owners, leases, steps with both ends, what changed, targets, pins, forks and the dead owner's silence."""
    await eventful(sessions, others)
    page = await log_page(sessions, "s")
    rows = {row.seq: row for row in page.items}
    assert [row.kind for row in page.items] == [
        "created", "checkpoint", "taken", "checkpoint", "step_started", "step_finished", "step_started", "claimed",
        "checkpoint", "released", "rollback", "pinned",
    ]  # fmt: skip
    owner = others.worker["name"]
    assert [row.owner for row in page.items] == [None, None, *[owner] * 7, None, None, None]
    changes = {row.seq: row.lease_change for row in page.items if row.lease_change}
    assert changes == {3: "taken", 8: "claimed", 10: "released"}
    assert {*rows[4].changed} == {"messages +1", "+n"}
    assert (rows[4].changed_counts.added, rows[4].changed_counts.changed) == (1, 1)
    assert rows[4].state_bytes == pytest.approx(len('{"messages":["hello"],"n":1}'), abs=1)
    assert [rows[n].step.status for n in (5, 6, 7)] == ["finished", "finished", "unknown"]
    assert rows[5].step.key == "a"
    assert rows[6].step.started_at == rows[5].at
    assert rows[6].step.duration_s == pytest.approx((rows[6].at - rows[5].at).total_seconds())
    assert (rows[8].former.worker, rows[8].former.silent_since <= rows[8].at) == (owner, True)
    assert (rows[11].to.seq, rows[11].to.name) == (4, "turn")
    assert [row.seq for row in page.items if row.pinned] == [4]
    assert [(fork.id, fork.entries) for fork in rows[9].forks] == [("branch", 2)]
    assert {row.data_seq for row in page.items[4:8]} == {4}
    assert (page.entries, page.next, page.previous) == (12, None, None)


async def test_pages_meet_without_gap_or_repeat(sessions, others):
    """`before`, `after` and `around` give the same rows as the whole log, whichever page they are on."""
    await eventful(sessions, others)
    whole = {row.seq: row for row in (await log_page(sessions, "s")).items}
    page, seen = await log_page(sessions, "s", limit=5), []
    while True:
        seen = page.items + seen
        if page.previous is None:
            break
        page = await log_page(sessions, "s", limit=5, before=page.previous)
    assert seen == [*whole.values()]
    after = await log_page(sessions, "s", after=5, limit=3)
    assert (after.items, after.next, after.previous) == ([whole[6], whole[7], whole[8]], 8, 6)
    around = await log_page(sessions, "s", around=6, limit=4)
    assert [row.seq for row in around.items] == [4, 5, 6, 7]
    assert around.items == [whole[seq] for seq in (4, 5, 6, 7)]
    assert (await log_page(sessions, "s", after=12)).items == []
    with pytest.raises(InvalidInput, match="around"):
        await log_page(sessions, "s", around=1, after=2)
    with pytest.raises(NotFound):
        await log_page(sessions, "none")


async def test_changed_names_short_values(sessions, others):
    """With `changed`, also of a rollback; without it, keys come from the entry itself."""
    await eventful(sessions, others)
    rows = {row.seq: row.changed for row in (await log_page(sessions, "s", changed=True)).items}
    assert (rows[9], rows[11]) == (["n 1→2"], ["n 2→1"])
    [row] = (await log_page(sessions, "s", around=9, limit=1, changed=True)).items
    assert row.changed == ["n 1→2"]
    [row] = (await log_page(sessions, "s", around=9, limit=1)).items
    assert row.changed == ["~n"]


async def test_thinned_checkpoints_stay_on_the_page(sessions):
    """They are marked, wherever the page is."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    for n in range(3):
        await sessions.checkpoint("s", f"c{n}", {"n": n})
    await sessions.drop("s", [3])
    assert [row.seq for row in (await log_page(sessions, "s")).items if row.thinned] == [3]
    [row] = (await log_page(sessions, "s", around=3, limit=1, changed=True)).items
    assert row.thinned


async def test_the_etag_moves_with_the_log_and_the_owner(sessions, others):
    """A pin moves it, and so does an owner's death; reading does not."""
    await sessions.create_session("tutor", session_id="s", data={"n": 0})
    await others.take("s")
    first = (await log_page(sessions, "s")).etag
    assert (await log_page(sessions, "s", limit=1)).etag == first
    await others.engine.worker.leave()
    second = (await log_page(sessions, "s")).etag
    await sessions.release("s")
    await sessions.pin("s", 2)
    assert len({first, second, (await log_page(sessions, "s")).etag}) == 3


async def test_a_sealed_log_is_shown_without_its_key(opened):
    """Kinds, names, owners and times are there; metadata, steps and changes are not."""
    async with opened(encryption_key=new_key()) as sessions:
        await sessions.create_session("tutor", session_id="s", data={"secret": 1})
        async with sessions.hold("s") as held:
            await held.checkpoint("turn", {"secret": 2}, {"note": "x"})
        whole = (await log_page(sessions, "s")).items
        async with opened() as blind:
            page = await log_page(blind, "s", changed=True)
    assert page.sealed
    assert [(row.kind, row.name, row.owner) for row in page.items] == [(r.kind, r.name, r.owner) for r in whole]
    assert [(row.metadata, row.changed, row.state_bytes) for row in page.items if row.kind == "checkpoint"] == [
        ({}, [], None)
    ] * 2


async def test_changed_finds_damaged_states(tmp_path):
    """An entry whose state cannot be rebuilt says why where states are compared; the other entries are as they were."""
    async with saveslot.open(tmp_path / "s.db") as sessions:
        await sessions.create_session("tutor", session_id="s")
        for n in range(3):
            await sessions.checkpoint("s", f"c{n}", {"n": n, "text": str(n) * 200})
    connection = connect(str(tmp_path / "s.db"), None)
    connection.execute("update checkpoints set frame = x'00ff00ff' where seq = 3")
    connection.close()
    async with saveslot.open(tmp_path / "s.db") as sessions:
        items = (await log_page(sessions, "s", changed=True)).items
        assert [bool(entry.damaged) for entry in items] == [False, False, True, True]  # c2 is a patch of c1
        assert items[1].changed
        assert not any(entry.damaged for entry in (await log_page(sessions, "s")).items)
