"""A store copied to another backend is the same store: log by log, verified, and resumed where it stopped."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from itertools import product

import msgspec
import pytest

from saveslot import Corrupt, KeyMissing, Retention, SessionManager, Unavailable
from saveslot.log import Query
from saveslot.moving import landing, parcel
from saveslot.moving.copying import copied
from saveslot.stores import Store, open_store, sqlite_path
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


OTHERS = "update checkpoints set recipe = (select recipe from checkpoints where key = :key and seq = 5)"
# What somebody did to the file of `hurt`, and what of it is told.
DAMAGE = {
    "an entry in the middle is gone": ("delete from checkpoints where key = :key and seq = 9", "entry 9 is missing"),
    "the first is gone": ("delete from checkpoints where key = :key and seq = 1", "entry 1 is missing"),
    "all are gone": ("delete from checkpoints where key = :key", "has no entries"),
    "a patch is gone": ("update checkpoints set frame = null where key = :key and seq = 9", "entry 9 has 2 of its 3"),
    "a keyframe is gone": (
        "update checkpoints set frame = null where key = :key and seq = 2", "entry 2 has 0 of its 1",
    ),
    "a byte of a keyframe": (
        "update checkpoints set frame = cast(x'0101' || substr(frame, 3) as blob) where key = :key and seq = 2",
        "entry 2 does not match its digest",
    ),
    "a byte of a patch": (
        "update checkpoints set frame = cast(frame || x'00' as blob) where key = :key and seq = 9",
        "entry 9 does not match its digest",
    ),
    "another's recipe": (
        f"{OTHERS} where key = :key and seq = 9",
        "entry 9 has the recipe of another",
    ),
    "another's recipe in a rollback": (
        f"{OTHERS} where key = :key and seq = 15",
        "entry 15 has the recipe or the digest of another",
    ),
    "no recipe": (
        "update checkpoints set recipe = x'' where key = :key and seq = 9", "entry 9 has the recipe of another",
    ),
    "another name": ("update checkpoints set name = 'x' where key = :key and seq = 9", "entry 9 does not fit"),
    "another time": ("update checkpoints set at = at + 1 where key = :key and seq = 9", "entry 10 does not fit"),
    "a note": (
        "update checkpoints set note = cast(note || x'00' as blob) where key = :key and seq = 9",
        "entry 9 has a note that was changed",
    ),
    "its context": (
        "update sessions set body = cast(body || x'00' as blob) where key = :key", "what it is about does not match",
    ),
}  # fmt: skip


async def hurt(store: Store) -> None:
    sessions = SessionManager(store=store)
    await sessions.create_session("tutor", context={"topic": "fractions"}, session_id="hurt")
    for n in range(13):
        await sessions.checkpoint("hurt", f"turn-{n}", append={"messages": [f"question {n}" * 20]}, metadata={"n": n})
    await sessions.rollback("hurt", 7)
    await sessions.checkpoint("hurt", "on", append={"messages": ["on"]})
    for n in range(3):
        await sessions.create_session("crowd", session_id=f"whole-{n}")


async def damaged(url: str, sql: str) -> Store:
    """The same file after somebody was at it."""
    connection = sqlite3.connect(sqlite_path(url))
    [(key,)] = connection.execute("select key from sessions where id = 'hurt'").fetchall()
    assert connection.execute(sql, {"key": key}).rowcount
    connection.commit()
    connection.close()
    return await open_store(url)


@pytest.mark.parametrize("parts", [500, 4])
@pytest.mark.parametrize("second", BACKENDS)
@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_session_stays_behind_and_is_told(fresh, fresh_url, second, what, parts, monkeypatch):
    """Whatever is wrong with it: named once, each time; nothing of it lands, and all others do."""
    monkeypatch.setattr(parcel, "MANY", parts)
    url, away = fresh_url("sqlite"), await fresh(second)
    origin = await open_store(url)
    await hurt(origin)
    await origin.close()
    sql, said = DAMAGE[what]
    origin = await damaged(url, sql)
    for landed, already in ((3, 0), (0, 3)):
        report = await copied(origin, away, "default")
        assert [problem.what for problem in report.problems] == ["session hurt"]
        assert said in report.problems[0].reason
        assert (len(report.landed), report.already) == (landed, already)
    assert sorted(await logs(away)) == ["whole-0", "whole-1", "whole-2"]
    await origin.close()


async def test_a_copy_of_what_was_damaged_since_stays_as_it_was(fresh, fresh_url):
    """What had come over is kept; nothing is put behind it that stands on damage."""
    url, away = fresh_url("sqlite"), await fresh("memory")
    origin = await open_store(url)
    await hurt(origin)
    await copied(origin, away, "default")
    before = await logs(away)
    await SessionManager(store=origin).checkpoint("hurt", "more", append={"messages": ["more"]})
    await origin.close()
    for gone in (9, 16):
        origin = await damaged(url, f"delete from checkpoints where key = :key and seq = {gone}")  # noqa: S608
        report = await copied(origin, away, "default")
        assert [problem.what for problem in report.problems] == ["session hurt"]
        assert "entry 9 is missing" in report.problems[0].reason
        assert await logs(away) == before
        await origin.close()


@pytest.mark.parametrize("key", [None, bytes(range(32))])
async def test_what_retention_gave_up_is_no_damage(fresh, key):
    """Frames that were thinned are not missed, nor some of them while that is under way."""
    origin, away, later = await fresh("sqlite"), await fresh("memory"), await fresh("memory")
    sessions = SessionManager(store=origin, encryption_key=key)
    await sessions.create_session("tutor", session_id="thin")
    for n in range(80):
        await sessions.checkpoint("thin", f"turn-{n}", append={"messages": [f"question {n}" * 20]})
    await sessions.rollback("thin", "~30")
    await sessions.checkpoint("thin", "on", append={"messages": ["on"]})
    rule = Retention(keep_last=3, keep_latest_per_name=False)
    assert (await sessions.thin("thin", rule)).marked
    [row] = await origin.find(Query(namespace="default"))
    assert await origin.empty(row.key, [5, 6, 7]) == 3
    assert (await copied(origin, away, "default")).problems == []
    assert (await sessions.thin("thin", rule, grace=timedelta(0))).emptied
    assert (await copied(origin, later, "default")).problems == []
    assert await logs(origin) == await logs(later)


class Refusing(MemoryStore):
    """Finds one session damaged, and with it every batch that it is in."""

    async def append(self, groups):
        if any(group.create and group.create.session_id == "crowd-3" for group in groups):
            raise Corrupt("crowd-3", "is damaged")
        return await super().append(groups)


async def test_damage_over_there_is_one_sessions(fresh):
    """A target that finds one session damaged takes all others."""
    origin, away = await fresh("memory"), Refusing()
    await lived(origin)
    report = await copied(origin, away, "default")
    assert [problem.what for problem in report.problems] == ["session crowd-3"]
    assert len(await logs(away)) == len(await logs(origin)) - 1


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
