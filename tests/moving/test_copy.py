"""A store copied to another backend is the same store: log by log, verified, and resumed where it stopped."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from saveslot import KeyMissing, SessionManager, Unavailable
from saveslot.log import Query
from saveslot.moving import landing, parcel
from saveslot.moving.copying import copied
from saveslot.stores import Store
from saveslot.stores.memory import MemoryStore

from .conftest import BACKENDS, lived, told


async def logs(store: Store) -> dict[str, tuple]:
    """Rows and entries as they are stored, without who holds them and when they last gave a sign of life."""
    found = {}
    for row in await store.find(Query(namespace="default"), limit=1000):
        entries = await store.entries(row.key)
        bare = [msgspec.structs.replace(entry, lease=None, alive=0) for entry in entries]
        about = (row.key, row.agent_type, row.user_id, row.state, row.created_at, row.fence, row.body, row.labels)
        found[row.session_id] = (about, bare)
    return found


@pytest.mark.parametrize(("first", "second"), list(product(BACKENDS, BACKENDS)))
async def test_there_and_back_is_equal(fresh, first, second):
    """From any backend to any other and back: every entry, every checkpoint, every row; and nothing twice."""
    origin, away, back = await fresh(first), await fresh(second), await fresh(first)
    await lived(origin)
    there = await copied(origin, away, "default")
    again = await copied(away, back, "default")
    assert there.problems == again.problems == []
    assert sorted(there.landed) == sorted(again.landed) == sorted(await logs(origin))
    assert await logs(origin) == await logs(away) == await logs(back)
    assert (await told(back)) == (await told(origin))
    more = await copied(origin, back, "default")
    assert (more.landed, more.already, more.entries, more.problems) == ([], len(there.landed), 0, [])


async def test_a_copy_is_held_by_nobody(fresh):
    """A lease is the promise of one store: in the copy the session is free, and goes on."""
    origin, away = await fresh("sqlite"), await fresh("memory")
    await lived(origin)
    await copied(origin, away, "default")
    sessions = SessionManager(store=away)
    assert (await sessions.get_session("forked")).owner is None
    async with sessions.hold("forked") as held:
        assert held.data == {"paid": True, "by": "nobody yet"}
        assert await held.step("charge", lambda: pytest.fail("it ran again"), key="k-1") == {"paid": True}


async def test_what_came_since_is_brought(fresh):
    """A second run continues each session behind its newest entry, its state included."""
    origin, away = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    await copied(origin, away, "default")
    sessions = SessionManager(store=origin)
    lesson = await sessions.get_session("lesson")
    await sessions.checkpoint(lesson, "more", append={"messages": [1]})
    lesson.context["late"] = True
    lesson.complete("done")
    await sessions.update_session(lesson)
    report = await copied(origin, away, "default")
    assert (report.landed, report.entries, report.problems) == (["lesson"], 3, [])
    before, after = await told(origin), await told(away)
    assert before["forked"] == after["forked"]
    assert (await SessionManager(store=away).get_session("lesson")).context["late"] is True
    assert await logs(origin) == await logs(away)


async def test_what_differs_is_left_alone_and_told(fresh):
    """An id taken by a stranger, a copy that went on by itself, one that was deleted: each named, none touched."""
    origin, away = await fresh("memory"), await fresh("sqlite")
    await lived(origin)
    there = SessionManager(store=away)
    await there.create_session("stranger", session_id="done")
    report = await copied(origin, away, "default")
    assert [problem.what for problem in report.problems] == ["session done"]
    assert (await there.get_session("done")).agent_type == "stranger"
    await there.checkpoint("lesson", "own way", {"n": 1})
    await there.delete_session("crowd-3")
    here = SessionManager(store=origin)
    await here.checkpoint("lesson", "their way", {"n": 2})
    report = await copied(origin, away, "default")
    assert sorted(problem.what for problem in report.problems) == ["session crowd-3", "session done", "session lesson"]
    assert (await there.get_checkpoint("lesson")).name == "own way"
    assert await there.get_session("crowd-3") is None
    assert report.entries == 0


class Breaking:
    """A store whose n-th append never comes back."""

    def __init__(self, store: Store, after: int) -> None:
        self._store, self._left = store, after

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append(self, groups):
        if not self._left:
            raise Unavailable("gone")
        self._left -= 1
        return await self._store.append(groups)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_copy_that_was_interrupted_is_finished_by_the_next(fresh, backend, monkeypatch):
    """Whatever the point: no session is taken up half, and in the end all is there once."""
    monkeypatch.setattr(landing, "TOGETHER", 4)
    monkeypatch.setattr(parcel, "MANY", 9)
    origin, away = await fresh("memory"), await fresh(backend)
    await lived(origin)
    runs, seen = 0, set()
    while runs < 60:
        runs += 1
        try:
            report = await copied(origin, Breaking(away, 2), "default")
            break
        except Unavailable:
            whole = await logs(origin)
            for session_id, (about, entries) in (await logs(away)).items():
                assert entries == whole[session_id][1][: len(entries)]
                parted = len(entries) < len(whole[session_id][1])
                assert about[3] == ("paused" if parted else whole[session_id][0][3])
                seen.add(parted)
    assert 3 < runs < 60
    assert seen == {True, False}
    assert report.problems == []
    assert await logs(origin) == await logs(away)


class Garbling(MemoryStore):
    """Loses a byte of every frame, without a word."""

    async def append(self, groups):
        return await super().append([self._garbled(group) for group in groups])

    def _garbled(self, group):
        frames = [entry.frame and entry.frame[:-1] + b"?" for entry in group.entries]
        pairs = zip(group.entries, frames, strict=True)
        return msgspec.structs.replace(group, entries=[msgspec.structs.replace(e, frame=f) for e, f in pairs])


async def test_a_store_that_garbles_is_found_out(fresh):
    """Every entry is read back and compared."""
    origin = await fresh("memory")
    await lived(origin)
    report = await copied(origin, Garbling(), "default")
    assert report.landed == []
    assert {problem.what for problem in report.problems} == {f"session {name}" for name in await logs(origin)}


async def test_damage_in_the_source_is_told(fresh):
    """Digests are followed on the way: a damaged frame is named, and everything else comes over."""
    origin, away = MemoryStore(), await fresh("sqlite")
    await lived(origin)
    [row] = [row for row in await origin.find(Query(namespace="default"), limit=99) if row.session_id == "lesson"]
    log = origin._logs[row.key]  # noqa: SLF001  (damage is done where nobody looks)
    log[10].frame = log[10].frame[:-1] + b"?"
    log[20].note = b"?" * 30
    report = await copied(origin, away, "default")
    assert [problem.what for problem in report.problems] == ["checkpoint lesson:11", "checkpoint lesson:21"]
    assert len(report.landed) == len(await logs(origin))


async def test_namespaces_stay_apart(fresh):
    origin, away = await fresh("memory"), await fresh("memory")
    await lived(origin)
    await lived(origin, "other")
    await copied(origin, away, "other")
    assert await told(away) == {}
    assert await told(away, "other") == await told(origin, "other")


@pytest.mark.parametrize("second", BACKENDS)
async def test_a_sealed_session_is_copied_as_it_is(fresh, second):
    """The copier needs no key. With it the copy reads as the original and goes on; links noted before still prove."""
    key = bytes(range(32))
    origin, away = await fresh("sqlite"), await fresh(second)
    sealed = SessionManager(store=origin, encryption_key=key)
    await sealed.create_session("tutor", "anna", {"topic": "fractions"}, session_id="s")
    async with sealed.hold("s") as held:
        for n in range(3):
            await held.checkpoint("asked", {"n": n}, metadata={"why": "so"})
    await sealed.rollback("s", "~1")
    noted = (await sealed.audit("s")).head
    report = await copied(origin, away, "default")
    assert (report.landed, report.problems) == (["s"], [])
    assert await logs(origin) == await logs(away)
    with pytest.raises(KeyMissing):
        await SessionManager(store=away).get_session("s")
    there = SessionManager(store=away, encryption_key=key)
    assert (await there.get_data("s"), (await there.get_session("s")).context) == ({"n": 1}, {"topic": "fractions"})
    assert await there.export("s", plain=True) == await sealed.export("s", plain=True)
    await there.checkpoint("s", "on", {"n": 9})
    assert (await there.audit("s", link=noted)).misfit is None
