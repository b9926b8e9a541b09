"""What retention drops is out of sight at once and gone later; whatever it keeps can be read, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from saveslot import (
    Conflict,
    InvalidInput,
    LeaseHeld,
    NotFound,
    Retention,
    SessionManager,
    Thinned,
)
from saveslot.model import Kind
from saveslot.stack import Postgres
from saveslot.stores.memory import MemoryStore
from saveslot.stores.postgres import PostgresStore
from saveslot.stores.sqlite import SqliteStore

NOW = timedelta(0)
LAST = Retention(keep_last=2, keep_latest_per_name=False)


async def grown(sessions, count=10, **of):
    session = await sessions.create_session("tutor", session_id="s", **of)
    for n in range(count):
        await sessions.checkpoint("s", f"c{n % 3}", {"n": n, "text": f"{n} " * 50})
    return session


async def names(sessions, **how):
    return [(made.seq, made.name) for made in await sessions.history("s", **how)]


async def test_what_is_dropped_is_out_of_sight(sessions, others):
    """Refs, history, `~n` and rollback no longer find a marked checkpoint, in any process; with `all` it is shown."""
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
        assert [made.seq for made in everything] == list(range(1, 13))
        assert everything[4].data["n"] == 3  # marked, not emptied yet
    assert (await sessions.get_session("s")).checkpoints[-1].data["n"] == 9


async def test_bytes_are_given_back_after_the_grace(sessions, others, stores, clock):
    """Frames stay for ten minutes; then those that nothing kept is rebuilt from are gone, rows and names are not."""
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
    assert [made.data.get("n") for made in await others.history("s")] == [None, 0, 38, 39]
    gone = (await others.history("s", all=True))[lost[0].seq - 1]
    with pytest.raises(NotFound, match="thinned"):
        _ = gone.data
    assert await others.thin("s", LAST) == Thinned()  # nothing is left to do
    assert ["thinned"] in [line.changed for line in await others.log("s", all=True)]


async def test_pinned_and_lifecycle_entries_stay(sessions, others):
    """A pin outlives the process that set it, any rule, and is undone by unpin; other entries are never dropped."""
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


async def test_the_rule_comes_from_the_session_its_type_or_the_manager(fresh):
    """A session's own rule is kept with it, also by a fork and an import; the manager's comes last."""
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


async def test_a_holder_is_not_disturbed(sessions, others):
    """Another process leaves a held session alone; the holder's own marks it between two of its writes."""
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


async def test_a_mark_is_no_sign_of_life(sessions, others, clock):
    """Thinning does not keep a silent session from being swept, and a swept one can be thinned."""
    await grown(sessions)
    clock.pass_hours(49)
    await others.thin("s", LAST)
    assert await sessions.cleanup_stale_sessions() == 1
    await others.thin("s", Retention(keep_last=1, keep_latest_per_name=False), grace=NOW)
    assert (await sessions.get_checkpoint("s", "latest")).data["n"] == 9


async def test_who_writes_need_not_have_seen_a_mark(sessions, others):
    """A session value, and a manager that knows the session, go on behind another process's mark or pin."""
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


async def test_a_reader_in_between_reads_the_head_again(sessions, others, stores, monkeypatch):
    """One that read the head before the mark, and the frames after they were emptied, shows what is left."""
    await grown(sessions, 30)
    real = type(stores[1]).heads
    overtaken = 0

    async def slow(self, refs):
        nonlocal overtaken
        found = await real(self, refs)
        if self is stores[1] and not overtaken:
            overtaken = 1
            await sessions.thin("s", LAST, grace=NOW)
        return found

    for read in (
        lambda: others.history("s"),
        lambda: others.get_session("s", history="all"),
        lambda: others.log("s"),
        lambda: others.export("s"),
    ):
        monkeypatch.setattr(type(stores[1]), "heads", slow)
        overtaken = 0
        told = await read()
        assert overtaken
        monkeypatch.undo()
        if isinstance(told, list) and hasattr(told[0], "data"):
            assert [made.data.get("n") for made in told if made.name[0] == "c"]
        if isinstance(told, str):
            copy = await sessions.import_session(told, session_id="copy")
            assert (await sessions.get_checkpoint(copy.session_id)).data["n"] == 9
        for n in range(10):
            await sessions.checkpoint("s", "c", {"n": n, "text": f"{n} " * 50})


async def test_a_thinned_session_can_be_moved(sessions):
    """An export names what was thinned and carries no data of it; imported, the same checkpoints are there."""
    await grown(sessions, 20)
    await sessions.thin("s", LAST, grace=NOW)
    text = await sessions.export("s")
    await sessions.import_session(text, session_id="copy")
    left = [(made.seq, made.name, made.data) for made in await sessions.history("s")]
    assert [(made.seq, made.name, made.data) for made in await sessions.history("copy")] == left
    again = await sessions.export("copy")
    assert again.replace('"copy"', '"s"') == text
    assert (await sessions.thin("copy", LAST, grace=NOW)).marked == 0


async def test_all_are_thinned_when_their_time_has_come(fresh, clock):
    """By default nothing goes until a session has been over for 30 days; then the parity rule, then its bytes."""
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


async def test_thinning_many_at_once_is_one_thinning(sessions, others):
    """Managers that thin one session together, while it is written, drop each checkpoint once."""
    await grown(sessions, 30)

    async def write():
        for n in range(10):
            await sessions.checkpoint("s", "w", {"n": 100 + n})

    done = await asyncio.gather(write(), *(one.thin("s", LAST) for one in (sessions, others, sessions, others)))
    assert sum(part.marked for part in done[1:]) >= 27
    assert (await sessions.get_checkpoint("s")).data == {"n": 109}
    await others.thin("s", LAST, grace=NOW)
    assert [made.data.get("n") for made in await others.history("s")] == [None, 0, 108, 109]


# Whatever is done, in any order


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with Postgres() as server:
        yield server.url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request, tmp_path_factory):
    if request.param == "memory":
        return MemoryStore
    if request.param == "sqlite":
        return lambda: SqliteStore.open(str(tmp_path_factory.mktemp("thin") / "s.db"))
    url = request.getfixturevalue("postgres")
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
def test_every_survivor_decodes(opened, plan):
    """After any checkpoints, rollbacks, forks, pins and rules, with readers and rollbacks between the phases, each
    checkpoint that is shown holds what was saved under its number, and pinned ones and the newest are shown.
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
                made = await sessions.rollback(self.id, chosen)
                self.data = self.states[made.seq] = self.states[chosen]
                assert made.data == self.data
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
                left = {made.seq for made in await sessions.history(self.id)}
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
            for made in self.reading[0]:
                if made.seq in self.reading[1]:
                    assert made.data == self.reading[1][made.seq]

    async def save(self, sessions, move, text):
        if move == "save":
            self.data = {"n": text, "log": [f"{text} " * 20]}
            told = {"data": self.data}
        else:
            self.data = {**self.data, "log": [*self.data.get("log", []), f"+{text} " * 9]}
            told = {"append": {"log": [f"+{text} " * 9]}}
        try:
            made = await sessions.checkpoint(self.id, text[-1], **told)
        except Conflict:  # it had not seen the other manager's checkpoints
            made = await sessions.checkpoint(self.id, text[-1], **told)
        self.states[made.seq] = self.data

    async def check(self, sessions, id=None):
        shown = {made.seq: made for made in await sessions.history(id or self.id)}
        found = {seq: made.data for seq, made in shown.items() if seq in self.states}
        assert found == self.states
        assert [seq for seq, made in shown.items() if seq not in self.states and made.name.isdigit()] == []
        assert await sessions.get_data(id or self.id) == self.data
        if id is None:
            assert set(await sessions.pins(self.id)) == self.pinned
