"""Retention hides checkpoints at once and drops their bytes later; every kept one stays readable, on every backend."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from saveslot import Conflict, InvalidInput, LeaseHeld, NotFound, Retention, SessionManager, Thinned
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore
from saveslot.values.kinds import Kind

NOW = timedelta(0)
LAST = Retention(keep_last=2, keep_latest_per_name=False)


async def grown(sessions, count=10, **of):
    session = await sessions.create_session("tutor", session_id="s", **of)
    for n in range(count):
        await sessions.checkpoint("s", f"c{n % 3}", {"n": n, "text": f"{n} " * 50})
    return session


async def names(sessions, **how):
    return [(checkpoint.seq, checkpoint.name) for checkpoint in await sessions.history("s", **how)]


async def test_marked_checkpoints_are_hidden(sessions, others):
    """Refs, history, `~n` and rollback no longer find a marked checkpoint, in any process; `all` shows it."""
    await grown(sessions)
    assert await sessions.thin("s", LAST) == Thinned(7, 0, 0)
    for one in (sessions, others):
        assert await names(one) == [(1, "session_created"), (2, "c0"), (10, "c2"), (11, "c0")]
        assert (await one.get_checkpoint("s", "c2")).data["n"] == 8
        assert (await one.get_checkpoint("s", "~2")).data["n"] == 0
        for ref in (5, "c1", "s:5", "~3"):
            with pytest.raises(NotFound):
                await one.get_checkpoint("s", ref)
            with pytest.raises(NotFound):
                await one.rollback("s", ref)
        everything = await one.history("s", all=True)
        assert [result.seq for result in everything] == list(range(1, 13))
        assert everything[4].data["n"] == 3  # marked, not emptied yet
    assert (await sessions.get_session("s")).checkpoints[-1].data["n"] == 9


async def test_frames_are_emptied_after_the_grace(sessions, others, stores, clock):
    """Frames stay for ten minutes; then those that no kept checkpoint needs are dropped, but rows and names stay."""
    await grown(sessions, 40)
    [head] = await stores[0].heads([("default", "s")])
    before = await stores[1].entries(head.row.key)
    assert (await sessions.thin("s", LAST)).marked == 37
    clock.pass_hours(0.16)
    assert await others.thin("s", LAST) == Thinned()
    clock.pass_hours(0.01)
    done = await others.thin("s", LAST)
    assert done.emptied > 0
    after = await stores[1].entries(head.row.key)
    lost = [old for old, new in zip(before, after, strict=False) if new.frame != old.frame]
    assert (len(lost), sum(len(entry.frame) for entry in lost)) == (done.emptied, done.freed_bytes)
    assert {entry.kind for entry in lost} == {Kind.CHECKPOINT}
    assert [(e.seq, e.append_id, e.name, e.digest) for e in after[: len(before)]] == [
        (e.seq, e.append_id, e.name, e.digest) for e in before
    ]
    assert [checkpoint.data.get("n") for checkpoint in await others.history("s")] == [None, 0, 38, 39]
    gone = (await others.history("s", all=True))[lost[0].seq - 1]
    with pytest.raises(NotFound, match="thinned"):
        _ = gone.data
    assert await others.thin("s", LAST) == Thinned()  # nothing is left to do
    assert ["thinned"] in [line.changed for line in await others.log("s", all=True)]


async def test_pins_and_lifecycle_entries_survive_thinning(sessions, others):
    """A pin outlives the process that set it and any rule, until unpin; lifecycle entries are never dropped."""
    session = await grown(sessions)
    await sessions.refresh(session)
    session.pause()
    session.resume()
    await sessions.update_session(session)
    assert (await sessions.pin("s", "c1")).seq == 9
    assert (await sessions.pin("s", 9)).seq == 9  # once is enough
    assert await others.pins("s") == [9]
    strict = Retention(0, 0, keep_latest_per_name=False, max_checkpoints=1, max_bytes=0, max_age=NOW)
    await others.thin("s", strict, grace=NOW)
    kept = [(1, "session_created"), (9, "c1"), (11, "c0"), (12, "session_paused"), (13, "session_resumed")]
    assert await names(others) == kept
    assert (await others.get_checkpoint("s", 9)).data["n"] == 7
    await others.unpin("s", 9)
    assert await sessions.pins("s") == []
    await sessions.thin("s", strict, grace=NOW)
    assert await names(sessions) == [kept[0], *kept[2:]]
    with pytest.raises(NotFound):
        await sessions.pin("s", 9)
    with pytest.raises(InvalidInput, match="always kept"):
        await sessions.pin("s", "session_paused")


async def test_retention_precedence(fresh):
    """A session's own rule is stored with it, also by a fork and an import; the manager's rule comes last."""
    sessions = fresh(retention={"tutor": Retention(keep_last=4), "grader": None})
    await grown(sessions, 10, retention=LAST)
    copied = await sessions.import_session(await sessions.export("s"), session_id="copy")
    assert (await fresh().thin("s")).marked == 7
    assert (await fresh().thin(copied.session_id)).marked == 7
    await sessions.create_session("tutor", session_id="typed")
    await sessions.create_session("grader", session_id="kept")
    for n in range(10):
        for one in ("typed", "kept"):
            await sessions.checkpoint(one, "c", {"n": n})
    assert (await sessions.thin("typed")).marked == 4
    assert (await sessions.thin("kept")).marked == 0
    assert (await fresh(retention=None).thin("typed")).marked == 0
    with pytest.raises(InvalidInput, match="retention"):
        fresh(retention=5)


async def test_thinning_does_not_disturb_a_holder(sessions, others):
    """Other processes leave a held session alone; the holder's own process marks it between two of its writes."""
    await grown(sessions)
    async with sessions.hold("s") as held:
        await held.checkpoint("x", {"n": 10})
        for thin in (others.thin("s", LAST), others.pin("s", "x")):
            with pytest.raises(LeaseHeld):
                await thin
        assert (await others.thin_all()).marked == 0
        await held.checkpoint("x", {"n": 11})
        assert (await sessions.thin("s", LAST, grace=NOW)).marked == 9
        await sessions.pin("s", "x")
        await held.checkpoint("x", append={"more": [1]})
        assert (await held.rollback("~2")).data == {"n": 10}
    assert await others.pins("s") == [14]


async def test_mark_is_not_a_heartbeat(sessions, others, clock):
    """Thinning does not keep a silent session from being swept, and a swept one can be thinned."""
    await grown(sessions)
    clock.pass_hours(49)
    await others.thin("s", LAST)
    assert await sessions.cleanup_stale_sessions() == 1
    await others.thin("s", Retention(keep_last=1, keep_latest_per_name=False), grace=NOW)
    assert (await sessions.get_checkpoint("s", "latest")).data["n"] == 9


async def test_mark_or_pin_is_not_a_conflict(sessions, others):
    """A session value, and a manager that cached the session, can write after another process's mark or pin."""
    session = await grown(sessions)
    session = await sessions.get_session("s")
    await others.thin("s", LAST)
    await sessions.checkpoint(session, "next", {"n": 10})
    await others.pin("s", "next")
    session.checkpoint("staged", {"n": 11})
    await sessions.update_session(session)
    await others.unpin("s", "next")
    await sessions.checkpoint("s", "by id", append={"more": [1]})
    assert (await others.get_checkpoint("s")).data == {"n": 11, "more": [1]}
    await sessions.refresh(session)
    await others.checkpoint("s", "theirs", {})
    with pytest.raises(Conflict):
        await sessions.checkpoint(session, "mine", {})


async def test_reader_retries_after_emptied_frames(sessions, others, stores, monkeypatch):
    """A reader that read the head before the mark and the frames after they were emptied returns what is left."""
    await grown(sessions, 30)
    real = type(stores[1]).heads
    overtaken = 0

    async def slow(self, refs, **how):
        nonlocal overtaken
        result = await real(self, refs, **how)
        if self is stores[1] and not overtaken:
            overtaken = 1
            await sessions.thin("s", LAST, grace=NOW)
        return result

    for read in (
        lambda: others.history("s"),
        lambda: others.get_session("s", history="all"),
        lambda: others.log("s"),
        lambda: others.export("s"),
    ):
        monkeypatch.setattr(type(stores[1]), "heads", slow)
        overtaken = 0
        answer = await read()
        assert overtaken
        monkeypatch.undo()
        if isinstance(answer, list) and hasattr(answer[0], "data"):
            assert [result.data.get("n") for result in answer if result.name[0] == "c"]
        if isinstance(answer, str):
            copy = await sessions.import_session(answer, session_id="copy")
            assert (await sessions.get_checkpoint(copy.session_id)).data["n"] == 9
        for n in range(10):
            await sessions.checkpoint("s", "c", {"n": n, "text": f"{n} " * 50})


async def test_thinned_session_round_trips(sessions):
    """An export names thinned checkpoints without their data; the import has the same checkpoints."""
    await grown(sessions, 20)
    await sessions.thin("s", LAST, grace=NOW)
    text = await sessions.export("s")
    await sessions.import_session(text, session_id="copy")
    left = [(checkpoint.seq, checkpoint.name, checkpoint.data) for checkpoint in await sessions.history("s")]
    assert [(checkpoint.seq, checkpoint.name, checkpoint.data) for checkpoint in await sessions.history("copy")] == left
    again = await sessions.export("copy")
    assert again.replace('"copy"', '"s"') == text
    assert (await sessions.thin("copy", LAST, grace=NOW)).marked == 0


async def test_default_retention_waits_30_days(fresh, clock):
    """By default a session is thinned 30 days after it ended, by the parity rule; its bytes are dropped later."""
    sessions, keeping = fresh(), fresh()
    for name in ("done", "working"):
        await sessions.create_session("tutor", session_id=name)
        for n in range(60):
            await sessions.checkpoint(name, "c", {"n": n})
    async with sessions.hold("done") as held:
        await held.complete()
    assert await keeping.thin_all() == Thinned()
    clock.pass_hours(24 * 30 - 1)
    assert await keeping.thin_all() == Thinned()
    clock.pass_hours(1.1)
    assert await keeping.thin_all() == Thinned(60 - 22)
    assert await keeping.thin_all() == Thinned()
    clock.pass_hours(0.2)
    assert (await keeping.thin_all()).emptied > 0
    assert await fresh().thin_all() == Thinned()
    assert len(await sessions.history("working")) == 61


async def test_concurrent_thinning_drops_each_checkpoint_once(sessions, others):
    """Managers that thin one session at the same time, during writes, drop each checkpoint once."""
    await grown(sessions, 30)

    async def write():
        for n in range(10):
            await sessions.checkpoint("s", "w", {"n": 100 + n})

    done = await asyncio.gather(write(), *(one.thin("s", LAST) for one in (sessions, others, sessions, others)))
    assert sum(part.marked for part in done[1:]) >= 27
    assert (await sessions.get_checkpoint("s")).data == {"n": 109}
    await others.thin("s", LAST, grace=NOW)
    assert [checkpoint.data.get("n") for checkpoint in await others.history("s")] == [None, 0, 108, 109]


# Whatever is done, in any order


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request, tmp_path_factory):
    if request.param == "memory":
        return MemoryStore
    if request.param == "sqlite":
        return lambda: SqliteStore.open(str(tmp_path_factory.mktemp("thin") / "s.db"))
    url = request.getfixturevalue("database").url
    return lambda: PostgresStore.open(url)


rules = st.builds(
    Retention,
    st.integers(0, 2),
    st.none() | st.integers(0, 4),
    st.booleans(),
    st.integers(0, 6),
    st.none() | st.integers(1, 8),
    st.none() | st.just(NOW),
    st.none() | st.integers(0, 2000),
)
moves = st.one_of(
    st.tuples(st.just("save"), st.integers(1, 6)),
    st.tuples(st.just("grow"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["back", "pin", "unpin", "fork", "move", "read"]), st.integers(0, 30)),
    st.tuples(st.just("thin"), rules),
    st.tuples(st.just("empty"), rules),
    st.tuples(st.just("fail"), st.just(0)),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(moves, min_size=4, max_size=25))
def test_every_kept_checkpoint_decodes(opened, plan):
    """After any checkpoints, rollbacks, forks, pins and rules, with reads and rollbacks between the phases, every
    visible checkpoint holds the data saved under its number; pinned ones and the newest are visible.
    """
    asyncio.run(_followed(opened, plan))


async def _followed(opened, plan):
    store = opened()
    store = await store if asyncio.iscoroutine(store) else store
    try:
        one, two = (SessionManager(store=store, retention=None) for _ in range(2))
        model = _Model((await one.create_session("tutor")).session_id)
        for number, (move, choice) in enumerate(plan):
            sessions = (one, two)[number % 2]
            await model.follow(sessions, move, choice, number)
            await model.check((two, one)[number % 2])
    finally:
        await store.close()


class _Model:
    def __init__(self, id):
        self.id = id
        self.states = {}  # by seq: what was saved there
        self.data = {}
        self.pinned = set()
        self.reading = None  # a history that was read before, and is looked at later

    async def follow(self, sessions, move, choice, number):
        chosen = sorted(self.states)[choice % len(self.states)] if self.states and isinstance(choice, int) else None
        match move:
            case "save" | "grow":
                for n in range(choice):
                    await self.save(sessions, move, f"{number}.{n}")
            case "back" if chosen is not None:
                result = await sessions.rollback(self.id, chosen)
                self.data = self.states[result.seq] = self.states[chosen]
                assert result.data == self.data
            case "pin" if chosen is not None:
                await sessions.pin(self.id, chosen)
                self.pinned.add(chosen)
            case "unpin" if chosen is not None:
                await sessions.unpin(self.id, chosen)
                self.pinned.discard(chosen)
            case "fork" if chosen is not None:
                forked = await sessions.fork(self.id, chosen)
                assert (await sessions.get_checkpoint(forked.session_id)).data == self.states[chosen]
            case "move":
                copy = await sessions.import_session(await sessions.export(self.id), session_id=f"{self.id}/{number}")
                await self.check(sessions, copy.session_id)
            case "read":
                self.reading = await sessions.history(self.id), dict(self.states)
            case "thin" | "empty":
                await sessions.thin(self.id, choice, grace=NOW if move == "empty" else timedelta(days=1))
                left = {checkpoint.seq for checkpoint in await sessions.history(self.id)}
                assert self.pinned <= left
                if self.states:
                    assert max(self.states) in left
                self.states = {seq: state for seq, state in self.states.items() if seq in left}
            case "fail":
                session = await sessions.get_session(self.id)
                session.fail("x")
                await sessions.update_session(session)
                session.recover()
                await sessions.update_session(session)
        if self.reading is not None and number % 3 == 0:
            for result in self.reading[0]:
                if result.seq in self.reading[1]:
                    assert result.data == self.reading[1][result.seq]

    async def save(self, sessions, move, text):
        if move == "save":
            self.data = {"n": text, "log": [f"{text} " * 20]}
            answer = {"data": self.data}
        else:
            self.data = {**self.data, "log": [*self.data.get("log", []), f"+{text} " * 9]}
            answer = {"append": {"log": [f"+{text} " * 9]}}
        try:
            checkpoint = await sessions.checkpoint(self.id, text[-1], **answer)
        except Conflict:  # it had not seen the other manager's checkpoints
            checkpoint = await sessions.checkpoint(self.id, text[-1], **answer)
        self.states[checkpoint.seq] = self.data

    async def check(self, sessions, id=None):
        shown = {checkpoint.seq: checkpoint for checkpoint in await sessions.history(id or self.id)}
        by_key = {seq: checkpoint.data for seq, checkpoint in shown.items() if seq in self.states}
        assert by_key == self.states
        assert [seq for seq, checkpoint in shown.items() if seq not in self.states and checkpoint.name.isdigit()] == []
        assert await sessions.get_data(id or self.id) == self.data
        if id is None:
            assert set(await sessions.pins(self.id)) == self.pinned
